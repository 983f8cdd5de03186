package plane

import "time"

// Limits is the one table of bounds. Every refusal names the field, in the
// spelling of the config file. The zero value is not usable: start from
// DefaultLimits.
type Limits struct {
	HeaderTimeout   time.Duration `yaml:"header_timeout"`   // until a server's response header
	IdleTimeout     time.Duration `yaml:"idle_timeout"`     // without progress within one request
	RequestTimeout  time.Duration `yaml:"request_timeout"`  // one request in all
	DiscoverOne     time.Duration `yaml:"discover_one"`     // discovery of one connection
	DiscoverAll     time.Duration `yaml:"discover_all"`     // all discovery of one run
	DiscoverAtOnce  int           `yaml:"discover_at_once"` // connections discovered beside each other
	ResponseBytes   int           `yaml:"response_bytes"`   // a response body or stream
	ResponseBuffers int           `yaml:"response_buffers"` // results held in memory, process-wide, in bytes

	CatalogTools       int `yaml:"catalog_tools"`
	CatalogPages       int `yaml:"catalog_pages"`
	SchemaBytes        int `yaml:"schema_bytes"`
	SchemaDepth        int `yaml:"schema_depth"`
	DescriptionBytes   int `yaml:"description_bytes"`   // stored
	DescriptionOffered int `yaml:"description_offered"` // shown to a model, in characters

	CallsPerRun   int           `yaml:"calls_per_run"` // remote calls, all servers
	TurnsPerRun   int           `yaml:"turns_per_run"`
	RunTime       time.Duration `yaml:"run_time"` // waiting for a person not counted
	ModelTimeout  time.Duration `yaml:"model_timeout"`
	RunsAtOnce    int           `yaml:"runs_at_once"`
	PromptBytes   int           `yaml:"prompt_bytes"`
	ResultChars   int           `yaml:"result_chars"`        // of one result, shown to a model
	ResultKept    int           `yaml:"result_kept"`         // bytes of one result kept for result_read
	ResultKeptRun int           `yaml:"result_kept_per_run"` // the same, of all results of a run

	CatalogRefresh time.Duration `yaml:"catalog_refresh"` // between two reads of one catalog; 0 for never by itself
	Drain          time.Duration `yaml:"drain"`           // for calls under way when the server is stopped
	DrainNotice    time.Duration `yaml:"drain_notice"`    // of several replicas: for balancers to notice

	SessionsPerConnection int           `yaml:"sessions_per_connection"`
	SessionIdle           time.Duration `yaml:"session_idle"`
	ToolsOffered          int           `yaml:"tools_offered"`
	FingerprintMaxAge     time.Duration `yaml:"fingerprint_max_age"`
	IngressSessions       int           `yaml:"ingress_sessions"` // of one principal
	IngressIdle           time.Duration `yaml:"ingress_idle"`
	AgentCalls            int           `yaml:"agent_calls"`      // of one agent, in flight at one replica
	ConnectionCalls       int           `yaml:"connection_calls"` // at one connection, the same
	RunLease              time.Duration `yaml:"run_lease"`        // how long a run's owner may be silent

	TicketLife          time.Duration `yaml:"ticket_life"` // of a connect link, and of a started sign-in
	ConnectionsPerScope int           `yaml:"connections_per_scope"`

	ClientsRegistered int           `yaml:"clients_registered"` // that registered themselves and nobody has let in yet
	ClientsPerMinute  int           `yaml:"clients_per_minute"` // that register themselves, at one replica
	AccessLife        time.Duration `yaml:"access_life"`        // of a client's access token
	ConsentLife       time.Duration `yaml:"consent_life"`       // until a person signs a client in again

	Sandboxes        int           `yaml:"sandboxes"`          // stdio servers that run at once
	SandboxMemory    int           `yaml:"sandbox_memory"`     // resident bytes of all processes of one
	SandboxProcesses int           `yaml:"sandbox_processes"`  // of one, with threads
	SandboxFiles     int           `yaml:"sandbox_files"`      // open in one process
	SandboxFileBytes int           `yaml:"sandbox_file_bytes"` // of one file, of its home and of /tmp
	SandboxCPU       time.Duration `yaml:"sandbox_cpu"`        // of one process, in all

	ProposalsPerMinute int           `yaml:"proposals_per_minute"` // of one source
	ProposalsWaiting   int           `yaml:"proposals_waiting"`    // in one team
	ProposalLife       time.Duration `yaml:"proposal_life"`        // of one that nobody accepts
}

// DefaultLimits is the table of design §6.
func DefaultLimits() Limits {
	return Limits{
		HeaderTimeout: 10 * time.Second, IdleTimeout: 30 * time.Second, RequestTimeout: 10 * time.Minute,
		DiscoverOne: 20 * time.Second, DiscoverAll: 40 * time.Second, DiscoverAtOnce: 4,
		ResponseBytes: 2 << 20, ResponseBuffers: 64 << 20,
		CatalogTools: 256, CatalogPages: 16, SchemaBytes: 32 << 10, SchemaDepth: 64,
		DescriptionBytes: 4 << 10, DescriptionOffered: 1024,
		CallsPerRun: 50, TurnsPerRun: 40, RunTime: 30 * time.Minute, ModelTimeout: 5 * time.Minute,
		RunsAtOnce: 64, PromptBytes: 256 << 10,
		ResultChars: 30_000, ResultKept: 2 << 20, ResultKeptRun: 16 << 20,
		CatalogRefresh: 15 * time.Minute, Drain: 20 * time.Second, DrainNotice: time.Second,
		SessionsPerConnection: 256, SessionIdle: 5 * time.Minute,
		ToolsOffered: 40, FingerprintMaxAge: time.Minute, IngressSessions: 1000, IngressIdle: 30 * time.Minute, AgentCalls: 256, ConnectionCalls: 128, RunLease: 30 * time.Second,
		TicketLife: 10 * time.Minute, ConnectionsPerScope: 200,
		ClientsRegistered: 1000, ClientsPerMinute: 60, AccessLife: time.Hour, ConsentLife: 30 * 24 * time.Hour,
		Sandboxes: 64, SandboxMemory: 512 << 20, SandboxProcesses: 128, SandboxFiles: 256, SandboxFileBytes: 256 << 20, SandboxCPU: time.Hour,
		ProposalsPerMinute: 10, ProposalsWaiting: 100, ProposalLife: 30 * 24 * time.Hour,
	}
}

// How long a call may stand still for its caller: a question of the server may stay
// open for AskedMost, and a call that wants input has InputLife to get it in all.
const (
	AskedMost = time.Hour
	InputLife = 30 * time.Minute
)

// MaxResultChars is how far config may raise ResultChars.
const MaxResultChars = 512 << 10

// Validate names the first limit that makes no sense.
func (l Limits) Validate() error {
	type named struct {
		name string
		v    int64
	}
	for _, n := range []named{
		{"header_timeout", int64(l.HeaderTimeout)}, {"idle_timeout", int64(l.IdleTimeout)},
		{"request_timeout", int64(l.RequestTimeout)}, {"discover_one", int64(l.DiscoverOne)},
		{"discover_all", int64(l.DiscoverAll)}, {"discover_at_once", int64(l.DiscoverAtOnce)},
		{"response_bytes", int64(l.ResponseBytes)}, {"response_buffers", int64(l.ResponseBuffers)},
		{"catalog_tools", int64(l.CatalogTools)}, {"catalog_pages", int64(l.CatalogPages)},
		{"schema_bytes", int64(l.SchemaBytes)}, {"schema_depth", int64(l.SchemaDepth)},
		{"description_bytes", int64(l.DescriptionBytes)}, {"description_offered", int64(l.DescriptionOffered)},
		{"calls_per_run", int64(l.CallsPerRun)}, {"turns_per_run", int64(l.TurnsPerRun)},
		{"run_time", int64(l.RunTime)}, {"model_timeout", int64(l.ModelTimeout)},
		{"runs_at_once", int64(l.RunsAtOnce)}, {"prompt_bytes", int64(l.PromptBytes)},
		{"result_chars", int64(l.ResultChars)}, {"result_kept", int64(l.ResultKept)},
		{"result_kept_per_run", int64(l.ResultKeptRun)}, {"sessions_per_connection", int64(l.SessionsPerConnection)},
		{"session_idle", int64(l.SessionIdle)}, {"tools_offered", int64(l.ToolsOffered)},
		{"ingress_sessions", int64(l.IngressSessions)}, {"ingress_idle", int64(l.IngressIdle)},
		{"agent_calls", int64(l.AgentCalls)}, {"connection_calls", int64(l.ConnectionCalls)},
		{"run_lease", int64(l.RunLease)}, {"drain", int64(l.Drain)}, {"ticket_life", int64(l.TicketLife)},
		{"connections_per_scope", int64(l.ConnectionsPerScope)},
		{"clients_registered", int64(l.ClientsRegistered)}, {"clients_per_minute", int64(l.ClientsPerMinute)}, {"access_life", int64(l.AccessLife / time.Second)}, {"consent_life", int64(l.ConsentLife / time.Minute)},
		{"sandboxes", int64(l.Sandboxes)}, {"sandbox_memory", int64(l.SandboxMemory)}, {"sandbox_processes", int64(l.SandboxProcesses)},
		{"sandbox_files", int64(l.SandboxFiles)}, {"sandbox_file_bytes", int64(l.SandboxFileBytes)}, {"sandbox_cpu", int64(l.SandboxCPU / time.Second)},
		{"proposals_per_minute", int64(l.ProposalsPerMinute)}, {"proposals_waiting", int64(l.ProposalsWaiting)}, {"proposal_life", int64(l.ProposalLife)},
	} {
		if n.v <= 0 {
			return Errorf(InvalidInput, "limits.%s must be greater than zero.", n.name).At("limits." + n.name)
		}
	}
	if l.CatalogRefresh > 0 && l.CatalogRefresh < time.Second {
		return Errorf(InvalidInput, "limits.catalog_refresh is at least 1s, or 0 to read catalogs only when asked.").At("limits.catalog_refresh")
	}
	if l.CatalogRefresh < 0 || l.DrainNotice < 0 {
		return Errorf(InvalidInput, "limits.catalog_refresh and limits.drain_notice must not be negative; a catalog_refresh of 0 reads catalogs only when asked.").At("limits.catalog_refresh")
	}
	if l.FingerprintMaxAge < 0 {
		return Errorf(InvalidInput, "limits.fingerprint_max_age must not be negative; 0 checks before every call.").At("limits.fingerprint_max_age")
	}
	if l.ResultChars > MaxResultChars {
		return Errorf(InvalidInput, "limits.result_chars may be at most %d.", MaxResultChars).At("limits.result_chars")
	}
	return nil
}
