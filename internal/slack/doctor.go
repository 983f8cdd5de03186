package slack

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/gorilla/websocket"
	slackapi "github.com/slack-go/slack"
	"github.com/slack-go/slack/socketmode"

	"patchbay/internal/plane"
)

// Scopes are what the app's bot needs, and what does not work without each; the manifest
// names the same.
var Scopes = [][2]string{
	{"app_mentions:read", "mentions are not heard"},
	{"channels:history", "threads in public channels are not context"},
	{"channels:read", "every channel counts as public"},
	{"chat:write", "nothing is said"},
	{"files:write", "long output comes in parts"},
	{"groups:history", "threads in private channels are not context"},
	{"groups:read", "private channels count as public"},
	{"im:history", "direct messages are not heard"},
	{"im:write", "cards and links cannot be sent to one person"},
	{"reactions:read", "a reaction stops no run"},
	{"users:read", "nobody is known, so nobody is answered"},
	{"users:read.email", "links are bound to whoever opens them first"},
}

// Checked is one thing that Doctor looked at.
type Checked struct {
	What string
	Says string
	Err  error
}

// Doctor looks whether the app can do its work: its tokens, its scopes, its socket and, to a
// member of that address, a message. granted are the scopes as the last answer named them.
func Doctor(ctx context.Context, api *slackapi.Client, dialer *websocket.Dialer, granted func() string, to string) (out []Checked) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	add := func(what, says string, err error) bool {
		out = append(out, Checked{what, says, err})
		return err == nil
	}
	me, err := slowly(ctx, api.AuthTestContext)
	if !add("bot token", "", wrong(err, "Slack refuses the bot token.", "Install the app again and take its token from OAuth & Permissions.")) {
		return out
	}
	out[0].Says = me.User + " in " + me.Team
	have := strings.Split(granted(), ",")
	var lacks []string
	for _, s := range Scopes {
		if !slices.Contains(have, s[0]) {
			lacks = append(lacks, s[0]+" ("+s[1]+")")
		}
	}
	if len(lacks) > 0 {
		add("scopes", "", plane.Errorf(plane.Forbidden, "The app lacks %s.", strings.Join(lacks, ", ")).Then("Give the app slack.yaml as its manifest and install it again."))
	} else {
		add("scopes", "all are there", nil)
	}
	add("socket", "it opens, and Slack says hello", wrong(hello(ctx, api, dialer), "The socket does not open.", "Switch Socket Mode on, and make an app-level token with connections:write."))
	if to == "" {
		return out
	}
	u, err := slowly(ctx, func(ctx context.Context) (*slackapi.User, error) { return api.GetUserByEmailContext(ctx, to) })
	if add("member", to+" is one", wrong(err, "No member of the workspace has that address.", "It is the address of a Slack profile.")) {
		b := &Bot{o: Options{API: api}}
		_, _, err = b.direct(ctx, u.ID, said{text: "Patchbay's doctor: messages arrive. Write me something, and the way back is shown, too."})
		add("a message", "it was sent to "+to, wrong(err, "A direct message cannot be sent.", "The app needs chat:write and im:write, and its messages tab."))
	}
	return out
}

// wrong is what is told of an error: what Slack refuses, or that Slack does not answer.
func wrong(err error, message, next string) error {
	if err == nil {
		return nil
	}
	var said slackapi.SlackErrorResponse
	if own := plane.KindOf(err) != plane.Internal; !errors.As(err, &said) && !own {
		message, next = "Slack cannot be reached.", "This machine needs https to slack.com, or to slack.api_url."
	}
	return plane.Errorf(plane.Unavailable, "%s %s", message, "("+clip(err.Error(), 200)+")").Then(next).Because(err)
}

// hello opens the socket until Slack says that it is open.
func hello(ctx context.Context, api *slackapi.Client, dialer *websocket.Dialer) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	sock := socketmode.New(api, socketmode.OptionDialer(dialer))
	ended := make(chan error, 1)
	go func() { ended <- sock.RunContext(ctx) }()
	for {
		select {
		case err := <-ended:
			return err
		case ev := <-sock.Events:
			switch ev.Type {
			case socketmode.EventTypeHello:
				return nil
			case socketmode.EventTypeInvalidAuth:
				return plane.Errorf(plane.Unauthenticated, "the app-level token is refused")
			case socketmode.EventTypeConnectionError: // it would try again; whoever looks does not wait
				if e, ok := ev.Data.(*slackapi.ConnectionErrorEvent); ok {
					return e.ErrorObj
				}
				return plane.Errorf(plane.Unavailable, "the connection does not come up")
			}
		}
	}
}
