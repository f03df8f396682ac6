package quorum

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
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
		if _, err := s.Do(bg, fencing.RenewRequest{Name: r.Name, Lease: r.Lease}); err != nil {
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
			s.pass(2 * time.Second) // until it is asked again
			renew(s, r)
		},
	} {
		t.Run(title, func(t *testing.T) {
			playLenient(t, asIs, func(s *scene) {
				slow := func(op string) {
					if op == "acquire" {
						advance(50 * time.Millisecond)
					}
				}
				s.nodes[2].set(func(n *node) { n.before = slow })
				r := request("a")
				before(s, r)
				if _, err := s.Do(bg, fencing.ReleaseRequest{Name: "a", Lease: r.Lease}); err != nil {
					t.Fatal(err)
				}
				advance(200 * time.Millisecond)
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
	playLenient(t, asIs, func(s *scene) {
		for i, n := range s.nodes {
			random, mu := rand.New(rand.NewPCG(uint64(i), 0)), sync.Mutex{}
			n.set(func(n *node) {
				n.before = func(string) {
					mu.Lock()
					pause := time.Duration(random.IntN(40)) * time.Millisecond
					mu.Unlock()
					advance(pause)
				}
			})
		}
		const callers, rounds = 6, 30
		began := time.Now()
		var working sync.WaitGroup
		for range callers {
			working.Go(func() {
				for range rounds {
					r := request("a")
					r.TTL, r.Wait = time.Hour, time.Hour
					for {
						_, err := s.Do(bg, r)
						if err == nil {
							break
						}
						if code := asError(err).Code; code != fencing.CodeLocked && !uncertain(code) {
							t.Error(err)
							return
						}
						advance(50*time.Millisecond + rand.N(100*time.Millisecond))
					}
					if _, err := s.Do(bg, fencing.ReleaseRequest{Name: "a", Lease: r.Lease}); err != nil {
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
		advance(200 * time.Millisecond)
		synctest.Wait()
		for i, n := range s.nodes {
			if record := n.Snapshot().Records["a"]; record != nil && record.Holders.Len() > 0 {
				t.Errorf("node %d still has %+v", i, slices.Collect(record.Holders.All()))
			}
		}
	})
}

type outcome struct {
	out fencing.Outcome
	err error
}

func (s *scene) background(ctx context.Context, r fencing.AcquireRequest) chan outcome {
	c := make(chan outcome, 1)
	go func() { out, err := s.Do(ctx, r); c <- outcome{out, err} }()
	return c
}

// A renewal that finds nothing, or a release, while an acquire of the same lease id is
// under way: whoever is told of a grant has it (P1), and the acquire ends.
func TestEndMeetsAcquire(t *testing.T) {
	for name, wrap := range map[string]func(fencing.Node) fencing.Node{
		"proposed": asIs, "claimed": func(n fencing.Node) fencing.Node { return unproposed{n} },
	} {
		for _, verb := range []string{"renew", "release", "renew by another", "release by another"} {
			t.Run(name+" "+verb, func(t *testing.T) {
				playLenient(t, wrap, func(s *scene) {
					slowly("acquire", 50*time.Millisecond, s.nodes[1:]...)
					r := request("a")
					ctx, cancel := context.WithTimeout(bg, time.Hour)
					defer cancel()
					began := time.Now()
					got := s.background(ctx, r)
					advance(10 * time.Millisecond)
					lease := r.Lease
					if strings.HasSuffix(verb, "another") {
						lease = imposter(t, lease)
					}
					var err error
					if strings.HasPrefix(verb, "renew") {
						_, err = s.Do(bg, fencing.RenewRequest{Name: "a", Lease: lease})
					} else {
						_, err = s.Do(bg, fencing.ReleaseRequest{Name: "a", Lease: lease})
					}
					g := <-got
					took := time.Since(began)
					advance(20 * time.Millisecond)
					n := s.holders("a", r.Lease)
					t.Logf("%s: %v; acquire after %s: %v, token %d, at %d nodes", verb, err, took, g.err, g.out.Holder.Token, n)
					if took > time.Second {
						t.Errorf("the acquire took %s", took)
					}
					if g.err == nil && n < 2 && (verb != "release" || err != nil) {
						t.Errorf("granted for %s, but only %d nodes have it", g.out.Holder.ExpiresAt.Sub(g.out.Now), n)
						advance(80 * time.Millisecond)
						if out, err := s.Do(bg, request("a")); err == nil {
							t.Errorf("P1: %d was granted while %d lives", out.Holder.Token, g.out.Holder.Token)
						}
					}
				})
			})
		}
	}
}

// A repeat may still be under way when the grant is taken back: P6.
func TestTakeBackAfterRepeat(t *testing.T) {
	playLenient(t, asIs, func(s *scene) {
		r := request("a")
		slowly("acquire", 50*time.Millisecond, s.nodes[2])
		s.acquire(r)
		advance(10 * time.Millisecond)
		s.acquire(r)
		if _, err := s.Do(bg, fencing.TakeBackRequest{Name: "a", Lease: r.Lease, Stamp: r.Stamp}); err != nil {
			t.Fatal(err)
		}
		s.pass(5 * time.Second)
		if n := s.holders("a", r.Lease); n != 0 {
			t.Errorf("a grant that was taken back is left at %d nodes", n)
		}
	})
}

// A repeat that comes after the lease has run out leaves nothing where it was unknown.
func TestRepeatAfterExpiry(t *testing.T) {
	playLenient(t, asIs, func(s *scene) {
		r := request("a")
		s.nodes[2].set(func(n *node) { n.cut = true })
		s.acquire(r)
		s.nodes[2].set(func(n *node) { n.cut = false })
		s.pass(r.TTL + time.Second)
		_, err := s.Do(bg, r)
		s.refused(err, fencing.CodeLeaseLost)
		s.pass(time.Second)
		if n := s.holders("a", r.Lease); n != 0 {
			t.Errorf("a repeat that was refused is left at %d nodes", n)
		}
	})
}

// A client that comes again while a slow node is busy with its first request, which was
// taken back: the second grant can be taken back as well.
func TestTakeBackTwice(t *testing.T) {
	playLenient(t, asIs, func(s *scene) {
		calls := map[string][]time.Duration{ // at node 2
			"acquire":   {80 * time.Millisecond, 65 * time.Millisecond},
			"take_back": {10 * time.Millisecond, 30 * time.Millisecond},
		}
		s.nodes[2].set(func(n *node) {
			n.before = func(op string) {
				n.mu.Lock()
				var d time.Duration
				if left := calls[op]; len(left) > 0 {
					d, calls[op] = left[0], left[1:]
				}
				n.mu.Unlock()
				advance(d)
			}
		})
		r := request("a")
		s.acquire(r) // 80 at node 2
		if _, err := s.Do(bg, fencing.TakeBackRequest{Name: "a", Lease: r.Lease, Stamp: r.Stamp}); err != nil {
			t.Fatal(err)
		}
		advance(10 * time.Millisecond)  // 20
		for _, n := range s.nodes[:1] { // so that node 2 counts
			slowly("acquire", 75*time.Millisecond, n)
		}
		second := r
		second.Stamp = fencing.NewStamp()
		s.acquire(second)
		if _, err := s.Do(bg, fencing.TakeBackRequest{Name: "a", Lease: r.Lease, Stamp: second.Stamp}); err != nil {
			t.Fatal(err)
		}
		s.pass(2 * time.Second)
		if n := s.holders("a", r.Lease); n != 0 {
			t.Errorf("a grant that was taken back is left at %d nodes", n)
		}
	})
}

// The node's own repetition of a command whose answer was lost is no older grant.
func TestNodeRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newNodes(t, 3)
		var nodes []fencing.Node
		for _, n := range s.nodes {
			nodes = append(nodes, twice{n})
		}
		q, err := Open(nodes, Options{MaxSkew: testSkew, NodeTimeout: 100 * time.Millisecond, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		defer q.Close()
		s.Store = q
		synctest.Wait()
		r := request("a")
		out := s.acquire(r)
		if !out.Fresh {
			t.Error("it counts as that of an older request")
		}
		if _, err := s.Do(bg, fencing.TakeBackRequest{Name: "a", Lease: r.Lease, Stamp: r.Stamp}); err != nil {
			t.Fatal(err)
		}
		s.pass(2 * time.Second)
		if n := s.holders("a", r.Lease); n != 0 {
			t.Errorf("a grant that was taken back is left at %d nodes", n)
		}
	})
}

type twice struct{ fencing.Node }

func (n twice) Do(ctx context.Context, op fencing.Op) (fencing.Outcome, error) {
	if _, acquires := op.(fencing.AcquireRequest); acquires {
		if out, err := n.Node.Do(ctx, op); err != nil {
			return out, err
		}
	}
	return n.Node.Do(ctx, op)
}

// A node is slow, and the lease has been released when it refuses, with an attempt that
// had no answer and is granted after that: it is taken back there.
func TestNodeRefusesWithAnAttemptUnanswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, 3)
		slowly("acquire", 50*time.Millisecond, s.nodes[2])
		s.nodes[2].set(func(n *node) {
			n.says = func(op string) error {
				if op != "acquire" {
					return nil
				}
				return &fencing.Error{Code: fencing.CodeLocked, Lock: &fencing.Lock{Name: "a"}, Unanswered: true}
			}
		})
		r := request("a")
		r.TTL = time.Minute
		s.acquire(r)
		if _, err := s.Do(bg, fencing.ReleaseRequest{Name: "a", Lease: r.Lease}); err != nil {
			t.Fatal(err)
		}
		s.pass(10 * time.Second)
		if n := s.holders("a", r.Lease); n != 0 {
			t.Errorf("%d nodes have it", n)
		}
	})
}
