// Package mcp is the wire of the Model Context Protocol: JSON-RPC messages,
// Streamable HTTP for 2025-06-18, 2025-11-25 and 2026-07-28 as client and as
// server, stdio as client, and an in-memory pair.
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

// Methods.
const (
	MethodInitialize    = "initialize"
	MethodInitialized   = "notifications/initialized"
	MethodDiscover      = "server/discover"
	MethodListen        = "subscriptions/listen"
	MethodPing          = "ping"
	MethodToolsList     = "tools/list"
	MethodToolsCall     = "tools/call"
	MethodResourcesList = "resources/list"
	MethodTemplatesList = "resources/templates/list"
	MethodResourcesRead = "resources/read"
	MethodSubscribe     = "resources/subscribe"
	MethodUnsubscribe   = "resources/unsubscribe"
	MethodPromptsList   = "prompts/list"
	MethodPromptsGet    = "prompts/get"
	MethodComplete      = "completion/complete"
	MethodSetLevel      = "logging/setLevel"
	MethodElicit        = "elicitation/create"
	MethodSample        = "sampling/createMessage"
	MethodRoots         = "roots/list"

	MethodCancelled        = "notifications/cancelled"
	MethodProgress         = "notifications/progress"
	MethodLog              = "notifications/message"
	MethodListChanged      = "notifications/tools/list_changed"
	MethodPromptsChanged   = "notifications/prompts/list_changed"
	MethodResourcesChanged = "notifications/resources/list_changed"
	MethodUpdated          = "notifications/resources/updated"
	MethodAcknowledged     = "notifications/subscriptions/acknowledged"
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
	CodeElicitationNeeded  = -32042
	CodeResourceNotFound   = -32002 // 2025; in 2026-07-28 it is CodeInvalidParams
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
	metaKey          = "patchbay/idempotencyKey" // ours: one for each logical call
	metaSubscription = "io.modelcontextprotocol/subscriptionId"
	metaLogLevel     = "io.modelcontextprotocol/logLevel"
)

// Implementation names a program.
type Implementation struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}
