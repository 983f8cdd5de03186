package app_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"patchbay/internal/command"
)

// presses tries to have the button pressed by somebody else.
func presses(change func(form url.Values, h http.Header)) func(*testing.T, *siege) string {
	return func(t *testing.T, x *siege) string {
		form, _, _ := x.page(x.asks(nil))
		form.Set("do", "allow")
		h := http.Header{"Content-Type": {"application/x-www-form-urlencoded"}, "Sec-Fetch-Site": {"same-origin"}}
		change(form, h)
		req, err := http.NewRequest("POST", x.asks(nil), strings.NewReader(form.Encode()))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = h
		code, body, head := x.ada.do(req)
		if code < 400 || head.Get("Location") != "" || strings.Contains(body, "code=") {
			return fmt.Sprint(code, body)
		}
		return ""
	}
}

var pageAttacks = []attack{
	{"the page's own form, which is none", func(t *testing.T, x *siege) string {
		if r := presses(func(url.Values, http.Header) {})(t, x); !strings.HasPrefix(r, "200") {
			return "it is refused, and the others prove nothing: " + r
		}
		return ""
	}},
	{"another's home page", func(t *testing.T, x *siege) string {
		_, out := x.register(map[string]any{"client_name": "Claude", "client_uri": "https://claude.ai/", "redirect_uris": []string{guestBack}, "token_endpoint_auth_method": "none"})
		x.id, _ = out["client_id"].(string)
		if _, _, body := x.page(x.asks(nil)); strings.Contains(body, "claude.ai") {
			return "it is shown"
		}
		return ""
	}},
	{"a form of another site", presses(func(_ url.Values, h http.Header) { h.Set("Sec-Fetch-Site", "cross-site") })},
	{"a form of a neighbour", presses(func(_ url.Values, h http.Header) { h.Set("Sec-Fetch-Site", "same-site") })},
	{"a form that does not say where it is from", presses(func(_ url.Values, h http.Header) { h.Del("Sec-Fetch-Site") })},
	{"a form of another origin", presses(func(_ url.Values, h http.Header) {
		h.Del("Sec-Fetch-Site")
		h.Set("Origin", "https://evil.example")
	})},
	{"a form without the question", presses(func(f url.Values, _ http.Header) { f.Del("print") })},
	{"a form with another's question", presses(func(f url.Values, _ http.Header) { f.Set("print", strings.Repeat("0", 64)) })},
	{"a form for a team of others", presses(func(f url.Values, _ http.Header) { f.Set("team", "payments") })},
	{"a form that allows nothing", presses(func(f url.Values, _ http.Header) { f["scope"] = []string{"admin"} })},
	{"a form that neither allows nor denies", presses(func(f url.Values, _ http.Header) { f.Set("do", "") })},
	{"a question shown to one and answered by another", func(t *testing.T, x *siege) string {
		form, _, _ := x.page(x.asks(nil)) // Ada's
		form.Set("do", "allow")
		if code, body := x.bob.post(x.asks(nil), form); code != http.StatusConflict || strings.Contains(body, "code=") {
			return fmt.Sprint(code, body)
		}
		return ""
	}},
	{"a frame around the page", func(t *testing.T, x *siege) string {
		req, err := http.NewRequest("GET", x.asks(nil), nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _, h := x.ada.do(req)
		if h.Get("X-Frame-Options") != "DENY" || !strings.Contains(h.Get("Content-Security-Policy"), "frame-ancestors 'none'") {
			return fmt.Sprint(h)
		}
		return ""
	}},
	{"an answer by GET", func(t *testing.T, x *siege) string {
		form, _, _ := x.page(x.asks(nil))
		return strings.TrimPrefix(x.led(x.ada, x.asks(nil)+"&do=allow&print="+form.Get("print")), "asked")
	}},
	{"a person who is not signed in", func(t *testing.T, x *siege) string {
		to := x.led(newVisitor(t), x.asks(nil))
		return strings.TrimPrefix(to, "/signin?next="+url.QueryEscape(strings.TrimPrefix(x.asks(nil), x.base)))
	}},
	{"a token for a person", func(t *testing.T, x *siege) string {
		var made command.TokenCreated
		if err := x.s.do("tokens.create", command.TokensCreateInput{Label: "t", Scopes: []string{"mcp:read", "runs:write"}, Expires: "1d"}, &made); err != nil {
			return err.Error()
		}
		req, err := http.NewRequest("GET", x.asks(nil), nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+made.Value)
		if code, body, h := newVisitor(t).do(req); code != 403 || h.Get("Location") != "" {
			return fmt.Sprint(code, body)
		}
		return ""
	}},
	{"a name that moves about on the page", func(t *testing.T, x *siege) string {
		_, out := x.register(map[string]any{"client_name": "Evil\u202e\u200b\"><script>alert(1)</script>" + strings.Repeat("x", 300), "redirect_uris": []string{guestBack}, "token_endpoint_auth_method": "none",
			"logo_uri": "https://evil.example/claude.png", "client_uri": "javascript:alert(1)"})
		x.id, _ = out["client_id"].(string)
		_, _, body := x.page(x.asks(nil))
		for _, bad := range []string{"<script>alert", "\u202e", "evil.example/claude.png", "javascript:", strings.Repeat("x", 100)} {
			if strings.Contains(body, bad) {
				return bad
			}
		}
		return ""
	}},
	{"another redirect than the one that was shown", func(t *testing.T, x *siege) string {
		x.signIn()
		return strings.TrimPrefix(x.led(x.ada, x.asks(map[string]string{"redirect_uri": "https://guest.example/cb"})), "asked")
	}},
	{"a scheme that anybody may take", func(t *testing.T, x *siege) string {
		x.id, x.redirect = "pad", "pad.example:/cb"
		x.lets(x.asks(nil), "allow", nil)
		return strings.TrimPrefix(x.led(x.ada, x.asks(nil)), "asked")
	}},
	{"a page that is fetched ahead", func(t *testing.T, x *siege) string {
		x.redirect = "https://guest.example/cb"
		x.code()
		if to := x.led(x.ada, x.asks(nil)); !strings.HasPrefix(to, "https://guest.example/cb?code=") {
			return "it is asked again: " + to
		}
		if to := x.led(x.ada, x.asks(map[string]string{"prompt": "none"})); !strings.HasPrefix(to, "https://guest.example/cb?code=") {
			return "nobody has to be asked: " + to
		}
		for name, value := range map[string]string{"Sec-Purpose": "prefetch;prerender", "Sec-Fetch-Dest": "iframe"} {
			req, err := http.NewRequest("GET", x.asks(nil), nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set(name, value)
			if code, _, h := x.ada.do(req); code != 200 || h.Get("Location") != "" {
				return name + " " + h.Get("Location")
			}
		}
		return ""
	}},
	{"a name of nothing", func(t *testing.T, x *siege) string {
		for _, name := range []string{"\u3164", "\u115f\u061c", "\U000E0041", "\u0301\u0301\u0301"} {
			_, out := x.register(map[string]any{"client_name": name, "redirect_uris": []string{guestBack}, "token_endpoint_auth_method": "none"})
			x.id, _ = out["client_id"].(string)
			if _, _, body := x.page(x.asks(nil)); !strings.Contains(body, "Let 127.0.0.1:3333 use general?") {
				return fmt.Sprintf("%q", name)
			}
		}
		return ""
	}},
	{"a secret that rests", func(t *testing.T, x *siege) string {
		code := x.code()
		_, out := x.spend(code, nil)
		found := "no file was read"
		x.s.files(func(where string, v any) {
			for _, secret := range []string{code, out.Access, out.Refresh, base64.RawURLEncoding.EncodeToString([]byte(out.Access))} {
				if found == "no file was read" {
					found = ""
				}
				if strings.Contains(fmt.Sprint(v), secret) {
					found = where
				}
			}
		})
		for _, secret := range []string{code, out.Access, out.Refresh} {
			if strings.Contains(x.s.log.String(), secret) {
				found = "the log"
			}
		}
		return found
	}},
}
