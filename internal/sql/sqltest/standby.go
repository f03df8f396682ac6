package sqltest

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"testing"
)

// StartStandby starts a PostgreSQL that follows another, which is one of StartPostgres, and ends
// with the test. It returns when the standby streams. If it is synchronous the primary's commits
// wait for a standby from then on, whichever; they wait for good when there is none.
func StartStandby(t testing.TB, primary *Server, synchronous bool) *Server {
	t.Helper()
	primary.own(t)
	slot := fmt.Sprintf("standby%d", made.Add(1)) // has the primary keep what the standby lacks
	s := endWithTest(t)(postgres.start(&Server{}, func(s *Server) error {
		backup, err := postgresProgram("pg_basebackup")
		if err != nil {
			return err
		}
		err = s.run(backup, "-D", filepath.Join(s.dir, "data"), "-h", "127.0.0.1", "-p", strconv.Itoa(primary.port), "-U", "postgres",
			"-R", "-C", "-S", slot, "-X", "stream", "--checkpoint=fast", "--no-sync")
		if err != nil {
			return err
		}
		// Once it is promoted it has no standby of its own.
		return s.add("data/postgresql.auto.conf", "synchronous_standby_names = ''\n")
	}))
	states := "'sync', 'potential', 'async'"
	if synchronous {
		states = "'sync', 'potential'" // which of several it is, PostgreSQL says
		primary.check(t, primary.set("synchronous_standby_names", "*"))
	}
	primary.check(t, primary.waitFor("SELECT count(*) = 1 FROM pg_stat_replication r JOIN pg_replication_slots l ON l.active_pid = r.pid "+
		"WHERE l.slot_name = '"+slot+"' AND r.state = 'streaming' AND r.sync_state IN ("+states+")"))
	return s
}

// Promote makes a standby a primary. It returns when that writes.
func (s *Server) Promote(t testing.TB) {
	t.Helper()
	s.check(t, s.exec("SELECT pg_promote(false)"))
	s.check(t, s.waitFor("SELECT NOT pg_is_in_recovery()"))
}

// CutOff keeps a standby from its primary: what that commits from then on is lost once the
// standby is promoted. One that is merely paused still has it in its connection.
func (s *Server) CutOff(t testing.TB) {
	t.Helper()
	s.check(t, s.set("primary_conninfo", ""))
	s.check(t, s.waitFor("SELECT count(*) = 0 FROM pg_stat_wal_receiver"))
}

// set changes a setting of PostgreSQL, which then has it.
func (s *Server) set(name, value string) error {
	if err := s.exec(fmt.Sprintf("ALTER SYSTEM SET %s = '%s'", name, value)); err != nil {
		return err
	}
	if err := s.exec("SELECT pg_reload_conf()"); err != nil {
		return err
	}
	return s.waitFor(fmt.Sprintf("SELECT setting = '%s' FROM pg_settings WHERE name = '%s'", value, name))
}

// waitFor waits until a question is answered with true.
func (s *Server) waitFor(question string) error {
	return s.wait(question, func() error {
		var yes bool
		err := s.ask(&yes, question)
		if err == nil && !yes {
			err = errors.New("that is not so")
		}
		return err
	})
}
