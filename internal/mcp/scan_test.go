package mcp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
)

func TestScannerAgreesWithJSON(t *testing.T) {
	for _, c := range []struct {
		in             string
		strict, answer bool
	}{
		{`{}`, true, true}, {`[]`, true, true}, {` [1, -0.5e+10 ,true,false,null,"x"] `, true, true},
		{`{"a":{"b":[{"c":1},{"c":2}]}}`, true, true}, {`{"a":1,"A":2}`, true, true},
		{`{"a":1,"a":2}`, false, false}, {`{"a":{"b":1,"b":2}}`, false, false}, {`{"a":1,"\u0061":2}`, false, false}, {`[{"x":1,"y":{"z":1,"z":1}}]`, false, false},
		{`"\ud83d\ude00"`, true, true}, {`"\ud83d"`, false, true}, {`"\ude00"`, false, true}, {`"\ud83dx"`, false, true}, {`"\ud83d\ud83d"`, false, true}, {`{"\ud83d":1}`, false, false},
		{"\"\xff\"", false, false}, {"\"a\nb\"", false, false}, {`"\x"`, false, false}, {`"\u12"`, false, false}, {`"a`, false, false}, {`"\`, false, false},
		{`01`, false, false}, {`1.`, false, false}, {`-`, false, false}, {`1e`, false, false}, {`.5`, false, false}, {`+1`, false, false}, {`NaN`, false, false},
		{`{"a":1,}`, false, false}, {`[1,]`, false, false}, {`[1 2]`, false, false}, {`{"a" 1}`, false, false}, {`{a:1}`, false, false}, {``, false, false}, {`{} {}`, false, false},
		{strings.Repeat("[", 600) + strings.Repeat("]", 600), false, false},
	} {
		for r, want := range map[Reading]bool{Strict: c.strict, Answer: c.answer} {
			if got := Check([]byte(c.in), r) == nil; got != want {
				t.Errorf("%.40q reading %d: %v, want %v", c.in, r, got, want)
			}
		}
	}
	// Many members, past the change from list to map.
	var b strings.Builder
	for i := range 200 {
		fmt.Fprintf(&b, `,"k%d":%d`, i, i)
	}
	body := "{" + b.String()[1:] + "}"
	if err := Check([]byte(body), Strict); err != nil {
		t.Error(err)
	}
	for _, twice := range []string{"k0", "k30", "k199"} {
		if Check([]byte(body[:len(body)-1]+`,"`+twice+`":1}`), Strict) == nil {
			t.Errorf("%s stood twice", twice)
		}
	}
}

func TestReadMessage(t *testing.T) {
	for in, ok := range map[string]bool{
		`{"jsonrpc":"2.0","id":1,"method":"x"}`:                       true,
		`{"jsonrpc":"2.0","method":"x","params":{}}`:                  true,
		`{"jsonrpc":"2.0","id":"a","result":{}}`:                      true,
		`{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":""}}`: true,
		`{"jsonrpc":"1.0","id":1,"method":"x"}`:                       false,
		`{"id":1,"method":"x"}`:                                       false,
		`{"jsonrpc":"2.0","id":{},"method":"x"}`:                      false,
		`{"jsonrpc":"2.0","id":1,"method":5}`:                         false,
		`{"jsonrpc":"2.0","id":1,"method":"x","params":[]}`:           false,
		`{"jsonrpc":"2.0","id":1}`:                                    false,
		`{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1}}`:     false,
		`{"jsonrpc":"2.0","id":1,"method":"x","result":{}}`:           false,
		`[{"jsonrpc":"2.0","id":1,"method":"x"}]`:                     false,
		`{"jsonrpc":"2.0","id":1,"method":"x","METHOD":"y"}`:          true,
		`{"jsonrpc":"2.0","id":1,"method":"x","method":"y"}`:          false,
	} {
		m, err := ReadMessage([]byte(in), Strict)
		if (err == nil) != ok {
			t.Errorf("%s: %v", in, err)
		}
		if err == nil && strings.Contains(in, "METHOD") && m.Method != "x" {
			t.Errorf("another case was read: %+v", m)
		}
	}
}

func events(s string) (out []string) {
	r := newSSE(iotest{strings.NewReader(s)}, 1<<20)
	for {
		ev, err := r.next()
		if err != nil {
			return append(out, err.Error())
		}
		out = append(out, fmt.Sprintf("%s|%s|%v|%v", ev.Data, ev.ID, ev.HasID, ev.Retry))
	}
}

// iotest hands out one byte at a time, so that every boundary is hit.
type iotest struct{ r io.Reader }

func (o iotest) Read(p []byte) (int, error) { return o.r.Read(p[:1]) }

func TestSSE(t *testing.T) {
	for in, want := range map[string][]string{
		"data: a\n\ndata: b\n\n":                        {"a||false|0s", "b||false|0s", "EOF"},
		"\xef\xbb\xbfdata: a\n\n":                       {"a||false|0s", "EOF"},
		"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\ndata:b\n\n": {"b||false|0s", "EOF"},
		"data: a\r\n\r\ndata: b\r\rdata: c\n\n":         {"a||false|0s", "b||false|0s", "c||false|0s", "EOF"},
		"data: a\ndata:b\ndata:  c\n\n":                 {"a\nb\n c||false|0s", "EOF"},
		"id: 1\ndata:\n\n: note\n\nevent: x\n\n":        {"|1|true|0s", "EOF"},
		"id: 7\nretry: 1500\ndata: x\n\n":               {"x|7|true|1.5s", "EOF"},
		"retry: nope\nid: a\x00b\ndata: x\n\n":          {"x||false|0s", "EOF"},
		"data: cut off":                                 {"EOF"},
		"data: \xe3\x81\x82\n\n":                        {"あ||false|0s", "EOF"},
	} {
		if got := events(in); !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	big := strings.Repeat("x", 200<<10)
	if got := events("data: " + big + "\n\n"); len(got) != 2 || !strings.HasPrefix(got[0], big) {
		t.Error("a line of 200 KB is lost")
	}
	r := newSSE(strings.NewReader("data: "+strings.Repeat("y", 1000)), 100)
	if _, err := r.next(); err != errTooLarge {
		t.Errorf("over the bound: %v", err)
	}
}

func TestParamHeaders(t *testing.T) {
	schema := json.RawMessage(`{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"},"deep":{"type":"object","properties":{"n":{"type":"integer","x-mcp-header":"N"}}},"b":{"type":"boolean","x-mcp-header":"B"}}}`)
	hs, err := ParamHeaders(schema)
	if err != nil || len(hs) != 3 {
		t.Fatal(hs, err)
	}
	got := paramHeaders(json.RawMessage(`{"region":" é","deep":{"n":12345678901234567890},"b":null}`), hs)
	want := http.Header{"Mcp-Param-Region": {"=?base64?IMOp?="}, "Mcp-Param-N": {"12345678901234567890"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	for _, bad := range []string{
		`{"properties":{"a":{"type":"string","x-mcp-header":"a b"}}}`, `{"properties":{"a":{"type":"string","x-mcp-header":""}}}`,
		`{"properties":{"a":{"type":"object","x-mcp-header":"A"}}}`, `{"properties":{"a":{"type":"string","x-mcp-header":5}}}`,
		`{"properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"type":"string","x-mcp-header":"a"}}}`,
	} {
		if _, err := ParamHeaders(json.RawMessage(bad)); err == nil {
			t.Errorf("%s: taken", bad)
		}
	}
	for _, v := range []string{"plain", "", " x", "ü", "a\r\nX: y", "=?base64?eA==?=", "tab\there"} {
		if back, ok := decodeHeader(encodeHeader(v)); !ok || back != v {
			t.Errorf("%q came back as %q", v, back)
		}
		if strings.ContainsAny(encodeHeader(v), "\r\n") {
			t.Errorf("%q breaks the header", v)
		}
	}
}

func TestServerReadsStrictly(t *testing.T) {
	half := &Server{Info: Implementation{"m", "1"}, Tools: echoSet{}, MaxBody: 4096}
	srv := httptest.NewServer(half)
	defer srv.Close()
	meta := `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
	modern := map[string]string{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "echo"}
	for _, c := range []struct {
		name, body string
		header     map[string]string
		status     int
		code       int64
	}{
		{"not JSON", `{`, nil, 400, CodeParse},
		{"a member twice", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","name":"b"}}`, nil, 400, CodeParse},
		{"a batch", `[]`, nil, 400, CodeParse},
		{"too large", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"` + strings.Repeat("y", 5000) + `"}}`, nil, 413, CodeInvalidRequest},
		{"arguments that are no object", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":[]}}`, nil, 200, CodeInvalidParams},
		{"an unknown method", `{"jsonrpc":"2.0","id":1,"method":"nope"}`, nil, 200, CodeMethodNotFound},
		{"fine", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{}}}`, nil, 200, 0},
		{"modern, fine", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + meta + `,"name":"echo"}}`, modern, 200, 0},
		{"modern, another name in the header", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + meta + `,"name":"other"}}`, modern, 400, CodeHeaderMismatch},
		{"modern, another case of the name", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + meta + `,"name":"delete_repo","NAME":"echo"}}`, modern, 400, CodeHeaderMismatch},
		{"modern, another method in the header", `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{` + meta + `}}`, modern, 400, CodeHeaderMismatch},
		{"modern without _meta", `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}`, modern, 400, CodeInvalidParams},
		{"a version of the future", `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2030-01-01"}}}`, map[string]string{"Mcp-Protocol-Version": "2030-01-01"}, 400, CodeUnsupportedVersion},
		{"modern, unknown method", `{"jsonrpc":"2.0","id":1,"method":"nope","params":{` + meta + `}}`, map[string]string{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "nope"}, 404, CodeMethodNotFound},
	} {
		req, _ := http.NewRequest("POST", srv.URL, strings.NewReader(c.body))
		req.Header.Set("Accept", "application/json, text/event-stream")
		for k, v := range c.header {
			req.Header.Set(k, v)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		m, err := ReadMessage(bytes.TrimSpace(body), Strict)
		if err != nil || resp.StatusCode != c.status || (c.code != 0) != (m.Err != nil) || m.Err != nil && m.Err.Code != c.code {
			t.Errorf("%s: %d %s (%v)", c.name, resp.StatusCode, body, err)
		}
	}
}

func FuzzSSE(f *testing.F) {
	for _, s := range []string{"data: a\n\n", "\xef\xbb\xbfid: 1\r\ndata: x\r\rretry: 5\n\n", ":\n\ndata"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		// However the bytes arrive, the events are the same.
		read := func(r io.Reader) (out []string) {
			s := newSSE(r, 1<<16)
			for {
				ev, err := s.next()
				if err != nil {
					return out
				}
				out = append(out, fmt.Sprintf("%q %q %v %v", ev.Data, ev.ID, ev.HasID, ev.Retry))
			}
		}
		whole, single := read(bytes.NewReader(in)), read(iotest{bytes.NewReader(in)})
		if !reflect.DeepEqual(whole, single) {
			t.Fatalf("%q:\n%v\n%v", in, whole, single)
		}
	})
}

func FuzzMessage(f *testing.F) {
	for _, s := range []string{`{"jsonrpc":"2.0","id":1,"method":"x","params":{"name":"a"}}`, `{"jsonrpc":"2.0","id":1,"result":{"isError":true}}`, `{"a":"\ud83d\ude00"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		strict := Check(in, Strict) == nil
		if strict && !json.Valid(in) {
			t.Fatalf("%q passed and is no JSON", in)
		}
		if strict && Check(in, Answer) != nil {
			t.Fatalf("%q passes strictly only", in)
		}
		m, err := ReadMessage(in, Strict)
		if err != nil {
			return
		}
		// What decides is read as every other reader would read it.
		var exact map[string]json.RawMessage
		if err := json.Unmarshal(in, &exact); err != nil {
			t.Fatal(err)
		}
		if raw, ok := exact["method"]; ok {
			var s string
			if json.Unmarshal(raw, &s) != nil || s != m.Method {
				t.Fatalf("%q: method %q", in, m.Method)
			}
		}
		if string(exact["id"]) != string(m.ID) {
			t.Fatalf("%q: id %q, not %q", in, m.ID, exact["id"])
		}
	})
}
