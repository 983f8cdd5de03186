package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"patchbay/internal/plane"
)

// The annotated example holds every key, and its limits are the defaults.
func TestExampleConfig(t *testing.T) {
	t.Setenv("LINEAR_TOKEN", "x")
	c, err := LoadConfig("../../patchbay.example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if c.Limits != plane.DefaultLimits() {
		t.Errorf("limits: %+v\nwant %+v", c.Limits, plane.DefaultLimits())
	}
	b, err := os.ReadFile("../../patchbay.example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range configKeys() {
		if !strings.Contains(string(b), k+":") {
			t.Errorf("the example lacks the key %s", k)
		}
	}
	conns, err := c.connections()
	if err != nil || len(conns) != 1 || conns[0].Slug != "linear" || conns[0].TokenEnv != "LINEAR_TOKEN" {
		t.Errorf("%+v %v", conns, err)
	}
	agents, err := c.agents()
	if err != nil || len(agents) != 5 || agents["review"].Trust != plane.Guarded || !agents["general"].MCP {
		t.Errorf("%+v %v", agents, err)
	}
	if len(c.Models["stand-in"].Script) != 2 {
		t.Error("the script is lost")
	}
	for _, f := range CheckConfig(c) {
		if f.Err != nil && !strings.HasPrefix(f.What, "model ") {
			t.Errorf("%s: %v", f.What, f.Err)
		}
	}
}

func TestBadConfig(t *testing.T) {
	for _, c := range []struct{ name, yaml, want string }{
		{"an unknown key", "listen: 127.0.0.1:1\norg:\n  conections: {}\n", `patchbay.yaml:3:3: there is no key "conections" here. Did you mean "connections"?`},
		{"an unknown key at the top", "egres: {}\n", `:1:1: there is no key "egres" here. Did you mean "egress"?`},
		{"a known key in the wrong place", "org: {listen: x}\n", `there is no key "listen" here.`},
		{"a key twice", "listen: 127.0.0.1:1\nlisten: 127.0.0.1:2\n", ":2:"},
		{"a duplicate name", "org: {connections: {a: {url: https://a.example/}, a: {url: https://b.example/}}}\n", ":1:"},
		{"broken YAML", "org: [\n", "patchbay.yaml"},
		{"a wrong type", "org: {connections: [1]}\n", ":1:"},
		{"no length of time", "limits: {run_time: soon}\n", "soon is no length of time"},
		{"a limit of zero", "limits: {calls_per_run: 0}\n", "limits.calls_per_run must be greater than zero"},
		{"not loopback", "listen: 0.0.0.0:7717\n", "nothing says who they are"},
		{"a public address by http", "public_url: http://app.example\n", "public_url must be https"},
		{"a public address with a path", "public_url: https://app.example/x\n", "public_url is an origin"},
		{"an issuer by http", "identity: {oidc: {issuer: \"http://idp.example\", client_id: x}}\n", "https address"},
		{"an issuer without a client", "identity: {oidc: {issuer: \"https://idp.example\"}}\n", "no client_id"},
		{"Access without an audience", "identity: {access: {team: acme}}\n", "no audience"},
		{"an unknown cimd", "oauth: {cimd: maybe}\n", "auto, on or off"},
		{"a reserved header", "org: {connections: {a: {url: https://a.example/, auth: \"api_key:Cookie\", token_env: X}}}\n", "may carry a key"},
		{"a client of no OAuth", "org: {connections: {a: {url: https://a.example/, client_id: x}}}\n", "client_id goes with auth: oauth"},
		{"a bad slug", "org: {connections: {Bad_Name: {url: https://a.example/}}}\n", `"Bad_Name" is no slug`},
		{"no url", "org: {connections: {a: {auth: none}}}\n", "org/a names no url"},
		{"unknown auth", "org: {connections: {a: {url: https://a.example/, auth: magic}}}\n", `org/a: auth is "magic"; known are none, bearer, api_key:<header>, basic:<user> and oauth`},
		{"bearer without a variable", "org: {connections: {a: {url: https://a.example/, auth: bearer}}}\n", "org/a: auth is bearer, so token_env"},
		{"a variable without bearer", "org: {connections: {a: {url: https://a.example/, auth: none, token_env: X}}}\n", "token_env goes with bearer, api_key and basic"},
		{"an unknown agent", "org: {connections: {a: {url: https://a.example/, agents: [generl]}}}\n", `a names the agent "generl", which does not exist`},
		{"a guarded agent named by a person", "users: {ada@example.com: {connections: {a: {url: https://a.example/, agents: [review]}}}}\n", "guarded agent"},
		{"an unknown tool", "agents: {x: {tools: [web]}}\n", `agents.x: there is no tool "web"; known are current_time`},
		{"an unknown model", "agents: {general: {model: gtp}}\n", `uses the model "gtp"`},
		{"an unknown provider", "models: {default: {provider: acme}}\n", `the provider is "acme"`},
		{"a loopback server", "org: {connections: {a: {url: \"http://127.0.0.1:3000/mcp\"}}}\n", "a: 127.0.0.1 is not a public address."},
		{"an internal server", "org: {connections: {a: {url: https://db.internal/mcp}}}\n", "a: db.internal names an internal host."},
		{"a NAT64 server", "org: {connections: {a: {url: \"https://[64:ff9b::a00:1]/\"}}}\n", "is not a public address"},
		{"credentials in a URL", "org: {connections: {a: {url: \"https://u:p@a.example/\"}}}\n", "carries credentials"},
		{"a rule for nobody", "egress: {allow: [{to: \"10.0.0.1:1\"}]}\n", "egress.allow[0]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "patchbay.yaml")
			if err := os.WriteFile(file, []byte("data: "+dir+"/d\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			body := c.yaml
			if err := os.WriteFile(file, []byte(body), 0o600); err != nil {
				t.Fatal(err)
			}
			cfg, err := LoadConfig(file)
			if err == nil {
				cfg.Data = filepath.Join(dir, "d")
				var a *App
				if a, err = New(t.Context(), Options{Config: cfg}); err == nil {
					a.Close()
				}
			}
			if err == nil || plane.KindOf(err) != plane.InvalidInput || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%v, want %q", err, c.want)
			}
			if strings.Contains(err.Error(), "u:p@") {
				t.Error("the sentence repeats the credentials")
			}
		})
	}
	e := func() error {
		_, err := LoadConfig("/does/not/exist.yaml")
		return err
	}()
	if plane.KindOf(e) != plane.InvalidInput || !strings.Contains(e.Error(), "/does/not/exist.yaml") {
		t.Error(e)
	}
}

func TestOneProcessToADirectory(t *testing.T) {
	dir := t.TempDir()
	cfg := func() *Config {
		return &Config{Listen: "127.0.0.1:0", Data: dir, Database: "sqlite", Limits: plane.DefaultLimits()}
	}
	a, err := New(t.Context(), Options{Config: cfg()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(t.Context(), Options{Config: cfg()}); plane.KindOf(err) != plane.Conflict || !strings.Contains(err.Error(), "Another Patchbay") {
		t.Fatalf("a second process: %v", err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := New(t.Context(), Options{Config: cfg()})
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
	// Another ring is foreign to this database.
	t.Setenv(DefaultKeysEnv, "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=")
	if _, err := New(t.Context(), Options{Config: cfg()}); err == nil || !strings.Contains(err.Error(), "key ring does not hold") {
		t.Fatalf("a foreign ring: %v", err)
	}
	pg := cfg()
	pg.Database = "postgres://nobody@127.0.0.1:1/x"
	t.Setenv(DefaultKeysEnv, "")
	os.Remove(filepath.Join(dir, keyFile))
	if _, err := New(t.Context(), Options{Config: pg}); err == nil || !strings.Contains(err.Error(), "no key ring") {
		t.Fatalf("PostgreSQL without a ring: %v", err)
	}
}
