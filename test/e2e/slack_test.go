//go:build long

package e2e

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"patchbay/internal/fake"
	"patchbay/test/peers"
)

const slackScript = `models:
  default: {provider: scripted, script: [{say: "Looking.", calls: [{tool: mcp__notes__latest_note}]}, {say: "Your latest note says: buy oat milk."}]}
  writes: {provider: scripted, script: [{calls: [{tool: mcp__notes__add_note, input: {text: "call the bank"}}]}, {say: "It is noted."}]}
  vanta: {provider: scripted, script: [{calls: [{tool: mcp__vanta__list_evidence_07}]}, {say: "The evidence of May is there."}]}
agents:
  general: {}
  audits: {model: vanta, trust: open}
  research: {model: writes, approvals: {mcp__notes__add_note: ask}}
teams: {desk: {slack_channels: [C0DESK], agent: research}, audits: {slack_channels: [C0AUDIT], agent: audits}}
`

// inAWorkspace is the built server in a workspace whose people sign in at an issuer.
func inAWorkspace(t *testing.T, names []string, targets ...string) (*daemon, *fake.Slack, peers.Protected) {
	t.Helper()
	sl := fake.NewSlack(t)
	sl.AddUser("UADA", "ada@example.com", "")
	sl.AddUser("UGRACE", "grace@example.com", "")
	port := peers.FreePort(t)
	idp := peers.OIDC(t, fmt.Sprintf(`CLIENT={"client_id":"patchbay","client_secret":"s3cret-of-the-dashboard","redirect_uris":["http://127.0.0.1:%d/signin/callback"],"token_endpoint_auth_method":"client_secret_basic"}`, port))
	var rules []string
	for _, to := range targets {
		var whose []string
		for _, n := range names {
			whose = append(whose, fmt.Sprintf("%q", "user:slack:T1|ada@example.com/"+n))
		}
		rules = append(rules, fmt.Sprintf("{to: %q, for: [%s]}", host(to), strings.Join(whose, ", ")))
	}
	d := serveOn(t, port, slackScript+fmt.Sprintf("slack: {app_token_env: SLACK_APP, bot_token_env: SLACK_BOT, api_url: %q}\nidentity: {oidc: {issuer: %q, client_id: patchbay, client_secret_env: OIDC_SECRET}}\negress: {allow: [%s]}\n",
		sl.API(), idp.Issuer, strings.Join(rules, ", ")), "OIDC_SECRET=s3cret-of-the-dashboard", "SLACK_APP="+fake.SlackApp, "SLACK_BOT="+fake.SlackBot)
	return d, sl, idp
}

var slackLinkRE = regexp.MustCompile(`https?://[^"\\\s>|]+/mcp/connect/[A-Za-z0-9_-]+`)

// linkFor is the link that one person sees in a channel; nobody else sees one anywhere.
func linkFor(t *testing.T, sl *fake.Slack, user, channel string) (link string) {
	t.Helper()
	sl.Until(channel, "was sent to <@"+user+"> alone")
	for _, m := range sl.Messages(channel) {
		if l := slackLinkRE.FindString(m.Text); l != "" {
			if m.Only != user {
				t.Errorf("a link for all to see: %+v", m)
			}
			link = l
		}
	}
	if link == "" {
		t.Fatalf("no link:\n%s", sl.All())
	}
	return link
}

// onlyAdas opens a link of Ada's as Grace, who is refused, and as Ada, whose browser it
// returns.
func onlyAdas(t *testing.T, oneLink string, idp peers.Protected, server string) *browser {
	t.Helper()
	grace := newBrowser(t)
	grace.open(oneLink)
	grace.signIn(host(idp.Issuer), "grace")
	grace.until("This is not yours")
	ada := newBrowser(t)
	ada.open(oneLink)
	ada.signIn(host(idp.Issuer), "ada")
	ada.until("Connect " + server)
	return ada
}

// The story of a server that signs in by OAuth, from a thread: the link, somebody else's
// browser, the asker's own, the follow-up, a run that uses a tool, an approval over a killed
// server, and everything still there.
func TestSignInFromSlack(t *testing.T) {
	p := peers.OIDC(t, "ACCESS_TTL=600")
	d, sl, idp := inAWorkspace(t, []string{"notes"}, p.Issuer, p.MCP)
	q := sl.Say("UADA", "C0DESK", "<@UBOT> mcp add notes --url <"+p.MCP+">", "")
	oneLink := linkFor(t, sl, "UADA", "C0DESK")

	ada := onlyAdas(t, oneLink, idp, "notes")
	if ada.eval(`String(document.querySelectorAll('main input[name=token]').length)`) != "0" {
		t.Error("a page with a sign-in has a field for a token")
	}
	ada.press("Continue to sign in")
	ada.until("On to")
	ada.signIn(host(p.Issuer), "ada")
	ada.until("notes is connected")
	if m := sl.Until("C0DESK", "notes is connected"); m.Thread != q || !strings.Contains(m.Text, "2 tools") {
		t.Errorf("%+v", m)
	}

	sl.Say("UADA", "C0DESK", "<@UBOT> mcp show notes", "")
	sl.Until("C0DESK", "latest_note")
	sl.Say("UADA", "C0DESK", "<@UBOT> config show", "")
	sl.Until("C0DESK", "notes")
	sl.Say("UADA", "DADA", "What is my latest note?", "")
	sl.Until("DADA", "buy oat milk")
	if tl := d.must("runs", "show", "last"); !strings.Contains(tl, "mcp.notes.latest_note") {
		t.Errorf("the run lacks the span of its call:\n%s", tl)
	}

	// A killed server: the run waits, and its answer takes the place of the same message.
	q = sl.Say("UADA", "C0DESK", "<@UBOT> note that I call the bank", "")
	card := sl.Until("DADA", "wants to call `add_note`")
	sl.Until("C0DESK", "Waiting for a person")
	d.killed()
	sl.Press("UADA", card, "approve")
	ours := 0
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		ours = 0
		done := false
		for _, m := range sl.Messages("C0DESK") {
			if m.Thread == q && m.User == "UBOT" {
				ours++
				done = done || strings.Contains(m.Text, "own connections")
			}
		}
		if done {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("no answer after the server was killed:\n%s\n%s", sl.All(), d.log)
		}
	}
	if ours != 1 {
		t.Errorf("%d messages of one run", ours)
	}
	sl.Press("UADA", sl.Until("DADA", "Show it there"), "show")
	sl.Until("C0DESK", "It is noted.")
	sl.Say("UADA", "DADA", "mcp list", "")
	sl.Until("DADA", "ok")
	if strings.Contains(sl.All(), "eyJ") {
		t.Error("a token is in the workspace")
	}
}

// The same of a server that takes a token: it is pasted on the page, and never in chat.
func TestSignInFromSlackByToken(t *testing.T) {
	var tools []string
	for i := range 80 {
		tools = append(tools, fake.Tool(fmt.Sprintf("list_evidence_%02d", i), `"annotations":{"readOnlyHint":true}`))
	}
	m := fake.NewMCP(t, tools...)
	m.RequireToken("v4nta-t0ken")
	d, sl, idp := inAWorkspace(t, []string{"vanta"}, m.URL)
	q := sl.Say("UADA", "C1", "<@UBOT> mcp add vanta --url <"+m.Endpoint()+"> --auth bearer", "")
	oneLink := linkFor(t, sl, "UADA", "C1")
	ada := onlyAdas(t, oneLink, idp, "vanta")
	ada.fill("Token", "wr0ng")
	ada.press("Connect")
	ada.says("rejected the token")
	ada.fill("Token", "v4nta-t0ken")
	ada.press("Connect")
	ada.until("vanta is connected")
	if got := sl.Until("C1", "vanta is connected"); got.Thread != q || !strings.Contains(got.Text, "80 tools") {
		t.Errorf("%+v", got)
	}
	q = sl.Say("UADA", "C1", "<@UBOT> mcp show vanta", "")
	for end := time.Now().Add(20 * time.Second); len(sl.Files()) == 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no file:\n%s", sl.All())
		}
	}
	if f := sl.Files()[0]; f.Thread != q || !strings.Contains(f.Content, "list_evidence_79") {
		t.Errorf("%+v", f)
	}
	sl.Say("UADA", "C1", "<@UBOT> config show", "")
	if got := sl.Until("C1", "you are"); got.Only != "UADA" || !strings.Contains(got.Text, "vanta") {
		t.Errorf("%+v", got)
	}
	sl.Say("UADA", "C0AUDIT", "<@UBOT> is the evidence of May there?", "")
	sl.Press("UADA", sl.Until("DADA", "Show it there"), "show")
	sl.Until("C0AUDIT", "The evidence of May is there.")
	if tl := d.must("runs", "show", "last"); !strings.Contains(tl, "mcp.vanta.list_evidence_07") {
		t.Errorf("the run lacks the span of its call:\n%s", tl)
	}
	d.killed()
	sl.Say("UADA", "DADA", "mcp list", "")
	sl.Until("DADA", "vanta")
	var l struct {
		Servers []struct{ Name, State string }
	}
	d.json(&l, "mcp", "list")
	if strings.Contains(sl.All(), "v4nta-t0ken") {
		t.Error("the token is in the workspace")
	}
	if b, err := json.Marshal(l); err != nil || strings.Contains(string(b), "vanta") {
		t.Errorf("the local admin sees Ada's: %s", b)
	}
}
