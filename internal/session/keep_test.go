package session

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

func TestAttachedLeasesAreRenewedAtAThird(t *testing.T) {
	inWorld(t, func(w *world) {
		r := asks("a")
		r.TTL = 3 * time.Second
		a := w.attach(r, nil)
		advance(10*time.Second + 500*time.Millisecond)
		if h := w.holder("a"); h == nil || !h.Live(fencing.InstantOf(time.Now())) {
			t.Error("the lease is not held")
		}
		a.leaves()
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
			w.wires[0].Set(func(wire *fencingtest.Wire) { wire.Deaf = deaf })
			r := asks("a")
			r.TTL = 3 * time.Second
			a := w.attach(r, nil)
			advance(500 * time.Millisecond)
			w.breaks("a", 0)
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
			w.wires[0].Set(func(wire *fencingtest.Wire) { wire.Deaf = deaf })
			r := asks("a")
			r.TTL = 3 * time.Second
			a := w.attach(r, nil)
			advance(500 * time.Millisecond)
			if _, err := w.dogs[1].Do(w.t.Context(), fencing.BreakRequest{Name: "a", Token: w.holder("a").Token, Notice: 5 * time.Second, BreakReason: "deploy"}); err != nil {
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
			if n := w.wires[0].Count("renew"); n > 8 { // no more than one a heartbeat
				t.Errorf("deaf %t: %d renewals", deaf, n)
			}
		})
	}
}

// A lease that was given notice is asked about with each heartbeat, which does not tell of it, and no more often where gaps go on.
func TestALongNotice(t *testing.T) {
	inWorld(t, func(w *world) {
		r := asks("a")
		r.TTL = time.Hour
		a := w.attach(r, nil)
		w.breaks("a", 10*time.Minute)
		for range 600 {
			w.wires[0].Gap()
			advance(100 * time.Millisecond)
		}
		a.leaves()
		if n := w.wires[0].Count("renew"); n < 2 || n > 5+int(time.Minute/noticeRest) {
			t.Errorf("%d renewals within a minute", n)
		}
	})
}

// A renewal by another request that took the lease over meanwhile is not taken for one of this stream's.
func TestARenewalOfWhatIsReplaced(t *testing.T) {
	inWorld(t, func(w *world) {
		w.wires[0].Set(func(wire *fencingtest.Wire) { wire.Unheard = true })
		r := asks("a")
		r.TTL = time.Hour
		older := w.attach(r, nil)
		newer := r
		newer.Stamp, newer.Attach = fencing.NewStamp(), true
		w.holds(w.ask(1, newer), false)
		if _, err := w.dogs[0].Do(t.Context(), fencing.RenewRequest{Name: "a", Lease: r.Lease}); err != nil {
			t.Fatal(err)
		}
		if u, at := older.ended(); fencing.CodeOf(u.Err) != fencing.CodeReplaced || at > 0 || len(older.updates) != 1 {
			t.Errorf("%d updates, the last after %s: %v", len(older.updates), at, u.Err)
		}
	})
}

// An event that came late, about a lease that lives on, costs a renewal.
func TestAnEventAboutALiveLease(t *testing.T) {
	inWorld(t, func(w *world) {
		r := asks("a")
		r.TTL = 3 * time.Second
		a := w.attach(r, nil)
		advance(500 * time.Millisecond)
		hearer{w.all[0]}.Changed("a", r.Lease.Public())
		advance(700 * time.Millisecond)
		a.leaves()
		if len(a.updates) != 1 || a.updates[0].Err != nil || a.at[0] != 500*time.Millisecond {
			t.Errorf("%v at %v", a.updates, a.at)
		}
	})
}

// Out of reach of the store nothing is definite; the end is told before it comes.
func TestAnAttachedLeaseCanNotBeRenewed(t *testing.T) {
	for _, ttl := range []time.Duration{100 * time.Millisecond, 3 * time.Second, time.Minute, time.Hour} {
		inWorld(t, func(w *world) {
			r := asks("a")
			r.TTL = ttl
			a := w.attach(r, nil)
			w.wires[0].Set(func(wire *fencingtest.Wire) { wire.Before = fencingtest.Failing("renew") })
			u, at := a.ended()
			if fencing.CodeOf(u.Err) != fencing.CodeUnavailable || at >= ttl || at < ttl*9/10 {
				t.Errorf("TTL %s: it ended after %s with %v", ttl, at, u.Err)
			}
			if n := w.wires[0].Count("renew"); n < 2 {
				t.Errorf("TTL %s: %d attempts", ttl, n)
			}
		})
	}
}

// An outage that ends in time does no harm.
func TestARenewalIsRetried(t *testing.T) {
	inWorld(t, func(w *world) {
		r := asks("a")
		r.TTL = 3 * time.Second
		a := w.attach(r, nil)
		w.wires[0].Set(func(wire *fencingtest.Wire) { wire.After = fencingtest.Failing("renew") })
		advance(2 * time.Second)
		w.wires[0].Set(func(wire *fencingtest.Wire) { wire.After = nil })
		advance(10 * time.Second)
		a.leaves()
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
		r := asks("a")
		r.TTL = 3 * time.Second
		a := w.attach(r, func() bool { looks.Add(1); return ready.Load() })
		advance(2500 * time.Millisecond)
		w.want("renewals", w.wires[0].Count("renew"), 0)
		if n := looks.Load(); n < 5 || n > 20 {
			t.Errorf("it was looked at %d times", n)
		}
		ready.Store(true)
		advance(200 * time.Millisecond)
		w.want("renewals", w.wires[0].Count("renew"), 1)
		ready.Store(false)
		u, at := a.ended()
		if fencing.CodeOf(u.Err) != fencing.CodeUnavailable {
			t.Errorf("it ended with %v", u.Err)
		}
		if at >= 2700*time.Millisecond+r.TTL || at < 5*time.Second {
			t.Errorf("it ended after %s", at)
		}
		w.want("renewals", w.wires[0].Count("renew"), 1)
	})
}

func TestMaxHoldEndsAnAttachedLease(t *testing.T) {
	inWorld(t, func(w *world) {
		r := asks("a")
		r.TTL, r.MaxHold = 3*time.Second, 8*time.Second
		u, at := w.attach(r, nil).ended()
		if e := fencing.AsError(u.Err); e == nil || e.Code != fencing.CodeLeaseLost || e.Reason != fencing.ReasonExpired || at != r.MaxHold {
			t.Errorf("it ended after %s with %v", at, u.Err)
		}
	})
}

func TestDrainEndsAttachments(t *testing.T) {
	inWorld(t, func(w *world) {
		a := w.attach(asks("a"), nil)
		w.dogs[0].Drain()
		if u, _ := a.ended(); fencing.CodeOf(u.Err) != fencing.CodeDraining {
			t.Errorf("it ended with %v", u.Err)
		}
		if w.holder("a") == nil {
			t.Error("it was released")
		}
		late := asks("b")
		late.Attach = true
		if _, err := w.all[0].Begin(&Request{AcquireRequest: late}); fencing.CodeOf(err) != fencing.CodeDraining {
			t.Errorf("a new one began with %v", err)
		}
	})
}

// A reader that is slow sees the newest update, and the end.
func TestASlowReaderOfUpdates(t *testing.T) {
	inWorld(t, func(w *world) {
		r := asks("a")
		r.TTL, r.MaxHold = 3*time.Second, 9*time.Second
		r.Attach = true
		updates := w.ask(0, r).Session.Keep(w.t.Context(), nil)
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
		r := asks("a")
		r.TTL = 3 * time.Second
		w.holds(w.ask(0, r), true)
		advance(2200 * time.Millisecond)
		r.Stamp = fencing.NewStamp()
		a := w.attach(r, nil)
		advance(2 * time.Second)
		a.leaves()
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
		r := asks("a")
		r.TTL = time.Hour
		a := w.attach(r, nil)
		waiter := w.ask(0, asks("a"))
		w.waits(waiter)
		if _, err := w.dogs[0].Do(w.t.Context(), fencing.ReleaseRequest{Name: "a", Lease: r.Lease, Stamp: r.Stamp, Linger: 300 * time.Millisecond}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		<-waiter.done
		if took := time.Since(began); took < 300*time.Millisecond || took > 310*time.Millisecond {
			t.Errorf("it came after %s", took)
		}
		w.holds(waiter, true)
		a.leaves()
	})
}

// A renewal of a stream that comes behind the release, as one that was under way may, does not
// keep the lease.
func TestALateRenewalOfALeaseThatLingers(t *testing.T) {
	inWorld(t, func(w *world) {
		r := asks("a")
		r.TTL, r.Attach = 3*time.Second, true
		updates := w.ask(0, r).Session.Keep(w.t.Context(), nil)
		if _, err := w.dogs[0].Do(w.t.Context(), fencing.ReleaseRequest{Name: "a", Lease: r.Lease, Stamp: r.Stamp, Linger: 2 * time.Second}); err != nil {
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
