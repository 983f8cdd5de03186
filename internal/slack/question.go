package slack

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

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
	switch {
	case err != nil && passing(err):
		return err // Slack does not say who it is, for now
	case err != nil:
		return b.tell(ctx, c, err)
	case b.tooMuch(c.User):
		return b.tell(ctx, c, plane.Errorf(plane.Limited, "You have %d things under way here. Wait for one, or stop one.", ofOne))
	case b.isCommand(c.Text):
		return b.command(ctx, w, c, who)
	}
	return b.question(ctx, w, c, who)
}

// tell says in the thread what went wrong, and what to do.
func (b *Bot) tell(ctx context.Context, c *body, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if plane.KindOf(err) == plane.Internal {
		b.o.Log.Error("what was asked in Slack failed", "err", err)
	}
	_, err = b.post(ctx, c.Channel, c.root(), said{text: escape(plane.Sentence(err))})
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
	if first := firstLine(c.Text); err != nil && first != strings.TrimSpace(c.Text) { // what follows is said to people
		cmd, in, help, err = b.o.Commands.ParseChat(first)
	}
	if err == nil && cmd == nil {
		return b.reply(ctx, c, "help", help)
	}
	if err != nil {
		return b.tell(ctx, c, err)
	}
	if w.Attempts > 1 && !cmd.ReadOnly {
		_, err := b.post(ctx, c.Channel, c.root(), said{text: "This command was interrupted, so whether it was done is not known. Look before you send it again: mcp list"})
		return err
	}
	out, err := cmd.Run(ctx, who, in)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return b.tell(ctx, c, err)
	}
	if added, ok := out.(*command.MCPAdded); ok && (added.Link != "" || added.SignInURL != "") {
		return b.sendLink(ctx, c, added)
	}
	name, text := strings.ReplaceAll(cmd.Name, ".", "-"), b.text(out)
	if c.Direct || forAll(cmd.Name, in, text) {
		return b.reply(ctx, c, name, text)
	}
	return b.replyAlone(ctx, c, name, text)
}

// wide is wider than any table, so that nothing of one is cut.
const wide = 4000

func (b *Bot) text(out command.Output) string {
	var s strings.Builder
	out.Text(&s, command.Style{Terminal: true, Width: wide, Now: b.o.Now()})
	return s.String()
}

// Commands whose output the people of a channel may read: what was done, what is on offer,
// and what one server offers that was named there. All else is the asker's alone.
var (
	done = []string{"mcp.disable", "mcp.enable", "mcp.edit", "mcp.rename", "mcp.remove", "mcp.logout", "mcp.tools-set", "mcp.tool-set", "mcp.classify", "mcp.propose", "mcp.accept", "mcp.forget",
		"runs.start", "runs.cancel", "runs.resolve", "approvals.decide", "agents.list", "registry.list", "registry.show", "registry.add", "registry.remove", "registry.attach", "registry.detach",
		"proposals.list", "proposals.show", "destinations.list", "version"}
	ofServer = []string{"mcp.add", "mcp.connect", "mcp.show", "mcp.test", "mcp.refresh", "mcp.tools", "mcp.diff"}
)

// opensRE finds links that let whoever has them in.
var opensRE = regexp.MustCompile(`https?://\S+/(?:mcp/connect|signin/local)/\S`)

// forAll reports whether a command's output may stand where others read it: what was done, and
// the catalog of a server that the asker named there.
func forAll(name string, in any, text string) bool {
	if opensRE.MatchString(text) {
		return false
	}
	var of struct{ Name string }
	raw, err := json.Marshal(in)
	return slices.Contains(done, name) || slices.Contains(ofServer, name) && err == nil && json.Unmarshal(raw, &of) == nil && of.Name != ""
}

// replyAlone says what a command said to the asker alone: where they are when it is short,
// else in their direct messages.
func (b *Bot) replyAlone(ctx context.Context, c *body, name, text string) error {
	text = strings.TrimSpace(text)
	if utf8.RuneCountInString(text) <= maxLong {
		if text == "" {
			text = "Done."
		}
		return b.whisper(ctx, c, said{text: fenced(escape(text))})
	}
	channel, ts, err := b.direct(ctx, c.User, said{text: escape(clip(b.plain(c.Text), 200))})
	if err != nil {
		return err
	}
	if err := b.reply(ctx, &body{Channel: channel, TS: ts, User: c.User, Direct: true}, name, text); err != nil {
		return err
	}
	return b.whisper(ctx, c, said{text: "It is long, and yours alone: look into your direct messages with me."})
}

// tooMuch reports that a member has more under way than one may.
func (b *Bot) tooMuch(user string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.busy[user] > ofOne
}

// actionOpen is the button that is a link; Slack tells us of the press, and nobody waits for
// an answer.
const actionOpen = "open"

// sendLink gives the link to the asker alone; the thread hears that it was sent.
func (b *Bot) sendLink(ctx context.Context, c *body, added *command.MCPAdded) error {
	to, verb := added.Link, "Connect "
	name := added.Server.Name
	if to != added.Link {
		_, err := b.post(ctx, c.Channel, c.root(), said{text: "From a chat the link is the way: mcp connect " + name})
		return err
	}
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
	in := run.Asked{Conversation: "slack:" + c.Channel + ":" + c.root() + ":" + who.ID, Before: before, Also: func(t plane.Tx, id plane.RunID) error {
		w.Run = id
		return b.o.Store.SaveChatWork(t, w)
	}}
	if _, err := b.o.Runs.BeginIn(ctx, who, agent, prompt, in); err != nil {
		w.Run = ""
		if plane.KindOf(err) == plane.Conflict { // another replica holds it by now
			return err
		}
		return b.tell(ctx, c, err)
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

// history is what was said in a thread before the question, oldest first, a JSON object for
// each message. What is not to be had is left out: the question stands without it.
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
		name := "you"
		if me == nil || m.User != me.UserID {
			who, err := b.member(ctx, m.User)
			if err != nil || m.BotID != "" { // other programs, and people of elsewhere, ask nothing of us
				continue
			}
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
	return strings.Join(lines, "\n")
}
