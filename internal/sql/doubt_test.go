package sql

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/sql/sqltest"
)

// over returns when a moment has passed.
func over(t testing.TB, at time.Time) {
	t.Helper()
	await(t, "the time passes", func() bool { return time.Now().After(at) })
}

// Expire ends only leases that were tried: of two guarded ones, of which it is to end one at most, neither is deleted.
func TestExpireBeyondWhatWasTried(t *testing.T) {
	t.Parallel()
	server := sqltest.Postgres(t)
	url := initialised(t, server.Database(t))
	db := server.DB(t, url)
	a := openGateway(t, Options{URL: url, Logger: testLog(t)})
	var ends time.Time
	for _, name := range []fencing.Name{"x/1", "x/2"} {
		ends = guardingBeyond(t, db, a, request(name, time.Minute))
	}
	over(t, ends)
	if _, err := a.Expire(t.Context(), 1); err != nil { // it would wait for the guards, and give up
		t.Errorf("nobody is served: %v", err)
	}
}

// Other holders of a shared lock are not held up while the lease of one is over, and guarded: docs/storage/transaction.md says so.
func TestOtherHoldersOfASharedLock(t *testing.T) {
	t.Parallel()
	server := sqltest.Postgres(t)
	url := initialised(t, server.Database(t))
	db := server.DB(t, url)
	a := openGateway(t, Options{URL: url, Logger: testLog(t)})
	one, two := request("shared", time.Minute), request("shared", time.Minute)
	one.Mode, two.Mode = fencing.ModeShared, fencing.ModeShared
	mustDo(t, a, two)
	over(t, guardingBeyond(t, db, a, one))
	if _, err := a.Do(t.Context(), fencing.RenewRequest{Name: "shared", Lease: two.Lease}); err != nil {
		t.Errorf("another holder can't renew: %v", err)
	}
}

// hooked has the answer to the next commit be lost.
type hooked struct {
	*postgresConn
	armed *atomic.Bool
	lost  func()
}

func (h hooked) commit(ctx context.Context, e *entry) error {
	err := h.postgresConn.commit(ctx, e)
	if err == nil && h.armed.CompareAndSwap(true, false) {
		h.lost()
		return fmt.Errorf("%w: lost", errUndecided)
	}
	return err
}

func (h hooked) alone(ctx context.Context, e *entry, behind mark, now fencing.Instant, late time.Duration, tried []fencing.Token) (fencing.Instant, bool, error) {
	at, done, err := h.postgresConn.alone(ctx, e, behind, now, late, tried)
	if err == nil && done && h.armed.CompareAndSwap(true, false) {
		h.lost()
		return 0, false, fmt.Errorf("%w: lost", errUndecided)
	}
	return at, done, err
}

// The answer to a commit is lost in a fail-over, and the entry is found at the promoted server: that is another one, so nothing
// is granted before the quarantine is over, also not by a turn of one message.
func TestAloneAfterFailover(t *testing.T) {
	t.Parallel()
	url := initialised(t, sqltest.Postgres(t).Database(t))
	var armed, promoted atomic.Bool
	o := Options{URL: url, Logger: testLog(t), aloneAfter: time.Millisecond, Quarantine: Quarantine{For: time.Minute}}
	o.server = func(is string) string {
		if promoted.Load() {
			return is + "/promoted"
		}
		return is
	}
	o.wrap = through(func(c connection) connection {
		return hooked{c.(*postgresConn), &armed, func() { promoted.Store(true) }}
	})
	a := openGateway(t, o)
	acquire(t, a, "first", time.Minute)
	armed.Store(true)
	acquire(t, a, "in doubt", time.Minute)
	if !promoted.Load() {
		t.Fatal("no commit was in doubt")
	}
	over(t, time.Now().Add(5*time.Millisecond))
	if _, err := a.Do(t.Context(), request("lost/elsewhere", time.Minute)); code(err) != fencing.CodeQuarantined {
		t.Errorf("a promoted server grants without a quarantine: %v", err)
	}
}

// neverCommitted does not commit, and says nothing of it; after that there is no connection.
type neverCommitted struct {
	*postgresConn
	armed, down *atomic.Bool
}

func (n neverCommitted) commit(ctx context.Context, e *entry) error {
	if n.armed.CompareAndSwap(true, false) {
		n.down.Store(true)
		n.close()
		return fmt.Errorf("%w: lost", errUndecided)
	}
	return n.postgresConn.commit(ctx, e)
}

// neverCommits is for Options.wrap: the database is down from the next commit on.
func neverCommits(armed, down *atomic.Bool) func(database) database {
	return through(func(c connection) connection {
		if down.Load() {
			return nil
		}
		return neverCommitted{c.(*postgresConn), armed, down}
	})
}

// A store that is closed while it is not known what became of a commit writes no snapshot with what was not committed.
func TestSnapshotOfWhatIsNotCommitted(t *testing.T) {
	t.Parallel()
	server := sqltest.Postgres(t)
	url := initialised(t, server.Database(t))
	var armed, down atomic.Bool
	o := Options{URL: url, Logger: testLog(t), aloneAfter: -1}
	o.wrap = neverCommits(&armed, &down)
	a := openGateway(t, o)
	acquire(t, a, "first", time.Minute)
	armed.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = a.Do(ctx, request("not committed", time.Minute))
	}()
	await(t, "a commit is in doubt", func() bool { return down.Load() })
	cancel()
	<-done
	saving, err := newDatabase(url)
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		a.Close()
	}()
	<-a.closing
	// A snapshot that considerSnapshot began in the turn before, and that waits for the mutex.
	a.mu.Lock()
	ahead := a.memory.Applied()
	a.mu.Unlock()
	<-closed
	a.db = saving
	if err := a.save(context.Background(), 0, 0); err != nil {
		t.Log(err)
	}
	var last, snapshot uint64
	if err := server.DB(t, url).QueryRow("select (select max(seq) from fencepost.log), coalesce((select max(seq) from fencepost.snapshot where no = 0), 0)").Scan(&last, &snapshot); err != nil {
		t.Fatal(err)
	}
	if snapshot > last {
		t.Errorf("there is a snapshot as of entry %d, and the last entry is %d; memory was at %d", snapshot, last, ahead)
	}
}

// Who stood still while it wrote a snapshot, and lost the claim, changes nothing in the one that another has written whole.
func TestSnapshotOverwritten(t *testing.T) {
	t.Parallel()
	server := sqltest.Postgres(t)
	url := initialised(t, server.Database(t))
	db := server.DB(t, url)
	a := openGateway(t, Options{URL: url, Logger: testLog(t)})
	b := openGateway(t, Options{URL: url, Logger: testLog(t)})
	acquire(t, a, "first", time.Minute)
	if _, err := b.Stats(t.Context()); err != nil {
		t.Fatal(err)
	}
	slow := connect(t, url)
	if claimed, err := slow.claim(t.Context(), a.gateway); err != nil || !claimed {
		t.Fatal(claimed, err)
	}
	if _, err := db.Exec("update fencepost.snapshotter set until = 'epoch'"); err != nil { // it stands still for long
		t.Fatal(err)
	}
	if err := b.save(t.Context(), 0, 0); err != nil {
		t.Fatal(err)
	}
	seq, _, err := slow.newest(t.Context()) // both write one as of the same entry
	if err != nil {
		t.Fatal(err)
	}
	w := &chunkWriter{ctx: t.Context(), conn: slow, of: a, seq: seq, claimed: time.Now().Add(-time.Hour)}
	if _, err := w.Write([]byte("the first part of its own")); err == nil {
		t.Error("it goes on")
	}
	c, err := Open(t.Context(), Options{URL: url, Logger: testLog(t)})
	if err != nil {
		t.Fatalf("nobody can start any more: %v", err)
	}
	c.Close()
}

// A store can be closed while the database is down and it is not known what became of a commit.
func TestCloseInDoubt(t *testing.T) {
	t.Parallel()
	url := initialised(t, sqltest.Postgres(t).Database(t))
	var armed, down atomic.Bool
	o := Options{URL: url, Logger: testLog(t), aloneAfter: -1}
	o.wrap = neverCommits(&armed, &down)
	a, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	acquire(t, a, "first", time.Minute)
	armed.Store(true)
	go func() { _, _ = a.Do(context.Background(), request("in doubt", time.Minute)) }()
	await(t, "a commit is in doubt", func() bool { return down.Load() })
	a.Close() // panics
}

// A backup is put back, and another gateway that knows of nothing goes on and leaves a snapshot. Who was granted something in
// between finds another entry in the place of its own: that is a loss, whatever the snapshot may have.
func TestLossBehindASnapshot(t *testing.T) {
	t.Parallel()
	server := sqltest.Postgres(t)
	url := initialised(t, server.Database(t))
	o := Options{URL: url, Logger: testLog(t), Quarantine: Quarantine{For: time.Minute}}
	a := openGateway(t, o)
	acquire(t, a, "before", time.Minute)
	db := server.DB(t, url)
	copied := rowsOf(t, db)
	acquire(t, a, "lost", time.Minute)
	a.mu.Lock() // it is cut off for a while
	putBack(t, db, copied)
	if _, err := db.Exec("delete from fencepost.lease where name = 'lost'"); err != nil {
		t.Fatal(err)
	}
	b := openGateway(t, o)
	for _, name := range []fencing.Name{"b/1", "b/2", "b/3", "b/4"} {
		acquire(t, b, name, time.Minute)
	}
	if err := b.Close(); err != nil { // with a snapshot
		t.Fatal(err)
	}
	a.mu.Unlock()
	var last fencing.Code
	await(t, "it answers", func() bool {
		_, err := a.Do(t.Context(), request("lost", time.Minute))
		last = code(err)
		return last != fencing.CodeUnavailable
	})
	if last != fencing.CodeQuarantined || a.Losses() != 1 {
		t.Errorf("a name of which a lease was lost is answered %q, with %d losses", last, a.Losses())
	}
}

// A dump that is restored to the same server while no gateway runs makes the tables anew: who starts then is careful.
func TestRestoredDump(t *testing.T) {
	t.Parallel()
	server := sqltest.Postgres(t)
	url := initialised(t, server.Database(t))
	o := Options{URL: url, Logger: testLog(t), Quarantine: Quarantine{For: time.Minute}}
	before := openGateway(t, o)
	acquire(t, before, "kept", time.Minute)
	if err := before.Close(); err != nil {
		t.Fatal(err)
	}
	db := server.DB(t, url)
	for _, statement := range []string{
		"create table copied as select * from fencepost.log", "drop table fencepost.log",
		"create table fencepost.log (seq bigint primary key, id bigint not null, entry bytea not null)", "insert into fencepost.log select * from copied",
	} {
		if _, err := db.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	after := openGateway(t, o)
	if _, err := after.Do(t.Context(), request("lost", time.Minute)); code(err) != fencing.CodeQuarantined {
		t.Errorf("a name of which a lease may have been lost: %v", err)
	}
}

// An entry of which a byte has changed is carried out by nobody.
func TestDamagedEntry(t *testing.T) {
	t.Parallel()
	server := sqltest.Postgres(t)
	url := initialised(t, server.Database(t))
	o := Options{URL: url, Logger: testLog(t)}
	a := openGateway(t, o)
	acquire(t, a, "a", time.Minute)
	db := server.DB(t, url)
	if _, err := db.Exec("update fencepost.log set entry = set_byte(entry, length(entry) / 2, 1 + get_byte(entry, length(entry) / 2) % 255) where seq = (select max(seq) from fencepost.log)"); err != nil {
		t.Fatal(err)
	}
	if s, err := Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), "not what was written") {
		t.Errorf("it is carried out: %v", err)
		if err == nil {
			s.Close()
		}
	}
}
