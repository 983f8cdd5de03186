package slack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	slackapi "github.com/slack-go/slack"

	"patchbay/internal/command"
	"patchbay/internal/plane"
)

// Names of buttons.
const (
	actionStop   = "stop"
	actionDeny   = "deny"
	actionOnce   = "approve"
	actionAlways = "always-allow"
	actionDone   = "done"
	actionNot    = "not-done"
	actionAgain  = "send-again"
	actionShow   = "show"
	actionKeep   = "keep"
	actionFix    = "fix"
)

// metadata names our message of a run to whoever goes on after a restart.
const metadata = "patchbay_run"

// Messages change on the way at most so often, all together: Slack lets about fifty changes
// a minute pass, and the answers come first.
const (
	updateEvery = 2 * time.Second
	followEvery = 2 * time.Second // for runs that another replica works on
)

func (b *Bot) mayDraw() bool {
	now, last := time.Now().UnixMilli(), b.drawn.Load()
	return now-last >= updateEvery.Milliseconds() && b.drawn.CompareAndSwap(last, now)
}

// draw changes a message on the way, without waiting for a turn: what could not be drawn is
// drawn a little later.
func (b *Bot) draw(ctx context.Context, channel, ts string, s said) bool {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	_, _, _, err := b.o.API.UpdateMessageContext(ctx, channel, ts, s.options()...)
	if err != nil {
		b.o.Log.Debug("a message of a run was not changed on the way", "err", err)
	}
	return err == nil
}

// shown is how a run stands, as its message tells it.
type shown struct {
	at    int64 // the last event
	tool  string
	calls int
	waits string
	ended bool
}

// follow keeps one message in the thread up to date until the run has ended.
func (b *Bot) follow(ctx context.Context, w *plane.ChatWork, c *body) error {
	if w.Message == "" {
		if err := b.firstMessage(ctx, w, c); err != nil {
			return err
		}
	}
	watch := b.o.Runs.Watch(w.Run)
	defer watch.Close()
	var s shown
	last, own := "", map[string]bool(nil)
	for {
		if err := b.catchUp(ctx, w.Run, &s); err != nil {
			return err
		}
		if s.ended {
			return b.answer(ctx, w, c, &s)
		}
		if own == nil && s.tool != "" {
			own = b.ownServers(ctx, c)
		}
		if now := s.line(own); now != last && b.mayDraw() && b.draw(ctx, c.Channel, w.Message, said{text: now, blocks: b.working(now, w.Run)}) {
			last = now
		}
		select {
		case <-watch.News:
		case <-time.After(followEvery):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// firstMessage posts what will be the answer. After a restart the one that is there is found
// by its metadata.
func (b *Bot) firstMessage(ctx context.Context, w *plane.ChatWork, c *body) error {
	if w.Attempts > 1 {
		w.Message = b.find(ctx, w.Run, c)
	}
	if w.Message == "" {
		var err error
		w.Message, err = b.post(ctx, c.Channel, c.root(), said{text: looking, blocks: b.working(looking, w.Run)},
			slackapi.MsgOptionMetadata(slackapi.SlackMetadata{EventType: metadata, EventPayload: map[string]any{"run": string(w.Run)}}))
		if err != nil {
			return err
		}
	}
	return b.o.Store.Write(ctx, func(t plane.Tx) error { return b.o.Store.SaveChatWork(t, w) })
}

const looking = ":hourglass_flowing_sand: Looking…"

func (b *Bot) find(ctx context.Context, id plane.RunID, c *body) string {
	msgs, err := slowly(ctx, func(ctx context.Context) ([]slackapi.Message, error) {
		m, _, _, err := b.o.API.GetConversationRepliesContext(ctx, &slackapi.GetConversationRepliesParameters{ChannelID: c.Channel, Timestamp: c.root(), Oldest: c.TS, Limit: 200, IncludeAllMetadata: true})
		return m, err
	})
	if err != nil {
		return ""
	}
	for _, m := range msgs {
		if m.Metadata.EventType == metadata && m.Metadata.EventPayload["run"] == string(id) {
			return m.Timestamp
		}
	}
	return ""
}

// catchUp takes in what happened since.
func (b *Bot) catchUp(ctx context.Context, id plane.RunID, s *shown) error {
	for {
		evs, err := b.o.Runs.Events(ctx, id, s.at, 200)
		if err != nil {
			return err
		}
		for i := range evs {
			s.take(&evs[i])
		}
		if len(evs) < 200 {
			break
		}
	}
	if s.ended {
		return nil
	}
	r, err := b.o.Runs.Get(ctx, id) // a run that ended before it was worked on has no such event
	if err == nil && r.State.Ended() {
		s.ended = true
	}
	return err
}

func (s *shown) take(ev *plane.Event) {
	s.at = ev.Seq
	switch ev.Kind {
	case plane.EventToolCall:
		var d struct{ Name string }
		if json.Unmarshal(ev.Data, &d) == nil {
			s.tool = d.Name
		}
		s.calls, s.waits = s.calls+1, ""
	case plane.EventToolResult, plane.EventTurnStarted:
		s.tool, s.waits = "", ""
	case plane.EventApprovalRequested:
		s.waits = "approval"
	case plane.EventCallUnknown:
		s.waits = "unknown"
	case plane.EventApprovalDecided, plane.EventCallResolved, plane.EventRunResumed:
		s.waits = ""
	case plane.EventRunEnded:
		s.ended = true
	}
}

// ownServers are the asker's own connections, by name, where everybody reads along.
func (b *Bot) ownServers(ctx context.Context, c *body) map[string]bool {
	own := map[string]bool{}
	if c.Direct || !b.public(ctx, c.Channel) {
		return own
	}
	who, _, err := b.caller(ctx, c)
	if err != nil {
		return own
	}
	l, err := command.Perform[command.MCPList](ctx, b.o.Commands, who, "mcp.list", &command.MCPListInput{})
	if err != nil {
		return own
	}
	for _, s := range l.Servers {
		if strings.HasPrefix(s.Scope, "user:") {
			own[s.Name] = true
		}
	}
	return own
}

// line is what the message says while the run is at work; of the asker's own servers it
// names none.
func (s *shown) line(own map[string]bool) string {
	switch {
	case s.waits == "approval":
		return ":raised_hand: Waiting for a person: a call needs approval. Whoever may decide was asked."
	case s.waits == "unknown":
		return ":grey_question: Waiting for a person: nobody knows whether a call took effect. Whoever may decide was asked."
	case s.tool != "" && own[serverOf(s.tool)]:
		return ":wrench: Using a tool of your own…"
	case s.tool != "":
		return ":wrench: Using " + toolName(s.tool) + "…"
	}
	return looking
}

// serverOf is books of mcp__books__pay.
func serverOf(alias string) string {
	if p := strings.SplitN(alias, "__", 3); len(p) == 3 && p[0] == "mcp" {
		return p[1]
	}
	return ""
}

// toolName is mcp__books__pay as people read it.
func toolName(alias string) string {
	if p := strings.SplitN(alias, "__", 3); len(p) == 3 && p[0] == "mcp" {
		return "`" + escape(p[2]) + "` of " + escape(p[1])
	}
	return "`" + escape(alias) + "`"
}

func (b *Bot) working(text string, id plane.RunID) []slackapi.Block {
	stop := slackapi.NewButtonBlockElement(actionStop, string(id), slackapi.NewTextBlockObject(slackapi.PlainTextType, "Stop", false, false))
	return []slackapi.Block{section(text), slackapi.NewActionBlock("", stop)}
}

// answer puts the run's end in place of its message. What draws on somebody's own
// connections is not shown in a public channel before its owner says so.
func (b *Bot) answer(ctx context.Context, w *plane.ChatWork, c *body, s *shown) error {
	r, err := b.o.Runs.Get(ctx, w.Run)
	if err != nil {
		return err
	}
	if r.State == plane.RunSucceeded && !c.Direct && b.public(ctx, c.Channel) {
		if names, private := b.o.Owners(ctx, r); private {
			return b.askOwner(ctx, w, c, &r, names)
		}
	}
	err = b.show(ctx, c.Channel, w.Message, c, &r, s)
	switch {
	case refusedAs(err, "message_not_found", "cant_update_message", "edit_window_closed"):
		w.Message = "" // somebody deleted it: the answer comes as another
		if err := b.firstMessage(ctx, w, c); err != nil {
			return err
		}
		return b.show(ctx, c.Channel, w.Message, c, &r, s)
	case refusedAs(err, "channel_not_found", "is_archived", "not_in_channel", "channel_is_archived", "restricted_action"):
		_, _, derr := b.direct(ctx, c.User, said{text: "The answer could not be shown where you asked. It stands here: " + b.o.RunPage(r.ID)})
		return errors.Join(err, derr)
	}
	return err
}

// show writes how a run ended over a message.
func (b *Bot) show(ctx context.Context, channel, ts string, c *body, r *plane.Run, s *shown) error {
	foot := note(b.evidence(r, s))
	switch r.State {
	case plane.RunSucceeded:
		text := chat(strings.TrimSpace(r.Answer))
		if text == "" {
			text = "_No words came._"
		}
		if len([]rune(r.Answer)) > maxLong {
			return b.showLong(ctx, channel, ts, c, r, foot)
		}
		blocks := append(sections(text), foot)
		return b.change(ctx, channel, ts, said{text: clip(text, maxLong), blocks: blocks})
	case plane.RunCancelled:
		text := ":octagonal_sign: Stopped. " + escape(r.Reason)
		return b.change(ctx, channel, ts, said{text: text, blocks: []slackapi.Block{section(text), foot}})
	}
	text := ":x: That did not work. " + escape(r.Reason)
	return b.change(ctx, channel, ts, said{text: text, blocks: []slackapi.Block{section(clip(text, maxBlock)), foot}})
}

// showLong shows a long answer: a file, or where that cannot be sent, parts.
func (b *Bot) showLong(ctx context.Context, channel, ts string, c *body, r *plane.Run, foot slackapi.Block) error {
	lead := chat(clip(firstLine(r.Answer), 300))
	err := b.attach(ctx, c, "answer", r.Answer)
	if ctx.Err() != nil {
		return err
	}
	if err == nil {
		return b.change(ctx, channel, ts, said{text: lead, blocks: []slackapi.Block{section(lead), foot}})
	}
	b.o.Log.Warn("an answer could not be sent as a file; it is sent in parts", "err", err)
	all := parts(r.Answer)
	for _, p := range all[1:] {
		if _, err := b.post(ctx, channel, c.root(), said{text: chat(p)}); err != nil {
			return err
		}
	}
	return b.change(ctx, channel, ts, said{text: clip(chat(all[0]), maxLong), blocks: append(sections(chat(all[0])), foot)})
}

// evidence says what an answer stands on, and where that is shown.
func (b *Bot) evidence(r *plane.Run, s *shown) string {
	calls := "no calls"
	switch {
	case s != nil && s.calls == 1:
		calls = "1 call"
	case s != nil && s.calls > 1:
		calls = fmt.Sprintf("%d calls", s.calls)
	}
	return fmt.Sprintf("%s, %s · <%s?evidence=1|Where this comes from>", escape(r.Agent), calls, b.o.RunPage(r.ID))
}

// stopRun stops a run: by a reaction under its message or its question, or since the
// question was taken back.
func (b *Bot) stopRun(ctx context.Context, c *body) error {
	w, err := b.o.Store.ChatWorkOfMessage(ctx, c.Channel, c.TS)
	if plane.KindOf(err) == plane.NotFound {
		w, err = b.o.Store.ChatWorkByID(ctx, "message:"+c.Channel+":"+c.TS) // of what somebody wrote
	}
	if err != nil || w.Run == "" {
		return ignoreMissing(err)
	}
	who, _, err := b.caller(ctx, &body{User: c.User, Team: c.Team, Channel: c.Channel, Direct: isDirect(c.Channel)})
	if err != nil {
		return err
	}
	return b.cancel(ctx, who, w.Run)
}

func ignoreMissing(err error) error {
	if plane.KindOf(err) == plane.NotFound {
		return nil
	}
	return err
}

// cancel stops a run for who may; an ended one is left alone.
func (b *Bot) cancel(ctx context.Context, who plane.Principal, id plane.RunID) error {
	cmd, err := b.o.Commands.Get("runs.cancel")
	if err != nil {
		return err
	}
	_, err = cmd.Run(ctx, who, &command.RunInput{Run: string(id)})
	if k := plane.KindOf(err); k == plane.Conflict || k == plane.Gone || k == plane.NotFound {
		return nil
	}
	return err
}
