package registry

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"patchbay/internal/plane"
	"patchbay/internal/policy"
)

// Declarations are the rows of what people and agents declared.
type Declarations interface {
	CuratedDeclarations(ctx context.Context) ([]plane.Proposal, error)
	Proposals(ctx context.Context, team string, states ...plane.ProposalState) ([]plane.Proposal, error)
	ProposalNamed(ctx context.Context, team, name string, states ...plane.ProposalState) (plane.Proposal, error)
	CountProposals(t plane.Tx, source, team string, since time.Time) (lately, waiting int, err error)
	AddProposal(t plane.Tx, p *plane.Proposal) error
	MoveProposal(t plane.Tx, p *plane.Proposal, from plane.ProposalState) error
	SetFound(t plane.Tx, id string, found json.RawMessage) error
	ExpireProposals(t plane.Tx) ([]plane.Proposal, error)
}

// Settings are the rows of what people set beside.
type Settings interface {
	Destinations(ctx context.Context) ([]plane.Destination, error)
	PutDestination(t plane.Tx, d *plane.Destination, by string) error
	DropDestination(t plane.Tx, name string) error
	Layers(ctx context.Context) ([]plane.Layered, error)
	PutLayer(t plane.Tx, v *plane.Layered) error
	Repositories(ctx context.Context) ([]plane.RepoSnapshot, error)
	PutRepository(t plane.Tx, v *plane.RepoSnapshot, changed bool) error
}

// Mirrored are the rows of an upstream registry.
type Mirrored interface {
	PutMirror(t plane.Tx, list []plane.MirrorEntry) error
	DropMirror(t plane.Tx, name, version string) error
	CountMirror(ctx context.Context) (int, error)
	Mirror(ctx context.Context, name, search, afterName, afterVersion string, latest bool, limit int) ([]plane.MirrorEntry, error)
}

// Store is all of them.
type Store interface {
	Declarations
	Settings
	Mirrored
	Write(ctx context.Context, fn func(plane.Tx) error) error
	TakeLease(ctx context.Context, name, owner string, until time.Time) (bool, error)
	AddAudit(t plane.Tx, e plane.AuditEntry) error
}

// Options of a Service.
type Options struct {
	Store       Store
	Policy      func() *policy.Snapshot
	Sources     func() *Sources                 // as they were compiled last
	Renew       func(ctx context.Context) error // compiles them anew
	Look        func(ctx context.Context, who plane.Principal, team string, d plane.Declaration) plane.Found
	Clock       plane.Clock
	Log         *slog.Logger
	Placeholder string
	Links       []string      // hosts that proposals may link to, beside the usual
	Space       func() string // the namespace of our own entries, as com.example.patchbay
	Life        time.Duration
	PerMinute   int // proposals of one source
	Waiting     int // proposals that wait in one team
}

// Service keeps declarations that people and agents store.
type Service struct {
	o    Options
	scan *Scanner

	mu     sync.Mutex
	limits map[string]*rate.Limiter // of attempts, by source
}

// New makes a Service.
func New(o Options) *Service {
	if o.Life == 0 {
		o.Life = 30 * 24 * time.Hour
	}
	if o.PerMinute == 0 {
		o.PerMinute = 10
	}
	if o.Waiting == 0 {
		o.Waiting = 100
	}
	return &Service{o: o, scan: &Scanner{Links: append(append([]string{}, defaultLinks...), o.Links...)}}
}

// maxSources bounds who is counted.
const maxSources = 10_000

// tries counts an attempt of a source, whatever becomes of it.
func (s *Service) tries(source string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.limits[source]
	if l == nil {
		if s.limits == nil || len(s.limits) >= maxSources {
			s.limits = map[string]*rate.Limiter{}
		}
		l = rate.NewLimiter(rate.Every(time.Minute/time.Duration(s.o.PerMinute)), s.o.PerMinute)
		s.limits[source] = l
	}
	return l.AllowN(s.o.Clock.Now(), 1)
}

// Scanner looks through texts by the rules in force.
func (s *Service) Scanner() *Scanner { return s.scan }

// Placeholder is the one value that env of a declaration may have.
func (s *Service) Placeholder() string { return s.o.Placeholder }

// SourceOf names who proposes: agent:<team>/<agent>, or person:<id>.
func SourceOf(who plane.Principal) string {
	if who.Kind == plane.KindAgent {
		return "agent:" + who.Team + "/" + who.Agent
	}
	return "person:" + who.ID
}

// maxWhy bounds the words that go with a proposal.
const maxWhy = 2000

// Propose stores a declaration for a team until a person accepts it. One that waits is
// not replaced: what a person saw is what they accept.
func (s *Service) Propose(ctx context.Context, who plane.Principal, team, body, why string) (plane.Proposal, error) {
	if !s.tries(SourceOf(who)) {
		e := plane.Errorf(plane.Limited, "%s proposes more than %d servers a minute.", SourceOf(who), s.o.PerMinute).Over("proposals_per_minute")
		e.RetryAfter = time.Minute
		return plane.Proposal{}, e
	}
	d, err := s.check(who, team, body, why)
	if err != nil {
		return plane.Proposal{}, err
	}
	p := plane.Proposal{Team: team, Declaration: d, State: plane.Proposed, Source: SourceOf(who), Why: why}
	was, err := s.o.Store.ProposalNamed(ctx, team, d.Name, plane.Proposed)
	switch {
	case plane.KindOf(err) == plane.NotFound:
	case err != nil:
		return p, err
	default:
		return p, plane.Errorf(plane.Conflict, "%s is proposed already, by %s; a person decides about that first.", d.Name, was.Source).At("name").Then("patchbay proposals show " + d.Name)
	}
	err = s.o.Store.Write(ctx, func(t plane.Tx) error {
		now := t.Now()
		lately, waiting, err := s.o.Store.CountProposals(t, p.Source, team, now.Add(-time.Minute))
		switch {
		case err != nil:
			return err
		case lately >= s.o.PerMinute:
			e := plane.Errorf(plane.Limited, "%s proposed %d servers within a minute, which is the most.", p.Source, lately).Over("proposals_per_minute")
			e.RetryAfter = time.Minute
			return e
		case waiting >= s.o.Waiting:
			return plane.Errorf(plane.Limited, "%d proposals wait in %s, which is the most.", waiting, team).Over("proposals_waiting").Then("patchbay proposals list --team " + team)
		}
		p.ID, p.CreatedAt, p.ExpiresAt = plane.NewProposalID(now), now, now.Add(s.o.Life)
		if err := s.o.Store.AddProposal(t, &p); err != nil {
			return err
		}
		return s.o.Store.AddAudit(t, plane.AuditEntry{Who: who.ID, Action: "declaration.propose", What: team + "/" + d.Name, Decision: "pending"})
	})
	return p, err
}

// check holds a declaration to every rule before it is stored.
func (s *Service) check(who plane.Principal, team, body, why string) (plane.Declaration, error) {
	if d := s.o.Policy().MayPropose(who, team); d != nil {
		return plane.Declaration{}, d.Err()
	}
	if len(why) > maxWhy {
		return plane.Declaration{}, plane.Errorf(plane.InvalidInput, "Say why in at most %d bytes.", maxWhy).At("why")
	}
	d, err := Parse("declaration", []byte(body), s.o.Placeholder)
	if err != nil {
		return d, err
	}
	if d.Default {
		return d, plane.Errorf(plane.InvalidInput, "default: true is the registry's to say.").At("default")
	}
	return d, s.clean(&d, body, why)
}

// clean refuses what a scan trips over, and a name that passes for one of the
// registry's. What tripped is named and never repeated.
func (s *Service) clean(d *plane.Declaration, body, why string) error {
	var names []string
	for _, r := range s.o.Sources().Registry {
		names = append(names, r.Name)
	}
	if like := looksLike(d.Name, names); like != "" {
		return plane.Errorf(plane.InvalidInput, "The name %s looks like the registry's %s; choose one that nobody takes for it.", d.Name, like).At("name")
	}
	found := s.scan.Declaration(d, body, why)
	if len(found) == 0 {
		return nil
	}
	var what []string
	for _, f := range found {
		what = append(what, f.What)
	}
	return plane.Errorf(plane.InvalidInput, "The declaration holds %s. Nothing was stored.", strings.Join(what, ", and ")).At("declaration")
}

// List are a team's declarations: those that wait, and those in force.
func (s *Service) List(ctx context.Context, who plane.Principal, team string, states ...plane.ProposalState) ([]plane.Proposal, error) {
	if d := s.o.Policy().MayPropose(who, team); d != nil {
		return nil, d.Err()
	}
	if len(states) == 0 {
		states = []plane.ProposalState{plane.Proposed, plane.Curated}
	}
	return s.o.Store.Proposals(ctx, team, states...)
}

// Show is a team's declaration of a name: the one that waits, else the one in force.
func (s *Service) Show(ctx context.Context, who plane.Principal, team, name string) (plane.Proposal, error) {
	if d := s.o.Policy().MayPropose(who, team); d != nil {
		return plane.Proposal{}, d.Err()
	}
	p, err := s.o.Store.ProposalNamed(ctx, team, name, plane.Proposed, plane.Curated)
	return p, named(err, team, name)
}

func named(err error, team, name string) error {
	if plane.KindOf(err) == plane.NotFound {
		return plane.Errorf(plane.NotFound, "%s has no declaration %q.", team, bounded(name)).At("name").Then("patchbay proposals list --team " + team)
	}
	return err
}

// Accept puts a proposal in force, in place of what was. With an id it is that one or
// none. Of two who accept at once, one is told.
func (s *Service) Accept(ctx context.Context, who plane.Principal, team, name, id string) (plane.Proposal, error) {
	p, err := s.o.Store.ProposalNamed(ctx, team, name, plane.Proposed)
	if d := s.o.Policy().MayPropose(who, team); d != nil {
		return p, d.Err() // what exists in another team is never told
	}
	if err != nil {
		if was, ferr := s.inForce(ctx, team, name); ferr == nil && was.ID != "" {
			return p, plane.Errorf(plane.Conflict, "%s is in force in %s already; %s decided so.", name, team, was.DecidedBy).At("name")
		}
		return p, named(err, team, name)
	}
	if id != "" && id != p.ID {
		return p, plane.Errorf(plane.Conflict, "Another proposal of %s waits now than the one that was looked at.", name).At("id").Then("patchbay proposals show " + name)
	}
	if d := s.o.Policy().MayCurate(who, team, &p.Declaration); d != nil {
		return p, d.Err()
	}
	was, err := s.inForce(ctx, team, name)
	if err != nil {
		return p, err
	}
	if err := s.mayReplace(who, was); err != nil {
		return p, err
	}
	err = s.o.Store.Write(ctx, func(t plane.Tx) error {
		if err := s.retire(t, who, was); err != nil {
			return err
		}
		s.decide(&p, who, plane.Curated, t.Now())
		if err := s.o.Store.MoveProposal(t, &p, plane.Proposed); err != nil {
			return err
		}
		return s.o.Store.AddAudit(t, plane.AuditEntry{Who: who.ID, Action: "declaration.accept", What: team + "/" + name, Decision: "allow"})
	})
	if err != nil {
		return p, err
	}
	return p, s.o.Renew(ctx)
}

func (s *Service) decide(p *plane.Proposal, who plane.Principal, to plane.ProposalState, now time.Time) {
	p.State, p.DecidedAt, p.DecidedBy, p.ByAdmin = to, now, who.ID, s.o.Policy().Admin(who)
}

// inForce is what is in force under a name; its id is empty where nothing is.
func (s *Service) inForce(ctx context.Context, team, name string) (plane.Proposal, error) {
	was, err := s.o.Store.ProposalNamed(ctx, team, name, plane.Curated)
	if plane.KindOf(err) == plane.NotFound {
		return plane.Proposal{}, nil
	}
	return was, err
}

// mayReplace holds what is replaced to the gate of what replaces it: a member must not undo
// what an org admin decided for a guarded agent.
func (s *Service) mayReplace(who plane.Principal, was plane.Proposal) error {
	if was.ID == "" || was.Team == "" {
		return nil
	}
	if d := s.o.Policy().MayCurate(who, was.Team, &was.Declaration); d != nil {
		return d.Err()
	}
	return nil
}

// maxCurated bounds what is in force in one team, and in the registry.
const maxCurated = 500

// retire ends what is in force, if anything is.
func (s *Service) retire(t plane.Tx, who plane.Principal, was plane.Proposal) error {
	if was.ID == "" {
		return nil
	}
	s.decide(&was, who, plane.Forgotten, t.Now())
	return s.o.Store.MoveProposal(t, &was, plane.Curated)
}

// Forget ends a declaration: the one that waits, else the one in force.
func (s *Service) Forget(ctx context.Context, who plane.Principal, team, name string) (plane.Proposal, error) {
	p, err := s.Show(ctx, who, team, name)
	if err != nil {
		return p, err
	}
	if d := s.o.Policy().MayCurate(who, team, &p.Declaration); d != nil {
		return p, d.Err()
	}
	from := p.State
	err = s.o.Store.Write(ctx, func(t plane.Tx) error {
		s.decide(&p, who, plane.Forgotten, t.Now())
		if err := s.o.Store.MoveProposal(t, &p, from); err != nil {
			return err
		}
		return s.o.Store.AddAudit(t, plane.AuditEntry{Who: who.ID, Action: "declaration.forget", What: team + "/" + name, Decision: "allow"})
	})
	if err != nil {
		return p, err
	}
	return p, s.o.Renew(ctx)
}

// Curate stores a person's own declaration for a team in force at once, in place of what
// was. Only says that there must be none of the name yet, or must be one.
func (s *Service) Curate(ctx context.Context, who plane.Principal, team, body string, only Only) (plane.Proposal, error) {
	d, err := s.check(who, team, body, "")
	if err != nil {
		return plane.Proposal{}, err
	}
	if den := s.o.Policy().MayCurate(who, team, &d); den != nil {
		return plane.Proposal{}, den.Err()
	}
	p := plane.Proposal{Team: team, Declaration: d, Source: SourceOf(who)}
	return p, s.store(ctx, who, &p, only)
}

// Only narrows what Curate may do.
type Only int

// What there must be before.
const (
	Whatever Only = iota
	NoneYet
	Existing
)

// store puts a declaration in force in place of what was.
func (s *Service) store(ctx context.Context, who plane.Principal, p *plane.Proposal, only Only) error {
	name := p.Declaration.Name
	was, err := s.inForce(ctx, p.Team, name)
	switch {
	case err != nil:
		return err
	case was.ID != "" && only == NoneYet:
		return plane.Errorf(plane.Conflict, "%s is declared there already.", name).At("name")
	case was.ID == "" && only == Existing:
		return named(plane.Errorf(plane.NotFound, "none"), p.Team, name)
	}
	if err := s.mayReplace(who, was); err != nil {
		return err
	}
	if was.ID == "" {
		list, err := s.o.Store.Proposals(ctx, p.Team, plane.Curated)
		if err != nil {
			return err
		}
		if len(list) >= maxCurated {
			return plane.Errorf(plane.Limited, "%d servers are declared there, which is the most.", len(list))
		}
	}
	what := p.Team + "/" + name
	if p.Team == "" {
		what = "registry/" + name
	}
	err = s.o.Store.Write(ctx, func(t plane.Tx) error {
		if err := s.retire(t, who, was); err != nil {
			return err
		}
		p.ID, p.CreatedAt = plane.NewProposalID(t.Now()), t.Now()
		s.decide(p, who, plane.Curated, t.Now())
		if err := s.o.Store.AddProposal(t, p); err != nil {
			return err
		}
		return s.o.Store.AddAudit(t, plane.AuditEntry{Who: who.ID, Action: "declaration.curate", What: what, Decision: "allow"})
	})
	if err != nil {
		return err
	}
	return s.o.Renew(ctx)
}

// Expire ends proposals that nobody accepted in time.
func (s *Service) Expire(ctx context.Context) error {
	return s.o.Store.Write(ctx, func(t plane.Tx) error {
		list, err := s.o.Store.ExpireProposals(t)
		if err != nil {
			return err
		}
		for _, p := range list {
			if err := s.o.Store.AddAudit(t, plane.AuditEntry{Who: "patchbay", Action: "declaration.expire", What: p.Team + "/" + p.Declaration.Name, Decision: "deny"}); err != nil {
				return err
			}
		}
		return nil
	})
}

// Review is what a person who decides is shown.
type Review struct {
	plane.Proposal
	Against *plane.Declared // the registry's entry of that name
	Differs []string        // from it
	Changes []string        // of what is in force under the name
	Found   *plane.Found
}

// Review prepares a decision. Look asks the server, as the person who looks: an agent's
// words alone send nothing anywhere.
func (s *Service) Review(ctx context.Context, who plane.Principal, team, name string, look bool) (Review, error) {
	p, err := s.Show(ctx, who, team, name)
	if err != nil {
		return Review{}, err
	}
	r := Review{Proposal: p}
	for _, d := range s.o.Sources().Registry {
		if d.Name == name {
			r.Against, r.Differs = &d, differences(&d.Declaration, &p.Declaration, "in the registry")
		}
	}
	if was, err := s.inForce(ctx, team, name); err == nil && was.ID != "" && was.ID != p.ID {
		if r.Changes = differences(&was.Declaration, &p.Declaration, "in force"); len(r.Changes) == 0 {
			r.Changes = []string{"nothing: the same is in force"}
		}
	}
	if len(p.Found) > 0 {
		r.Found = &plane.Found{}
		if err := json.Unmarshal(p.Found, r.Found); err != nil {
			r.Found = nil
		}
	}
	if !look || p.Declaration.Transport != plane.HTTP || who.Kind == plane.KindAgent {
		return r, nil
	}
	if d := s.o.Policy().MayCurate(who, team, &p.Declaration); d != nil {
		return r, nil // who may not decide does not send
	}
	found := s.o.Look(ctx, who, team, p.Declaration)
	for i := range found.Tools {
		for _, f := range s.scan.Text(found.Tools[i].Name+"\n"+found.Tools[i].Description, p.Declaration.URL) {
			found.Tools[i].Flags = append(found.Tools[i].Flags, f.What)
		}
	}
	r.Found = &found
	raw, err := json.Marshal(found)
	if err != nil {
		return r, err
	}
	return r, s.o.Store.Write(ctx, func(t plane.Tx) error { return s.o.Store.SetFound(t, p.ID, raw) })
}
