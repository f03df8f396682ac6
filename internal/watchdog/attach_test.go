package watchdog

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
)

// attach takes a lease and attaches it; what comes of it is in the returned log.
func (w *world) attach(ctx context.Context, r fencing.AcquireRequest, ready func() bool) *attached {
	w.t.Helper()
	r.Attach = true
	s := w.open(0, r, r.Name)
	out, err := w.dogs[0].Acquire(ctx, r)
	if err != nil {
		w.t.Fatal(err)
	}
	return follow(s.Keep(ctx, []Attached{{r.Name, out}}, ready))
}

// open makes a request known as a stream at a gateway, until the end of the test.
func (w *world) open(gateway int, r fencing.AcquireRequest, names ...fencing.Name) *Stream {
	w.t.Helper()
	s, err := w.dogs[gateway].OpenStream(r.Lease, r.Stamp, 0, names...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.streams = append(w.streams, s)
	return s
}

type attached struct {
	granted time.Time
	updates []Update
	at      []time.Duration
	done    chan struct{}
}

// follow notes what comes of leases that were just attached.
func follow(updates <-chan Update) *attached {
	a := &attached{granted: time.Now(), done: make(chan struct{})}
	go func() {
		defer close(a.done)
		for u := range updates {
			a.updates = append(a.updates, u)
			a.at = append(a.at, time.Since(a.granted))
		}
	}()
	return a
}

// ended waits for the end and returns the last update and when it came.
func (a *attached) ended() (Update, time.Duration) {
	<-a.done
	n := len(a.updates)
	if n == 0 {
		return Update{}, 0
	}
	return a.updates[n-1], a.at[n-1]
}

func TestAttachedLeasesAreRenewedAtAThird(t *testing.T) {
	inWorld(t, func(w *world) {
		ctx, cancel := context.WithCancel(w.t.Context())
		r := request("a")
		r.TTL = 3 * time.Second
		a := w.attach(ctx, r, nil)
		advance(10*time.Second + 500*time.Millisecond)
		if h := w.holder("a"); h == nil || !h.Live(fencing.InstantOf(time.Now())) {
			t.Error("the lease is not held")
		}
		cancel()
		<-a.done
		w.want("updates", len(a.updates), 10)
		for i, u := range a.updates {
			if u.Err != nil || a.at[i] != time.Duration(i+1)*time.Second {
				t.Errorf("update %d came after %s: %v", i, a.at[i], u.Err)
			}
		}
		if h := w.holder("a"); h == nil {
			t.Error("it was released")
		}
	})
}

// A lease that is gone is told at once, as lost; where the event is lost, at the next
// renewal.
func TestAnAttachedLeaseIsBroken(t *testing.T) {
	for deaf, told := range map[bool]time.Duration{false: 500 * time.Millisecond, true: time.Second} {
		inWorld(t, func(w *world) {
			w.wires[0].set(func(wire *wire) { wire.deaf = deaf })
			r := request("a")
			r.TTL = 3 * time.Second
			a := w.attach(w.t.Context(), r, nil)
			advance(500 * time.Millisecond)
			if _, err := w.dogs[1].Break(w.t.Context(), fencing.BreakRequest{Name: "a", Token: w.holder("a").Token}); err != nil {
				t.Fatal(err)
			}
			u, at := a.ended()
			if e := fencing.AsError(u.Err); e == nil || e.Code != fencing.CodeLeaseLost || e.Reason != fencing.ReasonBroken || at != told {
				t.Errorf("deaf %t: it ended after %s with %v", deaf, at, u.Err)
			}
		})
	}
}

// A notice is told at once, by a renewal; where the event is lost, by the next one. The last
// renewal is that which can't move the end any more, and the end is the notice's.
func TestAnAttachedLeaseIsGivenNotice(t *testing.T) {
	for deaf, told := range map[bool]time.Duration{false: 500 * time.Millisecond, true: time.Second} {
		inWorld(t, func(w *world) {
			w.wires[0].set(func(wire *wire) { wire.deaf = deaf })
			r := request("a")
			r.TTL = 3 * time.Second
			a := w.attach(w.t.Context(), r, nil)
			advance(500 * time.Millisecond)
			if _, err := w.dogs[1].Break(w.t.Context(), fencing.BreakRequest{Name: "a", Token: w.holder("a").Token, Notice: 5 * time.Second, BreakReason: "deploy"}); err != nil {
				t.Fatal(err)
			}
			u, at := a.ended()
			if e := fencing.AsError(u.Err); e == nil || e.Code != fencing.CodeLeaseLost || e.Reason != fencing.ReasonBroken || e.BreakReason != "deploy" || at != 5500*time.Millisecond {
				t.Errorf("deaf %t: it ended after %s with %v", deaf, at, u.Err)
			}
			first := -1
			for i, u := range a.updates {
				if first < 0 && u.Leases[0].Outcome.Holder.BreakAt != 0 {
					first = i
				}
			}
			if first < 0 || a.at[first] != told || a.updates[first].Leases[0].Outcome.Holder.BreakReason != "deploy" {
				t.Errorf("deaf %t: it was told by update %d of %v", deaf, first, a.at)
			}
			if n := w.wires[0].count("renew"); n > 6 {
				t.Errorf("deaf %t: %d renewals", deaf, n)
			}
		})
	}
}

// An event that came late, about a lease that lives on, costs a renewal.
func TestAnEventAboutALiveLease(t *testing.T) {
	inWorld(t, func(w *world) {
		r := request("a")
		r.TTL = 3 * time.Second
		ctx, cancel := context.WithCancel(w.t.Context())
		a := w.attach(ctx, r, nil)
		advance(500 * time.Millisecond)
		w.dogs[0].hub.Event(fencing.Event{Kind: fencing.EventExpired, Name: "a", Lease: r.Lease.Public()})
		advance(700 * time.Millisecond)
		cancel()
		<-a.done
		if len(a.updates) != 1 || a.updates[0].Err != nil || a.at[0] != 500*time.Millisecond {
			t.Errorf("%v at %v", a.updates, a.at)
		}
	})
}

// Out of reach of the store nothing is definite; the end is told before it comes.
func TestAnAttachedLeaseCanNotBeRenewed(t *testing.T) {
	for _, ttl := range []time.Duration{100 * time.Millisecond, 3 * time.Second, time.Minute, time.Hour} {
		inWorld(t, func(w *world) {
			r := request("a")
			r.TTL = ttl
			a := w.attach(w.t.Context(), r, nil)
			w.wires[0].set(func(wire *wire) { wire.before = failing("renew") })
			u, at := a.ended()
			if fencing.CodeOf(u.Err) != fencing.CodeUnavailable || at >= ttl || at < ttl*9/10 {
				t.Errorf("TTL %s: it ended after %s with %v", ttl, at, u.Err)
			}
			if n := w.wires[0].count("renew"); n < 2 {
				t.Errorf("TTL %s: %d attempts", ttl, n)
			}
		})
	}
}

// An outage that ends in time does no harm.
func TestARenewalIsRetried(t *testing.T) {
	inWorld(t, func(w *world) {
		ctx, cancel := context.WithCancel(w.t.Context())
		r := request("a")
		r.TTL = 3 * time.Second
		a := w.attach(ctx, r, nil)
		w.wires[0].set(func(wire *wire) { wire.after = failing("renew") })
		advance(2 * time.Second)
		w.wires[0].set(func(wire *wire) { wire.after = nil })
		advance(10 * time.Second)
		cancel()
		<-a.done
		for _, u := range a.updates {
			if u.Err != nil {
				t.Errorf("it ended with %v", u.Err)
			}
		}
		if len(a.updates) < 9 {
			t.Errorf("%d renewals in 12 s", len(a.updates))
		}
	})
}

// A holder that does not take in what it is told is not renewed for ever.
func TestAHolderThatIsNotReady(t *testing.T) {
	inWorld(t, func(w *world) {
		var ready atomic.Bool
		var looks atomic.Int32
		r := request("a")
		r.TTL = 3 * time.Second
		a := w.attach(w.t.Context(), r, func() bool { looks.Add(1); return ready.Load() })
		advance(2500 * time.Millisecond)
		w.want("renewals", w.wires[0].count("renew"), 0)
		if n := looks.Load(); n < 5 || n > 20 {
			t.Errorf("it was looked at %d times", n)
		}
		ready.Store(true)
		advance(200 * time.Millisecond)
		w.want("renewals", w.wires[0].count("renew"), 1)
		ready.Store(false)
		u, at := a.ended()
		if fencing.CodeOf(u.Err) != fencing.CodeUnavailable {
			t.Errorf("it ended with %v", u.Err)
		}
		if at >= 2700*time.Millisecond+r.TTL || at < 5*time.Second {
			t.Errorf("it ended after %s", at)
		}
		w.want("renewals", w.wires[0].count("renew"), 1)
	})
}

func TestMaxHoldEndsAnAttachedLease(t *testing.T) {
	inWorld(t, func(w *world) {
		r := request("a")
		r.TTL, r.MaxHold = 3*time.Second, 8*time.Second
		u, at := w.attach(w.t.Context(), r, nil).ended()
		if e := fencing.AsError(u.Err); e == nil || e.Code != fencing.CodeLeaseLost || e.Reason != fencing.ReasonExpired || at != r.MaxHold {
			t.Errorf("it ended after %s with %v", at, u.Err)
		}
	})
}

func TestDrainEndsAttachments(t *testing.T) {
	inWorld(t, func(w *world) {
		a := w.attach(w.t.Context(), request("a"), nil)
		w.dogs[0].Drain()
		if u, _ := a.ended(); fencing.CodeOf(u.Err) != fencing.CodeDraining {
			t.Errorf("it ended with %v", u.Err)
		}
		if w.holder("a") == nil {
			t.Error("it was released")
		}
		if _, err := w.dogs[0].OpenStream(fencing.NewLeaseID(time.Now()), fencing.NewStamp(), 0, "a"); fencing.CodeOf(err) != fencing.CodeDraining {
			t.Errorf("a new one began with %v", err)
		}
	})
}

// A reader that is slow sees the newest update, and the end.
func TestASlowReaderOfUpdates(t *testing.T) {
	inWorld(t, func(w *world) {
		r := request("a")
		r.TTL, r.MaxHold = 3*time.Second, 9*time.Second
		r.Attach = true
		s := w.open(0, r, "a")
		out, err := w.dogs[0].Acquire(w.t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		updates := s.Keep(w.t.Context(), []Attached{{"a", out}}, nil)
		advance(2500 * time.Millisecond)
		u := <-updates
		if age := time.Since(u.Leases[0].Outcome.Asked); u.Err != nil || age != 500*time.Millisecond {
			t.Errorf("the newest update is %s old: %v", age, u.Err)
		}
		advance(10 * time.Second)
		synctest.Wait()
		if u := <-updates; fencing.CodeOf(u.Err) != fencing.CodeLeaseLost {
			t.Errorf("it ended with %v", u.Err)
		}
		if _, open := <-updates; open {
			t.Error("there is more behind the end")
		}
	})
}

// What an answer gives is less than the TTL where a quorum allows for clocks, or a
// retry finds a lease that was granted a while ago: the lease is renewed before that.
func TestAnAttachedLeaseWithLessThanItsTTLToLive(t *testing.T) {
	inWorld(t, func(w *world) {
		ctx, cancel := context.WithCancel(w.t.Context())
		r := request("a")
		r.TTL = 3 * time.Second
		if _, err := w.dogs[0].Acquire(ctx, r); err != nil {
			t.Fatal(err)
		}
		advance(2200 * time.Millisecond)
		r.Stamp = fencing.NewStamp()
		a := w.attach(ctx, r, nil)
		advance(2 * time.Second)
		cancel()
		if u, _ := a.ended(); u.Err != nil {
			t.Errorf("it ended with %v", u.Err)
		}
		w.want("renewals", len(a.updates), 2)
		if len(a.at) > 0 && a.at[0] != 400*time.Millisecond {
			t.Errorf("it was renewed after %s", a.at[0])
		}
	})
}

// A lease that lingers is over when it was said, also for who waits at this gateway.
func TestALeaseThatLingersIsOverInTime(t *testing.T) {
	inWorld(t, func(w *world) {
		r := request("a")
		r.TTL, r.Attach = time.Hour, true
		if _, err := w.dogs[0].Acquire(w.t.Context(), r); err != nil {
			t.Fatal(err)
		}
		next := request("a")
		next.Wait = time.Minute
		waiter := w.ask(0, next)
		w.waits(waiter)
		if _, err := w.dogs[0].Release(w.t.Context(), fencing.ReleaseRequest{Name: "a", Lease: r.Lease, Stamp: r.Stamp, Linger: 300 * time.Millisecond}); err != nil {
			t.Fatal(err)
		}
		advance(400 * time.Millisecond)
		w.holds(waiter)
		if waiter.took < 300*time.Millisecond || waiter.took > 300*time.Millisecond+reapSlack {
			t.Errorf("it came after %s", waiter.took)
		}
		w.release(0, waiter)
	})
}

// A renewal of a stream that comes behind the release, as one that was under way may, does not
// keep the lease.
func TestALateRenewalOfALeaseThatLingers(t *testing.T) {
	inWorld(t, func(w *world) {
		r := request("a")
		r.TTL, r.Attach = 3*time.Second, true
		s := w.open(0, r, "a")
		out, err := w.dogs[0].Acquire(w.t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(w.t.Context())
		defer cancel()
		updates := s.Keep(ctx, []Attached{{"a", out}}, nil)
		if _, err := w.dogs[0].Release(w.t.Context(), fencing.ReleaseRequest{Name: "a", Lease: r.Lease, Stamp: r.Stamp, Linger: 2 * time.Second}); err != nil {
			t.Fatal(err)
		}
		if u := <-updates; u.Err == nil || fencing.CodeOf(u.Err) != fencing.CodeReplaced {
			t.Errorf("%+v, %v", u.Leases, u.Err)
		}
		advance(2 * time.Second)
		if h := w.holder("a"); h != nil && h.Live(fencing.InstantOf(time.Now())) {
			t.Errorf("%+v", h)
		}
	})
}
