package peers

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os/exec"
	"regexp"
	"strings"
	"time"
)

// Person is a browser without a window that the owner of a Patchbay signed in.
type Person struct{ c http.Client }

// NewPerson signs one in at the server of a data directory.
func NewPerson(patchbay, data string) (*Person, error) {
	out, err := exec.Command(patchbay, "--data", data, "signin").Output()
	if err != nil {
		return nil, fmt.Errorf("signin: %w", err)
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		return nil, err
	}
	p := &Person{http.Client{Jar: jar, Timeout: 20 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	_, err = p.press(regexp.MustCompile(`http://\S+`).FindString(string(out)), nil)
	return p, err
}

// press sends a page's form as the page would.
func (p *Person) press(at string, form url.Values) (string, error) {
	req, err := http.NewRequest(http.MethodPost, at, strings.NewReader(form.Encode()))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Sec-Fetch-Site", "same-origin")
	return read(p.c.Do(req))
}

func read(resp *http.Response, err error) (string, error) {
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 400 {
		err = fmt.Errorf("%s: %s", resp.Status, b)
	}
	return string(b), err
}

var (
	hidden = regexp.MustCompile(`<input type="hidden" name="([a-z]+)" value="([^"]*)"`)
	goesOn = regexp.MustCompile(`http-equiv="refresh" content="0; url=([^"]+)"`)
)

// LetsIn opens the address that a client sends a person to, lets it in, and returns where
// the browser is sent.
func (p *Person) LetsIn(at string) (string, error) {
	page, err := read(p.c.Get(at))
	if err != nil {
		return "", err
	}
	form := url.Values{"do": {"allow"}}
	for _, m := range hidden.FindAllStringSubmatch(page, -1) {
		form.Add(m[1], html.UnescapeString(m[2]))
	}
	if page, err = p.press(at, form); err != nil {
		return "", err
	}
	m := goesOn.FindStringSubmatch(page)
	if m == nil {
		return "", fmt.Errorf("the browser is sent nowhere: %s", page)
	}
	return html.UnescapeString(m[1]), nil
}

// ClientToken is the access token of a client that registers and that the person lets in.
func (p *Person) ClientToken(base, path string) (string, error) {
	const back = "http://127.0.0.1:1/callback"
	var client struct {
		ID string `json:"client_id"`
	}
	reg, err := json.Marshal(map[string]any{"client_name": "peer", "redirect_uris": []string{back}, "token_endpoint_auth_method": "none"})
	if err != nil {
		return "", err
	}
	out, err := read(http.Post(base+"/oauth/register", "application/json", bytes.NewReader(reg)))
	if err != nil {
		return "", err
	}
	if err := json.Unmarshal([]byte(out), &client); err != nil {
		return "", err
	}
	verifier := strings.Repeat("v", 43)
	sum := sha256.Sum256([]byte(verifier))
	to, err := p.LetsIn(base + "/oauth/authorize?" + url.Values{"response_type": {"code"}, "client_id": {client.ID}, "redirect_uri": {back}, "resource": {base + path},
		"code_challenge_method": {"S256"}, "code_challenge": {base64.RawURLEncoding.EncodeToString(sum[:])}}.Encode())
	if err != nil {
		return "", err
	}
	u, err := url.Parse(to)
	if err != nil {
		return "", err
	}
	out, err = read(http.PostForm(base+"/oauth/token", url.Values{"grant_type": {"authorization_code"}, "client_id": {client.ID}, "redirect_uri": {back}, "code": {u.Query().Get("code")}, "code_verifier": {verifier}}))
	if err != nil {
		return "", err
	}
	var got struct {
		Token string `json:"access_token"`
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || got.Token == "" {
		return "", fmt.Errorf("no token: %s: %w", out, err)
	}
	return got.Token, nil
}
