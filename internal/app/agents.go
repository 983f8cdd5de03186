package app

import (
	"cmp"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"

	"patchbay/internal/bridge"
	"patchbay/internal/model"
	"patchbay/internal/netguard"
	"patchbay/internal/plane"
	"patchbay/internal/secret"
)

func sortedKeys[M ~map[K]V, K cmp.Ordered, V any](m M) []K { return slices.Sorted(maps.Keys(m)) }

// builtin are the agents that are there without a word of config.
func builtin() map[string]plane.Agent {
	return map[string]plane.Agent{
		"general": {Slug: "general", Trust: plane.Open, Description: "Questions of every kind.", Tools: []string{"current_time"},
			Prompt: "You are a helpful assistant. Use the tools you have when they can answer better than you can from memory, say what you found, and say so when a tool failed."},
		"research": {Slug: "research", Trust: plane.Open, Description: "Finding things out, with sources.", Tools: []string{"current_time"},
			Prompt: "You find things out. Look in several places where you can, compare what they say, name your sources, and tell what you could not confirm."},
		"coding": {Slug: "coding", Trust: plane.Guarded, Description: "Changing code.", Tools: []string{},
			Prompt: "You change code. Make the smallest change that does what is asked, and say how it was checked."},
		"review": {Slug: "review", Trust: plane.Guarded, Description: "Reading code, changing nothing.", Tools: []string{},
			Prompt: "You review code. You change nothing. Say what is wrong, where, and why it matters, most important first."},
		"ship": {Slug: "ship", Trust: plane.Guarded, Description: "A change from request to reviewed result, in rounds of coding and review.", Tools: []string{},
			Rounds: []string{"coding", "review", "coding"}},
	}
}

// agents are the built-in agents with what config says of them, and its own.
func (c *Config) agents() (map[string]plane.Agent, error) {
	out := builtin()
	for _, slug := range sortedKeys(c.Agents) {
		cc := c.Agents[slug]
		a, ok := out[slug]
		if !ok {
			a = plane.Agent{Slug: slug, Trust: plane.Guarded, Tools: []string{}}
		}
		a.Description = cmp.Or(cc.Description, a.Description)
		a.Prompt = cmp.Or(cc.Prompt, a.Prompt)
		a.Trust = cmp.Or(cc.Trust, a.Trust)
		a.Model = cc.Model
		a.Operators, a.Servers, a.Destinations = cc.Operators, cc.Servers, cc.Destinations
		a.Results, a.Names, a.Search = cmp.Or(cc.Results, plane.Raw), cmp.Or(cc.Names, plane.Prefixed), cmp.Or(cc.Search, plane.SearchAuto)
		if err := c.oneOf("agents."+slug+".results", string(a.Results), string(plane.Raw), string(plane.Marked)); err != nil {
			return nil, err
		}
		if err := c.oneOf("agents."+slug+".names", string(a.Names), string(plane.Prefixed), string(plane.Bare)); err != nil {
			return nil, err
		}
		if err := c.oneOf("agents."+slug+".search", string(a.Search), string(plane.SearchAuto), string(plane.SearchOn), string(plane.SearchOff)); err != nil {
			return nil, err
		}
		if err := c.governed(&a, cc); err != nil {
			return nil, err
		}
		var err error
		if a.Throttle, err = c.throttle("agents."+slug, cc.Calls, cc.Rate, nil); err != nil {
			return nil, err
		}
		if cc.Tools != nil {
			a.Tools = *cc.Tools
		}
		out[slug] = a
	}
	for slug, a := range out {
		for _, r := range a.Rounds {
			if round, ok := out[r]; !ok || len(round.Rounds) > 0 {
				return nil, c.bad("agents."+slug+".rounds", "agents.%s: a round is a run of an agent without rounds of its own; %q is none.", slug, r)
			}
		}
		a.MCP, a.Revision = c.MCP.On() && c.Agents[slug].MCP.On(), 1
		a.Model = cmp.Or(a.Model, "default")
		if _, ok := c.models()[a.Model]; !ok {
			e := c.bad("agents."+slug, "agents.%s uses the model %q, which is not under models.", slug, a.Model)
			if n := plane.Nearest(a.Model, sortedKeys(c.models())); n != "" {
				e.Next = "Did you mean " + n + "?"
			}
			return nil, e
		}
		out[slug] = a
	}
	return out, nil
}

// maxRounds bounds a pipeline.
const maxRounds = 16

// governed reads what an agent's calls are held to.
func (c *Config) governed(a *plane.Agent, cc AgentConfig) error {
	path := "agents." + a.Slug
	a.Interactive, a.Taint = cc.Interactive, cmp.Or(cc.Taint, plane.TaintWarn)
	if err := c.oneOf(path+".taint", string(a.Taint), string(plane.TaintOff), string(plane.TaintWarn), string(plane.TaintEnforce)); err != nil {
		return err
	}
	a.Approvals = nil
	for _, pattern := range sortedKeys(cc.Approvals) {
		mode := cc.Approvals[pattern]
		if err := c.oneOf(path+".approvals."+pattern, string(mode), string(plane.Always), string(plane.Ask), string(plane.Block)); err != nil {
			return err
		}
		if !strings.HasPrefix(pattern, "mcp__") && pattern != "*" {
			return c.bad(path+".approvals", "%s.approvals: %q names no tool; write mcp__server__tool, where * stands for anything.", path, pattern)
		}
		a.Approvals = append(a.Approvals, plane.ToolMode{Pattern: pattern, Mode: mode})
	}
	if cc.Rounds != nil {
		if a.Rounds = cc.Rounds; len(a.Rounds) > maxRounds {
			return c.bad(path+".rounds", "%s has more than %d rounds.", path, maxRounds)
		}
	}
	return nil
}

// throttle reads what an agent or connection says of its calls.
func (c *Config) throttle(path string, calls int, rate string, tools map[string]string) (t plane.Throttle, err error) {
	if calls < 0 {
		return t, c.bad(path, "%s: calls must not be negative.", path)
	}
	t.InFlight = calls
	if rate != "" {
		if t.Rate, err = plane.ParseRate(rate); err != nil {
			return t, c.bad(path, "%s: %s", path, plane.Public(err).Message)
		}
	}
	for _, glob := range sortedKeys(tools) {
		r, err := plane.ParseRate(tools[glob])
		if err != nil {
			return t, c.bad(path, "%s: %s", path, plane.Public(err).Message)
		}
		t.Tools = append(t.Tools, plane.ToolRate{Tool: glob, Rate: r})
	}
	return t, nil
}

// oneOf refuses a value that is none of those.
func (c *Config) oneOf(path, value string, of ...string) error {
	if slices.Contains(of, value) {
		return nil
	}
	return c.bad(path, "%s is %q; it may be %s.", path, value, strings.Join(of, ", "))
}

// Names of models used where config names none and a key is there.
const (
	defaultAnthropic = "claude-sonnet-4-6"
	defaultOpenAI    = "gpt-5.2"
)

// models are the configured models, with a default: the first of two providers
// whose key is in the environment, else the scripted one.
func (c *Config) models() map[string]ModelConfig {
	out := maps.Clone(c.Models)
	if out == nil {
		out = map[string]ModelConfig{}
	}
	if _, ok := out["default"]; ok {
		return out
	}
	switch {
	case os.Getenv("ANTHROPIC_API_KEY") != "":
		out["default"] = ModelConfig{Provider: "anthropic", Model: defaultAnthropic, APIKeyEnv: "ANTHROPIC_API_KEY"}
	case os.Getenv("OPENAI_API_KEY") != "":
		out["default"] = ModelConfig{Provider: "openai", Model: defaultOpenAI, APIKeyEnv: "OPENAI_API_KEY"}
	default:
		out["default"] = ModelConfig{Provider: "scripted"}
	}
	return out
}

// provider builds one model. Each endpoint has a transport of its own that
// reaches nothing else.
func (c *Config) provider(name string) (model.Provider, error) {
	m, ok := c.models()[name]
	if !ok {
		return nil, plane.Errorf(plane.NotFound, "There is no model %q.", name)
	}
	if m.Provider == "scripted" {
		return model.NewScripted(m.Script), nil
	}
	e := model.Endpoint{BaseURL: m.BaseURL, Model: m.Model, Schemas: m.Schemas}
	if m.APIKeyEnv != "" {
		v := os.Getenv(m.APIKeyEnv)
		if v == "" {
			return nil, plane.Errorf(plane.Unavailable, "The model %s has no key: the variable %s is not set.", name, m.APIKeyEnv).
				Then("Set " + m.APIKeyEnv + " and start Patchbay again.")
		}
		e.Key = secret.New(v)
	}
	base := cmp.Or(m.BaseURL, map[string]string{"anthropic": model.AnthropicURL, "openai": model.OpenAIURL}[m.Provider])
	target, err := hostPort(base)
	if err != nil {
		return nil, c.bad("models."+name, "models.%s: base_url cannot be read.", name)
	}
	e.Client = &http.Client{Transport: netguard.Infra(target),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if m.Provider == "anthropic" {
		return model.NewAnthropic(e), nil
	}
	return model.NewOpenAI(e), nil
}

// embedder is the endpoint that tool search may ask, where config names one.
func (c *Config) embedder() (bridge.Embedder, error) {
	m := c.Embeddings
	if m.BaseURL == "" {
		return nil, nil
	}
	target, err := hostPort(m.BaseURL)
	if err != nil || m.Model == "" {
		return nil, c.bad("embeddings", "embeddings needs a base_url and a model.")
	}
	e := model.Endpoint{BaseURL: m.BaseURL, Model: m.Model, Client: &http.Client{Transport: netguard.Infra(target),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	if m.APIKeyEnv != "" {
		v, ok := lookup(m.APIKeyEnv)
		if !ok {
			return nil, c.bad("embeddings", "The variable %s, which embeddings names, is not set.", m.APIKeyEnv)
		}
		e.Key = v
	}
	return model.NewEmbedder(e), nil
}

// hostPort is where a URL's host is dialled.
func hostPort(raw string) (string, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", plane.Errorf(plane.InvalidInput, "%q is not an http or https URL.", raw)
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port), nil
}
