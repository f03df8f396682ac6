package watchdog

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

// queueless is a store without a queue: a model whose requests never wait.
type queueless struct {
	*fencingtest.Wire
	times *sync.Map // how often was asked for a lease
}

func (q queueless) Capabilities() fencing.Capabilities { return fencing.Capabilities{Tells: true} }

func (q queueless) Do(ctx context.Context, op fencing.Op) (fencing.Outcome, error) {
	r, acquires := op.(fencing.AcquireRequest)
	if !acquires {
		return q.Wire.Do(ctx, op)
	}
	q.asked(r.Lease.Public())
	if r.Behind {
		out, err := q.Wire.Do(ctx, fencing.InspectRequest{Name: r.Name})
		if err != nil || !slices.ContainsFunc(out.Lock.Holders, func(h fencing.Holder) bool { return h.Lease == r.Lease.Public() }) {
			refusal := &fencing.Error{Code: fencing.CodeLocked, Lock: out.Lock, RetryAfter: out.Lock.NextExpiry()}
			return fencing.Outcome{Err: refusal}, refusal
		}
	}
	r.Wait, r.Keep, r.MaxWaiters = 0, false, 0
	out, err := q.Wire.Do(ctx, r)
	if e := fencing.AsError(err); e != nil && e.Lock != nil {
		e.RetryAfter = e.Lock.NextExpiry()
	}
	return out, err
}

func (q queueless) asked(lease fencing.LeasePublic) {
	n, _ := q.times.LoadOrStore(lease, new(atomic.Int64))
	n.(*atomic.Int64).Add(1)
}

// questions returns how often a store was asked for a lease.
func (w *world) questions(gateway int, c *client) int {
	n, _ := w.dogs[gateway].Store.(queueless).times.LoadOrStore(c.Lease.Public(), new(atomic.Int64))
	return int(n.(*atomic.Int64).Load())
}

// withoutQueue runs a test in a world whose store has no queue.
func withoutQueue(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		model := fencingtest.NewModel(func() fencing.Instant { return fencing.InstantOf(time.Now()) })
		w := &world{t: t, wires: [2]*fencingtest.Wire{{Model: model}, {Model: model.Second()}}}
		for i, wire := range w.wires {
			w.seen[i] = &counts{}
			w.dogs[i] = New(queueless{wire, &sync.Map{}}, Options{MaxSkew: time.Second, Observer: w.seen[i]})
			w.dogs[i].Start()
		}
		test(w)
		for i, dog := range w.dogs {
			dog.Stop()
			synctest.Wait()
			l := &dog.requests
			if len(l.waiters)+len(l.held)+len(l.queues)+len(l.places) != 0 {
				t.Errorf("gateway %d still knows of %d waiters, %d held leases, %d lines and %d places",
					i, len(l.waiters), len(l.held), len(l.queues), len(l.places))
			}
			w.want("waiters", w.seen[i].of("waiting"), 0)
			if w.dogs[i].keeper() == Keeper(nobody{}) {
				w.want("heartbeats", w.wires[i].Count("heartbeat"), 0)
			}
			w.want("leaves", w.wires[i].Count("leave"), 0)
			w.want("confirmations", w.wires[i].Count("confirm"), 0)
		}
		model.Close()
	})
}

// At a store without a queue requests of one gateway are served in order of arrival, and
// only the first of them asks again.
func TestRetriedInOrderOfArrival(t *testing.T) {
	withoutQueue(t, func(w *world) {
		clients := []*client{w.ask(0, request("a"))}
		for range 5 {
			clients = append(clients, w.ask(0, request("a")))
			advance(time.Millisecond)
		}
		advance(12 * time.Second) // the first lease has run out, and that was noticed
		w.holds(clients[1])
		before := w.questions(0, clients[3])
		for i, c := range clients[1:] {
			w.holds(c)
			for _, next := range clients[i+2:] {
				w.waits(next)
			}
			if i == 0 {
				w.want("questions for one that is not the first", before, 1)
			}
			began := time.Now()
			w.release(0, c)
			synctest.Wait()
			if i+2 < len(clients) {
				w.holds(clients[i+2])
				if took := time.Since(began); took > 0 {
					t.Errorf("the hand-over took %s", took)
				}
			}
		}
		w.want("grants after a wait", w.seen[0].of("waited "+WaitedGranted), 5)
	})
}

// The first one asks ever less often, and at least once in a while.
func TestRetriesAreBounded(t *testing.T) {
	withoutQueue(t, func(w *world) {
		holder := request("a")
		holder.TTL = time.Hour
		w.holds(w.ask(0, holder))
		r := request("a")
		c := w.ask(0, r)
		advance(r.Wait - time.Second)
		if n := w.questions(0, c); n < 40 || n > 140 {
			t.Errorf("it has asked %d times in %s", n, r.Wait)
		}
		e := w.refused(w.ranOut(c), fencing.CodeWaitTimeout)
		if e.Position != 1 || !e.Lock.Held() || e.Lock.Waiting != 1 || e.RetryAfter <= 0 {
			t.Errorf("it is told %+v", e)
		}
		w.want("taken back", w.wires[0].Count("take_back"), 0)
	})
}

func (w *world) ranOut(c *client) *client {
	advance(c.Wait)
	return c
}

// Whoever would not wait does not overtake those who do, not even a free lock; who has the
// lease already, is told so at once (P7).
func TestNobodyOvertakesRetries(t *testing.T) {
	withoutQueue(t, func(w *world) {
		r := request("a")
		r.TTL = 30 * time.Second
		holder := w.ask(0, r)
		first := w.ask(0, request("a"))
		w.wires[0].Set(func(wire *fencingtest.Wire) { wire.Before = fencingtest.Failing("acquire") }) // it can't find out
		w.wires[1].Model.Do(t.Context(), fencing.ReleaseRequest{Name: "a", Lease: holder.Lease})
		now := request("a")
		now.Wait = 0
		e := w.refused(w.ask(0, now), fencing.CodeLocked)
		if e.Lock.Waiting != 1 {
			t.Errorf("it is told of %d who wait", e.Lock.Waiting)
		}
		last := w.ask(0, request("a"))
		w.waits(last)
		w.wires[0].Set(func(wire *fencingtest.Wire) { wire.Before = nil })
		advance(2 * time.Second)
		w.holds(first)
		for _, wait := range []time.Duration{0, time.Minute} {
			again := first.AcquireRequest
			again.Stamp, again.Wait = fencing.NewStamp(), wait
			c := w.ask(0, again)
			if !c.answered() || c.err != nil || c.out.Holder.Token != first.out.Holder.Token {
				t.Errorf("the holder asks again, and is told %+v, %v", c.out, c.err)
			}
		}
		w.waits(last)
	})
}

// A newer request with a lease id that waits takes its place; one that contradicts it
// changes nothing.
func TestRetriedPlaceIsTakenOver(t *testing.T) {
	withoutQueue(t, func(w *world) {
		holder := w.ask(0, request("a"))
		unnamed := request("a")
		unnamed.Mode = ""
		first := w.ask(0, unnamed)
		advance(time.Millisecond)
		second := w.ask(0, request("a"))
		advance(999 * time.Millisecond)
		other := first.AcquireRequest
		other.Stamp, other.Mode = fencing.NewStamp(), fencing.ModeShared
		w.refused(w.ask(0, other), fencing.CodeConflict)
		again := first.AcquireRequest
		again.Stamp, again.Mode = fencing.NewStamp(), fencing.ModeExclusive
		newer := w.ask(0, again)
		w.refused(first, fencing.CodeReplaced)
		out, err := w.dogs[0].Do(t.Context(), fencing.InspectRequest{Name: "a"})
		if err != nil || out.Lock.Waiting != 2 || len(out.Lock.Waiters) != 2 ||
			out.Lock.Waiters[0].Lease != again.Lease.Public() || out.Lock.Waiters[0].Waiting != time.Second || out.Lock.Waiters[0].Mode != fencing.ModeExclusive {
			t.Errorf("%+v, %v", out.Lock, err)
		}
		w.release(0, holder)
		w.holds(newer)
		w.waits(second)
		w.release(0, newer)
		w.holds(second)
	})
}

// A client that leaves while it is asked for is taken back; one that only stood there
// leaves nothing.
func TestRetriedClientLeaves(t *testing.T) {
	withoutQueue(t, func(w *world) {
		holder := w.ask(0, request("a"))
		first, second := w.ask(0, request("a")), w.ask(0, request("a"))
		second.cancel()
		<-second.done
		w.want("taken back", w.wires[0].Count("take_back"), 0)
		w.wires[0].Set(func(wire *fencingtest.Wire) {
			wire.After = on("acquire", func() error { first.cancel(); return nil })
		})
		w.release(0, holder)
		<-first.done
		w.free("a")
		advance(10 * time.Second)
		w.free("a")
		w.want("taken back", w.seen[0].of("takenBack"), 1)
	})
}

// A question without an answer may have left a grant: it is found, or taken back.
func TestRetryOfUnknownOutcome(t *testing.T) {
	withoutQueue(t, func(w *world) {
		holder := w.ask(0, request("a"))
		first := w.ask(0, request("a"))
		lose := func(wire *fencingtest.Wire) {
			wire.After = on("acquire", func() error { return fencing.Unavailable(fencingtest.ErrCut) })
		}
		w.wires[0].Set(lose)
		w.release(0, holder)
		w.waits(first)
		advance(time.Second)
		w.holds(first)
		r := request("a")
		r.Wait = 3 * time.Second
		second := w.ask(0, r)
		w.wires[0].Set(func(wire *fencingtest.Wire) {
			wire.After = func(op string) error {
				if op != "acquire" {
					return nil
				}
				return fencing.Unavailable(fencingtest.ErrCut)
			}
		})
		w.release(0, first)
		advance(r.Wait)
		w.refused(second, fencing.CodeWaitTimeout)
		w.free("a")
	})
}

// What can't be had by waiting is told at once.
func TestRetryIsRefused(t *testing.T) {
	withoutQueue(t, func(w *world) {
		holder := request("a")
		holder.TTL = time.Hour
		w.ask(0, holder)
		first := w.ask(0, request("a"))
		w.wires[0].Set(func(wire *fencingtest.Wire) {
			wire.Before = on("acquire", func() error { return &fencing.Error{Code: fencing.CodeLeaseLost, Reason: fencing.ReasonReleased} })
		})
		advance(2 * time.Second)
		w.refused(first, fencing.CodeLeaseLost)
		full := request("a")
		full.MaxWaiters = 1
		w.waits(w.ask(0, full))
		another := request("a")
		another.MaxWaiters = 1
		w.refused(w.ask(0, another), fencing.CodeTooManyRequests)
		w.dogs[0].Drain()
	})
}

// A writer of another gateway is not starved by readers who come and go.
func TestRetriedWriterIsNotStarved(t *testing.T) {
	withoutQueue(t, func(w *world) {
		reader := func() *client {
			r := request("a")
			r.Mode, r.Wait, r.TTL = fencing.ModeShared, 0, 400*time.Millisecond
			return w.ask(1, r)
		}
		reader()
		writer := w.ask(0, request("a"))
		for range 100 {
			advance(50 * time.Millisecond)
			reader()
		}
		w.holds(writer)
	})
}

// Those who wait at a gateway that drains are told so.
func TestRetriesDrain(t *testing.T) {
	withoutQueue(t, func(w *world) {
		r := request("a")
		r.TTL = time.Hour
		w.ask(0, r)
		first, second := w.ask(0, request("a")), w.ask(0, request("a"))
		w.dogs[0].Drain()
		w.refused(first, fencing.CodeDraining)
		w.refused(second, fencing.CodeDraining)
	})
}

// keepsOther keeps a lease on another name.
type keepsOther struct{ nobody }

func (keepsOther) Kept() []fencing.Name { return []fencing.Name{"other"} }

// Heartbeats at a store without a queue are made for leases that are kept alone: who waits is known to nobody else, and
// waits on.
func TestWaitingWithoutAQueueBesideHeartbeats(t *testing.T) {
	withoutQueue(t, func(w *world) {
		w.dogs[0].KeepWith(keepsOther{})
		defer w.dogs[0].Hear()()
		holder := request("a")
		holder.TTL = time.Hour
		held := w.ask(0, holder)
		w.holds(held)
		waiter := w.ask(0, request("a"))
		advance(10 * time.Second)
		w.waits(waiter)
		if n := w.wires[0].Count("heartbeat"); n < 8 {
			t.Errorf("%d heartbeats", n)
		}
		if names := w.wires[0].Beaten(); len(names) != 1 || names[0] != "other" {
			t.Errorf("a heartbeat for %v", names)
		}
		w.release(0, held)
		w.holds(waiter)
		w.release(0, waiter)
	})
}
