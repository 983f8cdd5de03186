package ledger

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	"patchbay/internal/plane"
)

// Contract says of one kind of invocation when it is over. A person reviews a tool's
// definition for one; from then on only an answer that fulfils it lets the target go.
// It trusts the end of one invocation, and says nothing of a task.
type Contract interface {
	Name() string
	// Admits reports whether a tool at an endpoint may be reviewed for it.
	Admits(endpoint, tool string, class plane.Class) bool
	// Subject is what supported arguments are about.
	Subject(arguments []byte) (string, bool)
	// Ended reports whether an answer ends the invocation on its subject, and, for
	// diagnosis alone, whether it shows what was asked for.
	Ended(subject string, arguments, result []byte) (ended, verified bool)
}

// contracts are those that are there: each is a file of its own.
var contracts = map[string]Contract{
	linearAppend{}.Name(): linearAppend{},
}

// ContractNames lists the contracts that a review may name.
func ContractNames() []string { return slices.Sorted(maps.Keys(contracts)) }

// AdmitContract holds a review's contract to what it is reviewed for.
func AdmitContract(name, endpoint, tool string, class plane.Class) error {
	c, ok := contracts[name]
	switch {
	case !ok:
		return plane.Errorf(plane.InvalidInput, "There is no completion contract %q.", clip(name, 60)).At("completion_contract")
	case !c.Admits(endpoint, tool, class):
		return plane.Errorf(plane.InvalidInput, "The contract %s is not for %s as %s at %s.", name, clip(tool, 60), class, endpoint).At("completion_contract")
	}
	return nil
}

func clip(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n]) + "…"
	}
	return s
}

// Proof is what is recorded of an invocation under a contract: what it was from the
// start and, in the receipt, how it ended.
type Proof struct {
	Contract    string   `json:"contract"`
	Call        string   `json:"call"`
	Connection  string   `json:"connection"`
	Version     int64    `json:"version"`
	Fingerprint string   `json:"fingerprint"`
	Subject     string   `json:"subject"`
	Arguments   string   `json:"arguments"` // digest
	Receipt     *Receipt `json:"receipt,omitempty"`
}

// Receipt is how an invocation under a contract ended.
type Receipt struct {
	Result   string    `json:"result"` // digest
	At       time.Time `json:"at"`
	Verified bool      `json:"postcondition_verified"` // diagnostic only
}

// Under binds a call to the contract that its definition was reviewed for: what it is
// about becomes its target. Arguments that the contract does not support leave the
// call as it is, and it keeps its claim when it has ended.
func (l *Ledger) Under(c *plane.Call, contract, endpoint string, arguments []byte) {
	k, ok := contracts[contract]
	if !ok || !k.Admits(endpoint, c.Tool, c.Class) {
		return
	}
	subject, ok := k.Subject(arguments)
	if !ok {
		return
	}
	c.Target, c.Spec = "subject:"+subject, contract
	b, _ := json.Marshal(Proof{Contract: contract, Call: string(c.ID), Connection: string(c.Connection), Version: c.Version,
		Fingerprint: c.Fingerprint, Subject: subject, Arguments: c.ArgsDigest}) // always marshals
	c.Proof = string(b)
}

// Prove holds an answer to the contract. What does not fulfil it leaves a hold.
func (l *Ledger) Prove(c *plane.Call, contract, endpoint string, arguments, result []byte) {
	k, ok := contracts[contract]
	if !ok || !k.Admits(endpoint, c.Tool, c.Class) {
		return // the connection was moved since it was reviewed
	}
	var p Proof
	if c.Proof == "" || json.Unmarshal([]byte(c.Proof), &p) != nil {
		c.Hold = "The contract " + contract + " does not cover these arguments: the server answered, and nothing proves that it has ended."
		return
	}
	ended, verified := k.Ended(p.Subject, arguments, result)
	if !ended {
		c.Hold = "The server's answer does not say what the contract " + contract + " asks for: nothing proves that the invocation has ended."
		return
	}
	p.Receipt = &Receipt{Result: c.Result, At: l.clock.Now().UTC(), Verified: verified}
	b, _ := json.Marshal(p) // always marshals
	c.Proof = string(b)
}
