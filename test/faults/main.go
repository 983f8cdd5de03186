// Command faults plays random schedules of kills, pauses, lost connections and slow
// answers against real processes on SQLite and on PostgreSQL with two replicas, and
// counts what a server at the other end executed. It prints one line a figure.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"patchbay/bench/figures"
	"patchbay/internal/fake"
)

func main() {
	bin := flag.String("bin", "bin/patchbay", "the program under test")
	n := flag.Int("schedules", 1000, "how many, half of them on each database")
	seed := flag.Uint64("seed", 0, "of the first schedule; 0 draws one")
	verbose := flag.Bool("v", false, "tell of every schedule that broke something")
	flag.Parse()
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	fmt.Fprintf(os.Stderr, "seed %d\n", *seed)
	sheet := figures.New(os.Stdout)
	dbs := []string{"sqlite", "postgres"}
	tallies, errs := make([]*tally, len(dbs)), make([]error, len(dbs))
	var both sync.WaitGroup
	for i, db := range dbs {
		both.Go(func() { tallies[i], errs[i] = exercise(*bin, db, *n/2, *seed, *verbose) })
	}
	both.Wait()
	for i, db := range dbs {
		if errs[i] != nil {
			log.Fatalf("%s: %v", db, errs[i])
		}
		tallies[i].print(sheet, db, *n/2)
	}
	sheet.Exit()
}

func exercise(bin, db string, n int, seed uint64, verbose bool) (*tally, error) {
	llm := fake.NewLLM(seat{})
	defer llm.Close()
	llm.Script(think)
	p, err := newPlant(bin, db == "postgres", llm.URL+"/v1")
	if err != nil {
		return nil, err
	}
	defer p.close()
	t := newTally(p, verbose)
	began := time.Now()
	for i := range n {
		s := &schedule{p: p, n: i, r: rand.New(rand.NewPCG(seed, uint64(i)))}
		s.play(t)
		if len(t.errors) > 0 {
			return t, t.errors[0]
		}
		if i%50 == 49 {
			fmt.Fprintf(os.Stderr, "%s: %d schedules, %.1f s each\n", db, i+1, time.Since(began).Seconds()/float64(i+1))
		}
	}
	return t, nil
}

// think is the model: it calls what the prompt lists, one after the other, and ends.
func think(_ int, request string) fake.Turn {
	var r struct {
		Messages []struct {
			Role    string
			Content json.RawMessage
		}
	}
	if json.Unmarshal([]byte(request), &r) != nil {
		return fake.Turn{Status: 400}
	}
	turn, prompt := 0, ""
	for _, m := range r.Messages {
		switch m.Role {
		case "assistant":
			turn++
		case "user":
			if prompt == "" {
				prompt = string(m.Content)
			}
		}
	}
	_, list, _ := strings.Cut(prompt, "do ")
	words := strings.Fields(strings.TrimRight(strings.TrimSpace(list), `"}]`))
	if turn >= len(words) {
		return fake.Turn{Text: "Done."}
	}
	tool, x, _ := strings.Cut(words[turn], ":")
	return fake.Turn{Calls: []fake.ToolCall{{ID: fmt.Sprintf("use_%d", turn), Name: "mcp__far__" + tool, Input: arguments(x)}}}
}
