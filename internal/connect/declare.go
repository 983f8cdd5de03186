package connect

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"strings"

	"patchbay/internal/plane"
	"patchbay/internal/secret"
	"patchbay/internal/vault"
)

// Wanted is a connection that a declaration asks for. Secret, secret:<ref> or empty,
// is what signs it in.
type Wanted struct {
	Scope       plane.Scope
	Declaration plane.Declared
	Secret      string
}

// maxSecret bounds a secret, in characters (the limit of a pasted token).
const maxSecret = 8192

// PutSecret stores a team's secret, which nobody reads again: connections that
// declarations made are signed in with it.
func (c *Connections) PutSecret(ctx context.Context, who plane.Principal, team, ref string, value secret.Text) error {
	clean, good := secret.Text{}, false
	value.Expose(func(v string) {
		v = strings.TrimSpace(v)
		good = v != "" && len(v) <= maxSecret && !strings.ContainsAny(v, "\r\n\x00")
		clean = secret.New(v)
	})
	if !good {
		return plane.Errorf(plane.InvalidInput, "A secret is one line of 1 to %d characters.", maxSecret).At("value")
	}
	n := vault.Name{Team: team, Ref: ref}
	return c.o.Vault.Put(ctx, n, clean, who.ID, c.said(who, "secret.put", n))
}

// DropSecret takes a secret away. What it signed in is signed out at the next look.
func (c *Connections) DropSecret(ctx context.Context, who plane.Principal, team, ref string) error {
	n := vault.Name{Team: team, Ref: ref}
	return c.o.Vault.Drop(ctx, n, c.said(who, "secret.drop", n))
}

func (c *Connections) said(who plane.Principal, action string, n vault.Name) vault.Audit {
	return func(t plane.Tx) error {
		return c.o.Store.AddAudit(t, plane.AuditEntry{Who: who.ID, Action: action, What: n.String(), Decision: "allow"})
	}
}

// Declare brings the stored records in line with what declarations ask for, as Pin does
// for config, and reports whether anything changed, and what each record should be, by its digest. A
// connection whose address or kind of sign-in changed is another one, with an id of its
// own: nothing that was given or said for the old one holds. One with a secret is
// signed in with that; a person signs the rest in. What this process brought about once
// and another changed since is left alone: their configs differ, and two that write in
// turns would never end.
func (c *Connections) Declare(ctx context.Context, stored []plane.Connection, wanted []Wanted) (digests map[string]string, changed bool, err error) {
	for try := 0; ; try++ {
		digests, changed, err := c.declare(ctx, stored, wanted)
		if plane.KindOf(err) != plane.Conflict || try == pinTries {
			return digests, changed, err
		}
		if stored, err = c.o.Store.Connections(ctx); err != nil { // another replica was first
			return digests, true, err
		}
	}
}

func (c *Connections) declare(ctx context.Context, stored []plane.Connection, wanted []Wanted) (map[string]string, bool, error) {
	secrets := c.secrets(ctx, wanted)
	old := map[string]plane.Connection{}
	for _, s := range stored {
		if s.Origin == plane.OfDeclaration {
			old[s.FullName()] = s
		}
	}
	c.mu.Lock()
	brought := maps.Clone(c.brought)
	c.mu.Unlock()
	now := map[string]string{}
	var changes []change
	for _, w := range wanted {
		name := w.Scope.String() + "/" + w.Declaration.Name
		have, known := old[name]
		delete(old, name)
		ch, differs := c.bring(have, known, w, secrets)
		now[name] = ch.conn.Digest
		if differs && brought[name] != ch.conn.Digest {
			changes = append(changes, ch)
		}
	}
	for name, gone := range old {
		if _, ours := brought[name]; ours && gone.Enabled {
			gone.Enabled = false
			gone.Version++
			changes = append(changes, change{conn: gone})
		}
	}
	var err error
	if len(changes) > 0 {
		err = c.o.Store.Write(ctx, func(t plane.Tx) error {
			for i := range changes {
				if err := c.apply(t, &changes[i]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err == nil {
		c.mu.Lock()
		c.brought = now
		c.mu.Unlock()
	}
	return now, len(changes) > 0, err
}

// change is one record that is to be written.
type change struct {
	conn   plane.Connection
	secret secret.Text // to sign it in with
	drop   bool        // its credential

	replaces plane.ConnectionID // one at another address
}

// asked is a secret as the vault answered.
type asked struct {
	held vault.Held
	err  error
}

// of is the name of what signs a wanted connection in, where a vault keeps that.
func (w *Wanted) of() (vault.Name, bool) {
	kind, ref, _ := strings.Cut(w.Secret, ":")
	n := vault.Name{Ref: ref}
	if w.Scope.Kind == plane.ScopeTeam {
		n.Team = w.Scope.Name
	}
	return n, kind == "secret"
}

// secrets asks for what the wanted connections are signed in with. What is not there and
// what nobody can say are both in the answer.
func (c *Connections) secrets(ctx context.Context, wanted []Wanted) map[vault.Name]asked {
	out := map[vault.Name]asked{}
	for i := range wanted {
		if n, ok := wanted[i].of(); ok {
			if _, known := out[n]; !known {
				held, err := c.o.Vault.Get(ctx, n)
				if err != nil && plane.KindOf(err) != plane.NotFound {
					c.o.Log.Warn("a secret cannot be read; what it signs in stays as it is", "secret", n.String(), "err", err)
				}
				out[n] = asked{held, err}
			}
		}
	}
	return out
}

// bring says how the record of one wanted connection is to change.
func (c *Connections) bring(have plane.Connection, known bool, w Wanted, secrets map[vault.Name]asked) (change, bool) {
	d := &w.Declaration
	n := have
	n.Scope, n.Slug, n.Endpoint, n.Agents, n.Label = w.Scope, d.Name, d.Address(), d.Agents, labelOf(d)
	n.Origin, n.CreatedBy, n.Enabled = plane.OfDeclaration, "declaration", true
	ch := change{}
	ask := plane.DeclaredAs{Name: d.Name, Layer: d.Layer, Auth: d.Auth, Allow: d.Allow, Deny: d.Deny, Run: d.Starts()}
	if known && (have.Endpoint != n.Endpoint || have.Declared.Auth != d.Auth) {
		// Another server: links, reviews, rules and the credential were for the old one.
		ch.replaces, known = have.ID, false
		n.ID, n.Version, n.State, n.Reason, n.OAuth, n.Prefs = "", 0, "", "", plane.OAuthOptions{}, plane.Preferences{}
		have = plane.Connection{}
	}
	if !known {
		n.Auth = d.Auth
	}
	name, kept := w.of()
	v := secrets[name]
	switch {
	case n.Auth == plane.AuthNone:
		n.State, n.Reason = plane.StateConnected, ""
	case kept && v.err == nil && n.Auth.Pasted():
		ask.Secret, ask.Rev = w.Secret, v.held.Rev
		if !known || have.Declared.Secret != ask.Secret || have.Declared.Rev != ask.Rev || !have.Enabled {
			ch.secret = v.held.Value
			n.State, n.Reason = plane.StateConnected, ""
		}
	case kept && known && have.Declared.Secret == w.Secret && plane.KindOf(v.err) != plane.NotFound:
		ask.Secret, ask.Rev = have.Declared.Secret, have.Declared.Rev // an outage signs nobody out
	case strings.HasPrefix(w.Secret, githubApp) && n.Auth == plane.AuthBearer:
		ask.Secret = w.Secret // minted when it is lent
		n.State, n.Reason = plane.StateConnected, ""
	case !known || have.Declared.Secret != "":
		n.State, n.Reason = plane.StateAwaiting, ""
		ch.drop = known
	}
	n.Declared = ask
	n.Digest = digestDeclared(&n)
	ch.conn = n
	if known && have.Enabled && have.Digest == n.Digest && ch.secret.Empty() && !ch.drop {
		return ch, false
	}
	ch.conn.Version++
	return ch, true
}

// labelOf is the declaration's description, as far as it makes a label.
func labelOf(d *plane.Declared) string {
	line, _, _ := strings.Cut(d.Description, "\n")
	if r := []rune(line); len(r) > 80 {
		return string(r[:79]) + "…"
	}
	return line
}

func digestDeclared(n *plane.Connection) string {
	b, err := json.Marshal([]any{n.Label, n.Endpoint, n.Auth, n.Agents, n.Declared})
	if err != nil { // strings and numbers always marshal
		return ""
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func (c *Connections) apply(t plane.Tx, ch *change) error {
	if ch.replaces != "" {
		if err := c.o.Store.RemoveConnection(t, ch.replaces); err != nil {
			return err
		}
	}
	if ch.conn.ID == "" {
		ch.conn.ID = plane.NewConnectionID(t.Now())
	}
	if !ch.secret.Empty() {
		if err := c.save(t, ch); err != nil {
			return err
		}
		return c.Put(t, ch.conn, Pasted(ch.secret))
	}
	if ch.drop {
		if err := c.o.Store.DropCredential(t, ch.conn.ID); err != nil {
			return err
		}
	}
	return c.save(t, ch)
}

func (c *Connections) save(t plane.Tx, ch *change) error {
	if err := c.o.Store.SaveConnection(t, &ch.conn); err != nil {
		return err
	}
	action := "connection.declare"
	if !ch.conn.Enabled {
		action = "connection.undeclare"
	}
	return c.o.Store.AddAudit(t, plane.AuditEntry{Who: "patchbay", Action: action, What: string(ch.conn.ID), Decision: "allow", Digest: ch.conn.Digest})
}
