package slack

import (
	"context"
	"regexp"
	"strings"
	"unicode/utf8"

	slackapi "github.com/slack-go/slack"
)

// Bounds of what Slack shows: of a block's text, of the blocks of a message, and from where
// on a command's output is a file.
const (
	maxBlock = 2900
	maxLong  = 3000
	partSize = 3500
)

// said is a message: its text is what notifications and readers without blocks show.
type said struct {
	text   string
	blocks []slackapi.Block
}

func (s said) options(more ...slackapi.MsgOption) []slackapi.MsgOption {
	out := append([]slackapi.MsgOption{slackapi.MsgOptionText(s.text, false), slackapi.MsgOptionDisableLinkUnfurl(), slackapi.MsgOptionDisableMediaUnfurl()}, more...)
	if len(s.blocks) > 0 {
		out = append(out, slackapi.MsgOptionBlocks(s.blocks...))
	}
	return out
}

// post says something in a channel, in a thread where there is one, and returns its id.
func (b *Bot) post(ctx context.Context, channel, thread string, s said, more ...slackapi.MsgOption) (string, error) {
	if thread != "" {
		more = append(more, slackapi.MsgOptionTS(thread))
	}
	return slowly(ctx, func(ctx context.Context) (string, error) {
		_, ts, err := b.o.API.PostMessageContext(ctx, channel, s.options(more...)...)
		return ts, err
	})
}

// change replaces a message of ours.
func (b *Bot) change(ctx context.Context, channel, ts string, s said) error {
	if len(s.blocks) == 0 {
		s.blocks = sections(s.text) // blocks that stood there go
	}
	_, err := slowly(ctx, func(ctx context.Context) (string, error) {
		_, ts, _, err := b.o.API.UpdateMessageContext(ctx, channel, ts, s.options()...)
		return ts, err
	})
	return err
}

// whisper tells one person: where they are, unseen by others, or in a direct message.
func (b *Bot) whisper(ctx context.Context, c *body, s said) error {
	if !c.Direct && c.Channel != "" {
		more := []slackapi.MsgOption{}
		if c.Thread != "" {
			more = append(more, slackapi.MsgOptionTS(c.Thread))
		}
		_, err := slowly(ctx, func(ctx context.Context) (string, error) {
			return b.o.API.PostEphemeralContext(ctx, c.Channel, c.User, s.options(more...)...)
		})
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return err
		}
		b.o.Log.Warn("a person could not be told in the channel; a direct message is tried", "err", err)
	}
	_, _, err := b.direct(ctx, c.User, s)
	return err
}

// direct says something to one person in their direct messages.
func (b *Bot) direct(ctx context.Context, user string, s said) (channel, ts string, err error) {
	ch, err := slowly(ctx, func(ctx context.Context) (*slackapi.Channel, error) {
		ch, _, _, err := b.o.API.OpenConversationContext(ctx, &slackapi.OpenConversationParameters{Users: []string{user}})
		return ch, err
	})
	if err != nil {
		return "", "", err
	}
	ts, err = b.post(ctx, ch.ID, "", s)
	return ch.ID, ts, err
}

// reply says what a command said: whole, however long it is. What is long is a file whose
// first line is the message; where files cannot be sent it comes in parts.
func (b *Bot) reply(ctx context.Context, c *body, name, text string) error {
	text = strings.TrimRight(text, "\n")
	if text == "" {
		text = "Done."
	}
	if utf8.RuneCountInString(text) <= maxLong {
		_, err := b.post(ctx, c.Channel, c.root(), said{text: fenced(escape(text))})
		return err
	}
	first, _, _ := strings.Cut(text, "\n")
	if err := b.attach(ctx, c, name, clip(first, 300)+"\n\n```\n"+strings.ReplaceAll(text, "```", "` ` `")+"\n```\n"); err == nil || ctx.Err() != nil {
		return err
	} else {
		b.o.Log.Warn("a file could not be sent to Slack; its text is sent in parts", "err", err)
	}
	for _, part := range parts(text) {
		if _, err := b.post(ctx, c.Channel, c.root(), said{text: fenced(escape(part))}); err != nil {
			return err
		}
	}
	return nil
}

// fenced keeps the columns of what has several lines.
func fenced(text string) string {
	if !strings.Contains(text, "\n") {
		return text
	}
	return "```\n" + strings.ReplaceAll(text, "```", "` ` `") + "\n```"
}

// attach sends CommonMark as a file, by the two steps that Slack takes.
func (b *Bot) attach(ctx context.Context, c *body, name, text string) error {
	first, _, _ := strings.Cut(text, "\n")
	content := text
	_, err := slowly(ctx, func(ctx context.Context) (*slackapi.FileSummary, error) {
		return b.o.API.UploadFileContext(ctx, slackapi.UploadFileParameters{Filename: name + ".md", Title: name + ".md", Content: content, FileSize: len(content),
			Channel: c.Channel, ThreadTimestamp: c.root(), InitialComment: escape(clip(first, 300))})
	})
	return err
}

// parts cuts text at its lines, into what one message takes; nothing is left out.
func parts(text string) (out []string) {
	for len(text) > 0 {
		if len(text) <= partSize {
			return append(out, text)
		}
		at := strings.LastIndexByte(text[:partSize], '\n') + 1
		if at == 0 {
			for at = partSize; !utf8.RuneStart(text[at]); at-- {
			}
		}
		out = append(out, strings.TrimSuffix(text[:at], "\n"))
		text = text[at:]
	}
	return out
}

// sections are blocks of text, as many as it takes.
func sections(text string) (out []slackapi.Block) {
	for len(text) > 0 && len(out) < 48 {
		at := len(text)
		if at > maxBlock {
			if at = strings.LastIndexByte(text[:maxBlock], '\n') + 1; at == 0 {
				for at = maxBlock; !utf8.RuneStart(text[at]); at-- {
				}
			}
		}
		if piece := strings.TrimSpace(text[:at]); piece != "" {
			out = append(out, section(piece))
		}
		text = text[at:]
	}
	return out
}

func section(mrkdwn string) slackapi.Block {
	return slackapi.NewSectionBlock(slackapi.NewTextBlockObject(slackapi.MarkdownType, mrkdwn, false, true), nil, nil)
}

func note(mrkdwn string) slackapi.Block {
	return slackapi.NewContextBlock("", slackapi.NewTextBlockObject(slackapi.MarkdownType, mrkdwn, false, true))
}

// escape makes text text: nobody is mentioned and no link is made by what somebody wrote.
func escape(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(s)
}

var (
	boldRE    = regexp.MustCompile(`\*\*([^*\n]+)\*\*`)
	headRE    = regexp.MustCompile(`(?m)^#{1,6}\s+(.+)$`)
	mdLinkRE  = regexp.MustCompile(`\[([^\]\n]+)\]\((https?://[^)\s]+)\)`)
	chatLink  = regexp.MustCompile(`<(https?://[^|>\s]+)\|([^>]+)>`)
	bareLinks = regexp.MustCompile(`<(https?://[^|>\s]+)>`)
)

// chat is what a model wrote, in CommonMark, in Slack's dialect. A link shows where it goes:
// the words of one are not ours.
func chat(s string) string {
	var out strings.Builder
	for i, part := range strings.Split(s, "```") {
		if i > 0 {
			out.WriteString("```")
		}
		part = escape(part)
		if i%2 == 0 {
			part = headRE.ReplaceAllString(part, "*$1*")
			part = boldRE.ReplaceAllString(part, "*$1*")
			part = mdLinkRE.ReplaceAllString(part, "$1 ($2)")
		}
		out.WriteString(part)
	}
	return out.String()
}

func clip(s string, n int) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}
