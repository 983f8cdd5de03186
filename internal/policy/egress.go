package policy

import (
	"net"
	"path"
	"slices"
	"strconv"
	"strings"

	"patchbay/internal/plane"
)

// EgressRequest is one request that an agent sends by itself, through the credential
// gateway. Host is without a port.
type EgressRequest struct {
	Agent, Host  string
	Scheme       string // https or http
	Port         int
	Method, Path string // empty before anything is known but the host
	Only         string // a destination, where no other may be used; empty for any
}

// EgressGrant is a decision that lets one request out, to one destination's host and port.
// Only DecideEgress makes one; the zero value opens nothing.
type EgressGrant struct {
	dest   *plane.Destination
	scheme string
	host   string
	port   int
	team   string
	conn   *Grant // whose credential is lent, where the destination names a connection
}

// Valid reports whether DecideEgress made the grant.
func (g EgressGrant) Valid() bool { return g.dest != nil }

// Destination is the named host that the request goes to. It must not be changed.
func (g EgressGrant) Destination() *plane.Destination { return g.dest }

// Address is where the request is dialled, host and port.
func (g EgressGrant) Address() string { return net.JoinHostPort(g.host, strconv.Itoa(g.port)) }

// Host is the host that is dialled.
func (g EgressGrant) Host() string { return g.host }

// Port is the port of Host.
func (g EgressGrant) Port() int { return g.port }

// Team is whose secrets are lent; empty for the organisation's.
func (g EgressGrant) Team() string { return g.team }

// Connection is the grant of the connection whose credential is lent, if one is named.
func (g EgressGrant) Connection() (Grant, bool) {
	if g.conn == nil {
		return Grant{}, false
	}
	return *g.conn, true
}

// Admits reports whether a request by that scheme to that host and port is what was
// granted.
func (g EgressGrant) Admits(scheme, host string, port int) bool {
	return g.dest != nil && scheme == g.scheme && host == g.host && port == g.port
}

// Reaches lists what an agent may reach by name when it works for p. It is the snapshot's
// own.
func (s *Snapshot) Reaches(agent string, p plane.Principal) []plane.Destination {
	if list, ok := s.reach[plane.AgentTeam{Agent: agent, Team: s.teamOf(agent, p)}]; ok {
		return list
	}
	return s.reach[plane.AgentTeam{Agent: agent}]
}

// teamOf is the team that the caller works for, if it is theirs.
func (s *Snapshot) teamOf(agent string, p plane.Principal) string {
	if p.Team == "" || !s.reaches(plane.Scope{Kind: plane.ScopeTeam, Name: p.Team}, agent, p) {
		return ""
	}
	return p.Team
}

// DecideEgress decides about one request of an agent: by the destinations of its policy,
// the first that admits it, in order of their names. Everything else is refused.
func (s *Snapshot) DecideEgress(p plane.Principal, r EgressRequest) (EgressGrant, *Denial) {
	no := func(reason, next string) (EgressGrant, *Denial) {
		return EgressGrant{}, &Denial{Kind: plane.Forbidden, Reason: reason, Next: next}
	}
	switch {
	case p.Kind != plane.KindAgent || p.Agent != r.Agent:
		return no("The credential gateway takes agent tokens.", "patchbay tokens create gateway --agent "+r.Agent)
	case s.agents[r.Agent].Slug == "":
		return no("There is no agent "+r.Agent+".", "patchbay agents list")
	}
	why := ""
	list := s.Reaches(r.Agent, p)
	for i := range list {
		d := &list[i]
		if r.Only != "" && d.Name != r.Only || d.Port != r.Port || !slices.ContainsFunc(d.Hosts, func(h string) bool { return HostMatches(h, r.Host) }) {
			continue
		}
		switch {
		case r.Method == "": // only the host is known yet
		case len(d.Methods) > 0 && !slices.Contains(d.Methods, r.Method):
			why = "the destination " + d.Name + " does not take " + r.Method
			continue
		case len(d.Paths) > 0 && !slices.ContainsFunc(d.Paths, func(g string) bool { return plane.Glob(g, r.Path) }):
			why = "the destination " + d.Name + " does not take that path"
			continue
		}
		g := EgressGrant{dest: d, scheme: r.Scheme, host: r.Host, port: r.Port, team: s.teamOf(r.Agent, p)}
		if id, ok := strings.CutPrefix(d.Secret, "connection:"); ok {
			conn, denial := s.Decide(p, Call, Resource{Agent: r.Agent, Connection: plane.ConnectionID(id)})
			if denial != nil {
				return EgressGrant{}, &Denial{Kind: denial.Kind, Reason: "The destination " + d.Name + " is signed in by a connection that cannot be used: " + denial.Reason, Next: denial.Next}
			}
			g.conn = &conn
		}
		return g, nil
	}
	if why != "" {
		return no(r.Agent+" may not send that: "+why+".", "patchbay destinations list")
	}
	return no(r.Agent+" may not reach "+net.JoinHostPort(r.Host, strconv.Itoa(r.Port))+": no destination of its policy is there.", "patchbay destinations list")
}

// HostMatches compares a host with an exact one, or with *.suffix for any host below it.
func HostMatches(pattern, host string) bool {
	pattern, host = strings.ToLower(pattern), strings.ToLower(host)
	if suffix, ok := strings.CutPrefix(pattern, "*."); ok {
		head, under := strings.CutSuffix(host, "."+suffix)
		return under && head != ""
	}
	return pattern == host
}

// CleanPath reports that a path means the same to everybody who reads it: no dot segments,
// no backslash, nothing encoded that would become one of them or a slash.
func CleanPath(escaped, decoded string) bool {
	if decoded == "" || decoded[0] != '/' || strings.ContainsAny(decoded, "\\\x00") || strings.ContainsFunc(decoded, func(r rune) bool { return r < 0x20 || r == 0x7f }) {
		return false
	}
	if strings.ContainsAny(escaped, "#\\") {
		return false
	}
	low := strings.ToLower(escaped)
	if strings.Contains(low, "%2f") || strings.Contains(low, "%5c") || strings.Contains(low, "%00") || strings.Contains(low, "%2e") || strings.Contains(low, "%25") {
		return false
	}
	clean := path.Clean(decoded)
	if strings.HasSuffix(decoded, "/") && clean != "/" {
		clean += "/"
	}
	return clean == decoded
}
