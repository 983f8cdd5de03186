package e2e

import (
	"encoding/json"
	"slices"
	"testing"

	"patchbay/internal/command"
	"patchbay/test/peers"
)

// What a server lists beside its tools is in the catalog.
func TestResourcesAndPromptsAreListed(t *testing.T) {
	url := peers.Everything(t)
	d := serve(t, allow("everything", url))
	d.must("mcp", "add", "everything", url, "--scope", "org") // connecting reads them already
	var show command.MCPShow
	if err := json.Unmarshal([]byte(d.must("--json", "mcp", "show", "everything")), &show); err != nil {
		t.Fatal(err)
	}
	if len(show.Resources) == 0 || !slices.Contains(show.Prompts, "simple-prompt") && len(show.Prompts) == 0 || len(show.Tools) == 0 {
		t.Errorf("%v %v, %d tools", show.Resources, show.Prompts, len(show.Tools))
	}
	t.Logf("%d resources, prompts %v", len(show.Resources), show.Prompts)
}
