package bridge_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"patchbay/internal/bridge"
	"patchbay/internal/fake"
	"patchbay/internal/plane"
)

// shop offers more tools than are offered directly; one of them is asked for.
func shop(n int) []string {
	tools := []string{`{"name":"cancel_order","description":"Cancels an order that has not been shipped.","inputSchema":{"type":"object","properties":{"order":{"type":"string"}},"required":["order"]}}`}
	for i := range n {
		tools = append(tools, fake.Tool(fmt.Sprintf("shelf_%03d", i), ""))
	}
	return tools
}

// Above the limit a session has the search instead of the tools, and what it calls by
// it takes the same road: policy, schema, fingerprint, ledger.
func TestSearchStandsForManyTools(t *testing.T) {
	f := fake.NewMCP(t, shop(60)...)
	r := newRig(t, func(l *plane.Limits) { l.FingerprintMaxAge = 0 }, server{slug: "shop", fake: f, change: func(c *plane.Connection) { c.Fixed.Deny = []string{"shelf_007"} }})
	s := r.open("general")
	var names []string
	for _, x := range s.Tools() {
		names = append(names, x.Alias)
	}
	if !slices.Equal(names, []string{"tool_search", "tool_call"}) || !strings.Contains(s.Line(), "tool_search") {
		t.Fatalf("%v %s", names, s.Line())
	}
	call := func(alias, args string) *bridge.Out {
		t.Helper()
		out, err := s.Call(t.Context(), bridge.In{Alias: alias, Arguments: json.RawMessage(args)})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	out := call("tool_search", `{"query":"cancelling an order","limit":3}`)
	if out.IsError || out.Call != nil || !strings.Contains(out.Text, "mcp__shop__cancel_order") || !strings.Contains(out.Text, `"required":["order"]`) {
		t.Fatalf("%+v", out)
	}
	out = call("tool_call", `{"name":"mcp__shop__cancel_order","arguments":{"order":"1002"}}`)
	if out.IsError || out.Call == nil || out.Call.State != plane.CallSucceeded || out.Call.Tool != "cancel_order" || out.Call.Alias != "mcp__shop__cancel_order" {
		t.Fatalf("%+v", out)
	}
	if seen := f.Calls(); len(seen) != 1 || seen[0].Name != "cancel_order" || seen[0].Arguments != `{"order":"1002"}` {
		t.Fatalf("%+v", seen)
	}
	for what, c := range map[string][2]string{
		"a tool that is kept out":          {"tool_call", `{"name":"mcp__shop__shelf_007","arguments":{}}`},
		"a tool that is not there":         {"tool_call", `{"name":"mcp__shop__nothing"}`},
		"arguments that do not fit":        {"tool_call", `{"name":"mcp__shop__cancel_order","arguments":{"order":7}}`},
		"the search within the call":       {"tool_call", `{"name":"tool_search","arguments":{"query":"x"}}`},
		"the call within the call":         {"tool_call", `{"name":"tool_call","arguments":{"name":"mcp__shop__cancel_order"}}`},
		"two names":                        {"tool_call", `{"name":"mcp__shop__nothing","name":"mcp__shop__cancel_order","arguments":{"order":"1"}}`},
		"a name of the same letters":       {"tool_call", `{"NAME":"mcp__shop__cancel_order","arguments":{"order":"1"}}`},
		"no query":                         {"tool_search", `{}`},
		"arguments that are no object":     {"tool_call", `["mcp__shop__cancel_order"]`},
		"the tool's name without its call": {"cancel_order", `{"order":"1"}`},
	} {
		if out := call(c[0], c[1]); !out.IsError {
			t.Errorf("%s: %+v", what, out)
		}
	}
	f.SetTools(strings.Replace(shop(0)[0], "not been shipped", "been shipped", 1))
	if out := call("tool_call", `{"name":"mcp__shop__cancel_order","arguments":{"order":"1002"}}`); !out.IsError || !strings.Contains(out.Text, "changed") {
		t.Errorf("a changed definition: %+v", out)
	}
	if n := len(f.Calls()); n != 1 {
		t.Errorf("%d calls were sent", n)
	}
}

// Whoever asks by other words, with a typing error, in another language or by a file's
// name finds the tool all the same.
func TestSearchFinds(t *testing.T) {
	var tools []bridge.Entry
	add := func(name, text string) { tools = append(tools, bridge.Entry{Name: name, Description: text}) }
	add("write_file", "Writes text to a file.")
	add("delete_message", "Removes a message from a channel.")
	add("getForecast", "返回城市的天气预报")
	add("create_invoice", "Makes an invoice for a customer.")
	for i := range 200 {
		add(fmt.Sprintf("filler_%d", i), "Does something else with item and list.")
	}
	x := bridge.NewIndex([]*bridge.Segment{bridge.NewSegment("office", "", tools)})
	for question, want := range map[string]string{
		"erase a message from the channel": "delete_message",
		"weather in Berlin":                "getForecast",
		"天气怎么样":                            "getForecast",
		"build an invoise":                 "create_invoice",
		"Find out what the best cheese is, then save it to /home/ada/notes/cheese.md.": "write_file",
	} {
		hits := x.Search(question, 3)
		if len(hits) == 0 || !slices.ContainsFunc(hits, func(at int) bool { return tools[at].Name == want }) {
			t.Errorf("%q: %v", question, hits)
		}
	}
	if hits := x.Search("", 3); len(hits) != 0 {
		t.Errorf("nothing asked: %v", hits)
	}
	if hits := bridge.NewIndex(nil).Search("a file", 3); len(hits) != 0 {
		t.Errorf("nothing there: %v", hits)
	}
}

func FuzzSearch(f *testing.F) {
	f.Add("write it to /a/b.md and 天气")
	x := bridge.NewIndex([]*bridge.Segment{bridge.NewSegment("a b", "says", []bridge.Entry{{Name: "getThing", Description: "Gets a thing.", InputSchema: json.RawMessage(`{"properties":{"id":{"description":"which"}}}`)}})})
	f.Fuzz(func(t *testing.T, q string) {
		if hits := x.Search(q, 5); len(hits) > 1 {
			t.Fatalf("%v", hits)
		}
	})
}

// means is an endpoint to which only a few words mean anything.
type means struct{ fail bool }

func (m means) Embed(_ context.Context, texts []string) ([][]float32, error) {
	if m.fail {
		return nil, errors.New("out of order")
	}
	out := make([][]float32, len(texts))
	for i, t := range texts {
		out[i] = []float32{0.1, 1}
		if strings.Contains(t, "cancel_order") || strings.Contains(t, "regret") {
			out[i] = []float32{1, 0}
		}
	}
	return out, nil
}

// With an endpoint for embeddings, tools are found by what is meant; without an answer
// of it, by words as before.
func TestSearchByMeaning(t *testing.T) {
	f := fake.NewMCP(t, shop(150)...)
	r := newRig(t, nil, server{slug: "shop", fake: f})
	ask := func(q string) string {
		out, err := r.open("general").Call(t.Context(), bridge.In{Alias: "tool_search", Arguments: json.RawMessage(fmt.Sprintf(`{"query":%q}`, q))})
		if err != nil {
			t.Fatal(err)
		}
		return out.Text
	}
	if strings.Contains(ask("I regret it"), "cancel_order") {
		t.Fatal("words alone found it")
	}
	r.bridge.Embeds = means{}
	for end := time.Now().Add(5 * time.Second); !strings.Contains(ask("I regret it"), "cancel_order"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it is not found by meaning")
		}
	}
	r.bridge.Embeds = means{fail: true}
	if !strings.Contains(ask("cancel an order"), "cancel_order") {
		t.Error("words find nothing where the endpoint fails")
	}
}
