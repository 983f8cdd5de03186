package bridge

// Names of the tools that stand for all others where there are too many to offer.
const (
	searchTool = "tool_search"
	callTool   = "tool_call"
)
