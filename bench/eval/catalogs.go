package main

import (
	"bufio"
	"context"
	"encoding/json"
	"log"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"patchbay/bench/figures"
	"patchbay/internal/bridge"
	"patchbay/internal/catalog"
	"patchbay/internal/mcp"
	"patchbay/internal/netguard"
	"patchbay/internal/plane"
	"patchbay/internal/registry"
)

// shelf serves one server's tool list as it is.
type shelf []json.RawMessage

// Tools lists them.
func (s shelf) Tools(context.Context, *http.Request) ([]json.RawMessage, error) { return s, nil }

// CallTool runs nothing.
func (shelf) CallTool(context.Context, *mcp.Incoming) (json.RawMessage, *mcp.RPCError) {
	return nil, &mcp.RPCError{Code: -32601, Message: "nothing is run here"}
}

// catalogs takes the tool lists of real servers through discovery over the wire, the
// schema rules, naming and the scan of what outsiders wrote. A tool that the scan flags
// has a verdict in the checked-in file.
func catalogs(sheet *figures.Sheet, dir, verdicts string) error {
	raw, err := os.ReadFile(filepath.Join(dir, "tools.json"))
	if err != nil {
		return err
	}
	var all map[string][]json.RawMessage
	if err := json.Unmarshal(raw, &all); err != nil {
		return err
	}
	judged, err := readVerdicts(verdicts)
	if err != nil {
		return err
	}
	scan := &registry.Scanner{Links: registry.UsualLinks()}
	lim := plane.DefaultLimits()
	lim.CatalogTools = 1000 // the whole lists, not what one connection may hold
	var tools, unsupported, unnamed, flagged, open int
	for _, name := range slices.Sorted(maps.Keys(all)) {
		listed, err := discover(all[name], lim)
		if err != nil {
			return err
		}
		var defs []plane.Definition
		for _, t := range listed {
			defs = append(defs, catalog.Read(t, lim))
		}
		aliases := bridge.Aliases(plane.SlugOf(name), defs)
		for i, d := range defs {
			tools++
			if d.Unsupported != "" {
				unsupported++
				log.Printf("%s/%s is unsupported: %s", name, d.Name, d.Unsupported)
				continue
			}
			if aliases[d.Name] == "" {
				unnamed++
			}
			found := scan.Text(texts(listed[i]), "")
			if len(found) == 0 {
				continue
			}
			if flagged++; judged[name+"/"+d.Name] == "" {
				open++
				log.Printf("%s/%s is flagged and has no verdict: %v", name, d.Name, found)
			}
		}
	}
	sheet.Told("real tools, discovered over the wire", float64(tools), "")
	sheet.AtMost("real tools that cannot be offered", float64(unsupported), 0, "")
	sheet.AtMost("real tools without a name for the model", float64(unnamed), 0, "")
	sheet.AtMost("real tools that the scan flags", 100*float64(flagged)/float64(tools), 2, "%")
	sheet.AtMost("flagged tools without a verdict", float64(open), 0, "")
	return nil
}

// discover lists tools over HTTP, as a connection's catalog is read.
func discover(tools []json.RawMessage, lim plane.Limits) ([]json.RawMessage, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	srv := &http.Server{Handler: &mcp.Server{Info: mcp.Implementation{Name: "shelf", Version: "1"}, Tools: shelf(tools)}, ReadHeaderTimeout: 5 * time.Second}
	go srv.Serve(l)
	defer srv.Close()
	c, err := mcp.NewClient(mcp.Options{Endpoint: "http://" + l.Addr().String() + "/mcp", Transport: netguard.Infra(l.Addr().String()), Info: mcp.Implementation{Name: "patchbay", Version: "1"},
		Bounds: mcp.Bounds{Header: lim.HeaderTimeout, Idle: lim.IdleTimeout, Total: lim.DiscoverOne, Body: lim.ResponseBytes, Tools: lim.CatalogTools, Pages: lim.CatalogPages}})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := c.Open(context.Background()); err != nil {
		return nil, err
	}
	got, err := c.ListTools(context.Background())
	return got.Tools, err
}

// texts are all words of a definition: names, descriptions, values.
func texts(raw json.RawMessage) string {
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return string(raw)
	}
	var b strings.Builder
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case string:
			b.WriteString(v + "\n")
		case []any:
			for _, e := range v {
				walk(e)
			}
		case map[string]any:
			for _, k := range slices.Sorted(maps.Keys(v)) {
				b.WriteString(k + "\n")
				walk(v[k])
			}
		}
	}
	walk(v)
	return b.String()
}

// readVerdicts reads server/tool and what a person thought of it.
func readVerdicts(file string) (map[string]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out := map[string]string{}
	for s := bufio.NewScanner(f); s.Scan(); {
		if tool, verdict, ok := strings.Cut(s.Text(), "\t"); ok && !strings.HasPrefix(tool, "#") {
			out[tool] = verdict
		}
	}
	return out, nil
}
