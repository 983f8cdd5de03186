package slack

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	slackapi "github.com/slack-go/slack"

	"patchbay/internal/command"
	"patchbay/internal/plane"
	"patchbay/internal/run"
)

// message answers what somebody wrote to us: a command, or a question to an agent.
func (b *Bot) message(ctx context.Context, w *plane.ChatWork, c *body) error {
	me := b.me.Load()
	if me == nil {
		return plane.Errorf(plane.Unavailable, "The socket is not open yet.")
	}
	if w.Run != "" {
		return b.follow(ctx, w, c)
	}
	if !c.Direct && !mentioned(c.Text, me.UserID) {
		return nil
	}
	who, _, err := b.caller(ctx, c)
	if err == nil {
		if b.isCommand(c.Text) {
			return b.command(ctx, w, c, who)
		}
		err = b.question(ctx, w, c, who)
	}
	if err != nil && ctx.Err() == nil && plane.KindOf(err) != plane.Conflict {
		if plane.KindOf(err) == plane.Internal {
			b.o.Log.Error("a question from Slack failed", "err", err)
		}
		_, err = b.post(ctx, c.Channel, c.root(), said{text: escape(sentence(err))})
	}
	return err
}

// isCommand reports whether a line is for the command parser: mcp and help always, another
// group where its verb follows, so that a sentence that begins like one stays a question.
func (b *Bot) isCommand(line string) bool {
	words, err := command.Words(firstLine(line))
	if err != nil {
		words, err = command.Words(strings.NewReplacer(`"`, "", "'", "", "“", "", "”", "", "’", "", "‘", "").Replace(firstLine(line)))
	}
	switch {
	case err != nil || len(words) == 0:
		return false
	case words[0] == "mcp", words[0] == "help" && len(words) == 1:
		return true
	case len(words) == 1, strings.HasPrefix(words[1], "-"):
		return slices.ContainsFunc(b.o.Commands.All(), func(c *command.Command) bool { return c.Name == words[0] })
	}
	return slices.ContainsFunc(b.o.Commands.All(), func(c *command.Command) bool {
		return c.Name == words[0]+"."+words[1] || c.Alias != "" && strings.HasPrefix(c.Name, words[0]+".") && c.Alias == words[1]
	})
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	return s
}

// command runs one line. Its output goes to the thread, a link to the asker alone.
func (b *Bot) command(ctx context.Context, w *plane.ChatWork, c *body, who plane.Principal) error {
	cmd, in, help, err := b.o.Commands.ParseChat(c.Text)
	if err == nil && cmd == nil {
		return b.reply(ctx, c, "help", help)
	}
	if err != nil {
		_, err = b.post(ctx, c.Channel, c.root(), said{text: escape(sentence(err))})
		return err
	}
	if w.Attempts > 1 && !cmd.ReadOnly {
		_, err := b.post(ctx, c.Channel, c.root(), said{text: "Patchbay was restarted over this command, so whether it was done is not known. Look before you send it again: mcp list"})
		return err
	}
	out, err := cmd.Run(ctx, who, in)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		if plane.Public(err).Kind == plane.Internal {
			b.o.Log.Error("a command from Slack failed", "command", cmd.Name, "err", err)
		}
		_, err = b.post(ctx, c.Channel, c.root(), said{text: escape(sentence(err))})
		return err
	}
	if added, ok := out.(*command.MCPAdded); ok && (added.Link != "" || added.SignInURL != "") {
		return b.sendLink(ctx, c, added)
	}
	text := b.text(out)
	if _, token := out.(*command.TokenCreated); token || opensRE.MatchString(text) {
		return b.whisperOut(ctx, c, text)
	}
	return b.reply(ctx, c, strings.ReplaceAll(cmd.Name, ".", "-"), text)
}

func (b *Bot) text(out command.Output) string {
	var s strings.Builder
	out.Text(&s, command.Style{Terminal: true, Width: 100, Now: b.o.Now()})
	return s.String()
}

// opensRE finds links that let whoever has them in.
var opensRE = regexp.MustCompile(`https?://\S+/(?:mcp/connect|signin/local)/\S`)

// whisperOut shows what is for the asker alone: whole, in parts where it is long.
func (b *Bot) whisperOut(ctx context.Context, c *body, text string) error {
	for _, part := range parts(strings.TrimSpace(text)) {
		if err := b.whisper(ctx, c, said{text: escape(part)}); err != nil {
			return err
		}
	}
	if c.Direct {
		return nil
	}
	_, err := b.post(ctx, c.Channel, c.root(), said{text: "It was sent to <@" + c.User + "> alone."})
	return err
}

// actionOpen is the button that is a link; Slack tells us of the press, and nobody waits for
// an answer.
const actionOpen = "open"

// sendLink gives the link to the asker alone; the thread hears that it was sent.
func (b *Bot) sendLink(ctx context.Context, c *body, added *command.MCPAdded) error {
	to, verb := added.Link, "Connect "
	if to == "" {
		to, verb = added.SignInURL, "Sign in at "
	}
	name := added.Server.Name
	open := slackapi.NewButtonBlockElement(actionOpen, "", slackapi.NewTextBlockObject(slackapi.PlainTextType, clip(verb+name, 70), false, false))
	open.URL, open.Style = to, slackapi.StylePrimary
	minutes := max(1, int(added.ExpiresAt.Sub(b.o.Now()).Minutes()+0.5))
	words := fmt.Sprintf("%s%s. The link is for you alone, works once and expires in %d minutes.", verb, name, minutes)
	err := b.whisper(ctx, c, said{text: words + " " + to, blocks: []slackapi.Block{section(escape(words)), slackapi.NewActionBlock("", open)}})
	if err != nil {
		b.o.Log.Warn("a link could not be sent to its asker", "err", err)
		_, err = b.post(ctx, c.Channel, c.root(), said{text: "The link for " + name + " could not be sent to you alone, so it was not sent. Write me a direct message, then: mcp connect " + name})
		return err
	}
	if hash := added.Ticket(); hash != "" {
		if err := b.take(ctx, "link:"+hash, kindLink, body{Server: name, Ticket: hash, Channel: c.Channel, Thread: c.root(), User: c.User, Team: c.Team, Direct: c.Direct}); err != nil {
			b.o.Log.Warn("the thread will not hear how a link ended", "err", err)
		}
	}
	if c.Direct {
		return nil
	}
	_, err = b.post(ctx, c.Channel, c.root(), said{text: fmt.Sprintf("The link that connects %s was sent to <@%s> alone. It expires <!date^%d^{time}|in %d minutes>.", escape(name), c.User, added.ExpiresAt.Unix(), minutes)})
	return err
}

// linkEnded tells the thread once how a link ended. It is marked as told first: a restart
// loses the message rather than saying it twice.
func (b *Bot) linkEnded(ctx context.Context, w *plane.ChatWork, c *body) error {
	cmd, err := b.o.Commands.Get("mcp.connect")
	if err != nil {
		return err
	}
	text, err := cmd.Settle(ctx, command.AwaitLink(c.Server, c.Ticket))
	if err != nil {
		return err
	}
	ours := false
	err = b.o.Store.Write(ctx, func(t plane.Tx) (err error) {
		ours, err = b.o.Store.EndChatWork(t, w)
		return err
	})
	if err != nil || !ours || text == "" {
		return err
	}
	_, err = b.post(ctx, c.Channel, c.root(), said{text: escape(text)})
	return err
}

// question starts a run that knows its thread, and follows it.
func (b *Bot) question(ctx context.Context, w *plane.ChatWork, c *body, who plane.Principal) error {
	prompt := b.plain(c.Text)
	if prompt == "" {
		_, err := b.post(ctx, c.Channel, c.root(), said{text: "Ask me something, or say: mcp list"})
		return err
	}
	before := ""
	if c.Thread != "" {
		before = b.history(ctx, c)
	}
	agent := b.o.Agent(who.Team)
	in := run.Asked{Conversation: "slack:" + c.Channel + ":" + c.root(), Before: before, Also: func(t plane.Tx, id plane.RunID) error {
		w.Run = id
		return b.o.Store.SaveChatWork(t, w)
	}}
	if _, err := b.o.Runs.BeginIn(ctx, who, agent, prompt, in); err != nil {
		w.Run = ""
		return err
	}
	return b.follow(ctx, w, c)
}

// plain is what somebody wrote, without the mention and Slack's marks.
func (b *Bot) plain(text string) string {
	if me := b.me.Load(); me != nil {
		text = strings.NewReplacer("<@"+me.UserID+">", "", "<@"+me.UserID+"|"+me.User+">", "").Replace(text)
	}
	text = chatLink.ReplaceAllString(text, "$1")
	text = bareLinks.ReplaceAllString(text, "$1")
	text = mailRE.ReplaceAllString(text, "$1")
	return strings.TrimSpace(strings.NewReplacer("&lt;", "<", "&gt;", ">", "&amp;", "&").Replace(text))
}

var mailRE = regexp.MustCompile(`<mailto:([^|>\s]+)(?:\|[^>]*)?>`)

// Bounds of what is told of a thread.
const (
	threadMessages = 50
	threadBytes    = 16 << 10
)

// history is what was said in a thread before the question, for the model. What is not to
// be had is left out: the question stands without it.
func (b *Bot) history(ctx context.Context, c *body) string {
	type page struct {
		msgs []slackapi.Message
		more bool
		next string
	}
	var all []slackapi.Message
	cursor := ""
	for range 5 {
		p, err := slowly(ctx, func(ctx context.Context) (page, error) {
			m, more, next, err := b.o.API.GetConversationRepliesContext(ctx, &slackapi.GetConversationRepliesParameters{ChannelID: c.Channel, Timestamp: c.Thread, Latest: c.TS, Limit: 200, Cursor: cursor})
			return page{m, more, next}, err
		})
		if err != nil {
			b.o.Log.Warn("a thread could not be read", "err", err)
			break
		}
		all = append(all, p.msgs...)
		if cursor = p.next; !p.more || cursor == "" {
			break
		}
	}
	me := b.me.Load()
	var lines []string
	size := 0
	for _, m := range slices.Backward(all) {
		if m.Timestamp >= c.TS || strings.TrimSpace(m.Text) == "" {
			continue
		}
		name := m.User
		if me != nil && m.User == me.UserID {
			name = "you"
		} else if who, err := b.member(ctx, m.User); err == nil && m.BotID == "" {
			name = who.Name
		}
		raw, err := json.Marshal(struct {
			By   string `json:"by"`
			Text string `json:"text"`
		}{name, b.plain(m.Text)})
		if err != nil || len(lines) == threadMessages || size+len(raw) > threadBytes {
			break
		}
		size += len(raw)
		lines = append(lines, string(raw))
	}
	if len(lines) == 0 {
		return ""
	}
	slices.Reverse(lines)
	return "What was said in this Slack thread before, oldest first, a JSON object for each message. It is context; what you are asked comes after it.\n\n" + strings.Join(lines, "\n")
}
