package slack

import (
	"context"
	"fmt"
	"strings"

	slackapi "github.com/slack-go/slack"

	"patchbay/internal/command"
	"patchbay/internal/plane"
)

// maxHome is how many connections the home shows; Slack takes 100 blocks.
const maxHome = 40

// home shows somebody their connections, each with how it stands and one button.
func (b *Bot) home(ctx context.Context, c *body) error {
	who, _, err := b.caller(ctx, &body{User: c.User, Team: c.Team, Direct: true})
	if err != nil {
		return err
	}
	blocks := []slackapi.Block{slackapi.NewHeaderBlock(slackapi.NewTextBlockObject(slackapi.PlainTextType, "Your connections", false, false))}
	list, err := command.Perform[command.MCPList](ctx, b.o.Commands, who, "mcp.list", &command.MCPListInput{})
	switch {
	case err != nil:
		blocks = append(blocks, section(escape(plane.Sentence(err))))
	case len(list.Servers) == 0:
		blocks = append(blocks, section("None yet. Write me a message, for example: `mcp add linear https://mcp.linear.app/mcp`"))
	default:
		for i, s := range list.Servers {
			if i == maxHome {
				blocks = append(blocks, note(fmt.Sprintf("%d more: write me `mcp list`.", len(list.Servers)-maxHome)))
				break
			}
			blocks = append(blocks, b.homeRow(s))
		}
	}
	blocks = append(blocks, note("Ask me anything in a message. `mcp list` and `help` say what else there is."))
	_, err = slowly(ctx, func(ctx context.Context) (*slackapi.ViewResponse, error) {
		return b.o.API.PublishViewContext(ctx, slackapi.PublishViewContextRequest{UserID: c.User, View: slackapi.HomeTabViewRequest{Type: slackapi.VTHomeTab, Blocks: slackapi.Blocks{BlockSet: blocks}}})
	})
	return err
}

// homeRow is one connection: how it stands, and the one thing to do about it.
func (b *Bot) homeRow(s command.ServerRow) slackapi.Block {
	name := s.Name
	if s.Label != "" {
		name = s.Label
	}
	stands, action, value, words := ":white_check_mark: "+fmt.Sprintf("%d tools", s.Tools), actionOpen, "", "Open"
	switch {
	case !s.Enabled:
		stands = ":black_circle: off"
	case s.State == string(plane.StateAwaiting):
		stands, action, value, words = ":key: nobody has signed in yet", actionFix, "connect "+s.ID, "Connect"
	case s.State == string(plane.StateAuthError):
		stands, action, value, words = ":warning: "+plane.ReasonText(s.Reason), actionFix, "connect "+s.ID, "Sign in again"
	case s.Health == "unauthorized":
		stands, action, value, words = ":warning: it refuses the credential", actionFix, "connect "+s.ID, "Sign in again"
	case s.Health == "unavailable":
		stands, action, value, words = ":warning: "+clip(s.Detail, 200), actionFix, "refresh "+s.ID, "Try again"
	case s.Health == "pending":
		stands, action, value, words = ":hourglass: not looked at yet", actionFix, "refresh "+s.ID, "Look now"
	}
	button := slackapi.NewButtonBlockElement(action, value, slackapi.NewTextBlockObject(slackapi.PlainTextType, words, false, false))
	if action == actionOpen {
		button.URL = b.o.ConnPage(plane.ConnectionID(s.ID))
	}
	text := slackapi.NewTextBlockObject(slackapi.MarkdownType, "*"+escape(clip(name, 100))+"* · "+escape(s.Scope)+"\n"+escape(stands), false, true)
	return slackapi.NewSectionBlock(text, nil, slackapi.NewAccessory(button))
}

// fix does what a button of the home says.
func (b *Bot) fix(ctx context.Context, c *body, who plane.Principal) error {
	what, id, _ := strings.Cut(c.Value, " ")
	who.Channel, who.Team = "", ""
	var err error
	switch what {
	case "connect":
		var added *command.MCPAdded
		if added, err = command.Perform[command.MCPAdded](ctx, b.o.Commands, who, "mcp.connect", &command.ConnectInput{Name: id}); err == nil {
			at := &body{User: c.User, Team: c.Team, Direct: true}
			if at.Channel, at.TS, err = b.direct(ctx, c.User, said{text: "To connect " + escape(added.Server.Name) + ":"}); err == nil {
				err = b.sendLink(ctx, at, added)
			}
		}
	case "refresh":
		_, err = command.Perform[command.MCPTest](ctx, b.o.Commands, who, "mcp.refresh", &command.NameInput{Name: id})
	default:
		err = plane.Errorf(plane.InvalidInput, "That is no button of ours.")
	}
	if err != nil && ctx.Err() == nil {
		if _, _, derr := b.direct(ctx, c.User, said{text: escape(plane.Sentence(err))}); derr != nil {
			return derr
		}
	}
	return b.home(ctx, &body{User: c.User, Team: c.Team})
}
