package secret

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
)

// KeyBytes is the length of a ring key.
const KeyBytes = 32

// ErrKeyMissing means that a blob was sealed with a key that is not in the ring.
var ErrKeyMissing = errors.New("secret: the key this was sealed with is not in the ring")

// ErrOpen means that a blob was altered, moved to another record, or is none.
var ErrOpen = errors.New("secret: the sealed value does not open here")

const (
	blobVersion = 1
	keyIDBytes  = 8
)

// Ring holds the keys, the first of them active. It is safe for concurrent use;
// Replace puts other keys in place while it is used.
type Ring struct {
	held atomic.Pointer[[]ringKey]
}

func (r *Ring) keys() []ringKey { return *r.held.Load() }

// Replace takes over the keys of another ring.
func (r *Ring) Replace(by *Ring) { r.held.Store(by.held.Load()) }

type ringKey struct {
	id    [keyIDBytes]byte
	aead  cipher.AEAD
	check [sha256.Size]byte
	sign  ed25519.PrivateKey
	mac   []byte
}

// GenerateKey returns a fresh key in the form that ParseRing reads.
func GenerateKey() Text {
	var k [KeyBytes]byte
	rand.Read(k[:])
	return New(base64.StdEncoding.EncodeToString(k[:]))
}

// ParseRing reads keys separated by commas or white space, each 32 bytes in
// base64 (either alphabet, padded or not). The first is active. No error holds
// any part of a key.
func ParseRing(text Text) (*Ring, error) {
	var words []string
	text.Expose(func(s string) {
		words = strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' || r == '\t' || r == '\r' })
	})
	if len(words) == 0 {
		return nil, errors.New("secret: no key in the ring")
	}
	var keys []ringKey
	for i, w := range words {
		w = strings.TrimRight(strings.NewReplacer("-", "+", "_", "/").Replace(w), "=")
		raw, err := base64.RawStdEncoding.DecodeString(w)
		if err != nil || len(raw) != KeyBytes {
			return nil, fmt.Errorf("secret: key %d of the ring is not %d bytes in base64", i+1, KeyBytes)
		}
		k, err := newRingKey(raw)
		if err != nil {
			return nil, err
		}
		for _, have := range keys {
			if have.id == k.id {
				return nil, fmt.Errorf("secret: key %d of the ring stands there twice", i+1)
			}
		}
		keys = append(keys, k)
	}
	r := &Ring{}
	r.held.Store(&keys)
	return r, nil
}

// Active is the id of the key that seals, as it stands in a blob.
func (r *Ring) Active() []byte { return bytes.Clone(r.keys()[0].id[:]) }

// KeyIDs are the ids of all keys in hexadecimal, active first.
func (r *Ring) KeyIDs() []string {
	var out []string
	for _, k := range r.keys() {
		out = append(out, hex.EncodeToString(k.id[:]))
	}
	return out
}

func newRingKey(raw []byte) (ringKey, error) {
	var k ringKey
	derive := func(info string, n int) ([]byte, error) { return hkdf.Key(sha256.New, raw, nil, info, n) }
	id, err := derive("patchbay key id", keyIDBytes)
	if err != nil {
		return k, err
	}
	copy(k.id[:], id)
	check, err := derive("patchbay key check", sha256.Size)
	if err != nil {
		return k, err
	}
	copy(k.check[:], check)
	seal, err := derive("patchbay seal", 32)
	if err != nil {
		return k, err
	}
	block, err := aes.NewCipher(seal)
	if err != nil {
		return k, err
	}
	if k.aead, err = cipher.NewGCM(block); err != nil {
		return k, err
	}
	if k.mac, err = derive("patchbay mac", 32); err != nil {
		return k, err
	}
	seed, err := derive("patchbay sign", ed25519.SeedSize)
	if err != nil {
		return k, err
	}
	k.sign = ed25519.NewKeyFromSeed(seed)
	return k, nil
}

// Bind is what a blob is tied to: it opens only under the same three values.
type Bind struct{ Purpose, Scope, Record string }

func (b Bind) aad() []byte {
	var out []byte
	for _, s := range [...]string{b.Purpose, b.Scope, b.Record} {
		out = binary.BigEndian.AppendUint32(out, uint32(len(s)))
		out = append(out, s...)
	}
	return out
}

// Seal encrypts value under the active key: version, key id, nonce, ciphertext.
func (r *Ring) Seal(b Bind, value []byte) []byte {
	k := &r.keys()[0]
	out := make([]byte, 1+keyIDBytes+k.aead.NonceSize(), 1+keyIDBytes+k.aead.NonceSize()+len(value)+k.aead.Overhead())
	out[0] = blobVersion
	copy(out[1:], k.id[:])
	nonce := out[1+keyIDBytes:]
	rand.Read(nonce)
	return k.aead.Seal(out, nonce, value, b.aad())
}

// Open decrypts a blob. It returns ErrKeyMissing or ErrOpen, and nothing else.
func (r *Ring) Open(b Bind, blob []byte) ([]byte, error) {
	k, err := r.keyOf(blob)
	if err != nil {
		return nil, err
	}
	n := 1 + keyIDBytes
	value, err := k.aead.Open(nil, blob[n:n+k.aead.NonceSize()], blob[n+k.aead.NonceSize():], b.aad())
	if err != nil {
		return nil, ErrOpen
	}
	return value, nil
}

// Reseal opens a blob and seals it under the active key; done is false when it
// already is.
func (r *Ring) Reseal(b Bind, blob []byte) (out []byte, done bool, err error) {
	k, err := r.keyOf(blob)
	if err != nil {
		return nil, false, err
	}
	if k.id == r.keys()[0].id {
		return blob, false, nil
	}
	value, err := r.Open(b, blob)
	if err != nil {
		return nil, false, err
	}
	return r.Seal(b, value), true, nil
}

func (r *Ring) keyOf(blob []byte) (*ringKey, error) {
	if len(blob) < 1+keyIDBytes+12 || blob[0] != blobVersion {
		return nil, ErrOpen
	}
	keys := r.keys()
	for i := range keys {
		if string(keys[i].id[:]) == string(blob[1:1+keyIDBytes]) {
			return &keys[i], nil
		}
	}
	return nil, ErrKeyMissing
}

// Checks are the check values of all keys, active first. A stored one that is
// not among them means that this ring is foreign to the database.
func (r *Ring) Checks() []string {
	keys := r.keys()
	out := make([]string, len(keys))
	for i, k := range keys {
		out[i] = hex.EncodeToString(k.check[:])
	}
	return out
}

// Sign signs with the active key's Ed25519 key.
func (r *Ring) Sign(msg []byte) []byte { return ed25519.Sign(r.keys()[0].sign, msg) }

// Verify accepts a signature of any key of the ring.
func (r *Ring) Verify(msg, sig []byte) bool {
	for _, k := range r.keys() {
		if ed25519.Verify(k.sign.Public().(ed25519.PublicKey), msg, sig) {
			return true
		}
	}
	return false
}

// MAC authenticates a message for one purpose under the active key.
func (r *Ring) MAC(purpose string, msg []byte) []byte { return macOf(r.keys()[0].mac, purpose, msg) }

// CheckMAC accepts a MAC for that purpose of any key of the ring.
func (r *Ring) CheckMAC(purpose string, msg, mac []byte) bool {
	ok := false
	for _, k := range r.keys() {
		ok = hmac.Equal(macOf(k.mac, purpose, msg), mac) || ok
	}
	return ok
}

func macOf(key []byte, purpose string, msg []byte) []byte {
	h := hmac.New(sha256.New, key)
	fmt.Fprintf(h, "%d:%s", len(purpose), purpose)
	h.Write(msg)
	return h.Sum(nil)
}

// PublicKey is the public half of a ring key's signing key.
type PublicKey struct {
	ID  string // of the ring key, in hexadecimal
	Key ed25519.PublicKey
}

// PublicKeys are the public halves of all keys, active first.
func (r *Ring) PublicKeys() []PublicKey {
	var out []PublicKey
	for _, k := range r.keys() {
		out = append(out, PublicKey{hex.EncodeToString(k.id[:]), k.sign.Public().(ed25519.PublicKey)})
	}
	return out
}

// SignBy signs with the active key and says which that is.
func (r *Ring) SignBy(msg []byte) (key string, sig []byte) {
	k := &r.keys()[0]
	return hex.EncodeToString(k.id[:]), ed25519.Sign(k.sign, msg)
}

// VerifyBy checks a signature of one key; known is false when the ring lacks it.
func (r *Ring) VerifyBy(key string, msg, sig []byte) (known, ok bool) {
	for _, k := range r.keys() {
		if hex.EncodeToString(k.id[:]) == key {
			return true, ed25519.Verify(k.sign.Public().(ed25519.PublicKey), msg, sig)
		}
	}
	return false, false
}
