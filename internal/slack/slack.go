// Package slack is Patchbay in a workspace, over Socket Mode: mentions and direct messages
// are commands or runs, links go to the asker alone, and people decide by buttons. It
// promises that an event is written down before it is acknowledged and handled by one of the
// replicas, that no credential and no link is said where others read, that an address is
// believed where the workspace vouches for it and nowhere else, and that a restart loses at
// most the message that tells how a link ended.
package slack

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
	slackapi "github.com/slack-go/slack"

	"patchbay/internal/command"
	"patchbay/internal/plane"
	"patchbay/internal/run"
)

// Works keeps what the bot has taken upon itself.
type Works interface {
	Write(ctx context.Context, fn func(t plane.Tx) error) error
	AddChatWork(t plane.Tx, w *plane.ChatWork) (bool, error)
	ClaimChatWork(ctx context.Context, owner string, until time.Time, limit int) ([]plane.ChatWork, error)
	SaveChatWork(t plane.Tx, w *plane.ChatWork) error
	EndChatWork(t plane.Tx, w *plane.ChatWork) (bool, error)
}

// Holds keeps works ours while we are there.
type Holds interface {
	HoldChatWork(t plane.Tx, owner string, until time.Time) error
	ReleaseChatWork(t plane.Tx, owner string) error
	DeferChatWork(t plane.Tx, w *plane.ChatWork, until time.Time) error
}

// Finds finds works again.
type Finds interface {
	ChatWorkOfRun(ctx context.Context, run plane.RunID) (plane.ChatWork, error)
	ChatWorkOfMessage(ctx context.Context, channel, message string) (plane.ChatWork, error)
	ChatWorkByID(ctx context.Context, id string) (plane.ChatWork, error)
}

// Cards keeps the messages with buttons.
type Cards interface {
	AddChatCard(t plane.Tx, c *plane.ChatCard) (bool, error)
	PostedChatCard(t plane.Tx, c *plane.ChatCard) error
	EndChatCard(t plane.Tx, hash string) (bool, error)
	DropChatCard(t plane.Tx, hash string) error
	ChatCards(ctx context.Context, hash string) ([]plane.ChatCard, error)
}

// Asking is what waits for people.
type Asking interface {
	Approvals(ctx context.Context, open bool, limit int) ([]plane.Approval, error)
	Approval(ctx context.Context, id plane.ApprovalID) (plane.Approval, error)
	Calls(ctx context.Context, f plane.CallFilter) ([]plane.Call, error)
	CallByID(ctx context.Context, id plane.CallID) (plane.Call, error)
}

// Runs begins and follows runs.
type Runs interface {
	BeginIn(ctx context.Context, who plane.Principal, agent, prompt string, in run.Asked) (plane.Run, error)
	Events(ctx context.Context, id plane.RunID, after int64, limit int) ([]plane.Event, error)
	Watch(id plane.RunID) *run.Watch
	Get(ctx context.Context, id plane.RunID) (plane.Run, error)
	Arguments(ctx context.Context, c plane.Call) string
}

// Member is who speaks, as far as the workspace vouches for it.
type Member struct {
	Team, User, Name string
	Email            string // "" of guests, and where the app may not read it or nobody confirmed it
	Guest            bool
}

// Store is all that rests.
type Store interface {
	Works
	Holds
	Finds
	Cards
	Asking
}

// Options of a Bot.
type Options struct {
	API      *slackapi.Client
	Dialer   *websocket.Dialer // of the socket
	Store    Store
	Seal     func(id string, b []byte) []byte
	Open     func(id string, blob []byte) ([]byte, error)
	Commands *command.Registry
	Runs     Runs
	Person   func(ctx context.Context, m Member) (plane.Principal, error)
	Email    func(ctx context.Context, person string) string         // a person's verified address, or ""
	Team     func(channel string) string                             // what a channel is
	Agent    func(team string) string                                // who answers for a team, or with "" in direct messages
	Deciders func(agent string) []string                             // operators and admins, as config names them
	Owners   func(ctx context.Context, r plane.Run) ([]string, bool) // names of private connections that a run drew on; whether it did
	Guests   bool                                                    // guests of the workspace are answered
	RunPage  func(id plane.RunID) string
	ConnPage func(id plane.ConnectionID) string
	Owner    string // names this process in leases
	Now      func() time.Time
	Log      *slog.Logger
}

// Bot answers. Close it.
type Bot struct {
	o      Options
	me     atomic.Pointer[slackapi.AuthTestResponse]
	kick   chan struct{}
	work   sync.WaitGroup
	slots  chan struct{} // works at once
	seen   *memo         // of members and channels
	life   context.Context
	end    context.CancelFunc
	hidden atomic.Bool  // users:read.email is missing, and it was said
	drawn  atomic.Int64 // when a message was last changed on the way, in ms

	mu    sync.Mutex
	busy  map[string]int      // works under way, by member
	asked map[string]struct{} // whom we know to have been asked about what
}

// Bounds.
const (
	worksAtOnce = 4096 // most of them wait
	claimed     = 64   // at a time
	ofOne       = 20   // of one member's under way, at a replica
	lease       = 30 * time.Second
	lookEvery   = time.Second
	callTime    = 30 * time.Second
	maxWaits    = 6               // refusals of one request for going too fast
	maxRest     = 2 * time.Minute // of one of them
)

// New makes a bot; Start sets it going.
func New(o Options) *Bot {
	b := &Bot{o: o, kick: make(chan struct{}, 1), slots: make(chan struct{}, worksAtOnce), seen: newMemo(o.Now), busy: map[string]int{}, asked: map[string]struct{}{}}
	b.life, b.end = context.WithCancel(context.Background())
	return b
}

// Start begins to listen and to work. It does not wait for Slack.
func (b *Bot) Start() {
	b.work.Go(b.listen)
	b.work.Go(b.dispatch)
	b.work.Go(b.ask)
}

// Close stops and gives what is under way back to whoever goes on.
func (b *Bot) Close() {
	b.end()
	b.work.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := b.o.Store.Write(ctx, func(t plane.Tx) error { return b.o.Store.ReleaseChatWork(t, b.o.Owner) }); err != nil {
		b.o.Log.Warn("leases of Slack's messages could not be given back", "err", err)
	}
}

// poke has new work looked for at once.
func (b *Bot) poke() {
	select {
	case b.kick <- struct{}{}:
	default:
	}
}

// body is what is kept of an event until it is answered.
type body struct {
	Text    string `json:"text,omitempty"`
	User    string `json:"user,omitempty"`
	Team    string `json:"team,omitempty"` // the workspace
	Channel string `json:"channel,omitempty"`
	TS      string `json:"ts,omitempty"`     // of the message
	Thread  string `json:"thread,omitempty"` // its thread's first message
	Direct  bool   `json:"direct,omitempty"`
	Action  string `json:"action,omitempty"`
	Value   string `json:"value,omitempty"`
	Server  string `json:"server,omitempty"`
	Ticket  string `json:"ticket,omitempty"`
}

// root is the thread that is answered in.
func (c *body) root() string {
	if c.Thread != "" {
		return c.Thread
	}
	return c.TS
}

// take writes work down, once.
func (b *Bot) take(ctx context.Context, id, kind string, c body) error {
	raw, err := json.Marshal(c)
	if err != nil {
		return err
	}
	w := plane.ChatWork{ID: id, Kind: kind, Body: b.o.Seal(id, raw), By: c.User, Channel: c.Channel}
	err = b.o.Store.Write(ctx, func(t plane.Tx) error {
		_, err := b.o.Store.AddChatWork(t, &w)
		return err
	})
	if err == nil {
		b.poke()
	}
	return err
}

func (b *Bot) read(w *plane.ChatWork) (c body, err error) {
	raw, err := b.o.Open(w.ID, w.Body)
	if err == nil {
		err = json.Unmarshal(raw, &c)
	}
	return c, err
}

// dispatch hands out what nobody holds, and keeps what is ours.
func (b *Bot) dispatch() {
	held := b.o.Now()
	for b.life.Err() == nil {
		free := min(cap(b.slots)-len(b.slots), claimed)
		if free > 0 && b.me.Load() != nil { // before that nobody knows who is spoken to
			b.claim(free)
		}
		if now := b.o.Now(); now.Sub(held) > lease/3 && len(b.slots) > 0 {
			held = now
			err := b.o.Store.Write(b.life, func(t plane.Tx) error { return b.o.Store.HoldChatWork(t, b.o.Owner, t.Now().Add(lease)) })
			if err != nil && b.life.Err() == nil {
				b.o.Log.Warn("Slack's messages could not be held on to", "err", err)
			}
		}
		select {
		case <-b.kick:
		case <-time.After(lookEvery):
		case <-b.life.Done():
		}
	}
}

func (b *Bot) claim(free int) {
	works, err := b.o.Store.ClaimChatWork(b.life, b.o.Owner, b.o.Now().Add(lease), free)
	if err != nil {
		if b.life.Err() == nil {
			b.o.Log.Warn("Slack's messages could not be looked for", "err", err)
		}
		return
	}
	for i := range works {
		w := &works[i]
		b.slots <- struct{}{}
		b.work.Go(func() {
			defer func() { <-b.slots }()
			defer b.enter(w.By)()
			err := b.do(b.life, w)
			if err != nil && b.life.Err() == nil && plane.KindOf(err) != plane.Conflict {
				b.o.Log.Error("a message of Slack's could not be answered", "kind", w.Kind, "id", w.ID, "try", w.Attempts, "err", err)
			}
		})
	}
}

// enter counts what a member has under way.
func (b *Bot) enter(user string) (leave func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.busy[user]++
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.busy[user]--; b.busy[user] <= 0 {
			delete(b.busy, user)
		}
	}
}

// maxAttempts is how often a work is tried: for hours, with longer and longer rests.
const maxAttempts = 30

// again is when a work is tried anew that failed.
func again(attempts int) time.Duration {
	return min(time.Second<<min(attempts, 9), 5*time.Minute)
}

// do works on one thing until it has come to rest. What Slack or the database could not do
// now is left for later.
func (b *Bot) do(ctx context.Context, w *plane.ChatWork) error {
	c, err := b.read(w)
	if err != nil || w.Attempts > maxAttempts {
		return errors.Join(err, b.done(ctx, w))
	}
	switch w.Kind {
	case kindMessage:
		err = b.message(ctx, w, &c)
	case kindButton:
		err = b.button(ctx, &c)
	case kindStop:
		err = b.stopRun(ctx, &c)
	case kindHome:
		err = b.home(ctx, &c)
	case kindLink:
		return b.linkEnded(ctx, w, &c)
	}
	if ctx.Err() != nil {
		return ctx.Err() // whoever goes on does it again
	}
	if err != nil && passing(err) {
		rest := b.surely(ctx, func(t plane.Tx) error { return b.o.Store.DeferChatWork(t, w, t.Now().Add(again(w.Attempts))) })
		return errors.Join(err, rest)
	}
	return errors.Join(err, b.done(ctx, w))
}

// passing reports an error that another try may not meet.
func passing(err error) bool {
	var e slackapi.SlackErrorResponse
	if errors.As(err, &e) { // what Slack says to the token may change; what it says to a request stays
		return refusedAs(err, "account_inactive", "token_revoked", "invalid_auth", "not_authed", "fatal_error", "internal_error", "service_unavailable", "request_timeout", "ratelimited", "missing_scope")
	}
	switch plane.KindOf(err) {
	case plane.Conflict, plane.InvalidInput, plane.Forbidden, plane.NotFound, plane.Gone:
		return false
	}
	return true
}

func (b *Bot) done(ctx context.Context, w *plane.ChatWork) error {
	return b.surely(ctx, func(t plane.Tx) error {
		_, err := b.o.Store.EndChatWork(t, w)
		return err
	})
}

// surely writes as soon as the database lets it: a work that is neither ended nor left would
// be ours for as long as this process lives.
func (b *Bot) surely(ctx context.Context, fn func(t plane.Tx) error) error {
	for {
		err := b.o.Store.Write(ctx, fn)
		if err == nil || ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(lookEvery):
		case <-ctx.Done():
			return err
		}
	}
}

// slowly sends one request to Slack, and waits when Slack says that it came too fast.
func slowly[T any](ctx context.Context, fn func(ctx context.Context) (T, error)) (T, error) {
	for i := 0; ; i++ {
		one, cancel := context.WithTimeout(ctx, callTime)
		out, err := fn(one)
		cancel()
		var fast *slackapi.RateLimitedError
		var code slackapi.StatusCodeError
		rest := time.Duration(0)
		switch {
		case errors.As(err, &fast):
			rest = fast.RetryAfter
		case errors.As(err, &code) && code.Code == http.StatusTooManyRequests:
			rest = time.Second
		}
		if rest <= 0 || rest > maxRest || i == maxWaits {
			return out, err
		}
		select {
		case <-time.After(rest):
		case <-ctx.Done():
			return out, ctx.Err()
		}
	}
}

// refusedAs reports which of Slack's words an error is.
func refusedAs(err error, words ...string) bool {
	var e slackapi.SlackErrorResponse
	if !errors.As(err, &e) {
		return false
	}
	for _, w := range words {
		if e.Err == w {
			return true
		}
	}
	return false
}
