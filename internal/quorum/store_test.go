package quorum

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
)

var bg = context.Background()

// play runs a test in a bubble, on 3 nodes.
func play(t *testing.T, test func(s *scene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(newScene(t, 3)) })
}

func TestAcquireAndRelease(t *testing.T) {
	play(t, func(s *scene) {
		r := request("a/b")
		first := s.acquire(r)
		synctest.Wait()
		if n := s.holders(r.Name, r.Lease); n != 3 || !first.Fresh {
			t.Errorf("%d nodes have it; %+v", n, first)
		}
		for i, node := range s.nodes {
			if h := node.Snapshot().Records[r.Name].Holders.First(); h.Token != first.Holder.Token || !h.Claimed {
				t.Errorf("node %d has token %d, not %d", i, h.Token, first.Holder.Token)
			}
		}
		if left := first.Holder.ExpiresAt.Sub(first.Now); left > r.TTL-marginOf(r.TTL, testSkew) {
			t.Errorf("%s are promised of %s", left, r.TTL)
		}
		_, err := s.Do(bg, request(r.Name))
		refusal := s.refused(err, fencing.CodeLocked)
		if l := refusal.Lock; !l.Held() || l.Holders[0].Lease != r.Lease.Public() || refusal.RetryAfter <= 0 {
			t.Errorf("the refusal does not show the holder: %+v", refusal)
		}
		if _, err := s.Do(bg, fencing.ReleaseRequest{Name: r.Name, Lease: r.Lease}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Do(bg, fencing.ReleaseRequest{Name: r.Name, Lease: r.Lease}); err != nil {
			t.Errorf("a retried release: %v", err)
		}
		_, err = s.Do(bg, r)
		if e := s.refused(err, fencing.CodeLeaseLost); e.Reason != fencing.ReasonReleased {
			t.Errorf("the lease id has ended, and the reason is %s", e.Reason)
		}
		if second := s.acquire(request(r.Name)); second.Holder.Token <= first.Holder.Token {
			t.Errorf("token %d after %d", second.Holder.Token, first.Holder.Token)
		}
	})
}

func TestRetryIsTheSameGrant(t *testing.T) {
	play(t, func(s *scene) {
		r := request("a")
		first := s.acquire(r)
		synctest.Wait()
		s.nodes[0].set(func(n *node) { n.cut = true })
		r.Stamp = fencing.NewStamp()
		again := s.acquire(r)
		if again.Holder.Token != first.Holder.Token || again.Fresh {
			t.Errorf("got %d, fresh %t; want %d", again.Holder.Token, again.Fresh, first.Holder.Token)
		}
		// The grant is not the first request's any more.
		if _, err := s.Do(bg, fencing.TakeBackRequest{Name: r.Name, Lease: r.Lease, Stamp: r.Stamp}); err != nil {
			t.Fatal(err)
		}
		if n := s.holders(r.Name, r.Lease); n != 3 {
			t.Errorf("%d nodes have it", n)
		}
	})
}

func TestMinorityOutOfReach(t *testing.T) {
	for name, harm := range map[string]func(*node){
		"cut":    func(n *node) { n.cut = true },
		"silent": func(n *node) { n.silent = true },
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *scene) {
				synctest.Wait()
				s.nodes[1].set(harm)
				start := time.Now()
				r := request("a")
				out := s.acquire(r)
				if _, err := s.Do(bg, fencing.RenewRequest{Name: r.Name, Lease: r.Lease}); err != nil {
					t.Fatal(err)
				}
				seen, err := s.Do(bg, fencing.InspectRequest{Name: r.Name})
				if err != nil || len(seen.Lock.Holders) != 1 || seen.Lock.Holders[0].Token != out.Holder.Token {
					t.Fatalf("%+v, %v", seen.Lock, err)
				}
				if took := time.Since(start); took > 0 {
					t.Errorf("it took %s: somebody waited for the slow one", took)
				}
				if _, err := s.Do(bg, fencing.ReleaseRequest{Name: r.Name, Lease: r.Lease}); err != nil {
					t.Fatal(err)
				}
				next := s.acquire(request("a"))
				if next.Holder.Token <= out.Holder.Token {
					t.Errorf("token %d after %d", next.Holder.Token, out.Holder.Token)
				}
			})
		})
	}
}

func TestMajorityOutOfReach(t *testing.T) {
	play(t, func(s *scene) {
		r := request("a")
		s.acquire(r)
		synctest.Wait()
		s.nodes[0].set(func(n *node) { n.cut = true })
		s.nodes[2].set(func(n *node) { n.silent = true })
		start := time.Now()
		other := request("b")
		_, err := s.Do(bg, other)
		s.refused(err, fencing.CodeUnavailable)
		if took := time.Since(start); took > time.Second {
			t.Errorf("it took %s", took)
		}
		_, err = s.Do(bg, fencing.RenewRequest{Name: r.Name, Lease: r.Lease})
		s.refused(err, fencing.CodeUnavailable)
		_, err = s.Do(bg, fencing.InspectRequest{Name: r.Name})
		s.refused(err, fencing.CodeUnavailable)
		s.refused(s.Check(bg), fencing.CodeUnavailable)
		if n := s.holders(other.Name, other.Lease); n != 0 {
			t.Errorf("%d nodes were left with what a majority did not grant", n)
		}
		for _, n := range s.nodes {
			n.set(func(n *node) { n.cut, n.silent = false, false })
		}
		s.acquire(request("b"))
	})
}

// A lease is lost only if a majority says so (P8).
func TestLostIsNotUnknown(t *testing.T) {
	play(t, func(s *scene) {
		r := request("a")
		s.nodes[2].set(func(n *node) { n.cut = true })
		s.acquire(r)
		synctest.Wait()
		s.nodes[2].set(func(n *node) { n.cut = false })
		s.nodes[0].forget()
		// One never knew it, one has forgotten it, one has it.
		_, err := s.Do(bg, fencing.RenewRequest{Name: r.Name, Lease: r.Lease})
		if e := asError(err); e == nil || !uncertain(e.Code) {
			t.Errorf("got %v: nobody can know that", err)
		}
		s.pass(2 * time.Second) // the node is back, but in quarantine
		_, err = s.Do(bg, fencing.RenewRequest{Name: r.Name, Lease: r.Lease})
		if e := asError(err); e != nil && !uncertain(e.Code) {
			t.Errorf("got %v: nobody can know that", err)
		}
	})
}

// A release that one node has carried out, while the others have forgotten the lease, is
// not refused as if nothing had been done (P8): the lock is free. Nor is it if the answer of
// that node is lost.
func TestReleaseWhereOthersHaveForgotten(t *testing.T) {
	for name, lost := range map[string]bool{"answered": false, "answer lost": true} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *scene) {
				s.acquire(request("before"))
				synctest.Wait() // for the node that was not needed, too
				s.nodes[0].forget()
				s.pass(2 * time.Second) // it is back, but in quarantine
				r := request("a")
				s.acquire(r)
				synctest.Wait()
				s.nodes[1].forget()
				s.nodes[2].set(func(n *node) {
					n.before = func(op string) {
						if op == "release" {
							advance(50 * time.Millisecond) // the others answer first
						}
					}
					n.lost = func(op string) bool { return lost && op == "release" }
				})
				_, err := s.Do(bg, fencing.ReleaseRequest{Name: r.Name, Lease: r.Lease})
				if lost {
					s.refused(err, fencing.CodeUnavailable)
				} else if err != nil {
					t.Error(err)
				}
				if n := s.holders(r.Name, r.Lease); n != 0 {
					t.Errorf("%d nodes have the lease", n)
				}
			})
		})
	}
}

func TestExpiredIsLost(t *testing.T) {
	play(t, func(s *scene) {
		r := request("a")
		first := s.acquire(r)
		s.pass(r.TTL + time.Second)
		_, err := s.Do(bg, fencing.RenewRequest{Name: r.Name, Lease: r.Lease})
		if e := s.refused(err, fencing.CodeLeaseLost); e.Reason != fencing.ReasonExpired {
			t.Errorf("the reason is %s", e.Reason)
		}
		second := s.acquire(request("a"))
		_, err = s.Do(bg, fencing.RenewRequest{Name: r.Name, Lease: r.Lease})
		if e := s.refused(err, fencing.CodeLeaseLost); e.Reason != fencing.ReasonSuperseded || e.CurrentToken != second.Holder.Token {
			t.Errorf("the reason is %s by %d, after %d and %d", e.Reason, e.CurrentToken, first.Holder.Token, second.Holder.Token)
		}
		_, err = s.Do(bg, fencing.RenewRequest{Name: r.Name, Lease: fencing.NewLeaseID(time.Now())})
		if e := s.refused(err, fencing.CodeLeaseLost); e.Reason != fencing.ReasonUnknown {
			t.Errorf("the reason is %s", e.Reason)
		}
	})
}

// A late acquire must not come to life behind its undo.
func TestLateAcquireIsUndone(t *testing.T) {
	play(t, func(s *scene) {
		r := request("a")
		other := request("a")
		s.acquire(other)
		synctest.Wait()
		s.nodes[0].set(func(n *node) {
			n.before = func(op string) {
				if op == "acquire" {
					advance(150 * time.Millisecond) // beyond the node's time, within the guard
				}
			}
		})
		// The node that is late has lost the other lease meanwhile.
		if _, err := s.nodes[0].Model.Do(bg, fencing.BreakRequest{Name: "a", Token: s.nodes[0].Snapshot().Records["a"].LastToken}); err != nil {
			t.Fatal(err)
		}
		late := s.nodes[0]
		_, err := s.Do(bg, r)
		s.refused(err, fencing.CodeLocked)
		s.pass(5 * time.Second)
		if held := slices.Collect(late.Snapshot().Records["a"].Holders.All()); len(held) != 0 {
			t.Errorf("a lease was left behind: %+v", held)
		}
	})
}

func TestTakeBack(t *testing.T) {
	play(t, func(s *scene) {
		r := request("a")
		s.acquire(r)
		synctest.Wait()
		for range 2 {
			if _, err := s.Do(bg, fencing.TakeBackRequest{Name: r.Name, Lease: r.Lease, Stamp: r.Stamp}); err != nil {
				t.Fatal(err)
			}
		}
		if n := s.holders(r.Name, r.Lease); n != 0 {
			t.Errorf("%d nodes still have it", n)
		}
		s.acquire(r) // the lease id has not ended
		if _, err := s.Do(bg, fencing.RenewRequest{Name: r.Name, Lease: r.Lease}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Do(bg, fencing.TakeBackRequest{Name: r.Name, Lease: r.Lease, Stamp: r.Stamp}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := s.holders(r.Name, r.Lease); n != 3 {
			t.Errorf("%d nodes have it: a holder that has renewed was told", n)
		}
	})
}

func TestUnsupported(t *testing.T) {
	play(t, func(s *scene) {
		r := request("a")
		r.Mode, r.Limit = fencing.ModeShared, 3
		_, err := s.Do(bg, r)
		s.refused(err, fencing.CodeUnsupportedByStore)
		r = request("a")
		r.Set = "a b"
		_, err = s.Do(bg, r)
		s.refused(err, fencing.CodeUnsupportedByStore)
		r = request("a")
		r.LockDelay = time.Second
		_, err = s.Do(bg, r)
		if e := s.refused(err, fencing.CodeUnsupportedByStore); e.Field != "lock_delay_ms" {
			t.Errorf("the field is %q", e.Field)
		}
		_, err = s.Do(bg, fencing.AdmitRequest{Name: "a", Token: 1})
		if e := s.refused(err, fencing.CodeUnsupportedByStore); e.Field != "slot" {
			t.Errorf("the field is %q", e.Field)
		}
		r = request("a")
		r.TTL = testSkew
		_, err = s.Do(bg, r)
		if e := s.refused(err, fencing.CodeInvalidRequest); e.Field != "ttl_ms" {
			t.Errorf("the field is %q", e.Field)
		}
		r.TTL = shortestTTL(testSkew, 100*time.Millisecond)
		s.acquire(r)
		for _, mode := range []fencing.Mode{fencing.ModeShared, ""} {
			_, err = s.Do(bg, fencing.RenewRequest{Name: "a", Lease: r.Lease, Mode: mode, Limit: 2})
			s.refused(err, fencing.CodeUnsupportedByStore)
		}
		for field, labels := range map[string]fencing.RenewRequest{"owner": {Owner: "other"}, "metadata": {Metadata: map[string]string{}}} {
			labels.Name, labels.Lease = "a", r.Lease
			_, err = s.Do(bg, labels)
			if e := s.refused(err, fencing.CodeUnsupportedByStore); e.Field != field {
				t.Errorf("the field is %q", e.Field)
			}
		}
		if out, err := s.Do(bg, fencing.RenewRequest{Name: "a", Lease: r.Lease, Mode: fencing.ModeShared}); err != nil || out.Holder.Mode != fencing.ModeShared {
			t.Errorf("a downgrade: %+v, %v", out.Holder, err)
		}
	})
}

func TestBreak(t *testing.T) {
	play(t, func(s *scene) {
		r := request("a")
		s.nodes[0].set(func(n *node) { n.cut = true })
		out := s.acquire(r)
		synctest.Wait()
		s.nodes[0].set(func(n *node) { n.cut = false })
		_, err := s.Do(bg, fencing.BreakRequest{Name: "a", Token: out.Holder.Token + 1})
		if e := s.refused(err, fencing.CodeStaleToken); !e.Lock.Held() {
			t.Error("the refusal does not show the holder")
		}
		if _, err := s.Do(bg, fencing.BreakRequest{Name: "a", Token: out.Holder.Token}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Do(bg, fencing.BreakRequest{Name: "a", Token: out.Holder.Token}); err != nil {
			t.Errorf("a retried break: %v", err)
		}
		_, err = s.Do(bg, fencing.RenewRequest{Name: "a", Lease: r.Lease})
		if e := s.refused(err, fencing.CodeLeaseLost); e.Reason != fencing.ReasonBroken {
			t.Errorf("the reason is %s", e.Reason)
		}
	})
}

// A renewal brings a lease back to a node that does not know it, so that the quorum
// does not wear away.
func TestBringBack(t *testing.T) {
	play(t, func(s *scene) {
		r := request("a")
		s.nodes[0].set(func(n *node) { n.cut = true })
		out := s.acquire(r)
		synctest.Wait()
		s.nodes[0].set(func(n *node) { n.cut = false })
		if _, err := s.Do(bg, fencing.RenewRequest{Name: "a", Lease: r.Lease}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := s.holders("a", r.Lease); n != 3 {
			t.Fatalf("%d nodes have it", n)
		}
		if h := s.nodes[0].Snapshot().Records["a"].Holders.First(); !h.Claimed || h.Token != out.Holder.Token {
			t.Errorf("the node has token %d, claimed %t; want %d", h.Token, h.Claimed, out.Holder.Token)
		}
		s.nodes[1].set(func(n *node) { n.cut = true })
		if _, err := s.Do(bg, fencing.RenewRequest{Name: "a", Lease: r.Lease}); err != nil {
			t.Errorf("the lease has worn away: %v", err)
		}
	})
}

// A retry finds the lease whichever node answers first: P7.
func TestRetryWithMissingNode(t *testing.T) {
	playLenient(t, asIs, func(s *scene) {
		r := request("a")
		s.nodes[2].set(func(n *node) { n.cut = true })
		first := s.acquire(r)
		s.nodes[2].set(func(n *node) { n.cut = false })
		s.pass(2 * time.Second)
		slowly("acquire", 20*time.Millisecond, s.nodes[0])
		r.Stamp = fencing.NewStamp()
		out, err := s.Do(bg, r)
		if err != nil || out.Holder.Token != first.Holder.Token {
			t.Errorf("%v, token %d, want %d", err, out.Holder.Token, first.Holder.Token)
		}
	})
}

// Nothing is remembered of what is over.
func TestNothingIsLeftBehind(t *testing.T) {
	play(t, func(s *scene) {
		s.nodes[1].set(func(n *node) { n.lost = func(op string) bool { return op == "take_back" } })
		for range 100 {
			r := request("a")
			s.acquire(r)
			_, err := s.Do(bg, request("a"))
			s.refused(err, fencing.CodeLocked)
			if _, err := s.Do(bg, fencing.TakeBackRequest{Name: "a", Lease: r.Lease, Stamp: r.Stamp}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait() // the one that was refused may have got a node before the first did
		}
		s.nodes[1].set(func(n *node) { n.lost = nil })
		s.pass(time.Minute)
		s.mu.Lock()
		defer s.mu.Unlock()
		if n := len(s.Store.calls) + len(s.undos.underWay) + len(s.undos.retryStamps) + len(s.undos.order); n != 0 || s.undos.waiting.Load() != 0 {
			t.Errorf("%d calls, %d take-backs, %d waiting, %d stamps", len(s.Store.calls), len(s.undos.underWay), s.undos.waiting.Load(), len(s.undos.retryStamps))
		}
	})
}

// A request that comes again while what it has left is still being taken back is not
// undone by that, and can be taken back itself; so can the lease of its stream.
func TestComesAgainWhileUndone(t *testing.T) {
	for _, verb := range []string{"kept", "take_back", "release"} {
		t.Run(verb, func(t *testing.T) {
			playLenient(t, asIs, func(s *scene) {
				for _, n := range s.nodes[:2] { // what is granted there is not told, nor that it was taken back
					n.set(func(n *node) { n.lost = func(op string) bool { return op == "acquire" || op == "take_back" } })
				}
				r := request("a")
				r.Wait, r.Attach = time.Minute, true
				_, err := s.Do(bg, r)
				s.refused(err, fencing.CodeUnavailable)
				for _, n := range s.nodes[:2] {
					n.set(func(n *node) { n.lost = nil })
				}
				advance(50 * time.Millisecond)
				s.suspect[0].Store(false)
				s.suspect[1].Store(false)
				out := s.acquire(r)
				want := 3
				switch verb {
				case "take_back":
					_, err = s.Do(bg, fencing.TakeBackRequest{Name: "a", Lease: r.Lease, Stamp: r.Stamp})
					want = 0
				case "release":
					_, err = s.Do(bg, fencing.ReleaseRequest{Name: "a", Lease: r.Lease, Stamp: r.Stamp})
					want = 0
				}
				if err != nil && verb != "kept" {
					t.Fatal(err)
				}
				s.pass(5 * time.Second)
				if n := s.holders("a", r.Lease); n != want {
					t.Errorf("%d nodes have the lease with %d", n, out.Holder.Token)
				}
			})
		})
	}
}

// The same while a node has not answered the try that was refused: what that gets there
// is undone, but not what the next one does.
func TestComesAgainWhileANodeIsSlow(t *testing.T) {
	playLenient(t, asIs, func(s *scene) {
		other := request("a")
		s.acquire(other)
		synctest.Wait()
		if _, err := s.nodes[2].Model.Do(bg, fencing.ReleaseRequest{Name: "a", Lease: other.Lease}); err != nil {
			t.Fatal(err)
		}
		slowly("acquire", 50*time.Millisecond, s.nodes[2])
		r := request("a")
		r.Wait = time.Minute
		_, err := s.Do(bg, r)
		s.refused(err, fencing.CodeLocked)
		s.release(other)
		synctest.Wait() // a majority has it; the third node must have it, too
		s.acquire(r)
		s.pass(time.Second)
		if n := s.holders("a", r.Lease); n != 3 {
			t.Errorf("%d nodes have it", n)
		}
	})
}

// While too much is to be taken back from nodes that do not answer, nothing is tried.
func TestTooMuchIsUndone(t *testing.T) {
	play(t, func(s *scene) {
		s.undos.waiting.Store(maxUndoing)
		_, err := s.Do(bg, request("a"))
		s.refused(err, fencing.CodeUnavailable)
		s.undos.waiting.Store(0)
		s.acquire(request("a"))
	})
}

// No more stamps of requests are remembered than may be.
func TestRenamedIsBounded(t *testing.T) {
	play(t, func(s *scene) {
		for i := range maxRenamed + 10 {
			key := requestKey{leaseKey{fencing.Name(fmt.Sprint(i)), "lease"}, "stamp"}
			s.undos.underWay[key] = 1
			if stamp, err := s.stampFor(key); err != nil || stamp == key.stamp || s.stampAt(key) != stamp {
				t.Fatalf("%s, %v", stamp, err)
			}
		}
		if n := len(s.undos.retryStamps); n > maxRenamed || len(s.undos.order) != n {
			t.Errorf("%d are remembered, in order %d", n, len(s.undos.order))
		}
	})
}
