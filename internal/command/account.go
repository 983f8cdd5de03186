package command

import (
	"encoding/json"
	"time"
)

// Provider is one account of an agent as the administration API shows it.
type Provider struct {
	ID          string           `json:"provider_id"`
	Name        string           `json:"name"` // the label
	Slug        string           `json:"slug"`
	Endpoint    string           `json:"endpoint"`
	AuthKind    string           `json:"auth_kind"` // none, bearer, api_key, basic, oauth
	AuthError   string           `json:"auth_error,omitempty"`
	State       string           `json:"state"`
	Enabled     bool             `json:"enabled"`
	Pinned      bool             `json:"pinned"`      // by config: no request changes its name, address or credential
	NewAccount  bool             `json:"new_account"` // else it is the one known by its address
	Version     int64            `json:"version"`
	NewTools    string           `json:"new_tools"` // auto or hold
	Disabled    []string         `json:"disabled_tools"`
	LegacyTools *[]string        `json:"legacy_tools,omitempty"` // a selection that waits for the first listing
	Tools       []ProviderTool   `json:"tools"`                  // those that are used
	Discovered  []ProviderTool   `json:"discovered,omitempty"`   // all that the server lists; of one account only
	Classes     []Classification `json:"tool_classifications"`
	Catalog     *ProviderCatalog `json:"catalog,omitempty"` // once it has been looked at
}

// ProviderTool is one tool of an account.
type ProviderTool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Fingerprint string          `json:"fingerprint"`
	Class       string          `json:"class"`
	Reviewed    bool            `json:"reviewed"`
	Hint        string          `json:"hint"`
	Enabled     bool            `json:"enabled"`
	Reason      string          `json:"reason,omitempty"` // why it is not
	Supported   bool            `json:"supported"`
	InputSchema json.RawMessage `json:"input_schema,omitempty"`
}

// Classification is a person's word on one exact definition.
type Classification struct {
	Name        string `json:"name"`
	Fingerprint string `json:"fingerprint"`
	Class       string `json:"class"`
	Contract    string `json:"completion_contract,omitempty"`
}

// ProviderCatalog is how an account's catalog stands.
type ProviderCatalog struct {
	Health     string    `json:"health"` // pending, ok, unavailable, unauthorized
	Detail     string    `json:"detail,omitempty"`
	CapturedAt time.Time `json:"captured_at,omitzero"`
	FailedAt   time.Time `json:"failed_at,omitzero"`
	Revision   int64     `json:"revision"`
	Stale      bool      `json:"stale"`
	Resources  int       `json:"resources"`
	Prompts    int       `json:"prompts"`
}

// SaveRequest saves an account.
type SaveRequest struct {
	Name       string `json:"name"`
	Endpoint   string `json:"endpoint"`
	Token      string `json:"token,omitempty"`
	NewAccount bool   `json:"new_account,omitempty"`
}

// UpdateRequest edits an account; a blank token keeps the saved credential.
type UpdateRequest struct {
	Version  int64  `json:"version"`
	Name     string `json:"name,omitempty"`
	Endpoint string `json:"endpoint,omitempty"`
	Token    string `json:"token,omitempty"`
}

// Selected is a tool of a legacy selection: its name, or the name with the
// definition that was looked at and its class.
type Selected struct{ Classification }

// UnmarshalJSON takes both forms.
func (s *Selected) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		return json.Unmarshal(b, &s.Name)
	}
	return json.Unmarshal(b, &s.Classification)
}

// EnableRequest says what is used of an account, and turns it on unless keep_state
// says otherwise.
type EnableRequest struct {
	Version         int64            `json:"version"`
	DisabledTools   *[]string        `json:"disabled_tools,omitempty"`
	Classes         []Classification `json:"tool_classifications,omitempty"`
	Tools           *[]Selected      `json:"tools,omitempty"` // a full selection, from before exclusions
	KeepState       bool             `json:"keep_state,omitempty"`
	KeepPreferences bool             `json:"keep_preferences,omitempty"`
}

// DisableRequest turns an account off.
type DisableRequest struct {
	Version int64 `json:"version,omitempty"`
}

// DriftRequest decides on changed definitions.
type DriftRequest struct {
	Version int64            `json:"version"`
	Accept  []Classification `json:"accept,omitempty"` // name and fingerprint
	Block   []string         `json:"block,omitempty"`
}

// ProviderList is an agent's accounts.
type ProviderList struct {
	Providers []Provider        `json:"providers"`
	Presets   map[string]string `json:"presets"` // well-known addresses
}
