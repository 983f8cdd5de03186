package fake

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gorilla/websocket"
)

// SlackMessage is a message as the workspace shows it.
type SlackMessage struct {
	Channel, TS, Thread, User, Text string
	Blocks                          json.RawMessage
	Metadata                        json.RawMessage
	Only                            string // who sees it, of one that is ephemeral
	Edits                           int
	Unfurl                          bool
}

// SlackFile is a file that was shared.
type SlackFile struct{ Channel, Thread, Name, Comment, Content string }

type slackUser struct {
	email, name          string
	guest, alien, unsure bool
}

// Slack is a workspace with one app: the Web API and Socket Mode, refusing what Slack
// refuses. Its bot is UBOT.
type Slack struct {
	*httptest.Server
	t        testing.TB
	mu       sync.Mutex
	n        int
	users    map[string]slackUser
	private  map[string]bool
	messages []*SlackMessage
	files    []SlackFile
	uploads  map[string]*SlackFile
	homes    map[string]json.RawMessage
	sockets  []*slackSocket
	acked    map[string]bool
	denied   map[string]bool     // scopes that the app lacks
	slow     map[string]int      // how often a method is refused for going too fast
	fails    map[string][]string // what a method says instead, so often
	calls    map[string]int
	Both     bool // every event goes to every socket
	Lost     bool // acknowledgements are not heard, so that events come again
}

type slackSocket struct {
	mu sync.Mutex
	c  *websocket.Conn
}

// SlackApp and SlackBot are its tokens.
const (
	SlackApp = "xapp-1-A1-fake"
	SlackBot = "xoxb-1-fake"
)

// NewSlack starts a workspace, T1.
func NewSlack(t testing.TB) *Slack {
	s := &Slack{t: t, users: map[string]slackUser{}, private: map[string]bool{}, uploads: map[string]*SlackFile{}, homes: map[string]json.RawMessage{}, acked: map[string]bool{}, denied: map[string]bool{}, slow: map[string]int{}, fails: map[string][]string{}, calls: map[string]int{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /api/{method}", s.api)
	mux.HandleFunc("GET /api/{method}", s.api)
	mux.HandleFunc("POST /upload/{id}", s.upload)
	mux.HandleFunc("/socket", s.socket)
	s.Server = httptest.NewServer(mux)
	t.Cleanup(func() { s.Drop(); s.Server.Close() })
	return s
}

// API is the address for slack.api_url.
func (s *Slack) API() string { return s.URL + "/api/" }

// AddUser adds a member; kind is "", guest, alien for another workspace's, or unsure for one
// whose address nobody confirmed. One that is there is changed.
func (s *Slack) AddUser(id, email, kind string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users[id] = slackUser{email: email, name: strings.ToLower(id), guest: kind == "guest", alien: kind == "alien", unsure: kind == "unsure"}
}

// Private makes a channel a private one.
func (s *Slack) Private(channel string) { s.mu.Lock(); defer s.mu.Unlock(); s.private[channel] = true }

// Deny takes a scope from the app.
func (s *Slack) Deny(scope string) { s.mu.Lock(); defer s.mu.Unlock(); s.denied[scope] = true }

// Slow refuses a method so many times for going too fast.
func (s *Slack) Slow(method string, times int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slow[method] = times
}

// Fail has a method say a word instead of working, so many times.
func (s *Slack) Fail(method, word string, times int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range times {
		s.fails[method] = append(s.fails[method], word)
	}
}

// Asked is how often a method was called.
func (s *Slack) Asked(method string) int { s.mu.Lock(); defer s.mu.Unlock(); return s.calls[method] }

func (s *Slack) stamp() string {
	s.n++
	return fmt.Sprintf("%d.%06d", 1_790_000_000+s.n, s.n)
}

// scopes are what methods need.
var slackScopes = map[string]string{"users.info": "users:read", "users.lookupByEmail": "users:read.email", "conversations.info": "channels:read", "conversations.replies": "channels:history",
	"conversations.open": "im:write", "chat.postMessage": "chat:write", "chat.update": "chat:write", "chat.postEphemeral": "chat:write", "files.getUploadURLExternal": "files:write", "files.completeUploadExternal": "files:write", "apps.connections.open": "connections:write"}

func (s *Slack) api(w http.ResponseWriter, r *http.Request) {
	method := r.PathValue("method")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[method]++
	if s.slow[method] > 0 {
		s.slow[method]--
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	var body []byte
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") {
		body, _ = io.ReadAll(r.Body)
	} else if err := r.ParseForm(); err != nil {
		http.Error(w, err.Error(), 400)
		return
	}
	if t := r.Form.Get("token"); t != "" {
		token = t
	}
	out := map[string]any{"ok": true}
	fail := func(word string) { out = map[string]any{"ok": false, "error": word} }
	want := SlackBot
	if method == "apps.connections.open" {
		want = SlackApp
	}
	switch scope := slackScopes[method]; {
	case token != want:
		fail("invalid_auth")
	case len(s.fails[method]) > 0:
		fail(s.fails[method][0])
		s.fails[method] = s.fails[method][1:]
	case s.denied[scope] && scope != "":
		fail("missing_scope")
		out["needed"], out["provided"] = scope, "chat:write"
	default:
		s.method(method, r, body, out, fail)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-OAuth-Scopes", s.scopes())
	json.NewEncoder(w).Encode(out)
}

func (s *Slack) scopes() string {
	var out []string
	for _, sc := range append(slices.Collect(func(yield func(string) bool) {
		for _, v := range slackScopes {
			if !yield(v) {
				return
			}
		}
	}), "app_mentions:read", "im:history", "groups:history", "groups:read", "reactions:read") {
		if !s.denied[sc] && !slices.Contains(out, sc) {
			out = append(out, sc)
		}
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}

func (s *Slack) method(method string, r *http.Request, body []byte, out map[string]any, fail func(string)) {
	f := r.Form
	switch method {
	case "auth.test":
		out["user_id"], out["user"], out["team_id"], out["team"], out["bot_id"] = "UBOT", "patchbay", "T1", "Acme", "BBOT"
	case "apps.connections.open":
		out["url"] = "ws" + strings.TrimPrefix(s.URL, "http") + "/socket"
	case "users.info":
		if u, ok := s.users[f.Get("user")]; ok {
			out["user"] = s.user(f.Get("user"), u)
		} else {
			fail("user_not_found")
		}
	case "users.lookupByEmail":
		for id, u := range s.users {
			if u.email == f.Get("email") && !u.alien {
				out["user"] = s.user(id, u)
				return
			}
		}
		fail("users_not_found")
	case "conversations.info":
		ch := f.Get("channel")
		out["channel"] = map[string]any{"id": ch, "is_im": strings.HasPrefix(ch, "D"), "is_private": s.private[ch], "is_channel": strings.HasPrefix(ch, "C")}
	case "conversations.open":
		out["channel"] = map[string]any{"id": "D" + strings.TrimPrefix(f.Get("users"), "U")}
	case "conversations.replies":
		s.replies(f.Get("channel"), f.Get("ts"), out)
	case "chat.postMessage", "chat.postEphemeral", "chat.update":
		s.chat(method, r, out, fail)
	case "views.publish":
		var v struct {
			UserID string `json:"user_id"`
			View   json.RawMessage
		}
		if json.Unmarshal(body, &v) != nil || v.UserID == "" {
			fail("invalid_arguments")
			return
		}
		var view struct{ Blocks json.RawMessage }
		json.Unmarshal(v.View, &view)
		if bad := badBlocks(view.Blocks, 100); bad != "" {
			fail(bad)
			return
		}
		s.homes[v.UserID] = v.View
	case "files.getUploadURLExternal":
		if n, err := strconv.Atoi(f.Get("length")); err != nil || n <= 0 || f.Get("filename") == "" {
			fail("invalid_arguments")
			return
		}
		id := "F" + strconv.Itoa(len(s.uploads)+1)
		s.uploads[id] = &SlackFile{Name: f.Get("filename")}
		out["upload_url"], out["file_id"] = s.URL+"/upload/"+id, id
	case "files.completeUploadExternal":
		var files []struct{ ID string }
		if json.Unmarshal([]byte(f.Get("files")), &files) != nil || len(files) != 1 || s.uploads[files[0].ID] == nil || s.uploads[files[0].ID].Content == "" {
			fail("invalid_arguments")
			return
		}
		file := *s.uploads[files[0].ID]
		file.Channel, file.Thread, file.Comment = f.Get("channel_id"), f.Get("thread_ts"), f.Get("initial_comment")
		s.files = append(s.files, file)
		out["files"] = []map[string]any{{"id": files[0].ID, "title": file.Name}}
	case "files.upload":
		fail("method_deprecated")
	default:
		fail("unknown_method")
	}
}

func (s *Slack) user(id string, u slackUser) map[string]any {
	team := "T1"
	if u.alien {
		team = "T2"
	}
	profile := map[string]any{"display_name": u.name}
	if !s.denied["users:read.email"] {
		profile["email"] = u.email
	}
	return map[string]any{"id": id, "team_id": team, "name": u.name, "real_name": u.name, "is_restricted": u.guest, "is_stranger": u.alien, "is_email_confirmed": !u.unsure, "profile": profile}
}

func (s *Slack) replies(channel, root string, out map[string]any) {
	list := []map[string]any{}
	for _, m := range s.messages {
		if m.Channel != channel || m.Only != "" || m.TS != root && m.Thread != root {
			continue
		}
		x := map[string]any{"type": "message", "user": m.User, "text": m.Text, "ts": m.TS, "thread_ts": root}
		if m.User == "UBOT" {
			x["bot_id"] = "BBOT"
		}
		if len(m.Metadata) > 0 {
			x["metadata"] = m.Metadata
		}
		list = append(list, x)
	}
	out["messages"], out["has_more"] = list, false
}

// chat takes what Slack takes: a text always, few and short blocks.
func (s *Slack) chat(method string, r *http.Request, out map[string]any, fail func(string)) {
	f := r.Form
	m := &SlackMessage{Channel: f.Get("channel"), Thread: f.Get("thread_ts"), User: "UBOT", Text: f.Get("text"), Only: f.Get("user"), Unfurl: f.Get("unfurl_links") != "false"}
	if b := f.Get("blocks"); b != "" {
		m.Blocks = json.RawMessage(b)
	}
	if md := f.Get("metadata"); md != "" {
		m.Metadata = json.RawMessage(md)
	}
	switch bad := badBlocks(m.Blocks, 50); {
	case m.Channel == "":
		fail("channel_not_found")
		return
	case m.Text == "":
		fail("no_text")
		return
	case utf8.RuneCountInString(m.Text) > 40_000:
		fail("msg_too_long")
		return
	case bad != "":
		fail(bad)
		return
	case method == "chat.postEphemeral" && m.Only == "":
		fail("user_not_in_channel")
		return
	}
	out["channel"] = m.Channel
	if method == "chat.update" {
		for _, old := range s.messages {
			if old.Channel == m.Channel && old.TS == f.Get("ts") && old.User == "UBOT" {
				old.Text, old.Blocks = m.Text, m.Blocks
				old.Edits++
				out["ts"], out["text"] = old.TS, old.Text
				return
			}
		}
		fail("message_not_found")
		return
	}
	if method != "chat.postEphemeral" {
		m.Only = ""
	}
	m.TS = s.stamp()
	s.messages = append(s.messages, m)
	out["ts"], out["message_ts"] = m.TS, m.TS
}

// badBlocks is what Slack says of blocks that it does not take.
func badBlocks(raw json.RawMessage, most int) string {
	if len(raw) == 0 {
		return ""
	}
	var blocks []struct {
		Type     string
		Text     struct{ Text string }
		Elements []struct {
			Type, Value, URL string
			ActionID         string `json:"action_id"`
			Text             json.RawMessage
		}
	}
	if json.Unmarshal(raw, &blocks) != nil || len(blocks) > most {
		return "invalid_blocks"
	}
	for _, b := range blocks {
		most := 3000
		if b.Type == "header" {
			most = 150
		}
		if (b.Type == "section" || b.Type == "header") && b.Text.Text == "" || utf8.RuneCountInString(b.Text.Text) > most {
			return "invalid_blocks"
		}
		for _, e := range b.Elements {
			if e.Type == "button" && (len(e.Value) > 2000 || len(e.URL) > 3000 || len(e.Text) > 160) {
				return "invalid_blocks"
			}
		}
	}
	return ""
}

func (s *Slack) upload(w http.ResponseWriter, r *http.Request) {
	file, _, err := r.FormFile("file")
	if err != nil {
		http.Error(w, err.Error(), 400)
		return
	}
	b, err := io.ReadAll(file)
	if err != nil {
		http.Error(w, err.Error(), 400)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if u := s.uploads[r.PathValue("id")]; u != nil {
		u.Content = string(b)
	}
	fmt.Fprint(w, "OK")
}

// socket is one connection of the app.
func (s *Slack) socket(w http.ResponseWriter, r *http.Request) {
	up := websocket.Upgrader{CheckOrigin: func(*http.Request) bool { return true }}
	c, err := up.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	sock := &slackSocket{c: c}
	sock.send(map[string]any{"type": "hello", "num_connections": 1, "connection_info": map[string]any{"app_id": "A1"}})
	s.mu.Lock()
	s.sockets = append(s.sockets, sock)
	s.mu.Unlock()
	defer func() {
		c.Close()
		s.mu.Lock()
		s.sockets = slices.DeleteFunc(s.sockets, func(o *slackSocket) bool { return o == sock })
		s.mu.Unlock()
	}()
	for {
		var ack struct {
			EnvelopeID string `json:"envelope_id"`
		}
		if err := c.ReadJSON(&ack); err != nil {
			return
		}
		s.mu.Lock()
		if !s.Lost {
			s.acked[ack.EnvelopeID] = true
		}
		s.mu.Unlock()
	}
}

func (k *slackSocket) send(v any) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.c.WriteJSON(v)
}

// Sockets is how many are open.
func (s *Slack) Sockets() int { s.mu.Lock(); defer s.mu.Unlock(); return len(s.sockets) }

// Drop closes every socket.
func (s *Slack) Drop() {
	s.mu.Lock()
	list := slices.Clone(s.sockets)
	s.mu.Unlock()
	for _, k := range list {
		k.c.Close()
	}
}

// emit sends an envelope, and again until it is acknowledged, three times in all.
func (s *Slack) emit(kind string, payload any) {
	s.mu.Lock()
	s.n++
	id := fmt.Sprintf("env-%d", s.n)
	s.mu.Unlock()
	go func() {
		for attempt := 0; attempt < 4; attempt++ {
			s.mu.Lock()
			done, list := s.acked[id], slices.Clone(s.sockets)
			both := s.Both
			s.mu.Unlock()
			if done {
				return
			}
			if len(list) > 0 && !both {
				list = list[attempt%len(list) : attempt%len(list)+1]
			}
			for _, k := range list {
				k.send(map[string]any{"envelope_id": id, "type": kind, "payload": payload, "accepts_response_payload": kind == "interactive", "retry_attempt": attempt})
			}
			if len(list) == 0 {
				attempt-- // Slack keeps it until somebody listens
			}
			time.Sleep(300 * time.Millisecond)
		}
	}()
}

// Event sends an event of the Events API.
func (s *Slack) Event(ev map[string]any) {
	s.mu.Lock()
	s.n++
	id := fmt.Sprintf("Ev%d", s.n)
	s.mu.Unlock()
	s.emit("events_api", map[string]any{"type": "event_callback", "team_id": "T1", "event_id": id, "event": ev})
}
