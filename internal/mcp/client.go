package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"patchbay/internal/plane"
)

// Bounds are the client's limits; every one must be set.
type Bounds struct {
	Header  time.Duration // until the response header of anything but a tool call
	Idle    time.Duration // without a byte
	Total   time.Duration // one exchange in all
	Body    int           // bytes of a body or a stream, decoded
	Tools   int           // of one listing
	Pages   int
	Resumes int // of one cut stream, without progress between them
}

// Options describe one session with one server.
type Options struct {
	Endpoint     string
	Transport    http.RoundTripper         // redirects are never followed
	Inject       func(*http.Request) error // adds the credential; may be nil
	Info         Implementation            // who we are
	Capabilities json.RawMessage           // what we offer the server; nil for nothing
	Bounds       Bounds
	Big          *Budget // process-wide memory for big bodies; may be nil
	Era          Era     // what is remembered of the endpoint

	// Answer serves requests of the server. Nil refuses all but ping.
	Answer func(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, *RPCError)
	// ListChanged is told that the tool list changed. It must not block.
	ListChanged func()
	// Notified is told of every other notice that belongs to no call: lists, updated
	// resources, log messages. It must not block.
	Notified func(method string, params json.RawMessage)
}

// Client is one session with one server. Methods may run beside each other once
// Open has returned.
type Client struct {
	o       Options
	url     *url.URL
	era     Era
	version string
	session string
	meta    []byte // the modern era's _meta members, without the braces
	// The same without the capabilities, for calls that bring their own.
	metaHead, metaTail []byte
	nextID             atomic.Int64
	jar                http.CookieJar
	cookies            atomic.Bool
	prompt             atomic.Bool // the server ends a stream right after the answer

	Server       Implementation
	Instructions string
	hears        hears
	hasResources bool
	hasPrompts   bool
	hasLogging   bool

	levelMu sync.Mutex
	level   string // of log messages, as a legacy server was told
	subMu   sync.Mutex
	subs    map[string]context.CancelFunc // streams about one resource each, in the modern era

	replies    chan struct{} // answers to the server that are under way
	listening  chan struct{}
	listenOnce sync.Once

	stop    context.CancelFunc // ends the listener and everything in the background
	life    context.Context
	workers sync.WaitGroup
}

// maxReplies is how many requests of a server are answered beside each other.
const maxReplies = 8

// NewClient prepares a session; nothing is sent before Open.
func NewClient(o Options) (*Client, error) {
	u, err := url.Parse(o.Endpoint)
	if err != nil || u.Host == "" {
		return nil, fault(plane.FaultProtocol, "The endpoint's URL cannot be read.", err)
	}
	if o.Capabilities == nil {
		o.Capabilities = json.RawMessage(`{}`)
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		return nil, fault(plane.FaultProtocol, "No cookie jar.", err)
	}
	c := &Client{o: o, url: u, era: o.Era, jar: jar, listening: make(chan struct{}), replies: make(chan struct{}, maxReplies)}
	c.life, c.stop = context.WithCancel(context.Background())
	info, err := json.Marshal(o.Info)
	if err != nil {
		return nil, fault(plane.FaultProtocol, "The client's own name cannot be written.", err)
	}
	c.metaHead = fmt.Appendf(nil, `%q:`, metaCapabilities)
	c.metaTail = fmt.Appendf(nil, `,%q:%q,%q:%s`, metaVersion, Version20260728, metaClientInfo, info)
	c.meta = slices.Concat(c.metaHead, o.Capabilities, c.metaTail)
	return c, nil
}

// Era is the era that Open settled on, for the memory per endpoint.
func (c *Client) Era() Era { return c.era }

// Version is the protocol version in use.
func (c *Client) Version() string { return c.version }

// Shareable reports that the server gave this client nothing of its own: one
// session may serve several callers of the same account (design D18).
func (c *Client) Shareable() bool { return c.era == EraModern || c.session == "" }

// SessionID is the session the server assigned, if any.
func (c *Client) SessionID() string { return c.session }

// Open settles the era and the version: the modern era is tried first unless
// the endpoint's era is remembered.
func (c *Client) Open(ctx context.Context) error {
	if c.era != EraLegacy {
		err := c.discover(ctx)
		if e := AsError(err); err != nil && e.RPC != nil && e.RPC.Code == CodeUnsupportedVersion && slices.Contains(supportedIn(e.RPC.Data), Version20260728) {
			err = c.discover(ctx) // it names the version that was sent: ask once more
		}
		if err == nil {
			c.era, c.version = EraModern, Version20260728
			return nil
		}
		if c.era == EraModern || !fallsBack(err) {
			return err
		}
	}
	if err := c.initialize(ctx); err != nil {
		return err
	}
	c.era = EraLegacy
	return nil
}

// fallsBack decides whether the refusal of server/discover means a server of
// the legacy era (versioning, "dual-era clients").
func fallsBack(err error) bool {
	e := AsError(err)
	if e.Ending.NothingSent || e.Ending.Fault == plane.FaultCancelled {
		return false
	}
	if e.RPC != nil && e.RPC.Code == CodeUnsupportedVersion {
		return speaksLegacy(supportedIn(e.RPC.Data))
	}
	if e.RPC != nil && e.RPC.Code == CodeMissingCapability {
		return false
	}
	// A 401 that carries "method not found" is no word about the credential.
	return !e.Ending.Challenge || e.RPC != nil && e.RPC.Code == CodeMethodNotFound
}

func supportedIn(data json.RawMessage) []string {
	var d struct {
		Supported []string `json:"supported"`
	}
	if json.Unmarshal(data, &d) != nil {
		return nil
	}
	return d.Supported
}

// legacyVersions are what a server may settle on. 2025-03-26 is never offered;
// servers that answer it are served, without its batches (docs/adr/0005).
var legacyVersions = []string{Version20251125, Version20250618, version20250326}

func speaksLegacy(versions []string) bool {
	return slices.ContainsFunc(versions, func(v string) bool { return slices.Contains(legacyVersions, v) })
}

func (c *Client) discover(ctx context.Context) error {
	c.version = Version20260728
	params := append(append([]byte(`{"_meta":{`), c.meta...), '}', '}')
	m, err := c.do(ctx, exchange{method: MethodDiscover, params: params, modern: true, first: c.o.Bounds.Header})
	if err != nil {
		return err
	}
	var res struct {
		SupportedVersions []string `json:"supportedVersions"`
		handshake
	}
	if err := json.Unmarshal(m.Result, &res); err != nil || len(res.SupportedVersions) == 0 {
		return fault(plane.FaultProtocol, "The server's discovery answer cannot be read.", err)
	}
	if !slices.Contains(res.SupportedVersions, Version20260728) {
		if c.era == EraUnknown && speaksLegacy(res.SupportedVersions) {
			return &Error{Ending: plane.Ending{Fault: plane.FaultProtocol, Detail: "The server speaks the legacy era."}}
		}
		return unknownVersion(strings.Join(res.SupportedVersions, ", "))
	}
	c.adopt(res.handshake)
	return nil
}

type handshake struct {
	ServerInfo   Implementation `json:"serverInfo"`
	Instructions string         `json:"instructions"`
	Capabilities struct {
		Tools     offered         `json:"tools"`
		Resources *offered        `json:"resources"`
		Prompts   *offered        `json:"prompts"`
		Logging   json.RawMessage `json:"logging"`
	} `json:"capabilities"`
	Meta map[string]json.RawMessage `json:"_meta"`
}

// offered is one capability of a server.
type offered struct {
	ListChanged bool `json:"listChanged"`
	Subscribe   bool `json:"subscribe"`
}

// hears is what a server says it tells of by itself.
type hears struct {
	Tools     bool `json:"toolsListChanged,omitempty"`
	Prompts   bool `json:"promptsListChanged,omitempty"`
	Resources bool `json:"resourcesListChanged,omitempty"`
	updates   bool
}

const maxInstructions = 16 << 10

func (c *Client) adopt(h handshake) {
	if raw, ok := h.Meta[metaServerInfo]; ok && h.ServerInfo.Name == "" {
		if json.Unmarshal(raw, &h.ServerInfo) != nil {
			h.ServerInfo = Implementation{}
		}
	}
	c.Server = Implementation{Name: cut(h.ServerInfo.Name, 128), Version: cut(h.ServerInfo.Version, 128)}
	c.Instructions = cut(h.Instructions, maxInstructions)
	caps := h.Capabilities
	c.hasResources, c.hasPrompts, c.hasLogging = caps.Resources != nil, caps.Prompts != nil, len(caps.Logging) > 0
	c.hears.Tools = caps.Tools.ListChanged
	if caps.Prompts != nil {
		c.hears.Prompts = caps.Prompts.ListChanged
	}
	if caps.Resources != nil {
		c.hears.Resources, c.hears.updates = caps.Resources.ListChanged, caps.Resources.Subscribe
	}
}

// cut shortens s to at most n bytes on a rune boundary.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}

var versionRE = regexp.MustCompile(`\b\d{4}-\d{2}-\d{2}\b`)

func unknownVersion(theirs string) error {
	// The sentence goes everywhere, also into prompts: of the server's words only
	// what has the form of a version may stand in it.
	known := versionRE.FindAllString(cut(theirs, 200), 8)
	if len(known) == 0 {
		known = []string{"another version"}
	}
	return fault(plane.FaultProtocol, fmt.Sprintf("The server speaks %s, and Patchbay speaks %s.",
		strings.Join(known, ", "), strings.Join(SupportedVersions, ", ")), nil)
}

func (c *Client) initialize(ctx context.Context) error {
	c.version, c.session = "", ""
	params := append([]byte(`{"protocolVersion":"`+Version20251125+`","capabilities":`), c.o.Capabilities...)
	info, err := json.Marshal(c.o.Info)
	if err != nil {
		return fault(plane.FaultProtocol, "The client's own name cannot be written.", err)
	}
	params = append(append(append(params, `,"clientInfo":`...), info...), '}')
	m, err := c.do(ctx, exchange{method: MethodInitialize, params: params, first: c.o.Bounds.Header, opening: true})
	if err != nil {
		return err
	}
	var res struct {
		ProtocolVersion string `json:"protocolVersion"`
		handshake
	}
	if err := json.Unmarshal(m.Result, &res); err != nil {
		return fault(plane.FaultProtocol, "The server's initialize answer cannot be read.", err)
	}
	if !slices.Contains(legacyVersions, res.ProtocolVersion) {
		return unknownVersion(res.ProtocolVersion)
	}
	c.version = res.ProtocolVersion
	c.adopt(res.handshake)
	_, err = c.do(ctx, exchange{method: MethodInitialized, notification: true, first: c.o.Bounds.Header})
	return err
}

// Alive reports whether the server answers at all before ctx ends.
func (c *Client) Alive(ctx context.Context) bool {
	ex := exchange{method: MethodPing, first: c.o.Bounds.Header}
	if c.era == EraModern { // which has no ping
		ex = exchange{method: MethodDiscover, params: append(append([]byte(`{"_meta":{`), c.meta...), '}', '}'), modern: true, first: c.o.Bounds.Header}
	}
	_, err := c.do(ctx, ex)
	return err == nil || AsError(err).RPC != nil
}

// Listen keeps a stream open on which the server can tell that its list
// changed and, where Options.Answer serves them, ask something. It returns at
// once; a server without such a stream is fine.
func (c *Client) Listen() {
	h := c.hears
	if !h.Tools && (c.o.Notified == nil || !h.Prompts && !h.Resources && !(c.era == EraLegacy && h.updates)) && c.o.Answer == nil {
		return
	}
	c.workers.Go(func() { c.listen(c.life, h, nil) })
}

// Listening is closed once the first stream of Listen is open, or refused.
func (c *Client) Listening() <-chan struct{} { return c.listening }

// Close ends the session: the listener stops and the server is told, for at
// most the header bound.
func (c *Client) Close() {
	c.stop()
	if c.session != "" {
		ctx, cancel := context.WithTimeout(context.Background(), min(c.o.Bounds.Header, 2*time.Second))
		defer cancel()
		if req, err := c.request(ctx, http.MethodDelete, nil); err == nil {
			if resp, err := c.o.Transport.RoundTrip(req); err == nil {
				resp.Body.Close()
			}
		}
	}
	c.workers.Wait()
}

// request makes an HTTP request with everything that all of them carry.
func (c *Client) request(ctx context.Context, method string, body []byte) (*http.Request, error) {
	req := &http.Request{Method: method, URL: c.url, Host: c.url.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: make(http.Header, 8)}
	req = req.WithContext(ctx)
	if body != nil {
		// No GetBody, and never NoBody: net/http must have no way to send twice. Of this
		// reader it knows that it does not block, and sends head and body as one.
		req.Body = io.NopCloser(bytes.NewReader(body))
		req.ContentLength = int64(len(body))
		req.Header["Content-Type"] = jsonType
	}
	req.Header["Accept"] = acceptBoth
	if c.version != "" {
		req.Header[headerProtocol] = []string{c.version}
	}
	if c.session != "" {
		req.Header[headerSession] = []string{c.session}
	}
	if c.cookies.Load() {
		for _, k := range c.jar.Cookies(c.url) {
			req.AddCookie(k)
		}
	}
	if c.o.Inject != nil {
		if err := c.o.Inject(req); err != nil {
			e := fault(plane.FaultTransport, "The credential could not be added to the request.", err)
			e.Ending.NothingSent = true
			return nil, e
		}
	}
	return req, nil
}

var (
	jsonType   = []string{"application/json"}
	acceptBoth = []string{"application/json, text/event-stream"}
)
