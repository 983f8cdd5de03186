package slack

import (
	"context"
	"strings"

	slackapi "github.com/slack-go/slack"

	"patchbay/internal/plane"
)

// A run's answer that draws on somebody's own connections is shown to them first. The card
// says where it would go: the run, the channel, our message there and its thread.

const showCard = "show"

// askOwner shows an answer to whom it belongs to, and asks whether the channel may see it.
func (b *Bot) askOwner(ctx context.Context, w *plane.ChatWork, c *body, r *plane.Run, names []string) error {
	drew := "`" + escape(strings.Join(names, "`, `")) + "`"
	token, hash := newToken()
	card := plane.ChatCard{Hash: hash, Subject: strings.Join([]string{showCard, string(r.ID), c.Channel, w.Message, c.root()}, " "), Asked: c.User}
	fresh := false
	err := b.o.Store.Write(ctx, func(t plane.Tx) (err error) {
		fresh, err = b.o.Store.AddChatCard(t, &card)
		return err
	})
	if err != nil {
		return err
	}
	if !fresh { // it was asked before a restart; one that was not sent is forgotten, and made anew
		return b.change(ctx, c.Channel, w.Message, askedOwner(c.User))
	}
	head := ":lock: This draws on " + drew + ", which is your own. Everybody in <#" + c.Channel + "> would read it."
	blocks := append([]slackapi.Block{section(head)}, sections(chat(short(r.Answer)))...)
	blocks = append(blocks, note(b.evidence(r, nil)), buttons(token, actionShow, "Show it there", actionKeep, "Keep it here"))
	if err := b.send(ctx, &card, func() (said, error) { return said{text: head, blocks: blocks}, nil }); err != nil {
		return err // it is tried again
	}
	return b.change(ctx, c.Channel, w.Message, askedOwner(c.User))
}

func askedOwner(user string) said {
	text := ":lock: The answer draws on <@" + user + ">'s own connections, so it was sent to them alone. They say whether it is shown here."
	return said{text: text, blocks: []slackapi.Block{section(text)}}
}

// short is what of an answer fits a card.
func short(s string) string {
	if r := []rune(s); len(r) > 9000 {
		return string(r[:9000]) + "…\n(The whole stands on the page of the run.)"
	}
	return s
}

// released takes the owner's word on an answer.
func (b *Bot) released(ctx context.Context, c *body) error {
	card, err := b.cardOf(ctx, c)
	if err != nil {
		return err
	}
	at := strings.Fields(card.Subject)
	if len(at) != 5 || at[0] != showCard {
		return plane.Errorf(plane.Gone, "This button is over, or it was not sent to you.")
	}
	r, err := b.o.Runs.Get(ctx, plane.RunID(at[1]))
	if err != nil {
		return err
	}
	told := ":lock: You kept it here."
	if c.Action == actionShow {
		told = ":white_check_mark: You showed it in <#" + at[2] + ">."
		err = b.show(ctx, at[2], at[3], &body{Channel: at[2], Thread: at[4]}, &r, nil)
	} else {
		text := ":lock: <@" + card.Asked + "> kept the answer to themselves."
		err = b.change(ctx, at[2], at[3], said{text: text, blocks: []slackapi.Block{section(text)}})
	}
	if err != nil {
		return err
	}
	err = b.o.Store.Write(ctx, func(t plane.Tx) error {
		_, err := b.o.Store.EndChatCard(t, card.Hash)
		return err
	})
	if err != nil {
		return err
	}
	blocks := append(sections(chat(short(r.Answer))), note(told))
	return b.change(ctx, card.Channel, card.Message, said{text: told, blocks: blocks})
}
