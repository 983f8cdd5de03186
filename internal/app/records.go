package app

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"
	"time"

	"patchbay/internal/api"
	"patchbay/internal/ledger"
	"patchbay/internal/plane"
	"patchbay/internal/run"
	"patchbay/internal/store"
)

// records are what commands show of the record.
type records struct {
	*store.Store
	a *App
}

// DropRule takes a person's standing word back.
func (r records) DropRule(ctx context.Context, who plane.Principal, id string) error {
	return r.Write(ctx, func(t plane.Tx) error {
		if err := r.Store.DropRule(t, id); err != nil {
			return err
		}
		return r.AddAudit(t, plane.AuditEntry{Who: who.ID, Action: "rule.remove", What: id, Decision: "allow"})
	})
}

// Verify checks the whole audit, after what is open was sealed.
func (r records) Verify(ctx context.Context) (ledger.Verified, error) {
	if err := r.a.auditor.Seal(ctx); err != nil {
		r.a.o.Log.Error("the audit could not be sealed", "err", err)
	}
	return r.a.auditor.Verify(ctx)
}

// unseal are the arguments that somebody is asked about; those sealed with a key that
// is gone are left out.
func (a *App) unseal(p *plane.Approval) string {
	if len(p.Arguments) == 0 {
		return ""
	}
	b, err := a.ring.Open(run.ApprovalBind(p.ID), p.Arguments)
	if err != nil {
		return ""
	}
	return string(b)
}

// lane names this replica in the audit: where the others reach it, else its host.
func (c *Config) lane() string {
	if c.Database == "sqlite" {
		return "main"
	}
	if c.Cluster.Advertise != "" {
		return c.Cluster.Advertise
	}
	host, err := os.Hostname()
	if err != nil {
		return "replica"
	}
	return host
}

// strand makes unknown what a replica that is gone left under way in the credential gateway.
func (a *App) strand(ctx context.Context) error {
	return a.store.Write(ctx, func(t plane.Tx) error { return a.store.StrandEgress(t, t.Now().Add(-strandEvery)) })
}

// chatKept is how long it is known that an event of a chat was answered; Slack sends one
// again within hours.
const chatKept = 14 * 24 * time.Hour

// forget sweeps what is older than its retention.
func (a *App) forget(ctx context.Context) error {
	now := a.o.Clock.Now()
	r := a.cfg.Retention
	for _, s := range []struct {
		age  time.Duration
		what func(context.Context, time.Time) error
	}{{r.Results, a.store.SweepResults}, {r.Events, a.store.SweepEvents}, {r.Records, a.store.SweepRecords}, {r.Records, a.store.SweepDeclarations}, {r.Records, a.auditor.Cut}, {r.Egress, a.store.SweepEgress}, {chatKept, a.store.SweepChat}} {
		if s.age <= 0 {
			continue
		}
		if err := s.what(ctx, now.Add(-s.age)); err != nil {
			return err
		}
	}
	return nil
}

// signingKeys are the public halves of the ring.
func (a *App) signingKeys() []api.SigningKey {
	out := []api.SigningKey{}
	for i, k := range a.ring.PublicKeys() {
		der, err := x509.MarshalPKIXPublicKey(k.Key)
		if err != nil {
			continue // an Ed25519 key always marshals
		}
		out = append(out, api.SigningKey{ID: k.ID, Algorithm: "ed25519", Active: i == 0, PEM: string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))})
	}
	return out
}

// lease says that this process is there, so that its calls are not taken for left behind;
// nil where it is alone.
func (a *App) lease() func(context.Context, time.Time) error {
	if a.store.Kind() == "sqlite" {
		return nil
	}
	return func(ctx context.Context, until time.Time) error {
		_, err := a.store.TakeLease(ctx, "process/"+a.ledger.Owner, a.ledger.Owner, until)
		return err
	}
}

// limitRows are the limits in force, by the names of the config file.
func limitRows(l plane.Limits) [][2]string {
	var out [][2]string
	v := reflect.ValueOf(l)
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ",")
		out = append(out, [2]string{name, limitText(name, v.Field(i).Interface())})
	}
	return out
}

// limitText writes a limit as people and the config file do.
func limitText(name string, v any) string {
	switch v := v.(type) {
	case time.Duration:
		s := v.String()
		if strings.HasSuffix(s, "m0s") {
			s = strings.TrimSuffix(s, "0s")
		}
		if strings.HasSuffix(s, "h0m") {
			s = strings.TrimSuffix(s, "0m")
		}
		return s
	case int:
		if unit := strings.Contains(name, "bytes") || strings.HasSuffix(name, "_memory") || strings.HasSuffix(name, "_buffers") || strings.Contains(name, "result_kept"); !unit {
			return strconv.Itoa(v)
		}
		switch {
		case v >= 1<<20 && v%(1<<20) == 0:
			return strconv.Itoa(v>>20) + " MiB"
		case v >= 1<<10 && v%(1<<10) == 0:
			return strconv.Itoa(v>>10) + " KiB"
		}
		return strconv.Itoa(v) + " bytes"
	}
	return fmt.Sprint(v)
}
