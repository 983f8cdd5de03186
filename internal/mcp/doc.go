// Package mcp is the wire of the Model Context Protocol: JSON-RPC messages,
// Streamable HTTP for 2025-06-18, 2025-11-25 and 2026-07-28 as client and as
// server, and an in-memory pair.
//
// It promises to keep the peer's own bytes of every definition and result, to
// read only what policy needs from them, to bound every body, stream, page and
// wait, to send a request once and never again by itself, and to report how each
// attempt ended in the terms of plane.Ending. It knows no credentials, no
// policy and no storage.
package mcp

// Protocol versions, oldest first.
const (
	Version20250618 = "2025-06-18"
	Version20251125 = "2025-11-25"
	Version20260728 = "2026-07-28"

	version20250326 = "2025-03-26"
)

// Era tells the two shapes of the protocol apart: with and without a handshake.
type Era int

// Eras. Unknown makes a client probe.
const (
	EraUnknown Era = iota
	EraLegacy      // initialize, sessions, GET streams
	EraModern      // 2026-07-28: no session, everything in each request
)

// SupportedVersions are the versions this package speaks, newest first.
var SupportedVersions = []string{Version20260728, Version20251125, Version20250618}

// Methods used here.
const (
	methodInitialize    = "initialize"
	methodInitialized   = "notifications/initialized"
	methodDiscover      = "server/discover"
	methodListen        = "subscriptions/listen"
	methodPing          = "ping"
	methodToolsList     = "tools/list"
	methodToolsCall     = "tools/call"
	methodResourcesList = "resources/list"
	methodPromptsList   = "prompts/list"
	methodCancelled     = "notifications/cancelled"
	methodProgress      = "notifications/progress"
	methodListChanged   = "notifications/tools/list_changed"
)

// JSON-RPC error codes.
const (
	CodeParse              = -32700
	CodeInvalidRequest     = -32600
	CodeMethodNotFound     = -32601
	CodeInvalidParams      = -32602
	CodeInternal           = -32603
	CodeHeaderMismatch     = -32020
	CodeMissingCapability  = -32021
	CodeUnsupportedVersion = -32022
)

const (
	headerSession  = "Mcp-Session-Id"
	headerProtocol = "Mcp-Protocol-Version"
	headerMethod   = "Mcp-Method"
	headerName     = "Mcp-Name"
	headerParam    = "Mcp-Param-"

	metaVersion      = "io.modelcontextprotocol/protocolVersion"
	metaClientInfo   = "io.modelcontextprotocol/clientInfo"
	metaServerInfo   = "io.modelcontextprotocol/serverInfo"
	metaCapabilities = "io.modelcontextprotocol/clientCapabilities"
	metaSubscription = "io.modelcontextprotocol/subscriptionId"
)

// Implementation names a program.
type Implementation struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}
