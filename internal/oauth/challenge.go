package oauth

import "strings"

// Challenge is what a WWW-Authenticate header asks for (RFC 9110 §11.6.1).
type Challenge struct {
	Scheme string // lower case
	Params map[string][]string
}

// ParseChallenges reads the values of WWW-Authenticate. Parameters that stand
// twice are kept in order (field case F005); values may be quoted or bare.
func ParseChallenges(values []string) []Challenge {
	var out []Challenge
	for _, v := range values {
		p := &challengeReader{s: v}
		for {
			p.skip()
			word := p.token()
			if word == "" {
				break
			}
			if p.peek() == '=' && len(out) > 0 {
				last := &out[len(out)-1]
				p.i++
				name := strings.ToLower(word)
				last.Params[name] = append(last.Params[name], p.value())
				continue
			}
			out = append(out, Challenge{Scheme: strings.ToLower(word), Params: map[string][]string{}})
			if len(out) > 16 {
				return out
			}
		}
	}
	return out
}

type challengeReader struct {
	s string
	i int
}

func (p *challengeReader) skip() {
	for p.i < len(p.s) && strings.IndexByte(" \t,", p.s[p.i]) >= 0 {
		p.i++
	}
}

// peek is the next byte after white space, or 0.
func (p *challengeReader) peek() byte {
	j := p.i
	for j < len(p.s) && (p.s[j] == ' ' || p.s[j] == '\t') {
		j++
	}
	if j < len(p.s) && p.s[j] == '=' {
		p.i = j
		return '='
	}
	return 0
}

func (p *challengeReader) token() string {
	const signs = " \t,=\""
	for p.i < len(p.s) && strings.IndexByte(signs, p.s[p.i]) >= 0 {
		p.i++ // stray signs
	}
	from := p.i
	for p.i < len(p.s) && strings.IndexByte(signs, p.s[p.i]) < 0 {
		p.i++
	}
	return p.s[from:p.i]
}

func (p *challengeReader) value() string {
	for p.i < len(p.s) && (p.s[p.i] == ' ' || p.s[p.i] == '\t') {
		p.i++
	}
	if p.i >= len(p.s) || p.s[p.i] != '"' {
		from := p.i
		for p.i < len(p.s) && p.s[p.i] != ',' && p.s[p.i] != ' ' && p.s[p.i] != '\t' {
			p.i++
		}
		return p.s[from:p.i]
	}
	var b strings.Builder
	for p.i++; p.i < len(p.s) && p.s[p.i] != '"'; p.i++ {
		if p.s[p.i] == '\\' && p.i+1 < len(p.s) {
			p.i++
		}
		b.WriteByte(p.s[p.i])
	}
	p.i = min(p.i+1, len(p.s)) // a quote that is never closed ends with the value
	return b.String()
}

// Hint is what the Bearer challenges of an answer say.
type Hint struct {
	Metadata []string // resource_metadata, in order
	Scope    string
	Error    string
}

// ReadHint gathers the parameters that matter here.
func ReadHint(values []string) Hint {
	var h Hint
	for _, c := range ParseChallenges(values) {
		if c.Scheme != "bearer" && c.Scheme != "dpop" {
			continue
		}
		h.Metadata = append(h.Metadata, c.Params["resource_metadata"]...)
		if s := c.Params["scope"]; len(s) > 0 && h.Scope == "" {
			h.Scope = strings.Join(strings.Fields(s[0]), " ")
		}
		if e := c.Params["error"]; len(e) > 0 && h.Error == "" {
			h.Error = code(e[0])
		}
	}
	if len(h.Metadata) > 4 {
		h.Metadata = h.Metadata[:4]
	}
	return h
}
