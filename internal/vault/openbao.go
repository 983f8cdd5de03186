package vault

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/openbao/openbao/api/v2"

	"patchbay/internal/plane"
	"patchbay/internal/secret"
)

// OpenBaoOptions say where the store is and how to sign in there.
type OpenBaoOptions struct {
	Address   string            // https://bao.example.com:8200
	Transport http.RoundTripper // to that address and nowhere else
	Namespace string
	Mount     string // of the KV v2 engine; empty for secret
	Prefix    string // before the team in paths; empty for patchbay
	Login     Login
	Audit     Writer
	Log       func(format string, args ...any)
}

// Login is how to sign in: by a token, by AppRole, or as a Kubernetes service account.
type Login struct {
	Kind     string      // token, approle, kubernetes
	Token    secret.Text // of token
	RoleID   string      // of approle
	SecretID secret.Text
	Role     string // of kubernetes
	JWTFile  string // where its token is mounted
	Mount    string // of the auth method; empty for its kind
}

// OpenBao keeps secrets in a KV v2 engine of OpenBao or Vault, at
// <mount>/<prefix>/<team>/<ref>, the organisation's at <mount>/<prefix>/_org/<ref>, each
// with one field, value. It signs in by itself, renews its lease, and signs in anew when
// that can be renewed no longer.
type OpenBao struct {
	o    OpenBaoOptions
	c    *api.Client
	stop context.CancelFunc
	life context.Context
	work sync.WaitGroup

	mu     sync.Mutex // held through a sign-in: one at a time
	leased time.Time  // when the sign-in ends; zero: it does not, or there is none
	signed int64      // which sign-in it is; 0 for none yet
	renews context.CancelFunc
}

// Of a lease: renewed when a third is left, and at most this often.
const (
	renewAtMost = time.Hour
	renewAgain  = 5 * time.Second
	orgPath     = "_org"
	valueField  = "value"
)

// NewOpenBao prepares; the first question signs in. Close it.
func NewOpenBao(o OpenBaoOptions) (*OpenBao, error) {
	if o.Mount == "" {
		o.Mount = "secret"
	}
	if o.Prefix == "" {
		o.Prefix = "patchbay"
	}
	if o.Login.Mount == "" {
		o.Login.Mount = o.Login.Kind
	}
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	cfg := api.NewConfig()
	cfg.DisableEnvironment = true
	cfg.Address, cfg.MaxRetries, cfg.Timeout = o.Address, 0, askTime
	cfg.HttpClient = &http.Client{Transport: o.Transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	cfg.DisableRedirects = true
	c, err := api.NewClient(cfg)
	if err != nil {
		return nil, plane.Errorf(plane.InvalidInput, "vault.address cannot be used.").At("vault.address").Because(err)
	}
	if o.Namespace != "" {
		c.SetNamespace(o.Namespace)
	}
	b := &OpenBao{o: o, c: c}
	b.life, b.stop = context.WithCancel(context.Background())
	return b, nil
}

// Close ends the renewal.
func (b *OpenBao) Close() {
	b.stop()
	b.work.Wait()
}

// down names an outage. The backend's words go to the log, not to people.
func (b *OpenBao) down(n Name, err error) *plane.Error {
	return plane.Errorf(plane.Unavailable, "The secret %s cannot be read: the vault at %s does not answer.", n, b.o.Address).Then("Look at the vault, then try again; nothing was changed.").Because(err)
}

// because says in a few words of ours why a backend gave no answer.
func because(err error) string {
	var r *api.ResponseError
	var d *net.DNSError
	var c *tls.CertificateVerificationError
	switch {
	case errors.As(err, &r):
		return fmt.Sprintf("it answers %d", r.StatusCode)
	case errors.As(err, &d):
		return "no host is called that"
	case errors.As(err, &c):
		return "its certificate is not trusted"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens there"
	case errors.Is(err, context.DeadlineExceeded):
		return "it does not answer in time"
	case errors.Is(err, os.ErrNotExist):
		return "the file of the service account's token is not there"
	}
	return "the exchange with it broke"
}

// denied reports an answer that means: sign in anew, or not at all.
func denied(err error) bool {
	var r *api.ResponseError
	return errors.As(err, &r) && (r.StatusCode == http.StatusForbidden || r.StatusCode == http.StatusUnauthorized)
}

// errAbsent is a secret that is not there, as the engine itself says.
var errAbsent = errors.New("vault: there is no such secret")

// read asks for one secret. Only the engine's own word means that it is not there: a wrong
// mount or namespace answers 404 too, and is an outage.
func (b *OpenBao) read(ctx context.Context, n Name) (*kvAnswer, error) {
	resp, err := b.c.Logical().ReadRawWithContext(ctx, b.o.Mount+"/data/"+b.path(n))
	if resp == nil {
		return nil, err
	}
	defer resp.Body.Close()
	raw, rerr := io.ReadAll(io.LimitReader(resp.Body, maxFile*2))
	var a kvAnswer
	jerr := json.Unmarshal(raw, &a)
	if resp.StatusCode == http.StatusNotFound && jerr == nil && (a.Errors != nil && len(*a.Errors) == 0 || a.Data.Metadata.Version > 0) {
		return nil, errAbsent
	}
	if err = errors.Join(err, rerr); err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK || jerr != nil {
		return nil, fmt.Errorf("vault: an answer of %d that is none of a KV v2 engine", resp.StatusCode)
	}
	if a.Data.Metadata.Destroyed || a.Data.Metadata.Deleted != "" {
		return nil, errAbsent
	}
	return &a, nil
}

// kvAnswer is what a KV v2 engine answers.
type kvAnswer struct {
	Errors *[]string `json:"errors"`
	Data   struct {
		Data     map[string]any `json:"data"`
		Metadata struct {
			Version   int    `json:"version"`
			Deleted   string `json:"deletion_time"`
			Destroyed bool   `json:"destroyed"`
		} `json:"metadata"`
	} `json:"data"`
}

// signIn makes sure that there is a token that is not over, and tells which sign-in it is.
// One that was refused, after, is followed by another, for all who were refused together.
func (b *OpenBao) signIn(ctx context.Context, after int64) (int64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.signed > after && (b.leased.IsZero() || time.Now().Before(b.leased)) {
		return b.signed, nil
	}
	var auth *api.SecretAuth
	var err error
	switch l := b.o.Login; l.Kind {
	case "token":
		if after > 0 {
			return 0, errors.New("vault: the token is not taken any more")
		}
		l.Token.Expose(b.c.SetToken)
		var s *api.Secret
		if s, err = b.c.Auth().Token().RenewSelfWithContext(ctx, 0); err == nil && s != nil {
			auth = s.Auth
		} else if denied(err) || err != nil && !answered(err) {
			return 0, err
		}
		err = nil // one that cannot be renewed is good as long as it is
	case "approle":
		body := map[string]any{"role_id": l.RoleID}
		l.SecretID.Expose(func(v string) { body["secret_id"] = v })
		auth, err = b.login(ctx, body)
	case "kubernetes":
		jwt, rerr := os.ReadFile(l.JWTFile)
		if rerr != nil {
			return 0, rerr
		}
		auth, err = b.login(ctx, map[string]any{"role": l.Role, "jwt": strings.TrimSpace(string(jwt))})
	}
	if err != nil {
		return 0, err
	}
	if b.renews != nil {
		b.renews() // of the sign-in before
		b.renews = nil
	}
	b.signed, b.leased = b.signed+1, time.Time{}
	if auth != nil {
		if auth.ClientToken != "" && b.o.Login.Kind != "token" {
			b.c.SetToken(auth.ClientToken)
		}
		if life := time.Duration(auth.LeaseDuration) * time.Second; life > 0 {
			b.leased = time.Now().Add(life)
			if auth.Renewable && b.life.Err() == nil {
				var ctx context.Context
				ctx, b.renews = context.WithCancel(b.life)
				b.work.Go(func() { b.renew(ctx, life) })
			}
		}
	}
	return b.signed, nil
}

// answered reports an error that the backend itself gave.
func answered(err error) bool {
	var r *api.ResponseError
	return errors.As(err, &r) && r.StatusCode < 500
}

func (b *OpenBao) login(ctx context.Context, body map[string]any) (*api.SecretAuth, error) {
	// The token in use stays in use meanwhile.
	c := b.c.WithRequestCallbacks(func(r *api.Request) { r.ClientToken = "" })
	s, err := c.Logical().WriteWithContext(ctx, "auth/"+strings.Trim(b.o.Login.Mount, "/")+"/login", body)
	if err != nil {
		return nil, err
	}
	if s == nil || s.Auth == nil || s.Auth.ClientToken == "" {
		return nil, errors.New("vault: the sign-in gave no token")
	}
	return s.Auth, nil
}

// renew keeps one sign-in alive, as long as that works and there is no other; then the
// next question signs in.
func (b *OpenBao) renew(ctx context.Context, life time.Duration) {
	for {
		if !sleep(ctx, min(life*2/3, renewAtMost)) {
			return
		}
		s, err := b.renewOnce(ctx)
		for err != nil && !answered(err) && time.Now().Before(b.until()) { // an outage
			if !sleep(ctx, min(renewAgain, life/10)) {
				return
			}
			s, err = b.renewOnce(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil || s == nil || s.Auth == nil || s.Auth.LeaseDuration <= 0 {
			b.o.Log("the sign-in to the vault is not renewed any more: %v", err)
			return
		}
		next := time.Duration(s.Auth.LeaseDuration) * time.Second
		b.mu.Lock()
		if ctx.Err() == nil {
			b.leased = time.Now().Add(next)
		}
		b.mu.Unlock()
		if next < life/2 || !s.Auth.Renewable { // it nears its last end: the next question signs in
			return
		}
		life = next
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (b *OpenBao) latest() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.signed
}

func (b *OpenBao) until() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.leased
}

func (b *OpenBao) renewOnce(ctx context.Context) (*api.Secret, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	return b.c.Auth().Token().RenewSelfWithContext(ctx, 0)
}

// with asks, and once more after another sign-in when this one is over. One that is good
// and may not ask this is not signed in anew.
func (b *OpenBao) with(ctx context.Context, ask func() error) error {
	signed, err := b.signIn(ctx, 0)
	if err != nil {
		return err
	}
	if err = ask(); !denied(err) {
		return err
	}
	if _, lerr := b.c.Auth().Token().LookupSelfWithContext(ctx); lerr == nil || !denied(lerr) {
		if b.latest() == signed {
			return err
		}
		return ask() // another signed in meanwhile, and it was their token that is good
	}
	if _, serr := b.signIn(ctx, signed); serr != nil {
		return errors.Join(err, serr)
	}
	return ask()
}

func (b *OpenBao) path(n Name) string {
	team := n.Team
	if team == "" {
		team = orgPath
	}
	return b.o.Prefix + "/" + team + "/" + n.Ref
}

// Get reads a secret.
func (b *OpenBao) Get(ctx context.Context, n Name) (Held, error) {
	var a *kvAnswer
	err := b.with(ctx, func() error {
		var err error
		a, err = b.read(ctx, n)
		return err
	})
	if errors.Is(err, errAbsent) {
		return Held{}, missing(n)
	}
	if denied(err) {
		return Held{}, plane.Errorf(plane.Unavailable, "The secret %s cannot be read: the vault at %s refuses this server.", n, b.o.Address).Then("Its policy must let it read and write " + b.o.Mount + "/data/" + b.o.Prefix + "/*.").Because(err)
	}
	if err != nil {
		return Held{}, b.down(n, err)
	}
	v, ok := a.Data.Data[valueField].(string)
	if !ok || v == "" {
		return Held{}, plane.Errorf(plane.Unavailable, "The secret %s has no field %s in the vault.", n, valueField).Then("patchbay secrets put writes it as it is read.")
	}
	return Held{Value: secret.New(v), Rev: int64(a.Data.Metadata.Version)}, nil
}

// Put writes a secret's next version.
func (b *OpenBao) Put(ctx context.Context, n Name, value secret.Text, _ string, audit Audit) error {
	if err := b.o.Audit.Write(ctx, audit); err != nil {
		return err
	}
	data := map[string]any{}
	value.Expose(func(v string) { data[valueField] = v })
	err := b.with(ctx, func() error {
		_, err := b.c.KVv2(b.o.Mount).Put(ctx, b.path(n), data)
		return err
	})
	if err != nil {
		return plane.Errorf(plane.Unavailable, "The secret %s cannot be written: the vault at %s does not take it, %s.", n, b.o.Address, because(err)).Then("patchbay doctor looks at the vault.").Because(err)
	}
	return nil
}

// Drop takes a secret away with all its versions.
func (b *OpenBao) Drop(ctx context.Context, n Name, audit Audit) error {
	if _, err := b.Get(ctx, n); err != nil {
		return err
	}
	if err := b.o.Audit.Write(ctx, audit); err != nil {
		return err
	}
	if err := b.with(ctx, func() error { return b.c.KVv2(b.o.Mount).DeleteMetadata(ctx, b.path(n)) }); err != nil {
		return plane.Errorf(plane.Unavailable, "The secret %s cannot be taken away: the vault at %s does not answer.", n, b.o.Address).Because(err)
	}
	return nil
}

// Check signs in.
func (b *OpenBao) Check(ctx context.Context) error {
	if _, err := b.signIn(ctx, 0); err != nil {
		return plane.Errorf(plane.Unavailable, "The vault at %s cannot be signed in to: %s.", b.o.Address, because(err)).At("vault").Then("Look at its address and at vault.login in patchbay.yaml.").Because(err)
	}
	return nil
}
