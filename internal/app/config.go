package app

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"patchbay/internal/model"
	"patchbay/internal/netguard"
	"patchbay/internal/plane"
	"patchbay/internal/run"
)

// Config is patchbay.yaml. Every field has a usable zero value; unknown keys
// are errors.
type Config struct {
	Listen   string   `yaml:"listen"`
	Public   string   `yaml:"public_url"` // where browsers reach this server
	Data     string   `yaml:"data"`
	Database string   `yaml:"database"` // sqlite, or postgres://…
	Keys     KeysFrom `yaml:"keys"`

	Identity IdentityConfig `yaml:"identity"`
	OAuth    OAuthConfig    `yaml:"oauth"`
	Clients  ClientsConfig  `yaml:"clients"`

	TrustedProxies []string `yaml:"trusted_proxies"` // whose X-Forwarded-For counts

	Models map[string]ModelConfig `yaml:"models"`
	Agents map[string]AgentConfig `yaml:"agents"`
	Org    Tier                   `yaml:"org"`
	Teams  map[string]TeamConfig  `yaml:"teams"`
	Users  map[string]Tier        `yaml:"users"`

	Registry    RegistryConfig `yaml:"registry"`
	NATS        NATSConfig     `yaml:"nats"`
	Slack       SlackConfig    `yaml:"slack"`
	Placeholder string         `yaml:"placeholder"` // the value that env of declarations has

	GitHubApps map[string]GitHubAppConfig `yaml:"github_apps"`

	Embeddings EmbeddingsConfig `yaml:"embeddings"`
	Memory     MemoryConfig     `yaml:"memory"`
	Retention  RetentionConfig  `yaml:"retention"`

	Egress    EgressConfig    `yaml:"egress"`
	Sandbox   SandboxConfig   `yaml:"sandbox"`
	Vault     VaultConfig     `yaml:"vault"`
	MCP       Switch          `yaml:"mcp"`
	Limits    plane.Limits    `yaml:"limits"`
	Telemetry TelemetryConfig `yaml:"telemetry"`
	Cluster   ClusterConfig   `yaml:"cluster"`

	path string // of the file, for error messages
}

// KeysFrom says where the key ring is.
type KeysFrom struct {
	Env  string `yaml:"env"`
	File string `yaml:"file"`
}

// ModelConfig is one model.
type ModelConfig struct {
	Provider  string       `yaml:"provider"` // anthropic, openai, scripted
	Model     string       `yaml:"model"`
	BaseURL   string       `yaml:"base_url"`
	APIKeyEnv string       `yaml:"api_key_env"`
	Schemas   string       `yaml:"schemas"` // of an openai endpoint: openai, or gemini for its subset of JSON Schema
	Window    int          `yaml:"window"`  // tokens; 0 for what is common for its kind
	Script    []model.Step `yaml:"script"`
}

// EmbeddingsConfig is an endpoint that tools are found by meaning with.
type EmbeddingsConfig struct {
	BaseURL   string `yaml:"base_url"` // of an API like OpenAI's; empty for none
	Model     string `yaml:"model"`
	APIKeyEnv string `yaml:"api_key_env"`
}

// MemoryConfig is how agents' memories rest.
type MemoryConfig struct {
	Search bool `yaml:"search"` // in a full-text index too, in the clear
}

// RetentionConfig is how long records stay; 0 is for ever.
type RetentionConfig struct {
	Events  time.Duration `yaml:"events"`
	Results time.Duration `yaml:"results"`
	Records time.Duration `yaml:"records"` // calls, evidence, audit
	Egress  time.Duration `yaml:"egress"`  // requests through the credential gateway
}

// AgentConfig is one agent, or what differs from a built-in one.
type AgentConfig struct {
	Description  string                        `yaml:"description"`
	Model        string                        `yaml:"model"`
	Prompt       string                        `yaml:"prompt"`
	Trust        plane.Trust                   `yaml:"trust"`
	Tools        *[]string                     `yaml:"tools"`
	MCP          Switch                        `yaml:"mcp"`
	Operators    []string                      `yaml:"operators"`
	Results      plane.Results                 `yaml:"results"`      // raw, or marked as data
	Names        plane.Names                   `yaml:"names"`        // prefixed, or bare
	Search       plane.SearchUse               `yaml:"search"`       // auto, on, off
	Calls        int                           `yaml:"calls"`        // in flight at one replica
	Rate         string                        `yaml:"rate"`         // as 60/m
	Interactive  bool                          `yaml:"interactive"`  // people are at hand
	Approvals    map[string]plane.ApprovalMode `yaml:"approvals"`    // pattern: always, ask, block
	Taint        plane.TaintUse                `yaml:"taint"`        // off, warn, enforce
	Rounds       []string                      `yaml:"rounds"`       // a pipeline of other agents' runs
	Servers      []string                      `yaml:"servers"`      // declarations that are attached
	Destinations []string                      `yaml:"destinations"` // named hosts that it may reach
	Connections  map[string]ConnectionConfig   `yaml:"connections"`
}

// Tier is a scope's connections.
type Tier struct {
	Connections map[string]ConnectionConfig `yaml:"connections"`
}

// TeamConfig is one team.
type TeamConfig struct {
	Members      []string                    `yaml:"members"`
	ConfigWrite  []string                    `yaml:"config_write"`
	Repo         string                      `yaml:"repo"`           // https address or path of the team's repository
	RepoTokenEnv string                      `yaml:"repo_token_env"` // the variable that holds its token
	Destinations *[]string                   `yaml:"destinations"`   // in place of the agents' own
	Connections  map[string]ConnectionConfig `yaml:"connections"`

	SlackChannels []string `yaml:"slack_channels"` // by id: whoever speaks there is of the team, for that
	Agent         string   `yaml:"agent"`          // who answers in them
}

// ConnectionConfig is one pinned connection.
type ConnectionConfig struct {
	Label         string      `yaml:"label"`
	URL           string      `yaml:"url"`
	Auth          plane.Auth  `yaml:"auth"`
	TokenEnv      string      `yaml:"token_env"`
	Agents        []string    `yaml:"agents"`
	Enabled       *bool       `yaml:"enabled"`
	ResponseBytes int         `yaml:"response_bytes"`
	Tools         ToolsConfig `yaml:"tools"`
	NewTools      string      `yaml:"new_tools"` // auto, or hold: new and changed definitions wait for a person
	ClientID      string      `yaml:"client_id"` // an OAuth client that the server's operator made
	ClientSecret  string      `yaml:"client_secret_env"`
	ClientAuth    string      `yaml:"client_auth"`

	Calls     int               `yaml:"calls"`      // in flight at one replica
	Rate      string            `yaml:"rate"`       // as 60/m
	ToolRates map[string]string `yaml:"tool_rates"` // glob: rate

	Labels  *[]string         `yaml:"labels"`           // private, untrusted, outward
	Targets map[string]string `yaml:"targets"`          // tool: argument path, as $.id
	Keys    map[string]string `yaml:"idempotency_keys"` // tool: argument
}

// ToolsConfig says which tools of a connection are used at all.
type ToolsConfig struct {
	Allow []string `yaml:"allow"` // globs
	Deny  []string `yaml:"deny"`
}

// EgressConfig opens what policy closes, and says where the credential gateway listens.
type EgressConfig struct {
	Listen       string                       `yaml:"listen"` // off: nowhere
	Allow        []netguard.Rule              `yaml:"allow"`
	Destinations map[string]DestinationConfig `yaml:"destinations"`
}

// DestinationConfig is a named host and how its secret goes in.
type DestinationConfig struct {
	Hosts   []string `yaml:"hosts"`
	Port    int      `yaml:"port"`
	Methods []string `yaml:"methods"`
	Paths   []string `yaml:"paths"`
	Inject  struct {
		Kind    string   `yaml:"kind"` // bearer, header, basic, query, body, aws_sigv4, hmac
		Name    string   `yaml:"name"`
		User    string   `yaml:"user"`
		Prefix  string   `yaml:"prefix"`
		Region  string   `yaml:"region"`  // of aws_sigv4
		Service string   `yaml:"service"` // the same
		Over    []string `yaml:"over"`    // of hmac
		Stamp   string   `yaml:"stamp"`   // the same
	} `yaml:"inject"`
	Tunnel bool     `yaml:"tunnel"`        // passed through, not looked into, nothing injected
	Secret string   `yaml:"inject_secret"` // secret:<ref>, connection:<id>, github_app:<ref>
	Needs  []string `yaml:"needs"`
}

// RegistryConfig says which servers are on offer.
type RegistryConfig struct {
	Path   string       `yaml:"path"`   // a directory, one declaration a file
	Links  []string     `yaml:"links"`  // hosts that proposals may link to
	Public bool         `yaml:"public"` // /v0.1 is for everybody who reaches this server
	Mirror MirrorConfig `yaml:"mirror"`
}

// MirrorConfig is an upstream registry that is mirrored.
type MirrorConfig struct {
	URL    string        `yaml:"url"`
	Every  time.Duration `yaml:"every"`
	Search string        `yaml:"search"` // only servers whose name holds it
}

// Switch is on unless it says otherwise.
type Switch struct {
	Enabled *bool `yaml:"enabled"`
}

// On reports the switch's position.
func (s Switch) On() bool { return s.Enabled == nil || *s.Enabled }

// ClusterConfig is one replica among several.
type ClusterConfig struct {
	Advertise string `yaml:"advertise"` // where the others reach this one
}

// TelemetryConfig says where spans go.
type TelemetryConfig struct {
	OTLP string `yaml:"otlp"`
}

// DefaultListen is the loopback address that serve listens on.
const DefaultListen = "127.0.0.1:7717"

// DefaultData is the data directory of the user who runs Patchbay.
func DefaultData() string {
	if d := os.Getenv("PATCHBAY_DATA"); d != "" {
		return d
	}
	if d := os.Getenv("XDG_DATA_HOME"); d != "" {
		return filepath.Join(d, "patchbay")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "patchbay-data"
	}
	return filepath.Join(home, ".local", "share", "patchbay")
}

// LoadConfig reads a file; an empty path gives the defaults.
func LoadConfig(path string) (*Config, error) {
	const day = 24 * time.Hour
	c := &Config{path: path, Limits: plane.DefaultLimits(), Retention: RetentionConfig{Events: 90 * day, Results: 7 * day, Records: 400 * day, Egress: 30 * day}}
	if path != "" {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, plane.Errorf(plane.InvalidInput, "The config file %s cannot be read.", path).Because(err)
		}
		if err := parseConfig(path, b, c); err != nil {
			return nil, err
		}
	}
	if c.Listen == "" {
		c.Listen = DefaultListen
	}
	if c.Data == "" || os.Getenv("PATCHBAY_DATA") != "" {
		c.Data = DefaultData() // the variable goes before the file
	}
	if rest, ok := strings.CutPrefix(c.Data, "~/"); ok {
		if home, err := os.UserHomeDir(); err == nil {
			c.Data = filepath.Join(home, rest)
		}
	}
	if c.Database == "" {
		c.Database = "sqlite"
	}
	return c, c.validate()
}

// parseConfig reads strictly: every error names file, line and column.
func parseConfig(path string, b []byte, c *Config) error {
	if len(strings.TrimSpace(string(b))) == 0 {
		return nil
	}
	err := yaml.UnmarshalWithOptions(b, c, yaml.Strict(), yaml.CustomUnmarshaler(unmarshalDuration))
	if err == nil || err.Error() == "EOF" {
		return nil
	}
	var at yaml.Error
	if !errors.As(err, &at) {
		return plane.Errorf(plane.InvalidInput, "%s: %s", path, firstLine(err.Error())).Because(err)
	}
	where := path
	word := ""
	if tk := at.GetToken(); tk != nil && tk.Position != nil {
		where = fmt.Sprintf("%s:%d:%d", path, tk.Position.Line, tk.Position.Column)
		word = tk.Value
	}
	var unknown *yaml.UnknownFieldError
	if errors.As(err, &unknown) {
		e := plane.Errorf(plane.InvalidInput, "%s: there is no key %q here.", where, word).At(word).Because(err)
		if n := plane.Nearest(word, configKeys()); n != "" && n != word {
			e.Message += fmt.Sprintf(" Did you mean %q?", n)
		}
		return e
	}
	return plane.Errorf(plane.InvalidInput, "%s: %s", where, firstLine(at.GetMessage())).Because(err)
}

var durationRE = regexp.MustCompile(`^"?(\d+(ms|s|m|h))+"?$`)

func unmarshalDuration(d *time.Duration, b []byte) error {
	text := strings.TrimSpace(string(b))
	if text == "0" {
		*d = 0
		return nil
	}
	if !durationRE.MatchString(text) {
		return fmt.Errorf("%s is no length of time; write 30s, 5m or 1h", text)
	}
	v, err := time.ParseDuration(strings.Trim(text, `"`))
	*d = v
	return err
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	return s
}

// configKeys are all keys of the file, for "did you mean".
func configKeys() []string {
	seen := map[reflect.Type]bool{}
	var out []string
	var walk func(t reflect.Type)
	walk = func(t reflect.Type) {
		for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct || seen[t] {
			return
		}
		seen[t] = true
		for i := range t.NumField() {
			f := t.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
			if name != "" {
				out = append(out, name)
				walk(f.Type)
			}
		}
	}
	walk(reflect.TypeFor[Config]())
	slices.Sort(out)
	return slices.Compact(out)
}

func (c *Config) bad(field, format string, args ...any) *plane.Error {
	where := c.path
	if where == "" {
		where = "config"
	}
	return plane.Errorf(plane.InvalidInput, where+": "+format, args...).At(field)
}

// validate holds what one field can be held to by itself; policy and netguard
// judge the rest when the app is built.
func (c *Config) validate() error {
	if err := c.Limits.Validate(); err != nil {
		return err
	}
	if c.Database != "sqlite" && !strings.HasPrefix(c.Database, "postgres://") && !strings.HasPrefix(c.Database, "postgresql://") {
		return c.bad("database", "database is sqlite or a postgres:// URL.")
	}
	for name, m := range c.Models {
		switch m.Provider {
		case "anthropic", "openai", "scripted":
		default:
			return c.bad("models."+name, "models.%s: the provider is %q; known are anthropic, openai and scripted.", name, m.Provider)
		}
		if m.Provider != "scripted" && m.Model == "" {
			return c.bad("models."+name, "models.%s names no model.", name)
		}
		if m.Schemas != "" && (m.Provider != "openai" || m.Schemas != "openai" && m.Schemas != "gemini") {
			return c.bad("models."+name, "models.%s: schemas goes with an openai endpoint and is openai or gemini.", name)
		}
	}
	for slug, a := range c.Agents {
		if !plane.ValidSlug(slug) {
			return c.bad("agents", "agents: %q is no slug; use a-z, 0-9 and -, at most %d characters.", slug, plane.MaxSlug)
		}
		if a.Trust != "" && a.Trust != plane.Open && a.Trust != plane.Guarded {
			return c.bad("agents."+slug, "agents.%s: trust is open or guarded.", slug)
		}
		if a.Tools != nil {
			for _, t := range *a.Tools {
				if !slices.Contains(run.OwnToolNames, t) {
					return c.bad("agents."+slug, "agents.%s: there is no tool %q; known are %s.", slug, t, strings.Join(run.OwnToolNames, ", "))
				}
			}
		}
	}
	if r := c.Retention; r.Events < 0 || r.Results < 0 || r.Records < 0 || r.Egress < 0 {
		return c.bad("retention", "retention: a length of time is not negative; 0 keeps for ever.")
	}
	for name := range c.Teams {
		if ch, ok := strings.CutPrefix(name, plane.ChannelTeam("")); !plane.ValidSlug(name) && !(ok && plane.ValidChannel(ch)) {
			return c.bad("teams", "teams: %q is no slug, of a-z, 0-9 and -, at most %d characters, and no slack:<channel id>.", name, plane.MaxSlug)
		}
	}
	for _, check := range []func() error{c.checkTeams, c.checkNATS, c.checkSlack, c.checkEgress, c.checkSandbox, c.checkVault, c.checkGitHubApps, c.checkClients} {
		if err := check(); err != nil {
			return err
		}
	}
	if err := c.checkIdentity(); err != nil {
		return err
	}
	return c.checkListen()
}

// SetListen replaces the address to listen on.
func (c *Config) SetListen(addr string) error {
	c.Listen = addr
	return c.checkListen()
}
