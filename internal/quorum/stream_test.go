package quorum

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
)

// stream returns a request of a stream.
func stream(name fencing.Name) fencing.AcquireRequest {
	r := request(name)
	r.Attach = true
	return r
}

// newer returns another stream with the lease id of r.
func newer(r fencing.AcquireRequest) fencing.AcquireRequest {
	r.Stamp, r.Attach = fencing.NewStamp(), true
	return r
}

// renewal is a renewal by the stream of r, which was told of so many takeovers.
func renewal(r fencing.AcquireRequest, epoch int64) fencing.RenewRequest {
	return fencing.RenewRequest{Name: r.Name, Lease: r.Lease, Stamp: r.Stamp, Epoch: epoch}
}

// renews has the stream of r renew, and remembers how many takeovers it was told of.
func (s *scene) renews(r fencing.AcquireRequest) {
	s.t.Helper()
	out, err := s.Do(bg, renewal(r, s.told))
	if err != nil || out.Holder.Attached != r.Stamp {
		s.t.Fatalf("%+v, %v", out.Holder, err)
	}
	s.told = out.Holder.Epoch
}

// hangsOn fails unless a lease hangs on a request at a node.
func (s *scene) hangsOn(node int, r fencing.AcquireRequest) {
	s.t.Helper()
	if h := s.holding(node, r); h.Attached != r.Stamp {
		s.t.Errorf("at node %d it hangs on %q, want %q", node, h.Attached, r.Stamp)
	}
}

// holding returns what a lease is at a node.
func (s *scene) holding(node int, r fencing.AcquireRequest) fencing.Holder {
	h, _ := s.nodes[node].Model.Snapshot().Records[r.Name].Holders.Find(r.Lease.Public())
	return h.Holder
}

// reach cuts nodes off, or has them reached again.
func (s *scene) reach(reached bool, nodes ...int) {
	synctest.Wait()
	s.setCut(!reached, nodes...)
	s.pass(2 * time.Second) // in which nodes are asked whether they answer again
}

func (s *scene) setCut(cut bool, nodes ...int) {
	for _, i := range nodes {
		s.nodes[i].set(func(n *node) { n.cut = cut })
	}
}

// A stream that was replaced at a majority renews no more, and the newest one has the lease at
// every node with its next renewal, also at one that it could not reach before.
func TestStreamReplaced(t *testing.T) {
	for what, by := range map[string]func(r fencing.AcquireRequest) fencing.AcquireRequest{
		"stream":    newer,
		"no stream": func(r fencing.AcquireRequest) fencing.AcquireRequest { r = newer(r); r.Attach = false; return r },
	} {
		t.Run(what, func(t *testing.T) {
			play(t, func(s *scene) {
				first := stream("a")
				s.acquire(first)
				if _, err := s.Do(bg, renewal(first, 0)); err != nil {
					t.Fatal(err)
				}
				s.reach(false, 2)
				second := by(first)
				out := s.acquire(second)
				if out.Holder.Epoch != 1 {
					t.Errorf("%d takeovers are told", out.Holder.Epoch)
				}
				s.reach(true, 2)
				_, err := s.Do(bg, renewal(first, 0))
				s.refused(err, fencing.CodeReplaced)
				if !second.Attach {
					return
				}
				s.hangsOn(2, first)
				if out, err = s.Do(bg, renewal(second, out.Holder.Epoch)); err != nil || out.Holder.Attached != second.Stamp || out.Holder.Epoch != 1 {
					t.Errorf("the newest: %+v, %v", out.Holder, err)
				}
				synctest.Wait()
				s.hangsOn(2, second)
				_, err = s.Do(bg, renewal(first, 0))
				s.refused(err, fencing.CodeReplaced)
			})
		})
	}
}

// A newer request that reached a minority only ends no stream that a majority has, nor does that lean on
// fewer nodes from then on: what hangs on a try that came to nothing, or on no stream, goes back to it.
func TestStreamReplacedAtAMinority(t *testing.T) {
	for what, by := range map[string]func(*fencing.AcquireRequest){
		"stream": func(*fencing.AcquireRequest) {}, "no stream": func(r *fencing.AcquireRequest) { r.Attach = false },
	} {
		t.Run(what, func(t *testing.T) {
			play(t, func(s *scene) {
				first := stream("a")
				first.TTL = time.Minute
				s.acquire(first)
				s.reach(false, 1, 2)
				second := newer(first)
				by(&second)
				_, err := s.Do(bg, second)
				s.refused(err, fencing.CodeUnavailable)
				s.reach(true, 1, 2)
				if second.Attach {
					s.hangsOn(0, second)
				}
				for range 3 {
					s.renews(first)
					s.pass(3 * time.Second)
				}
				if n := s.holders("a", first.Lease); n != 3 {
					t.Errorf("%d nodes have the lease: a try that came to nothing released it", n)
				}
				s.hangsOn(0, first)
				s.reach(false, 1)
				s.renews(first)

				// The next one that has a majority replaces it, also if it does not reach the node that has seen more.
				s.reach(true, 1)
				s.reach(false, 0)
				third := newer(first)
				out := s.acquire(third)
				s.reach(true, 0)
				_, err = s.Do(bg, renewal(first, s.told))
				s.refused(err, fencing.CodeReplaced)
				s.told = out.Holder.Epoch
				for range 3 {
					s.renews(third)
					s.pass(3 * time.Second)
				}
				for i := range s.nodes {
					s.hangsOn(i, third)
				}
			})
		})
	}
}

// A newer stream that has a majority by the time that the older one looks at what hangs on it keeps it.
func TestStreamThatIsAboutToHaveAMajority(t *testing.T) {
	play(t, func(s *scene) {
		first := stream("a")
		first.TTL = time.Minute
		s.acquire(first)
		synctest.Wait()
		second := newer(first)
		attach := func(node int) {
			if _, err := s.nodes[node].Do(bg, s.newTry(leaseKey{}, second, second.Stamp).ask); err != nil {
				t.Fatal(err)
			}
		}
		attach(0)
		s.renews(first)
		synctest.Wait()
		attach(1)
		s.pass(3 * time.Second)
		s.reach(false, 0)
		_, err := s.Do(bg, renewal(first, s.told))
		s.refused(err, fencing.CodeUnavailable)
		s.reach(true, 0)
		s.reach(false, 2)
		s.told = 1
		s.renews(second)
		s.reach(true, 2)
		s.renews(second)
		synctest.Wait()
		for i := range s.nodes {
			s.hangsOn(i, second)
		}
	})
}

// A stream that took the lease over, and whose client has gone before it was told, lets go of it.
func TestStreamLeft(t *testing.T) {
	play(t, func(s *scene) {
		first := stream("a")
		s.acquire(first)
		second := newer(first)
		s.acquire(second)
		back := fencing.TakeBackRequest{Name: "a", Lease: first.Lease, Stamp: second.Stamp}
		if _, err := s.Do(bg, back); err != nil || s.holders("a", first.Lease) != 3 {
			t.Errorf("a take-back: %v, at %d nodes", err, s.holders("a", first.Lease))
		}
		back.Left, back.Linger = true, 5*time.Second
		if _, err := s.Do(bg, back); err != nil || s.holders("a", first.Lease) != 3 {
			t.Errorf("left to linger: %v, at %d nodes", err, s.holders("a", first.Lease))
		}
		third := newer(first)
		s.acquire(third)
		back.Stamp, back.Linger = third.Stamp, 0
		if out, err := s.Do(bg, back); err != nil || s.holders("a", first.Lease) != 0 || len(out.Ended) != 1 {
			t.Errorf("left: %v, at %d nodes, ended %+v", err, s.holders("a", first.Lease), out.Ended)
		}
	})
}

// A stream that reached a minority only, and was refused, lets go of nothing: a majority has the lease hang on
// another one, which has it back at every node.
func TestStreamLeftAtAMinority(t *testing.T) {
	for _, linger := range []time.Duration{0, 3 * time.Second} {
		t.Run(linger.String(), func(t *testing.T) {
			play(t, func(s *scene) {
				first := stream("a")
				first.TTL = time.Minute
				s.acquire(first)
				s.reach(false, 1, 2)
				second := newer(first)
				_, err := s.Do(bg, second)
				s.refused(err, fencing.CodeUnavailable)
				s.reach(true, 1, 2)
				if _, err := s.Do(bg, fencing.TakeBackRequest{Name: "a", Lease: first.Lease, Stamp: second.Stamp, Left: true, Linger: linger}); err != nil {
					t.Error(err)
				}
				for range 3 {
					s.pass(5 * time.Second)
					s.renews(first)
				}
				if n := s.holders("a", first.Lease); n != 3 {
					t.Fatalf("%d nodes have the lease", n)
				}
				s.hangsOn(0, first)
			})
		})
	}
}

// A node that has forgotten a lease has it back on the stream that it hangs on, also if the holder
// renews it by itself.
func TestStreamIsBroughtBack(t *testing.T) {
	play(t, func(s *scene) {
		r := stream("a")
		s.acquire(r)
		for i := range s.nodes {
			s.nodes[i].forget()
			s.nodes[i].set(func(n *node) { n.blank = false })
			if _, err := s.Do(bg, fencing.RenewRequest{Name: "a", Lease: r.Lease}); err != nil {
				t.Fatal(err)
			}
			s.pass(time.Second)
			s.hangsOn(i, r)
		}
		if _, err := s.Do(bg, renewal(r, 0)); err != nil {
			t.Error(err)
		}
	})
}

// A stream whose nodes know it by another stamp, for an earlier try of it was being undone, renews
// and releases under its own, however many others have got other stamps since.
func TestStreamOfASecondTry(t *testing.T) {
	play(t, func(s *scene) {
		r := stream("a")
		key := requestOf(r.Name, r.Lease, r.Stamp)
		s.beginUndo(key)
		out := s.acquire(r)
		s.endUndo(key)
		if s.stampAt(key) == r.Stamp || out.Holder.Attached != r.Stamp || out.Granted[0].Holder.Attached != r.Stamp {
			t.Fatalf("known as %s, told is %+v", s.stampAt(key), out.Holder)
		}
		renews := func() {
			t.Helper()
			if out, err := s.Do(bg, renewal(r, 0)); err != nil || out.Holder.Attached != r.Stamp {
				t.Errorf("%+v, %v", out.Holder, err)
			}
		}
		others := 0
		renames := func(n int) {
			for range n {
				others++
				key := requestKey{leaseKey{fencing.Name(fmt.Sprint(others)), "lease"}, "stamp"}
				s.beginUndo(key)
				if _, err := s.stampFor(key); err != nil {
					t.Fatal(err)
				}
				s.endUndo(key)
			}
		}
		renews()
		renames(maxRenamed)
		s.pass(5 * time.Second)
		renews()
		renames(maxRenamed)
		s.pass(5 * time.Second)
		renews()
		if _, err := s.Do(bg, fencing.ReleaseRequest{Name: "a", Lease: r.Lease, Stamp: r.Stamp}); err != nil {
			t.Error(err)
		}
		s.pass(10 * time.Second)
		if past, err := s.Do(bg, fencing.HistoryRequest{Name: "a"}); err != nil || len(past.Past) != 1 || past.Past[0].Reason != fencing.ReasonReleased {
			t.Errorf("%v, %+v", err, past.Past)
		}
		renames(maxRenamed)
		if s.stampOf(r.Name, r.Lease, r.Stamp) != r.Stamp || len(s.undos.retryStamps) > maxRenamed || len(s.undos.order) != len(s.undos.retryStamps) {
			t.Errorf("%d stamps are remembered, in order %d", len(s.undos.retryStamps), len(s.undos.order))
		}
	})
}

// What a stream lets go of is looked at behind its acquire, which may be on its way when its client has
// gone.
func TestStreamLeftBeforeItHasTheLease(t *testing.T) {
	play(t, func(s *scene) {
		first := stream("a")
		first.TTL = time.Minute
		s.acquire(first)
		synctest.Wait()
		held := make(chan struct{})
		for _, n := range s.nodes {
			n.set(func(n *node) {
				n.before = func(op string) {
					if op == "acquire" {
						<-held
					}
				}
			})
		}
		second := newer(first)
		ctx, cancel := context.WithCancel(bg)
		acquired := make(chan error)
		go func() {
			_, err := s.Do(ctx, second)
			acquired <- err
		}()
		synctest.Wait()
		cancel()
		s.refused(<-acquired, fencing.CodeUnavailable)
		done := make(chan error)
		go func() {
			_, err := s.Do(bg, fencing.TakeBackRequest{Name: "a", Lease: first.Lease, Stamp: second.Stamp, Left: true})
			done <- err
		}()
		synctest.Wait()
		close(held)
		if err := <-done; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if n := s.holders("a", first.Lease); n != 0 {
			t.Errorf("%d nodes have the lease", n)
		}
	})
}

// A node that has missed takeovers is no way back for the stream before the newest, be it that it renews or that
// it closes: the newest one, which leans on such a node, has the lease at a majority from then on.
func TestStreamReplacedWhereANodeHasMissedTakeovers(t *testing.T) {
	for _, back := range []bool{false, true} {
		for _, ends := range []bool{false, true} {
			t.Run(fmt.Sprintf("brought back %t, released %t", back, ends), func(t *testing.T) {
				play(t, func(s *scene) {
					older := stream("a")
					older.TTL = time.Hour
					if !back {
						s.acquire(older)
					}
					s.reach(false, 2)
					for range 4 {
						older = newer(older)
						s.told = s.acquire(older).Holder.Epoch
					}
					s.reach(true, 2)
					if back {
						s.renews(older)
						synctest.Wait()
						s.hangsOn(2, older)
						if seen := s.holding(2, older).Epoch; seen != s.told {
							t.Errorf("the node to which it was brought back has seen %d takeovers, the stream was told %d", seen, s.told)
						}
					}
					s.reach(false, 1)
					newest := newer(older)
					out := s.acquire(newest)
					if out.Holder.Epoch != s.told+1 {
						t.Errorf("the newest was told %d takeovers, the older one %d", out.Holder.Epoch, s.told)
					}
					s.reach(true, 1)
					if ends {
						if _, err := s.Do(bg, fencing.ReleaseRequest{Name: "a", Lease: older.Lease, Stamp: older.Stamp, Epoch: s.told}); err != nil {
							t.Error(err)
						}
					} else {
						_, err := s.Do(bg, renewal(older, s.told))
						s.refused(err, fencing.CodeReplaced)
					}
					s.told = out.Holder.Epoch
					for range 3 {
						s.renews(newest)
						s.pass(3 * time.Second)
					}
					s.hangsOn(0, newest)
					s.hangsOn(2, newest)
				})
			})
		}
	}
}

// The grant of a stream that a node leaves without an answer, once it is to see as many takeovers as another, is told.
func TestStreamWhereANodeThatMissedTakeoversIsSilent(t *testing.T) {
	play(t, func(s *scene) {
		r := stream("a")
		r.TTL = time.Hour
		s.acquire(r)
		s.reach(false, 2)
		for range 3 {
			r = newer(r)
			s.acquire(r)
		}
		s.reach(true, 2)
		s.reach(false, 1)
		s.nodes[2].set(func(n *node) { n.lost = func(op string) bool { return op == "renew" } })
		r = newer(r)
		if out := s.acquire(r); out.Holder.Attached != r.Stamp || out.Holder.Epoch != 1 {
			t.Errorf("told is %+v", out.Holder)
		}
	})
}

// What a newer request that came to nothing has reached does not keep the lease when the stream that had a majority
// lets go of it, nor does such a node count as one that has let go.
func TestStreamReleasedWhereANewerRequestCameToNothing(t *testing.T) {
	for _, linger := range []time.Duration{0, 5 * time.Second} {
		for _, away := range []bool{false, true} {
			t.Run(fmt.Sprintf("linger %s, a node away %t", linger, away), func(t *testing.T) {
				play(t, func(s *scene) {
					first, last := s.cameToNothing()
					if away {
						s.reach(false, 1)
					}
					release := fencing.ReleaseRequest{Name: "a", Lease: first.Lease, Stamp: first.Stamp, Linger: linger}
					_, err := s.Do(bg, release)
					if away {
						s.refused(err, fencing.CodeUnavailable)
						_, err = s.Do(bg, release) // where it lingers by now, or is over
						s.refused(err, fencing.CodeUnavailable)
						s.pass(10 * time.Second)
						_, err = s.Do(bg, release)
						s.refused(err, fencing.CodeUnavailable)
						s.reach(true, 1)
						_, err = s.Do(bg, release)
					}
					if err == nil && !away {
						_, err = s.Do(bg, release)
					}
					if err != nil {
						t.Fatal(err)
					}
					s.pass(2*linger + time.Second)
					if n := s.holders("a", first.Lease); n != 0 {
						t.Errorf("%d nodes have it", n)
					}
					_, err = s.Do(bg, renewal(last, 1))
					s.refused(err, fencing.CodeLeaseLost)
					s.reach(false, 1)
					s.acquire(request("a"))
				})
			})
		}
	}
}

// cameToNothing returns a stream that has a lease, of which it was told no takeovers, and a newer one that has
// reached a node of three, and was refused.
func (s *scene) cameToNothing() (first, last fencing.AcquireRequest) {
	s.t.Helper()
	first = stream("a")
	first.TTL = time.Hour
	s.acquire(first)
	s.reach(false, 1, 2)
	last = newer(first)
	_, err := s.Do(bg, last)
	s.refused(err, fencing.CodeUnavailable)
	s.reach(true, 1, 2)
	return first, last
}

// A stream that lets go, and does not know that a newer one has the lease, takes it from that at no majority, also
// if that had been refused before, or has the lease while it lingers.
func TestStreamReleasedBehindANewerOne(t *testing.T) {
	for _, linger := range []time.Duration{0, 5 * time.Second} {
		for _, before := range []bool{false, true} {
			t.Run(fmt.Sprintf("linger %s, taken over before %t", linger, before), func(t *testing.T) {
				play(t, func(s *scene) {
					first, _ := s.cameToNothing()
					newest := newer(first)
					takes := func() {
						s.reach(false, 2)
						s.told = s.acquire(newest).Holder.Epoch
						s.renews(newest) // or it has what is left of what lingers
						s.reach(true, 2)
					}
					if before {
						takes()
					}
					if _, err := s.Do(bg, fencing.ReleaseRequest{Name: "a", Lease: first.Lease, Stamp: first.Stamp, Linger: linger}); err != nil {
						t.Fatal(err)
					}
					switch {
					case !before && linger == 0:
						_, err := s.Do(bg, newest)
						s.refused(err, fencing.CodeLeaseLost)
						return
					case !before:
						takes()
					}
					for range 10 {
						s.pass(3 * time.Second)
						s.renews(newest)
					}
					s.hangsOn(0, newest)
					s.hangsOn(1, newest)
				})
			})
		}
	}
}

// A lease hangs on the stream that most nodes name, whatever takeovers they have seen.
func TestStreamThatMostNodesName(t *testing.T) {
	on := func(stamp fencing.Stamp, epoch int64) *fencing.Holder {
		return &fencing.Holder{Attached: stamp, Epoch: epoch}
	}
	for _, tt := range []struct {
		at    hangings
		nodes int
		stamp fencing.Stamp
		epoch int64
	}{
		{hangings{on("s", 5), on("x", 3), on("s", 2)}, 3, "s", 3},
		{hangings{on("s", 2), on("x", 3), on("s", 5)}, 3, "s", 3},
		{hangings{on("", 2), on("x", 3), on("", 2)}, 3, "", 2},
		{hangings{on("s", 2), on("x", 3)}, 3, "x", 2},
		{hangings{on("x", 3), on("s", 1), on("s", 1)}, 5, "s", 1},
		{hangings{on("s", 1)}, 3, "s", 1},
	} {
		var h fencing.Holder
		tt.at.tell(&h, tt.nodes)
		if h.Attached != tt.stamp || h.Epoch != tt.epoch {
			t.Errorf("told is %q, %d; want %q, %d", h.Attached, h.Epoch, tt.stamp, tt.epoch)
		}
	}
}

// What a newer request that came to nothing has reached is given back to the stream, for no longer than that
// has the lease elsewhere. It is left where it is if yet another request has reached that node meanwhile, or the lease
// was to end.
func TestStreamReclaims(t *testing.T) {
	for what, meanwhile := range map[string]func(s *scene, first, last fencing.AcquireRequest) (at fencing.AcquireRequest){
		"nothing": func(_ *scene, first, _ fencing.AcquireRequest) fencing.AcquireRequest { return first },
		"another": func(s *scene, first, _ fencing.AcquireRequest) fencing.AcquireRequest {
			another := newer(first)
			if _, err := s.nodes[0].Do(bg, s.newTry(leaseKey{}, another, another.Stamp).ask); err != nil {
				s.t.Error(err)
			}
			return another
		},
		"release": func(s *scene, first, last fencing.AcquireRequest) fencing.AcquireRequest {
			s.setCut(true, 1, 2)
			_, err := s.Do(bg, fencing.ReleaseRequest{Name: "a", Lease: first.Lease, Stamp: first.Stamp})
			s.refused(err, fencing.CodeUnavailable)
			s.setCut(false, 1, 2)
			return last
		},
	} {
		t.Run(what, func(t *testing.T) {
			play(t, func(s *scene) {
				first, last := s.cameToNothing()
				s.renews(first)
				synctest.Wait() // it has seen what the nodes have
				at := meanwhile(s, first, last)
				s.pass(3 * time.Second)
				s.hangsOn(0, at)
				s.hangsOn(1, first)
				if here, there := s.holding(0, first).ExpiresAt, s.holding(1, first).ExpiresAt; what == "nothing" && here > there {
					t.Errorf("it is there %s longer than elsewhere", here.Sub(there))
				}
			})
		})
	}
}
