package web

import (
	"fmt"
	"time"

	"patchbay/internal/consent"
	"patchbay/internal/plane"
)

// view is what the connect page shows.
type view struct {
	name, host, endpoint     string
	owner, ownerNote, users  string
	asker, asked, askedISO   string
	until, untilISO, minutes string
	what                     string // is pasted
	oauth                    bool
	action, problem          string
}

func newView(p consent.Page, who plane.Principal, problem string) view {
	c, k := p.Connection, p.Ticket
	v := view{name: name(c), host: p.Host, endpoint: c.Endpoint, oauth: c.Auth == plane.AuthOAuth, problem: problem, asker: p.Asker, what: "Token"}
	v.owner, v.ownerNote, v.users = owner(c, who)
	if p.Ticket.Asker == who.ID || who.Kind == plane.KindVisitor {
		v.asker = "You"
	}
	if user, ok := c.Auth.BasicUser(); ok {
		v.what = "Password of " + user
	} else if c.Auth != plane.AuthBearer {
		v.what = "API key"
	}
	v.asked, v.askedISO = clock(k.CreatedAt)
	v.until, v.untilISO = clock(k.ExpiresAt)
	left := int(k.ExpiresAt.Sub(p.Now).Round(time.Minute) / time.Minute)
	v.minutes = fmt.Sprintf("%d minutes", left)
	if left <= 1 {
		v.minutes = "about a minute"
	}
	return v
}

func clock(t time.Time) (shown, iso string) {
	return t.UTC().Format("15:04") + " (UTC)", t.UTC().Format(time.RFC3339)
}

func (v view) heading() string { return "Connect " + v.name }

func (v view) title() string {
	if v.problem != "" {
		return "That did not work · Connect " + v.name
	}
	return v.heading()
}

func (v view) lead() string {
	if v.oauth {
		return "You sign in there and choose there what Patchbay may reach."
	}
	return "Paste the credential of the account that shall be used."
}

func (v view) goesTerm() string {
	if v.oauth {
		return "Server"
	}
	return "Goes to"
}

func (v view) goesNote() string {
	if v.oauth {
		return ""
	}
	return " and nowhere else"
}

func (v view) describedBy() string {
	if v.problem != "" {
		return "problem token-hint"
	}
	return "token-hint"
}

func (v view) invalid() string { return fmt.Sprint(v.problem != "") }

func (v view) will() []string {
	if v.oauth {
		return []string{"The server asks you to agree, then sends you back here.", "Patchbay seals the token and renews it for you.", "You can take it back here or there, at any time."}
	}
	return []string{"It is tried at the server first; what is refused is not stored.", "It is sealed, and opened only to call this server.", "Every tool of this account can be used, writes included, until some are left out."}
}

func (v view) not() []string {
	if v.oauth {
		return []string{"Patchbay never sees your password.", "It asks for no scope of its own.", "No agent, page, log or message shows the token."}
	}
	return []string{"No agent, page, log or message shows it, nor can you read it back.", "It is not sent to any other address.", "No message will ask you for it."}
}
