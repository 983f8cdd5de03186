package bridge

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"sync"
)

// Index ranks tools by the words of a question. It is immutable, and safe for
// concurrent use.
type Index struct {
	terms   map[string]int32
	posts   [][]posting // by term: the tools it stands in
	rare    []float32   // how much a term tells
	docs    []indexed
	servers int
	sposts  [][]posting // by term: the servers it stands for
	srare   []float32
	near    map[byte][]string // terms by first letter, for typing errors
	scratch sync.Pool
}

// indexed is one tool of an index.
type indexed struct {
	server int32
	name   []int32   // terms of its name
	own    []posting // its terms and their weights, by term
}

// posting is a place, or a term, and how much the term says there.
type posting struct {
	at     int32
	weight float32
}

// How much a word counts by where it stands, and how the parts of a rank weigh.
// Found on a part of a public set of tools and questions; round, because nothing
// finer holds elsewhere.
const (
	inName   = 2.0
	inServer = 4.5
	inText   = 1.0
	inArg    = 0.5
	inArgDoc = 1.5

	serverName  = 3.0 // of a server's own words
	serverAbout = 1.0
	serverTool  = 0.6
	serverText  = 0.1

	saturation       = 6.0  // of a word that stands often
	serverSaturation = 2.0  // the same for servers
	lengthShare      = 0.2  // how much a long description costs
	kinship          = 0.75 // a word of the same family, against the word itself
	kinRarity        = 1.2  // and how much rarer it may count
	coverage         = 0.4  // exponent: tools that answer more of the question
	nameShare        = 1.0  // tools whose whole name was asked for
	serverPull       = 1.5  // tools of the server that the question is about
	clauseShare      = 0.75 // what a step's best tool gains
	spread           = 0.12 // how much an answered word loses for the next tool
	unknownRarity    = 3.0  // a word that stands nowhere
)

// Segment is one server's part of an index, prepared when its catalog changes.
type Segment struct {
	docs    []segmentDoc
	about   map[string]float64
	lengths float64
}

type segmentDoc struct {
	terms  map[string]float64
	name   []string
	length float64
}

// Entry is a tool to be found.
type Entry struct {
	Name, Description string
	InputSchema       json.RawMessage
}

// NewSegment prepares a server's tools; about is what it says of itself.
func NewSegment(server, about string, entries []Entry) *Segment {
	s := &Segment{docs: make([]segmentDoc, len(entries)), about: map[string]float64{}}
	own, said := words(server), words(about)
	count(s.about, own, serverName)
	count(s.about, said, serverAbout)

	for i, e := range entries {
		d := segmentDoc{terms: map[string]float64{}, name: words(e.Name)}
		text := words(e.Description)
		count(d.terms, d.name, inName)
		count(d.terms, own, inServer)
		count(d.terms, text, inText)
		count(d.terms, said, 0) // answers a word without ranking by it
		for name, described := range arguments(e.InputSchema) {
			count(d.terms, words(name), inArg)
			count(d.terms, words(described), inArgDoc)
		}
		count(s.about, d.name, serverTool)
		count(s.about, text, serverText)
		d.length = float64(len(d.name) + len(text))
		s.lengths += d.length
		s.docs[i] = d
	}
	return s
}

func count(m map[string]float64, ws []string, weight float64) {
	for _, w := range ws {
		m[w] += weight
	}
}

// arguments are the names of a schema's properties with what is said of them.
func arguments(schema json.RawMessage) map[string]string {
	var s struct {
		Properties map[string]struct {
			Description string `json:"description"`
		} `json:"properties"`
	}
	if json.Unmarshal(schema, &s) != nil {
		return nil
	}
	out := make(map[string]string, len(s.Properties))
	for n, p := range s.Properties {
		out[n] = p.Description
	}
	return out
}

// NewIndex joins segments. A tool's place is its number in the order of segments.
func NewIndex(segments []*Segment) *Index {
	x := &Index{terms: map[string]int32{}, near: map[byte][]string{}, servers: len(segments)}
	total, length := 0, 0.0
	for _, s := range segments {
		total, length = total+len(s.docs), length+s.lengths
	}
	mean := max(length/float64(max(total, 1)), 1)
	x.docs = make([]indexed, 0, total)
	for si, s := range segments {
		for w, tf := range s.about {
			t := x.term(w)
			x.sposts[t] = append(x.sposts[t], posting{int32(si), float32(tf / (tf + serverSaturation))})
		}
		for i := range s.docs {
			d := &s.docs[i]
			at := int32(len(x.docs))
			n := indexed{server: int32(si), own: make([]posting, 0, len(d.terms))}
			norm := 1 - lengthShare + lengthShare*d.length/mean
			for w, tf := range d.terms {
				t := x.term(w)
				tf /= norm
				weight := float32(tf / (tf + saturation))
				x.posts[t] = append(x.posts[t], posting{at, weight})
				n.own = append(n.own, posting{t, weight})
			}
			for _, w := range d.name {
				n.name = append(n.name, x.terms[w])
			}
			slices.SortFunc(n.own, func(a, b posting) int { return cmp.Compare(a.at, b.at) })
			x.docs = append(x.docs, n)
		}
	}
	x.rare, x.srare = rarity(x.posts, total), rarity(x.sposts, len(segments))
	for _, ws := range x.near {
		slices.Sort(ws)
	}
	x.scratch.New = func() any { return newScratch(len(x.docs), len(segments)) }
	return x
}

func (x *Index) term(w string) int32 {
	t, ok := x.terms[w]
	if !ok {
		t = int32(len(x.posts))
		x.terms[w] = t
		x.posts, x.sposts = append(x.posts, nil), append(x.sposts, nil)
		if len(w) >= 4 {
			x.near[w[0]] = append(x.near[w[0]], w)
		}
	}
	return t
}

func rarity(posts [][]posting, n int) []float32 {
	out := make([]float32, len(posts))
	for t, p := range posts {
		if len(p) > 0 {
			out[t] = float32(math.Log(1 + (float64(n)-float64(len(p))+0.5)/(float64(len(p))+0.5)))
		}
	}
	return out
}

// asked is one word of a question, with its family.
type asked struct {
	rare  float32
	terms []askedTerm // the word itself first, where it stands anywhere
}

type askedTerm struct {
	term         int32
	weight, rare float32
}

// ask looks a question's words up, each once.
func (x *Index) ask(ws []string) []asked {
	var out []asked
	seen := map[string]bool{}
	guesses := 0
	for _, w := range ws {
		if seen[w] {
			continue
		}
		seen[w] = true
		a := asked{rare: unknownRarity}
		t, known := x.terms[w]
		if known = known && x.rare[t] > 0; !known && guesses < maxGuesses {
			guesses++
			if near := x.meant(w); near != "" {
				w, t, known = near, x.terms[near], true
			}
		}
		if known {
			a.rare = x.rare[t]
			a.terms = append(a.terms, askedTerm{t, 1, a.rare})
		}
		for _, k := range kin[w] {
			if t, ok := x.terms[k]; ok && x.rare[t] > 0 {
				a.terms = append(a.terms, askedTerm{t, kinship, min(x.rare[t], a.rare*kinRarity)})
			}
		}
		if out = append(out, a); len(out) == maxAsked {
			break
		}
	}
	return out
}

// Bounds of one question.
const (
	maxAsked   = 64 // words
	maxGuesses = 4  // words that stand nowhere and may be typing errors
)

// meant is the commonest word that differs from w by one typing error.
func (x *Index) meant(w string) string {
	if len(w) < 5 {
		return ""
	}
	best, most := "", 0
	for _, v := range x.near[w[0]] {
		if d := len(v) - len(w); d < -1 || d > 1 || !oneError(v, w) {
			continue
		}
		if n := len(x.posts[x.terms[v]]); n > most {
			best, most = v, n
		}
	}
	return best
}

// oneError reports that a and b differ by one letter too many, too few or another,
// or by two that changed places.
func oneError(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	i := 0
	for i < len(a) && a[i] == b[i] {
		i++
	}
	if len(a) == len(b) {
		return i == len(a) || a[i+1:] == b[i+1:] || i+1 < len(a) && a[i] == b[i+1] && a[i+1] == b[i] && a[i+2:] == b[i+2:]
	}
	return a[i:] == b[i+1:]
}
