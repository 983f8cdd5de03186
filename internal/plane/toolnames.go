package plane

import "strings"

// ownTools are the tools that Patchbay itself gives an agent.
var ownTools = []string{"current_time", "mcp_propose", "recall", "remember", "result_read", "tool_call", "tool_search"}

// ownServer is what frameworks that prefix tools call us.
const ownServer = "patchbay"

// CanonicalToolName recognises one of our own tools by its name, whether a framework put
// our name before it or not: remember, patchbay_remember and mcp__patchbay__remember are
// one. Any other name is returned as it is.
func CanonicalToolName(name string) string {
	bare := name
	for _, prefix := range []string{"mcp__" + ownServer + "__", ownServer + "__", ownServer + "_"} {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			bare = rest
			break
		}
	}
	for _, own := range ownTools {
		if bare == own {
			return own
		}
	}
	return name
}
