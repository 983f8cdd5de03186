package app

import (
	"patchbay/internal/plane"
)

// connections lists what config pins, tier by tier.
func (c *Config) connections() ([]plane.Connection, error) {
	var out []plane.Connection
	add := func(scope plane.Scope, m map[string]ConnectionConfig) error {
		for _, slug := range sortedKeys(m) {
			conn, err := c.connection(scope, slug, m[slug])
			if err != nil {
				return err
			}
			out = append(out, conn)
		}
		return nil
	}
	if err := add(plane.Scope{Kind: plane.ScopeOrg}, c.Org.Connections); err != nil {
		return nil, err
	}
	for _, a := range sortedKeys(c.Agents) {
		if err := add(plane.Scope{Kind: plane.ScopeAgent, Name: a}, c.Agents[a].Connections); err != nil {
			return nil, err
		}
	}
	for _, t := range sortedKeys(c.Teams) {
		if err := add(plane.Scope{Kind: plane.ScopeTeam, Name: t}, c.Teams[t].Connections); err != nil {
			return nil, err
		}
	}
	for _, u := range sortedKeys(c.Users) {
		if err := add(plane.Scope{Kind: plane.ScopeUser, Name: u}, c.Users[u].Connections); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (c *Config) connection(scope plane.Scope, slug string, cc ConnectionConfig) (plane.Connection, error) {
	name := scope.String() + "/" + slug
	if !plane.ValidSlug(slug) {
		return plane.Connection{}, c.bad("connections", "%s: %q is no slug; use a-z, 0-9 and -, at most %d characters.", scope, slug, plane.MaxSlug)
	}
	conn := plane.Connection{Scope: scope, Slug: slug, Label: cc.Label, Endpoint: cc.URL, Auth: cc.Auth, TokenEnv: cc.TokenEnv,
		Agents: cc.Agents, Enabled: cc.Enabled == nil || *cc.Enabled, MaxBytes: cc.ResponseBytes,
		Origin: plane.Pinned, State: plane.StateConnected, CreatedBy: "config", SecretEnv: cc.ClientSecret,
		OAuth: plane.OAuthOptions{ClientID: cc.ClientID, ClientAuth: cc.ClientAuth},
		Fixed: plane.Preferences{Allow: cc.Tools.Allow, Deny: cc.Tools.Deny, Hold: cc.NewTools == "hold", Targets: cc.Targets, Keys: cc.Keys}}
	var err error
	if cc.Labels != nil {
		labels, err := plane.ParseLabels(*cc.Labels)
		if err != nil {
			return conn, c.bad("labels", "%s: %s", name, plane.Public(err).Message)
		}
		conn.Fixed.Labels = &labels
	}
	if conn.Throttle, err = c.throttle(name, cc.Calls, cc.Rate, cc.ToolRates); err != nil {
		return conn, err
	}
	if err := conn.Fixed.Validate(); err != nil {
		return conn, c.bad("tools", "%s: %s", name, plane.Public(err).Message)
	}
	if cc.NewTools != "" && cc.NewTools != "auto" && cc.NewTools != "hold" {
		return conn, c.bad("new_tools", "%s: new_tools is auto or hold.", name)
	}
	if conn.Auth == "" {
		conn.Auth = plane.AuthNone
		if cc.TokenEnv != "" {
			conn.Auth = plane.AuthBearer
		}
	}
	auth, err := plane.ParseAuth(string(conn.Auth))
	switch {
	case err != nil:
		return conn, c.bad("auth", "%s: %s", name, plane.Public(err).Message)
	case plane.Placeholder(cc.URL) != "":
		return conn, c.bad("url", "%s: %s in the url stands for a value of yours; write the value.", name, plane.Placeholder(cc.URL))
	case cc.URL == "":
		return conn, c.bad("url", "%s names no url.", name)
	case auth.Pasted() && cc.TokenEnv == "":
		return conn, c.bad("token_env", "%s: auth is %s, so token_env must name the variable that holds the credential.", name, auth)
	case !auth.Pasted() && cc.TokenEnv != "":
		return conn, c.bad("token_env", "%s: token_env goes with bearer, api_key and basic.", name)
	case cc.ClientID == "" && (cc.ClientSecret != "" || cc.ClientAuth != ""):
		return conn, c.bad("client_id", "%s: client_secret_env and client_auth go with client_id.", name)
	case cc.ClientAuth != "" && cc.ClientAuth != "none" && cc.ClientAuth != "client_secret_basic" && cc.ClientAuth != "client_secret_post":
		return conn, c.bad("client_auth", "%s: client_auth is none, client_secret_basic or client_secret_post.", name)
	case auth != plane.AuthOAuth && cc.ClientID != "":
		return conn, c.bad("client_id", "%s: client_id goes with auth: oauth.", name)
	case cc.ResponseBytes < 0 || cc.ResponseBytes > maxResponseBytes:
		return conn, c.bad("response_bytes", "%s: response_bytes is at most %d.", name, maxResponseBytes)
	}
	conn.Auth = auth
	return conn, nil
}

// maxResponseBytes is how far one connection's response cap may be raised.
const maxResponseBytes = 32 << 20
