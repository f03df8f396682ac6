package quorum

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
)

// P7: the holder asks again while others wait at its gateway. Whoever else does is
// refused, even if the lock is free.
func TestBehindOthers(t *testing.T) {
	play(t, func(s *scene) {
		r := request("a")
		first := s.acquire(r)
		for hold := 1; hold <= 2; hold++ {
			again := r
			again.Stamp, again.Wait, again.Hold, again.Behind = fencing.NewStamp(), 10*time.Second, hold, true
			if out := s.acquire(again); out.Holder.Token != first.Holder.Token || out.Holder.Hold != hold {
				t.Errorf("hold %d: %+v", hold, out.Holder)
			}
		}
		if _, err := s.Do(bg, fencing.ReleaseRequest{Name: "a", Lease: r.Lease}); err != nil {
			t.Fatal(err)
		}
		for _, wait := range []time.Duration{0, time.Minute} {
			other := request("a")
			other.Wait, other.Behind = wait, true
			_, err := s.Do(bg, other)
			if e := s.refused(err, fencing.CodeLocked); e.Lock == nil {
				t.Error("the refusal does not show the lock")
			}
			if n := s.holders("a", other.Lease); n != 0 {
				t.Errorf("%d nodes have it", n)
			}
		}
	})
}

// A request that may wait is refused with when to come back, and what can't be done is
// refused at once.
func TestNoQueue(t *testing.T) {
	play(t, func(s *scene) {
		if s.Capabilities().Queue {
			t.Error("it says that it has a queue")
		}
		holder := s.acquire(request("a"))
		r := request("a")
		r.Wait = time.Minute
		_, err := s.Do(bg, r)
		if e := s.refused(err, fencing.CodeLocked); e.RetryAfter <= 0 || len(e.Lock.Holders) != 1 || e.Lock.Holders[0].Token != holder.Holder.Token {
			t.Errorf("%+v", e)
		}
		r.Behind, r.Mode, r.Limit = true, fencing.ModeShared, 2
		_, err = s.Do(bg, r)
		s.refused(err, fencing.CodeUnsupportedByStore)
	})
}

func tokenAt(s *scene, i int, r fencing.AcquireRequest) (fencing.Token, fencing.Stamp) {
	record := s.nodes[i].Snapshot().Records[r.Name]
	if record == nil {
		return 0, ""
	}
	h, _ := record.Holders.Find(r.Lease.Public())
	return h.Token, h.Stamp
}

// missedByNode2 acquires a lease while node 2 is cut off, after which the others are
// slower than it is.
func (s *scene) missedByNode2() (r fencing.AcquireRequest, first fencing.Outcome) {
	s.t.Helper()
	s.nodes[2].set(func(n *node) { n.cut = true })
	r = request("a")
	first = s.acquire(r)
	s.nodes[2].set(func(n *node) { n.cut = false })
	s.pass(2 * time.Second)
	slowly("acquire", 10*time.Millisecond, s.nodes[:2]...)
	return r, first
}

func (s *scene) noOtherTokenAtNode2(r fencing.AcquireRequest, first fencing.Outcome) {
	s.t.Helper()
	token, stamp := tokenAt(s, 2, r)
	s.t.Logf("first %d; node 2 has %d under %q", first.Holder.Token, token, stamp)
	if token != 0 && token != first.Holder.Token {
		s.t.Errorf("node 2 is left with %d", token)
	}
}

// isToldAgain fails unless another request for the lease is told of the first grant.
func (s *scene) isToldAgain(r fencing.AcquireRequest, first fencing.Outcome) {
	s.t.Helper()
	r.Stamp = fencing.NewStamp()
	if out, err := s.Do(bg, r); err != nil || out.Holder.Token != first.Holder.Token {
		s.t.Errorf("retry: %d %v", out.Holder.Token, err)
	}
}

// P7: two gateways repeat an acquire that a node missed.
func TestTwoGatewaysRetry(t *testing.T) {
	playLenient(t, asIs, func(s *scene) {
		other := s.open()
		defer other.Close()
		synctest.Wait()
		r, first := s.missedByNode2()
		one, two := r, r
		one.Stamp, two.Stamp = fencing.NewStamp(), fencing.NewStamp()
		got := s.background(bg, one)
		advance(time.Millisecond)
		out, err := other.Do(bg, two)
		g := <-got
		t.Logf("one: %d %v; two: %d %v", g.out.Holder.Token, g.err, out.Holder.Token, err)
		s.pass(3 * time.Second)
		token, stamp := tokenAt(s, 2, r)
		t.Logf("first %d; node 2 has %d under %q", first.Holder.Token, token, stamp)
		for range 5 {
			if _, err := s.Do(bg, fencing.RenewRequest{Name: "a", Lease: r.Lease}); err != nil {
				t.Error(err)
			}
			s.pass(5 * time.Second)
			s.isToldAgain(r, first)
		}
	})
}

// A repeat of a request under its own stamp leaves its proposal at a node that missed it.
func TestRepeatLeavesProposal(t *testing.T) {
	playLenient(t, asIs, func(s *scene) {
		r, first := s.missedByNode2()
		again := s.acquire(r)
		s.pass(3 * time.Second)
		t.Logf("again %d", again.Holder.Token)
		s.noOtherTokenAtNode2(r, first)
		s.isToldAgain(r, first)
	})
}

// A bring-back crosses a retry.
func TestBringBackCrossesRetry(t *testing.T) {
	playLenient(t, asIs, func(s *scene) {
		r, first := s.missedByNode2()
		slowly("renew", 0, s.nodes[2])
		renewed := make(chan error, 1)
		go func() {
			_, err := s.Do(bg, fencing.RenewRequest{Name: "a", Lease: r.Lease})
			renewed <- err
		}()
		// node 2 answers the renewal before it gets the retry
		s.nodes[0].set(func(n *node) {
			n.before = func(op string) { advance(5 * time.Millisecond) }
		})
		advance(time.Millisecond)
		one := r
		one.Stamp = fencing.NewStamp()
		out, err := s.Do(bg, one)
		t.Logf("retry: %d %v; renewal: %v", out.Holder.Token, err, <-renewed)
		s.pass(3 * time.Second)
		s.noOtherTokenAtNode2(r, first)
		slowly("acquire", 10*time.Millisecond, s.nodes[:2]...)
		s.isToldAgain(r, first)
	})
}

// The end overtakes the beginning, and the answer of the beginning is lost.
func TestEndOvertakesLostAnswer(t *testing.T) {
	for _, verb := range []string{"release", "take_back"} {
		t.Run(verb, func(t *testing.T) {
			playLenient(t, asIs, func(s *scene) {
				slowly("acquire", 50*time.Millisecond, s.nodes[2])
				s.nodes[2].set(func(n *node) { n.lost = func(op string) bool { return op == "acquire" } })
				r := request("a")
				s.acquire(r)
				var err error
				if verb == "release" {
					_, err = s.Do(bg, fencing.ReleaseRequest{Name: "a", Lease: r.Lease})
				} else {
					_, err = s.Do(bg, fencing.TakeBackRequest{Name: "a", Lease: r.Lease, Stamp: r.Stamp})
				}
				if err != nil {
					t.Fatal(err)
				}
				s.pass(4 * time.Second)
				if n := s.holders("a", r.Lease); n != 0 {
					t.Errorf("left at %d nodes", n)
				}
			})
		})
	}
}

// An acquire that meets a bring-back of a store that is being closed.
func TestClosedDuringBringBack(t *testing.T) {
	playLenient(t, asIs, func(s *scene) {
		s.nodes[2].set(func(n *node) { n.cut = true })
		r := request("a")
		s.acquire(r)
		s.nodes[2].set(func(n *node) { n.cut = false })
		s.pass(2 * time.Second)
		s.nodes[2].set(func(n *node) {
			n.before = func(op string) {
				if op == "renew" {
					advance(50 * time.Millisecond)
				}
			}
		})
		two := r
		two.Stamp = fencing.NewStamp()
		slowly("acquire", 70*time.Millisecond, s.nodes[:2]...)
		ctx, cancel := context.WithTimeout(bg, time.Hour)
		defer cancel()
		a := s.background(ctx, two) // a retry
		advance(time.Millisecond)
		three := two
		three.Stamp = fencing.NewStamp()
		b := s.background(ctx, three) // waits for it
		advance(time.Millisecond)
		// not the lease that is known at node 2 by now, so that there is something to bring back
		s.nodes[2].forget()
		s.nodes[2].set(func(n *node) { n.blank = false })
		if _, err := s.Do(bg, fencing.RenewRequest{Name: "a", Lease: r.Lease}); err != nil {
			t.Fatal(err)
		}
		advance(10 * time.Millisecond)
		began := time.Now()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		one, g := <-a, <-b
		t.Logf("the retry: %v", one.err)
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("an acquire took %s on a closed store: %v", took, g.err)
		}
	})
}
