package secret

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

const marker = "mark3d-s3cret-value"

func TestTextIsNeverPrinted(t *testing.T) {
	type holder struct {
		Exported Text
		hidden   Text
		ptr      *Text
		m        map[string]Text
	}
	tx := New(marker)
	h := holder{Exported: tx, hidden: tx, ptr: &tx, m: map[string]Text{"a": tx}}
	var out bytes.Buffer
	for _, v := range []any{tx, &tx, h, &h, []Text{tx}, []any{tx}, error(fmt.Errorf("bad token %v: %w", tx, errors.New("x")))} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T", "%p", "%08.3f"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		if b, err := json.Marshal(v); err == nil {
			out.Write(b)
		}
		slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "v", v)
		slog.New(slog.NewTextHandler(&out, nil)).Info("x", "v", v)
	}
	for _, form := range []string{marker, fmt.Sprintf("%x", marker), fmt.Sprintf("%X", marker), "s3cret"} {
		if strings.Contains(out.String(), form) {
			t.Fatalf("the secret shows as %q in:\n%s", form, out.String())
		}
	}
	if tx.Empty() || !(Text{}).Empty() || !tx.Equal(New(marker)) || tx.Equal(New("other")) {
		t.Error("Empty or Equal is wrong")
	}
}

func ring(t *testing.T, keys ...Text) *Ring {
	t.Helper()
	var words []string
	for _, k := range keys {
		k.Expose(func(s string) { words = append(words, s) })
	}
	r, err := ParseRing(New(strings.Join(words, ",")))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestSealBindsAndRotates(t *testing.T) {
	a, b := GenerateKey(), GenerateKey()
	old, both, other := ring(t, a), ring(t, b, a), ring(t, b)
	bind := Bind{"credential", "org", "con_1"}
	blob := old.Seal(bind, []byte(marker))
	if bytes.Contains(blob, []byte(marker)) {
		t.Fatal("not encrypted")
	}
	if v, err := both.Open(bind, blob); err != nil || string(v) != marker {
		t.Fatalf("a ring that still has the key: %q, %v", v, err)
	}
	if _, err := other.Open(bind, blob); !errors.Is(err, ErrKeyMissing) {
		t.Errorf("a ring without the key: %v", err)
	}
	for _, wrong := range []Bind{{"ticket", "org", "con_1"}, {"credential", "user:x", "con_1"}, {"credential", "org", "con_2"}, {"credentialo", "rg", "con_1"}} {
		if _, err := old.Open(wrong, blob); !errors.Is(err, ErrOpen) {
			t.Errorf("opened under %+v: %v", wrong, err)
		}
	}
	for i := range blob {
		bad := bytes.Clone(blob)
		bad[i] ^= 1
		if v, err := old.Open(bind, bad); err == nil {
			t.Fatalf("byte %d altered and it opened: %q", i, v)
		}
	}
	moved, done, err := both.Reseal(bind, blob)
	if err != nil || !done {
		t.Fatal(done, err)
	}
	if v, err := other.Open(bind, moved); err != nil || string(v) != marker {
		t.Errorf("after the move: %q, %v", v, err)
	}
	if _, done, _ := both.Reseal(bind, moved); done {
		t.Error("sealed again although it was current")
	}
	sig := both.Sign([]byte("m"))
	if !both.Verify([]byte("m"), sig) || both.Verify([]byte("n"), sig) || old.Verify([]byte("m"), sig) {
		t.Error("signature")
	}
}

func TestParseRingRefusals(t *testing.T) {
	good := GenerateKey()
	var text string
	good.Expose(func(s string) { text = s })
	url := strings.TrimRight(strings.NewReplacer("+", "-", "/", "_").Replace(text), "=")
	if r := ring(t, New(url)); r.Checks()[0] != ring(t, good).Checks()[0] {
		t.Error("the base64url form is another key")
	}
	for _, bad := range []string{"", " ", "short", text[:20], text + "," + text, text + ",%%%"} {
		_, err := ParseRing(New(bad))
		if err == nil {
			t.Errorf("%q: accepted", bad)
		} else if strings.Contains(err.Error(), text[:12]) {
			t.Errorf("the error shows the key: %v", err)
		}
	}
}
