package quorum

import (
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
)

func TestWaiting(t *testing.T) {
	play(t, func(s *scene) {
		holder := request("a")
		s.acquire(holder)
		var waiting []fencing.AcquireRequest
		for i := range 3 {
			r := request("a")
			r.Wait = time.Minute
			out := s.acquire(r)
			if !out.Waits() || !out.Joined || out.Place.Position != i+1 || out.Lock.Waiting != i+1 || !out.Lock.Held() {
				t.Fatalf("request %d: %+v", i, out)
			}
			waiting = append(waiting, r)
		}
		_, err := s.Acquire(bg, request("a"))
		if e := s.refused(err, fencing.CodeLocked); e.Lock.Waiting != 3 || !e.Lock.Held() {
			t.Errorf("the refusal shows %+v", e.Lock)
		}
		last := fencing.Token(0)
		before := holder
		for _, r := range waiting {
			advance(300 * time.Millisecond)
			start := time.Now()
			if _, err := s.Release(bg, fencing.ReleaseRequest{Name: "a", Lease: before.Lease}); err != nil {
				t.Fatal(err)
			}
			g := <-s.heard.grants
			if g.Stamp != r.Stamp || g.Holder.Lease != r.Lease.Public() || g.Holder.Provisional || g.Holder.Token <= last {
				t.Errorf("granted %+v", g.Grant)
			}
			if took := time.Since(start); took > 100*time.Millisecond {
				t.Errorf("the hand-over took %s", took)
			}
			if left := g.Holder.ExpiresAt.Sub(g.now) - time.Since(g.asked); left > r.TTL-marginOf(r.TTL, testSkew) {
				t.Errorf("%s are promised of %s", left, r.TTL)
			}
			r.Again = true
			if out := s.acquire(r); out.Holder.Token != g.Holder.Token || !out.Fresh {
				t.Errorf("asked again, the answer is %+v", out)
			}
			last, before = g.Holder.Token, r
		}
		synctest.Wait()
		if n := s.waiting("a"); n != 0 {
			t.Errorf("%d still wait", n)
		}
	})
}

func TestLeave(t *testing.T) {
	play(t, func(s *scene) {
		holder := request("a")
		s.acquire(holder)
		r := request("a")
		r.Wait = time.Minute
		s.acquire(r)
		_, err := s.Leave(bg, fencing.LeaveRequest{Name: "a", Lease: r.Lease, Stamp: fencing.NewStamp()})
		s.refused(err, fencing.CodeReplaced)
		advance(time.Second)
		out, err := s.Leave(bg, fencing.LeaveRequest{Name: "a", Lease: r.Lease, Stamp: r.Stamp})
		if err != nil || out.Place == nil || out.Place.Position != 1 || !out.Lock.Held() {
			t.Fatalf("%+v, %v", out, err)
		}
		if _, err := s.Release(bg, fencing.ReleaseRequest{Name: "a", Lease: holder.Lease}); err != nil {
			t.Fatal(err)
		}
		advance(5 * time.Second)
		synctest.Wait()
		if n := s.holders("a", r.Lease); n != 0 || len(s.heard.grants) != 0 {
			t.Errorf("a request that has left got the lease at %d nodes", n)
		}
	})
}

// A newer request with a lease id that waits takes the place over.
func TestReplaced(t *testing.T) {
	play(t, func(s *scene) {
		holder := request("a")
		s.acquire(holder)
		r := request("a")
		r.Wait = time.Minute
		s.acquire(r)
		old := r.Stamp
		r.Stamp = fencing.NewStamp()
		if out := s.acquire(r); !out.Waits() || out.Place.Position != 1 || out.Joined {
			t.Errorf("%+v", out)
		}
		if stamp := <-s.heard.replaced; stamp != old {
			t.Errorf("%s was told that it is replaced, not %s", stamp, old)
		}
		if _, err := s.TakeBack(bg, fencing.TakeBackRequest{Name: "a", Lease: r.Lease, Stamp: old}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Release(bg, fencing.ReleaseRequest{Name: "a", Lease: holder.Lease}); err != nil {
			t.Fatal(err)
		}
		if g := <-s.heard.grants; g.Stamp != r.Stamp {
			t.Errorf("granted to %s, not to %s", g.Stamp, r.Stamp)
		}
		if _, err := s.TakeBack(bg, fencing.TakeBackRequest{Name: "a", Lease: r.Lease, Stamp: r.Stamp}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := s.holders("a", r.Lease); n != 0 {
			t.Errorf("%d nodes still have what was taken back", n)
		}
	})
}

// A request whose lease id has ended while it waited hears so when it asks.
func TestRefusedWhileWaiting(t *testing.T) {
	play(t, func(s *scene) {
		s.acquire(request("a"))
		r := request("a")
		r.Wait = time.Minute
		s.acquire(r)
		other := s.open()
		synctest.Wait()
		for _, node := range s.nodes { // another gateway had the lease for it, and its client let it go
			for h := range node.Snapshot().Records["a"].Holders.All() {
				if _, err := node.Break(bg, fencing.BreakRequest{Name: "a", Token: h.Token}); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := node.Model.Acquire(bg, r); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := other.Release(bg, fencing.ReleaseRequest{Name: "a", Lease: r.Lease}); err != nil {
			t.Fatal(err)
		}
		<-s.heard.rechecks
		r.Again = true
		_, err := s.Acquire(bg, r)
		s.refused(err, fencing.CodeLeaseLost)
	})
}

// Of two gateways that wait, both get the lock in the end, and a writer is not
// starved by readers.
func TestTwoGateways(t *testing.T) {
	play(t, func(s *scene) {
		other := s.open()
		second := &ear{grants: make(chan heard, 16), replaced: make(chan fencing.Stamp, 16), rechecks: make(chan []fencing.Name, 16)}
		other.Listen(second)
		holder := request("a")
		s.acquire(holder)
		mine, theirs := request("a"), request("a")
		mine.Wait, theirs.Wait = time.Minute, time.Minute
		s.acquire(mine)
		if out, err := other.Acquire(bg, theirs); err != nil || !out.Waits() {
			t.Fatalf("%+v, %v", out, err)
		}
		if _, err := s.Release(bg, fencing.ReleaseRequest{Name: "a", Lease: holder.Lease}); err != nil {
			t.Fatal(err)
		}
		tokens := map[fencing.Token]bool{}
		for range 2 {
			var g heard
			select {
			case g = <-s.heard.grants:
				mine.Again = true
			case g = <-second.grants:
				mine.Again = false
			}
			if tokens[g.Holder.Token] {
				t.Errorf("token %d twice", g.Holder.Token)
			}
			tokens[g.Holder.Token] = true
			lease, store := theirs.Lease, other
			if mine.Again {
				lease, store = mine.Lease, s.Store
			}
			if _, err := store.Release(bg, fencing.ReleaseRequest{Name: "a", Lease: lease}); err != nil {
				t.Fatal(err)
			}
		}
	})
}
