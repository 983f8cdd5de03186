package ledger

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strings"

	"patchbay/internal/mcp"
	"patchbay/internal/plane"
)

// linearAppend covers one append to the description of one existing issue at Linear's
// own endpoint: arguments {id, patch} with a canonical UUID and one append of text, and
// an answer that is an issue of that very id. It covers nothing else: no creation, no
// other patch, no relation, nothing in bulk.
type linearAppend struct{}

const linearEndpoint = "https://mcp.linear.app/mcp"

// Name is as reviews give it.
func (linearAppend) Name() string { return "linear-atomic-append-v1" }

// Admits only save_issue, as an effect, at the official endpoint.
func (linearAppend) Admits(endpoint, tool string, class plane.Class) bool {
	return endpoint == linearEndpoint && tool == "save_issue" && class == plane.Effect
}

var canonicalUUID = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// appendArguments is the one supported form. Members beside these make it another.
func appendArguments(arguments []byte) (id, text string, ok bool) {
	var in struct {
		ID    *string         `json:"id"`
		Patch json.RawMessage `json:"patch"`
	}
	if !exact(arguments, &in) || in.ID == nil || !canonicalUUID.MatchString(*in.ID) {
		return "", "", false
	}
	var p struct {
		Op   string `json:"op"`
		Text string `json:"text"`
	}
	if !exact(in.Patch, &p) || p.Op != "append" || strings.TrimSpace(p.Text) == "" {
		return "", "", false
	}
	return *in.ID, p.Text, true
}

// exact decodes an object that has no other members. Names of members are compared
// with their case: the object was read strictly before.
func exact(raw []byte, into any) bool {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if d.Decode(into) != nil {
		return false
	}
	var names map[string]json.RawMessage
	if json.Unmarshal(raw, &names) != nil {
		return false
	}
	for n := range names {
		if n != strings.ToLower(n) {
			return false
		}
	}
	return true
}

// Subject is the issue.
func (linearAppend) Subject(arguments []byte) (string, bool) {
	id, _, ok := appendArguments(arguments)
	return id, ok
}

// Ended wants one final issue of that id. That its description shows the text is
// diagnosis: an excerpt may leave it out.
func (linearAppend) Ended(subject string, arguments, result []byte) (ended, verified bool) {
	issue, ok := finalIssue(result)
	if !ok || issue.ID != subject {
		return false, false
	}
	_, text, ok := appendArguments(arguments)
	return true, ok && strings.HasSuffix(strings.TrimSpace(issue.Description), strings.TrimSpace(text))
}

type linearIssue struct {
	ID          string
	Description string
}

// finalIssue reads the issue of a tool's result: its structured content or, without
// one, its only text. Everything about it has to be unambiguous and final: members that
// speak of an error, a task or a later time make it no answer of this kind, and so does
// text that is not the same issue.
func finalIssue(result []byte) (linearIssue, bool) {
	top, ok := members(result)
	if !ok {
		return linearIssue{}, false
	}
	for name, v := range top {
		switch name {
		case "content", "structuredContent", "_meta":
		case "isError":
			if string(v) != "false" {
				return linearIssue{}, false
			}
		case "resultType":
			if string(v) != `"complete"` {
				return linearIssue{}, false
			}
		default:
			return linearIssue{}, false
		}
	}
	var issue linearIssue
	found := false
	if raw, ok := top["structuredContent"]; ok {
		if issue, found = readIssue(raw); !found {
			return linearIssue{}, false
		}
	}
	var parts []json.RawMessage
	if raw, ok := top["content"]; ok && json.Unmarshal(raw, &parts) != nil || len(parts) > 1 {
		return linearIssue{}, false
	}
	for _, part := range parts {
		m, ok := members(part)
		text, isText := mcp.String(m["text"])
		if !ok || string(m["type"]) != `"text"` || !isText {
			return linearIssue{}, false
		}
		said, ok := readIssue([]byte(text))
		if !ok || found && said.ID != issue.ID {
			return linearIssue{}, false
		}
		issue, found = said, true
	}
	return issue, found
}

// members are those of an object that can be read in one way only.
func members(raw []byte) (map[string]json.RawMessage, bool) {
	out := map[string]json.RawMessage{}
	if len(raw) == 0 || raw[0] != '{' || mcp.Check(raw, mcp.Strict) != nil || json.Unmarshal(raw, &out) != nil {
		return nil, false
	}
	return out, true
}

// unfinished are members that a final issue does not have.
var unfinished = []string{"error", "errors", "success", "asyncStatus", "jobId", "job", "task", "taskId", "patch", "queued", "pending"}

// readIssue reads an issue, by itself or as the only member "issue" of an object. It
// has at least one member that only an issue has.
func readIssue(raw []byte) (linearIssue, bool) {
	m, ok := members(bytes.TrimSpace(raw))
	if inner, wrapped := m["issue"]; ok && wrapped {
		if len(m) != 1 {
			return linearIssue{}, false
		}
		m, ok = members(inner)
	}
	if !ok {
		return linearIssue{}, false
	}
	for name := range m {
		if slices.ContainsFunc(unfinished, func(u string) bool { return strings.EqualFold(u, name) }) {
			return linearIssue{}, false
		}
	}
	id, ok := mcp.String(m["id"])
	if !ok || !canonicalUUID.MatchString(id) || m["identifier"] == nil && m["url"] == nil && m["updatedAt"] == nil {
		return linearIssue{}, false
	}
	description, _ := mcp.String(m["description"])
	return linearIssue{id, description}, true
}
