package quorum

import (
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
)

// The end of a lease may overtake its beginning at a node that is slow: nothing of it
// stays there.
func TestEndOvertakesBeginning(t *testing.T) {
	renew := func(s *scene, r fencing.AcquireRequest) {
		if _, err := s.Renew(bg, fencing.RenewRequest{Name: r.Name, Lease: r.Lease}); err != nil {
			s.t.Error(err)
		}
	}
	for title, before := range map[string]func(*scene, fencing.AcquireRequest){
		"granted": func(s *scene, r fencing.AcquireRequest) { s.acquire(r) },
		"renewed": func(s *scene, r fencing.AcquireRequest) { s.acquire(r); renew(s, r) },
		"brought back": func(s *scene, r fencing.AcquireRequest) {
			s.nodes[2].set(func(n *node) { n.cut = true })
			s.acquire(r)
			s.nodes[2].set(func(n *node) { n.cut = false })
			time.Sleep(2 * time.Second) // until it is asked again
			renew(s, r)
		},
	} {
		t.Run(title, func(t *testing.T) {
			play(t, func(s *scene) {
				slow := func(op string) {
					if op == "acquire" {
						time.Sleep(50 * time.Millisecond)
					}
				}
				s.nodes[2].set(func(n *node) { n.before = slow })
				r := request("a")
				before(s, r)
				if _, err := s.Release(bg, fencing.ReleaseRequest{Name: "a", Lease: r.Lease}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(200 * time.Millisecond)
				if n := s.holders("a", r.Lease); n != 0 {
					t.Errorf("a lease that was released is left at %d nodes", n)
				}
			})
		})
	}
}

// Those who compete at nodes of changing speed leave nothing in each other's way: not
// even a try that is repeated while a node has yet to answer the one before.
func TestCrowdAtSlowNodes(t *testing.T) {
	play(t, func(s *scene) {
		for i, n := range s.nodes {
			random, mu := rand.New(rand.NewPCG(uint64(i), 0)), sync.Mutex{}
			n.set(func(n *node) {
				n.before = func(string) {
					mu.Lock()
					pause := time.Duration(random.IntN(40)) * time.Millisecond
					mu.Unlock()
					time.Sleep(pause)
				}
			})
		}
		const callers, rounds = 6, 30
		var inboxes sync.Map // of grants, by stamp
		over := make(chan struct{})
		defer close(over)
		go func() {
			for {
				select {
				case g := <-s.heard.grants:
					if inbox, ok := inboxes.Load(g.Stamp); ok {
						inbox.(chan struct{}) <- struct{}{}
					}
				case <-over:
					return
				}
			}
		}()
		began := time.Now()
		var working sync.WaitGroup
		for range callers {
			working.Go(func() {
				for range rounds {
					r := request("a")
					r.TTL, r.Wait = time.Hour, time.Hour
					inbox := make(chan struct{}, 1)
					inboxes.Store(r.Stamp, inbox)
					if out, err := s.Acquire(bg, r); err != nil {
						t.Error(err)
						return
					} else if out.Waits() {
						<-inbox
					}
					if _, err := s.Release(bg, fencing.ReleaseRequest{Name: "a", Lease: r.Lease}); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		working.Wait()
		took := time.Since(began)
		t.Logf("%d turns in %s", callers*rounds, took)
		if most := callers * rounds * time.Second / 2; took > most {
			t.Errorf("%d turns took %s, more than %s: something was in the way", callers*rounds, took, most)
		}
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		for i, n := range s.nodes {
			if record := n.Snapshot().Records["a"]; record != nil && len(record.Holders) > 0 {
				t.Errorf("node %d still has %+v", i, record.Holders)
			}
		}
	})
}
