package app

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gorilla/websocket"
	slackapi "github.com/slack-go/slack"

	"patchbay/internal/authn"
	"patchbay/internal/netguard"
	"patchbay/internal/plane"
	"patchbay/internal/secret"
	"patchbay/internal/slack"
	"patchbay/internal/store"
)

// SlackConfig is a workspace that Patchbay is in.
type SlackConfig struct {
	AppToken string `yaml:"app_token_env"` // the variable with the app-level token, xapp-…
	BotToken string `yaml:"bot_token_env"` // the variable with the bot's token, xoxb-…
	Agent    string `yaml:"agent"`         // who answers in direct messages, and in channels that no team names
	Guests   bool   `yaml:"guests"`        // guests of the workspace are answered, too
	API      string `yaml:"api_url"`       // left out, https://slack.com/api/
}

func (s *SlackConfig) on() bool { return s.AppToken != "" }

const slackAPI = "https://slack.com/api/"

func (s *SlackConfig) api() string {
	if s.API == "" {
		return slackAPI
	}
	return strings.TrimSuffix(s.API, "/") + "/"
}

// checkSlack holds what config says of the workspace.
func (c *Config) checkSlack() error {
	s := &c.Slack
	if (s.AppToken == "") != (s.BotToken == "") {
		return c.bad("slack", "slack names two tokens: app_token_env and bot_token_env.")
	}
	u, err := url.Parse(s.api())
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Scheme != "https" && !(u.Scheme == "http" && loopbackHost(u.Hostname())) {
		return c.bad("slack.api_url", "slack.api_url is an https address.")
	}
	if s.Agent == "" {
		s.Agent = "general"
	}
	agents, err := c.agents()
	if err != nil {
		return err
	}
	if _, ok := agents[s.Agent]; !ok && s.on() {
		return c.bad("slack.agent", "slack.agent: there is no agent %q.", s.Agent)
	}
	by := map[string]string{}
	for _, name := range sortedKeys(c.Teams) {
		t := c.Teams[name]
		if _, ok := agents[t.Agent]; t.Agent != "" && !ok {
			return c.bad("teams."+name+".agent", "teams.%s.agent: there is no agent %q.", name, t.Agent)
		}
		for _, ch := range t.SlackChannels {
			if !plane.ValidChannel(ch) {
				return c.bad("teams."+name+".slack_channels", "teams.%s.slack_channels: %q is no id of a channel, as C0123ABCD; a channel's details show it.", name, ch)
			}
			if by[ch] != "" {
				return c.bad("teams."+name+".slack_channels", "teams.%s.slack_channels: %s is %s's already.", name, ch, by[ch])
			}
			by[ch] = name
		}
	}
	return nil
}

// slackClient is a client that reaches Slack and nothing else: the address of config, and
// the hosts of its domain that Slack names for sockets and files.
func (s *SlackConfig) client(app, bot string, log *slog.Logger, more ...slackapi.Option) (*slackapi.Client, *websocket.Dialer, error) {
	home, err := hostPort(s.api())
	if err != nil {
		return nil, nil, err
	}
	host, _, err := net.SplitHostPort(home)
	if err != nil {
		return nil, nil, err
	}
	t := netguard.InfraAmong(func(hostport string) bool {
		return hostport == home || strings.HasSuffix(hostport, "."+host+":443") && net.ParseIP(host) == nil
	})
	h := &http.Client{Transport: t, Timeout: time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	api := slackapi.New(bot, append(more, slackapi.OptionAppLevelToken(app), slackapi.OptionAPIURL(s.api()), slackapi.OptionHTTPClient(h),
		slackapi.OptionLog(slog.NewLogLogger(log.Handler(), slog.LevelDebug)))...)
	return api, &websocket.Dialer{NetDialContext: t.DialContext, HandshakeTimeout: 15 * time.Second}, nil
}

// tokens are what the environment holds.
func (s *SlackConfig) tokens() (app, bot string, err error) {
	for name, to := range map[string]*string{s.AppToken: &app, s.BotToken: &bot} {
		if *to = strings.TrimSpace(os.Getenv(name)); *to == "" {
			return "", "", plane.Errorf(plane.Unavailable, "The variable %s, which slack names, is not set.", name).Then("docs/slack.md says where the two tokens come from.")
		}
	}
	if !strings.HasPrefix(app, "xapp-") || !strings.HasPrefix(bot, "xoxb-") {
		return "", "", plane.Errorf(plane.Unavailable, "slack.app_token_env names a token that begins with xapp-, and slack.bot_token_env one that begins with xoxb-.").Then("docs/slack.md")
	}
	return app, bot, nil
}

// SlackDoctor looks whether the workspace that a config names can be worked in; to is a
// member's address who gets a message, or "".
func SlackDoctor(ctx context.Context, c *Config, to string) []slack.Checked {
	s := c.Slack
	if !s.on() {
		return []slack.Checked{{What: "config", Err: plane.Errorf(plane.InvalidInput, "The config (%s) names no workspace.", cmp.Or(c.path, "no file, defaults")).Then("docs/slack.md: slack.app_token_env and slack.bot_token_env")}}
	}
	app, bot, err := s.tokens()
	if err != nil {
		return []slack.Checked{{What: "tokens", Err: err}}
	}
	granted := ""
	api, dialer, err := s.client(app, bot, slog.New(slog.DiscardHandler), slackapi.OptionOnResponseHeaders(func(_ string, h http.Header) {
		if v := h.Get("X-OAuth-Scopes"); v != "" {
			granted = v
		}
	}))
	if err != nil {
		return []slack.Checked{{What: "config", Err: err}}
	}
	return slack.Doctor(ctx, api, dialer, func() string { return granted }, to)
}

func chatBind(id string) secret.Bind {
	return secret.Bind{Purpose: "content", Scope: "chat", Record: id}
}

// openSlack joins the workspace that config names.
func (a *App) openSlack() error {
	s := a.cfg.Slack
	if !s.on() {
		return nil
	}
	app, bot, err := s.tokens()
	if err != nil {
		return err
	}
	api, dialer, err := s.client(app, bot, a.o.Log)
	if err != nil {
		return err
	}
	a.slack = slack.New(slack.Options{API: api, Dialer: dialer, Store: a.store, Commands: a.commands, Runs: a.engine,
		Seal: func(id string, b []byte) []byte { return a.ring.Seal(chatBind(id), b) },
		Open: func(id string, blob []byte) ([]byte, error) { return a.ring.Open(chatBind(id), blob) },
		Person: func(ctx context.Context, m slack.Member) (plane.Principal, error) {
			return a.auth.Vouched(ctx, authn.Voucher{Issuer: "slack:" + m.Team, Subject: m.User, Email: m.Email, Name: m.Name, Guest: m.Guest})
		},
		Email: func(ctx context.Context, person string) string {
			p, err := a.store.Person(ctx, person)
			if err != nil {
				return ""
			}
			return p.Email
		},
		Team: func(channel string) string { return a.policy.Load().ChannelTeam(channel) },
		Agent: func(team string) string {
			if t := a.live.Load().Teams[team]; t.Agent != "" {
				return t.Agent
			}
			return a.live.Load().Slack.Agent
		},
		Deciders: func(agent string) []string {
			ag, _ := a.policy.Load().Agent(agent)
			return slices.Concat(ag.Operators, a.live.Load().Identity.Admins)
		},
		Owners: a.privateOf, Guests: s.Guests,
		RunPage: func(id plane.RunID) string { return a.publicURL() + "/runs/" + string(id) }, ConnPage: a.connectionPage,
		Owner: owner(), Now: a.o.Clock.Now, Log: a.o.Log})
	a.slack.Start()
	return nil
}

// privateOf are the names of somebody's own connections that a run had results of, its
// rounds' included.
func (a *App) privateOf(ctx context.Context, r plane.Run) (names []string, private bool) {
	return privateCalls(ctx, a.store, a.policy.Load().Connection, r.ID)
}

func privateCalls(ctx context.Context, s *store.Store, find func(plane.ConnectionID) (plane.Connection, bool), id plane.RunID) (names []string, private bool) {
	calls, err := s.CallsOfRun(ctx, id)
	if err != nil {
		return nil, true // what cannot be known is not shown
	}
	note := func(conn plane.ConnectionID, name string) {
		if c, ok := find(conn); ok && c.Scope.Kind != plane.ScopeUser {
			return
		}
		if private = true; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	own := map[string]bool{}
	for _, c := range calls {
		if own[string(c.Evidence)] = true; c.Attempts > 0 {
			note(c.Connection, c.Server)
		}
	}
	sources, err := s.Lineage(ctx, string(id))
	if err != nil {
		return names, true
	}
	for _, src := range sources {
		if src == plane.UnknownSource {
			return append(names, "memory"), true
		}
		if !strings.HasPrefix(src, "evd_") || own[src] { // what people said in the thread is there for all to read
			continue
		}
		e, err := s.EvidenceByID(ctx, plane.EvidenceID(src))
		if err != nil {
			return append(names, "memory"), true
		}
		note(e.Connection, "memory")
	}
	rounds, err := s.Rounds(ctx, id)
	if err != nil {
		return names, true
	}
	for _, r := range rounds {
		more, p := privateCalls(ctx, s, find, r.ID)
		names, private = append(names, more...), private || p
	}
	return names, private
}

// closeSlack leaves the workspace.
func (a *App) closeSlack() {
	if a.slack != nil {
		a.slack.Close()
	}
}
