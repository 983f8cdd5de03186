package store

import (
	"context"
	"database/sql"
	"time"

	"patchbay/internal/plane"
)

const chatColumns = `id, kind, body, "by", channel, run, message, attempts, owner, at`

// AddChatWork writes work down; one of that id is there already when it reports false.
func (s *Store) AddChatWork(t plane.Tx, w *plane.ChatWork) (bool, error) {
	x := own(t)
	res, err := x.exec(`INSERT INTO chat_work (`+chatColumns+`, state, lease_until) VALUES (?, ?, ?, ?, ?, ?, ?, 0, '', ?, 'open', 0) ON CONFLICT (id) DO NOTHING`,
		w.ID, w.Kind, w.Body, w.By, w.Channel, w.Run, w.Message, plane.Micros(x.now))
	return affected(res, err)
}

func affected(res sql.Result, err error) (bool, error) {
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n == 1, err
}

// ClaimChatWork takes up to limit works that nobody holds, oldest first.
func (s *Store) ClaimChatWork(ctx context.Context, owner string, until time.Time, limit int) (out []plane.ChatWork, err error) {
	due := false // most of the time nothing is, and nobody need write
	if err := s.each(ctx, func(r *sql.Rows) error { due = true; return nil }, `SELECT 1 FROM chat_work WHERE state = 'open' AND lease_until < ? LIMIT 1`, plane.Micros(s.Clock().Now())); err != nil || !due {
		return nil, err
	}
	err = s.Write(ctx, func(t plane.Tx) error {
		x := own(t)
		var ids []string
		err := x.each(func(r *sql.Rows) error {
			var id string
			err := r.Scan(&id)
			ids = append(ids, id)
			return err
		}, `SELECT id FROM chat_work WHERE state = 'open' AND lease_until < ? ORDER BY at, id LIMIT ?`, plane.Micros(x.now), limit)
		out = nil
		for _, id := range ids {
			won, uerr := affected(x.exec(`UPDATE chat_work SET owner = ?, lease_until = ?, attempts = attempts + 1 WHERE id = ? AND state = 'open' AND lease_until < ?`,
				owner, plane.Micros(until), id, plane.Micros(x.now)))
			if uerr != nil {
				return uerr
			}
			if !won {
				continue
			}
			err = x.each(func(r *sql.Rows) error {
				w, err := scanChatWork(r)
				out = append(out, w)
				return err
			}, `SELECT `+chatColumns+` FROM chat_work WHERE id = ?`, id)
		}
		return err
	})
	return out, err
}

// SaveChatWork keeps a work's run and message, as long as its owner holds it; else it is a
// conflict.
func (s *Store) SaveChatWork(t plane.Tx, w *plane.ChatWork) error {
	won, err := affected(own(t).exec(`UPDATE chat_work SET run = ?, message = ? WHERE id = ? AND owner = ? AND state = 'open'`, w.Run, w.Message, w.ID, w.Owner))
	if err == nil && !won {
		err = plane.Errorf(plane.Conflict, "Another replica has taken the message over.")
	}
	return err
}

// EndChatWork ends a work and forgets what it said; false when its owner holds it no more.
func (s *Store) EndChatWork(t plane.Tx, w *plane.ChatWork) (bool, error) {
	return affected(own(t).exec(`UPDATE chat_work SET state = 'done', body = ? WHERE id = ? AND owner = ? AND state = 'open'`, []byte{}, w.ID, w.Owner))
}

// HoldChatWork lengthens the leases of an owner's works.
func (s *Store) HoldChatWork(t plane.Tx, owner string, until time.Time) error {
	_, err := own(t).exec(`UPDATE chat_work SET lease_until = ? WHERE owner = ? AND state = 'open'`, plane.Micros(until), owner)
	return err
}

// ReleaseChatWork gives an owner's works back to whoever goes on at once.
func (s *Store) ReleaseChatWork(t plane.Tx, owner string) error {
	_, err := own(t).exec(`UPDATE chat_work SET lease_until = 0, owner = '', attempts = attempts - 1 WHERE owner = ? AND state = 'open'`, owner)
	return err
}

// DeferChatWork leaves a work for later.
func (s *Store) DeferChatWork(t plane.Tx, w *plane.ChatWork, until time.Time) error {
	_, err := own(t).exec(`UPDATE chat_work SET lease_until = ?, owner = '' WHERE id = ? AND owner = ? AND state = 'open'`, plane.Micros(until), w.ID, w.Owner)
	return err
}

// ChatWorkOfRun is the work that follows a run.
func (s *Store) ChatWorkOfRun(ctx context.Context, run plane.RunID) (plane.ChatWork, error) {
	return s.chatWork(ctx, `run <> '' AND run = ?`, run)
}

// ChatWorkOfMessage is the work that a message of ours belongs to.
func (s *Store) ChatWorkOfMessage(ctx context.Context, channel, message string) (plane.ChatWork, error) {
	return s.chatWork(ctx, `message <> '' AND message = ? AND channel = ?`, message, channel)
}

// ChatWorkByID is the work of an event.
func (s *Store) ChatWorkByID(ctx context.Context, id string) (plane.ChatWork, error) {
	return s.chatWork(ctx, `id = ?`, id)
}

func (s *Store) chatWork(ctx context.Context, cond string, args ...any) (w plane.ChatWork, err error) {
	found := false
	err = s.each(ctx, func(r *sql.Rows) (err error) {
		w, err = scanChatWork(r)
		found = true
		return err
	}, `SELECT `+chatColumns+` FROM chat_work WHERE `+cond, args...)
	if err == nil && !found {
		err = plane.Errorf(plane.NotFound, "No message of Slack's belongs to that.")
	}
	return w, err
}

func scanChatWork(r *sql.Rows) (w plane.ChatWork, err error) {
	var at int64
	err = r.Scan(&w.ID, &w.Kind, &w.Body, &w.By, &w.Channel, &w.Run, &w.Message, &w.Attempts, &w.Owner, &at)
	w.At = plane.FromMicros(at)
	return w, err
}

const cardColumns = `hash, subject, asked, channel, message, state, at`

// AddChatCard writes a card down; false when that person is asked about that already.
func (s *Store) AddChatCard(t plane.Tx, c *plane.ChatCard) (bool, error) {
	x := own(t)
	return affected(x.exec(`INSERT INTO chat_cards (`+cardColumns+`) VALUES (?, ?, ?, ?, ?, 'open', ?) ON CONFLICT (subject, asked) DO NOTHING`,
		c.Hash, c.Subject, c.Asked, c.Channel, c.Message, plane.Micros(x.now)))
}

// PostedChatCard keeps where a card stands.
func (s *Store) PostedChatCard(t plane.Tx, c *plane.ChatCard) error {
	_, err := own(t).exec(`UPDATE chat_cards SET channel = ?, message = ? WHERE hash = ?`, c.Channel, c.Message, c.Hash)
	return err
}

// DropChatCard forgets a card that was not posted, so that its question is asked again.
func (s *Store) DropChatCard(t plane.Tx, hash string) error {
	_, err := own(t).exec(`DELETE FROM chat_cards WHERE hash = ? AND message = ''`, hash)
	return err
}

// EndChatCard ends a card: false when it was over already.
func (s *Store) EndChatCard(t plane.Tx, hash string) (bool, error) {
	return affected(own(t).exec(`UPDATE chat_cards SET state = 'over' WHERE hash = ? AND state = 'open'`, hash))
}

// ChatCards are the cards of a hash or, with "", all that are open, oldest first.
func (s *Store) ChatCards(ctx context.Context, hash string) (out []plane.ChatCard, err error) {
	err = s.each(ctx, func(r *sql.Rows) error {
		var c plane.ChatCard
		var at int64
		err := r.Scan(&c.Hash, &c.Subject, &c.Asked, &c.Channel, &c.Message, &c.State, &at)
		c.At = plane.FromMicros(at)
		out = append(out, c)
		return err
	}, `SELECT `+cardColumns+` FROM chat_cards WHERE hash = ? OR ? = '' AND state = 'open' ORDER BY at, hash LIMIT 2000`, hash, hash)
	return out, err
}

// SweepChat forgets what was over before a time.
func (s *Store) SweepChat(ctx context.Context, before time.Time) error {
	if err := s.sweep(ctx, `DELETE FROM chat_work WHERE id IN (SELECT id FROM chat_work WHERE state = 'done' AND at < ? LIMIT ?)`, plane.Micros(before), sweepMost); err != nil {
		return err
	}
	return s.sweep(ctx, `DELETE FROM chat_cards WHERE hash IN (SELECT hash FROM chat_cards WHERE at < ? LIMIT ?)`, plane.Micros(before), sweepMost)
}
