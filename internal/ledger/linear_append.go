package ledger

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"

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
	patch := bytes.TrimSpace(in.Patch)
	var list []json.RawMessage
	if len(patch) > 0 && patch[0] == '[' {
		if json.Unmarshal(patch, &list) != nil || len(list) != 1 {
			return "", "", false
		}
		patch = list[0]
	}
	var p struct {
		Op   string `json:"op"`
		Text string `json:"text"`
	}
	if !exact(patch, &p) || p.Op != "append" || strings.TrimSpace(p.Text) == "" {
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
	ID          string `json:"id"`
	Description string `json:"description"`
	Status      string `json:"asyncStatus"`
}

// finalIssue reads the issue of a tool's result: its structured content or, without
// one, its only text. An answer that says it was only accepted is not final.
func finalIssue(result []byte) (linearIssue, bool) {
	var r struct {
		Structured json.RawMessage `json:"structuredContent"`
		Content    []struct {
			Type, Text string
		} `json:"content"`
		IsError bool `json:"isError"`
	}
	if json.Unmarshal(result, &r) != nil || r.IsError {
		return linearIssue{}, false
	}
	raw := r.Structured
	if len(raw) == 0 {
		if len(r.Content) != 1 || r.Content[0].Type != "text" {
			return linearIssue{}, false
		}
		raw = json.RawMessage(r.Content[0].Text)
	}
	var wrapped struct {
		Issue json.RawMessage `json:"issue"`
	}
	if json.Unmarshal(raw, &wrapped) == nil && len(wrapped.Issue) > 0 {
		raw = wrapped.Issue
	}
	var issue linearIssue
	if json.Unmarshal(raw, &issue) != nil || issue.Status != "" || !canonicalUUID.MatchString(issue.ID) {
		return linearIssue{}, false
	}
	return issue, true
}
