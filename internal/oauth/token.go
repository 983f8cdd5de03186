package oauth

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"patchbay/internal/secret"
)

// Tokens is a token set.
type Tokens struct {
	Access    secret.Text
	Refresh   secret.Text // empty when there is none
	ExpiresAt time.Time   // zero when unknown
	Scope     string      // granted; what was asked for where the answer is silent
	Method    string      // the way of authenticating that worked
}

// Exchange redeems a code.
func (c *Client) Exchange(ctx context.Context, s *Server, id Identity, grantCode, redirect string, verifier secret.Text, scopes []string, noResource bool) (Tokens, error) {
	form := url.Values{"grant_type": {"authorization_code"}, "code": {grantCode}, "redirect_uri": {redirect}}
	verifier.Expose(func(v string) { form.Set("code_verifier", v) })
	if !noResource {
		form.Set("resource", s.Resource)
	}
	return c.token(ctx, s, id, form, Tokens{Scope: strings.Join(scopes, " ")}, false)
}

// Refresh renews a token set. old keeps what the answer leaves out: the refresh
// token (RFC 6749 §6) and the scope.
func (c *Client) Refresh(ctx context.Context, s *Server, id Identity, old Tokens, noResource bool) (Tokens, error) {
	form := url.Values{"grant_type": {"refresh_token"}}
	old.Refresh.Expose(func(v string) { form.Set("refresh_token", v) })
	if old.Scope != "" {
		form.Set("scope", old.Scope)
	}
	if !noResource {
		form.Set("resource", s.Resource)
	}
	return c.token(ctx, s, id, form, old, true)
}

// token posts to the token endpoint. A refused way of authenticating is replaced
// once by the other one (F032).
func (c *Client) token(ctx context.Context, s *Server, id Identity, form url.Values, old Tokens, renewing bool) (Tokens, error) {
	t, err := c.tokenOnce(ctx, s, id, form, old, renewing)
	if e, ok := err.(*Error); ok && e.Code == "invalid_client" && !id.Secret.Empty() && id.Method != MethodNone {
		other := id
		other.Method = map[string]string{MethodBasic: MethodPost, MethodPost: MethodBasic}[id.Method]
		t2, err2 := c.tokenOnce(ctx, s, other, form, old, renewing)
		if e2, ok := err2.(*Error); !ok || e2.Unknown || e2.Transient {
			return t2, err2 // it worked, or nobody knows
		}
	}
	return t, err
}

// authenticated makes a form request that carries the client's identity.
func authenticated(endpoint string, id Identity, form url.Values) (*http.Request, error) {
	form = cloneValues(form)
	basic := ""
	switch id.Method {
	case MethodBasic:
		id.Secret.Expose(func(sec string) { // RFC 6749 §2.3.1: both parts form-encoded first
			basic = "Basic " + base64.StdEncoding.EncodeToString([]byte(url.QueryEscape(id.ID)+":"+url.QueryEscape(sec)))
		})
	case MethodPost:
		form.Set("client_id", id.ID)
		id.Secret.Expose(func(sec string) { form.Set("client_secret", sec) })
	default:
		form.Set("client_id", id.ID)
	}
	req, err := http.NewRequest(http.MethodPost, endpoint, bytes.NewReader([]byte(form.Encode())))
	if err != nil {
		return nil, failed(err, "The token endpoint cannot be read.")
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	if basic != "" {
		req.Header.Set("Authorization", basic)
	}
	return req, nil
}

func cloneValues(v url.Values) url.Values {
	out := make(url.Values, len(v)+2)
	for k, vs := range v {
		out[k] = slices.Clone(vs)
	}
	return out
}

func (c *Client) tokenOnce(ctx context.Context, s *Server, id Identity, form url.Values, old Tokens, renewing bool) (Tokens, error) {
	req, err := authenticated(s.Token, id, form)
	if err != nil {
		return Tokens{}, err
	}
	a, err := c.send(ctx, req)
	if err != nil {
		return Tokens{}, err
	}
	a.body = scrub(a.body, form, id)
	t, err := c.readTokens(text(req.URL.Host), a, old, renewing)
	t.Method = id.Method
	return t, err
}

// maxTokenBytes is far above every real token.
const maxTokenBytes = 16 << 10

// scrub takes out of an answer what was sent with the request: what another side
// says ends in a log or on a page. A set that repeats its refresh token is none
// of that, and the token is left where it belongs.
func scrub(body []byte, form url.Values, id Identity) []byte {
	if !bytes.Contains(body, []byte(`"error"`)) {
		return body
	}
	sent := []string{form.Get("code"), form.Get("code_verifier"), form.Get("refresh_token"), form.Get("token")}
	id.Secret.Expose(func(s string) { sent = append(sent, s) })
	for _, s := range sent {
		if len(s) < 6 {
			continue
		}
		j, err := json.Marshal(s)
		if err == nil {
			body = bytes.ReplaceAll(body, bytes.Trim(j, `"`), []byte("withheld"))
		}
		body = bytes.ReplaceAll(body, []byte(s), []byte("withheld"))
	}
	return body
}

func (c *Client) readTokens(host string, a answer, old Tokens, renewing bool) (Tokens, error) {
	var got struct {
		Access  string          `json:"access_token"`
		Type    string          `json:"token_type"`
		Refresh string          `json:"refresh_token"`
		Expires json.RawMessage `json:"expires_in"`
		Scope   *string         `json:"scope"`
		Error   json.RawMessage `json:"error"`
		About   string          `json:"error_description"`
	}
	if a.json && json.Unmarshal(a.body, &got) != nil {
		a.json = false
	}
	e := failed(nil, "%s answered HTTP %d.", host, a.status)
	e.Status, e.Description = a.status, text(got.About)
	var word string
	if json.Unmarshal(got.Error, &word) == nil && word != "" { // F056: also in an answer of 200
		e.Code = code(word)
		e.Sentence = "The authorization server refused: " + e.Code + "."
		e.Transient = a.status >= 500 || e.Code == "temporarily_unavailable" || e.Code == "server_error" || e.Code == "slow_down"
		return Tokens{}, e
	}
	switch {
	case a.status == http.StatusTooManyRequests || a.status >= 500 || !a.json && renewing:
		e.Transient = true
		return Tokens{}, e
	case a.status != http.StatusOK && a.status != http.StatusCreated:
		e.Transient = renewing // F059: what refuses a token names an error
		return Tokens{}, e
	case got.Access == "" || !headerSafe(got.Access) || len(got.Access) > maxTokenBytes || len(got.Refresh) > maxTokenBytes:
		e.Sentence, e.Transient = "The authorization server's answer holds no access token.", renewing
		return Tokens{}, e
	case got.Type != "" && !strings.EqualFold(got.Type, "bearer"):
		e.Sentence = "The authorization server gives a token of another type than Bearer."
		return Tokens{}, e
	}
	t := Tokens{Access: secret.New(got.Access), Refresh: old.Refresh, Scope: old.Scope}
	if got.Refresh != "" {
		t.Refresh = secret.New(got.Refresh)
	}
	if got.Scope != nil && strings.TrimSpace(*got.Scope) != "" {
		t.Scope = strings.Join(strings.Fields(*got.Scope), " ")
	}
	life, known := lifetime(got.Expires)
	switch {
	case known && life <= 0:
		e.Sentence, e.Transient = "The authorization server gives a token whose life is already over.", renewing
		return Tokens{}, e
	case known:
		t.ExpiresAt = c.Now().Add(life)
	default:
		t.ExpiresAt = jwtExpiry(got.Access, c.Now())
	}
	return t, nil
}

// lifetime reads expires_in. What is no whole number is unknown (F052).
func lifetime(raw json.RawMessage) (time.Duration, bool) {
	s := strings.Trim(string(raw), `"`)
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		f, ferr := strconv.ParseFloat(s, 64)
		if ferr != nil || f != f || f > 1e15 || f < -1e15 {
			return 0, false
		}
		n = int64(f)
	}
	if n > int64(maxLife/time.Second) {
		return maxLife, true
	}
	return time.Duration(max(n, -1)) * time.Second, true
}

// jwtExpiry is the exp of a token that looks like a JWT: a hint, nobody checked
// its signature (F053).
func jwtExpiry(token string, now time.Time) time.Time {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return time.Time{}
	}
	b, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims struct {
		Exp float64 `json:"exp"`
	}
	if err != nil || json.Unmarshal(b, &claims) != nil || claims.Exp <= 0 || claims.Exp > 1e11 {
		return time.Time{}
	}
	at := time.Unix(int64(claims.Exp), 0).UTC()
	if !at.After(now) {
		return time.Time{} // another clock, or another meaning: the server will say
	}
	if limit := now.Add(maxLife); at.After(limit) {
		return limit
	}
	return at
}

// headerSafe reports whether a token can stand in a header.
func headerSafe(s string) bool {
	for i := range len(s) {
		if s[i] < 0x21 || s[i] > 0x7e {
			return false
		}
	}
	return true
}

// Revoke takes one token back (RFC 7009). A token that the server does not know
// is revoked.
func (c *Client) Revoke(ctx context.Context, endpoint string, id Identity, token secret.Text, hint string) error {
	form := url.Values{"token_type_hint": {hint}}
	token.Expose(func(v string) { form.Set("token", v) })
	req, err := authenticated(endpoint, id, form)
	if err != nil {
		return err
	}
	a, err := c.send(ctx, req)
	if err != nil {
		return err
	}
	if a.status >= 200 && a.status < 300 {
		return nil
	}
	var got struct {
		Error string `json:"error"`
	}
	if a.json {
		json.Unmarshal(a.body, &got) // another shape leaves it empty
	}
	e := failed(nil, "The revocation endpoint answered HTTP %d.", a.status)
	e.Status, e.Transient = a.status, a.status >= 500 || a.status == http.StatusTooManyRequests
	if got.Error != "" {
		e.Code = code(got.Error)
	}
	return e
}
