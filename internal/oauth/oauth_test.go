package oauth

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"patchbay/internal/plane"
	"patchbay/internal/secret"
)

// site answers by path; %s in a body stands for its own address. What is not
// there is 404.
type site struct {
	*httptest.Server
	mu   sync.Mutex
	page map[string]page
	seen []string
	form []url.Values
	auth []string
}

type page struct {
	status      int
	contentType string
	body        string
}

func newSite(t *testing.T, pages map[string]page) *site {
	s := &site{page: pages}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		f, _ := url.ParseQuery(string(b))
		s.mu.Lock()
		s.seen, s.form, s.auth = append(s.seen, r.URL.Path), append(s.form, f), append(s.auth, r.Header.Get("Authorization"))
		p, ok := s.page[r.URL.Path]
		s.mu.Unlock()
		if !ok {
			http.NotFound(w, r)
			return
		}
		if p.contentType == "" {
			p.contentType = "application/json"
		}
		if p.status == 0 {
			p.status = 200
		}
		w.Header().Set("Content-Type", p.contentType)
		if p.status >= 300 && p.status < 400 {
			w.Header().Set("Location", "http://169.254.169.254/latest/meta-data")
		}
		w.WriteHeader(p.status)
		io.WriteString(w, strings.ReplaceAll(p.body, "%s", "http://"+r.Host))
	}))
	t.Cleanup(s.Close)
	return s
}

func client() *Client {
	return &Client{Transport: http.DefaultTransport, Now: func() time.Time { return time.Unix(1_700_000_000, 0).UTC() }, Check: func(raw string) error {
		if strings.Contains(raw, "169.254") || strings.Contains(raw, "forbidden") {
			return plane.Errorf(plane.InvalidInput, "not allowed")
		}
		return nil
	}}
}

const (
	prmPath  = "/.well-known/oauth-protected-resource/mcp"
	prmRoot  = "/.well-known/oauth-protected-resource"
	asPath   = "/.well-known/oauth-authorization-server"
	oidcPath = "/.well-known/openid-configuration"
)

func ok(body string) page { return page{body: body} }

var (
	prm      = ok(`{"resource":"%s/mcp","authorization_servers":["%s"],"scopes_supported":["a","b"]}`)
	metadata = ok(`{"issuer":"%s","authorization_endpoint":"%s/authorize","token_endpoint":"%s/token","code_challenge_methods_supported":["S256"]}`)
	spa      = page{contentType: "text/html", body: "<!doctype html><title>App</title>"}
)

type discoverCase struct {
	name       string
	pages      map[string]page
	endpoint   string // /mcp where empty
	challenges []string
	change     func(d *Discovery)
	err        string // part of the error; empty for success
	check      func(t *testing.T, s *site, srv *Server)
}

// Each case is a field case of section A, or a rule of the specifications.
var discoverCases = []discoverCase{
	{name: "F001 the resource is kept byte for byte", pages: map[string]page{prmRoot: ok(`{"resource":"%s","authorization_servers":["%s"]}`), asPath: metadata}, endpoint: "/mcp",
		check: func(t *testing.T, s *site, srv *Server) {
			if srv.Resource != s.URL {
				t.Errorf("resource %q", srv.Resource)
			}
		}},
	{name: "F002 one slash at the end is let through, and said", pages: map[string]page{prmPath: prm, asPath: metadata}, endpoint: "/mcp/",
		check: func(t *testing.T, s *site, srv *Server) {
			if srv.Resource != s.URL+"/mcp" || srv.Rule == "" {
				t.Errorf("%q %q", srv.Resource, srv.Rule)
			}
		}},
	{name: "F004 a sibling path is its own error, with both", pages: map[string]page{"/.well-known/oauth-protected-resource/mcp/oauth": ok(`{"resource":"%s/mcp","authorization_servers":["%s"]}`), asPath: metadata}, endpoint: "/mcp/oauth", err: "/mcp, not "},
	{name: "F005 a duplicate parameter: the second serves", pages: map[string]page{"/y": prm, asPath: metadata}, challenges: []string{`Bearer resource_metadata="%s/x", resource_metadata="%s/y"`}},
	{name: "F007a a custom path, no well-known one", pages: map[string]page{"/custom": prm, asPath: metadata}, challenges: []string{`Bearer resource_metadata=%s/custom`}},
	{name: "F007b no header at all", pages: map[string]page{prmPath: prm, asPath: metadata}},
	{name: "F008 a single-page app answers everything", pages: map[string]page{prmPath: spa, prmRoot: ok(`{"resource":"%s/mcp","authorization_servers":["%s"]}`), asPath: spa, oidcPath: metadata}},
	{name: "F010 the path form is forbidden, the root form serves", pages: map[string]page{prmPath: {status: 403}, prmRoot: ok(`{"resource":"%s","authorization_servers":["%s"]}`), asPath: metadata}},
	{name: "F010 a server error is not passed over", pages: map[string]page{prmPath: {status: 503}, prmRoot: prm, asPath: metadata}, err: "HTTP 503"},
	{name: "F011 OpenID discovery only", pages: map[string]page{prmPath: prm, oidcPath: metadata}},
	{name: "F011 an issuer with a path: appended OpenID", pages: map[string]page{prmPath: ok(`{"resource":"%s/mcp","authorization_servers":["%s/oidc"]}`),
		"/oidc" + oidcPath: ok(`{"issuer":"%s/oidc","authorization_endpoint":"%s/a","token_endpoint":"%s/t","code_challenge_methods_supported":["S256"]}`)},
		check: func(t *testing.T, s *site, srv *Server) {
			want := []string{prmPath, asPath + "/oidc", oidcPath + "/oidc", "/oidc" + oidcPath}
			if !slices.Equal(s.seen, want) {
				t.Errorf("asked %q, want %q", s.seen, want)
			}
		}},
	{name: "F013 the slash of an empty path in the issuer", pages: map[string]page{prmPath: ok(`{"resource":"%s/mcp","authorization_servers":["%s/"]}`), asPath: metadata},
		check: func(t *testing.T, s *site, srv *Server) {
			if srv.Issuer != s.URL {
				t.Errorf("the issuer is not the metadata's: %q", srv.Issuer)
			}
		}},
	{name: "F014 an issuer on another host", pages: map[string]page{prmPath: prm, asPath: ok(`{"issuer":"https://auth.other.example","authorization_endpoint":"%s/a","token_endpoint":"%s/t","code_challenge_methods_supported":["S256"]}`)}, err: `"https://auth.other.example"`},
	{name: "F014 the same, trusted by an admin", pages: map[string]page{prmPath: prm, asPath: ok(`{"issuer":"https://auth.other.example","authorization_endpoint":"%s/a","token_endpoint":"%s/t","code_challenge_methods_supported":["S256"]}`)},
		change: func(d *Discovery) { d.TrustedIssuer = "https://auth.other.example" }},
	{name: "F016 an older server without resource metadata", pages: map[string]page{asPath: metadata}, check: func(t *testing.T, s *site, srv *Server) {
		if srv.Resource != s.URL+"/mcp" {
			t.Errorf("resource %q", srv.Resource)
		}
	}},
	{name: "F016 an authorization server that a person named", pages: map[string]page{"/tenant" + oidcPath: ok(`{"issuer":"%s/tenant","authorization_endpoint":"%s/a","token_endpoint":"%s/t","code_challenge_methods_supported":["S256"]}`)},
		change: func(d *Discovery) { d.AuthServer = strings.TrimSuffix(d.Endpoint, "/mcp") + "/tenant" }},
	{name: "F017 an explicit pointer is never downgraded", pages: map[string]page{"/prm": {status: 500}, prmPath: prm, asPath: metadata}, challenges: []string{`Bearer resource_metadata="%s/prm"`}, err: "HTTP 500"},
	{name: "F017 nor when it is not there", pages: map[string]page{prmPath: prm, asPath: metadata}, challenges: []string{`Bearer resource_metadata="%s/prm"`}, err: "does not serve it"},
	{name: "F019 endpoints are never guessed", pages: map[string]page{prmPath: prm, asPath: ok(`{"issuer":"%s","token_endpoint":"%s/token","code_challenge_methods_supported":["S256"]}`)}, err: "lack authorization_endpoint"},
	{name: "F025 a pointer to another origin", pages: map[string]page{prmPath: prm, asPath: metadata}, challenges: []string{`Bearer resource_metadata="https://evil.example/prm"`}, err: "another origin"},
	{name: "F001 the challenge names the root form, which describes the origin", pages: map[string]page{prmRoot: ok(`{"resource":"%s","authorization_servers":["%s"]}`), asPath: metadata}, challenges: []string{`Bearer resource_metadata="%s/.well-known/oauth-protected-resource"`}},
	{name: "F044 the challenge's scope goes first", pages: map[string]page{prmPath: prm, asPath: metadata}, challenges: []string{`Bearer scope="read write"`}, check: func(t *testing.T, _ *site, srv *Server) {
		if got := WantedScopes(srv, nil, false); !slices.Equal(got, []string{"read", "write"}) {
			t.Errorf("scopes %q", got)
		}
	}},
	{name: "F046 offline access where it is listed", pages: map[string]page{prmPath: prm, asPath: ok(`{"issuer":"%s","authorization_endpoint":"%s/a","token_endpoint":"%s/t","code_challenge_methods_supported":["S256"],"scopes_supported":["a","offline_access"],"grant_types_supported":["authorization_code","refresh_token"]}`)}, check: func(t *testing.T, _ *site, srv *Server) {
		if got := WantedScopes(srv, nil, false); !slices.Equal(got, []string{"a", "b", "offline_access"}) {
			t.Errorf("scopes %q", got)
		}
		if got := WantedScopes(srv, nil, true); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("F047: after it was refused %q", got)
		}
	}},
	{name: "F191 an authorization server at a metadata address", pages: map[string]page{prmPath: ok(`{"resource":"%s/mcp","authorization_servers":["http://169.254.169.254/"]}`)}, err: "not allowed"},
	{name: "F193 metadata that redirect inward", pages: map[string]page{prmPath: {status: 302}, asPath: metadata}, check: func(t *testing.T, s *site, _ *Server) {
		if slices.Contains(s.seen, "/latest/meta-data") {
			t.Error("a redirect was followed")
		}
	}},
	{name: "an endpoint that is not allowed", pages: map[string]page{prmPath: prm, asPath: ok(`{"issuer":"%s","authorization_endpoint":"%s/a","token_endpoint":"https://forbidden.example/t","code_challenge_methods_supported":["S256"]}`)}, err: "token_endpoint"},
	{name: "a mix-up: another's sign-in page beside its own token endpoint", pages: map[string]page{prmPath: prm, asPath: ok(`{"issuer":"%s","authorization_endpoint":"https://honest.example/authorize","token_endpoint":"%s/t","code_challenge_methods_supported":["S256"]}`)}, err: "another origin"},
	{name: "the same, by a server whose answers say who it is", pages: map[string]page{prmPath: prm, asPath: ok(`{"issuer":"%s","authorization_endpoint":"https://login.example/authorize","token_endpoint":"%s/t","code_challenge_methods_supported":["S256"],"authorization_response_iss_parameter_supported":true}`)}},
	{name: "no PKCE", pages: map[string]page{prmPath: prm, asPath: ok(`{"issuer":"%s","authorization_endpoint":"%s/a","token_endpoint":"%s/t"}`)}, err: "PKCE"},
	{name: "no PKCE, let off by an admin", pages: map[string]page{prmPath: prm, asPath: ok(`{"issuer":"%s","authorization_endpoint":"%s/a","token_endpoint":"%s/t"}`)}, change: func(d *Discovery) { d.SkipPKCE = true }},
	{name: "no authorization_code", pages: map[string]page{prmPath: prm, asPath: ok(`{"issuer":"%s","authorization_endpoint":"%s/a","token_endpoint":"%s/t","code_challenge_methods_supported":["S256"],"grant_types_supported":["client_credentials"]}`)}, err: "no authorization_code"},
	{name: "nothing at all", pages: nil, err: "publishes nothing", check: nil},
	{name: "metadata larger than the cap", pages: map[string]page{prmPath: ok(`{"resource":"` + strings.Repeat("x", maxBody) + `"}`)}, err: "larger than"},
}

func TestDiscover(t *testing.T) {
	for _, c := range discoverCases {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t, c.pages)
			if c.endpoint == "" {
				c.endpoint = "/mcp"
			}
			d := Discovery{Endpoint: s.URL + c.endpoint}
			for _, ch := range c.challenges {
				d.Challenges = append(d.Challenges, strings.ReplaceAll(ch, "%s", s.URL))
			}
			if c.change != nil {
				c.change(&d)
			}
			srv, log, err := client().Discover(t.Context(), d)
			switch {
			case c.err == "" && err != nil:
				t.Fatalf("%v, tried %v", err, log)
			case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
				t.Fatalf("%v, want %q", err, c.err)
			case c.err != "" && len(AsError(err).Attempts) == 0:
				t.Error("the error does not say what was tried")
			}
			if AsError(err).NoMetadata != (c.name == "nothing at all") {
				t.Errorf("no metadata: %v", err)
			}
			if c.check != nil {
				c.check(t, s, srv)
			}
		})
	}
}

func TestChallenges(t *testing.T) {
	for in, want := range map[string]Hint{
		`Bearer resource_metadata="https://h/x", scope="a  b"`:          {Metadata: []string{"https://h/x"}, Scope: "a b"},
		`Bearer resource_metadata=https://h/x,scope=a`:                  {Metadata: []string{"https://h/x"}, Scope: "a"},
		`Basic realm="x", Bearer error="insufficient_scope", scope="w"`: {Scope: "w", Error: "insufficient_scope"},
		`bearer Resource_Metadata = "https://h/q\"uoted"`:               {Metadata: []string{`https://h/q"uoted`}},
		`Digest resource_metadata="https://h/other"`:                    {},
		`Bearer`:                   {},
		`,,, = "`:                  {},
		`Bearer error="a<script>"`: {Error: "an error"},
	} {
		if got := ReadHint([]string{in}); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %+v, want %+v", in, got, want)
		}
	}
}

func FuzzChallenges(f *testing.F) {
	f.Add(`Bearer a="b", c=d, Basic e`)
	f.Fuzz(func(t *testing.T, s string) { ReadHint([]string{s, s}) })
}

// Section B: who we are at an authorization server.
func TestRegister(t *testing.T) {
	for _, c := range []struct {
		name, answer string
		status       int
		methods      []string
		want         Identity
		err          string
	}{
		{"a public client", `{"client_id":"c"}`, 201, nil, Identity{ID: "c", Method: MethodNone}, ""},
		{"F028 the answer governs", `{"client_id":"c","client_secret":"s","token_endpoint_auth_method":"client_secret_post"}`, 201, nil, Identity{ID: "c", Method: MethodPost}, ""},
		{"F031 a secret and no method", `{"client_id":"c","client_secret":"s"}`, 201, nil, Identity{ID: "c", Method: MethodBasic}, ""},
		{"F031 held against the metadata", `{"client_id":"c","client_secret":"s"}`, 201, []string{"client_secret_post"}, Identity{ID: "c", Method: MethodPost}, ""},
		{"F034 nothing but an id", `{"client_id":"c"}`, 200, nil, Identity{ID: "c", Method: MethodNone}, ""},
		{"a method that we do not do", `{"client_id":"c","token_endpoint_auth_method":"private_key_jwt"}`, 201, nil, Identity{}, "private_key_jwt"},
		{"refused", `{"error":"invalid_client_metadata","error_description":"no <b>thanks</b>"}`, 400, nil, Identity{}, "invalid_client_metadata"},
		{"a page", `<html>`, 200, nil, Identity{}, "did not register"},
	} {
		s := newSite(t, map[string]page{"/register": {status: c.status, body: c.answer}})
		id, err := client().Register(t.Context(), &Server{Registration: s.URL + "/register", Methods: c.methods}, "https://gw.example/cb", []string{"a"})
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if err != nil || id.ID != c.want.ID || id.Method != c.want.Method {
			t.Errorf("%s: %+v %v", c.name, id, err)
		}
	}
	if _, err := client().Register(t.Context(), &Server{Issuer: "i"}, "x", nil); err == nil || !strings.Contains(err.Error(), "its operator made") {
		t.Errorf("no registration endpoint: %v", err)
	}
	if m := Describe("http://127.0.0.1:1/cb"); m.Application != "native" {
		t.Errorf("a loopback redirect is %q", m.Application)
	}
}

// F035: a hosted redirect that is taken from confidential clients only.
func TestAHostedRedirectFromAConfidentialClient(t *testing.T) {
	var asked []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m Metadata
		json.NewDecoder(r.Body).Decode(&m)
		asked = append(asked, m.Method)
		if m.Method == MethodNone {
			w.WriteHeader(400)
			io.WriteString(w, `{"error":"invalid_redirect_uri"}`)
			return
		}
		io.WriteString(w, `{"client_id":"c","client_secret":"s","token_endpoint_auth_method":"client_secret_basic"}`)
	}))
	defer s.Close()
	id, err := client().Register(t.Context(), &Server{Registration: s.URL}, "https://gw.example/cb", nil)
	if err != nil || id.Method != MethodBasic || !slices.Equal(asked, []string{MethodNone, MethodBasic}) {
		t.Errorf("%+v %v, asked %q", id, err, asked)
	}
}

func TestAuthorizationURL(t *testing.T) {
	srv := &Server{Authorization: "https://as/authorize?p=policy1", Resource: "https://h/mcp", Issuer: "https://as"}
	v := Verifier()
	v.Expose(func(s string) {
		if len(s) != 43 {
			t.Errorf("a verifier of %d characters", len(s))
		}
	})
	u, err := url.Parse(Authorize{Server: srv, ClientID: "c", Redirect: "https://gw/cb", State: "n.r", Verifier: v, Scopes: []string{"a", "b"}}.URL())
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	for k, want := range map[string]string{"p": "policy1", "response_type": "code", "client_id": "c", "redirect_uri": "https://gw/cb", "state": "n.r", "code_challenge_method": "S256", "resource": "https://h/mcp", "scope": "a b"} {
		if q.Get(k) != want || len(q[k]) != 1 { // F020: what was there stays
			t.Errorf("%s is %q, want %q", k, q[k], want)
		}
	}
	if len(q.Get("code_challenge")) != 43 {
		t.Error("no challenge")
	}
	if u, _ := url.Parse(Authorize{Server: srv, NoResource: true, Verifier: v}.URL()); u.Query().Has("resource") || u.Query().Has("scope") {
		t.Error("F022: the resource is there although it was switched off")
	}
	for _, c := range []struct {
		iss     string
		present bool
		always  bool
		ok      bool
	}{{"https://as", true, true, true}, {"https://as", true, false, true}, {"", false, false, true}, {"", false, true, false}, {"https://as/", true, false, false}, {"", true, false, false}} {
		srv.IssParam = c.always
		if err := CheckIssuer(srv, c.iss, c.present); (err == nil) != c.ok {
			t.Errorf("iss %+v: %v", c, err)
		}
	}
}

// Section C: token answers.
func TestTokenAnswers(t *testing.T) {
	at := func(d time.Duration) time.Time { return client().Now().Add(d) }
	jwt := "h." + base64.RawURLEncoding.EncodeToString([]byte(`{"exp":1700000600}`)) + ".s"
	for _, c := range []struct {
		name, body string
		status     int
		refresh    bool // at a refresh, not an exchange
		want       Tokens
		err        string
		transient  bool
	}{
		{name: "plain", body: `{"access_token":"a","token_type":"Bearer","expires_in":60,"refresh_token":"r2","scope":"x"}`, want: Tokens{Access: secret.New("a"), Refresh: secret.New("r2"), ExpiresAt: at(time.Minute), Scope: "x"}},
		{name: "F055 lower case", body: `{"access_token":"a","token_type":"bearer"}`, want: Tokens{Access: secret.New("a"), Scope: "asked"}},
		{name: "another type", body: `{"access_token":"a","token_type":"DPoP"}`, err: "another type"},
		{name: "F052 a life of zero", body: `{"access_token":"a","token_type":"Bearer","expires_in":0}`, err: "already over"},
		{name: "F052 a life of zero at a refresh", refresh: true, body: `{"access_token":"a","token_type":"Bearer","expires_in":0}`, err: "already over", transient: true},
		{name: "F052 a negative life", body: `{"access_token":"a","token_type":"Bearer","expires_in":-5}`, err: "already over"},
		{name: "F052 trailing junk is unknown", body: `{"access_token":"a","token_type":"Bearer","expires_in":"3600abc"}`, want: Tokens{Access: secret.New("a"), Scope: "asked"}},
		{name: "a number as text", body: `{"access_token":"a","token_type":"Bearer","expires_in":"60"}`, want: Tokens{Access: secret.New("a"), ExpiresAt: at(time.Minute), Scope: "asked"}},
		{name: "an absurd life is cut", body: `{"access_token":"a","token_type":"Bearer","expires_in":99999999999}`, want: Tokens{Access: secret.New("a"), ExpiresAt: at(maxLife), Scope: "asked"}},
		{name: "F052 no access token", body: `{"token_type":"Bearer","expires_in":60}`, err: "no access token"},
		{name: "F053 no life, a JWT", body: `{"access_token":"` + jwt + `","token_type":"Bearer"}`, want: Tokens{Access: secret.New(jwt), ExpiresAt: at(10 * time.Minute), Scope: "asked"}},
		{name: "F053 a JWT whose time is over says nothing", body: `{"access_token":"h.` + base64.RawURLEncoding.EncodeToString([]byte(`{"exp":1}`)) + `.s","token_type":"Bearer"}`, want: Tokens{Access: secret.New("h." + base64.RawURLEncoding.EncodeToString([]byte(`{"exp":1}`)) + ".s"), Scope: "asked"}},
		{name: "F056 an error with 200", body: `{"error":"bad_verification_code"}`, err: "bad_verification_code"},
		{name: "F058 the refresh token is kept", refresh: true, body: `{"access_token":"a","token_type":"Bearer"}`, want: Tokens{Access: secret.New("a"), Refresh: secret.New("r1"), Scope: "asked"}},
		{name: "F059 invalid_grant with 401", refresh: true, status: 401, body: `{"error":"invalid_grant"}`, err: "invalid_grant"},
		{name: "500 at a refresh", refresh: true, status: 500, body: `{"error":"server_error"}`, err: "server_error", transient: true},
		{name: "HTML at a refresh", refresh: true, body: `<html>busy</html>`, err: "HTTP 200", transient: true},
		{name: "429 at a refresh", refresh: true, status: 429, body: ``, err: "HTTP 429", transient: true},
		{name: "a token with a line break", body: `{"access_token":"a\r\nX: y","token_type":"Bearer"}`, err: "no access token"},
		{name: "an error of another shape", status: 400, body: `{"error":{"code":7}}`, err: "HTTP 400"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t, map[string]page{"/token": {status: c.status, body: c.body}})
			srv := &Server{Token: s.URL + "/token", Resource: "https://h/mcp"}
			id := Identity{ID: "c", Method: MethodNone}
			var got Tokens
			var err error
			if c.refresh {
				got, err = client().Refresh(t.Context(), srv, id, Tokens{Refresh: secret.New("r1"), Scope: "asked"}, false)
			} else {
				got, err = client().Exchange(t.Context(), srv, id, "code", "https://gw/cb", Verifier(), []string{"asked"}, false)
			}
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || AsError(err).Transient != c.transient {
					t.Errorf("%v (transient %v), want %q", err, err != nil && AsError(err).Transient, c.err)
				}
				return
			}
			if err != nil || !got.Access.Equal(c.want.Access) || !got.Refresh.Equal(c.want.Refresh) || !got.ExpiresAt.Equal(c.want.ExpiresAt) || got.Scope != c.want.Scope {
				t.Errorf("%+v %v, want %+v", got, err, c.want)
			}
			f := s.form[0]
			if f.Get("resource") != "https://h/mcp" || f.Get("client_id") != "c" || c.refresh && f.Get("scope") != "asked" { // F023, F049
				t.Errorf("sent %v", f)
			}
		})
	}
}

// F029 and F032: secrets are form-encoded before base64, and the other way of
// sending them is tried once, never both in one request.
func TestClientAuthentication(t *testing.T) {
	s := newSite(t, map[string]page{"/token": {status: 401, body: `{"error":"invalid_client"}`}})
	srv := &Server{Token: s.URL + "/token", Resource: "r"}
	id := Identity{ID: "c:1", Secret: secret.New("+%:/ s"), Method: MethodBasic}
	if _, err := client().Refresh(t.Context(), srv, id, Tokens{Refresh: secret.New("r")}, true); err == nil || AsError(err).Code != "invalid_client" {
		t.Errorf("%v", err)
	}
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte("c%3A1:%2B%25%3A%2F+s"))
	if len(s.auth) != 2 || s.auth[0] != want || s.form[0].Has("client_secret") || s.auth[1] != "" || s.form[1].Get("client_secret") != "+%:/ s" {
		t.Errorf("%q %v", s.auth, s.form)
	}
	if s.form[0].Has("resource") {
		t.Error("F022: the resource is there although it was switched off")
	}
}

// A failure says whether the other side may have acted.
func TestUnknownOutcomes(t *testing.T) {
	reset := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, _, _ := w.(http.Hijacker).Hijack()
		c.Close()
	}))
	defer reset.Close()
	_, err := client().Refresh(t.Context(), &Server{Token: reset.URL}, Identity{ID: "c"}, Tokens{Refresh: secret.New("r")}, true)
	if e := AsError(err); !e.Unknown || !e.Transient {
		t.Errorf("a reset: %+v", e)
	}
	over := make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-over }))
	defer func() { close(over); slow.Close() }()
	c := client()
	c.Timeout = 50 * time.Millisecond
	if _, err := c.Refresh(t.Context(), &Server{Token: slow.URL}, Identity{ID: "c"}, Tokens{Refresh: secret.New("r")}, true); !AsError(err).Unknown {
		t.Errorf("a time-out: %v", err)
	}
}

func TestRevoke(t *testing.T) {
	s := newSite(t, map[string]page{"/ok": ok(``), "/busy": {status: 503}, "/no": {status: 400, body: `{"error":"unsupported_token_type"}`}})
	id := Identity{ID: "c", Method: MethodNone}
	if err := client().Revoke(t.Context(), s.URL+"/ok", id, secret.New("t"), "refresh_token"); err != nil || s.form[0].Get("token") != "t" || s.form[0].Get("token_type_hint") != "refresh_token" {
		t.Errorf("%v %v", err, s.form)
	}
	if err := client().Revoke(t.Context(), s.URL+"/busy", id, secret.New("t"), "x"); !AsError(err).Transient {
		t.Errorf("503: %v", err)
	}
	if err := client().Revoke(t.Context(), s.URL+"/no", id, secret.New("t"), "x"); err == nil || AsError(err).Transient {
		t.Errorf("unsupported_token_type: %v", err)
	}
}
