package authn

import (
	"context"
	"sync"
	"time"

	"patchbay/internal/plane"
	"patchbay/internal/secret"
)

// Prefixes of tokens, so that people and scanners know them when they see one.
const (
	APIPrefix   = "pbt_"
	AgentPrefix = "pba_"

	AccessPrefix  = "pbs_" // of a client that a person signed in
	RefreshPrefix = "pbr_" // the same
)

// token tells whose token was shown. A client's opens one path and no other.
func (a *Authenticator) token(ctx context.Context, shown secret.Text) (who plane.Principal, path string, err error) {
	var h, kind string
	shown.Expose(func(s string) {
		kind, h = s[:min(len(s), len(APIPrefix))], secret.Digest(s)
	})
	bad := func() (plane.Principal, string, error) {
		return plane.Principal{}, "", plane.Errorf(plane.Unauthenticated, "The token is not known, expired or revoked.").Then("patchbay tokens create")
	}
	find, use := a.o.Store.TokenByHash, a.o.Store.UseToken
	switch kind {
	case APIPrefix, AgentPrefix:
	case AccessPrefix:
		find, use = a.o.Store.AccessByHash, a.o.Store.UseAuthorization
	default:
		return bad()
	}
	if t, ok := a.known.get(h, a.o.Clock.Now(), a.o.Fresh); ok {
		return t.who, t.path, nil
	}
	looked := time.Now()
	bound, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	k, err := find(bound, h)
	if plane.KindOf(err) == plane.NotFound {
		return bad()
	}
	if err != nil {
		return plane.Principal{}, "", plane.Errorf(plane.Unavailable, "The database does not answer, so nobody can be told apart.").Then("Try again in a moment.").Because(err)
	}
	now := a.o.Clock.Now()
	if !k.RevokedAt.IsZero() || !k.ExpiresAt.IsZero() && !now.Before(k.ExpiresAt) {
		return bad()
	}
	a.note(h, func(t plane.Tx) error { return use(t, k.ID) })
	p, err := a.bearer(bound, k)
	if err == nil {
		a.known.put(h, knownToken{p, k.Path, k.ID, k.ExpiresAt, looked})
	}
	return p, k.Path, err
}

// knownTokens are those that were looked up not long ago. What another replica revokes is
// refused here within a second, what this one does at once: one is used for so long alone
// or, where it is known that nothing was revoked since, for a minute.
type knownTokens struct {
	mu      sync.Mutex
	by      map[string]knownToken
	revoked time.Time // when a token was last revoked here
}

type knownToken struct {
	who     plane.Principal
	path    string
	id      string
	expires time.Time
	looked  time.Time // by this machine's steady clock
}

const (
	knownFor = time.Second
	heldFor  = time.Minute
	lookTime = 3 * time.Second // to look one up
	maxKnown = 10_000
)

func (k *knownTokens) get(hash string, now time.Time, fresh func() bool) (knownToken, bool) {
	k.mu.Lock()
	t, ok := k.by[hash]
	k.mu.Unlock()
	if !ok || !t.expires.IsZero() && !now.Before(t.expires) {
		return knownToken{}, false
	}
	age := time.Since(t.looked)
	return t, age <= knownFor || age <= heldFor && fresh != nil && fresh()
}

func (k *knownTokens) put(hash string, t knownToken) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.revoked.IsZero() && !t.looked.After(k.revoked) {
		return // it may have been looked up before a revocation
	}
	if k.by == nil || len(k.by) >= maxKnown {
		k.by = map[string]knownToken{}
	}
	k.by[hash] = t
}

// forget drops what was looked up before a revocation.
func (k *knownTokens) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.revoked = time.Now()
	clear(k.by)
}

// Token is what a token that somebody showed stands for. A client's opens its MCP endpoint
// and nothing that is asked about here.
func (a *Authenticator) Token(ctx context.Context, shown secret.Text) (plane.Principal, error) {
	p, path, err := a.token(ctx, shown)
	if err == nil && path != "" {
		return plane.Principal{}, plane.Errorf(plane.Unauthenticated, "A client's token opens its MCP endpoint and nothing else.").Then("patchbay tokens create --agent")
	}
	return p, err
}

// Forget has every token looked up again: something was revoked.
func (a *Authenticator) Forget() { a.known.forget() }

// People are all who were seen.
func (a *Authenticator) People(ctx context.Context) ([]plane.Person, error) {
	return a.o.Store.People(ctx)
}

// RevokePerson shuts a person out at once, everywhere, or lets them in again.
func (a *Authenticator) RevokePerson(ctx context.Context, by plane.Principal, id string, out bool) error {
	action := "person.revoke"
	if !out {
		action = "person.restore"
	}
	err := a.o.Store.Write(ctx, func(t plane.Tx) error {
		if err := a.o.Store.RevokePerson(t, id, out); err != nil {
			return err
		}
		return a.o.Store.AddAudit(t, plane.AuditEntry{Who: by.ID, Action: action, What: id, Decision: "allow"})
	})
	a.known.forget()
	return err
}

// bearer is what a token stands for. A person's has no more than its person has
// today.
func (a *Authenticator) bearer(ctx context.Context, k plane.Token) (plane.Principal, error) {
	p := plane.Principal{ID: k.ID, Rights: k.Rights, Team: k.Team, Agent: k.Agent, Token: k.ID}
	switch {
	case k.Agent != "":
		p.Kind = plane.KindAgent
	case k.Person != "":
		p.Kind = plane.KindPerson
	default:
		p.Kind = plane.KindService
	}
	if k.Person == "" {
		return p, nil
	}
	if p.ID = k.Person; k.Person == plane.Local.ID {
		if k.Agent == "" {
			p.Kind = plane.KindLocal
		}
		return p, nil
	}
	person, err := a.person(ctx, k.Person)
	p.Email = person.Email
	return p, err
}

// NewToken describes a token to make.
type NewToken struct {
	Label  string
	Person string // whose; "" for a service's
	Agent  string // makes an agent token
	Team   string
	Rights plane.Rights
	Life   time.Duration // 0: it never expires
}

const maxTokenLife = 10 * 365 * 24 * time.Hour

// Create makes a token. Its value is returned once and never again.
func (a *Authenticator) Create(ctx context.Context, by plane.Principal, n NewToken) (plane.Token, string, error) {
	if n.Life < 0 || n.Life > maxTokenLife {
		return plane.Token{}, "", plane.Errorf(plane.InvalidInput, "A token lives up to ten years.").At("expires")
	}
	now := a.o.Clock.Now()
	k := plane.Token{ID: plane.NewTokenID(now), Label: n.Label, Person: n.Person, Agent: n.Agent, Team: n.Team, Rights: n.Rights, CreatedBy: by.ID, CreatedAt: now}
	if n.Life > 0 {
		k.ExpiresAt = now.Add(n.Life)
	}
	value := APIPrefix + secret.Random()
	if n.Agent != "" {
		value = AgentPrefix + secret.Random()
	}
	k.Hash = secret.Digest(value)
	err := a.o.Store.Write(ctx, func(t plane.Tx) error {
		if err := a.o.Store.AddToken(t, &k); err != nil {
			return err
		}
		return a.o.Store.AddAudit(t, plane.AuditEntry{Who: by.ID, Action: "token.create", What: k.ID, Decision: "allow"})
	})
	return k, value, err
}

// List returns all tokens, without their values.
func (a *Authenticator) List(ctx context.Context) ([]plane.Token, error) {
	return a.o.Store.Tokens(ctx)
}

// Revoke ends a token at once.
func (a *Authenticator) Revoke(ctx context.Context, by plane.Principal, id string) error {
	err := a.o.Store.Write(ctx, func(t plane.Tx) error {
		if err := a.o.Store.RevokeToken(t, id); err != nil {
			return err
		}
		return a.o.Store.AddAudit(t, plane.AuditEntry{Who: by.ID, Action: "token.revoke", What: id, Decision: "allow"})
	})
	a.known.forget() // whatever came of it: who looks again sees what is stored
	return err
}
