package sql

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
	"fencepost/internal/sql/sqltest"
)

// tables looks at the tables of a store.
type tables struct {
	t      testing.TB
	number func(query string) (n int64) // one in which @ stands before the name of a table
	do     func(statement string, args ...any)
}

func tablesOf(t testing.TB, server *sqltest.Server, url string) tables {
	db, schema := server.DB(t, url), ""
	if Kind(url) == kindPostgres {
		schema = "fencepost."
	}
	return tables{t, func(query string) (n int64) {
		if err := db.QueryRow(strings.ReplaceAll(query, "@", schema)).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}, func(statement string, args ...any) {
		if _, err := db.Exec(strings.ReplaceAll(statement, "@", schema), args...); err != nil {
			t.Fatal(err)
		}
	}}
}

// onBothTables calls a test for an empty store on each database, with the options of its gateways.
func onBothTables(t *testing.T, test func(t *testing.T, o Options, is tables)) {
	for name, server := range servers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := server(t)
			url := initialised(t, s.Database(t))
			test(t, Options{URL: url, Logger: testLog(t)}, tablesOf(t, s, url))
		})
	}
}

func (d tables) last() int64 { return d.number("select coalesce(max(seq), 0) from @log") }
func (d tables) whole() int64 {
	return d.number("select coalesce(max(seq), 0) from @snapshot where no = 0")
}
func (d tables) parts() int64 { return d.number("select count(*) from @snapshot") }

// free reports whether anybody may write a snapshot at once.
func (d tables) free() bool {
	return d.number("select count(*) from @snapshotter where until < '2000-01-01'") == 1
}

// Who stops writes a snapshot only if it is the last one: then there is nothing left that another version would decide anew. While others serve it
// costs nothing, unless the state is small: they may have been killed.
func TestWhoStopsLastWritesASnapshot(t *testing.T) {
	t.Parallel()
	onBothTables(t, func(t *testing.T, o Options, is tables) {
		o.smallState = -1
		a, b := openGateway(t, o), openGateway(t, o)
		acquire(t, a, "a", time.Minute)
		acquire(t, b, "b", time.Minute)
		if _, err := a.Stats(t.Context()); err != nil { // it hears of b
			t.Fatal(err)
		}
		a.Close()
		if n := is.parts(); n > 0 || !is.free() {
			t.Errorf("one that stops while another serves leaves %d parts of a snapshot", n)
		}
		b.Close()
		if is.whole() != is.last() {
			t.Errorf("all have stopped: there is a snapshot as of entry %d, and the last is %d", is.whole(), is.last())
		}

		all := make([]*Store, 4)
		for i := range all {
			all[i] = openGateway(t, o)
			acquire(t, all[i], fencing.Name("c"+itoa(i)), time.Minute)
		}
		var closing sync.WaitGroup
		for _, s := range all {
			closing.Go(func() { s.Close() })
		}
		closing.Wait()
		if is.whole() != is.last() || !is.free() {
			t.Errorf("all have stopped at once: there is a snapshot as of entry %d, and the last is %d", is.whole(), is.last())
		}
		theSame(t, o, openGateway(t, o))
	})
}

// cutShort writes one part of a snapshot, and then does something else.
type cutShort struct {
	connection
	then func(context.Context) error
}

func (c cutShort) put(ctx context.Context, seq uint64, no int, chunk []byte) error {
	if err := c.connection.put(ctx, seq, no, chunk); err != nil {
		return err
	}
	return c.then(ctx)
}

// Where a gateway was killed, and all others are stopped then, there is a snapshot of all that was decided: another version may go on at once.
func TestWhoStopsBesideOneThatWasKilled(t *testing.T) {
	t.Parallel()
	onBothTables(t, func(t *testing.T, o Options, is tables) {
		killed, a, b := openGateway(t, o), openGateway(t, o), openGateway(t, o)
		for i, s := range []*Store{killed, a, b} { // nothing more is heard of the first one
			acquire(t, s, fencing.Name("n"+itoa(i)), time.Minute)
		}
		a.Close()
		b.Close()
		if is.whole() != is.last() {
			t.Errorf("there is a snapshot as of entry %d, and the last is %d", is.whole(), is.last())
		}
	})
}

// Who stops while others may serve waits for nobody's snapshot, and leaves nothing of one that is large.
func TestWhoStopsBesideOthersIsSoonGone(t *testing.T) {
	t.Parallel()
	onBothTables(t, func(t *testing.T, o Options, is tables) {
		o.closesIn, o.smallParts = time.Hour, 1
		a, b, c := openGateway(t, o), openGateway(t, o), openGateway(t, o)
		for i, s := range []*Store{a, b, c} { // they hear of each other
			acquire(t, s, fencing.Name("n"+itoa(i)), time.Minute)
		}
		is.do("update @snapshotter set gateway = 'killed', until = '2100-01-01'")
		a.Close()
		if n := is.parts(); n > 0 {
			t.Errorf("there are %d parts of a snapshot while another gateway writes one", n)
		}
		is.do("update @snapshotter set gateway = '', until = '1970-01-01'")
		large := request("large", time.Minute)
		large.Metadata = map[string]string{}
		for i := range fencing.MaxMetadataEntries {
			large.Metadata[itoa(i)] = strings.Repeat("x", fencing.MaxMetadataValueBytes)
		}
		large.Mode = fencing.ModeShared
		for range chunkSize / fencing.MaxMetadataEntries / fencing.MaxMetadataValueBytes {
			large.Lease, large.Stamp = fencing.NewLeaseID(time.Now()), fencing.NewStamp()
			mustDo(t, b, large)
		}
		b.Close()
		if n := is.parts(); n > 0 || !is.free() {
			t.Errorf("%d parts are left of a large snapshot, and it is %t that others may write one", n, is.free())
		}
		c.Close()
		if is.whole() != is.last() || is.parts() < 3 {
			t.Errorf("there is a snapshot as of entry %d of %d parts, and the last is %d", is.whole(), is.parts(), is.last())
		}
	})
}

// The log is cut also where each gateway stops, and leaves a snapshot beside others, before it has grown much: who starts does it.
func TestWhoStartsCutsTheLog(t *testing.T) {
	t.Parallel()
	onBothTables(t, func(t *testing.T, o Options, is tables) {
		a, b := openGateway(t, o), openGateway(t, o)
		acquire(t, b, "b", time.Minute)
		for i := range 2 * keptBehind {
			acquire(t, a, fencing.Name("a"+itoa(i)), time.Minute)
		}
		a.Close()
		if first := is.number("select min(seq) from @log"); first != 1 || is.whole() == 0 {
			t.Fatalf("the log begins at %d, and there is a snapshot as of %d", first, is.whole())
		}
		o.tidyAfter, o.keptFor = time.Nanosecond, time.Nanosecond
		c := openGateway(t, o)
		await(t, "the log is cut", func() bool { return is.number("select min(seq) from @log") > 1 })
		theSame(t, o, b, c)
	})
}

// A snapshot that can't be finished leaves nothing, and others may write one at once: whether writing it failed, or Close has no more time.
func TestASnapshotThatIsGivenUp(t *testing.T) {
	t.Parallel()
	onBothTables(t, func(t *testing.T, o Options, is tables) {
		o.closesIn = time.Second
		var hangs atomic.Bool
		o.wrap = through(func(conn connection) connection {
			return cutShort{conn, func(ctx context.Context) error {
				if is.parts() == 0 {
					t.Error("nothing was written")
				}
				if hangs.Load() {
					<-ctx.Done()
				}
				return errors.New("it goes no further")
			}}
		})
		a := openGateway(t, o)
		acquire(t, a, "a", time.Minute)
		if err := a.save(t.Context(), 0, 0); err == nil {
			t.Error("it is whole")
		}
		if n := is.parts(); n > 0 || !is.free() {
			t.Errorf("%d parts are left of one that has failed, and it is %t that others may write one", n, is.free())
		}
		hangs.Store(true)
		a.Close()
		if n := is.parts(); n > 0 || !is.free() {
			t.Errorf("%d parts are left of one that Close had no time for, and it is %t that others may write one", n, is.free())
		}
	})
}

// What was left by one that is gone is removed by who starts next, and nothing else is.
func TestPartsOfASnapshotOfOneWhoIsGone(t *testing.T) {
	t.Parallel()
	onBothTables(t, func(t *testing.T, o Options, is tables) {
		o.tidyAfter = time.Nanosecond
		a := openGateway(t, o)
		acquire(t, a, "a", time.Minute)
		a.Close()
		whole, parts := is.whole(), is.parts()
		for _, seq := range []int64{1, whole + 100} {
			is.do("insert into @snapshot values (" + itoa(int(seq)) + ", 1, 'x')")
		}
		b := openGateway(t, o)
		await(t, "they are gone", func() bool { return is.parts() == parts })
		if is.whole() != whole {
			t.Errorf("the snapshot as of %d is gone", whole)
		}
		await(t, "others may write one", is.free)
		theSame(t, o, b)
	})
}

// gated stands still when it is to read the log, until it may.
type gated struct {
	connection
	open     *atomic.Bool
	newestOf *atomic.Int64
}

func (g gated) wait() {
	for !g.open.Load() {
		time.Sleep(time.Millisecond)
	}
}

func (g gated) read(ctx context.Context, after uint64) (*begun, error) {
	g.wait()
	return g.connection.read(ctx, after)
}

func (g gated) newest(ctx context.Context) (uint64, int, error) {
	g.newestOf.Add(1)
	return g.connection.newest(ctx)
}

// A gateway that asks once a second is not overtaken by a snapshot that cuts the log: it reads nothing anew.
func TestACutLeavesWhatOthersLack(t *testing.T) {
	t.Parallel()
	onBothTables(t, func(t *testing.T, o Options, is tables) {
		a := openGateway(t, o)
		var open atomic.Bool
		var loads atomic.Int64
		open.Store(true)
		o.wrap = through(func(conn connection) connection { return gated{conn, &open, &loads} })
		b := openGateway(t, o)
		if _, err := b.Stats(t.Context()); err != nil {
			t.Fatal(err)
		}
		open.Store(false)
		before := loads.Load()
		for i := range 2 * keptBehind {
			acquire(t, a, fencing.Name("a"+itoa(i)), time.Minute)
		}
		a.mu.Lock()
		a.memory.grown = snapshotAfter
		a.mu.Unlock()
		await(t, "a snapshot is whole", func() bool {
			if _, err := a.Stats(t.Context()); err != nil {
				t.Fatal(err)
			}
			return is.whole() > 0
		})
		open.Store(true)
		if _, err := b.Stats(t.Context()); err != nil {
			t.Fatal(err)
		}
		await(t, "the log is cut", func() bool { return is.number("select min(seq) from @log") > 1 })
		if n := loads.Load() - before; n > 0 {
			t.Errorf("it has read everything anew, %d times", n)
		}
		theSame(t, o, a, b)
	})
}

// A gateway that was heard of holds nothing back once it has left, and who has not is not taken for gone.
func TestWhoHasLeft(t *testing.T) {
	m := memory{Machine: machine.NewFollowing(), heard: map[fencing.Gateway]said{}}
	hear := func(seq uint64, gateway fencing.Gateway, ops ...machine.Op) {
		_, d, err := encoded(&machine.Entry{Now: int64(time.Second), Batches: []machine.Batch{{Gateway: string(gateway), Ops: ops}}}, seq)
		if err != nil {
			t.Fatal(err)
		}
		m.hear(d)
	}
	now := fencing.Instant(time.Second)
	others := func() bool { return m.others(now, "a", time.Second) }
	hear(1, "a", machine.Knows(1, "v1"))
	if others() {
		t.Error("it takes itself for another one")
	}
	hear(2, "b", machine.Knows(1, "v1"))
	hear(3, "c", machine.Beat())
	hear(4, "b", machine.Leaves())
	if !others() {
		t.Error("c has not left")
	}
	hear(5, "c", machine.Beat(), machine.Leaves())
	if others() {
		t.Error("all have left")
	}
	hear(6, "d", machine.Beat())
	if now = now.Add(2 * time.Second); others() {
		t.Error("d was not heard of for long")
	}
}
