package connect

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"patchbay/internal/plane"
)

// injector puts a secret into a request where the placeholder stands for it, and reports
// whether it stood there. It is made from a destination once and never changes.
type injector interface {
	inject(req *http.Request, p placed) (bool, error)
}

// placed is what goes in for what, and when.
type placed struct {
	mark, value string
	now         time.Time
}

// injectorOf is the injector of a destination; one that config does not know injects
// nothing.
func injectorOf(in plane.Injection) injector {
	switch in.Kind {
	case "bearer":
		return intoBearer{}
	case "header":
		return intoHeader{in.Name, in.Prefix}
	case "basic":
		return intoBasic{in.User}
	case "query":
		return intoQuery{in.Name}
	case "body":
		return intoBody{in.Name}
	case "aws_sigv4":
		return signsAWS{in.Region, in.Service}
	case "hmac":
		return signsHMAC{in.Name, in.Prefix, in.Over, in.Stamp}
	}
	return intoNothing{}
}

type intoNothing struct{}

func (intoNothing) inject(*http.Request, placed) (bool, error) { return false, nil }

type intoBearer struct{}

func (intoBearer) inject(req *http.Request, p placed) (bool, error) {
	scheme, rest, ok := strings.Cut(req.Header.Get("Authorization"), " ")
	if !ok || rest != p.mark || len(req.Header["Authorization"]) != 1 {
		return false, nil
	}
	req.Header["Authorization"] = []string{scheme + " " + p.value}
	return true, nil
}

type intoHeader struct{ name, prefix string }

func (x intoHeader) inject(req *http.Request, p placed) (bool, error) {
	got := req.Header.Values(x.name)
	if len(got) != 1 || strings.TrimPrefix(got[0], x.prefix) != p.mark {
		return false, nil
	}
	req.Header.Set(x.name, x.prefix+p.value)
	return true, nil
}

type intoBasic struct{ user string }

func (x intoBasic) inject(req *http.Request, p placed) (bool, error) {
	user, password, ok := req.BasicAuth()
	if !ok || password != p.mark && user != p.mark || len(req.Header["Authorization"]) != 1 {
		return false, nil
	}
	if x.user != "" {
		user = x.user
	} else if user == p.mark {
		user = p.value
	}
	if password == p.mark || x.user != "" {
		password = p.value
	}
	req.SetBasicAuth(user, password)
	return true, nil
}

type intoQuery struct{ name string }

func (x intoQuery) inject(req *http.Request, p placed) (bool, error) {
	q, err := url.ParseQuery(req.URL.RawQuery)
	if err != nil || len(q[x.name]) != 1 || q.Get(x.name) != p.mark {
		return false, nil
	}
	q.Set(x.name, p.value)
	req.URL.RawQuery = q.Encode()
	return true, nil
}

// maxInjectedBody bounds a body that a secret goes into, or is signed with one, in bytes.
const maxInjectedBody = 1 << 20

// wholeBody reads a body to its end and puts it back.
func wholeBody(req *http.Request) ([]byte, error) {
	if req.Body == nil || req.Body == http.NoBody {
		return nil, nil
	}
	b, err := io.ReadAll(io.LimitReader(req.Body, maxInjectedBody+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxInjectedBody {
		return nil, plane.Errorf(plane.InvalidInput, "A body that a secret goes into, or is signed with one, has at most %d bytes.", maxInjectedBody)
	}
	putBody(req, b)
	return b, nil
}

func putBody(req *http.Request, b []byte) {
	req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
	req.Header.Set("Content-Length", strconv.Itoa(len(b)))
}

// intoBody goes into one member of a JSON object.
type intoBody struct{ name string }

func (x intoBody) inject(req *http.Request, p placed) (bool, error) {
	if !strings.HasPrefix(req.Header.Get("Content-Type"), "application/json") {
		return false, nil
	}
	b, err := wholeBody(req)
	if err != nil || b == nil {
		return false, err
	}
	from, to, astray := member(b, x.name, p.mark)
	if astray {
		return false, ErrPlaceholder
	}
	if to == 0 {
		return false, nil
	}
	fresh, err := json.Marshal(p.value)
	if err != nil {
		return false, err
	}
	putBody(req, slices.Concat(b[:from], fresh, b[to:])) // the other bytes as they came
	return true, nil
}

// member finds where in a JSON object the value of one of its own members stands, which is
// the mark and nothing else; to is 0 where it does not. astray reports that the mark stands
// anywhere else, however it is spelled.
func member(b []byte, name, mark string) (from, to int64, astray bool) {
	dec := json.NewDecoder(bytes.NewReader(b))
	depth, key, isKey := 0, "", false
	seen := 0
	for {
		before := dec.InputOffset()
		tok, err := dec.Token()
		if err != nil {
			break // no more, or no JSON: what is not read is searched as it stands
		}
		switch v := tok.(type) {
		case json.Delim:
			if v == '{' || v == '[' {
				depth++
				isKey = v == '{'
			} else {
				depth--
				isKey = depth == 1
			}
			continue
		case string:
			if depth == 1 && isKey {
				key, isKey = v, false
				astray = astray || strings.Contains(v, mark)
				continue
			}
			if depth == 1 && key == name && v == mark {
				seen++
				to = dec.InputOffset()
				from = to - int64(len(bytes.TrimLeft(b[before:to], " \t\r\n:,")))
			} else if strings.Contains(v, mark) {
				astray = true
			}
		}
		isKey = depth == 1
	}
	rest := b[dec.InputOffset():]
	return from, to, astray || seen > 1 || bytes.Contains(rest, []byte(mark))
}

// signsHMAC puts a signature of the request in place of the placeholder: HMAC-SHA256, in
// hexadecimal, over the named parts, each on a line of its own.
type signsHMAC struct {
	name, prefix string
	over         []string // method, path, query, timestamp, body; empty: body
	stamp        string   // the header that tells the timestamp, seconds since 1970
}

func (x signsHMAC) inject(req *http.Request, p placed) (bool, error) {
	got := req.Header.Values(x.name)
	if len(got) != 1 || strings.TrimPrefix(got[0], x.prefix) != p.mark {
		return false, nil
	}
	body, err := wholeBody(req)
	if err != nil {
		return false, err
	}
	if bytes.Contains(body, []byte(p.mark)) {
		return false, ErrPlaceholder
	}
	over := x.over
	if len(over) == 0 {
		over = []string{"body"}
	}
	parts := map[string]string{"method": req.Method, "path": req.URL.EscapedPath(), "query": req.URL.RawQuery, "timestamp": strconv.FormatInt(p.now.Unix(), 10), "body": string(body)}
	lines := make([]string, 0, len(over))
	for _, o := range over {
		lines = append(lines, parts[o])
	}
	if x.stamp != "" {
		req.Header.Set(x.stamp, parts["timestamp"])
	}
	req.Header.Set(x.name, x.prefix+hex.EncodeToString(mac([]byte(p.value), strings.Join(lines, "\n"))))
	return true, nil
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text)) // a hash takes everything
	return h.Sum(nil)
}
