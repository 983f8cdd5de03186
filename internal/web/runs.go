package web

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/a-h/templ"

	"patchbay/internal/command"
	"patchbay/internal/plane"
)

// pageRuns is how many runs, and calls, a page lists; maxUnknown how many of those that
// nobody knows about are asked for one by one.
const (
	pageRuns   = 100
	maxUnknown = 20
)

func (p *Pages) runPages() {
	p.page("/runs", pageDef{at: "/runs", show: func(v *visit) (templ.Component, error) {
		v.title = "Runs"
		q := runsFilter{strings.TrimSpace(v.r.URL.Query().Get("agent")), v.r.URL.Query().Get("state")}
		l, err := ask[command.RunsList](v, "runs.list", &command.RunsListInput{Agent: q.agent, State: q.state, Limit: pageRuns, Before: v.r.URL.Query().Get("before")})
		if err != nil {
			return nil, err
		}
		return runsPage(v, l, q), nil
	}})
	p.page("/runs/{id}", pageDef{at: "/runs", show: showRun, act: func(v *visit, f url.Values) (string, string, error) {
		id := v.r.PathValue("id")
		if f.Get("do") != "cancel" {
			return "", "", unknownForm()
		}
		return "The run is cancelled.", "/runs/" + id, do(v, "runs.cancel", &command.RunInput{Run: id})
	}})
	p.page("/calls", pageDef{at: "/calls", show: showCalls})
	p.page("/calls/{id}", pageDef{at: "/calls", show: func(v *visit) (templ.Component, error) {
		c, err := ask[command.CallRow](v, "calls.show", &command.CallInput{ID: v.r.PathValue("id")})
		if err != nil {
			return nil, err
		}
		v.title = c.Tool
		return callPage(v, c), nil
	}, act: resolve})
	p.page("/approvals", pageDef{at: "/approvals", show: showApprovals, act: func(v *visit, f url.Values) (string, string, error) {
		if f.Get("do") == "forget-rule" {
			return "The rule is gone: the tool asks again.", "/approvals", do(v, "rules.remove", &command.RuleInput{ID: f.Get("id")})
		}
		in := &command.DecideInput{ID: f.Get("id"), Decision: f.Get("answer"), Note: f.Get("note")}
		words := map[string]string{"approve": "The call may pass, once.", "deny": "The call is denied.", "always-allow": "The call may pass, and every later one of this agent, as long as the tool's definition stays."}
		if words[in.Decision] == "" {
			return "", "", unknownForm()
		}
		a, err := ask[command.ApprovalRow](v, "approvals.show", &command.ApprovalInput{ID: in.ID})
		if err != nil {
			return "", "", err
		}
		if a.Digest != f.Get("digest") {
			return "", "", plane.Errorf(plane.Conflict, "The form is about other arguments than the call's. Look at it again.")
		}
		return words[in.Decision], "/approvals", do(v, "approvals.decide", in)
	}})
}

func unknownForm() error {
	return plane.Errorf(plane.InvalidInput, "The form asks for nothing that is known.")
}

func showRun(v *visit) (templ.Component, error) {
	q := v.r.URL.Query()
	s, err := ask[command.RunsShow](v, "runs.show", &command.RunsShowInput{RunInput: command.RunInput{Run: v.r.PathValue("id")}, Evidence: q.Get("evidence") != ""})
	if err != nil {
		return nil, err
	}
	v.title = short(s.Run.Prompt, 60)
	whole(v, s.Calls)
	return runPage(v, s, q.Get("steps") == "failed"), nil
}

// whole fills in what was asked for by calls that nobody knows the end of: a person who has
// to look there must know what for.
func whole(v *visit, calls []command.CallRow) {
	for i, n := 0, 0; i < len(calls) && n < maxUnknown; i++ {
		if calls[i].State != string(plane.CallUnknown) {
			continue
		}
		n++
		if c, err := ask[command.CallRow](v, "calls.show", &command.CallInput{ID: calls[i].ID}); err == nil {
			calls[i] = *c
		}
	}
}

// stepSays is the small print of a step.
func stepSays(st command.Step) string {
	if st.Detail == "" {
		return st.Kind
	}
	return st.Kind + ", " + visible(short(st.Detail, 200))
}

// resolve says what became of an unknown call.
func resolve(v *visit, f url.Values) (string, string, error) {
	words := map[string]string{"done": "The call is settled as done.", "not-done": "The call is settled as not done.", "send-again": "A new call takes its place; its page says what becomes of it."}
	outcome := f.Get("outcome")
	if words[outcome] == "" {
		return "", "", plane.Errorf(plane.InvalidInput, "Say what happened: done, not done, or send again.")
	}
	id := v.r.PathValue("id")
	c, err := ask[command.CallRow](v, "calls.show", &command.CallInput{ID: id})
	if err != nil {
		return "", "", err
	}
	to := "/calls/" + id
	if outcome == "send-again" && plane.IsRunID(c.Run) {
		to = "/runs/" + c.Run // where the new call is
	}
	return words[outcome], to, do(v, "runs.resolve", &command.ResolveInput{ID: id, Outcome: outcome, Note: f.Get("note")})
}

type runsFilter struct{ agent, state string }

type callsFilter struct{ agent, server, state string }

func showCalls(v *visit) (templ.Component, error) {
	v.title = "Calls"
	q := callsFilter{strings.TrimSpace(v.r.URL.Query().Get("agent")), strings.TrimSpace(v.r.URL.Query().Get("server")), v.r.URL.Query().Get("state")}
	before := v.r.URL.Query().Get("before")
	unknown := &command.CallsList{}
	if before == "" {
		var err error
		if unknown, err = ask[command.CallsList](v, "calls.list", &command.CallsListInput{Unknown: true, Limit: maxUnknown}); err != nil {
			return nil, err
		}
	}
	all, err := ask[command.CallsList](v, "calls.list", &command.CallsListInput{Agent: q.agent, Server: q.server, State: q.state, Limit: pageRuns, Before: before})
	if err != nil {
		return nil, err
	}
	whole(v, unknown.Calls)
	return callsPage(v, unknown.Calls, all.Calls, q), nil
}

func showApprovals(v *visit) (templ.Component, error) {
	v.title = "Approvals"
	all := v.r.URL.Query().Get("all") != ""
	l, err := ask[command.ApprovalsList](v, "approvals.list", &command.ApprovalsListInput{All: all, Limit: pageRuns})
	if err != nil {
		return nil, err
	}
	for i := range l.Approvals { // what would be sent is shown of one at a time
		if l.Approvals[i].State == string(plane.ApprovalPending) {
			if one, err := ask[command.ApprovalRow](v, "approvals.show", &command.ApprovalInput{ID: l.Approvals[i].ID}); err == nil {
				l.Approvals[i] = *one
			}
		}
	}
	rules, err := ask[command.RulesList](v, "rules.list", &command.RulesListInput{})
	if err != nil {
		return nil, err
	}
	return approvalsPage(v, l, rules.Rules, all), nil
}

// steps are a run's, all or those that failed.
func steps(s *command.RunsShow, failed bool) []command.Step {
	if !failed {
		return s.Steps
	}
	var out []command.Step
	for _, st := range s.Steps {
		if !st.OK {
			out = append(out, st)
		}
	}
	return out
}

// runSeconds is how long the timeline is.
func runSeconds(s *command.RunsShow) float64 {
	total := 0.001
	for _, st := range s.Steps {
		total = max(total, st.Start+st.Seconds)
	}
	return total
}

func percent(part, total float64) string {
	return strconv.FormatFloat(min(max(100*part/total, 0), 100), 'f', 2, 64)
}

func seconds(s float64) string { return lasted(time.Duration(s * float64(time.Second))) }

// live are what has a run's page follow it, until it has ended.
func live(v *visit, s *command.RunsShow) templ.Attributes {
	if !s.Run.EndedAt.IsZero() {
		return templ.Attributes{"data-live": true}
	}
	return templ.Attributes{"data-live": true, "hx-ext": "sse", "sse-connect": fmt.Sprintf("/api/runs/%s/events?after=%d", s.Run.ID, s.Last),
		"hx-get": v.r.URL.RequestURI(), "hx-select": "#live", "hx-swap": "outerHTML", "hx-trigger": "sse:message throttle:400ms"}
}

func lastRun(l []command.RunRow) string {
	if len(l) == 0 {
		return ""
	}
	return l[len(l)-1].ID
}

func lastCall(l []command.CallRow) string {
	if len(l) == 0 {
		return ""
	}
	return l[len(l)-1].ID
}

func sentAt(c command.CallRow) time.Time {
	if len(c.Attempts) > 0 {
		return c.Attempts[len(c.Attempts)-1].At
	}
	return c.PlannedAt
}

func took(c command.CallRow) string {
	if c.DoneAt.IsZero() {
		return "–"
	}
	return lasted(c.DoneAt.Sub(c.PlannedAt))
}

func attemptTook(a command.Attempt) string {
	if a.DoneAt.IsZero() {
		return "–"
	}
	return lasted(a.DoneAt.Sub(a.At))
}

func isRun(id string) bool { return plane.IsRunID(id) }

func approvalState(s string) string {
	if s == string(plane.ApprovalPending) {
		return "awaiting_approval"
	}
	return s
}

// short cuts a text for a cell, on a rune's boundary.
func short(s string, most int) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}

func joined(list []string) string { return strings.Join(list, ", ") }

func number(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func size(n int) string {
	switch {
	case n == 0:
		return "0"
	case n < 10_000:
		return number(n) + " bytes"
	case n < 10<<20:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d MiB", n>>20)
}

func pressed(on bool) string { return strconv.FormatBool(on) }
