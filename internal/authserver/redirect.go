package authserver

import (
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"patchbay/internal/plane"
)

// class says what a redirect URI is.
type class int

const (
	web      class = iota // https
	loopback              // http to this very computer, on any port (RFC 8252, section 7.3)
	private               // a scheme of a program's own (section 7.1)
)

const maxRedirect = 512

// notOurs are what the answer says, which a redirect URI must not say before.
var notOurs = []string{"code", "state", "iss", "error", "error_description", "error_uri"}

// neverSchemes run or read something where a browser is sent to them.
var neverSchemes = []string{"javascript", "data", "vbscript", "file", "blob", "about", "filesystem", "view-source", "ws", "wss", "ftp", "chrome", "resource", "intent", "mailto"}

// redirect judges a redirect URI by its form alone. It returns the host that a person is
// shown.
func redirect(raw string) (class, string, error) {
	bad := func(why string) (class, string, error) {
		return web, "", plane.Errorf(plane.InvalidInput, "The redirect URI %s.", why).At("redirect_uris")
	}
	if raw == "" || len(raw) > maxRedirect {
		return bad("is empty, or longer than 512 characters")
	}
	for i := range len(raw) {
		if c := raw[i]; c <= ' ' || c >= 0x7f || strings.IndexByte("\\\"<>^`{|}", c) >= 0 {
			return bad("holds a character that no address has")
		}
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil || u.Scheme == "":
		return bad("cannot be read")
	case strings.Contains(raw, "#"):
		return bad("has a fragment")
	case u.User != nil || strings.Contains(u.Host, "@"):
		return bad("names a user before its host")
	}
	q, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return bad("has a query that cannot be read")
	}
	for _, name := range notOurs {
		if q.Has(name) {
			return bad("says " + name + " already, which is for the answer to say")
		}
	}
	if !strings.HasPrefix(raw, u.Scheme+":") {
		return bad("has a scheme in capitals")
	}
	switch u.Scheme {
	case "https":
		if why := webHost(u); why != "" {
			return bad(why)
		}
		return web, u.Host, nil
	case "http":
		if _, _, ok := loopbackParts(raw); !ok {
			return bad("is http to another computer; https is spoken there, and http to 127.0.0.1, [::1] or localhost")
		}
		return loopback, u.Host, nil
	}
	if slices.Contains(neverSchemes, u.Scheme) {
		return bad("has the scheme " + u.Scheme)
	}
	return private, u.Scheme + ":", nil
}

// webHost says what is wrong with the host of an https address.
func webHost(u *url.URL) string {
	host := u.Hostname()
	if u.Opaque != "" || host == "" || strings.HasSuffix(u.Host, ":") || strings.Contains(host, "%") {
		return "names no host"
	}
	if p := u.Port(); p != "" && !validPort(p) {
		return "has an odd port"
	}
	if a, err := netip.ParseAddr(host); err == nil {
		if a.Zone() != "" {
			return "names no host"
		}
		return ""
	}
	labels := strings.Split(host, ".")
	for _, l := range labels {
		if strings.HasPrefix(l, "xn--") {
			return "has letters in its host that look like others"
		}
		if l == "" || len(l) > 63 || l[0] == '-' || l[len(l)-1] == '-' || strings.Trim(l, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			return "names no host in small letters"
		}
	}
	if last := labels[len(labels)-1]; strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x") {
		return "names a computer by an odd number"
	}
	return ""
}

func validPort(p string) bool {
	n, err := strconv.ParseUint(p, 10, 16)
	return err == nil && n > 0 && p[0] != '0'
}

// loopbackParts splits an address on this very computer into its host and what follows the
// port.
func loopbackParts(raw string) (host, rest string, ok bool) {
	after, ok := strings.CutPrefix(raw, "http://")
	if !ok {
		return "", "", false
	}
	end := strings.IndexAny(after, "/?")
	if end < 0 {
		end = len(after)
	}
	authority, rest := after[:end], after[end:]
	for _, host := range []string{"127.0.0.1", "[::1]", "localhost"} {
		port, found := strings.CutPrefix(authority, host)
		if found && (port == "" || port[0] == ':' && len(port) > 1 && validPort(port[1:])) {
			return host, rest, true
		}
	}
	return "", "", false
}

// matches reports whether a redirect URI is one of those that a client has: letter by
// letter, but for the port on this very computer (RFC 9700, section 2.1).
func matches(have []string, asked string) bool {
	host, rest, local := loopbackParts(asked)
	for _, h := range have {
		if h == asked {
			return true
		}
		if hh, hr, ok := loopbackParts(h); local && ok && hh == host && hr == rest {
			return true
		}
	}
	return false
}
