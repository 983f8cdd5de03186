package app_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/internal/command"
)

// TestSeveralNamesAtOneAddress: two names of one address are two hosts, each with its own
// secret; a wildcard is for what is below it; the name is compared as it is meant, in the
// tunnel and inside.
func TestSeveralNamesAtOneAddress(t *testing.T) {
	resolveBy(t, func() netip.Addr { return netip.MustParseAddr("127.0.0.1") })
	far := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { // of example.com and what is right below it
		fmt.Fprintf(w, "%s got %s", r.Host, map[string]string{"Bearer secret-of-one": "ONE", "Bearer secret-of-two": "TWO", "": "NONE"}[r.Header.Get("Authorization")])
	}))
	defer far.Close()
	dir, p := trusting(t, far)
	s := start(t, dir, fmt.Sprintf(`agents: {general: {destinations: [one, two, wrong]}}
egress:
  listen: 127.0.0.1:0
  allow: [{to: "example.com:%[1]s", for: [one]}, {to: "a.example.com:%[1]s", for: [two]}, {to: "b.example.com:%[1]s", for: [two]}, {to: "example.net:%[1]s", for: [one]}, {to: "wrong.example.org:%[1]s", for: [wrong]}]
  destinations:
    one: {hosts: [example.com], port: %[1]s, inject: {kind: bearer}, inject_secret: "secret:one"}
    two: {hosts: ["*.example.com"], port: %[1]s, inject: {kind: bearer}, inject_secret: "secret:two"}
    wrong: {hosts: [wrong.example.org], port: %[1]s}
`, p))
	for _, ref := range []string{"one", "two"} {
		if err := s.do("secrets.put", command.SecretsPutInput{Ref: ref, Value: "secret-of-" + ref}, &command.Changed{}); err != nil {
			t.Fatal(err)
		}
	}
	var ca command.EgressCA
	if err := s.do("egress.ca", command.EgressCAInput{}, &ca); err != nil {
		t.Fatal(err)
	}
	o := &outward{served: s, placeholder: ca.Placeholder, ca: filepath.Join(dir, "ca.pem")}
	if err := os.WriteFile(o.ca, []byte(ca.PEM), 0o644); err != nil {
		t.Fatal(err)
	}
	o.forTeam(t, "")
	for _, c := range []struct{ host, sni, inner, want string }{
		{"example.com", "", "", "example.com:" + p + " got ONE"},
		{"a.example.com", "", "", "a.example.com:" + p + " got TWO"},
		{"b.example.com", "", "", "b.example.com:" + p + " got TWO"},
		{"EXAMPLE.Com", "example.com", "Example.Com:" + p, "example.com:" + p + " got ONE"},
		{"x.a.example.com.evil.example.org", "", "", "Forbidden"},                   // nor for what ends otherwise
		{"example.net", "", "", "Forbidden"},                                        // open, and of no destination
		{"example.com", "a.example.com", "", "remote error"},                        // another name in the hello
		{"example.com", "", "a.example.com:" + p, "the tunnel goes to example.com"}, // and in the request
		{"a.example.com", "", "example.com:" + p, "the tunnel goes to a.example.com"},
		{"wrong.example.org", "", "", "certificate of wrong.example.org is not trusted"}, // whose certificate is another's
	} {
		cl := o.client(t, false)
		tr := cl.Transport.(*http.Transport)
		if tr.TLSClientConfig.ServerName = c.sni; c.sni == "a.example.com" {
			tr.TLSClientConfig.InsecureSkipVerify = true // it is the gateway that must refuse
		}
		o.host = c.host + ":" + p
		_, body, _ := o.sends(t, cl, "GET", "/", "", func(r *http.Request) {
			if r.Host = c.inner; c.host == "wrong.example.org" {
				r.Header.Del("Authorization")
			}
		})
		if !strings.Contains(body, c.want) || strings.Contains(body, "secret-of") {
			t.Errorf("%s, %q, %q: %s, want %s", c.host, c.sni, c.inner, body, c.want)
		}
	}
}
