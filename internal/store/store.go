// Package store is the SQL of Patchbay, one set of queries for SQLite and
// PostgreSQL. It promises that Write runs its closure in one durable
// transaction or not at all, that concurrent closures on SQLite share commits,
// and that every comparison with the time uses the one the caller passed. It
// decides nothing about who may do what, and speaks no HTTP.
package store

import (
	"cmp"
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"patchbay/internal/plane"
)

//go:embed migrations
var migrations embed.FS

// Options say which database to open.
type Options struct {
	Path  string // of the SQLite file; empty for PostgreSQL
	URL   string // postgres://…
	Dial  func(ctx context.Context, network, addr string) (net.Conn, error)
	Conns int         // PostgreSQL connections; 0 for 16
	Clock plane.Clock // nil for the database's own on PostgreSQL, this machine's on SQLite
	Local plane.Clock // this machine's; nil for the system's
	Lane  string      // of this process in the audit; empty for main
}

// Store is an open database. Close it.
type Store struct {
	pg     bool
	lane   string
	read   *sql.DB
	write  *sql.DB
	locks  *sql.DB // PostgreSQL's, see Lock
	listen *pgx.ConnConfig
	clock  plane.Clock
	batch  *batcher

	rebound sync.Map // query text -> the same for PostgreSQL
	reads   sync.Map // query text -> *sql.Stmt on SQLite's read pool
}

// Open opens the database and brings its schema up to date.
func Open(ctx context.Context, o Options) (*Store, error) {
	s := &Store{pg: o.Path == "", clock: o.Clock, lane: cmp.Or(o.Lane, "main")}
	if o.Local == nil {
		o.Local = plane.SystemClock{}
	}
	ours := &sampled{local: o.Local}
	if s.clock == nil {
		s.clock = o.Local
		if s.pg {
			s.clock = ours
		}
	}
	var err error
	if s.pg {
		err = s.openPostgres(o)
	} else {
		err = s.openSQLite(o)
	}
	if err != nil {
		return nil, plane.Errorf(plane.Unavailable, "The database cannot be opened.").Because(err)
	}
	if err := s.write.PingContext(ctx); err != nil {
		s.write.Close()
		if s.read != s.write {
			s.read.Close()
		}
		return nil, plane.Errorf(plane.Unavailable, "The database does not answer.").Then("Check database in patchbay.yaml: host, port, user and password.").Because(err)
	}
	if err := s.migrate(ctx, o.Path); err != nil {
		s.read.Close()
		if s.write != s.read {
			s.write.Close()
		}
		if plane.KindOf(err) == plane.Gone {
			return nil, err
		}
		return nil, plane.Errorf(plane.Unavailable, "The database's schema cannot be brought up to date.").Because(err)
	}
	s.batch = newBatcher(s)
	if s.clock == plane.Clock(ours) {
		if err := s.sample(ctx, ours); err != nil {
			return nil, errors.Join(plane.Errorf(plane.Unavailable, "The database does not tell its time.").Because(err), s.Close())
		}
		go s.keepTime(ours)
	}
	return s, nil
}

func (s *Store) openSQLite(o Options) error {
	pragmas := "?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=cache_size(-1024)&_pragma=temp_store(2)"
	dsn := "file:" + strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23").Replace(o.Path) + pragmas
	var err error
	if s.write, err = sql.Open("sqlite", dsn+"&_txlock=immediate"); err != nil {
		return err
	}
	s.write.SetMaxOpenConns(1)
	if err := s.write.Ping(); err != nil {
		return errors.Join(err, s.write.Close())
	}
	if s.read, err = sql.Open("sqlite", dsn+"&_pragma=query_only(1)"); err != nil {
		return errors.Join(err, s.write.Close())
	}
	s.read.SetMaxOpenConns(4)
	s.read.SetMaxIdleConns(2)
	return nil
}

func (s *Store) openPostgres(o Options) error {
	cfg, err := pgx.ParseConfig(o.URL)
	if err != nil {
		return errors.New("the database URL cannot be read") // the library's error may hold the password
	}
	if o.Dial != nil {
		cfg.DialFunc = o.Dial
		cfg.LookupFunc = func(_ context.Context, host string) ([]string, error) { return []string{host}, nil }
	}
	// A replica that stands still in the middle of a transaction holds its rows against all
	// others; the database ends it. The URL may say otherwise.
	if _, ok := cfg.RuntimeParams[idleInTransaction]; !ok {
		cfg.RuntimeParams[idleInTransaction] = "10000" // ms
	}
	s.write, s.listen = stdlib.OpenDB(*cfg), cfg
	s.openLocks(func() *sql.DB { return stdlib.OpenDB(*cfg) })
	n := o.Conns
	if n == 0 {
		n = 16
	}
	s.write.SetMaxOpenConns(n)
	s.write.SetMaxIdleConns(n)
	s.read = s.write
	return nil
}

const idleInTransaction = "idle_in_transaction_session_timeout"

// migrate brings the schema up to date. A database that demands a newer program
// is left as it is; a SQLite file is copied before it is changed.
func (s *Store) migrate(ctx context.Context, path string) error {
	dialect, dir := goose.DialectSQLite3, "migrations/sqlite"
	if s.pg {
		dialect, dir = goose.DialectPostgres, "migrations/postgres"
	}
	sub, err := fs.Sub(migrations, dir)
	if err != nil {
		return err
	}
	var options []goose.ProviderOption
	if s.pg { // replicas that start together migrate one after the other
		locker, err := lock.NewPostgresSessionLocker()
		if err != nil {
			return err
		}
		options = append(options, goose.WithSessionLocker(locker))
	}
	p, err := goose.NewProvider(dialect, s.write, sub, options...)
	if err != nil {
		return err
	}
	have, want, err := p.GetVersions(ctx)
	if err != nil {
		return err
	}
	if have > 0 {
		if _, err := s.Changes(ctx); err != nil {
			return err
		}
	}
	if have == want {
		return nil
	}
	if have > 0 && path != "" {
		if err := s.copyTo(ctx, fmt.Sprintf("%s.before-%d", path, want)); err != nil {
			return err
		}
	}
	_, err = p.Up(ctx)
	return err
}

// copyTo writes the SQLite database to another file, in place of an earlier copy.
func (s *Store) copyTo(ctx context.Context, path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600) // as private as what is copied
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	_, err = s.write.ExecContext(ctx, `VACUUM INTO ?`, path)
	return err
}

// Close flushes what waits to be written and closes the database.
func (s *Store) Close() error {
	s.batch.close()
	err := s.write.Close()
	if s.locks != nil {
		err = errors.Join(err, s.locks.Close())
	}
	if s.read != s.write {
		err = errors.Join(err, s.read.Close())
	}
	return err
}

// Kind names the engine.
func (s *Store) Kind() string {
	if s.pg {
		return "postgres"
	}
	return "sqlite"
}

// Ping reports whether the database answers.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.read.PingContext(ctx); err != nil {
		return unavailable(err)
	}
	return nil
}

// bind writes a query for the engine: ? becomes $n, and {share} the lock that
// keeps a row as it was read until the transaction ends.
func (s *Store) bind(q string) string {
	if v, ok := s.rebound.Load(q); ok {
		return v.(string)
	}
	var b strings.Builder
	n := 0
	share := ""
	if s.pg {
		share = "FOR SHARE"
	}
	for _, r := range strings.ReplaceAll(q, "{share}", share) {
		if r == '?' && s.pg {
			n++
			b.WriteString("$" + strconv.Itoa(n))
			continue
		}
		b.WriteRune(r)
	}
	s.rebound.Store(q, b.String())
	return b.String()
}

// query reads outside of any write.
func (s *Store) query(ctx context.Context, q string, args ...any) (*sql.Rows, error) {
	if s.pg {
		return s.read.QueryContext(ctx, s.bind(q), args...)
	}
	st, ok := s.reads.Load(q)
	if !ok {
		prepared, err := s.read.PrepareContext(ctx, s.bind(q))
		if err != nil {
			return nil, err
		}
		if have, loaded := s.reads.LoadOrStore(q, prepared); loaded {
			prepared.Close()
			st = have
		} else {
			st = prepared
		}
	}
	return st.(*sql.Stmt).QueryContext(ctx, args...)
}

// each runs a read and calls scan for every row.
func (s *Store) each(ctx context.Context, scan func(*sql.Rows) error, q string, args ...any) error {
	rows, err := s.query(ctx, q, args...)
	if err != nil {
		return unavailable(err)
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return unavailable(err)
		}
	}
	return unavailable(rows.Err())
}

// one runs a read that must find exactly one row, else not_found.
func (s *Store) one(ctx context.Context, what string, scan func(*sql.Rows) error, q string, args ...any) error {
	found := false
	err := s.each(ctx, func(r *sql.Rows) error { found = true; return scan(r) }, q, args...)
	if err == nil && !found {
		return plane.Errorf(plane.NotFound, "There is no such %s.", what)
	}
	return err
}

// unavailable hides a database error behind a sentence. A plane.Error and nil
// pass as they are.
func unavailable(err error) error {
	var e *plane.Error
	if err == nil || errors.As(err, &e) {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	kind := plane.Unavailable
	if permanent(err) {
		kind = plane.Internal
	}
	return plane.Errorf(kind, "The database did not do what was asked.").Because(err)
}

// permanent reports an error that is ours: the same write would meet it again.
func permanent(err error) bool {
	var se *sqlite.Error
	if errors.As(err, &se) {
		return se.Code()&0xff == sqlite3.SQLITE_CONSTRAINT || se.Code() == sqlite3.SQLITE_MISMATCH || se.Code() == sqlite3.SQLITE_TOOBIG || se.Code() == sqlite3.SQLITE_RANGE
	}
	var pe *pgconn.PgError
	return errors.As(err, &pe) && (strings.HasPrefix(pe.Code, "22") || strings.HasPrefix(pe.Code, "23") || strings.HasPrefix(pe.Code, "42"))
}

// IsUnique reports that err is a violated uniqueness, on either engine.
func IsUnique(err error) bool {
	var se *sqlite.Error
	if errors.As(err, &se) {
		return se.Code() == sqlite3.SQLITE_CONSTRAINT_UNIQUE || se.Code() == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY
	}
	var pe *pgconn.PgError
	return errors.As(err, &pe) && pe.Code == "23505"
}

// exactly wants n rows changed.
func exactly(res sql.Result, err error, n int64, otherwise *plane.Error) error {
	if err != nil {
		return err
	}
	got, err := res.RowsAffected()
	if err != nil {
		return err
	}
	if got != n {
		return otherwise.Because(fmt.Errorf("store: %d rows changed, not %d", got, n))
	}
	return nil
}

func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
