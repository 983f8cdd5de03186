// Command eval measures how well tool search finds, on a public set of tools and
// questions that it reads from elsewhere: the mean of recall@5 over whole tasks and
// of hit@5 over single steps. A tool that is looked for counts as found when any of
// its name is. It takes the tool lists of real servers through discovery, naming and the
// scan for traps, too.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"time"

	"patchbay/bench/figures"
	"patchbay/internal/bridge"
)

type server struct {
	Server, Description string
	Tools               []bridge.Entry
}

type question struct {
	Query string
	Gold  []string
}

func main() {
	dir := flag.String("data", "../shared/data/toolsearch", "folder with tools.json, tasks.json and steps.json")
	lists := flag.String("catalogs", "../shared/data/catalogs", "folder with the tool lists of real servers")
	verdicts := flag.String("verdicts", "bench/eval/flagged.tsv", "verdicts on what the scan flags")
	flag.Parse()
	var servers []server
	var tasks, steps []question
	for name, into := range map[string]any{"tools.json": &servers, "tasks.json": &tasks, "steps.json": &steps} {
		raw, err := os.ReadFile(filepath.Join(*dir, name))
		if err != nil {
			log.Fatal(err)
		}
		if err := json.Unmarshal(raw, into); err != nil {
			log.Fatal(err)
		}
	}
	var segments []*bridge.Segment
	var names []string
	for _, s := range servers {
		segments = append(segments, bridge.NewSegment(s.Server, s.Description, s.Tools))
		for _, t := range s.Tools {
			names = append(names, t.Name)
		}
	}
	index := bridge.NewIndex(segments)
	share := func(q question) (found, hit float64) {
		var got []string
		for _, at := range index.Search(q.Query, 5) {
			got = append(got, names[at])
		}
		for _, g := range q.Gold {
			if slices.Contains(got, g) {
				found, hit = found+1, 1
			}
		}
		return found / float64(len(q.Gold)), hit
	}
	var recall, hits float64
	for _, q := range tasks {
		r, _ := share(q)
		recall += r / float64(len(tasks))
	}
	for _, q := range steps {
		_, h := share(q)
		hits += h / float64(len(steps))
	}
	sheet := figures.New(os.Stdout)
	sheet.Told("tools", float64(len(names)), "")
	sheet.AtLeast("recall@5 of tasks", recall, 0.45, "")
	sheet.AtLeast("hit@5 of steps", hits, 0.78, "")
	sheet.AtMost("a query over 10,000 tools", slow(servers, append(tasks, steps...)), 2, "ms")
	if err := catalogs(sheet, *lists, *verdicts); err != nil {
		log.Fatal(err)
	}
	sheet.Exit()
}

// slow is the mean time of a query over 10,000 tools, in ms: the same servers again
// and again, each under a name of its own.
func slow(servers []server, questions []question) float64 {
	var segments []*bridge.Segment
	n := 0
	for round := 0; n < 10_000; round++ {
		for _, s := range servers {
			tools := s.Tools[:min(len(s.Tools), 10_000-n)]
			segments = append(segments, bridge.NewSegment(fmt.Sprintf("%s %d", s.Server, round), s.Description, tools))
			n += len(tools)
		}
	}
	index := bridge.NewIndex(segments)
	for _, q := range questions {
		index.Search(q.Query, 5)
	}
	began := time.Now()
	const rounds = 5
	for range rounds {
		for _, q := range questions {
			index.Search(q.Query, 5)
		}
	}
	return float64(time.Since(began).Microseconds()) / 1000 / float64(rounds*len(questions))
}
