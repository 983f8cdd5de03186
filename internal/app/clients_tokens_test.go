package app_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"patchbay/internal/command"
)

var codeAttacks = []attack{
	{"no verifier", spends(map[string]string{"code_verifier": ""})},
	{"another verifier", spends(map[string]string{"code_verifier": strings.Repeat("w", 43)})},
	{"the challenge for the verifier", func(t *testing.T, x *siege) string {
		u, err := url.Parse(x.asks(nil))
		if err != nil {
			t.Fatal(err)
		}
		return spends(map[string]string{"code_verifier": u.Query().Get("code_challenge")})(t, x)
	}},
	{"another redirect at the exchange", spends(map[string]string{"redirect_uri": "https://guest.example/cb"})},
	{"another port at the exchange", spends(map[string]string{"redirect_uri": "http://127.0.0.1:4444/callback"})},
	{"another resource at the exchange", func(t *testing.T, x *siege) string {
		return spends(map[string]string{"resource": x.base + "/mcp/agents/research"})(t, x)
	}},
	{"another client at the exchange", func(t *testing.T, x *siege) string {
		return spends(map[string]string{"client_id": x.evil.id})(t, x)
	}},
	{"a guessed code", func(t *testing.T, x *siege) string { return got(x.spend(strings.Repeat("A", 43), nil)) }},
	{"a code shown twice ends what it gave", func(t *testing.T, x *siege) string {
		code := x.code()
		_, out := x.spend(code, nil)
		if r := got(x.spend(code, nil)); r != "" || out.Access == "" {
			return r + "!"
		}
		if x.opens(x.resource, out.Access) != 401 {
			return "the token opens still"
		}
		return got(x.renew(out.Refresh, nil))
	}},
	{"a code injected from another session", func(t *testing.T, x *siege) string {
		// Bob's code, in the session of Ada's client: its verifier is another.
		x.evil.verifier = strings.Repeat("b", 43)
		code := x.evil.lets(x.evil.asks(map[string]string{"client_id": x.id}), "allow", nil).Get("code")
		return got(x.spend(code, nil))
	}},
	{"a code for a refresh token", func(t *testing.T, x *siege) string { return got(x.renew(x.code(), nil)) }},
	{"a password", func(t *testing.T, x *siege) string {
		return got(x.post("/oauth/token", map[string]string{"grant_type": "password", "username": "ada", "password": "x"}))
	}},
	{"client credentials", func(t *testing.T, x *siege) string {
		return got(x.post("/oauth/token", map[string]string{"grant_type": "client_credentials", "client_id": "desk", "client_secret": "k"}))
	}},
	{"a secret of a client that has none", func(t *testing.T, x *siege) string {
		return got(x.spend(x.code(), map[string]string{"client_secret": "x"}))
	}},
	{"a client with a secret, without it or with another", func(t *testing.T, x *siege) string {
		x.id, x.redirect = "desk", "https://desk.example/cb"
		code := x.code()
		for _, secret := range []string{"", "kk", "K"} {
			if status, out := x.spend(code, map[string]string{"client_secret": secret}); status != 401 || out.Error != "invalid_client" {
				return fmt.Sprint(status, out)
			}
		}
		if status, out := x.spend(code, map[string]string{"client_secret": "k"}); status != 200 {
			return fmt.Sprintf("the right one: %d %+v", status, out)
		}
		return ""
	}},
	{"a registered client's secret, by Basic", func(t *testing.T, x *siege) string {
		_, out := x.register(map[string]any{"client_name": "Basic", "redirect_uris": []string{guestBack}}) // the method of RFC 7591 where none is named
		secret, _ := out["client_secret"].(string)
		x.id, _ = out["client_id"].(string)
		code := x.code()
		for _, c := range []struct {
			secret string
			want   int
		}{{"x" + secret, 401}, {"", 401}, {secret, 200}} {
			f := url.Values{"grant_type": {"authorization_code"}, "code": {code}, "redirect_uri": {x.redirect}, "code_verifier": {x.verifier}}
			req, err := http.NewRequest("POST", x.base+"/oauth/token", strings.NewReader(f.Encode()))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			req.SetBasicAuth(url.QueryEscape(x.id), url.QueryEscape(c.secret))
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				return err.Error()
			}
			resp.Body.Close()
			if resp.StatusCode != c.want || c.want == 401 && !strings.HasPrefix(resp.Header.Get("WWW-Authenticate"), "Basic") {
				return fmt.Sprint(c, resp.Status, resp.Header)
			}
		}
		return ""
	}},
	{"a parameter twice at the exchange", func(t *testing.T, x *siege) string {
		f := url.Values{"grant_type": {"authorization_code"}, "client_id": {x.id, x.evil.id}, "code": {x.code()}, "redirect_uri": {x.redirect}, "code_verifier": {x.verifier}}
		resp, err := http.PostForm(x.base+"/oauth/token", f)
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		if b, _ := io.ReadAll(resp.Body); resp.StatusCode != 400 || strings.Contains(string(b), "access_token") {
			return string(b)
		}
		return ""
	}},
	{"a code by the address line", func(t *testing.T, x *siege) string {
		resp, err := http.Get(x.base + "/oauth/token?" + url.Values{"grant_type": {"authorization_code"}, "client_id": {x.id}, "code": {x.code()}, "redirect_uri": {x.redirect}, "code_verifier": {x.verifier}}.Encode())
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusMethodNotAllowed {
			return resp.Status
		}
		return ""
	}},
	{"a code as JSON", func(t *testing.T, x *siege) string {
		b, err := json.Marshal(map[string]string{"grant_type": "authorization_code", "client_id": x.id, "code": x.code(), "redirect_uri": x.redirect, "code_verifier": x.verifier})
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.Post(x.base+"/oauth/token", "application/json", strings.NewReader(string(b)))
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		if resp.StatusCode != 400 {
			return resp.Status
		}
		return ""
	}},
}

var tokenAttacks = []attack{
	{"a refresh token that was replaced", func(t *testing.T, x *siege) string {
		a := x.signIn()
		_, b := x.renew(a.Refresh, nil)
		_, c := x.renew(b.Refresh, nil)
		if r := got(x.renew(a.Refresh, nil)); r != "" || c.Access == "" {
			return r + "!"
		}
		if x.opens(x.resource, c.Access) != 401 {
			return "the newest token opens still"
		}
		return got(x.renew(c.Refresh, nil))
	}},
	{"a refresh token of another client", func(t *testing.T, x *siege) string {
		a := x.signIn()
		if r := got(x.evil.renew(a.Refresh, nil)); r != "" {
			return r
		}
		return got(x.renew(a.Refresh, nil)) // somebody else had it
	}},
	{"a refresh for another resource", func(t *testing.T, x *siege) string {
		return got(x.renew(x.signIn().Refresh, map[string]string{"resource": x.base + "/mcp/agents/research"}))
	}},
	{"an access token for a refresh token", func(t *testing.T, x *siege) string { return got(x.renew(x.signIn().Access, nil)) }},
	{"a token at another agent", opensNot("/mcp/agents/research")},
	{"a token at the commands", opensNot("/mcp")},
	{"a token at the API", opensNot("/api/commands/status")},
	{"a token at a page", opensNot("/settings")},
	{"a token at another path of its agent", opensNot("/mcp/agents/general/")},
	{"a refresh token as a token", func(t *testing.T, x *siege) string {
		if code := x.opens(x.resource, x.signIn().Refresh); code != 401 {
			return fmt.Sprint(code)
		}
		return ""
	}},
	{"a token of another install", func(t *testing.T, x *siege) string {
		other := newSiege(t)
		if code := x.opens(x.resource, other.signIn().Access); code != 401 {
			return fmt.Sprint(code)
		}
		return ""
	}},
	{"a token in the address line", func(t *testing.T, x *siege) string {
		resp, err := http.Post(x.resource+"?access_token="+x.signIn().Access, "application/json", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}`))
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		if resp.StatusCode != 401 {
			return resp.Status
		}
		return ""
	}},
	{"a scope beyond what was allowed", func(t *testing.T, x *siege) string {
		_, out := x.renew(x.signIn().Refresh, map[string]string{"scope": "admin config:write mcp:write"})
		if out.Scope != "mcp:read runs:write" {
			return out.Scope
		}
		return ""
	}},
	{"an admin's right for who is none", func(t *testing.T, x *siege) string {
		x.evil.resource = x.base + "/mcp"
		_, _, body := x.evil.page(x.evil.asks(map[string]string{"scope": "admin mcp:read"}))
		if strings.Contains(body, `value="admin"`) {
			return "offered"
		}
		code := x.evil.lets(x.evil.asks(map[string]string{"scope": "admin mcp:read"}), "allow", url.Values{"scope": {"admin", "mcp:read"}}).Get("code")
		_, out := x.evil.spend(code, nil)
		if out.Scope != "mcp:read" {
			return out.Scope
		}
		return ""
	}},
	{"a token of somebody who was shut out", func(t *testing.T, x *siege) string {
		code := x.evil.lets(x.evil.asks(nil), "allow", nil).Get("code")
		_, out := x.evil.spend(code, nil)
		if x.opens(x.resource, out.Access) != 200 {
			return "it did not open"
		}
		if err := x.s.do("people.revoke", command.PersonInput{Person: "bob@example.com"}, &command.PersonRow{}); err != nil {
			return err.Error()
		}
		if x.opens(x.resource, out.Access) != 401 {
			return "it opens still"
		}
		if to := x.led(x.bob, x.evil.asks(nil)); !strings.HasPrefix(to, "/signin?") {
			return "asked: " + to
		}
		return got(x.evil.renew(out.Refresh, nil))
	}},
	{"a token that is widened by a later sign-in", func(t *testing.T, x *siege) string {
		x.resource = x.base + "/mcp"
		in := func(scopes ...string) tokens {
			code := x.lets(x.asks(map[string]string{"scope": strings.Join(scopes, " ")}), "allow", url.Values{"scope": scopes}).Get("code")
			_, out := x.spend(code, nil)
			return out
		}
		narrow := in("mcp:read")
		wide := in("mcp:read", "admin")
		_, again := x.renew(narrow.Refresh, nil)
		if narrow.Scope != "mcp:read" || wide.Scope != "mcp:read admin" || again.Scope != "mcp:read" {
			return narrow.Scope + ", " + wide.Scope + ", " + again.Scope
		}
		if said := x.command(again.Access, "tokens.list", `{}`); !strings.Contains(said, "lacks the scope admin") {
			return said
		}
		if said := x.command(wide.Access, "tokens.list", `{}`); strings.Contains(said, "lacks the scope") {
			return said
		}
		return ""
	}},
	{"a client that decides for its person", func(t *testing.T, x *siege) string {
		x.resource = x.base + "/mcp"
		_, out := x.spend(x.lets(x.asks(nil), "allow", url.Values{"scope": {"mcp:read", "runs:write"}}).Get("code"), nil)
		for name, args := range map[string]string{"runs.resolve": `{"id":"last","outcome":"done"}`} {
			if said := x.command(out.Access, name, args); !strings.Contains(said, "A client does not decide this") {
				return said
			}
		}
		return ""
	}},
	{"words put into a challenge", func(t *testing.T, x *siege) string {
		resp, err := http.Post(x.base+`/mcp/agents/x%22,%20resource_metadata=%22https:%2F%2Fevil.example%2Fm`, "application/json", strings.NewReader("{}"))
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		if h := resp.Header.Get("WWW-Authenticate"); strings.Contains(h, "evil.example") {
			return h
		}
		return ""
	}},
	{"a revocation by another client", func(t *testing.T, x *siege) string {
		a := x.signIn()
		x.evil.post("/oauth/revoke", map[string]string{"token": a.Access})
		if x.opens(x.resource, a.Access) != 200 {
			return "it was revoked"
		}
		x.post("/oauth/revoke", map[string]string{"token": a.Access})
		if x.opens(x.resource, a.Access) != 401 {
			return "it was not revoked"
		}
		return ""
	}},
}

func opensNot(path string) func(*testing.T, *siege) string {
	return func(t *testing.T, x *siege) string {
		a := x.signIn()
		if code := x.opens(x.base+path, a.Access); code != 401 {
			return fmt.Sprint(code)
		}
		if x.opens(x.resource, a.Access) != 200 {
			return "its own is closed"
		}
		return ""
	}
}
