package store

import (
	"context"
	"database/sql"
	"fmt"

	"patchbay/internal/plane"
)

// place is a column of sealed blobs and the columns that name a row.
type place struct {
	table, blob string
	text, num   string // key columns; num may be empty
}

// places are all columns of sealed blobs. What is not here is never sealed anew.
var places = map[string]place{
	"credential":    {table: "credentials", blob: "blob", text: "connection"},
	"ticket":        {table: "tickets", blob: "pending", text: "hash"},
	"client":        {table: "oauth_clients", blob: "blob", text: "issuer || ' ' || redirect"},
	"revocation":    {table: "revocations", blob: "blob", text: "id"},
	"run.prompt":    {table: "runs", blob: "prompt", text: "id"},
	"run.answer":    {table: "runs", blob: "answer", text: "id"},
	"message":       {table: "messages", blob: "body", text: "run", num: "seq"},
	"event":         {table: "run_events", blob: "data", text: "run", num: "seq"},
	"result.body":   {table: "results", blob: "body", text: "run || ' ' || id"},
	"result.whole":  {table: "results", blob: "whole", text: "run || ' ' || id"},
	"approval":      {table: "approvals", blob: "args", text: "id"},
	"memory":        {table: "memories", blob: "body", text: "id"},
	"authority":     {table: "authorities", blob: "blob", text: "name"},
	"chat":          {table: "chat_work", blob: "body", text: "id"},
	"client.answer": {table: "signins", blob: "answer", text: "id"},
	"secret":        {table: "secrets", blob: "blob", text: "team || ' ' || ref"},
}

// SealedPlaces lists the places of sealed blobs, credentials first.
func SealedPlaces() []string {
	return []string{"credential", "ticket", "client", "revocation", "run.prompt", "run.answer", "message", "event", "result.body", "result.whole", "approval", "memory", "chat", "client.answer", "secret", "authority"}
}

// The key's id stands in bytes 2 to 9 of a blob (see secret.Ring).
const keyIDAt = "2, 8"

// SealedUnder counts the blobs of a place by the key that sealed them.
func (s *Store) SealedUnder(ctx context.Context, where string) (map[string]int, error) {
	p := places[where]
	out := map[string]int{}
	err := s.each(ctx, func(r *sql.Rows) error {
		var id []byte
		var n int
		err := r.Scan(&id, &n)
		out[string(id)] += n
		return err
	}, fmt.Sprintf(`SELECT substr(%s, %s), COUNT(*) FROM %s WHERE LENGTH(%s) > 9 GROUP BY 1`, p.blob, keyIDAt, p.table, p.blob))
	return out, err
}

// SealedElsewhere returns up to limit blobs of a place that another key than
// active sealed, after the given row.
func (s *Store) SealedElsewhere(ctx context.Context, where string, active []byte, after plane.Sealed, limit int) ([]plane.Sealed, error) {
	p := places[where]
	num := p.num
	if num == "" {
		num = "0"
	}
	var out []plane.Sealed
	err := s.each(ctx, func(r *sql.Rows) error {
		v := plane.Sealed{Place: where}
		err := r.Scan(&v.Key, &v.Num, &v.Blob)
		out = append(out, v)
		return err
	}, fmt.Sprintf(`SELECT %[1]s, %[2]s, %[3]s FROM %[4]s WHERE LENGTH(%[3]s) > 9 AND substr(%[3]s, %[5]s) <> ?
		AND (%[1]s > ? OR %[1]s = ? AND %[2]s > ?) ORDER BY 1, 2 LIMIT ?`, p.text, num, p.blob, p.table, keyIDAt),
		active, after.Key, after.Key, after.Num, limit)
	return out, err
}

// ReplaceSealed puts a blob in place of the one that was read; a row that
// changed in the meantime is left alone.
func (s *Store) ReplaceSealed(t plane.Tx, v plane.Sealed, blob []byte) error {
	p := places[v.Place]
	q := fmt.Sprintf(`UPDATE %s SET %s = ? WHERE %s = ? AND %s = ?`, p.table, p.blob, p.text, p.blob)
	args := []any{blob, v.Key, v.Blob}
	if p.num != "" {
		q += " AND " + p.num + " = ?"
		args = append(args, v.Num)
	}
	_, err := own(t).exec(q, args...)
	return err
}
