package mcp

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// modern serves a request of 2026-07-28: no session, everything in the request,
// and headers that must say what the body says.
func (s *Server) modern(w http.ResponseWriter, r *http.Request, m *Message) {
	refuse := func(status int, code int64, msg string, data any) {
		e := &RPCError{Code: code, Message: msg}
		if data != nil {
			e.Data, _ = json.Marshal(data) // lists and strings of ours
		}
		writeError(w, status, m.ID, e)
	}
	version := metaString(m.Params, metaVersion)
	head := r.Header.Get(headerProtocol)
	switch {
	case version == "":
		refuse(http.StatusBadRequest, CodeInvalidParams, "The request's _meta names no protocol version.", nil)
		return
	case head != "" && head != version:
		refuse(http.StatusBadRequest, CodeHeaderMismatch, "The protocol version differs between header and body.", nil)
		return
	case version != Version20260728:
		refuse(http.StatusBadRequest, CodeUnsupportedVersion, "The protocol version is not spoken here.",
			map[string]any{"supported": SupportedVersions, "requested": version})
		return
	case head == "":
		refuse(http.StatusBadRequest, CodeHeaderMismatch, "The protocol version is missing from the headers.", nil)
		return
	}
	if msg := checkMirror(r, m); msg != "" {
		refuse(http.StatusBadRequest, CodeHeaderMismatch, msg, nil)
		return
	}
	switch m.Method {
	case methodDiscover:
		versions, _ := json.Marshal(SupportedVersions) // strings of ours
		info, _ := json.Marshal(s.Info)
		writeResult(w, m.ID, s.describe(fmt.Sprintf(`"resultType":"complete","supportedVersions":%s,"ttlMs":0,"cacheScope":"private","_meta":{%q:%s}`, versions, metaServerInfo, info)))
	case methodToolsList:
		s.list(w, r, m, `"resultType":"complete","ttlMs":0,"cacheScope":"private",`)
	case methodToolsCall:
		s.call(w, r, m, Version20260728)
	case methodListen:
		s.listenModern(w, r, m)
	default:
		refuse(http.StatusNotFound, CodeMethodNotFound, "The method is not offered here.", nil)
	}
}

// checkMirror compares the mirrored headers with the body; it returns what is
// wrong, or nothing.
func checkMirror(r *http.Request, m *Message) string {
	if got := r.Header.Get(headerMethod); got != m.Method {
		return "Mcp-Method does not name the method of the body."
	}
	if m.Method != methodToolsCall {
		return ""
	}
	name := ""
	if len(m.Params) == 0 || m.Params[0] != '{' || topMembers(m.Params, func(k string, v []byte) {
		if k == "name" {
			name, _ = String(v)
		}
	}) != nil {
		return "" // the call itself refuses such params
	}
	if got, ok := decodeHeader(r.Header.Get(headerName)); !ok || got != name {
		return "Mcp-Name does not name the tool of the body."
	}
	return ""
}

func (s *Server) listenModern(w http.ResponseWriter, r *http.Request, m *Message) {
	var p struct {
		Notifications struct {
			Tools bool `json:"toolsListChanged"`
		} `json:"notifications"`
	}
	if json.Unmarshal(m.Params, &p) != nil {
		writeError(w, http.StatusBadRequest, m.ID, &RPCError{Code: CodeInvalidParams, Message: "subscriptions/listen needs notifications."})
		return
	}
	ack := fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{%q:%s},"notifications":{"toolsListChanged":%v}}}`,
		metaSubscription, m.ID, p.Notifications.Tools)
	note := fmt.Appendf(nil, `{"jsonrpc":"2.0","method":%q,"params":{"_meta":{%q:%s}}}`, methodListChanged, metaSubscription, m.ID)
	s.listen(w, r, ack, note)
}
