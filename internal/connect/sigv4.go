package connect

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"patchbay/internal/plane"
)

// signsAWS signs a request anew that its client signed with the placeholder as access key:
// AWS Signature Version 4. The secret is ID:KEY or ID:KEY:SESSION. Region and service are
// what the destination allows; empty for those of the request.
type signsAWS struct{ region, service string }

const (
	awsAlgorithm  = "AWS4-HMAC-SHA256"
	awsTime       = "20060102T150405Z"
	awsHash       = "X-Amz-Content-Sha256"
	awsDate       = "X-Amz-Date"
	awsSession    = "X-Amz-Security-Token"
	unsignedBody  = "UNSIGNED-PAYLOAD"
	streamingBody = "STREAMING-"
)

// awsAuth is compiled when it is first used: no start pays for it.
var awsAuth = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^AWS4-HMAC-SHA256 +Credential=([^/, ]+)/(\d{8})/([a-z0-9-]{1,64})/([a-z0-9-]{1,64})/aws4_request, *SignedHeaders=([a-z0-9;_-]+), *Signature=[0-9a-f]{64}$`)
})

func (x signsAWS) inject(req *http.Request, p placed) (bool, error) {
	auth := req.Header["Authorization"]
	if len(auth) != 1 {
		return false, nil
	}
	m := awsAuth().FindStringSubmatch(auth[0])
	if m == nil || m[1] != p.mark {
		return false, nil
	}
	region, service := m[3], m[4]
	if x.region != "" && region != x.region || x.service != "" && service != x.service {
		return false, plane.Errorf(plane.Forbidden, "The request is for the service %s in %s, which the destination does not allow.", service, region)
	}
	id, rest, ok := strings.Cut(p.value, ":")
	key, session, _ := strings.Cut(rest, ":")
	if !ok || id == "" || key == "" {
		return false, plane.Errorf(plane.Unavailable, "The secret of this destination is no AWS key.").Then("patchbay secrets put REF, as ID:KEY or ID:KEY:SESSION")
	}
	hash, err := x.bodyHash(req, p, service)
	if err != nil {
		return false, err
	}
	stamp := p.now.UTC().Format(awsTime)
	req.Header.Set(awsDate, stamp)
	req.Header.Del(awsSession)
	if session != "" {
		req.Header.Set(awsSession, session)
	}
	names, canonical := signedHeaders(req, strings.Split(m[5], ";"))
	text := strings.Join([]string{req.Method, awsPath(req.URL, service), awsQuery(req.URL), canonical, names, hash}, "\n")
	sum := sha256.Sum256([]byte(text))
	scope := strings.Join([]string{stamp[:8], region, service, "aws4_request"}, "/")
	signing := []byte("AWS4" + key)
	for _, part := range []string{stamp[:8], region, service, "aws4_request"} {
		signing = mac(signing, part)
	}
	signature := hex.EncodeToString(mac(signing, strings.Join([]string{awsAlgorithm, stamp, scope, hex.EncodeToString(sum[:])}, "\n")))
	req.Header["Authorization"] = []string{awsAlgorithm + " Credential=" + id + "/" + scope + ", SignedHeaders=" + names + ", Signature=" + signature}
	return true, nil
}

// bodyHash is the hash that the client gave, which the service checks, or else the body's.
func (x signsAWS) bodyHash(req *http.Request, p placed, service string) (string, error) {
	given := req.Header.Get(awsHash)
	switch {
	case strings.HasPrefix(given, streamingBody):
		return "", plane.Errorf(plane.Forbidden, "A body that is signed piece by piece cannot be signed anew.").Then("Switch chunked signing off in the client, or let it send " + unsignedBody + ".")
	case given != "":
		return given, nil
	}
	b, err := wholeBody(req)
	if err != nil {
		return "", err
	}
	if strings.Contains(string(b), p.mark) {
		return "", ErrPlaceholder
	}
	sum := sha256.Sum256(b)
	hash := hex.EncodeToString(sum[:])
	if service == "s3" {
		req.Header.Set(awsHash, hash)
	}
	return hash, nil
}

// altered are headers that change on the way; a signature over them would not hold.
var altered = []string{"accept-encoding", "connection", "content-length", "expect", "host", "te", "trailer", "transfer-encoding", "upgrade", "user-agent", "authorization", "proxy-authorization"}

// signedHeaders are the names of what is signed, and the lines. It is what the client
// signed, as far as it arrives so, and what must be.
func signedHeaders(req *http.Request, wanted []string) (names, lines string) {
	list := []string{"host"}
	for name := range req.Header {
		low := strings.ToLower(name)
		if !slices.Contains(altered, low) && (strings.HasPrefix(low, "x-amz-") || slices.Contains(wanted, low)) {
			list = append(list, low)
		}
	}
	slices.Sort(list)
	var b strings.Builder
	for _, name := range list {
		value := req.Host
		if name == "host" && value == "" {
			value = req.URL.Host
		} else if name != "host" {
			var all []string
			for _, v := range req.Header.Values(name) {
				all = append(all, strings.Join(strings.Fields(v), " "))
			}
			value = strings.Join(all, ",")
		}
		b.WriteString(name + ":" + value + "\n")
	}
	return strings.Join(list, ";"), b.String()
}

// awsEncode writes what is not unreserved as %XX.
func awsEncode(s string, keep string) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-_.~"+keep, c) >= 0 {
			b.WriteByte(c)
			continue
		}
		const digits = "0123456789ABCDEF"
		b.Write([]byte{'%', digits[c>>4], digits[c&15]})
	}
	return b.String()
}

// awsPath is the path as it is signed: once encoded for S3, twice for the rest.
func awsPath(u *url.URL, service string) string {
	path := awsEncode(u.Path, "/")
	if path == "" {
		path = "/"
	}
	if service == "s3" {
		return path
	}
	return awsEncode(path, "/")
}

// awsQuery is the query as it is signed: in order, and encoded in one way.
func awsQuery(u *url.URL) string {
	var pairs []string
	for part := range strings.SplitSeq(u.RawQuery, "&") {
		if part == "" {
			continue
		}
		k, v, _ := strings.Cut(part, "=")
		key, kerr := url.QueryUnescape(k)
		value, verr := url.QueryUnescape(v)
		if kerr != nil || verr != nil {
			return u.RawQuery // the service refuses it
		}
		pairs = append(pairs, awsEncode(key, "")+"="+awsEncode(value, ""))
	}
	slices.Sort(pairs)
	return strings.Join(pairs, "&")
}
