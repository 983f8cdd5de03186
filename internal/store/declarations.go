package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"strings"
	"time"

	"patchbay/internal/plane"
)

const declarationColumns = `id, team, body, state, source, why, found, created_at, expires_at, decided_at, decided_by, by_admin`

func scanProposal(r *sql.Rows) (plane.Proposal, error) {
	var p plane.Proposal
	var body, found string
	var created, expires, decided, admin int64
	if err := r.Scan(&p.ID, &p.Team, &body, &p.State, &p.Source, &p.Why, &found, &created, &expires, &decided, &p.DecidedBy, &admin); err != nil {
		return p, err
	}
	if found != "" {
		p.Found = json.RawMessage(found)
	}
	p.CreatedAt, p.ExpiresAt, p.DecidedAt, p.ByAdmin = plane.FromMicros(created), plane.FromMicros(expires), plane.FromMicros(decided), admin != 0
	return p, json.Unmarshal([]byte(body), &p.Declaration)
}

func (s *Store) proposals(ctx context.Context, where string, args ...any) ([]plane.Proposal, error) {
	var out []plane.Proposal
	err := s.each(ctx, func(r *sql.Rows) error {
		p, err := scanProposal(r)
		out = append(out, p)
		return err
	}, `SELECT `+declarationColumns+` FROM declarations WHERE `+where, args...)
	return out, err
}

// CuratedDeclarations are those in force: the registry's, where the team is empty, and
// the teams'.
func (s *Store) CuratedDeclarations(ctx context.Context) ([]plane.Proposal, error) {
	return s.proposals(ctx, `state = 'curated' ORDER BY team, name`)
}

// Proposals are the declarations of a team in some states, newest first.
func (s *Store) Proposals(ctx context.Context, team string, states ...plane.ProposalState) ([]plane.Proposal, error) {
	where, args := "team = ?", []any{team}
	for i, st := range states {
		where += map[bool]string{true: " AND (state = ?", false: " OR state = ?"}[i == 0]
		args = append(args, st)
	}
	if len(states) > 0 {
		where += ")"
	}
	return s.proposals(ctx, where+` ORDER BY created_at DESC, id DESC LIMIT 1000`, args...)
}

// ProposalNamed is a team's declaration of a name: the one that waits, else the one in
// force.
func (s *Store) ProposalNamed(ctx context.Context, team, name string, states ...plane.ProposalState) (plane.Proposal, error) {
	for _, st := range states {
		list, err := s.proposals(ctx, `team = ? AND name = ? AND state = ?`, team, name, st)
		if err != nil {
			return plane.Proposal{}, err
		}
		if len(list) > 0 {
			return list[0], nil
		}
	}
	return plane.Proposal{}, plane.Errorf(plane.NotFound, "There is no declaration of that name.")
}

// CountProposals counts what a source proposed since a time, and what waits in a team.
func (s *Store) CountProposals(t plane.Tx, source, team string, since time.Time) (lately, waiting int, err error) {
	err = own(t).each(func(r *sql.Rows) error { return r.Scan(&lately, &waiting) },
		`SELECT (SELECT COUNT(*) FROM declarations WHERE source = ? AND created_at >= ?), (SELECT COUNT(*) FROM declarations WHERE team = ? AND state = 'proposed')`,
		source, plane.Micros(since), team)
	return lately, waiting, err
}

// AddProposal stores a declaration in the state it says; conflict where the name has
// one in that state.
func (s *Store) AddProposal(t plane.Tx, p *plane.Proposal) error {
	body, err := json.Marshal(p.Declaration)
	if err != nil {
		return err
	}
	_, err = own(t).exec(`INSERT INTO declarations (`+declarationColumns+`, name) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		p.ID, p.Team, string(body), p.State, p.Source, p.Why, string(p.Found), plane.Micros(p.CreatedAt), plane.Micros(p.ExpiresAt), plane.Micros(p.DecidedAt), p.DecidedBy, flag(p.ByAdmin), p.Declaration.Name)
	if IsUnique(err) {
		return plane.Errorf(plane.Conflict, "%s is declared there already.", p.Declaration.Name).At("name").Because(err)
	}
	if err == nil && p.State == plane.Curated {
		err = s.touchConnections(t)
	}
	return err
}

// MoveProposal takes a declaration from one state to another; conflict where it is no
// longer in that state, or the name has one in the new state.
func (s *Store) MoveProposal(t plane.Tx, p *plane.Proposal, from plane.ProposalState) error {
	res, err := own(t).exec(`UPDATE declarations SET state = ?, decided_at = ?, decided_by = ?, by_admin = ? WHERE id = ? AND state = ?`,
		p.State, plane.Micros(p.DecidedAt), p.DecidedBy, flag(p.ByAdmin), p.ID, from)
	if IsUnique(err) {
		return plane.Errorf(plane.Conflict, "%s is declared there already.", p.Declaration.Name).At("name").Because(err)
	}
	if err := exactly(res, err, 1, plane.Errorf(plane.Conflict, "Somebody else decided about %s in the meantime.", p.Declaration.Name)); err != nil {
		return err
	}
	if p.State == plane.Curated || from == plane.Curated {
		return s.touchConnections(t)
	}
	return nil
}

// SetFound keeps what a look at a proposed server told.
func (s *Store) SetFound(t plane.Tx, id string, found json.RawMessage) error {
	_, err := own(t).exec(`UPDATE declarations SET found = ? WHERE id = ?`, string(found), id)
	return err
}

// ExpireProposals ends those that nobody accepted until now, and returns them.
func (s *Store) ExpireProposals(t plane.Tx) ([]plane.Proposal, error) {
	var out []plane.Proposal
	x := own(t)
	err := x.each(func(r *sql.Rows) error {
		p, err := scanProposal(r)
		out = append(out, p)
		return err
	}, `SELECT `+declarationColumns+` FROM declarations WHERE state = 'proposed' AND expires_at <= ? ORDER BY expires_at LIMIT 500`, plane.Micros(x.now))
	for i := range out {
		if err == nil {
			_, err = x.exec(`UPDATE declarations SET state = 'expired', decided_at = ? WHERE id = ? AND state = 'proposed'`, plane.Micros(x.now), out[i].ID)
		}
	}
	return out, err
}

// SweepDeclarations forgets what ended before a time.
func (s *Store) SweepDeclarations(ctx context.Context, before time.Time) error {
	return s.Write(ctx, func(t plane.Tx) error {
		_, err := own(t).exec(`DELETE FROM declarations WHERE state IN ('forgotten', 'expired') AND decided_at < ?`, plane.Micros(before))
		return err
	})
}

// Destinations are those that were made at run time.
func (s *Store) Destinations(ctx context.Context) ([]plane.Destination, error) {
	var out []plane.Destination
	err := s.each(ctx, func(r *sql.Rows) error {
		var body string
		if err := r.Scan(&body); err != nil {
			return err
		}
		var d plane.Destination
		err := json.Unmarshal([]byte(body), &d)
		out = append(out, d)
		return err
	}, `SELECT body FROM destinations ORDER BY name`)
	return out, err
}

// PutDestination stores a destination in place of the one of its name.
func (s *Store) PutDestination(t plane.Tx, d *plane.Destination, by string) error {
	body, err := json.Marshal(d)
	if err != nil {
		return err
	}
	x := own(t)
	if _, err := x.exec(`INSERT INTO destinations (name, body, made_by, at) VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET body = excluded.body, made_by = excluded.made_by, at = excluded.at`,
		d.Name, string(body), by, plane.Micros(x.now)); err != nil {
		return err
	}
	return s.touchConnections(t)
}

// DropDestination takes a destination away.
func (s *Store) DropDestination(t plane.Tx, name string) error {
	res, err := own(t).exec(`DELETE FROM destinations WHERE name = ?`, name)
	if err := exactly(res, err, 1, plane.Errorf(plane.NotFound, "No destination %s was made at run time.", name).At("name")); err != nil {
		return err
	}
	return s.touchConnections(t)
}

// TeamSecret is one secret, sealed.
func (s *Store) TeamSecret(ctx context.Context, team, ref string) (plane.TeamSecret, error) {
	var v plane.TeamSecret
	found := false
	err := s.each(ctx, func(r *sql.Rows) error {
		var at int64
		err := r.Scan(&v.Team, &v.Ref, &v.Rev, &v.Blob, &v.By, &at)
		v.At, found = plane.FromMicros(at), true
		return err
	}, `SELECT team, ref, rev, blob, made_by, at FROM secrets WHERE team = ? AND ref = ?`, team, ref)
	if err == nil && !found {
		err = plane.Errorf(plane.NotFound, "There is no such secret.").At("ref")
	}
	return v, err
}

// PutTeamSecret stores a sealed secret in place of the one of its ref, with the next
// rev.
func (s *Store) PutTeamSecret(t plane.Tx, v *plane.TeamSecret) error {
	x := own(t)
	if _, err := x.exec(`INSERT INTO secrets (team, ref, rev, blob, made_by, at) VALUES (?, ?, 1, ?, ?, ?)
		ON CONFLICT (team, ref) DO UPDATE SET rev = secrets.rev + 1, blob = excluded.blob, made_by = excluded.made_by, at = excluded.at`,
		v.Team, v.Ref, v.Blob, v.By, plane.Micros(x.now)); err != nil {
		return err
	}
	return s.touchConnections(t)
}

// DropTeamSecret takes a secret away.
func (s *Store) DropTeamSecret(t plane.Tx, team, ref string) error {
	res, err := own(t).exec(`DELETE FROM secrets WHERE team = ? AND ref = ?`, team, ref)
	if err := exactly(res, err, 1, plane.Errorf(plane.NotFound, "There is no such secret.").At("ref")); err != nil {
		return err
	}
	return s.touchConnections(t)
}

// settingServers is the setting of an agent's attached servers.
const settingServers = "servers"

// Layers are what was set at run time over agents' config.
func (s *Store) Layers(ctx context.Context) ([]plane.Layered, error) {
	var out []plane.Layered
	err := s.each(ctx, func(r *sql.Rows) error {
		var v plane.Layered
		var scope, value string
		var at int64
		if err := r.Scan(&scope, &value, &v.Rev, &v.By, &at); err != nil {
			return err
		}
		v.Agent, v.At = parseScope(scope).Name, plane.FromMicros(at)
		err := json.Unmarshal([]byte(value), &v.Servers)
		out = append(out, v)
		return err
	}, `SELECT scope, value, rev, made_by, at FROM settings WHERE name = ? ORDER BY scope`, settingServers)
	return out, err
}

// PutLayer replaces what was set at run time for an agent, if it is at the rev that was
// read, 0 for none; the new one is one more.
func (s *Store) PutLayer(t plane.Tx, v *plane.Layered) error {
	value, err := json.Marshal(v.Servers)
	if err != nil {
		return err
	}
	x := own(t)
	res, err := x.exec(`INSERT INTO settings (scope, name, value, rev, made_by, at) SELECT ?, ?, ?, 1, ?, ? WHERE ? = 0 ON CONFLICT (scope, name) DO NOTHING`,
		"agent:"+v.Agent, settingServers, string(value), v.By, plane.Micros(x.now), v.Rev)
	if err == nil && v.Rev > 0 {
		res, err = x.exec(`UPDATE settings SET value = ?, rev = rev + 1, made_by = ?, at = ? WHERE scope = ? AND name = ? AND rev = ?`,
			string(value), v.By, plane.Micros(x.now), "agent:"+v.Agent, settingServers, v.Rev)
	}
	if err := exactly(res, err, 1, plane.Errorf(plane.Conflict, "The servers of %s were changed in the meantime.", v.Agent)); err != nil {
		return err
	}
	v.Rev++
	return s.touchConnections(t)
}

// Repositories are what teams' repositories declared when they were last read.
func (s *Store) Repositories(ctx context.Context) ([]plane.RepoSnapshot, error) {
	var out []plane.RepoSnapshot
	err := s.each(ctx, func(r *sql.Rows) error {
		var body string
		if err := r.Scan(&body); err != nil {
			return err
		}
		var v plane.RepoSnapshot
		err := json.Unmarshal([]byte(body), &v)
		out = append(out, v)
		return err
	}, `SELECT body FROM repositories ORDER BY team`)
	return out, err
}

// PutRepository keeps what a team's repository declares; changed says whether runs see
// a difference.
func (s *Store) PutRepository(t plane.Tx, v *plane.RepoSnapshot, changed bool) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = own(t).exec(`INSERT INTO repositories (team, body, at) VALUES (?, ?, ?) ON CONFLICT (team) DO UPDATE SET body = excluded.body, at = excluded.at`,
		v.Team, string(body), plane.Micros(v.At))
	if err == nil && changed {
		err = s.touchConnections(t)
	}
	return err
}

// PutMirror keeps servers of an upstream registry; what it marks as the latest is the
// only latest of its name.
func (s *Store) PutMirror(t plane.Tx, list []plane.MirrorEntry) error {
	x := own(t)
	for _, e := range list {
		if e.Latest {
			if _, err := x.exec(`UPDATE registry_mirror SET latest = 0 WHERE name = ? AND latest = 1`, e.Name); err != nil {
				return err
			}
		}
		if _, err := x.exec(`INSERT INTO registry_mirror (name, version, latest, body, updated_at) VALUES (?, ?, ?, ?, ?)
			ON CONFLICT (name, version) DO UPDATE SET latest = excluded.latest, body = excluded.body, updated_at = excluded.updated_at`,
			e.Name, e.Version, flag(e.Latest), string(e.Body), plane.Micros(e.UpdatedAt)); err != nil {
			return err
		}
	}
	return nil
}

// DropMirror takes a server's version out of the mirror.
func (s *Store) DropMirror(t plane.Tx, name, version string) error {
	x := own(t)
	if _, err := x.exec(`DELETE FROM registry_mirror WHERE name = ? AND version = ?`, name, version); err != nil {
		return err
	}
	// The newest of what is left is the latest, where that was it.
	_, err := x.exec(`UPDATE registry_mirror SET latest = 1 WHERE name = ? AND NOT EXISTS (SELECT 1 FROM registry_mirror o WHERE o.name = ? AND o.latest = 1)
		AND updated_at = (SELECT MAX(updated_at) FROM registry_mirror o WHERE o.name = ?) AND version = (SELECT MAX(version) FROM registry_mirror o WHERE o.name = ? AND o.updated_at = (SELECT MAX(updated_at) FROM registry_mirror p WHERE p.name = ?))`,
		name, name, name, name, name)
	return err
}

// CountMirror is how many servers' versions the mirror has.
func (s *Store) CountMirror(ctx context.Context) (n int, err error) {
	err = s.each(ctx, func(r *sql.Rows) error { return r.Scan(&n) }, `SELECT COUNT(*) FROM registry_mirror`)
	return n, err
}

// Mirror lists servers of the mirror in order of name and version: those after a place
// whose name holds a text, only the latest versions or all, of one name or any.
func (s *Store) Mirror(ctx context.Context, name, search, afterName, afterVersion string, latest bool, limit int) ([]plane.MirrorEntry, error) {
	var out []plane.MirrorEntry
	err := s.each(ctx, func(r *sql.Rows) error {
		var e plane.MirrorEntry
		var last, at int64
		var body string
		err := r.Scan(&e.Name, &e.Version, &last, &body, &at)
		e.Latest, e.Body, e.UpdatedAt = last != 0, []byte(body), plane.FromMicros(at)
		out = append(out, e)
		return err
	}, `SELECT name, version, latest, body, updated_at FROM registry_mirror
		WHERE (? = '' OR name = ?) AND (? = '' OR LOWER(name) LIKE ? ESCAPE '\') AND (name > ? OR name = ? AND version > ?) AND (? = 0 OR latest = 1)
		ORDER BY name, version LIMIT ?`, name, name, search, "%"+likeText(search)+"%", afterName, afterName, afterVersion, flag(latest), limit)
	return out, err
}

// likeText makes a text stand for itself in LIKE.
func likeText(s string) string {
	return strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(strings.ToLower(s))
}
