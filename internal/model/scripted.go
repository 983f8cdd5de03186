package model

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"patchbay/internal/plane"
)

// Step is one turn of a script.
type Step struct {
	Say   string     `yaml:"say,omitempty"` // {{prompt}} and {{last}} are replaced
	Calls []StepCall `yaml:"calls,omitempty"`
}

// StepCall is a tool use of a step.
type StepCall struct {
	Tool  string         `yaml:"tool"`
	Input map[string]any `yaml:"input,omitempty"`
}

// NewScripted answers without a model, for the demo and for tests: by the steps
// of a script, or, where there is none, by calling the tool whose words are most
// like the question's and reporting what it said.
func NewScripted(steps []Step) Provider { return &scripted{steps} }

type scripted struct{ steps []Step }

// Schemas is what the stand-in takes.
func (p *scripted) Schemas() string { return "anthropic" }

func (p *scripted) Describe() string { return "scripted (no model)" }

func (p *scripted) Turn(ctx context.Context, r Request, delta func(string)) (Answer, error) {
	if err := ctx.Err(); err != nil {
		return Answer{}, failure(ctx, 0, err)
	}
	turn := 0
	for _, m := range r.Messages {
		if m.Role == "assistant" {
			turn++
		}
	}
	step := p.improvise(r, turn)
	if len(p.steps) > 0 {
		step = p.steps[min(turn, len(p.steps)-1)]
		if turn >= len(p.steps) {
			step.Calls = nil
		}
	}
	a := Answer{Stop: "end_turn"}
	say := strings.NewReplacer("{{prompt}}", prompt(r), "{{last}}", lastResult(r)).Replace(step.Say)
	if say != "" {
		for word := range strings.SplitAfterSeq(say, " ") {
			delta(word)
		}
		a.Parts = append(a.Parts, plane.Part{Text: say})
	}
	for i, c := range step.Calls {
		in, err := json.Marshal(c.Input)
		if err != nil || c.Input == nil {
			in = []byte(`{}`)
		}
		a.Stop = "tool_use"
		a.Parts = append(a.Parts, plane.Part{ToolUse: &plane.ToolUse{ID: fmt.Sprintf("use_%d_%d", turn+1, i+1), Name: c.Tool, Input: in}})
	}
	return a, nil
}

func prompt(r Request) string {
	for _, m := range r.Messages {
		for _, p := range m.Parts {
			if m.Role == "user" && p.Text != "" {
				return p.Text
			}
		}
	}
	return ""
}

func lastResult(r Request) string {
	for _, m := range slices.Backward(r.Messages) {
		for _, p := range slices.Backward(m.Parts) {
			if p.Result != nil {
				return unmark(p.Result.Text)
			}
		}
	}
	return ""
}

// unmark takes the text out of the bridge's marks.
func unmark(s string) string {
	_, rest, ok := strings.Cut(s, "<<<data ")
	if !ok {
		return s
	}
	n, body, _ := strings.Cut(rest, "\n")
	body, _, _ = strings.Cut(body, "\ndata "+n+">>>")
	return body
}

// improvise plays a model for the demo: one tool call, then a report.
func (p *scripted) improvise(r Request, turn int) Step {
	if turn > 0 {
		if last := lastResult(r); last != "" {
			return Step{Say: "The tool answered:\n\n" + last}
		}
		return Step{Say: "I have nothing to add."}
	}
	best, score := -1, 0
	for i, t := range r.Tools {
		if n := likeness(prompt(r), t); n > score {
			best, score = i, n
		}
	}
	if !slices.ContainsFunc(r.Tools, func(t plane.ToolSpec) bool { return strings.HasPrefix(t.Name, "mcp__") }) {
		return Step{Say: "No model is configured, and this agent has no tool of any server to call: none is connected for it, or none answered. See patchbay agents list and patchbay mcp list."}
	}
	if best < 0 {
		return Step{Say: "No model is configured, and no tool here has a word in common with the question. Ask for something a tool can do, or name a model in patchbay.yaml."}
	}
	t := r.Tools[best]
	return Step{Say: "I will ask " + t.Name + ".", Calls: []StepCall{{Tool: t.Name, Input: guess(prompt(r), t.Schema)}}}
}

var wordRE = regexp.MustCompile(`[\pL\pN]+`)

func words(s string) map[string]bool {
	out := map[string]bool{}
	for _, w := range wordRE.FindAllString(strings.ToLower(s), -1) {
		if len(w) > 2 && !slices.Contains([]string{"the", "and", "for", "with", "what", "from", "this", "that", "are", "not", "data", "tool"}, w) {
			out[strings.TrimSuffix(w, "s")] = true
		}
	}
	return out
}

func likeness(question string, t plane.ToolSpec) int {
	n := 0
	name := words(strings.ReplaceAll(t.Name, "_", " "))
	desc := t.Description
	if _, after, ok := strings.Cut(desc, "]"); ok {
		desc = after
	}
	text := words(desc)
	for w := range words(question) {
		if name[w] {
			n += 3
		}
		if text[w] {
			n++
		}
	}
	return n
}

var (
	numberRE = regexp.MustCompile(`-?\d+(\.\d+)?`)
	idRE     = regexp.MustCompile(`[A-Za-z]*-?\d[\w-]*`)
	quotedRE = regexp.MustCompile(`"([^"]+)"|'([^']+)'`)
)

// guess fills the required arguments of a tool from the words of the question.
func guess(question string, schema json.RawMessage) map[string]any {
	var s struct {
		Properties map[string]struct {
			Type string   `json:"type"`
			Enum []string `json:"enum"`
		} `json:"properties"`
		Required []string `json:"required"`
	}
	if json.Unmarshal(schema, &s) != nil {
		return nil
	}
	numbers := numberRE.FindAllString(question, -1)
	out := map[string]any{}
	for _, name := range s.Required {
		prop := s.Properties[name]
		switch {
		case prop.Type == "number" || prop.Type == "integer":
			var v any = 1
			if len(numbers) > 0 {
				if f, err := strconv.ParseFloat(numbers[0], 64); err == nil {
					v = f
				}
				numbers = numbers[1:]
			}
			out[name] = v
		case prop.Type == "boolean":
			out[name] = true
		case len(prop.Enum) > 0:
			out[name] = prop.Enum[0]
			for _, e := range prop.Enum {
				if strings.Contains(strings.ToLower(question), strings.ToLower(e)) {
					out[name] = e
				}
			}
		default:
			out[name] = guessText(name, question)
		}
	}
	return out
}

func guessText(name, question string) string {
	if m := quotedRE.FindStringSubmatch(question); m != nil {
		return m[1] + m[2]
	}
	if strings.Contains(name, "id") || strings.Contains(name, "order") || strings.Contains(name, "number") {
		if id := idRE.FindString(question); id != "" {
			return id
		}
	}
	return question
}
