package bridge

import (
	"context"
	"crypto/sha256"
	"math"
	"slices"
	"sync"
	"time"
)

// Embedder turns texts into vectors: whoever runs one has tools found by meaning too.
type Embedder interface {
	Embed(ctx context.Context, texts []string) ([][]float32, error)
}

// vectors keeps what tools mean, by what they say of themselves. They are fetched
// behind: until they are there, and whenever the endpoint fails, words alone decide.
type vectors struct {
	mu    sync.Mutex
	by    map[[32]byte][]float32
	busy  bool
	after time.Time // a failed endpoint is left alone until then
}

const (
	maxVectors   = 20_000
	embedBatch   = 64
	embedTime    = 2 * time.Second // for a question
	embedBehind  = 30 * time.Second
	embedBackoff = time.Minute
	fusion       = 60 // of reciprocal rank fusion: how little a place more matters
)

func keyOf(text string) [32]byte { return sha256.Sum256([]byte(text)) }

// rank orders places by meaning, or returns nothing where it cannot.
func (v *vectors) rank(ctx context.Context, e Embedder, question string, texts []string) []int {
	v.mu.Lock()
	var missing []string
	have := make([][]float32, len(texts))
	for i, t := range texts {
		if have[i] = v.by[keyOf(t)]; have[i] == nil {
			missing = append(missing, t)
		}
	}
	now := time.Now()
	start := len(missing) > 0 && !v.busy && now.After(v.after)
	v.busy = v.busy || start
	rest := now.Before(v.after)
	v.mu.Unlock()
	if start {
		go v.fetch(context.WithoutCancel(ctx), e, missing)
	}
	if rest || len(missing) == len(texts) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, embedTime)
	defer cancel()
	got, err := e.Embed(ctx, []string{question})
	if err != nil || len(got) != 1 {
		v.fail()
		return nil
	}
	type near struct {
		at  int
		cos float64
	}
	var all []near
	for i, x := range have {
		if len(x) == len(got[0]) {
			all = append(all, near{i, cosine(got[0], x)})
		}
	}
	slices.SortStableFunc(all, func(a, b near) int {
		switch {
		case a.cos > b.cos:
			return -1
		case a.cos < b.cos:
			return 1
		}
		return 0
	})
	out := make([]int, 0, min(len(all), closely))
	for _, n := range all[:min(len(all), closely)] {
		out = append(out, n.at)
	}
	return out
}

func (v *vectors) fail() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.after = time.Now().Add(embedBackoff)
}

// fetch gets what is missing, batch by batch.
func (v *vectors) fetch(ctx context.Context, e Embedder, texts []string) {
	defer func() {
		v.mu.Lock()
		v.busy = false
		v.mu.Unlock()
	}()
	for batch := range slices.Chunk(texts, embedBatch) {
		ctx, cancel := context.WithTimeout(ctx, embedBehind)
		got, err := e.Embed(ctx, batch)
		cancel()
		if err != nil || len(got) != len(batch) {
			v.fail()
			return
		}
		v.mu.Lock()
		if v.by == nil || len(v.by)+len(batch) > maxVectors {
			v.by = map[[32]byte][]float32{}
		}
		for i, t := range batch {
			v.by[keyOf(t)] = got[i]
		}
		v.mu.Unlock()
	}
}

func cosine(a, b []float32) float64 {
	var dot, aa, bb float64
	for i := range a {
		dot, aa, bb = dot+float64(a[i])*float64(b[i]), aa+float64(a[i])*float64(a[i]), bb+float64(b[i])*float64(b[i])
	}
	if aa == 0 || bb == 0 {
		return 0
	}
	return dot / math.Sqrt(aa*bb)
}

// fuse joins two orders: what stands high in either stands high.
func fuse(n int, orders ...[]int) []int {
	score := map[int]float64{}
	var all []int
	for _, o := range orders {
		for i, at := range o {
			if _, seen := score[at]; !seen {
				all = append(all, at)
			}
			score[at] += 1 / float64(fusion+i)
		}
	}
	slices.SortStableFunc(all, func(a, b int) int {
		switch {
		case score[a] > score[b]:
			return -1
		case score[a] < score[b]:
			return 1
		}
		return 0
	})
	return all[:min(n, len(all))]
}
