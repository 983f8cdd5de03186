package app_test

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"patchbay/internal/command"
)

// The audit shows an edit and a gap, in whatever lane, and is handed on as CSV.
func TestTheAuditIsSealed(t *testing.T) {
	m := newPlain(t)
	s := start(t, "", upConfig(m))
	for range 3 {
		if _, err := s.callTool("up", "a"); err != nil {
			t.Fatal(err)
		}
	}
	verify := func() command.AuditVerified {
		t.Helper()
		var v command.AuditVerified
		if err := s.do("audit.verify", command.VerifyInput{}, &v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	within(t, 10*time.Second, "the calls on record", func() bool {
		var l command.AuditList
		err := s.do("audit.list", command.AuditInput{Action: "call", Limit: 10}, &l)
		return err == nil && len(l.Entries) == 3 && l.Entries[0].Decision == "succeeded" && len(l.Entries[0].Digest) == 64
	})
	if v := verify(); !v.OK || len(v.Lanes) != 1 || v.Lanes[0].Open != 0 || v.Lanes[0].Entries < 3 || v.Lanes[0].HeadHash == "" {
		t.Fatalf("%+v", v)
	}
	for range 3 { // a checkpoint each
		s.agentToken("general")
		verify()
	}
	var l command.AuditList
	if err := s.do("audit.list", command.AuditInput{Action: "call", Since: "1h", Limit: 1, Format: "csv"}, &l); err != nil || len(l.Entries) != 1 {
		t.Fatalf("%+v %v", l, err)
	}
	var b strings.Builder
	l.Text(&b, command.Style{})
	if lines := strings.Split(strings.TrimSpace(b.String()), "\n"); len(lines) != 2 || !strings.HasPrefix(lines[0], "id,lane,at,who") || !strings.Contains(lines[1], ",succeeded,") {
		t.Errorf("%s", b.String())
	}
	for what, q := range map[string]string{
		"an edit":                    `UPDATE audit SET decision = 'deny' WHERE id = (SELECT MAX(id) FROM audit WHERE action = 'token.create')`,
		"a call that went otherwise": `UPDATE audit SET decision = CASE action WHEN 'call' THEN 'failed' ELSE decision END, what = replace(what, char(9) || 'succeeded' || char(9), char(9) || 'failed' || char(9)) WHERE action IN ('call', 'calls')`,
		"a gap":                      `DELETE FROM audit WHERE id = (SELECT MIN(id) FROM audit WHERE lane = 'main')`,
		"a checkpoint that is gone":  `DELETE FROM checkpoints WHERE n = (SELECT MAX(n) - 1 FROM checkpoints)`,
		"a front that is cut":        `DELETE FROM audit WHERE id <= (SELECT last FROM checkpoints WHERE n = 2); DELETE FROM checkpoints WHERE n < 2`,
		"an entry in between":        `INSERT INTO audit SELECT lane, id || '0', at, 'mallory', action, what, decision, digest, seal FROM audit WHERE id = (SELECT MIN(id) FROM audit)`,
		"a forged checkpoint":        `UPDATE checkpoints SET entries = entries + 1 WHERE n = (SELECT MAX(n) FROM checkpoints)`,
	} {
		s.stop()
		undo := tamper(t, s.dir, q)
		s = start(t, s.dir, upConfig(m))
		if v := verify(); v.OK || len(v.Faults) == 0 {
			t.Errorf("%s does not show: %+v", what, v)
		}
		s.stop()
		undo()
		s = start(t, s.dir, upConfig(m))
		if v := verify(); !v.OK {
			t.Fatalf("%s, put back: %+v", what, v.Faults)
		}
	}
}

// What was cut off while a process runs is not signed again, however it is written.
func TestARewrittenEndIsNotSealed(t *testing.T) {
	m := newPlain(t)
	s := start(t, "", upConfig(m))
	for range 3 {
		s.agentToken("general")
		if err := s.do("audit.verify", command.VerifyInput{}, &command.AuditVerified{}); err != nil {
			t.Fatal(err)
		}
	}
	db, err := sql.Open("sqlite", "file:"+filepath.Join(s.dir, "d", "patchbay.db")+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(`DELETE FROM checkpoints WHERE n = (SELECT MAX(n) FROM checkpoints); UPDATE audit SET who = 'mallory' WHERE id = (SELECT MAX(id) FROM audit)`); err != nil {
		t.Fatal(err)
	}
	var v command.AuditVerified
	if err := s.do("audit.verify", command.VerifyInput{}, &v); err != nil || v.OK || !strings.Contains(fmt.Sprint(v.Faults), "which is gone") {
		t.Errorf("%+v %v", v, err)
	}
	if !strings.Contains(s.log.String(), "cut or rewritten") {
		t.Errorf("nobody is told: %s", s.log)
	}
}
