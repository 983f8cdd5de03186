package store

import (
	"context"
	"database/sql/driver"
	"strings"

	"patchbay/internal/plane"
)

// rowsAtOnce is how many rows of calls one statement writes.
const rowsAtOnce = 16

// keep holds a row back, to be written with the others of this transaction: what a
// statement costs beside its row is then paid once for many.
func (t *tx) keep(c *plane.Call) {
	t.rows, t.changed = append(t.rows, c), true
}

// writeRows writes what was kept. It comes before any other statement, so that nothing
// misses a row that was there first.
func (t *tx) writeRows() error {
	rows := t.rows
	t.rows = rows[:0]
	defer clear(rows)
	for len(rows) > 0 {
		n := 1
		if len(rows) >= rowsAtOnce {
			n = rowsAtOnce
		}
		if err := t.s.batch.insertRows(t.ctx, rows[:n]); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

// rowWriter speaks to SQLite's driver without database/sql between, which would copy and
// look at each of the hundreds of values anew.
type rowWriter struct {
	stmts map[int]driver.Stmt // by rows
	args  []any
	named []driver.NamedValue
}

func (b *batcher) insertRows(ctx context.Context, rows []*plane.Call) error {
	w := &b.rows
	return b.conn.Raw(func(conn any) error {
		st := w.stmts[len(rows)]
		if st == nil {
			var err error
			q := `INSERT INTO calls (` + leanColumns + `) VALUES ` + strings.Repeat(`(`+leanMarks+`), `, len(rows)-1) + `(` + leanMarks + `)`
			if st, err = conn.(driver.ConnPrepareContext).PrepareContext(ctx, q); err != nil {
				return err
			}
			if w.stmts == nil {
				w.stmts = map[int]driver.Stmt{}
			}
			w.stmts[len(rows)] = st
		}
		w.args, w.named = w.args[:0], w.named[:0]
		for _, c := range rows {
			w.args = appendLean(w.args, c)
		}
		for i, v := range w.args {
			w.named = append(w.named, driver.NamedValue{Ordinal: i + 1, Value: v})
		}
		_, err := st.(driver.StmtExecContext).ExecContext(ctx, w.named)
		clear(w.args) // they hold the rows' strings
		clear(w.named)
		return err
	})
}

func (w *rowWriter) close() {
	for _, st := range w.stmts {
		st.Close()
	}
}
