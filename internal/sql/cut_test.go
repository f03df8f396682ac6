package sql

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/sql/sqltest"
)

// The answer to a commit is lost, and the log is cut behind it before it is looked for: what became of it is not known any more, and is said
// so. Nothing of it is carried out again.
func TestACommitInDoubtThatWasCut(t *testing.T) {
	t.Parallel()
	for _, alone := range []time.Duration{time.Nanosecond, -1} {
		t.Run(fmt.Sprint(alone), func(t *testing.T) {
			t.Parallel()
			server := sqltest.Postgres(t)
			url := initialised(t, server.Database(t))
			is := tablesOf(t, server, url)
			a := openGateway(t, Options{URL: url, Logger: testLog(t)})
			acquire(t, a, "first", time.Minute)
			var armed atomic.Bool
			var behind atomic.Int64
			o := Options{URL: url, Logger: testLog(t), aloneAfter: alone}
			o.wrap = through(func(c connection) connection {
				return hooked{c.(*postgresConn), &armed, func() {
					committed := is.last()
					if _, err := a.Do(context.Background(), request("a", time.Minute)); err != nil {
						t.Error(err)
					}
					if err := a.save(context.Background(), 0, 0); err != nil {
						t.Error(err)
					}
					is.do("delete from @log where seq <= $1", committed) // as a cut does behind more entries
					behind.Store(is.last())
				}}
			})
			b := openGateway(t, o)
			held := acquire(t, b, "held", time.Minute)
			armed.Store(true)
			if _, err := b.Do(t.Context(), fencing.ReleaseRequest{Name: "held", Lease: held.lease}); code(err) != fencing.CodeUnavailable {
				t.Errorf("what became of it can't be known, and it is answered %v", err)
			}
			if armed.Load() || behind.Load() == 0 {
				t.Fatal("no commit was in doubt")
			}
			if out, err := b.Do(t.Context(), fencing.InspectRequest{Name: "held"}); err != nil || out.Lock.Held() {
				t.Errorf("it was there: %+v, %v", out.Lock, err)
			}
			acquire(t, b, "b", time.Minute)
			if a.Losses()+b.Losses() != 0 {
				t.Errorf("%d and %d losses", a.Losses(), b.Losses())
			}
			theSame(t, o, a, b)
		})
	}
}

// Who stops while its snapshot is whole and the log is not cut yet leaves it as it is: others may lack what it has, and one that knows the last
// entry of its own by it.
func TestWhoStopsDoesNotCutEarly(t *testing.T) {
	t.Parallel()
	onBothTables(t, func(t *testing.T, o Options, is tables) {
		a, b := openGateway(t, o), openGateway(t, o)
		for i := range keptBehind + 10 {
			acquire(t, a, fencing.Name("a"+itoa(i)), time.Minute)
		}
		acquire(t, b, "b", time.Minute)
		if _, err := a.Stats(t.Context()); err != nil { // it hears of b
			t.Fatal(err)
		}
		a.work.Go(func() {
			a.saving.Lock()
			defer a.saving.Unlock()
			if err := a.save(a.ctx, time.Hour, 0); err != nil {
				t.Error(err)
			}
		})
		await(t, "a snapshot is whole", func() bool { return is.whole() > 0 })
		a.Close()
		if n := is.number("select min(seq) from @log"); n != 1 {
			t.Errorf("the log begins with entry %d", n)
		}
		theSame(t, o, b)
		b.Close() // the last one
		if n := is.number("select min(seq) from @log"); n == 1 {
			t.Error("who stops last cuts nothing")
		}
	})
}
