package fake

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Say has somebody write a message, in a thread where there is one, and returns its id. One
// that mentions the bot, or is direct, is an event.
func (s *Slack) Say(user, channel, text, thread string) string {
	s.mu.Lock()
	ts := s.stamp()
	s.messages = append(s.messages, &SlackMessage{Channel: channel, TS: ts, Thread: thread, User: user, Text: text})
	s.mu.Unlock()
	ev := map[string]any{"type": "app_mention", "user": user, "text": text, "ts": ts, "channel": channel, "event_ts": ts}
	if thread != "" {
		ev["thread_ts"] = thread
	}
	if strings.HasPrefix(channel, "D") {
		ev["type"], ev["channel_type"] = "message", "im"
		s.Event(ev)
	} else if strings.Contains(text, "<@UBOT") {
		s.Event(ev)
	}
	return ts
}

// React puts a reaction under a message.
func (s *Slack) React(user, channel, ts, name string) {
	s.mu.Lock()
	at := s.stamp()
	s.mu.Unlock()
	s.Event(map[string]any{"type": "reaction_added", "user": user, "reaction": name, "item": map[string]any{"type": "message", "channel": channel, "ts": ts}, "event_ts": at})
}

// Delete takes a message back.
func (s *Slack) Delete(user, channel, ts string) {
	s.Event(map[string]any{"type": "message", "subtype": "message_deleted", "channel": channel, "deleted_ts": ts, "previous_message": map[string]any{"user": user}})
}

// OpenHome has somebody look at the app's home.
func (s *Slack) OpenHome(user string) {
	s.mu.Lock()
	at := s.stamp()
	s.mu.Unlock()
	s.Event(map[string]any{"type": "app_home_opened", "user": user, "tab": "home", "event_ts": at})
}

// Home is what somebody's home shows.
func (s *Slack) Home(user string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.homes[user])
}

// Press presses a button of a message, by its action; value replaces what the button says.
func (s *Slack) Press(user string, m SlackMessage, action string, value ...string) {
	s.t.Helper()
	s.press(user, m.Channel, m.TS, m.Thread, m.Blocks, action, value)
}

// PressHome presses a button of somebody's home.
func (s *Slack) PressHome(user, action string) {
	s.t.Helper()
	var view struct{ Blocks json.RawMessage }
	json.Unmarshal([]byte(s.Home(user)), &view)
	s.press(user, "", "", "", view.Blocks, action, nil)
}

func (s *Slack) press(user, channel, ts, thread string, raw json.RawMessage, action string, value []string) {
	s.t.Helper()
	type element struct {
		Type, Value string
		ActionID    string `json:"action_id"`
	}
	var blocks []struct {
		Elements  []element
		Accessory element
	}
	json.Unmarshal(raw, &blocks)
	found := ""
	for _, b := range blocks {
		for _, e := range append(b.Elements, b.Accessory) {
			if e.Type == "button" && e.ActionID == action {
				found = e.Value
			}
		}
	}
	if len(value) > 0 {
		found = value[0]
	} else if found == "" {
		s.t.Errorf("the message has no button %s: %s", action, raw)
		return
	}
	s.mu.Lock()
	at := s.stamp()
	s.mu.Unlock()
	s.emit("interactive", map[string]any{"type": "block_actions", "user": map[string]any{"id": user, "team_id": "T1"}, "team": map[string]any{"id": "T1"}, "channel": map[string]any{"id": channel},
		"container": map[string]any{"type": "message", "message_ts": ts, "thread_ts": thread, "channel_id": channel}, "actions": []map[string]any{{"type": "button", "action_id": action, "value": found, "action_ts": at, "block_id": "b"}}})
}

// Messages are those of a channel, ephemeral ones too, in order.
func (s *Slack) Messages(channel string) (out []SlackMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.messages {
		if m.Channel == channel {
			out = append(out, *m)
		}
	}
	return out
}

// Files are those that were shared.
func (s *Slack) Files() []SlackFile { s.mu.Lock(); defer s.mu.Unlock(); return slices.Clone(s.files) }

// All is everything that can be read in the workspace.
func (s *Slack) All() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out strings.Builder
	for _, m := range s.messages {
		fmt.Fprintf(&out, "%s %s %s %s %s %s\n", m.Channel, m.Thread, m.User, m.Only, m.Text, m.Blocks)
	}
	fmt.Fprint(&out, s.files, s.homes)
	return out.String()
}

// Until waits for a message of the bot's in a channel that says something.
func (s *Slack) Until(channel, words string) SlackMessage {
	s.t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		for _, m := range slices.Backward(s.Messages(channel)) {
			if m.User == "UBOT" && (strings.Contains(m.Text, words) || strings.Contains(string(m.Blocks), words)) {
				return m
			}
		}
		if time.Now().After(end) {
			s.t.Fatalf("nobody says %q in %s:\n%s", words, channel, s.All())
		}
	}
}
