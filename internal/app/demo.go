package app

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"patchbay/internal/mcp"
	"patchbay/internal/netguard"
	"patchbay/internal/plane"
)

// demoServer is an MCP server of its own on loopback, so that a newcomer has
// something to ask without an account anywhere.
type demoServer struct {
	http *http.Server
	url  string

	mu    sync.Mutex
	notes []string
}

// DemoName is the demo server's name.
const DemoName = "demo"

func (a *App) startDemo() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return plane.Errorf(plane.Unavailable, "The demo server cannot listen on loopback.").Because(err)
	}
	d := &demoServer{url: "http://" + l.Addr().String()}
	d.http = &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: &mcp.Server{Info: mcp.Implementation{Name: "patchbay-demo", Version: a.o.Version}, Tools: d}}
	go d.http.Serve(l)
	a.demo = d
	a.cfg = a.withDemo(a.cfg)
	return nil
}

// withDemo is a config with the demo server in it.
func (a *App) withDemo(c *Config) *Config {
	cfg := *c
	cfg.Egress.Allow = append(append([]netguard.Rule(nil), cfg.Egress.Allow...), netguard.Rule{To: a.demo.url, For: []string{DemoName}})
	conns := map[string]ConnectionConfig{DemoName: {URL: a.demo.url + "/mcp", Label: "Demo order desk"}}
	for k, v := range cfg.Org.Connections {
		conns[k] = v
	}
	cfg.Org.Connections = conns
	return &cfg
}

func (d *demoServer) close() { d.http.Close() }

var demoTools = []json.RawMessage{
	json.RawMessage(`{"name":"order_status","description":"Says where an order of the demo shop is. Orders are numbered 1001 to 1004.","inputSchema":{"type":"object","properties":{"order_id":{"type":"string","description":"Number of the order, for example 1002."}},"required":["order_id"]},"annotations":{"readOnlyHint":true}}`),
	json.RawMessage(`{"name":"list_orders","description":"Lists all orders of the demo shop with their state.","inputSchema":{"type":"object","properties":{}},"annotations":{"readOnlyHint":true}}`),
	json.RawMessage(`{"name":"add_note","description":"Writes a note on the demo shop's notice board.","inputSchema":{"type":"object","properties":{"note":{"type":"string"}},"required":["note"]}}`),
}

var demoOrders = map[string]string{
	"1001": "delivered on 24 November",
	"1002": "on its way, expected tomorrow between 9 and 12",
	"1003": "being packed",
	"1004": "waiting for payment",
}

// Tools lists the demo's tools.
func (d *demoServer) Tools(context.Context, *http.Request) ([]json.RawMessage, error) {
	return demoTools, nil
}

// CallTool runs one of them.
func (d *demoServer) CallTool(_ context.Context, in *mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
	var args struct {
		OrderID string `json:"order_id"`
		Note    string `json:"note"`
	}
	if len(in.Arguments) > 0 && json.Unmarshal(in.Arguments, &args) != nil {
		return nil, &mcp.RPCError{Code: mcp.CodeInvalidParams, Message: "the arguments do not fit"}
	}
	switch in.Name {
	case "order_status":
		state, ok := demoOrders[args.OrderID]
		if !ok {
			return demoText(fmt.Sprintf("There is no order %q.", args.OrderID), true), nil
		}
		return demoText(fmt.Sprintf("Order %s: %s.", args.OrderID, state), false), nil
	case "list_orders":
		var b strings.Builder
		for _, id := range sortedKeys(demoOrders) {
			fmt.Fprintf(&b, "Order %s: %s.\n", id, demoOrders[id])
		}
		return demoText(strings.TrimSpace(b.String()), false), nil
	case "add_note":
		d.mu.Lock()
		defer d.mu.Unlock()
		if len(d.notes) < 1000 {
			d.notes = append(d.notes, args.Note)
		}
		return demoText(fmt.Sprintf("Noted. The board now has %d notes.", len(d.notes)), false), nil
	}
	return nil, &mcp.RPCError{Code: mcp.CodeInvalidParams, Message: "unknown tool"}
}

func demoText(s string, isError bool) json.RawMessage {
	b, _ := json.Marshal(map[string]any{ // strings and a bool always marshal
		"content": []any{map[string]string{"type": "text", "text": s}}, "isError": isError})
	return b
}
