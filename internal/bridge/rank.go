package bridge

import (
	"cmp"
	"math"
	"slices"
)

// found is a tool's place and how well it answers.
type found struct {
	at    int32
	score float32
}

func better(a, b found) int {
	if c := cmp.Compare(b.score, a.score); c != 0 {
		return c
	}
	return cmp.Compare(a.at, b.at)
}

// scratch is what one ranking writes on.
type scratch struct {
	score, cover, gain []float32
	last               []int32 // the word that counted last at a tool
	servers            []float32
	named              map[int32]float32
	touched            []int32
}

func newScratch(docs, servers int) *scratch {
	s := &scratch{score: make([]float32, docs), cover: make([]float32, docs), gain: make([]float32, docs), last: make([]int32, docs),
		servers: make([]float32, servers), named: map[int32]float32{}}
	for i := range s.last {
		s.last[i] = -1
	}
	return s
}

func (s *scratch) reset() {
	for _, at := range s.touched {
		s.score[at], s.cover[at], s.gain[at], s.last[at] = 0, 0, 0, -1
	}
	s.touched = s.touched[:0]
	clear(s.servers)
	clear(s.named)
}

// Bounds of what is looked at closely.
const (
	closely = 60  // candidates that the last step chooses among
	widely  = 200 // and those that the steps of a question add to
)

// Search returns the places of the best tools for a question, best first. A question
// of several steps gives each of them a say, and what one tool answers already counts
// less for the next.
func (x *Index) Search(question string, n int) []int {
	question = plain(question)
	q := x.ask(words(question))
	if len(q) == 0 {
		return nil
	}
	s := x.scratch.Get().(*scratch)
	defer x.scratch.Put(s)
	all := x.rank(s, q, widely)
	if parts := clauses(question); len(parts) >= 2 {
		at := make(map[int32]int, len(all))
		for i, f := range all {
			at[f.at] = i
		}
		for _, p := range parts {
			for k, f := range x.rank(s, x.ask(words(p)), n) {
				i, ok := at[f.at]
				if !ok {
					i = len(all)
					at[f.at] = i
					all = append(all, found{at: f.at})
				}
				all[i].score += f.score * clauseShare / float32(k+1)
			}
		}
		slices.SortFunc(all, better)
	}
	return x.choose(q, all[:min(len(all), closely)], n)
}

// rank scores every tool and returns the best.
func (x *Index) rank(s *scratch, q []asked, n int) []found {
	defer s.reset()
	total := float32(0)
	for w, a := range q {
		total += a.rare
		for _, t := range a.terms {
			s.named[t.term] = max(s.named[t.term], t.weight)
			for _, p := range x.posts[t.term] {
				g := t.rare * t.weight * p.weight
				switch {
				case s.last[p.at] != int32(w):
					if s.last[p.at] < 0 {
						s.touched = append(s.touched, p.at)
					}
					s.last[p.at], s.gain[p.at] = int32(w), g
					s.score[p.at] += g
					s.cover[p.at] += t.rare * t.weight
				case g > s.gain[p.at]: // a word counts once, by the best of its family
					s.score[p.at] += g - s.gain[p.at]
					s.gain[p.at] = g
				}
			}
			r := min(x.srare[t.term], t.rare*1.5) * t.weight
			for _, p := range x.sposts[t.term] {
				s.servers[p.at] += r * p.weight
			}
		}
	}
	most := float32(0)
	for _, v := range s.servers {
		most = max(most, v)
	}
	var top best
	for _, at := range s.touched {
		d := &x.docs[at]
		score := s.score[at] * powers[int(min(s.cover[at]/total, 1)*(len32(powers)-1))]
		if most > 0 {
			score *= 1 + serverPull*s.servers[d.server]/most
		}
		if score*(1+nameShare) <= top.least(n) {
			continue
		}
		if len(d.name) > 0 {
			hit := float32(0)
			for _, t := range d.name {
				hit += s.named[t]
			}
			score *= 1 + nameShare*hit/len32(d.name)
		}
		top.add(found{at, score}, n)
	}
	slices.SortFunc(top.all, better)
	return top.all
}

func len32[T any](s []T) float32 { return float32(len(s)) }

// powers is coverage's exponent, by steps.
var powers = func() []float32 {
	out := make([]float32, 1025)
	for i := range out {
		out[i] = float32(math.Pow(float64(i)/float64(len(out)-1), coverage))
	}
	return out
}()

// best is a heap of the best so far, its worst on top.
type best struct{ all []found }

func (b *best) least(n int) float32 {
	if len(b.all) < n {
		return 0
	}
	return b.all[0].score
}

func (b *best) add(f found, n int) {
	if len(b.all) < n {
		b.all = append(b.all, f)
		for i := len(b.all) - 1; i > 0 && better(b.all[i], b.all[(i-1)/2]) > 0; i = (i - 1) / 2 {
			b.all[i], b.all[(i-1)/2] = b.all[(i-1)/2], b.all[i]
		}
		return
	}
	if better(f, b.all[0]) > 0 {
		return
	}
	b.all[0] = f
	for i := 0; ; {
		c := 2*i + 1
		if c >= len(b.all) {
			return
		}
		if c+1 < len(b.all) && better(b.all[c+1], b.all[c]) > 0 {
			c++
		}
		if better(b.all[c], b.all[i]) <= 0 {
			return
		}
		b.all[i], b.all[c] = b.all[c], b.all[i]
		i = c
	}
}

// choose takes n candidates one after the other; each answers some of the question's
// words, which count a little less from then on.
func (x *Index) choose(q []asked, among []found, n int) []int {
	gains := make([][]float32, len(among))
	most, left := make([]float32, len(q)), make([]float32, len(q))
	for i, f := range among {
		gains[i] = x.gains(f.at, q)
		for w, g := range gains[i] {
			most[w] = max(most[w], g)
		}
	}
	for w := range left {
		left[w] = 1
	}
	taken := make([]bool, len(among))
	var out []int
	for len(out) < min(n, len(among)) {
		pick, score := -1, float32(-1)
		for i, f := range among {
			if taken[i] {
				continue
			}
			var now, whole float32
			for w, g := range gains[i] {
				now, whole = now+g*left[w], whole+g
			}
			s := f.score
			if whole > 0 {
				s *= now / whole
			}
			if s > score {
				pick, score = i, s
			}
		}
		taken[pick] = true
		out = append(out, int(among[pick].at))
		for w, g := range gains[pick] {
			if most[w] > 0 {
				left[w] *= 1 - spread*g/most[w]
			}
		}
	}
	return out
}

// gains is what each word of a question finds at a tool.
func (x *Index) gains(at int32, q []asked) []float32 {
	own := x.docs[at].own
	out := make([]float32, len(q))
	for w, a := range q {
		for _, t := range a.terms {
			i, ok := slices.BinarySearchFunc(own, t.term, func(p posting, term int32) int { return cmp.Compare(p.at, term) })
			if ok {
				out[w] = max(out[w], own[i].weight*x.rare[t.term]*t.weight)
			}
		}
	}
	return out
}
