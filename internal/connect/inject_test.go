package connect

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"
	"time"

	"patchbay/internal/plane"
)

const (
	stand  = "PATCHBAY_PLACEHOLDER_x"
	awsID  = "AKIDEXAMPLE"
	awsKey = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
)

// TestSigV4Vector is the plainest request of AWS's own published suite.
func TestSigV4Vector(t *testing.T) {
	req, err := http.NewRequest("GET", "https://example.amazonaws.com/", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "example.amazonaws.com"
	req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+stand+"/20150830/us-east-1/service/aws4_request, SignedHeaders=host;x-amz-date, Signature="+strings.Repeat("0", 64))
	now := time.Date(2015, 8, 30, 12, 36, 0, 0, time.UTC)
	done, err := signsAWS{}.inject(req, placed{stand, awsID + ":" + awsKey, now})
	want := "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, SignedHeaders=host;x-amz-date, Signature=5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"
	if got := req.Header.Get("Authorization"); err != nil || !done || got != want {
		t.Errorf("%v %v\n got %s\nwant %s", done, err, got, want)
	}
}

// TestSigV4AgreesWithCurl: curl signs with the key; the same request, signed with the
// placeholder and signed anew at the same second, carries the same signature.
func TestSigV4AgreesWithCurl(t *testing.T) {
	type got struct {
		req  *http.Request
		body []byte
	}
	arrived := make(chan got, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		arrived <- got{r, b}
	}))
	defer srv.Close()
	curl := func(id, key, service, path string, more ...string) got {
		t.Helper()
		args := append([]string{"-sS", "--path-as-is", "--aws-sigv4", "aws:amz:eu-west-1:" + service, "--user", id + ":" + key, srv.URL + path}, more...)
		if out, err := exec.Command("curl", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v %s", err, out)
		}
		return <-arrived
	}
	for name, c := range map[string]struct {
		service, path string
		more          []string
	}{
		"a query":        {"execute-api", "/v1/things?a=1&b=2", nil},
		"a body":         {"dynamodb", "/", []string{"-d", `{"TableName":"x"}`, "-H", "Content-Type: application/x-amz-json-1.0", "-H", "X-Amz-Target: DynamoDB_20120810.Query"}},
		"S3":             {"s3", "/bucket/a%20key", []string{"-H", "X-Amz-Content-Sha256: " + hashOf("")}},
		"S3, put":        {"s3", "/bucket/key", []string{"-X", "PUT", "--data-binary", "the object", "-H", "X-Amz-Content-Sha256: " + hashOf("the object")}},
		"another method": {"execute-api", "/v1/things/7", []string{"-X", "DELETE"}},
	} {
		t.Run(name, func(t *testing.T) {
			want := curl(awsID, awsKey, c.service, c.path, c.more...)
			stamp, err := time.Parse(awsTime, want.req.Header.Get(awsDate))
			if err != nil {
				t.Fatal(err)
			}
			have := curl(stand, "of-no-meaning", c.service, c.path, c.more...)
			out := have.req.Clone(t.Context())
			out.URL.Host, out.URL.Scheme = have.req.Host, "http"
			out.Body = io.NopCloser(strings.NewReader(string(have.body)))
			done, err := signsAWS{"eu-west-1", c.service}.inject(out, placed{stand, awsID + ":" + awsKey, stamp})
			if a, b := strings.ReplaceAll(out.Header.Get("Authorization"), " ", ""), strings.ReplaceAll(want.req.Header.Get("Authorization"), " ", ""); err != nil || !done || a != b {
				t.Errorf("%v %v\n got %s\nwant %s", done, err, a, b)
			}
			if b, err := io.ReadAll(out.Body); err != nil || string(b) != string(want.body) {
				t.Errorf("the body is %q, %v", b, err)
			}
		})
	}
}

func hashOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func TestSigV4Refuses(t *testing.T) {
	auth := func(cred string) string {
		return "AWS4-HMAC-SHA256 Credential=" + cred + ", SignedHeaders=host;x-amz-date, Signature=" + strings.Repeat("0", 64)
	}
	for name, c := range map[string]struct {
		in     signsAWS
		auth   string
		secret string
		hash   string
		body   string
		done   bool
		err    string
	}{
		"another key":       {auth: auth("AKIDOTHER/20260101/eu-west-1/s3/aws4_request")},
		"no signature":      {auth: "Bearer " + stand},
		"half of one":       {auth: "AWS4-HMAC-SHA256 Credential=" + stand + "/20260101/eu-west-1/s3/aws4_request"},
		"another region":    {in: signsAWS{region: "us-east-1"}, auth: auth(stand + "/20260101/eu-west-1/s3/aws4_request"), err: "does not allow"},
		"another service":   {in: signsAWS{service: "s3"}, auth: auth(stand + "/20260101/eu-west-1/iam/aws4_request"), err: "does not allow"},
		"piece by piece":    {auth: auth(stand + "/20260101/eu-west-1/s3/aws4_request"), hash: "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", err: "piece by piece"},
		"no key of AWS":     {auth: auth(stand + "/20260101/eu-west-1/s3/aws4_request"), secret: "a-bearer", err: "no AWS key"},
		"the mark inside":   {auth: auth(stand + "/20260101/eu-west-1/sqs/aws4_request"), body: "x" + stand, err: "placeholder"},
		"too large to hash": {auth: auth(stand + "/20260101/eu-west-1/sqs/aws4_request"), body: strings.Repeat("x", maxInjectedBody+1), err: "at most"},
		"unsigned, large":   {auth: auth(stand + "/20260101/eu-west-1/s3/aws4_request"), hash: unsignedBody, body: strings.Repeat("x", maxInjectedBody+1), done: true},
		"a session":         {auth: auth(stand + "/20260101/eu-west-1/s3/aws4_request"), secret: awsID + ":" + awsKey + ":the/session+", done: true},
	} {
		t.Run(name, func(t *testing.T) {
			req, err := http.NewRequest("POST", "https://x.example.com/", strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", c.auth)
			req.Header.Set(awsSession, "the client's")
			if c.hash != "" {
				req.Header.Set(awsHash, c.hash)
			}
			secret := c.secret
			if secret == "" {
				secret = awsID + ":" + awsKey
			}
			done, err := c.in.inject(req, placed{stand, secret, time.Now()})
			if done != c.done || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("%v %v", done, err)
			}
			if session := req.Header.Get(awsSession); done && (session != "" || c.secret != "") && session != "the/session+" {
				t.Errorf("the session is %q", session)
			}
			if strings.Contains(fmt.Sprint(req.Header), awsKey) {
				t.Error("the key is in the request")
			}
		})
	}
}

func TestHMAC(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	sum := func(text string) string {
		h := hmac.New(sha256.New, []byte("the key"))
		h.Write([]byte(text))
		return hex.EncodeToString(h.Sum(nil))
	}
	for name, c := range map[string]struct {
		in    plane.Injection
		value string
		body  string
		want  string
		err   bool
	}{
		"a body":       {plane.Injection{Kind: "hmac", Name: "X-Hub-Signature-256", Prefix: "sha256="}, "sha256=" + stand, `{"a":1}`, "sha256=" + sum(`{"a":1}`), false},
		"everything":   {plane.Injection{Kind: "hmac", Name: "X-Signature", Over: []string{"timestamp", "method", "path", "query", "body"}, Stamp: "X-Timestamp"}, stand, "b", sum("1800000000\nPOST\n/a%20b\nq=1\nb"), false},
		"none asked":   {plane.Injection{Kind: "hmac", Name: "X-Signature"}, "of the client", "b", "of the client", false},
		"mark inside":  {plane.Injection{Kind: "hmac", Name: "X-Signature"}, stand, "b " + stand, stand, true},
		"without body": {plane.Injection{Kind: "hmac", Name: "X-Signature"}, stand, "", sum(""), false},
	} {
		t.Run(name, func(t *testing.T) {
			var r io.Reader
			if c.body != "" {
				r = strings.NewReader(c.body)
			}
			req, err := http.NewRequest("POST", "https://x.example.com/a%20b?q=1", r)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set(c.in.Name, c.value)
			done, err := injectorOf(c.in).inject(req, placed{stand, "the key", now})
			if got := req.Header.Get(c.in.Name); got != c.want || (err != nil) != c.err || done != (c.want != c.value) {
				t.Errorf("%v %q, want %q, %v", done, got, c.want, err)
			}
			if c.in.Stamp != "" && req.Header.Get(c.in.Stamp) != "1800000000" {
				t.Errorf("stamp %q", req.Header.Get(c.in.Stamp))
			}
		})
	}
}

// TestIntoAMember: the secret goes into the one member that the destination names, and a
// client cannot have it go anywhere else by how it spells things.
func TestIntoAMember(t *testing.T) {
	spelled := `\u0050` + stand[1:]
	for name, c := range map[string]struct {
		body, want string
		err        bool
	}{
		"plain":              {`{"a":1, "token" : "` + stand + `","z":[1.50]}`, `{"a":1, "token" : "THE-SECRET","z":[1.50]}`, false},
		"spelled otherwise":  {`{"token":"` + spelled + `"}`, `{"token":"THE-SECRET"}`, false},
		"and in another":     {`{"token":"` + spelled + `","comment":"` + stand + `"}`, "", true},
		"only in another":    {`{"comment":"` + stand + `"}`, "", true},
		"another, spelled":   {`{"token":"x","comment":"` + spelled + `"}`, "", true},
		"inside of another":  {`{"token":{"token":"` + stand + `"}}`, "", true},
		"in a list":          {`{"token":["` + stand + `"]}`, "", true},
		"as a name":          {`{"` + stand + `":"token"}`, "", true},
		"part of a value":    {`{"token":"x ` + stand + `"}`, "", true},
		"twice":              {`{"token":"` + stand + `","token":"` + stand + `"}`, "", true},
		"behind the object":  {`{"token":"` + stand + `"} ` + stand, "", true},
		"a list of objects":  {`[{"token":"` + stand + `"}]`, "", true},
		"after an object":    {`{"o":{"x":1},"token":"` + stand + `"}`, `{"o":{"x":1},"token":"THE-SECRET"}`, false},
		"none":               {`{"token":"x"}`, `{"token":"x"}`, false},
		"no JSON, with mark": {`{"token":` + stand, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			req, err := http.NewRequest("POST", "https://x.example.com/", strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			done, err := intoBody{"token"}.inject(req, placed{stand, "THE-SECRET", time.Now()})
			if (err != nil) != c.err || done != (err == nil && c.want != c.body) {
				t.Fatalf("%v %v", done, err)
			}
			if b, err := io.ReadAll(req.Body); !c.err && (err != nil || string(b) != c.want || req.ContentLength != int64(len(c.want))) {
				t.Errorf("%s, want %s; %v", b, c.want, err)
			}
		})
	}
}

// TestEveryPartIsFound: what a signer sends beside the signature is searched for too.
func TestEveryPartIsFound(t *testing.T) {
	r := NewRedactor(awsID + ":" + awsKey + ":the/session+token==")
	for _, part := range []string{awsKey, "the/session+token==", "the%2Fsession%2Btoken%3D%3D"} {
		if !r.Found([]byte("it says " + part + " here")) {
			t.Errorf("%s is not found", part)
		}
	}
	if r.Found([]byte("key " + awsID + " is known")) {
		t.Error("the key's id is no secret")
	}
}
