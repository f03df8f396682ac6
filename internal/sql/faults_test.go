package sql

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/seed"
	"fencepost/internal/sql/sqltest"
)

// Backends are killed under load, at flushes, commits, and anywhere. What became of each commit is found out; nobody has a name
// beside another one, and all gateways come to the same.
func TestKilledBackends(t *testing.T) {
	t.Parallel()
	server := sqltest.Postgres(t)
	url := initialised(t, server.Database(t))
	o := Options{URL: url, Logger: testLog(t), aloneAfter: time.Millisecond}
	a, b := openGateway(t, o), openGateway(t, o)
	w := startWork(t, 16, 8, a, b)
	db := server.DB(t, url)
	kills, most := 0, int(seed.Number(t, "FENCEPOST_KILLS", 60))
	for deadline := time.Now().Add(time.Minute + time.Duration(most)*100*time.Millisecond); kills < most && time.Now().Before(deadline); {
		var n int
		err := db.QueryRowContext(t.Context(), `select count(*) from (select pg_terminate_backend(pid) from pg_stat_activity
			where application_name = 'fencepost' and datname = current_database() and state <> 'idle' and query like $1 limit 1) k`,
			[]string{"commit%", "%turn_alone%", "%append%", "%"}[kills%4]).Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		kills += n
	}
	w.end()
	t.Logf("%d backends killed", kills)
	if kills == 0 || w.granted.Load() == 0 {
		t.Error("nothing was killed, or granted")
	}
	theSame(t, o, a, b)
}

// A server that crashes and is started again has forgotten nothing: nothing is in quarantine.
func TestSystemCrashedServer(t *testing.T) {
	t.Parallel()
	server := sqltest.StartPostgres(t)
	url := initialised(t, server.Database(t))
	o := Options{URL: url, Logger: testLog(t)}
	a, b := openGateway(t, o), openGateway(t, o)
	w := startWork(t, 8, 4, a, b)
	for range 2 {
		enough := w.granted.Load() + 50
		await(t, "the work goes on", func() bool { return w.granted.Load() >= enough })
		server.Kill(t)
		server.Restart(t)
	}
	enough := w.granted.Load() + 50
	await(t, "the work goes on", func() bool { return w.granted.Load() >= enough })
	w.end()
	theSame(t, o, a, b)
	stats, err := a.Stats(t.Context())
	if err != nil || stats.Quarantine != 0 || a.Losses()+b.Losses() != 0 {
		t.Errorf("after a crash: %+v, %d and %d losses, %v", stats, a.Losses(), b.Losses(), err)
	}
}

// twoHosts returns the URL of a database at one of two servers, whichever is the primary.
func twoHosts(url string, first, second *sqltest.Server) string {
	port := func(s *sqltest.Server) string { return "127.0.0.1:" + itoa(s.Port()) }
	return strings.Replace(url, port(first), port(first)+","+port(second), 1) + "&target_session_attrs=read-write"
}

// An asynchronous standby that is promoted has forgotten grants: nothing is granted while somebody may believe in one, and tokens go on.
func TestSystemPromotedStandby(t *testing.T) {
	t.Parallel()
	primary := sqltest.StartPostgres(t)
	url := initialised(t, primary.Database(t))
	standby := sqltest.StartStandby(t, primary, false)
	o := Options{URL: twoHosts(url, primary, standby), Logger: testLog(t), Quarantine: Quarantine{For: 4 * time.Second}}
	a, b := openGateway(t, o), openGateway(t, o)
	first := acquire(t, a, "kept", time.Minute)
	await(t, "the standby has it", func() bool { return caughtUp(t, primary) })
	standby.CutOff(t)
	lost := acquire(t, a, "lost", 3*time.Second)
	primary.Kill(t)
	standby.Promote(t)
	for _, s := range []*Store{b, a} { // b has not seen what a was granted last
		await(t, "it is refused", func() bool {
			_, err := s.Do(t.Context(), request("lost", time.Second))
			if err == nil {
				t.Fatal("a name is granted of which a lease was lost")
			}
			return code(err) == fencing.CodeQuarantined
		})
	}
	if _, err := a.Do(t.Context(), fencing.RenewRequest{Name: "kept", Lease: first.lease}); err != nil {
		t.Errorf("a lease that was not lost can't be renewed: %v", err)
	}
	if a.Losses() == 0 {
		t.Error("the gateway that was granted something has not noticed that it was lost")
	}
	fresh := openGateway(t, o)
	await(t, "it is granted again", func() bool {
		out, err := fresh.Do(t.Context(), request("lost", time.Second))
		if err == nil && (out.Holder.Token <= lost.token || time.Now().Before(lost.asked.Add(3*time.Second))) {
			t.Errorf("granted with token %d after %d, %s after the lost grant", out.Holder.Token, lost.token, time.Since(lost.asked))
		}
		return err == nil
	})
}

// What a synchronous standby has not confirmed was not granted: when it is promoted nobody has a name twice.
func TestSystemPromotedSynchronousStandby(t *testing.T) {
	t.Parallel()
	primary := sqltest.StartPostgres(t)
	url := initialised(t, primary.Database(t))
	standby := sqltest.StartStandby(t, primary, true)
	o := Options{URL: twoHosts(url, primary, standby), Logger: testLog(t), Quarantine: Quarantine{Off: true}}
	a, b := openGateway(t, o), openGateway(t, o)
	w := startWork(t, 8, 4, a, b)
	await(t, "the work goes on", func() bool { return w.granted.Load() >= 100 })
	primary.Kill(t)
	standby.Promote(t)
	enough := w.granted.Load() + 100
	await(t, "the work goes on", func() bool { return w.granted.Load() >= enough })
	w.end()
	if a.Losses()+b.Losses() != 0 {
		t.Errorf("%d and %d losses", a.Losses(), b.Losses())
	}
	theSame(t, o, a, b)
}

// A backup that is put back under running gateways is noticed.
func TestRestoredBackup(t *testing.T) {
	t.Parallel()
	server := sqltest.Postgres(t)
	url := initialised(t, server.Database(t))
	o := Options{URL: url, Logger: testLog(t), Quarantine: Quarantine{For: time.Second}}
	a := openGateway(t, o)
	acquire(t, a, "before", time.Minute)
	db := server.DB(t, url)
	copied := rowsOf(t, db)
	lost := acquire(t, a, "lost", time.Minute)
	putBack(t, db, copied)
	await(t, "it is refused", func() bool {
		_, err := a.Do(t.Context(), request("lost", time.Second))
		if err == nil {
			t.Fatal("a name is granted of which a lease was lost")
		}
		return code(err) == fencing.CodeQuarantined
	})
	await(t, "it is granted again", func() bool {
		out, err := a.Do(t.Context(), request("lost", time.Second))
		if err == nil && out.Holder.Token <= lost.token {
			t.Errorf("granted with token %d after %d", out.Holder.Token, lost.token)
		}
		return err == nil
	})
	if a.Losses() != 1 {
		t.Errorf("%d losses", a.Losses())
	}
	theSame(t, o, a)
}

type logRow struct {
	seq, id int64
	entry   []byte
}

func rowsOf(t *testing.T, db *sql.DB) (all []logRow) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), "select seq, id, entry from fencepost.log")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var r logRow
		if err := rows.Scan(&r.seq, &r.id, &r.entry); err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

func putBack(t *testing.T, db *sql.DB, rows []logRow) {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(t.Context(), "select 1 from fencepost.store for update"); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.ExecContext(t.Context(), "delete from fencepost.log"); err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if _, err := tx.ExecContext(t.Context(), "insert into fencepost.log values ($1, $2, $3)", r.seq, r.id, r.entry); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

// A gateway that stands still in its turn holds all others up until the database throws it out.
func TestStalledGateway(t *testing.T) {
	t.Parallel()
	server := sqltest.Postgres(t)
	url := initialised(t, server.Database(t))
	o := Options{URL: url, Logger: testLog(t)}
	a := openGateway(t, o)
	acquire(t, a, "a", time.Minute)
	db, err := newDatabase(url)
	if err != nil {
		t.Fatal(err)
	}
	stalled, err := db.connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer stalled.close()
	if _, err := stalled.begin(t.Context(), 0, nil); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	acquire(t, a, "b", time.Minute)
	if took := time.Since(began); took < stall/2 {
		t.Errorf("it was not held up, but answered after %s", took)
	}
	if err := stalled.commit(context.Background(), &entry{logged: logged{seq: 99, id: 1}}); err == nil || errors.Is(err, nil) {
		t.Error("the one that stood still has gone on")
	}
	theSame(t, o, a)
}

// Whatever the database refuses to write is not granted, and can be asked for again.
func TestRefusedWrites(t *testing.T) {
	t.Parallel()
	server := sqltest.Postgres(t)
	url := initialised(t, server.Database(t))
	o := Options{URL: url, Logger: testLog(t)}
	a := openGateway(t, o)
	acquire(t, a, "before", time.Minute)
	db := server.DB(t, url)
	for _, statement := range []string{
		"create function full_disk() returns trigger language plpgsql as $$ begin raise exception 'could not extend file: No space left on device' using errcode = '53100'; end $$",
		"create trigger full_disk before insert on fencepost.log for each row execute function full_disk()",
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	_, err := a.Do(t.Context(), request("full", time.Minute))
	if code(err) != fencing.CodeUnavailable || !strings.Contains(err.Error(), "No space left") {
		t.Errorf("with a full disk: %v", err)
	}
	out, err := a.Do(t.Context(), fencing.InspectRequest{Name: "full"})
	if err != nil || out.Lock.Held() {
		t.Errorf("what was refused is shown as held: %+v, %v", out.Lock, err)
	}
	if _, err := db.ExecContext(t.Context(), "drop trigger full_disk on fencepost.log"); err != nil {
		t.Fatal(err)
	}
	acquire(t, a, "full", time.Minute)
	theSame(t, o, a)
}

// Snapshots are written and the log is cut while two gateways work.
func TestSnapshots(t *testing.T) {
	t.Parallel()
	server := sqltest.Postgres(t)
	url := initialised(t, server.Database(t))
	o := Options{URL: url, Logger: testLog(t), snapshotAt: 50_000}
	a, b := openGateway(t, o), openGateway(t, o)
	w := startWork(t, 16, 200, a, b)
	db := server.DB(t, url)
	number := func(query string) (n int64) {
		if err := db.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	all, last := []*Store{a, b}, int64(0)
	for range 5 {
		await(t, "a snapshot is written, and the log cut", func() bool {
			cut := number("select coalesce(min(seq), 0) from fencepost.log")
			if cut <= last+1 {
				return false
			}
			last = cut
			return true
		})
		all = append(all, openGateway(t, o)) // from that snapshot
	}
	w.end()
	theSame(t, o, all...)
	if n := number("select count(distinct seq) from fencepost.snapshot"); n > 2 {
		t.Errorf("%d snapshots are kept", n)
	}
}

func TestThroughPgBouncer(t *testing.T) {
	t.Parallel()
	pooler := sqltest.StartPgBouncer(t, sqltest.Postgres(t))
	o := Options{URL: initialised(t, pooler.Database(t)), Logger: testLog(t), aloneAfter: time.Millisecond}
	a, b := openGateway(t, o), openGateway(t, o)
	w := startWork(t, 16, 8, a, b)
	await(t, "the work goes on", func() bool { return w.granted.Load() >= 500 })
	w.end()
	if n := w.unavailable.Load(); n > 0 {
		t.Errorf("%d times unavailable", n)
	}
	theSame(t, o, a, b)
}

// A commit that waits for a synchronous standby, and whose wait an administrator cancels (pg_cancel_backend), is there, and perhaps not at
// the standby: the server says so by a warning. It is not answered before another one got through.
func TestSystemCancelledWaitForStandby(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"notice", "error"} { // of what clients are told by default
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			cancelWaitForStandby(t, level)
		})
	}
}

func cancelWaitForStandby(t *testing.T, level string) {
	primary := sqltest.StartPostgres(t)
	url := initialised(t, primary.Database(t))
	standby := sqltest.StartStandby(t, primary, true)
	db := primary.DB(t, url)
	if _, err := db.Exec("alter database " + databaseOf(t, url) + " set client_min_messages = " + level); err != nil {
		t.Fatal(err)
	}
	a := openGateway(t, Options{URL: url, Logger: testLog(t)})
	acquire(t, a, "first", time.Minute)
	standby.CutOff(t)
	done := make(chan error, 1)
	go func() {
		_, err := a.Do(t.Context(), request("x", time.Minute))
		done <- err
	}()
	cancelled := 0
	await(t, "the commit waits for the standby", func() bool {
		if err := db.QueryRow("select count(pg_cancel_backend(pid)) from pg_stat_activity where wait_event = 'SyncRep' and application_name = 'fencepost'").Scan(&cancelled); err != nil {
			t.Fatal(err)
		}
		return cancelled > 0
	})
	select {
	case err := <-done:
		if err == nil {
			t.Error("it is answered as granted, and no standby has it")
		}
	case <-time.After(2 * time.Second):
	}
	if _, err := db.Exec("alter system reset synchronous_standby_names"); err != nil { // so that all ends
		t.Fatal(err)
	}
	if _, err := db.Exec("select pg_reload_conf()"); err != nil {
		t.Fatal(err)
	}
}
