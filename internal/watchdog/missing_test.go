package watchdog

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
)

// askedStore answers acquires as it is told, and notes who asked again.
type askedStore struct {
	straysStore
	answer func(r *fencing.AcquireRequest, now fencing.Instant) fencing.Outcome
	asked  []fencing.Stamp
}

func (s *askedStore) Do(ctx context.Context, op fencing.Op) (fencing.Outcome, error) {
	r, acquires := op.(fencing.AcquireRequest)
	if !acquires {
		return s.straysStore.Do(ctx, op)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Again {
		s.asked = append(s.asked, r.Stamp)
	}
	now := fencing.InstantOf(time.Now())
	if s.answer == nil || !r.Again {
		return fencing.Outcome{Now: now, Place: &fencing.Waiter{Position: 1}}, nil
	}
	return s.answer(&r, now), nil
}

// withWaiters runs a test with requests that wait for a name at a gateway of its own.
func withWaiters(t *testing.T, s *askedStore, name fencing.Name, many int, test func(w *Watchdog, seen *counts, waiters []*Waiter)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		seen := &counts{}
		w := New(s, Options{Observer: seen})
		w.listen()
		var waiters []*Waiter
		for range many {
			_, waiter, err := w.Join(t.Context(), request(name))
			if err != nil {
				t.Fatal(err)
			}
			waiters = append(waiters, waiter)
			advance(time.Microsecond)
		}
		test(w, seen, waiters)
		w.Stop()
	})
}

// entriesFor is what a store tells of requests.
func entriesFor(waiters []*Waiter, provisional bool) (all []fencing.Entry) {
	for _, t := range waiters {
		all = append(all, fencing.Entry{Name: t.ask.Name, Lease: t.ask.Lease.Public(), Stamp: t.ask.Stamp, Provisional: provisional})
	}
	return all
}

func stampsOf(waiters []*Waiter) (all []fencing.Stamp) {
	for _, t := range waiters {
		all = append(all, t.ask.Stamp)
	}
	return all
}

// Of many that the store has forgotten, each asks once, in order of arrival, and no
// heartbeat has more than its share asked for.
func TestManyMissing(t *testing.T) {
	const more = 100
	s := &askedStore{}
	withWaiters(t, s, "a", maxMissing+more, func(w *Watchdog, _ *counts, waiters []*Waiter) {
		listener{w}.Has([]fencing.Name{"a"}, time.Now(), nil)
		synctest.Wait()
		if len(s.asked) != maxMissing {
			t.Errorf("%d asked after a heartbeat, want %d", len(s.asked), maxMissing)
		}
		advance(time.Millisecond)
		listener{w}.Has([]fencing.Name{"a"}, time.Now(), entriesFor(waiters[:len(s.asked)], false))
		synctest.Wait()
		if !slices.Equal(s.asked, stampsOf(waiters)) {
			t.Errorf("%d asked, each once and in order of arrival: want %d", len(s.asked), len(waiters))
		}
		advance(time.Millisecond)
		listener{w}.Has([]fencing.Name{"a"}, time.Now(), entriesFor(waiters, false))
		synctest.Wait()
		if n := w.requests.queues["a"]; len(s.asked) != len(waiters) || len(n.missing) != 0 || n.asking {
			t.Errorf("%d have asked, and %d are to, of %d whom the store has", len(s.asked), len(n.missing), len(waiters))
		}
	})
}

// Nobody is searched for, wherever the store has its place: a queue is in the order in which
// places were last told of, so that the missing are its first, and none is moved but to the end.
func TestTheMissingAreInFront(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	s := &askedStore{answer: func(_ *fencing.AcquireRequest, now fencing.Instant) fencing.Outcome { // by a clock that is behind
		return fencing.Outcome{Now: now, Place: &fencing.Waiter{Waiting: time.Duration(random.IntN(1e9))}}
	}}
	withWaiters(t, s, "a", 100, func(w *Watchdog, _ *counts, waiters []*Waiter) {
		for range 50 {
			advance(time.Millisecond)
			told, since := []*Waiter{}, time.Now()
			for _, i := range random.Perm(len(waiters))[:random.IntN(len(waiters))] {
				told = append(told, waiters[i])
			}
			s.asked = nil
			listener{w}.Has([]fencing.Name{"a"}, since, entriesFor(told, false))
			synctest.Wait()
			if len(s.asked) != len(waiters)-len(told) {
				t.Fatalf("%d asked, want %d", len(s.asked), len(waiters)-len(told))
			}
			n := w.requests.queues["a"]
			count := 1
			for t := n.first; t.next != nil; t = t.next {
				if count++; t.next.known < t.known {
					panic(fmt.Sprintf("%s is known since %s, and behind it one since %s", t.ask.Stamp, t.known, t.next.known))
				}
			}
			if count != len(waiters) {
				t.Fatalf("%d in the queue, want %d", count, len(waiters))
			}
		}
	})
}

// A lease that a request has not heard of is asked for at once, though the store has not
// told of all yet; who stands behind it is not.
func TestALeaseIsAskedForBeforeAllIsTold(t *testing.T) {
	s := &askedStore{answer: granted1}
	withWaiters(t, s, "a", 3, func(w *Watchdog, seen *counts, waiters []*Waiter) {
		listener{w}.Has(nil, time.Now(), entriesFor(waiters[:1], true))
		synctest.Wait()
		if !slices.Equal(s.asked, stampsOf(waiters[:1])) {
			t.Errorf("%d asked, want the one that was granted the lease", len(s.asked))
		}
		if n := seen.of("lost"); n != 1 {
			t.Errorf("%d messages counted as lost, want 1", n)
		}
	})
}

// granted1 grants to whoever asks.
func granted1(r *fencing.AcquireRequest, now fencing.Instant) fencing.Outcome {
	h := fencing.Holder{Lease: r.Lease.Public(), Token: 1, TTL: r.TTL, AcquiredAt: now, ExpiresAt: now.Add(r.TTL)}
	return fencing.Outcome{Now: now, Asked: time.Now(), Holder: h}
}

// No message was lost of a lease that is granted to who asks again; of one that was there, it was.
func TestFoundLost(t *testing.T) {
	for want, age := range []time.Duration{0, time.Second} {
		s := &askedStore{answer: func(r *fencing.AcquireRequest, now fencing.Instant) fencing.Outcome {
			out := granted1(r, now)
			out.Holder.AcquiredAt = now.Add(-age)
			return out
		}}
		withWaiters(t, s, "a", 1, func(w *Watchdog, seen *counts, _ []*Waiter) {
			listener{w}.Has([]fencing.Name{"a"}, time.Now(), nil)
			synctest.Wait()
			if n := seen.of("lost"); n != want {
				t.Errorf("granted %s before: %d counted as lost, want %d", age, n, want)
			}
		})
	}
}
