package api

import (
	"encoding/json"
	"net/http"
)

const signingPath = "/api/keys/signing"

// SigningKey is the public half of a key that receipts and checkpoints are signed with.
type SigningKey struct {
	ID        string `json:"keyid"`
	Algorithm string `json:"algorithm"` // ed25519
	Active    bool   `json:"active"`
	PEM       string `json:"public_key"` // SubjectPublicKeyInfo
}

// SigningKeys lists them.
type SigningKeys struct {
	Keys []SigningKey `json:"keys"`
}

// signing serves the public halves: whoever has a receipt may check it.
func (a *API) signing(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(SigningKeys{Keys: a.keys()})
}
