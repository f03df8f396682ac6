package sql

import (
	"bytes"
	"context"
	stdsql "database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/sql/sqltest"
)

// connect opens a connection that ends with the test.
func connect(t testing.TB, url string) connection {
	t.Helper()
	db, err := newDatabase(url)
	if err != nil {
		t.Fatal(err)
	}
	return connectTo(t, db)
}

func connectTo(t testing.TB, db database) connection {
	t.Helper()
	c, err := db.connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	return c
}

// servers are the databases of which there is one for all tests.
var servers = map[string]func(testing.TB) *sqltest.Server{"PostgreSQL": sqltest.Postgres, "MariaDB": sqltest.MariaDB}

func onBothPlaces(t *testing.T, test func(t *testing.T, place *place)) {
	for name, server := range servers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newPlace(t, server(t)))
		})
	}
}

func someRow(token fencing.Token, owner string) row {
	return row{name: fencing.Name(fmt.Sprintf("name/%d", token)), relabelled: true, Holder: fencing.Holder{
		Token: token, Lease: fencing.LeasePublic(fmt.Sprintf("lease%d", token)), Owner: owner, Mode: fencing.ModeExclusive, Slot: fencing.NoSlot,
		AcquiredAt: fencing.InstantOf(time.Date(2026, 1, 1, 0, 0, 0, 1000, time.UTC)), ExpiresAt: fencing.InstantOf(time.Date(2026, 1, 1, 0, 0, 9, 0, time.UTC)),
	}}
}

// again returns a row that is there already.
func again(r row) row {
	r.renewed = true
	return r
}

// commitTurn has a turn of its own change rows.
func commitTurn(t testing.TB, c connection, seq uint64, tried, ended []fencing.Token, changed ...row) (held []fencing.Token) {
	t.Helper()
	b, err := c.begin(t.Context(), 0, tried)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.commit(t.Context(), &entry{logged: logged{seq: seq, id: newID([]byte("entry")), data: []byte("entry")}, ended: ended, changed: changed}); err != nil {
		t.Fatal(err)
	}
	return b.held
}

func wantLeases(t testing.TB, place *place, want ...row) {
	t.Helper()
	var texts []string
	for i := range want {
		texts = append(texts, want[i].String())
	}
	got := place.leases(t, place.db)
	slices.Sort(got)
	slices.Sort(texts)
	if !slices.Equal(got, texts) {
		t.Errorf("rows\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(texts, "\n"))
	}
}

// A transaction that guards a lease holds nothing else up: the tables are so small that the server would rather read them whole than
// use a key.
func TestGuardedRowHoldsUpNoOther(t *testing.T) {
	onBothPlaces(t, func(t *testing.T, place *place) {
		c := connect(t, place.url)
		commitTurn(t, c, 1, nil, nil, someRow(1, "a"), someRow(2, "b"), someRow(3, "c"), someRow(5, "e"), someRow(6, "f"))
		user, err := place.db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		defer user.Rollback()
		lock := "select token from lease where token = 2 lock in share mode"
		if place.postgres() {
			lock = "select token from fencepost.lease where token = 2 for key share"
		}
		if _, err := user.Exec(lock); err != nil {
			t.Fatal(err)
		}
		renewed := someRow(2, "b")
		renewed.ExpiresAt += 5_000_000
		if place.postgres() {
			renewed.Owner = "new"
		}
		relabelled := renewed
		relabelled.Owner = "new"
		if held := commitTurn(t, c, 2, []fencing.Token{1, 2, 3, 5, 6, 9}, []fencing.Token{1, 5, 6}, again(relabelled), again(someRow(3, "new")), someRow(4, "d")); !slices.Equal(held, []fencing.Token{2}) {
			t.Errorf("held are %v", held)
		}
		wantLeases(t, place, renewed, someRow(3, "new"), someRow(4, "d"))
		if err := user.Rollback(); err != nil {
			t.Fatal(err)
		}
		if held := commitTurn(t, c, 3, []fencing.Token{2, 3}, []fencing.Token{2, 3}, again(someRow(4, "e"))); len(held) > 0 {
			t.Errorf("held are %v, and nothing is guarded", held)
		}
		wantLeases(t, place, someRow(4, "e"))
	})
}

// The clock is read when the turn has begun, not when it was asked for.
func TestTurnReadsTheClockAfterTheLock(t *testing.T) {
	onBothPlaces(t, func(t *testing.T, place *place) {
		first, second := connect(t, place.url), connect(t, place.url)
		if _, err := first.begin(t.Context(), 0, nil); err != nil {
			t.Fatal(err)
		}
		begun := make(chan fencing.Instant)
		go func() {
			b, err := second.begin(t.Context(), 0, nil)
			if err != nil {
				t.Error(err)
				close(begun)
				return
			}
			begun <- b.now
		}()
		await(t, "the second turn waits", place.isWaitedFor)
		third := connect(t, place.url)
		b, err := third.read(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := first.abandon(t.Context()); err != nil {
			t.Fatal(err)
		}
		if now := <-begun; now < b.now {
			t.Errorf("the turn began at %d by its clock, which was at %d before the one before it was over", now, b.now)
		}
	})
}

// isWaitedFor reports whether somebody waits for a lock in the database.
func (p *place) isWaitedFor() bool {
	waits, err := waitsForLock(p.db, p.postgres())
	return err == nil && waits
}

var threadID = regexp.MustCompile(`thread id (\d+)`)

// waitsForLock reports whether somebody waits for a lock in the database of a connection, or on MariaDB and MySQL in another one. Their table of
// transactions is no help: it is as old as for 100 ms nobody has read it, in any database, so several who look each 150 ms are shown the same for good.
func waitsForLock(db *stdsql.DB, postgres bool, others ...string) (bool, error) {
	var n int
	if postgres {
		err := db.QueryRow("select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()").Scan(&n)
		return n > 0, err
	}
	var kind, name, status string
	if err := db.QueryRow("show engine innodb status").Scan(&kind, &name, &status); err != nil {
		return false, err
	}
	all := strings.Split(status, "---TRANSACTION")
	for _, transaction := range all[1:] {
		id := threadID.FindStringSubmatch(transaction)
		if id == nil || !strings.Contains(transaction, "LOCK WAIT") {
			continue
		}
		here := "select count(*) from information_schema.processlist where id = " + id[1] + " and (db = database() or db in ('" + strings.Join(others, "', '") + "'))"
		if err := db.QueryRow(here).Scan(&n); err != nil || n > 0 {
			return n > 0, err
		}
	}
	return false, nil
}

// A gateway that stands still in its turn is thrown out, by what MySQL has as well.
func TestStandingStillInATurn(t *testing.T) {
	test := func(t *testing.T, db database) {
		first, second := connectTo(t, db), connectTo(t, db)
		began := time.Now()
		if _, err := first.begin(t.Context(), 0, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := second.begin(t.Context(), 0, nil); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < stall/2 {
			t.Errorf("the next turn began after %s", took)
		}
		if err := first.commit(t.Context(), &entry{logged: logged{seq: 1, id: newID([]byte("late")), data: []byte("late")}}); !errors.Is(err, errUndecided) {
			t.Errorf("the commit of who was thrown out: %v", err)
		}
		if err := second.commit(t.Context(), &entry{logged: logged{seq: 1, id: newID([]byte("in time")), data: []byte("in time")}}); err != nil {
			t.Error(err)
		}
		b, err := second.read(t.Context(), 0)
		if err != nil || len(b.entries) != 1 || string(b.entries[0].data) != "in time" {
			t.Errorf("%+v, %v", b, err)
		}
	}
	onBothPlaces(t, func(t *testing.T, place *place) {
		db, err := newDatabase(place.url)
		if err != nil {
			t.Fatal(err)
		}
		test(t, db)
	})
	t.Run("as on MySQL", func(t *testing.T) {
		t.Parallel()
		db, err := newMySQL(newPlace(t, sqltest.MariaDB(t)).url)
		if err != nil {
			t.Fatal(err)
		}
		db.waits = true
		test(t, db)
		c := connectTo(t, db)
		if _, err := c.begin(t.Context(), 0, nil); err != nil {
			t.Fatal(err)
		}
		if err := c.abandon(t.Context()); err != nil {
			t.Fatal(err)
		}
		var is int64
		err = c.(*mysqlConn).ask(t.Context(), "select @@session.wait_timeout", nil, func(row []driver.Value) error {
			is = number(row[0])
			return nil
		})
		if err != nil || is < 60 {
			t.Errorf("behind a turn an idle connection lasts %d s, %v", is, err)
		}
	})
}

// An entry whose number is taken is refused, and nothing else of the turn remains.
func TestRefusedCommit(t *testing.T) {
	onBothPlaces(t, func(t *testing.T, place *place) {
		c := connect(t, place.url)
		commitTurn(t, c, 1, nil, nil, someRow(1, "a"))
		if _, err := c.begin(t.Context(), 0, nil); err != nil {
			t.Fatal(err)
		}
		err := c.commit(t.Context(), &entry{logged: logged{seq: 1, id: newID([]byte("again")), data: []byte("again")}, ended: []fencing.Token{1}, changed: []row{someRow(2, "b")}})
		if err == nil || errors.Is(err, errUndecided) {
			t.Errorf("a commit of a number that is taken: %v", err)
		}
		c.close()
		wantLeases(t, place, someRow(1, "a"))
	})
}

// Of a commit that is cut off it is not known whether it has happened. Before the last statement of its message is waited for here.
func TestCutOffCommit(t *testing.T) {
	onBothPlaces(t, func(t *testing.T, place *place) {
		c := connect(t, place.url)
		commitTurn(t, c, 1, nil, nil, someRow(1, "a"))
		user, err := place.db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		defer user.Rollback()
		table := "lease"
		if place.postgres() {
			table = "fencepost.lease"
		}
		if _, err := user.Exec("select token from " + table + " where token = 1 for update"); err != nil {
			t.Fatal(err)
		}
		if _, err := c.begin(t.Context(), 0, nil); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := c.commit(ctx, &entry{logged: logged{seq: 2, id: newID([]byte("x")), data: []byte("x")}, ended: []fencing.Token{1}}); !errors.Is(err, errUndecided) {
			t.Errorf("a commit that was cut off: %v", err)
		}
		if _, err := c.read(t.Context(), 0); err == nil {
			t.Error("the connection answers after it was cut off")
		}
	})
}

// What a snapshot is written with: all bytes come back, one gateway writes at a time, and what it takes the place of goes.
func TestSnapshotTables(t *testing.T) {
	onBothPlaces(t, func(t *testing.T, place *place) {
		c := connect(t, place.url)
		ctx := t.Context()
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		claims := func(g fencing.Gateway, want bool) {
			t.Helper()
			claimed, err := c.claim(ctx, g)
			must(err)
			if claimed != want {
				t.Errorf("%s claims: %v", g, claimed)
			}
		}
		claims("a", true)
		claims("b", false)
		claims("a", true)
		if seq, _, err := c.newest(ctx); seq != 0 || err != nil {
			t.Errorf("the newest of none: %d, %v", seq, err)
		}
		chunk := make([]byte, chunkSize)
		for i := range chunk {
			chunk[i] = byte(rand.Uint32())
		}
		quotes := bytes.Repeat([]byte(`'\"?`+"\x00\x1a\n"), chunkSize/7)
		must(c.put(ctx, 7, 1, []byte("torn")))
		must(c.put(ctx, 7, 1, chunk))
		must(c.put(ctx, 7, 2, quotes))
		if seq, _, err := c.newest(ctx); seq != 0 || err != nil {
			t.Errorf("one that is not whole is the newest: %d, %v", seq, err)
		}
		if err := c.finish(ctx, "a", mark{7, 1}, 2); !errors.Is(err, errOvertaken) {
			t.Errorf("a snapshot as of an entry that is not in the log: %v", err)
		}
		for seq := range uint64(10) {
			commitTurn(t, c, seq+1, nil, nil)
		}
		idOf := func(seq uint64) mark {
			b, err := c.read(ctx, seq)
			must(err)
			return mark{seq, b.entries[0].id}
		}
		if err := c.finish(ctx, "b", idOf(7), 2); !errors.Is(err, errOvertaken) {
			t.Errorf("a snapshot of one who may write none: %v", err)
		}
		must(c.finish(ctx, "a", idOf(7), 2))
		claims("b", true)
		if err := c.put(ctx, 7, 1, quotes); !errors.Is(err, errOvertaken) {
			t.Errorf("a snapshot that is whole is written to: %v", err)
		}
		if seq, chunks, err := c.newest(ctx); seq != 7 || chunks != 2 || err != nil {
			t.Errorf("the newest is %d of %d chunks, %v", seq, chunks, err)
		}
		for no, want := range [][]byte{1: chunk, 2: quotes, 3: nil} {
			if no == 0 {
				continue
			}
			got, err := c.chunk(ctx, 7, no)
			must(err)
			if !bytes.Equal(got, want) || (got == nil) != (want == nil) {
				t.Errorf("chunk %d comes back as another one", no)
			}
		}
		must(c.put(ctx, 9, 1, chunk))
		must(c.finish(ctx, "b", idOf(9), 1))
		turns := 0
		for more := true; more; turns++ {
			var err error
			more, err = c.cut(ctx, 9, 9, 4)
			must(err)
		}
		b, err := c.read(ctx, 10)
		must(err)
		if seq, _, err := c.newest(ctx); len(b.entries) != 1 || b.entries[0].data != nil || seq != 9 || err != nil || turns != 4 {
			t.Errorf("after %d cuts there are %+v, and the newest is %d, %v", turns, b.entries, seq, err)
		}
		if gone, err := c.chunk(ctx, 7, 1); gone != nil || err != nil {
			t.Errorf("the snapshot before is there yet: %v", err)
		}
	})
}

// What people see of a lease follows a renewal that changes it.
func TestRowsShowWhatRenewalsChange(t *testing.T) {
	onBothPlaces(t, func(t *testing.T, place *place) {
		b := place.open(t, Options{})
		lease := fencing.NewLeaseID(time.Now())
		do := func(op fencing.Op) {
			t.Helper()
			if _, err := b.Store(0).Do(t.Context(), op); err != nil { // it compares rows with holders
				t.Fatal(err)
			}
		}
		do(fencing.AcquireRequest{Name: "a", Lease: lease, Stamp: fencing.NewStamp(), Mode: fencing.ModeExclusive, Hold: 1, TTL: time.Minute, Owner: "one"})
		do(fencing.RenewRequest{Name: "a", Lease: lease, Owner: "two"})
		do(fencing.RenewRequest{Name: "a", Lease: lease, Mode: fencing.ModeShared, Limit: 3})
		do(fencing.RenewRequest{Name: "a", Lease: lease, TTL: 2 * time.Minute})
		rows := place.leases(t, place.db)
		if len(rows) != 1 || !strings.Contains(rows[0], ` 0 shared "two" `) {
			t.Errorf("%q", rows)
		}
	})
}
