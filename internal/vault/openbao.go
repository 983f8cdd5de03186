package vault

import (
	"context"
	"errors"
	"net/http"
	"os"
	"strings"
	"sync"
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
	signed bool
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

// denied reports an answer that means: sign in anew, or not at all.
func denied(err error) bool {
	var r *api.ResponseError
	return errors.As(err, &r) && (r.StatusCode == http.StatusForbidden || r.StatusCode == http.StatusUnauthorized)
}

func absent(err error) bool {
	var r *api.ResponseError
	return errors.Is(err, api.ErrSecretNotFound) || errors.As(err, &r) && r.StatusCode == http.StatusNotFound
}

// signIn makes sure that there is a token that is not over. fresh asks for another one.
func (b *OpenBao) signIn(ctx context.Context, fresh bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.signed && !fresh && (b.leased.IsZero() || time.Now().Before(b.leased)) {
		return nil
	}
	var auth *api.SecretAuth
	var err error
	switch l := b.o.Login; l.Kind {
	case "token":
		if b.signed && fresh {
			return errors.New("vault: the token is not taken any more")
		}
		l.Token.Expose(b.c.SetToken)
		var s *api.Secret
		if s, err = b.c.Auth().Token().RenewSelfWithContext(ctx, 0); err == nil && s != nil {
			auth = s.Auth
		} else if denied(err) || err != nil && !answered(err) {
			return err
		}
		err = nil // one that cannot be renewed is good as long as it is
	case "approle":
		body := map[string]any{"role_id": l.RoleID}
		l.SecretID.Expose(func(v string) { body["secret_id"] = v })
		auth, err = b.login(ctx, body)
	case "kubernetes":
		jwt, rerr := os.ReadFile(l.JWTFile)
		if rerr != nil {
			return rerr
		}
		auth, err = b.login(ctx, map[string]any{"role": l.Role, "jwt": strings.TrimSpace(string(jwt))})
	}
	if err != nil {
		return err
	}
	b.signed, b.leased = true, time.Time{}
	if auth != nil {
		if auth.ClientToken != "" && b.o.Login.Kind != "token" {
			b.c.SetToken(auth.ClientToken)
		}
		if life := time.Duration(auth.LeaseDuration) * time.Second; life > 0 {
			b.leased = time.Now().Add(life)
			if auth.Renewable {
				b.work.Go(func() { b.renew(life) })
			}
		}
	}
	return nil
}

// answered reports an error that the backend itself gave.
func answered(err error) bool {
	var r *api.ResponseError
	return errors.As(err, &r) && r.StatusCode < 500
}

func (b *OpenBao) login(ctx context.Context, body map[string]any) (*api.SecretAuth, error) {
	b.c.ClearToken()
	s, err := b.c.Logical().WriteWithContext(ctx, "auth/"+strings.Trim(b.o.Login.Mount, "/")+"/login", body)
	if err != nil {
		return nil, err
	}
	if s == nil || s.Auth == nil || s.Auth.ClientToken == "" {
		return nil, errors.New("vault: the sign-in gave no token")
	}
	return s.Auth, nil
}

// renew keeps one sign-in alive, as long as that works; then the next question signs in.
func (b *OpenBao) renew(life time.Duration) {
	for {
		wait := min(life*2/3, renewAtMost)
		select {
		case <-time.After(wait):
		case <-b.life.Done():
			return
		}
		s, err := b.renewOnce()
		for err != nil && !answered(err) && b.life.Err() == nil && time.Now().Before(b.until()) { // an outage
			select {
			case <-time.After(min(renewAgain, life/10)):
			case <-b.life.Done():
				return
			}
			s, err = b.renewOnce()
		}
		if err != nil || s == nil || s.Auth == nil || s.Auth.LeaseDuration <= 0 {
			b.o.Log("the sign-in to the vault is not renewed any more: %v", err)
			return
		}
		next := time.Duration(s.Auth.LeaseDuration) * time.Second
		b.mu.Lock()
		b.leased = time.Now().Add(next)
		b.mu.Unlock()
		if next < life/2 || !s.Auth.Renewable { // it nears its last end: the next question signs in
			return
		}
		life = next
	}
}

func (b *OpenBao) until() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.leased
}

func (b *OpenBao) renewOnce() (*api.Secret, error) {
	ctx, cancel := context.WithTimeout(b.life, askTime)
	defer cancel()
	return b.c.Auth().Token().RenewSelfWithContext(ctx, 0)
}

// with asks, and once more after another sign-in when this one is refused.
func (b *OpenBao) with(ctx context.Context, ask func() error) error {
	if err := b.signIn(ctx, false); err != nil {
		return err
	}
	err := ask()
	if !denied(err) {
		return err
	}
	if serr := b.signIn(ctx, true); serr != nil {
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
	var s *api.KVSecret
	err := b.with(ctx, func() error {
		var err error
		s, err = b.c.KVv2(b.o.Mount).Get(ctx, b.path(n))
		return err
	})
	if absent(err) || err == nil && (s == nil || s.Data == nil) {
		return Held{}, missing(n)
	}
	if denied(err) {
		return Held{}, plane.Errorf(plane.Unavailable, "The secret %s cannot be read: the vault at %s refuses this server.", n, b.o.Address).Then("Its policy must let it read and write " + b.o.Mount + "/data/" + b.o.Prefix + "/*.").Because(err)
	}
	if err != nil {
		return Held{}, b.down(n, err)
	}
	v, ok := s.Data[valueField].(string)
	if !ok || v == "" {
		return Held{}, plane.Errorf(plane.Unavailable, "The secret %s has no field %s in the vault.", n, valueField).Then("patchbay secrets put writes it as it is read.")
	}
	h := Held{Value: secret.New(v)}
	if s.VersionMetadata != nil {
		h.Rev = int64(s.VersionMetadata.Version)
	}
	return h, nil
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
		return plane.Errorf(plane.Unavailable, "The secret %s cannot be written: the vault at %s does not take it.", n, b.o.Address).Because(err)
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
	if err := b.signIn(ctx, false); err != nil {
		return plane.Errorf(plane.Unavailable, "The vault at %s cannot be signed in to.", b.o.Address).At("vault").Because(err)
	}
	return nil
}
