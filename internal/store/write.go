package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"patchbay/internal/plane"
)

const (
	maxBatch  = 256
	maxLazy   = 4096
	lazyDelay = 50 * time.Millisecond

	gatherTime = 500 * time.Microsecond
)

// tx is the plane.Tx of both engines.
type tx struct {
	ctx  context.Context
	now  time.Time
	s    *Store
	pg   *sql.Tx
	conn *sql.Conn // SQLite's one writing connection

	changed bool               // SQLite: the closure that runs has changed something
	calls   []plane.AuditEntry // see fold
	keeps   bool               // rows of calls may wait for others of their kind
	rows    []*plane.Call      // see keep
}

// Now is the time that everything in this transaction compares with.
func (t *tx) Now() time.Time { return t.now }

func (t *tx) exec(q string, args ...any) (sql.Result, error) {
	if err := t.writeRows(); err != nil {
		return nil, err
	}
	if t.pg != nil {
		return t.pg.ExecContext(t.ctx, t.s.bind(q), args...)
	}
	st, err := t.s.batch.stmt(t.ctx, q)
	if err != nil {
		return nil, err
	}
	res, err := st.ExecContext(t.ctx, args...)
	if err == nil {
		n, _ := res.RowsAffected() // SQLite always tells
		t.changed = t.changed || n > 0
	}
	return res, err
}

func (t *tx) query(q string, args ...any) (*sql.Rows, error) {
	if err := t.writeRows(); err != nil {
		return nil, err
	}
	if t.pg != nil {
		return t.pg.QueryContext(t.ctx, t.s.bind(q), args...)
	}
	st, err := t.s.batch.stmt(t.ctx, q)
	if err != nil {
		return nil, err
	}
	return st.QueryContext(t.ctx, args...)
}

func (t *tx) each(scan func(*sql.Rows) error, q string, args ...any) error {
	rows, err := t.query(q, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

func own(t plane.Tx) *tx { return t.(*tx) }

// Write runs fn in one transaction and returns when it is durable. On SQLite
// closures that wait together share a commit, and one that fails takes no other with
// it; on PostgreSQL each has its own transaction. fn must only use the Tx and must
// not call Write. It may run more than once: what counts is its last time.
func (s *Store) Write(ctx context.Context, fn func(plane.Tx) error) error {
	if !s.pg {
		return s.batch.do(ctx, fn)
	}
	for try := 0; ; try++ {
		err := s.writePostgres(ctx, []func(plane.Tx) error{fn})[0]
		if try == deadlockTries || !isDeadlock(err) {
			return err
		}
	}
}

// deadlockTries bounds how often a transaction that the database ended to free
// another is begun again: nothing of it was done.
const deadlockTries = 3

func isDeadlock(err error) bool {
	var pe *pgconn.PgError
	return errors.As(err, &pe) && (pe.Code == "40P01" || pe.Code == "40001")
}

// WriteBehind queues fn to be committed within about 50 ms. A crash may lose
// it; Close does not. It refuses when too much waits.
func (s *Store) WriteBehind(fn func(plane.Tx) error) error { return s.batch.later(fn) }

// writePostgres commits the closures together, each under a savepoint when
// there are several.
func (s *Store) writePostgres(ctx context.Context, fns []func(plane.Tx) error) []error {
	errs := make([]error, len(fns))
	failAll := func(err error) []error {
		for i := range errs {
			if errs[i] == nil {
				errs[i] = unavailable(err)
			}
		}
		return errs
	}
	// A transaction that has begun ends by itself: a cancelled caller must not
	// leave open whether it was committed.
	ctx = context.WithoutCancel(ctx)
	pg, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return failAll(err)
	}
	t := &tx{ctx: ctx, now: s.clock.Now(), s: s, pg: pg}
	for i, fn := range fns {
		if len(fns) > 1 {
			if _, err := pg.ExecContext(ctx, "SAVEPOINT one"); err != nil {
				pg.Rollback()
				return failAll(err)
			}
		}
		said := len(t.calls)
		if errs[i] = run(fn, t); errs[i] != nil {
			t.unfold(said)
			errs[i] = unavailable(errs[i])
			if len(fns) == 1 {
				pg.Rollback()
				return errs
			}
			if _, err := pg.ExecContext(ctx, "ROLLBACK TO SAVEPOINT one"); err != nil {
				pg.Rollback()
				return failAll(err)
			}
		}
	}
	if err := t.flush(); err != nil {
		pg.Rollback()
		return failAll(err)
	}
	if err := pg.Commit(); err != nil {
		return failAll(err)
	}
	s.batch.count(len(fns))
	return errs
}

// run turns a panic of a closure into its error: it must not take the writer,
// and everybody's writes, with it.
func run(fn func(plane.Tx) error, t plane.Tx) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("store: a write panicked: %v", p)
		}
	}()
	return fn(t)
}

// batcher is the writing side: SQLite's one goroutine, and the lazy queue of
// both engines.
type batcher struct {
	s     *Store
	jobs  chan job
	quit  chan struct{}
	done  chan struct{}
	once  sync.Once
	stmts map[string]*sql.Stmt // of conn; used by the goroutine only
	conn  *sql.Conn
	rows  rowWriter // on conn
	last  tx        // whose room the next uses again
	crowd int       // how many wrote at once lately

	mu      sync.Mutex
	closed  bool
	lazy    []job
	armed   bool
	due     bool
	wake    chan struct{}
	commits int64
	writes  int64
	dropped error
}

type job struct {
	fn    func(plane.Tx) error
	done  chan error
	tries int // of what is written behind
}

func newBatcher(s *Store) *batcher {
	b := &batcher{s: s, jobs: make(chan job, maxBatch), quit: make(chan struct{}), done: make(chan struct{}),
		wake: make(chan struct{}, 1), stmts: map[string]*sql.Stmt{}}
	go b.loop()
	return b
}

func (b *batcher) do(ctx context.Context, fn func(plane.Tx) error) error {
	j := job{fn: fn, done: make(chan error, 1)}
	select {
	case b.jobs <- j:
	case <-b.quit:
		return plane.Errorf(plane.Unavailable, "The database is closed.")
	case <-ctx.Done():
		return ctx.Err()
	}
	// Once queued it is awaited: whether it happened must not stay open.
	select {
	case err := <-j.done:
		return unavailable(err)
	case <-b.done:
		select {
		case err := <-j.done:
			return unavailable(err)
		default:
			return plane.Errorf(plane.Unavailable, "The database is closed.")
		}
	}
}

func (b *batcher) close() {
	b.once.Do(func() {
		b.mu.Lock()
		b.closed = true
		b.mu.Unlock()
		close(b.quit)
	})
	<-b.done
}

func (b *batcher) loop() {
	defer close(b.done)
	for {
		select {
		case j := <-b.jobs:
			b.commit(b.gather(j))
		case <-b.wake:
			b.commit(nil)
		case <-b.quit:
			for {
				select {
				case j := <-b.jobs:
					b.commit(b.gather(j))
					continue
				default:
				}
				break
			}
			b.commit(nil)
			for _, st := range b.stmts {
				st.Close()
			}
			b.rows.close()
			if b.conn != nil {
				b.conn.Close()
			}
			return
		}
	}
}

// gather takes what else waits already. Where several wrote at once a moment ago it
// waits a little for the others: a commit costs more than that.
func (b *batcher) gather(first job) []job {
	batch := b.waiting(append(make([]job, 0, 16), first))
	if b.crowd > 1 && len(batch) < b.crowd && !b.s.pg {
		time.Sleep(gatherTime)
		batch = b.waiting(batch)
	}
	b.crowd = max(len(batch), b.crowd-1)
	return batch
}

func (b *batcher) waiting(batch []job) []job {
	for len(batch) < maxBatch {
		select {
		case j := <-b.jobs:
			batch = append(batch, j)
		default:
			return batch
		}
	}
	return batch
}

func (b *batcher) count(writes int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.commits++
	b.writes += int64(writes)
}

// commit writes the batch, and whatever waits lazily, as one transaction.
func (b *batcher) commit(batch []job) {
	batch = append(batch, b.takeLazy(len(batch) == 0)...)
	if len(batch) == 0 {
		return
	}
	var errs []error
	if b.s.pg {
		fns := make([]func(plane.Tx) error, len(batch))
		for i, j := range batch {
			fns[i] = j.fn
		}
		errs = b.s.writePostgres(context.Background(), fns)
	} else {
		errs = b.writeSQLite(batch)
	}
	for i, j := range batch {
		switch {
		case j.done != nil:
			j.done <- errs[i]
		case errs[i] != nil && isOurs(errs[i]) && plane.KindOf(errs[i]) != plane.Unavailable, errs[i] != nil && !b.again(j):
			b.mu.Lock()
			b.dropped = errs[i]
			b.mu.Unlock()
		}
	}
}

// errAgain says that a closure failed half way, so that the batch has to be written
// with a savepoint for each.
var errAgain = errors.New("store: a closure of the batch failed half way")

// writeSQLite commits a batch. Savepoints cost two statements each, and hardly any
// closure fails after it has changed something: only a batch with such a one is
// written again under them.
func (b *batcher) writeSQLite(batch []job) []error {
	errs, err := b.transaction(batch, false)
	if errors.Is(err, errAgain) {
		errs, err = b.transaction(batch, true)
	}
	if err != nil {
		for i := range errs {
			if errs[i] == nil {
				errs[i] = err
			}
		}
	}
	return errs
}

func (b *batcher) transaction(batch []job, savepoints bool) (errs []error, err error) {
	ctx := context.Background()
	errs = make([]error, len(batch))
	defer func() {
		if err != nil {
			b.plain(ctx, "ROLLBACK") // fails when nothing was begun, which is as good
		}
	}()
	if err := b.plain(ctx, "BEGIN IMMEDIATE"); err != nil {
		return errs, err
	}
	t := &tx{ctx: ctx, now: b.s.clock.Now(), s: b.s, conn: b.conn, keeps: !savepoints, calls: b.last.calls, rows: b.last.rows}
	defer func() {
		clear(t.calls)
		clear(t.rows)
		b.last = tx{calls: t.calls[:0], rows: t.rows[:0]}
	}()
	for i, j := range batch {
		if savepoints {
			if err := b.plain(ctx, "SAVEPOINT one"); err != nil {
				return errs, err
			}
		}
		t.changed = false
		said := len(t.calls)
		errs[i] = run(j.fn, t)
		switch {
		case savepoints && errs[i] != nil:
			t.unfold(said)
			if err := b.plain(ctx, "ROLLBACK TO one"); err != nil {
				return errs, err
			}
		case errs[i] != nil && len(batch) == 1:
			return errs, errs[i]
		case errs[i] != nil && (t.changed || !isOurs(errs[i])):
			return make([]error, len(batch)), errAgain
		}
		if savepoints {
			if err := b.plain(ctx, "RELEASE one"); err != nil {
				return errs, err
			}
		}
	}
	if err := t.flush(); err != nil {
		if len(batch) > 1 && !savepoints {
			return make([]error, len(batch)), errAgain // whose it is shows then
		}
		return errs, err
	}
	if err := b.plain(ctx, "COMMIT"); err != nil {
		return errs, err
	}
	b.count(len(batch))
	return errs, nil
}

// isOurs reports a refusal of ours. After any other error SQLite may have ended the
// transaction by itself, so that nothing more may be written into it.
func isOurs(err error) bool {
	var e *plane.Error
	return errors.As(err, &e)
}

func (b *batcher) plain(ctx context.Context, q string) error {
	st, err := b.stmt(ctx, q)
	if err != nil {
		return err
	}
	_, err = st.ExecContext(ctx)
	return err
}

// stmt prepares a statement once on the writing connection.
func (b *batcher) stmt(ctx context.Context, q string) (*sql.Stmt, error) {
	if st, ok := b.stmts[q]; ok {
		return st, nil
	}
	if b.conn == nil {
		conn, err := b.s.write.Conn(ctx)
		if err != nil {
			return nil, err
		}
		b.conn = conn
	}
	st, err := b.conn.PrepareContext(ctx, b.s.bind(q))
	if err != nil {
		return nil, err
	}
	b.stmts[q] = st
	return st, nil
}

// Stats counts commits and the closures in them, for benchmarks and metrics.
type Stats struct{ Commits, Writes int64 }

// Stats returns the counts since Open.
func (s *Store) Stats() Stats {
	s.batch.mu.Lock()
	defer s.batch.mu.Unlock()
	return Stats{s.batch.commits, s.batch.writes}
}

// LostBehind returns the last error of a write behind and clears it.
func (s *Store) LostBehind() error {
	s.batch.mu.Lock()
	defer s.batch.mu.Unlock()
	err := s.batch.dropped
	s.batch.dropped = nil
	return err
}
