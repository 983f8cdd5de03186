package registry

import (
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/zricethezav/gitleaks/v8/detect"
	"golang.org/x/net/publicsuffix"

	"patchbay/internal/plane"
	"patchbay/internal/policy"
)

// Kinds of what a scan finds.
const (
	FoundCredential = "credential" // text that looks like one
	FoundLink       = "link"       // to a host that nobody allowed
	FoundTrap       = "trap"       // words that would steer a model
	FoundInvisible  = "invisible"  // characters that people do not see
)

// Finding is one thing that a scan tripped over. It says what kind, and never repeats it.
type Finding struct {
	Kind string
	What string // the rule, in words
}

// Scanner looks through texts that outsiders wrote. The rules for credentials take time
// and memory to build: they are made at the first scan and dropped after a while.
type Scanner struct {
	Links []string // hosts that texts may link to, as api.example.com or *.example.com

	mu   sync.Mutex
	gl   *detect.Detector
	drop *time.Timer
}

// keepRules is how long the rules for credentials stay after a scan.
const keepRules = time.Minute

// maxScan bounds what is looked through of one text.
const maxScan = 256 << 10

// Text looks through one text. Home is an address whose site it may link to.
func (s *Scanner) Text(text, home string) []Finding { return s.text(text, text, home) }

// text is Text with what is searched for links apart.
func (s *Scanner) text(text, linked, home string) []Finding {
	var out []Finding
	if len(text) > maxScan {
		text = text[:maxScan]
	}
	add := func(kind, what string) {
		if f := (Finding{kind, what}); !slices.Contains(out, f) {
			out = append(out, f)
		}
	}
	s.credentials(text, add)
	if invisible(text) {
		add(FoundInvisible, "characters that nobody sees")
	}
	for _, t := range traps {
		if t.re().MatchString(text) {
			add(FoundTrap, t.what)
		}
	}
	for _, raw := range linkRE().FindAllString(linked, 200) {
		if !s.linkable(raw, home) {
			add(FoundLink, "a link to a host that is not on the list")
		}
	}
	return out
}

func (s *Scanner) credentials(text string, add func(kind, what string)) {
	if len(text) < 8 {
		return
	}
	s.mu.Lock()
	if s.gl == nil {
		gl, err := detect.NewDetectorDefaultConfig()
		if err != nil { // the library's own rules always load
			s.mu.Unlock()
			add(FoundCredential, "the rules for credentials do not load")
			return
		}
		s.gl = gl
		s.drop = time.AfterFunc(keepRules, s.forget)
	} else {
		s.drop.Reset(keepRules)
	}
	found := s.gl.DetectString(text)
	s.mu.Unlock()
	for _, f := range found {
		add(FoundCredential, "what looks like a credential ("+f.RuleID+")")
	}
	for _, m := range userInfoRE().FindAllStringSubmatch(text, 50) {
		if !stands(m[1]) {
			add(FoundCredential, "an address with a password in it")
		}
	}
	for _, m := range proseRE().FindAllStringSubmatch(text, 50) {
		if secretLooking(m[2]) {
			add(FoundCredential, "a "+strings.ToLower(m[1])+" in words")
		}
	}
}

func (s *Scanner) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gl = nil
}

var (
	userInfoRE = atFirst(`(?i)\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@"'<>]{0,100}:([^\s/@"'<>]{1,200})@`)
	proseRE    = atFirst(`(?i)\b(password|passwd|passphrase|api[ _-]?key|secret|token)\b\s*(?:is|was|=|:)\s*["'` + "`" + `]?([^\s"'` + "`" + `,;]{6,200})`)
	linkRE     = atFirst(`(?i)\bhttps?://[^\s"'<>()\[\]{}` + "`" + `]{1,500}`)
)

// stands reports that a value only stands for one.
func stands(v string) bool {
	return strings.ContainsAny(v, "<>{}$*[]") || slices.Contains([]string{"password", "pass", "pwd", "secret", "token", "xxx", "changeme"}, strings.ToLower(v))
}

// secretLooking tells a value from a word: letters and digits together.
func secretLooking(v string) bool {
	if stands(v) {
		return false
	}
	var letters, digits, others bool
	for _, c := range v {
		switch {
		case unicode.IsDigit(c):
			digits = true
		case unicode.IsLetter(c):
			letters = true
		case c == '!' || c == '#' || c == '%' || c == '&' || c == '@' || c == '^':
			others = true
		case c == '/' || c == '.' || c == '(':
			return false // a path, a sentence, a call
		}
	}
	return letters && (digits || others)
}

// atFirst compiles an expression when it is first used: together they were a tenth of
// the start of every command.
func atFirst(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// trap is a way of steering a model from a description.
type trap struct {
	what string
	re   func() *regexp.Regexp
}

// traps are what descriptions of tools were seen to do, in the words they do it with.
var traps = []trap{
	{"words that take back earlier instructions", atFirst(`(?i)\b(ignore|disregard|forget|override|bypass)\b[^.\n]{0,40}\b(previous|prior|above|earlier|preceding|system|your|all other)\b[^.\n]{0,30}\b(instruction|prompt|rule|guideline|directive|polic)`)},
	{"words that hide something from people", atFirst(`(?i)\b(do not|don't|dont|never|must not|without)\b[^.\n]{0,25}\b(tell(?:ing)?|mention(?:ing)?|inform(?:ing)?|reveal(?:ing)?|notify(?:ing)?|alert(?:ing)?|disclos(?:e|ing))\b[^.\n]{0,25}\b(user|human|person|operator|anyone|anybody)\b`)},
	{"tags that pose as the host's", atFirst(`(?i)<\s*/?\s*(important|system|secret|instructions?|hidden|admin|critical|system-reminder)\s*>`)},
	{"a file where secrets rest", atFirst(`(?i)(~/\.ssh\b|\bid_rsa\b|\bid_ed25519\b|\.aws/credentials|\.cursor/mcp\.json|\.netrc\b|/etc/shadow\b|\.git-credentials)`)},
	{"words that order another tool's use", atFirst(`(?i)\b(before|prior to|instead of|whenever)\b[^.\n]{0,30}\b(using|calling|invoking|you use|you call|executing)\b[^.\n]{0,20}\b(any|every|all|other|another)\b[^.\n]{0,20}\btools?\b[^.\n]{0,60}\b(must|always|first|required)\b`)},
	{"words that ask for the conversation", atFirst(`(?i)\b(pass|send|include|put|provide|append|forward|copy)\b[^.\n]{0,40}\b(entire|full|whole|complete|all)\b[^.\n]{0,20}\b(conversation|chat|system prompt|message history|context window)\b`)},
	{"text in an encoding that only machines read", atFirst(`(?i)\b(base64|rot13|hex)[- ]?(decode|encoded)\b[^.\n]{0,60}\b(follow|execute|obey|run)\b`)},
}

// invisible reports characters that change what is read without being seen: tags,
// zero-width and bidirectional controls (field case F223).
func invisible(s string) bool {
	var before rune
	for _, c := range s {
		switch {
		case c >= 0xE0000 && c <= 0xE0FFF, c >= 0xFFF9 && c <= 0xFFFB:
			return true
		case c == 0x200D && before > 0x2000: // joins the parts of an emoji
		case unicode.Is(unicode.Cf, c):
			return true
		case c < 0x20 && c != '\n' && c != '\t' && c != '\r', c >= 0x7f && c < 0xa0:
			return true
		}
		before = c
	}
	return false
}

// linkable reports whether a text at home may link there.
func (s *Scanner) linkable(raw, home string) bool {
	u, err := url.Parse(strings.TrimRight(raw, ".,;:!?"))
	if err != nil {
		return false
	}
	host := strings.ToLower(u.Hostname())
	if host == "" || placeholderHost(host) {
		return true // links nowhere
	}
	if h, err := url.Parse(home); err == nil && h.Hostname() != "" && site(h.Hostname()) == site(host) {
		return true
	}
	return slices.ContainsFunc(s.Links, func(p string) bool { return policy.HostMatches(p, host) })
}

// placeholderHost reports a host that stands for one in documentation (RFC 2606, 6761).
func placeholderHost(host string) bool {
	for _, end := range []string{"example.com", "example.org", "example.net", ".example", "localhost", ".test", ".invalid"} {
		if host == strings.TrimPrefix(end, ".") || strings.HasSuffix(host, "."+strings.TrimPrefix(end, ".")) {
			return true
		}
	}
	return host == "127.0.0.1"
}

func site(host string) string {
	if s, err := publicsuffix.EffectiveTLDPlusOne(host); err == nil {
		return s
	}
	return host
}

// Declaration looks through all of a declaration as it reads, as it was written, and what
// was said with it.
func (s *Scanner) Declaration(d *plane.Declaration, body, why string) []Finding {
	var out []Finding
	read := slices.Concat([]string{d.Name, d.URL, d.Command, d.Description, d.Icon, d.Link, d.Destination}, d.Args, d.Agents, d.Allow, d.Deny, slices.Sorted(maps.Keys(d.Env)))
	for _, t := range []string{strings.Join(read, "\n"), body, why} {
		for _, f := range s.text(t, withoutAddress(t, d.URL), d.URL) {
			if !slices.Contains(out, f) {
				out = append(out, f)
			}
		}
	}
	return out
}

// withoutAddress leaves the server's own address out: that is what is asked for, and no
// link in the text.
func withoutAddress(text, address string) string {
	if address == "" {
		return text
	}
	return strings.ReplaceAll(text, address, "")
}

// defaultLinks are hosts that texts may link to without a word of config.
var defaultLinks = []string{"github.com", "*.github.com", "gitlab.com", "modelcontextprotocol.io", "*.modelcontextprotocol.io"}

// UsualLinks are the hosts that texts may link to without a word of config.
func UsualLinks() []string { return slices.Clone(defaultLinks) }

// looksLike finds a name that differs from another only in characters that people take
// for one another.
func looksLike(name string, others []string) string {
	for _, o := range others {
		if o != name && skeleton(o) == skeleton(name) {
			return o
		}
	}
	return ""
}

var lookAlikes = strings.NewReplacer("rn", "m", "vv", "w", "cl", "d", "0", "o", "1", "l", "i", "l", "5", "s", "8", "b", "2", "z", "-", "")

func skeleton(name string) string { return lookAlikes.Replace(strings.ToLower(name)) }
