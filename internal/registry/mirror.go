package registry

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"patchbay/internal/plane"
)

// Mirror copies an upstream registry into a table of its own. Nothing of it is attached
// or on offer by itself.
type Mirror struct {
	URL    string // without a slash at its end
	Search string // only servers whose name holds it
	Every  time.Duration
	Client *http.Client
	Store  Store
	Clock  plane.Clock
	Owner  string
	Log    *slog.Logger

	since time.Time // the newest change that was read
	next  time.Time
}

// Bounds of a mirror.
const (
	mirrorPage    = 8 << 20 // bytes of one answer
	mirrorPages   = 2000
	mirrorEntries = 100_000
	mirrorBody    = 64 << 10 // bytes of one entry
	mirrorTime    = 30 * time.Second
)

// Tick reads what changed upstream, if it is time and no other replica does.
func (m *Mirror) Tick(ctx context.Context) error {
	now := m.Clock.Now()
	if now.Before(m.next) {
		return nil
	}
	mine, err := m.Store.TakeLease(ctx, "mirror", m.Owner, now.Add(m.Every))
	if err != nil || !mine {
		return err
	}
	m.next = now.Add(m.Every)
	n, err := m.read(ctx)
	if err != nil {
		m.Log.Warn("the upstream registry could not be read", "url", m.URL, "read", n, "err", err)
		m.next = now.Add(min(m.Every, 5*time.Minute))
	}
	return err
}

// read pages through upstream. What was read before a failure stays.
func (m *Mirror) read(ctx context.Context) (n int, err error) {
	at, newest := "", m.since
	seen := map[string]bool{}
	for range mirrorPages {
		page, err := m.page(ctx, at)
		if err != nil {
			return n, err
		}
		keep, gone := m.judge(page, &newest)
		have, err := m.Store.CountMirror(ctx)
		if err != nil {
			return n, err
		}
		if have+len(keep) > mirrorEntries {
			return n, plane.Errorf(plane.Limited, "The mirror is full: it holds at most %d servers.", mirrorEntries)
		}
		err = m.Store.Write(ctx, func(t plane.Tx) error {
			for _, g := range gone {
				if err := m.Store.DropMirror(t, g.Name, g.Version); err != nil {
					return err
				}
			}
			return m.Store.PutMirror(t, keep)
		})
		if err != nil {
			return n, err
		}
		n += len(keep)
		next := page.Metadata.NextCursor
		if next == "" || seen[next] {
			m.since = newest
			return n, nil
		}
		seen[next] = true
		at = next
	}
	return n, plane.Errorf(plane.Limited, "The upstream registry has more than %d pages.", mirrorPages)
}

type rawPage struct {
	Servers  []json.RawMessage `json:"servers"`
	Metadata Metadata          `json:"metadata"`
}

func (m *Mirror) page(ctx context.Context, at string) (rawPage, error) {
	ctx, cancel := context.WithTimeout(ctx, mirrorTime)
	defer cancel()
	q := url.Values{"limit": {"100"}}
	if at != "" {
		q.Set("cursor", at)
	}
	if m.Search != "" {
		q.Set("search", m.Search)
	}
	if !m.since.IsZero() {
		q.Set("updated_since", m.since.UTC().Format(time.RFC3339))
	}
	var out rawPage
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, m.URL+"/v0.1/servers?"+q.Encode(), nil)
	if err != nil {
		return out, err
	}
	req.Header.Set("Accept", "application/json")
	resp, err := m.Client.Do(req)
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return out, plane.Errorf(plane.Unavailable, "The upstream registry answered %d.", resp.StatusCode)
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, mirrorPage+1))
	if err != nil {
		return out, err
	}
	if len(b) > mirrorPage {
		return out, plane.Errorf(plane.Limited, "The upstream registry's page is larger than %d bytes.", mirrorPage)
	}
	return out, json.Unmarshal(b, &out)
}

// judge sorts entries into what is kept and what is gone. What does not read is left out.
func (m *Mirror) judge(page rawPage, newest *time.Time) (keep, gone []plane.MirrorEntry) {
	for _, raw := range page.Servers {
		var e Entry
		if len(raw) > mirrorBody || json.Unmarshal(raw, &e) != nil || e.Server.Name == "" || len(e.Server.Name) > 200 || len(e.Server.Version) > 255 {
			continue
		}
		if m.Search != "" && !strings.Contains(strings.ToLower(e.Server.Name), strings.ToLower(m.Search)) {
			continue
		}
		var meta map[string]official
		if err := json.Unmarshal(e.Meta, &meta); err != nil {
			meta = nil
		}
		o := meta[metaKey]
		v := plane.MirrorEntry{Name: e.Server.Name, Version: e.Server.Version, Latest: o.IsLatest, Body: raw, UpdatedAt: o.UpdatedAt}
		if o.UpdatedAt.After(*newest) {
			*newest = o.UpdatedAt
		}
		if o.Status == "deleted" {
			gone = append(gone, v)
			continue
		}
		keep = append(keep, v)
	}
	return keep, gone
}
