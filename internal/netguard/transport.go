package netguard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// tuned is a transport for many calls to few hosts. The default of two idle
// connections per host would dial anew for nearly every call.
func tuned() *http.Transport {
	return &http.Transport{
		Proxy:               nil,
		MaxIdleConns:        4096,
		MaxIdleConnsPerHost: 512,
		IdleConnTimeout:     90 * time.Second,
		TLSHandshakeTimeout: 10 * time.Second,
		ForceAttemptHTTP2:   true,
		DisableCompression:  true, // the wire decodes, with its own cap
		WriteBufferSize:     4 << 10,
		ReadBufferSize:      32 << 10, // answers come in chunks of a few KB
		// Server headers are bounded too.
		MaxResponseHeaderBytes: 64 << 10,
	}
}

// Infra is the transport for one endpoint that config names: it dials that host
// and port and nothing else, whatever a library asks it for.
func Infra(hostport string) *http.Transport {
	t := tuned()
	t.MaxIdleConnsPerHost = 16
	t.DisableCompression = false
	t.DialContext = DialOnly("tcp", hostport)
	return t
}

// InfraAmong is Infra for a service that config names and that names further
// hosts of its own, as an OpenID issuer does: it dials what allowed admits.
func InfraAmong(allowed func(hostport string) bool) *http.Transport {
	t := tuned()
	t.MaxIdleConnsPerHost = 16
	t.DisableCompression = false
	d := net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	t.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if !allowed(addr) {
			return nil, fmt.Errorf("%w: %s was not named", ErrRefused, addr)
		}
		return d.DialContext(ctx, network, addr)
	}
	return t
}

// InfraSocket is Infra for a Unix socket.
func InfraSocket(path string) *http.Transport {
	t := tuned()
	d := net.Dialer{Timeout: 5 * time.Second}
	t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return d.DialContext(ctx, "unix", path)
	}
	return t
}

// DialOnly dials one target and refuses every other address.
func DialOnly(network, target string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	return func(ctx context.Context, _, addr string) (net.Conn, error) {
		if addr != target { // what config names is compared as it is dialled
			return nil, fmt.Errorf("%w: %s is not %s, which config names", ErrRefused, addr, target)
		}
		return d.DialContext(ctx, network, addr)
	}
}

// lane is a transport whose requests are sent at most once.
type lane struct {
	p    *Policy
	name string
}

// RoundTrip sends req once. It takes the rewind function from everything that
// may have an effect and gives a non-nil body to a request without one: without
// this net/http repeats a POST with an Idempotency-Key behind our back when a
// reused connection closes after the server already acted.
func (l lane) RoundTrip(req *http.Request) (*http.Response, error) {
	port := req.URL.Port()
	if port == "" {
		port = "443"
		if req.URL.Scheme == "http" {
			port = "80"
		}
	}
	if err := l.p.judge(l.name, req.URL.Scheme, canonicalHost(req.URL.Hostname()), port); err != nil {
		return nil, &Failure{cause: fmt.Errorf("%w: %w", ErrRefused, err), nothing: true}
	}
	var wrote atomic.Bool
	ctx := httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{WroteHeaders: func() { wrote.Store(true) }})
	if req.URL.Scheme == "http" {
		ctx = context.WithValue(ctx, schemeKey{}, true)
	}
	once := req.WithContext(ctx)
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		once.GetBody = nil
		if once.Body == nil || once.Body == http.NoBody {
			once.Body = io.NopCloser(bytes.NewReader(nil))
			once.ContentLength = 0
		}
	}
	resp, err := l.p.transport(l.name).RoundTrip(once)
	if err != nil {
		return nil, &Failure{cause: err, nothing: nothingSent(err, wrote.Load())}
	}
	return resp, nil
}

// Failure is an error of the untrusted lane.
type Failure struct {
	cause   error
	nothing bool
}

// Error returns the cause's text, for the log.
func (f *Failure) Error() string { return f.cause.Error() }

// Unwrap returns the cause.
func (f *Failure) Unwrap() error { return f.cause }

// NothingSent reports that the peer provably never acted on the request.
func (f *Failure) NothingSent() bool { return f.nothing }

// Refused reports that policy did not allow the address.
func (f *Failure) Refused() bool { return errors.Is(f.cause, ErrRefused) }

// unprocessed are the errors for streams that the peer says it never handed to
// anything: REFUSED_STREAM, or above the last stream of a GOAWAY (RFC 9113 §8.7).
var unprocessed = regexp.MustCompile(`^(http2: Transport: cannot retry err \[)?(stream error: stream ID \d+; REFUSED_STREAM; received from peer|http2: Transport received Server's graceful shutdown GOAWAY)(\] after Request\.Body was written; define Request\.GetBody to avoid this error)?$`)

// nothingSent reports that err proves the peer never acted on the request.
// wroteHeaders says whether the request's header was written.
func nothingSent(err error, wroteHeaders bool) bool {
	if err == nil {
		return false
	}
	if errors.Is(err, ErrRefused) {
		return true
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return true
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return true
	}
	// net/http's HTTP/2 keeps these errors private; their text is all there is.
	// It is matched as a whole: parts of other errors are the peer's own words.
	if unprocessed.MatchString(err.Error()) {
		return true
	}
	return !wroteHeaders
}

// legacyIPv4 reads 2130706433, 0x7f000001, 0177.1 and their like, which C
// resolvers take for addresses.
func legacyIPv4(host string) (netip.Addr, bool) {
	parts := strings.Split(host, ".")
	if len(parts) > 4 {
		return netip.Addr{}, false
	}
	var nums []uint64
	for _, p := range parts {
		n, err := strconv.ParseUint(p, 0, 33)
		if err != nil || strings.Contains(p, "_") {
			return netip.Addr{}, false
		}
		nums = append(nums, n)
	}
	last := nums[len(nums)-1]
	var v uint64
	for i, n := range nums[:len(nums)-1] {
		if n > 255 {
			return netip.Addr{}, false
		}
		v |= n << (24 - 8*i)
	}
	if last >= 1<<(8*(5-len(nums))) {
		return netip.Addr{}, false
	}
	v |= last
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}), true
}

func atoi(port string) uint16 {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return 0
	}
	return uint16(n)
}
