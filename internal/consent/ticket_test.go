package consent

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"patchbay/internal/plane"
)

var (
	ada     = plane.Principal{Kind: plane.KindPerson, ID: "https://idp|ada", Email: "ada@example.com"}
	grace   = plane.Principal{Kind: plane.KindPerson, ID: "https://idp|grace", Email: "grace@example.com"}
	chrome  = plane.Principal{Kind: plane.KindVisitor, ID: "browser:1"}
	firefox = plane.Principal{Kind: plane.KindVisitor, ID: "browser:2"}
	service = plane.Principal{Kind: plane.KindService, ID: "tok_1"}
	at      = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
)

func ticket(change func(k *plane.Ticket)) plane.Ticket {
	k := plane.Ticket{Hash: "h", Kind: plane.AuthBearer, Asker: "tok_1", State: plane.TicketPending, ExpiresAt: at.Add(10 * time.Minute)}
	if change != nil {
		change(&k)
	}
	return k
}

func TestWhoOwnsALink(t *testing.T) {
	for name, c := range map[string]struct {
		change func(k *plane.Ticket)
		who    plane.Principal
		local  bool
		want   Refusal
	}{
		"the asker, a person":                {func(k *plane.Ticket) { k.Asker = ada.ID }, ada, false, ""},
		"somebody else":                      {func(k *plane.Ticket) { k.Asker = ada.ID }, grace, false, WrongIdentity},
		"the address, in another case":       {func(k *plane.Ticket) { k.Email = "Ada@Example.com" }, ada, false, ""},
		"another address":                    {func(k *plane.Ticket) { k.Email = "ada@example.com" }, grace, false, WrongIdentity},
		"an address that nobody verified":    {func(k *plane.Ticket) { k.Email = "ada@example.com" }, plane.Principal{Kind: plane.KindPerson, ID: "i|x"}, false, WrongIdentity},
		"the first to come":                  {nil, grace, false, ""},
		"the second":                         {func(k *plane.Ticket) { k.OpenedBy, k.State = ada.ID, plane.TicketOpened }, grace, false, WrongIdentity},
		"a service":                          {nil, service, false, WrongIdentity},
		"nobody":                             {nil, plane.Principal{}, false, WrongIdentity},
		"a browser, where people sign in":    {func(k *plane.Ticket) { k.Asker = plane.Local.ID }, chrome, false, WrongIdentity},
		"a service's link, where nobody can": {nil, chrome, true, ""},
		"a browser, where nobody can":        {func(k *plane.Ticket) { k.Asker = plane.Local.ID }, chrome, true, ""},
		"a browser with a person's link":     {func(k *plane.Ticket) { k.Asker = ada.ID }, chrome, true, WrongIdentity},
		"another browser than began it":      {func(k *plane.Ticket) { k.Asker, k.OpenedBy = plane.Local.ID, chrome.ID }, firefox, true, WrongIdentity},
		"expired":                            {func(k *plane.Ticket) { k.ExpiresAt = at }, ada, false, Expired},
		"used":                               {func(k *plane.Ticket) { k.State, k.OpenedBy = plane.TicketCompleted, ada.ID }, ada, false, Used},
		"cancelled":                          {func(k *plane.Ticket) { k.State = plane.TicketCancelled }, ada, false, Cancelled},
		"a stranger is not told its state":   {func(k *plane.Ticket) { k.State, k.Asker = plane.TicketCompleted, ada.ID }, grace, false, WrongIdentity},
	} {
		_, p := planOpen(ticket(c.change), c.who, c.local, at)
		if (p == nil) != (c.want == "") || p != nil && p.Refusal != c.want {
			t.Errorf("%s: %v, want %q", name, p, c.want)
		}
	}
}

func TestPlans(t *testing.T) {
	for token, ok := range map[string]bool{"abc": true, "  abc\n": true, "": false, "a b": false, "a\nb": false, "tökén": false, "a\x00": false,
		strings.Repeat("a", MaxToken): true, strings.Repeat("a", MaxToken+1): false} {
		next, p := planComplete(ticket(nil), ada, false, at, token)
		if (p == nil) != ok || ok && (next.State != plane.TicketCompleted || next.OpenedBy != ada.ID) || !ok && p.Refusal != BadToken {
			t.Errorf("%.20q: %v", token, p)
		}
	}
	oauth := ticket(func(k *plane.Ticket) { k.Kind = plane.AuthOAuth })
	if _, p := planComplete(oauth, ada, false, at, "abc"); p == nil || p.Refusal != WrongKind || !strings.Contains(p.Error(), "OAuth") {
		t.Errorf("a token on a sign-in link: %v", p)
	}
	if _, p := planStart(ticket(nil), ada, false, at, time.Minute); p == nil || p.Refusal != WrongKind {
		t.Errorf("a sign-in on a link for a token: %v", p)
	}
	if _, p := planCallback(oauth, ada, false, at); p == nil || p.Refusal != NotAuthorizing {
		t.Errorf("a callback of a sign-in that nobody began: %v", p)
	}
	started, p := planStart(oauth, ada, false, at.Add(9*time.Minute), 10*time.Minute)
	if p != nil || started.State != plane.TicketAuthorizing || !started.ExpiresAt.Equal(at.Add(19*time.Minute)) {
		t.Fatalf("%+v %v", started, p)
	}
	if _, p := planStart(started, ada, false, at.Add(18*time.Minute), time.Minute); p != nil {
		t.Errorf("a second start of the same person: %v", p)
	}
	if _, p := planCallback(started, grace, false, at); p == nil || p.Refusal != WrongIdentity {
		t.Errorf("a stranger's callback: %v", p)
	}
	for r, want := range map[Refusal]int{NotFound: 404, WrongIdentity: 403, Expired: 410, Used: 410, Cancelled: 410, BadToken: 400, Rejected: 400, OAuthFailed: 502} {
		if r.Status() != want || refuse(r).Error() == "" {
			t.Errorf("%s: %d %q", r, r.Status(), refuse(r).Error())
		}
	}
}

// Whatever anybody does in whatever order: a link is spent at most once, by the
// one it is bound to, and nothing leads out of its end.
func TestTheTicketMachineHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := ticket(func(k *plane.Ticket) {
			k.Kind = rapid.SampledFrom([]plane.Auth{plane.AuthOAuth, plane.AuthBearer}).Draw(t, "kind")
			k.Asker = rapid.SampledFrom([]string{"tok_1", ada.ID, plane.Local.ID}).Draw(t, "asker")
		})
		now, spent, owner := at, 0, ""
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			who := rapid.SampledFrom([]plane.Principal{ada, grace, chrome, firefox, service}).Draw(t, "who")
			now = now.Add(time.Duration(rapid.IntRange(0, 4).Draw(t, "minutes")) * time.Minute)
			var next plane.Ticket
			var p *Problem
			switch rapid.SampledFrom([]string{"open", "complete", "start", "callback"}).Draw(t, "what") {
			case "open":
				next, p = planOpen(k, who, true, now)
			case "complete":
				next, p = planComplete(k, who, true, now, "abc")
			case "start":
				next, p = planStart(k, who, true, now, 10*time.Minute)
			case "callback":
				next, p = planCallback(k, who, true, now)
			}
			if p != nil {
				continue
			}
			if !k.State.Open() || !now.Before(k.ExpiresAt) {
				t.Fatalf("%s moved to %s", k.State, next.State)
			}
			if owner != "" && who.ID != owner {
				t.Fatalf("%s used what belongs to %s", who.ID, owner)
			}
			if next.OpenedBy != "" {
				owner = next.OpenedBy
			}
			if next.State == plane.TicketCompleted {
				spent++
			}
			k = next
		}
		if spent > 1 {
			t.Fatalf("spent %d times", spent)
		}
	})
}
