package sql

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/sql/sqltest"
)

// codeOf does something, and returns how it was refused.
func codeOf(t *testing.T, s *Store, op fencing.Op) fencing.Code {
	t.Helper()
	_, err := s.Do(t.Context(), op)
	var refusal *fencing.Error
	if err != nil && !errors.As(err, &refusal) {
		t.Fatalf("%#v: %v", op, err)
	}
	if refusal == nil {
		return ""
	}
	return refusal.Code
}

// A standby that lacks the last commit is promoted: what it has forgotten is granted to nobody until it has run out, what it has can be
// renewed, and tokens go on above those that were lost. A gateway that starts afterwards is as careful, also where nothing was lost.
func TestPromotionForgets(t *testing.T) {
	t.Parallel()
	primary := sqltest.StartPostgres(t)
	standby := sqltest.StartStandby(t, primary, false)
	url := primary.Database(t)
	if _, err := Init(t.Context(), url, Rights{}); err != nil {
		t.Fatal(err)
	}
	url = strings.Replace(url, portOf(primary), portOf(primary)+",127.0.0.1"+portOf(standby), 1)
	open := func() *Store {
		t.Helper()
		s, err := Open(context.Background(), Options{URL: url, Quarantine: Quarantine{For: 3 * time.Second}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	s := open()
	acquire := func(name fencing.Name) fencing.AcquireRequest {
		return fencing.AcquireRequest{Name: name, Lease: fencing.NewLeaseID(time.Now()), TTL: time.Hour, Hold: 1, Stamp: "a"}
	}
	await(t, "an end of the quarantine of a new store", func() bool { return codeOf(t, s, acquire("first")) == "" })
	kept := acquire("kept")
	mustDo(t, s, kept)
	db := primary.DB(t, strings.Replace(url, ",127.0.0.1"+portOf(standby), "", 1))
	await(t, "a standby that has it all", func() (has bool) {
		if err := db.QueryRow("select coalesce(bool_and(replay_lsn = pg_current_wal_lsn()), false) from pg_stat_replication").Scan(&has); err != nil {
			t.Fatal(err)
		}
		return has
	})
	standby.CutOff(t)
	lost := acquire("lost")
	token := mustDo(t, s, lost).Holder.Token
	primary.Kill(t)
	standby.Promote(t)

	await(t, "the promoted standby", func() bool {
		return codeOf(t, s, fencing.RenewRequest{Name: kept.Name, Lease: kept.Lease, TTL: time.Hour}) == ""
	})
	if code := codeOf(t, s, acquire("lost")); code != fencing.CodeQuarantined {
		t.Errorf("what was forgotten is answered %q", code)
	}
	if code := codeOf(t, s, fencing.RenewRequest{Name: lost.Name, Lease: lost.Lease, TTL: time.Hour}); code != fencing.CodeLeaseLost {
		t.Errorf("a renewal of it is answered %q", code)
	}
	if code := codeOf(t, open(), acquire("lost")); code != fencing.CodeQuarantined {
		t.Errorf("a gateway that starts answers %q", code)
	}
	if s.Losses() != 1 {
		t.Errorf("%d losses", s.Losses())
	}
	await(t, "an end of the quarantine", func() bool { return codeOf(t, s, acquire("other")) == "" })
	if next := mustDo(t, s, acquire("lost")).Holder.Token; next <= token {
		t.Errorf("token %d after %d", next, token)
	}
}

// A standby that has everything is promoted while no gateway runs: the one that starts then can't know that nothing was lost. A restart
// of the same server is no reason for it.
func TestStartAfterPromotion(t *testing.T) {
	t.Parallel()
	primary := sqltest.StartPostgres(t)
	url := primary.Database(t)
	if _, err := Init(t.Context(), url, Rights{}); err != nil {
		t.Fatal(err)
	}
	acquire := func(url string, name fencing.Name) fencing.Code {
		t.Helper()
		s, err := Open(context.Background(), Options{URL: url})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		return codeOf(t, s, fencing.AcquireRequest{Name: name, Lease: fencing.NewLeaseID(time.Now()), TTL: time.Minute, Hold: 1, Stamp: "a"})
	}
	if code := acquire(url, "a"); code != "" {
		t.Errorf("a new store answers %q", code)
	}
	primary.Kill(t)
	primary.Restart(t)
	if code := acquire(url, "b"); code != "" {
		t.Errorf("after a crash an acquire is answered %q", code)
	}
	standby := sqltest.StartStandby(t, primary, true)
	primary.Stop(t)
	standby.Promote(t)
	if code := acquire(strings.Replace(url, portOf(primary), portOf(standby), 1), "c"); code != fencing.CodeQuarantined {
		t.Errorf("after a promotion an acquire is answered %q", code)
	}
}

// A snapshot takes the place of the log up to its last entry, and nobody takes that for a loss: neither who has carried out that one
// last, nor who lags.
func TestSnapshotIsNoLoss(t *testing.T) {
	t.Parallel()
	url := initialised(t, sqltest.Postgres(t).Database(t))
	open := func() *Store {
		t.Helper()
		s, err := Open(context.Background(), Options{URL: url})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	idle, busy := open(), open()
	defer idle.Close()
	acquire := func(s *Store, name fencing.Name) {
		t.Helper()
		mustDo(t, s, fencing.AcquireRequest{Name: name, Lease: fencing.NewLeaseID(time.Now()), TTL: time.Minute, Hold: 1, Stamp: "a"})
	}
	for _, name := range []fencing.Name{"a", "b", "c"} {
		acquire(busy, name)
		if stats, err := idle.Stats(t.Context()); err != nil || stats.Quarantine != 0 {
			t.Fatal(stats, err)
		}
		if err := busy.Close(); err != nil { // with a snapshot
			t.Fatal(err)
		}
		if stats, err := idle.Stats(t.Context()); err != nil || stats.Quarantine != 0 || idle.Losses() != 0 {
			t.Fatal(stats, idle.Losses(), err)
		}
		busy = open()
	}
	defer busy.Close()
	acquire(idle, "d")
	acquire(busy, "e")
}
