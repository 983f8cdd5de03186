package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"patchbay/internal/plane"
)

// Problem is a file that could not be used.
type Problem struct {
	File string `json:"file"`
	What string `json:"what"`
}

// maxFiles bounds a registry's directory.
const maxFiles = 1000

// Files reads the declarations of a directory, one a file. What cannot be used is left
// out and told; it takes nothing else with it.
func Files(dir, placeholder string) ([]plane.Declared, []Problem) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, []Problem{{dir, "The registry's directory cannot be read."}}
	}
	var out []plane.Declared
	var bad []Problem
	seen := map[string]string{}
	for _, e := range entries {
		name := e.Name()
		if ext := filepath.Ext(name); e.IsDir() || ext != ".yaml" && ext != ".yml" && ext != ".json" || strings.HasPrefix(name, ".") {
			continue
		}
		if len(out)+len(bad) >= maxFiles {
			bad = append(bad, Problem{dir, fmt.Sprintf("A registry has at most %d files; the rest is left out.", maxFiles)})
			break
		}
		d, err := readFile(filepath.Join(dir, name), placeholder)
		if err == nil && seen[d.Name] != "" {
			err = plane.Errorf(plane.InvalidInput, "%s: %s declares %s already.", filepath.Join(dir, name), seen[d.Name], d.Name)
		}
		if err != nil {
			bad = append(bad, Problem{filepath.Join(dir, name), plane.Public(err).Message})
			continue
		}
		seen[d.Name] = name
		at := time.Time{}
		if info, err := e.Info(); err == nil {
			at = info.ModTime().UTC().Truncate(time.Microsecond)
		}
		out = append(out, plane.Declared{Declaration: d, Layer: plane.LayerRegistry, From: name, At: at})
	}
	return out, bad
}

func readFile(path, placeholder string) (plane.Declaration, error) {
	f, err := os.Open(path)
	if err != nil {
		return plane.Declaration{}, plane.Errorf(plane.InvalidInput, "%s cannot be read.", path).Because(err)
	}
	defer f.Close()
	b := make([]byte, maxFile+1)
	n := 0
	for n < len(b) {
		m, err := f.Read(b[n:])
		n += m
		if err != nil {
			break
		}
	}
	return Parse(path, b[:n], placeholder)
}

// Registry are the entries on offer, in order of names.
func (s *Service) Registry() []plane.Declared {
	out := slices.Clone(s.o.Sources().Registry)
	slices.SortFunc(out, func(a, b plane.Declared) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Entry is one entry on offer.
func (s *Service) Entry(name string) (plane.Declared, error) {
	var names []string
	for _, d := range s.o.Sources().Registry {
		if d.Name == name {
			return d, nil
		}
		names = append(names, d.Name)
	}
	e := plane.Errorf(plane.NotFound, "The registry has no %q.", bounded(name)).At("name").Then("patchbay registry list")
	if n := plane.Nearest(name, names); n != "" {
		e.Next = "Did you mean " + n + "?"
	}
	return plane.Declared{}, e
}

// AddEntry puts a declaration on offer, in place of one that was added before. One of a
// file is left alone.
func (s *Service) AddEntry(ctx context.Context, who plane.Principal, d plane.Declaration) (plane.Proposal, error) {
	if !s.o.Policy().Admin(who) {
		return plane.Proposal{}, plane.Errorf(plane.Forbidden, "The registry is the org admins'.")
	}
	var others []string
	for _, r := range s.o.Sources().Registry {
		if r.Name == d.Name && r.AcceptedBy == "" {
			return plane.Proposal{}, plane.Errorf(plane.Conflict, "%s is declared in the registry's file %s.", d.Name, r.From).At("name").Then("Change the file, then patchbay config reload.")
		}
		others = append(others, r.Name)
	}
	if like := looksLike(d.Name, others); like != "" {
		return plane.Proposal{}, plane.Errorf(plane.InvalidInput, "The name %s looks like %s; choose one that nobody takes for it.", d.Name, like).At("name")
	}
	body, err := json.Marshal(d)
	if err != nil {
		return plane.Proposal{}, err
	}
	if found := s.scan.Declaration(&d, string(body), ""); slices.ContainsFunc(found, func(f Finding) bool { return f.Kind == FoundCredential || f.Kind == FoundInvisible }) {
		return plane.Proposal{}, plane.Errorf(plane.InvalidInput, "The declaration holds %s. Nothing was stored.", found[0].What).At("declaration")
	}
	p := plane.Proposal{Declaration: d, Source: SourceOf(who)}
	return p, s.store(ctx, who, &p, Whatever)
}

// RemoveEntry takes an entry that was added off the offer.
func (s *Service) RemoveEntry(ctx context.Context, who plane.Principal, name string) (plane.Declared, error) {
	if !s.o.Policy().Admin(who) {
		return plane.Declared{}, plane.Errorf(plane.Forbidden, "The registry is the org admins'.")
	}
	d, err := s.Entry(name)
	if err != nil {
		return d, err
	}
	if d.AcceptedBy == "" {
		return d, plane.Errorf(plane.Conflict, "%s is declared in the registry's file %s.", name, d.From).At("name").Then("Take the file away, then patchbay config reload.")
	}
	p, err := s.inForce(ctx, "", name)
	if err != nil {
		return d, err
	}
	err = s.o.Store.Write(ctx, func(t plane.Tx) error {
		if err := s.retire(t, who, p); err != nil {
			return err
		}
		return s.o.Store.AddAudit(t, plane.AuditEntry{Who: who.ID, Action: "declaration.forget", What: "registry/" + name, Decision: "allow"})
	})
	if err != nil {
		return d, err
	}
	return d, s.o.Renew(ctx)
}

// maxAttached bounds what is attached to an agent at run time.
const maxAttached = 200

// Attach attaches a registry entry to an agent, or takes it off again; the agent's
// revision rises.
func (s *Service) Attach(ctx context.Context, who plane.Principal, agent, name string, on bool) (plane.Layered, error) {
	a, ok := s.o.Policy().Agent(agent)
	switch {
	case !ok:
		return plane.Layered{}, plane.Errorf(plane.NotFound, "There is no agent %q.", bounded(agent)).At("agent").Then("patchbay agents list")
	case !s.o.Policy().Operator(who, agent):
		return plane.Layered{}, plane.Errorf(plane.Forbidden, "Only the operators of %s may change its servers.", agent)
	}
	if on {
		if _, err := s.Entry(name); err != nil {
			return plane.Layered{}, err
		}
	}
	layers, err := s.o.Store.Layers(ctx)
	if err != nil {
		return plane.Layered{}, err
	}
	out := plane.Layered{Agent: agent}
	for _, l := range layers {
		if l.Agent == agent {
			out = l
		}
	}
	if err := layered(&out, a.Servers, name, on); err != nil {
		return out, err
	}
	out.By = who.ID
	err = s.o.Store.Write(ctx, func(t plane.Tx) error {
		if err := s.o.Store.PutLayer(t, &out); err != nil {
			return err
		}
		action := map[bool]string{true: "agent.attach", false: "agent.detach"}[on]
		return s.o.Store.AddAudit(t, plane.AuditEntry{Who: who.ID, Action: action, What: agent + "/" + name, Decision: "allow"})
	})
	if err != nil {
		return out, err
	}
	return out, s.o.Renew(ctx)
}

// layered puts a name on what was attached at run time, or takes it off.
func layered(l *plane.Layered, servers []string, name string, on bool) error {
	has := slices.Contains(l.Servers, name)
	configured := slices.Contains(servers, name) && !has
	switch {
	case on && (has || configured):
		return plane.Errorf(plane.Conflict, "%s is attached to %s already.", name, l.Agent).At("name")
	case !on && configured:
		return plane.Errorf(plane.Conflict, "%s is attached to %s in patchbay.yaml.", name, l.Agent).At("name").Then("Take it out of agents." + l.Agent + ".servers.")
	case !on && !has:
		return plane.Errorf(plane.NotFound, "%s is not attached to %s.", name, l.Agent).At("name")
	case on && len(l.Servers) >= maxAttached:
		return plane.Errorf(plane.Limited, "%s has %d servers attached, which is the most.", l.Agent, maxAttached)
	case on:
		l.Servers = append(slices.Clone(l.Servers), name)
	default:
		l.Servers = slices.DeleteFunc(slices.Clone(l.Servers), func(n string) bool { return n == name })
	}
	return nil
}

// PutDestination stores a named host that agents' policy may name.
func (s *Service) PutDestination(ctx context.Context, who plane.Principal, d plane.Destination) (plane.Destination, error) {
	if !s.o.Policy().Admin(who) {
		return d, plane.Errorf(plane.Forbidden, "Destinations are the org admins'.")
	}
	if err := CheckDestination(&d); err != nil {
		return d, err
	}
	err := s.o.Store.Write(ctx, func(t plane.Tx) error {
		if err := s.o.Store.PutDestination(t, &d, who.ID); err != nil {
			return err
		}
		return s.o.Store.AddAudit(t, plane.AuditEntry{Who: who.ID, Action: "destination.put", What: d.Name, Decision: "allow"})
	})
	if err != nil {
		return d, err
	}
	return d, s.o.Renew(ctx)
}

// DropDestination takes one away that was made at run time.
func (s *Service) DropDestination(ctx context.Context, who plane.Principal, name string) error {
	if !s.o.Policy().Admin(who) {
		return plane.Errorf(plane.Forbidden, "Destinations are the org admins'.")
	}
	err := s.o.Store.Write(ctx, func(t plane.Tx) error {
		if err := s.o.Store.DropDestination(t, name); err != nil {
			return err
		}
		return s.o.Store.AddAudit(t, plane.AuditEntry{Who: who.ID, Action: "destination.drop", What: name, Decision: "allow"})
	})
	if err != nil {
		return err
	}
	return s.o.Renew(ctx)
}

// Destinations are all there are, in order of names.
func (s *Service) Destinations() []plane.Destination {
	var out []plane.Destination
	for _, d := range s.o.Sources().Destinations {
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b plane.Destination) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// differences tells what a proposal changes of another declaration.
func differences(was, now *plane.Declaration, where string) []string {
	var out []string
	add := func(what, a, b string) {
		if a != b {
			out = append(out, fmt.Sprintf("%s: %s, %s %s", what, or(b, "none"), where, or(a, "none")))
		}
	}
	add("transport", string(was.Transport), string(now.Transport))
	add("url", was.URL, now.URL)
	add("command", strings.Join(append([]string{was.Command}, was.Args...), " "), strings.Join(append([]string{now.Command}, now.Args...), " "))
	add("auth", string(was.Auth), string(now.Auth))
	add("destination", was.Destination, now.Destination)
	add("agents", strings.Join(was.Agents, ", "), strings.Join(now.Agents, ", "))
	add("tools.allow", strings.Join(was.Allow, ", "), strings.Join(now.Allow, ", "))
	add("tools.deny", strings.Join(was.Deny, ", "), strings.Join(now.Deny, ", "))
	return out
}

func or(a, b string) string {
	if strings.TrimSpace(a) == "" {
		return b
	}
	return a
}
