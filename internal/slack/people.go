package slack

import (
	"context"
	"sync"
	"time"

	slackapi "github.com/slack-go/slack"

	"patchbay/internal/plane"
)

// memo remembers what Slack said of members and channels, for a while.
type memo struct {
	now      func() time.Time
	mu       sync.Mutex
	members  map[string]kept[Member]
	channels map[string]kept[bool]
	emails   map[string]kept[string]
}

type kept[T any] struct {
	v  T
	at time.Time
}

// What is remembered, for how long and how much of it.
const (
	memoLife = 5 * time.Minute
	memoMost = 2000
)

func newMemo(now func() time.Time) *memo {
	return &memo{now: now, members: map[string]kept[Member]{}, channels: map[string]kept[bool]{}, emails: map[string]kept[string]{}}
}

// recall is what of finds, unless it was found a moment ago.
func recall[T any](m *memo, in map[string]kept[T], key string, find func() (T, error)) (T, error) {
	m.mu.Lock()
	k, ok := in[key]
	m.mu.Unlock()
	if ok && m.now().Sub(k.at) < memoLife {
		return k.v, nil
	}
	v, err := find()
	if err != nil {
		return v, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(in) >= memoMost {
		clear(in)
	}
	in[key] = kept[T]{v, m.now()}
	return v, nil
}

// member is who somebody is. An address counts where the workspace made the account: not of
// guests, who are invited by anybody, nor of another workspace's people or bots.
func (b *Bot) member(ctx context.Context, user string) (Member, error) {
	return recall(b.seen, b.seen.members, user, func() (Member, error) {
		u, err := slowly(ctx, func(ctx context.Context) (*slackapi.User, error) { return b.o.API.GetUserInfoContext(ctx, user) })
		if err != nil {
			return Member{}, plane.Errorf(plane.Unavailable, "Slack does not say who you are.").Then("Try again in a minute; an operator finds the cause in the log.").Because(err)
		}
		me := b.me.Load()
		if u.Deleted || u.IsBot || u.IsStranger || me == nil || u.TeamID != me.TeamID {
			return Member{}, plane.Errorf(plane.Forbidden, "Only people of this workspace are answered.")
		}
		m := Member{Team: u.TeamID, User: u.ID, Name: u.Profile.DisplayName, Guest: u.IsRestricted || u.IsUltraRestricted}
		if m.Name == "" {
			m.Name = u.RealName
		}
		if !m.Guest && u.IsEmailConfirmed {
			m.Email = plane.Address(u.Profile.Email)
		}
		if !m.Guest && u.Profile.Email == "" && !b.hidden.Swap(true) {
			b.o.Log.Warn("Slack does not tell people's addresses, so links are bound to whoever opens them first; the app needs the scope users:read.email")
		}
		return m, nil
	})
}

// caller is who asks, in the team of the channel where they ask.
func (b *Bot) caller(ctx context.Context, c *body) (plane.Principal, Member, error) {
	m, err := b.member(ctx, c.User)
	if err != nil {
		return plane.Principal{}, m, err
	}
	if m.Guest && !b.o.Guests {
		return plane.Principal{}, m, plane.Errorf(plane.Forbidden, "Guests of the workspace are not answered here.").Then("An operator may allow them: slack.guests")
	}
	who, err := b.o.Person(ctx, m)
	if err == nil && !c.Direct && c.Channel != "" {
		who.Channel, who.Team = c.Channel, b.o.Team(c.Channel)
	}
	return who, m, err
}

// public reports whether everybody in the workspace can read a channel. What Slack does not
// say is public.
func (b *Bot) public(ctx context.Context, channel string) bool {
	v, err := recall(b.seen, b.seen.channels, channel, func() (bool, error) {
		ch, err := slowly(ctx, func(ctx context.Context) (*slackapi.Channel, error) {
			return b.o.API.GetConversationInfoContext(ctx, &slackapi.GetConversationInfoInput{ChannelID: channel})
		})
		if err != nil {
			return true, err
		}
		return !ch.IsIM && !ch.IsMpIM && !ch.IsPrivate || ch.IsExtShared || ch.IsOrgShared || ch.IsShared, nil
	})
	return v || err != nil
}

// userOf is the member who has an address, or "".
func (b *Bot) userOf(ctx context.Context, email string) string {
	id, err := recall(b.seen, b.seen.emails, plane.Address(email), func() (string, error) {
		u, err := slowly(ctx, func(ctx context.Context) (*slackapi.User, error) { return b.o.API.GetUserByEmailContext(ctx, email) })
		switch {
		case refusedAs(err, "users_not_found"):
			return "", nil
		case err != nil:
			return "", err
		}
		m, err := b.member(ctx, u.ID)
		if err != nil || m.Email != plane.Address(email) { // nobody vouches that it is theirs
			return "", nil
		}
		return u.ID, nil
	})
	if err != nil && ctx.Err() == nil {
		b.o.Log.Warn("Slack could not be asked who has an address", "err", err)
		b.seen.mu.Lock()
		b.seen.emails[plane.Address(email)] = kept[string]{at: b.o.Now().Add(time.Minute - memoLife)} // not again at once
		b.seen.mu.Unlock()
	}
	return id
}
