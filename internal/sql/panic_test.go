package sql

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
	"fencepost/internal/sql/sqltest"
)

// poison panics in a step that has changed the state by then: no list has so many slots.
func poison(name fencing.Name) fencing.AcquireRequest {
	r := request(name, time.Minute)
	r.Mode, r.Limit, r.Permits = fencing.ModeShared, 1<<60, 1<<59
	return r
}

func isBroken(err error) bool {
	e := fencing.AsError(err)
	return e != nil && e.Code == fencing.CodeUnavailable && strings.Contains(e.Detail, "report it")
}

// agreed returns what gateways have come to, after a turn of each.
func agreed(t *testing.T, stores ...*Store) (digest uint64) {
	t.Helper()
	for try := 0; ; try++ { // one may have something to do meanwhile
		var at []uint64
		same := true
		for _, s := range stores {
			if err := s.await(t.Context(), &item{locks: true, look: func(l *looked) { at = append(at, func() uint64 { _, d := l.machine.LastDigest(); return d }()) }}); err != nil {
				t.Fatal(err)
			}
			same = same && at[len(at)-1] == at[0]
		}
		if same {
			return at[0]
		}
		if try == 100 {
			t.Fatalf("the gateways have come to %x", at)
		}
	}
}

// An operation that panics is refused before anything of it is in the log: whether the turn is made at once or asks first.
func TestAnOperationThatPanicsIsRefused(t *testing.T) {
	t.Parallel()
	for what, aloneAfter := range map[string]time.Duration{"asking": -1, "alone": time.Nanosecond} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			url := initialised(t, sqltest.Postgres(t).Database(t))
			a := openGateway(t, Options{URL: url, Version: "v1", Logger: testLog(t), aloneAfter: aloneAfter})
			kept := acquire(t, a, "kept", time.Minute)
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					if _, err := a.Do(context.Background(), request(fencing.Name("n"+string(fencing.NewStamp())), time.Minute)); err != nil {
						t.Errorf("beside it: %v", err)
					}
				})
				all.Go(func() {
					if _, err := a.Do(context.Background(), poison("poison")); !isBroken(err) {
						t.Errorf("what panics: %v", err)
					}
				})
			}
			all.Wait()
			if _, err := a.Do(t.Context(), request("poison", time.Minute)); !isBroken(err) {
				t.Errorf("its name: %v", err)
			}
			if n := a.Panics(); n < 1 {
				t.Errorf("%d are counted", n)
			}
			b := openGateway(t, Options{URL: url, Version: "v1", Logger: testLog(t)})
			agreed(t, a, b)
			if out, err := b.Do(t.Context(), request("poison", time.Minute)); err != nil {
				t.Errorf("at a gateway that was not asked: %+v, %v", out, err)
			}
			if out, err := a.Do(t.Context(), fencing.RenewRequest{Name: "kept", Lease: kept.lease}); err != nil {
				t.Errorf("a lease from before: %+v, %v", out.Holder, err)
			}
			agreed(t, a, b)
			if a.Cause() != nil || b.Cause() != nil {
				t.Error(a.Cause(), b.Cause())
			}
		})
	}
}

// One that is in the log, for another version has carried it out, is refused at every gateway, the same way.
func TestACommittedOperationThatPanicsIsRefused(t *testing.T) {
	t.Parallel()
	url := initialised(t, sqltest.Postgres(t).Database(t))
	o := Options{URL: url, Version: "v1", Logger: testLog(t)}
	a, b := openGateway(t, o), openGateway(t, o)
	kept := acquire(t, a, "kept", time.Minute)
	db, err := newDatabase(url)
	if err != nil {
		t.Fatal(err)
	}
	other, err := db.connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	begun, err := other.begin(t.Context(), 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	good := request("good", time.Minute)
	e := machine.Entry{Now: int64(begun.now), Batches: []machine.Batch{{
		Gateway: "g", Ops: []machine.Op{machine.EncodeOp(poison("poison")), machine.EncodeOp(good)},
	}}}
	is, _, err := encoded(&e, begun.entries[len(begun.entries)-1].seq+1)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.commit(t.Context(), is); err != nil {
		t.Fatal(err)
	}
	other.close()
	for i, s := range []*Store{a, b, openGateway(t, o)} {
		if _, err := s.Do(t.Context(), request("poison", time.Minute)); !isBroken(err) {
			t.Errorf("gateway %d: %v", i, err)
		}
		if _, err := s.Do(t.Context(), fencing.RenewRequest{Name: "good", Lease: good.Lease}); err != nil {
			t.Errorf("gateway %d: what else was in the entry: %v", i, err)
		}
		if _, err := s.Do(t.Context(), fencing.RenewRequest{Name: "kept", Lease: kept.lease}); err != nil {
			t.Errorf("gateway %d: a lease from before: %v", i, err)
		}
	}
	agreed(t, a, b)
	for i, s := range []*Store{a, b} {
		if s.Cause() != nil || s.Panics() != 1 {
			t.Errorf("gateway %d counts %d: %v", i, s.Panics(), s.Cause())
		}
	}
}

// A gateway that stops while an operation panics has its last turns, and its snapshot, from what is in the log, and not from what was half done.
func TestWhoStopsWhileAnOperationPanics(t *testing.T) {
	t.Parallel()
	url := initialised(t, sqltest.Postgres(t).Database(t))
	is := tablesOf(t, sqltest.Postgres(t), url)
	d := newSlowTurns()
	o := Options{URL: url, Logger: testLog(t), aloneAfter: -1, wrap: d.wrap}
	a := openGateway(t, o)
	acquire(t, a, "kept", time.Minute)
	d.slow.Store(true)
	var all sync.WaitGroup
	all.Go(func() {
		if _, err := a.Do(context.Background(), poison("poison")); !isBroken(err) {
			t.Errorf("what panics: %v", err)
		}
	})
	<-d.begun
	all.Go(func() {
		if _, err := a.Do(context.Background(), request("beside", time.Minute)); err != nil {
			t.Errorf("beside it: %v", err)
		}
	})
	awaitQueued(t, a, 1)
	all.Go(func() { a.Close() })
	<-a.closing
	d.slow.Store(false)
	close(d.proceed)
	all.Wait()
	if is.whole() != is.last() {
		t.Errorf("there is a snapshot as of entry %d, and the last is %d", is.whole(), is.last())
	}
	o.complete()
	state := func() []byte {
		m, err := load(t.Context(), connect(t, url), mark{}, &o)
		if err != nil {
			t.Fatal(err)
		}
		snapshot, err := m.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := snapshot.Write(&b, noLock{}); err != nil {
			t.Fatal(err)
		}
		return decodedState(t, b.Bytes())
	}
	bySnapshot := state()
	is.do("delete from @snapshot")
	if !bytes.Equal(state(), bySnapshot) {
		t.Error("the snapshot has another state than the log leads to")
	}
}

// endedConn sets ended when it is closed after a slow turn: what connects next is to go on with that. Others connect while it is slow.
type endedConn struct {
	slowConn
	ended *atomic.Bool
	begun bool
}

func (c *endedConn) begin(ctx context.Context, after uint64, tried []fencing.Token) (*begun, error) {
	c.begun = c.of.slow.Load()
	return c.slowConn.begin(ctx, after, tried)
}

func (c *endedConn) close() {
	if c.begun {
		c.ended.Store(true)
	}
	c.slowConn.close()
}

// One that can't read the log anew then does nothing any more, also if it could a moment later.
func TestWhoStopsWithHalfOfATurn(t *testing.T) {
	t.Parallel()
	url := initialised(t, sqltest.Postgres(t).Database(t))
	is := tablesOf(t, sqltest.Postgres(t), url)
	d := newSlowTurns()
	var once atomic.Bool
	a := openGateway(t, Options{URL: url, Logger: testLog(t), aloneAfter: -1, wrap: through(func(conn connection) connection {
		if once.CompareAndSwap(true, false) {
			return nil
		}
		return &endedConn{slowConn{conn, d}, &once, false}
	})})
	acquire(t, a, "kept", time.Minute)
	last := is.last()
	d.slow.Store(true)
	var all sync.WaitGroup
	all.Go(func() { _, _ = a.Do(context.Background(), poison("poison")) })
	<-d.begun
	all.Go(func() { // too much for one turn with that
		ops := make([]operation, machine.MostOps)
		for i := range ops {
			ops[i] = newOperation(request(fencing.Name("n"+itoa(i)), time.Minute))
		}
		if err := a.await(context.Background(), &item{ops: ops}); code(err) != fencing.CodeUnavailable {
			t.Errorf("what comes behind it: %v", err)
		}
	})
	awaitQueued(t, a, 1)
	all.Go(func() { a.Close() })
	<-a.closing
	d.slow.Store(false)
	close(d.proceed)
	all.Wait()
	if is.whole() > 0 || is.last() != last {
		t.Errorf("there is a snapshot as of entry %d, and the last is %d", is.whole(), is.last())
	}
	theSame(t, Options{URL: url, Logger: testLog(t)})
}
