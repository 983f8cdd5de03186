package store

import (
	"context"
	"database/sql"
	"strings"

	"patchbay/internal/plane"
)

// AddMemory keeps a memory; body comes sealed. words, where it is not empty, is the
// text for the full-text index: it rests in the clear.
func (s *Store) AddMemory(t plane.Tx, m *plane.Memory, body []byte, words string) error {
	x := own(t)
	m.At = t.Now()
	res, err := x.exec(`INSERT INTO memories (id, agent, run, author, conversation, labels, body, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING`,
		m.ID, m.Agent, m.Run, m.Author, m.Conversation, m.Labels, body, plane.Micros(m.At))
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return err // it was kept before the run was resumed
	}
	if words != "" {
		_, err = x.exec(`INSERT INTO memory_index (id, agent, body) VALUES (?, ?, ?)`, m.ID, m.Agent, words)
	}
	if err != nil {
		return err
	}
	return s.SetLineage(t, string(m.ID), m.Sources)
}

// StoredMemory is a memory, still sealed.
type StoredMemory = struct {
	plane.Memory
	Sealed []byte
}

const memoryColumns = `m.id, m.agent, m.run, m.author, m.conversation, m.labels, m.body, m.at`

func (s *Store) memories(ctx context.Context, q string, args ...any) ([]StoredMemory, error) {
	var out []StoredMemory
	err := s.each(ctx, func(r *sql.Rows) error {
		var v StoredMemory
		var at int64
		err := r.Scan(&v.ID, &v.Agent, &v.Run, &v.Author, &v.Conversation, &v.Labels, &v.Sealed, &at)
		v.At = plane.FromMicros(at)
		out = append(out, v)
		return err
	}, q, args...)
	return out, err
}

// Memories returns an agent's latest memories that may be recalled in a conversation:
// those of no conversation, and its own.
func (s *Store) Memories(ctx context.Context, agent, conversation string, limit int) ([]StoredMemory, error) {
	return s.memories(ctx, `SELECT `+memoryColumns+` FROM memories m WHERE m.agent = ? AND (m.conversation = '' OR m.conversation = ?)
		ORDER BY m.at DESC, m.id DESC LIMIT ?`, agent, conversation, limit)
}

// SearchMemories finds an agent's memories by words, best first, as far as they may be
// recalled in a conversation.
func (s *Store) SearchMemories(ctx context.Context, agent, conversation string, words []string, limit int) ([]StoredMemory, error) {
	if len(words) == 0 {
		return nil, nil
	}
	if s.pg {
		return s.memories(ctx, `SELECT `+memoryColumns+` FROM memories m JOIN memory_index i ON i.id = m.id
			WHERE to_tsvector('simple', i.body) @@ to_tsquery('simple', ?) AND m.agent = ? AND (m.conversation = '' OR m.conversation = ?)
			ORDER BY ts_rank(to_tsvector('simple', i.body), to_tsquery('simple', ?)) DESC, m.id DESC LIMIT ?`,
			quoted(words, "'", " | "), agent, conversation, quoted(words, "'", " | "), limit)
	}
	return s.memories(ctx, `SELECT `+memoryColumns+` FROM memory_index i JOIN memories m ON m.id = i.id
		WHERE memory_index MATCH ? AND m.agent = ? AND (m.conversation = '' OR m.conversation = ?) ORDER BY bm25(memory_index), m.id DESC LIMIT ?`,
		"body : ("+quoted(words, `"`, " OR ")+")", agent, conversation, limit)
}

// quoted writes words as a query that matches any of them, whatever is in them.
func quoted(words []string, mark, or string) string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = mark + strings.ReplaceAll(strings.ReplaceAll(w, `\`, `\\`), mark, mark+mark) + mark
	}
	return strings.Join(out, or)
}

// DropMemory forgets a memory of an agent.
func (s *Store) DropMemory(t plane.Tx, agent string, id plane.MemoryID) error {
	x := own(t)
	res, err := x.exec(`DELETE FROM memories WHERE id = ? AND agent = ?`, id, agent)
	if err := exactly(res, err, 1, plane.Errorf(plane.NotFound, "There is no such memory.")); err != nil {
		return err
	}
	for _, q := range []string{`DELETE FROM memory_index WHERE id = ?`, `DELETE FROM lineage WHERE owner = ?`} {
		if _, err := x.exec(q, id); err != nil {
			return err
		}
	}
	return nil
}

// CountMemories is how many an agent has.
func (s *Store) CountMemories(t plane.Tx, agent string) (int, error) {
	n := 0
	err := own(t).each(func(r *sql.Rows) error { return r.Scan(&n) }, `SELECT COUNT(*) FROM memories WHERE agent = ?`, agent)
	return n, err
}
