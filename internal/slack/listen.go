package slack

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	slackapi "github.com/slack-go/slack"
	"github.com/slack-go/slack/socketmode"
)

// Kinds of work.
const (
	kindMessage = "message"
	kindButton  = "button"
	kindStop    = "stop"
	kindHome    = "home"
	kindLink    = "link"
)

// listen holds the socket open as long as the bot lives.
func (b *Bot) listen() {
	for pause := time.Second; b.life.Err() == nil; pause = min(2*pause, 30*time.Second) {
		began := time.Now()
		err := b.connected(b.life)
		if b.life.Err() != nil {
			return
		}
		if time.Since(began) > time.Minute {
			pause = time.Second
		}
		b.o.Log.Warn("Slack is not to be had; it is tried again", "err", err, "next", "patchbay slack doctor")
		select {
		case <-time.After(pause):
		case <-b.life.Done():
		}
	}
}

// connected opens one socket and takes events until it ends.
func (b *Bot) connected(ctx context.Context) error {
	me, err := slowly(ctx, b.o.API.AuthTestContext)
	if err != nil {
		return err
	}
	if b.me.Swap(me) == nil {
		b.o.Log.Info("in the workspace "+me.Team, "as", me.User)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sock := socketmode.New(b.o.API, socketmode.OptionDialer(b.o.Dialer), socketmode.OptionReadLimit(maxEnvelope))
	ended := make(chan error, 1)
	go func() { ended <- sock.RunContext(ctx) }()
	for {
		select {
		case err := <-ended:
			return err
		case ev := <-sock.Events:
			if ev.Request == nil {
				continue
			}
			if err := b.accept(ctx, ev.Request); err != nil {
				b.o.Log.Warn("an event of Slack's could not be written down; Slack sends it again", "err", err)
				continue
			}
			if err := sock.AckCtx(ctx, ev.Request.EnvelopeID, nil); err != nil && ctx.Err() == nil {
				b.o.Log.Warn("an event of Slack's could not be acknowledged", "err", err)
			}
		}
	}
}

const maxEnvelope = 1 << 20

// envelope is what we read of an event.
type envelope struct {
	TeamID string `json:"team_id"`
	Event  struct {
		Type        string `json:"type"`
		Subtype     string `json:"subtype"`
		User        string `json:"user"`
		BotID       string `json:"bot_id"`
		Text        string `json:"text"`
		TS          string `json:"ts"`
		ThreadTS    string `json:"thread_ts"`
		Channel     string `json:"channel"`
		ChannelType string `json:"channel_type"`
		DeletedTS   string `json:"deleted_ts"`
		EventTS     string `json:"event_ts"`
		Tab         string `json:"tab"`
		Reaction    string `json:"reaction"`
		Item        struct {
			Channel string `json:"channel"`
			TS      string `json:"ts"`
		} `json:"item"`
		PreviousMessage struct {
			User string `json:"user"`
		} `json:"previous_message"`
	} `json:"event"`
}

// accept writes an event down, so that it is answered whatever happens to this process. An
// event that comes again, from Slack's retries or to another replica, is the same one.
func (b *Bot) accept(ctx context.Context, r *socketmode.Request) error {
	switch r.Type {
	case "events_api":
		var e envelope
		if err := json.Unmarshal(r.Payload, &e); err != nil {
			return nil // nobody can answer it
		}
		return b.event(ctx, &e)
	case "interactive":
		var i slackapi.InteractionCallback
		if err := json.Unmarshal(r.Payload, &i); err != nil || i.Type != slackapi.InteractionTypeBlockActions || len(i.ActionCallback.BlockActions) != 1 {
			return nil
		}
		a := i.ActionCallback.BlockActions[0]
		if a.ActionID == actionOpen { // a link of its own
			return nil
		}
		c := body{Action: a.ActionID, Value: a.Value, User: i.User.ID, Team: i.Team.ID, Channel: i.Channel.ID, TS: i.Container.MessageTs, Thread: i.Container.ThreadTs}
		return b.take(ctx, "button:"+c.Channel+":"+c.TS+":"+c.User+":"+a.ActionID+":"+a.ActionTs, kindButton, c)
	}
	return nil
}

// stopReactions are what people put under a message to have it stop.
var stopReactions = []string{"x", "octagonal_sign", "no_entry", "no_entry_sign", "stop_sign", "black_square_for_stop"}

func (b *Bot) event(ctx context.Context, e *envelope) error {
	ev := &e.Event
	c := body{Text: ev.Text, User: ev.User, Team: e.TeamID, Channel: ev.Channel, TS: ev.TS, Thread: ev.ThreadTS, Direct: isDirect(ev.Channel)}
	switch {
	case ev.Type == "app_home_opened" && ev.Tab != "messages":
		return b.take(ctx, "home:"+ev.User+":"+ev.EventTS, kindHome, body{User: ev.User, Team: e.TeamID})
	case ev.Type == "reaction_added":
		for _, r := range stopReactions {
			if ev.Reaction == r {
				return b.take(ctx, "stop:"+ev.Item.Channel+":"+ev.Item.TS+":"+ev.User+":"+ev.EventTS, kindStop, body{User: ev.User, Team: e.TeamID, Channel: ev.Item.Channel, TS: ev.Item.TS})
			}
		}
		return nil
	case ev.Type == "message" && ev.Subtype == "message_deleted":
		return b.take(ctx, "gone:"+ev.Channel+":"+ev.DeletedTS, kindStop, body{User: ev.PreviousMessage.User, Team: e.TeamID, Channel: ev.Channel, TS: ev.DeletedTS})
	case ev.BotID != "" || ev.User == "" || ev.Subtype != "" && ev.Subtype != "file_share" && ev.Subtype != "thread_broadcast":
		return nil // another bot's, an edit, or nobody's
	case ev.Type == "app_mention", ev.Type == "message" && c.Direct:
		if me := b.me.Load(); me != nil && ev.User == me.UserID {
			return nil
		}
		// A mention in a direct message is two events of one message.
		return b.take(ctx, "message:"+ev.Channel+":"+ev.TS, kindMessage, c)
	}
	return nil
}

// isDirect reports a channel of one person and us.
func isDirect(channel string) bool { return strings.HasPrefix(channel, "D") }

// mentioned reports whether the text speaks to the bot, outside of code.
func mentioned(text, user string) bool {
	for i, part := range strings.Split(text, "```") {
		if i%2 == 1 {
			continue
		}
		for j, piece := range strings.Split(part, "`") {
			if j%2 == 0 && (strings.Contains(piece, "<@"+user+">") || strings.Contains(piece, "<@"+user+"|")) {
				return true
			}
		}
	}
	return false
}
