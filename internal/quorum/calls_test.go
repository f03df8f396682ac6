package quorum

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
)

// fewCalls are as many as ever wait for a node to answer: while others are slow, too, as on a busy
// machine, calls are sent until it owes maxOwed, and each count that looked before that may send one.
const fewCalls = maxOwed + maxCounts

// hang has renewals at a node wait until resume.
func hang(n *node) (resume func()) {
	over := make(chan struct{})
	n.set(func(n *node) {
		n.before = func(op string) {
			if op == "renew" {
				<-over
			}
		}
	})
	return func() {
		n.set(func(n *node) { n.before = nil })
		close(over)
	}
}

// renewAtOnce renews a lease so often at the same time, and returns once all are answered.
func (s *scene) renewAtOnce(lease fencing.LeaseID, times int) {
	s.t.Helper()
	var renewals sync.WaitGroup
	for range times {
		renewals.Go(func() {
			if _, err := s.Do(bg, fencing.RenewRequest{Name: "a", Lease: lease}); err != nil {
				s.t.Error(err)
			}
		})
	}
	renewals.Wait()
	synctest.Wait()
}

// owes returns how many answers about a lease a node owes.
func (s *scene) owes(node int, lease fencing.LeaseID) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.calls[leaseKey{"a", lease.Public()}]
	if c == nil {
		return 0
	}
	return c.owed[node]
}

// However many renew a lease, few calls wait behind a node that hangs, and few goroutines.
func TestManyRenewBehindANodeThatHangs(t *testing.T) {
	play(t, func(s *scene) {
		r := request("a")
		s.acquire(r)
		synctest.Wait()
		resume := hang(s.nodes[2])
		s.renewAtOnce(r.Lease, 1000)
		if n := s.owes(2, r.Lease); n > fewCalls {
			t.Errorf("the node owes %d answers", n)
		}
		if n := s.busy.Load(); n > 2*fewCalls {
			t.Errorf("%d goroutines are at work", n)
		}
		resume()
		synctest.Wait()
		s.renewAtOnce(r.Lease, 1)
		if n := s.owes(2, r.Lease); n != 0 {
			t.Errorf("the node owes %d answers", n)
		}
	})
}

// Nor where a majority hangs, and each caller gives up soon.
func TestManyRenewBehindAMajorityThatHangs(t *testing.T) {
	play(t, func(s *scene) {
		r := request("a")
		r.TTL = time.Hour
		s.acquire(r)
		synctest.Wait()
		resume := []func(){hang(s.nodes[1]), hang(s.nodes[2])}
		for range 200 {
			ctx, cancel := context.WithTimeout(bg, 50*time.Millisecond)
			if _, err := s.Do(ctx, fencing.RenewRequest{Name: "a", Lease: r.Lease}); err == nil {
				t.Error("it was renewed by one node of three")
			}
			cancel()
		}
		synctest.Wait()
		if n := s.owes(1, r.Lease); n > 2*fewCalls {
			t.Errorf("the node owes %d answers", n)
		}
		for _, resume := range resume {
			resume()
		}
		synctest.Wait()
		s.renewAtOnce(r.Lease, 1)
	})
}

// Renewals at once at nodes that answer are all answered, also where two of them are slower.
func TestRenewalsAtOnce(t *testing.T) {
	play(t, func(s *scene) {
		r := request("a")
		s.acquire(r)
		synctest.Wait()
		slowly("renew", 10*time.Millisecond, s.nodes[1:]...)
		s.renewAtOnce(r.Lease, 200)
		slowly("renew", 10*time.Millisecond, s.nodes[0])
		s.renewAtOnce(r.Lease, 200)
	})
}

// A release is kept from no node for the renewals before it: it would have the lease for
// the rest of its TTL.
func TestReleaseBehindRenewals(t *testing.T) {
	play(t, func(s *scene) {
		r := request("a")
		s.acquire(r)
		synctest.Wait()
		resume := hang(s.nodes[2])
		s.renewAtOnce(r.Lease, 100)
		if _, err := s.Do(bg, fencing.ReleaseRequest{Name: "a", Lease: r.Lease}); err != nil {
			t.Fatal(err)
		}
		resume()
		synctest.Wait()
		if n := s.holders("a", r.Lease); n != 0 {
			t.Errorf("%d nodes have it", n)
		}
	})
}

// Releases pile up behind a node that hangs no more than renewals do.
func TestManyReleaseBehindANodeThatHangs(t *testing.T) {
	play(t, func(s *scene) {
		r := request("a")
		s.acquire(r)
		synctest.Wait()
		resume := hang(s.nodes[2])
		s.renewAtOnce(r.Lease, 20)
		for range 100 {
			_, _ = s.Do(bg, fencing.ReleaseRequest{Name: "a", Lease: r.Lease})
		}
		synctest.Wait()
		if n := s.owes(2, r.Lease); n > fewCalls {
			t.Errorf("the node owes %d answers", n)
		}
		resume()
	})
}

// The end of the gateway ends the wait behind a node that hangs.
func TestCloseBehindANodeThatHangs(t *testing.T) {
	play(t, func(s *scene) {
		r := request("a")
		s.acquire(r)
		synctest.Wait()
		s.nodes[2].set(func(n *node) { n.silent = true })
		s.renewAtOnce(r.Lease, 100)
		began := time.Now()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 2*s.options.NodeTimeout { // by the time of the bubble
			t.Errorf("it took %s", took)
		}
	})
}
