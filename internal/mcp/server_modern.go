package mcp

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
)

// modern serves a request of 2026-07-28: no session, everything in the request,
// and headers that must say what the body says.
func (s *Server) modern(w http.ResponseWriter, r *http.Request, m *Message, p *params) {
	refuse := func(status int, code int64, msg string, data any) {
		e := &RPCError{Code: code, Message: msg}
		if data != nil {
			e.Data, _ = json.Marshal(data) // lists and strings of ours
		}
		writeError(w, status, m.ID, e)
	}
	head := r.Header.Get(headerProtocol)
	switch {
	case p.version == "":
		refuse(http.StatusBadRequest, CodeInvalidParams, "The request's _meta names no protocol version.", nil)
		return
	case head != "" && head != p.version:
		refuse(http.StatusBadRequest, CodeHeaderMismatch, "The protocol version differs between header and body.", nil)
		return
	case p.version != Version20260728:
		refuse(http.StatusBadRequest, CodeUnsupportedVersion, "The protocol version is not spoken here.",
			map[string]any{"supported": SupportedVersions, "requested": p.version})
		return
	case head == "":
		refuse(http.StatusBadRequest, CodeHeaderMismatch, "The protocol version is missing from the headers.", nil)
		return
	case p.capable == nil:
		refuse(http.StatusBadRequest, CodeInvalidParams, "The request's _meta names no client capabilities.", nil)
		return
	}
	if msg := checkMirror(r, m, p); msg != "" {
		refuse(http.StatusBadRequest, CodeHeaderMismatch, msg, nil)
		return
	}
	peer := Peer{Version: Version20260728, Capabilities: p.capable, LogLevel: p.level}
	switch m.Method {
	case MethodDiscover:
		versions, _ := json.Marshal(SupportedVersions) // strings of ours
		info, _ := json.Marshal(s.Info)
		writeResult(w, m.ID, s.describe(fmt.Sprintf(`"resultType":"complete","supportedVersions":%s,"ttlMs":0,"cacheScope":"private","_meta":{%q:%s}`, versions, metaServerInfo, info)))
	case MethodListen:
		s.listenModern(w, r, m)
	case MethodSubscribe, MethodUnsubscribe, MethodSetLevel, MethodPing, MethodInitialize:
		refuse(http.StatusNotFound, CodeMethodNotFound, "The method is not part of this version.", nil)
	default:
		s.serve(w, r, m, p, peer)
	}
}

// checkMirror compares the mirrored headers with the body; it returns what is
// wrong, or nothing.
func checkMirror(r *http.Request, m *Message, p *params) string {
	if got := r.Header.Get(headerMethod); got != m.Method {
		return "Mcp-Method does not name the method of the body."
	}
	name, must := p.named(m.Method)
	if !must || name == "" {
		return "" // the request itself is refused without
	}
	if got, ok := decodeHeader(r.Header.Get(headerName)); !ok || got != name {
		return "Mcp-Name does not name what the body does."
	}
	return ""
}

// Subscriber is a Handler whose resources may be subscribed to for as long as a
// stream of the modern era is open.
type Subscriber interface {
	Subscribe(r *http.Request, uris []string) (end func())
}

// maxSubscriptions is how many resources one stream may be about.
const maxSubscriptions = 64

func (s *Server) listenModern(w http.ResponseWriter, r *http.Request, m *Message) {
	var p struct {
		Notifications struct {
			Tools     bool     `json:"toolsListChanged,omitempty"`
			Prompts   bool     `json:"promptsListChanged,omitempty"`
			Resources bool     `json:"resourcesListChanged,omitempty"`
			URIs      []string `json:"resourceSubscriptions,omitempty"`
		} `json:"notifications"`
	}
	if json.Unmarshal(m.Params, &p) != nil || len(p.Notifications.URIs) > maxSubscriptions {
		writeError(w, http.StatusBadRequest, m.ID, &RPCError{Code: CodeInvalidParams, Message: fmt.Sprintf("subscriptions/listen needs notifications, about at most %d resources.", maxSubscriptions)})
		return
	}
	if sub, ok := s.Handler.(Subscriber); ok && len(p.Notifications.URIs) > 0 {
		end := sub.Subscribe(r, p.Notifications.URIs)
		defer end()
	} else {
		p.Notifications.URIs = nil
	}
	agreed, _ := json.Marshal(p.Notifications) // flags and strings
	ack := fmt.Appendf(nil, `{"jsonrpc":"2.0","method":%q,"params":{"_meta":{%q:%s},"notifications":%s}}`, MethodAcknowledged, metaSubscription, m.ID, agreed)
	n := p.Notifications
	s.listen(w, r, ack, &listener{sub: m.ID, wants: func(x *Notice) bool {
		switch x.Method {
		case MethodListChanged:
			return n.Tools
		case MethodPromptsChanged:
			return n.Prompts
		case MethodResourcesChanged:
			return n.Resources
		case MethodUpdated:
			return slices.Contains(n.URIs, x.URI)
		}
		return false
	}})
}
