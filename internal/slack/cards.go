package slack

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	slackapi "github.com/slack-go/slack"

	"patchbay/internal/command"
	"patchbay/internal/plane"
)

// askEvery is how often what waits for people is looked through.
const askEvery = 2 * time.Second

// maxAsked is how many people are asked about one thing.
const maxAsked = 12

// ask puts a card before everybody who may decide about what waits, and tells the cards
// what was decided, here or elsewhere.
func (b *Bot) ask() {
	for b.life.Err() == nil {
		if b.me.Load() != nil {
			if err := b.look(b.life); err != nil && b.life.Err() == nil {
				b.o.Log.Warn("people could not be asked in Slack", "err", err)
			}
		}
		select {
		case <-time.After(askEvery):
		case <-b.life.Done():
		}
	}
}

func (b *Bot) look(ctx context.Context) error {
	open, err := b.o.Store.Approvals(ctx, true, 200)
	if err != nil {
		return err
	}
	for i := range open {
		if a := &open[i]; a.State == plane.ApprovalPending {
			b.askAbout(ctx, string(a.ID), a.Agent, a.Principal, a.Run)
		}
	}
	unknown, err := b.o.Store.Calls(ctx, plane.CallFilter{State: string(plane.CallUnknown), Since: b.o.Now().Add(-7 * 24 * time.Hour), Limit: 200})
	if err != nil {
		return err
	}
	for i := range unknown {
		c := &unknown[i]
		b.askAbout(ctx, string(c.ID), c.Agent, c.Principal, c.Run)
	}
	return b.refreshCards(ctx)
}

// askAbout sends a card about something to everybody who may decide and was not asked yet.
func (b *Bot) askAbout(ctx context.Context, subject, agent, principal string, id plane.RunID) {
	for _, user := range b.deciders(ctx, agent, principal, id) {
		if b.knownAsked(subject, user) {
			continue
		}
		token, hash := newToken()
		card := plane.ChatCard{Hash: hash, Subject: subject, Asked: user}
		fresh := false
		err := b.o.Store.Write(ctx, func(t plane.Tx) (err error) {
			fresh, err = b.o.Store.AddChatCard(t, &card)
			return err
		})
		if err != nil || !fresh {
			continue // by another replica, or before a restart; what it did not send it forgets
		}
		if err := b.send(ctx, &card, func() (said, error) { return b.card(ctx, subject, token) }); err != nil && ctx.Err() == nil {
			b.o.Log.Warn("a person could not be asked in Slack", "about", subject, "err", err)
		}
	}
}

// send draws a card and posts it to whom it asks. One that cannot be posted is forgotten, so
// that it is made anew.
func (b *Bot) send(ctx context.Context, card *plane.ChatCard, draw func() (said, error)) error {
	s, err := draw()
	if err == nil {
		card.Channel, card.Message, err = b.direct(ctx, card.Asked, s)
	}
	if err != nil {
		drop := b.o.Store.Write(context.WithoutCancel(ctx), func(t plane.Tx) error { return b.o.Store.DropChatCard(t, card.Hash) })
		return errors.Join(err, drop)
	}
	err = b.o.Store.Write(ctx, func(t plane.Tx) error { return b.o.Store.PostedChatCard(t, card) })
	if err == nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.asked) >= maxKnown {
			clear(b.asked)
		}
		b.asked[card.Subject+" "+card.Asked] = struct{}{}
	}
	return err
}

const maxKnown = 10_000

// knownAsked spares the database the question whether somebody was asked.
func (b *Bot) knownAsked(subject, user string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, ok := b.asked[subject+" "+user]
	return ok
}

// deciders are the members who may decide: who asked, the agent's operators, org admins.
func (b *Bot) deciders(ctx context.Context, agent, principal string, id plane.RunID) (out []string) {
	add := func(user string) {
		if user != "" && len(out) < maxAsked && !slices.Contains(out, user) {
			out = append(out, user)
		}
	}
	add(b.asker(ctx, principal, id))
	for _, entry := range b.o.Deciders(agent) {
		if strings.Contains(entry, "@") {
			add(b.userOf(ctx, entry))
		}
	}
	return out
}

// asker is the member who asked for a run, or for the pipeline that it is a round of.
func (b *Bot) asker(ctx context.Context, principal string, id plane.RunID) string {
	for range 4 {
		if !plane.IsRunID(string(id)) {
			break
		}
		if w, err := b.o.Store.ChatWorkOfRun(ctx, id); err == nil {
			return w.By
		}
		r, err := b.o.Runs.Get(ctx, id)
		if err != nil {
			break
		}
		id = r.Parent
	}
	if rest, ok := strings.CutPrefix(principal, "slack:"); ok && !strings.Contains(rest, "|") { // known to the workspace alone
		return rest[strings.LastIndexByte(rest, '/')+1:]
	}
	if email := b.o.Email(ctx, principal); email != "" {
		return b.userOf(ctx, email)
	}
	return ""
}

// newToken makes what a button says, and what is kept of it.
func newToken() (token, hash string) {
	raw := make([]byte, 24)
	rand.Read(raw)
	token = base64.RawURLEncoding.EncodeToString(raw)
	return token, hashed(token)
}

func hashed(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

func buttons(token string, named ...string) slackapi.Block {
	var out []slackapi.BlockElement
	for i := 0; i+1 < len(named); i += 2 {
		e := slackapi.NewButtonBlockElement(named[i], token, slackapi.NewTextBlockObject(slackapi.PlainTextType, named[i+1], false, false))
		switch named[i] {
		case actionDeny, actionAgain:
			e.Style = slackapi.StyleDanger
		case actionOnce, actionDone, actionShow:
			e.Style = slackapi.StylePrimary
		}
		out = append(out, e)
	}
	return slackapi.NewActionBlock("", out...)
}

// card is what one person is asked.
func (b *Bot) card(ctx context.Context, subject, token string) (said, error) {
	if strings.HasPrefix(subject, "apr_") {
		a, err := b.o.Store.Approval(ctx, plane.ApprovalID(subject))
		if err != nil {
			return said{}, err
		}
		c, err := b.o.Store.CallByID(ctx, a.Call)
		if err != nil {
			return said{}, err
		}
		head := fmt.Sprintf(":raised_hand: *%s* wants to call `%s` of *%s*. %s", escape(a.Agent), escape(a.Tool), escape(a.Server), escape(a.Why))
		return said{text: clip(head, maxLong), blocks: []slackapi.Block{section(clip(head, maxBlock)), section(b.arguments(ctx, c)), buttons(token, actionDeny, "Deny", actionOnce, "Approve once", actionAlways, "Always allow")}}, nil
	}
	c, err := b.o.Store.CallByID(ctx, plane.CallID(subject))
	if err != nil {
		return said{}, err
	}
	head := fmt.Sprintf(":grey_question: Nobody knows whether `%s` of *%s* took effect: it was sent for *%s*, and no answer came. Look there, then say what happened. It is not sent again by itself.", escape(c.Tool), escape(c.Server), escape(c.Agent))
	return said{text: clip(head, maxLong), blocks: []slackapi.Block{section(clip(head, maxBlock)), section(b.arguments(ctx, c)), buttons(token, actionDone, "Done", actionNot, "Not done", actionAgain, "Send again")}}, nil
}

func (b *Bot) arguments(ctx context.Context, c plane.Call) string {
	args := b.o.Runs.Arguments(ctx, c)
	if args == "" {
		return "_Its arguments are not kept; its digest is_ `" + clip(c.ArgsDigest, 20) + "`"
	}
	r := []rune(strings.ReplaceAll(args, "```", "` ` `"))
	if len(r) > 2500 {
		return "```" + escape(string(r[:2400])) + "```\n_" + fmt.Sprintf("%d of %d characters; the rest is on the page of the run._", 2400, len(r))
	}
	return "```" + escape(string(r)) + "```"
}

// refreshCards takes the buttons from cards whose question is answered.
func (b *Bot) refreshCards(ctx context.Context) error {
	cards, err := b.o.Store.ChatCards(ctx, "")
	if err != nil {
		return err
	}
	for i := range cards {
		c := &cards[i]
		if c.Message == "" {
			if b.o.Now().Sub(c.At) > lease { // whoever made it died over it
				if err := b.o.Store.Write(ctx, func(t plane.Tx) error { return b.o.Store.DropChatCard(t, c.Hash) }); err != nil {
					return err
				}
			}
			continue
		}
		text := b.verdict(ctx, c.Subject)
		if text == "" {
			continue
		}
		first := false
		err := b.o.Store.Write(ctx, func(t plane.Tx) (err error) {
			first, err = b.o.Store.EndChatCard(t, c.Hash)
			return err
		})
		if err != nil {
			return err
		}
		if first {
			if err := b.change(ctx, c.Channel, c.Message, said{text: text, blocks: []slackapi.Block{section(text)}}); err != nil && ctx.Err() == nil {
				b.o.Log.Warn("a card could not be changed", "about", c.Subject, "err", err)
			}
		}
	}
	return nil
}

// verdict is what was decided about something, or "" while it is open.
func (b *Bot) verdict(ctx context.Context, subject string) string {
	switch {
	case strings.HasPrefix(subject, "apr_"):
		a, err := b.o.Store.Approval(ctx, plane.ApprovalID(subject))
		if err != nil || a.State == plane.ApprovalPending {
			return ""
		}
		what := fmt.Sprintf("`%s` of *%s*, for *%s*", escape(a.Tool), escape(a.Server), escape(a.Agent))
		switch a.State {
		case plane.ApprovalDenied:
			return ":no_entry_sign: Denied by " + b.named(ctx, a.DecidedBy) + ": " + what
		case plane.ApprovalExpired:
			return ":hourglass: Nobody decided in time: " + what
		}
		return ":white_check_mark: Approved by " + b.named(ctx, a.DecidedBy) + ": " + what
	case strings.HasPrefix(subject, "cal_"):
		c, err := b.o.Store.CallByID(ctx, plane.CallID(subject))
		if err != nil || c.State == plane.CallUnknown {
			return ""
		}
		how := map[plane.CallState]string{plane.CallResolvedDone: "Done", plane.CallResolvedNotDone: "Not done"}[c.State]
		if how == "" {
			how = "An answer came"
		}
		by := ""
		if c.ResolvedBy != "" {
			by = ", says " + b.named(ctx, c.ResolvedBy)
		}
		return fmt.Sprintf(":ballot_box_with_check: %s%s: `%s` of *%s*, for *%s*", how, by, escape(c.Tool), escape(c.Server), escape(c.Agent))
	}
	return ""
}

// named is a person as the others know them.
func (b *Bot) named(ctx context.Context, person string) string {
	if email := b.o.Email(ctx, person); email != "" {
		return escape(email)
	}
	if at := strings.LastIndexAny(person, "/|"); strings.HasPrefix(person, "slack:") && at > 0 {
		return "<@" + escape(person[at+1:]) + ">"
	}
	return escape(clip(person, 80))
}

// button does what somebody pressed, as far as they may.
func (b *Bot) button(ctx context.Context, c *body) error {
	who, _, err := b.caller(ctx, &body{User: c.User, Team: c.Team, Channel: c.Channel, Direct: isDirect(c.Channel)})
	switch {
	case err != nil && passing(err):
		return err
	case err == nil:
		err = b.pressed(ctx, c, who)
	}
	if err == nil || ctx.Err() != nil {
		return err
	}
	return b.whisper(ctx, c, said{text: escape(plane.Sentence(err))})
}

func (b *Bot) pressed(ctx context.Context, c *body, who plane.Principal) error {
	switch c.Action {
	case actionStop:
		if w, err := b.o.Store.ChatWorkOfMessage(ctx, c.Channel, c.TS); err == nil && string(w.Run) == c.Value {
			return b.cancel(ctx, who, w.Run)
		}
		return plane.Errorf(plane.Gone, "This button is over.")
	case actionFix:
		return b.fix(ctx, c, who)
	case actionShow, actionKeep:
		return b.released(ctx, c)
	}
	return b.decide(ctx, c, who)
}

// decide takes a person's word. A card is good once, for whom it was sent to.
func (b *Bot) decide(ctx context.Context, c *body, who plane.Principal) error {
	card, err := b.cardOf(ctx, c)
	if err != nil {
		return err
	}
	switch c.Action {
	case actionDeny, actionOnce, actionAlways:
		_, err = command.Perform[command.Decided](ctx, b.o.Commands, who, "approvals.decide", &command.DecideInput{ID: card.Subject, Decision: c.Action})
	case actionDone, actionNot, actionAgain:
		_, err = command.Perform[command.Resolved](ctx, b.o.Commands, who, "runs.resolve", &command.ResolveInput{ID: card.Subject, Outcome: c.Action, Note: "in Slack"})
	default:
		err = plane.Errorf(plane.InvalidInput, "That is no button of ours.")
	}
	if err != nil {
		return err
	}
	return b.refreshCards(ctx)
}

// cardOf is the card whose button was pressed: by whom it was sent to, on the message that
// it is, while it is open.
func (b *Bot) cardOf(ctx context.Context, c *body) (plane.ChatCard, error) {
	over := plane.Errorf(plane.Gone, "This button is over, or it was not sent to you.")
	if c.Value == "" || len(c.Value) > 100 {
		return plane.ChatCard{}, over
	}
	cards, err := b.o.Store.ChatCards(ctx, hashed(c.Value))
	if err != nil {
		return plane.ChatCard{}, err
	}
	if len(cards) != 1 || cards[0].State != "open" || cards[0].Asked != c.User || cards[0].Message != c.TS || cards[0].Channel != c.Channel {
		return plane.ChatCard{}, over
	}
	return cards[0], nil
}
