package quorum

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
)

// notes is a sink that writes down what it hears.
type notes struct {
	mu    sync.Mutex
	heard []string
	ids   []string
}

func (n *notes) Event(e fencing.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.heard = append(n.heard, fmt.Sprintf("%s %s %d", e.Kind, e.Name, e.Token))
	n.ids = append(n.ids, e.ID)
}

func (n *notes) Gap() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.heard = append(n.heard, "gap")
}

func (n *notes) take() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	heard := n.heard
	n.heard = nil
	return heard
}

func told(kind fencing.EventKind, out fencing.Outcome) string {
	return fmt.Sprintf("%s a %d", kind, out.Holder.Token)
}

func (s *scene) release(r fencing.AcquireRequest) {
	s.t.Helper()
	if _, err := s.Do(bg, fencing.ReleaseRequest{Name: r.Name, Lease: r.Lease}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *scene) hears(n *notes, want ...string) {
	s.t.Helper()
	synctest.Wait()
	if heard := n.take(); !slices.Equal(heard, want) {
		s.t.Errorf("heard %q, want %q", heard, want)
	}
}

// Every gateway hears the same, each event once, in order, and asks no node for it. The ids are its
// own: between names the order may be another one elsewhere, where nobody can go on after an id.
func TestWatch(t *testing.T) {
	for name, wrap := range map[string]func(fencing.Node) fencing.Node{
		"proposed": asIs, "claimed": func(n fencing.Node) fencing.Node { return unproposed{n} },
	} {
		t.Run(name, func(t *testing.T) {
			playLenient(t, wrap, func(s *scene) {
				other := s.open()
				near, far := &notes{}, &notes{}
				defer s.Watch(near)()
				stop := other.Watch(far)
				for _, n := range s.nodes {
					n.set(func(n *node) {
						n.before = func(op string) {
							if op == "history" || op == "inspect" {
								t.Error("a node is asked")
							}
						}
					})
				}
				r := request("a")
				first := s.acquire(r)
				advance(time.Second)
				if _, err := s.Do(bg, fencing.RenewRequest{Name: "a", Lease: r.Lease}); err != nil {
					t.Fatal(err)
				}
				s.release(r)
				second := s.acquire(request("a"))
				advance(time.Minute)
				for _, n := range s.nodes {
					if _, err := n.Model.Expire(bg, 10); err != nil {
						t.Fatal(err)
					}
				}
				last := request("a")
				third := s.acquire(last)
				if _, err := s.Do(bg, fencing.TakeBackRequest{Name: "a", Lease: last.Lease, Stamp: last.Stamp}); err != nil {
					t.Fatal(err)
				}
				want := []string{
					told("granted", first), told("released", first), told("granted", second), told("expired", second),
					told("granted", third), "left a 0",
				}
				s.hears(near, want...)
				s.hears(far, want...)
				all := slices.Concat(near.ids, far.ids)
				if ids := slices.Compact(slices.Sorted(slices.Values(all))); len(ids) != 2*len(want) || ids[0] == "" {
					t.Errorf("the ids are %q and %q", near.ids, far.ids)
				}
				stop()
				fourth := s.acquire(request("a"))
				s.hears(far)
				s.hears(near, told("granted", fourth))
			})
		})
	}
}

// What a minority has done is not told: a try that came to nothing, a lease that was left
// behind there or has ended there alone.
func TestMinorityIsNotHeard(t *testing.T) {
	play(t, func(s *scene) {
		heard := &notes{}
		defer s.Watch(heard)()
		stray := request("a")
		stray.Propose = fencing.Token(fencing.InstantOf(time.Now()))
		if _, err := s.nodes[0].Model.Do(bg, stray); err != nil {
			t.Fatal(err)
		}
		s.hears(heard)
		s.nodes[0].set(func(n *node) { n.cut = true })
		r := request("a")
		out := s.acquire(r)
		s.hears(heard, told("granted", out))
		if _, err := s.nodes[1].Model.Do(bg, fencing.BreakRequest{Name: "a", Token: out.Holder.Token}); err != nil {
			t.Fatal(err)
		}
		s.hears(heard)
		if _, err := s.nodes[2].Model.Do(bg, fencing.ReleaseRequest{Name: "a", Lease: r.Lease}); err != nil {
			t.Fatal(err)
		}
		s.hears(heard, told("broken", out)) // it tells most
	})
}

// An exclusive lease comes after the end of the one before, even where that was not told
// by a majority yet; if nobody has told it, there is a gap.
func TestEventsStayInOrder(t *testing.T) {
	for _, heardOfEnd := range []bool{true, false} {
		t.Run(fmt.Sprint(heardOfEnd), func(t *testing.T) {
			play(t, func(s *scene) {
				heard := &notes{}
				defer s.Watch(heard)()
				sinks := [3]nodeSink{}
				for i := range sinks {
					sinks[i] = nodeSink{&s.events, i}
				}
				event := func(kind fencing.EventKind, lease fencing.LeasePublic, token fencing.Token) fencing.Event {
					return fencing.Event{Kind: kind, Name: "a", Lease: lease, Mode: fencing.ModeExclusive, Token: token, Claimed: true}
				}
				sinks[0].Event(event(fencing.EventGranted, "A", 1))
				sinks[1].Event(event(fencing.EventGranted, "A", 1))
				if heardOfEnd {
					sinks[1].Event(event(fencing.EventReleased, "A", 1))
				}
				sinks[1].Event(event(fencing.EventGranted, "B", 2))
				sinks[2].Event(event(fencing.EventGranted, "B", 2))
				sinks[0].Event(event(fencing.EventReleased, "A", 1))
				want := []string{"granted a 1", "released a 1", "granted a 2"}
				if !heardOfEnd {
					want = []string{"granted a 1", "granted a 2", "gap"}
				}
				s.hears(heard, want...)
			})
		})
	}
}

// A gap of any node is passed on, not more than once a second.
func TestGapsArePassedOn(t *testing.T) {
	play(t, func(s *scene) {
		heard := &notes{}
		defer s.Watch(heard)()
		for range 50 {
			nodeSink{&s.events, 1}.Gap()
			advance(100 * time.Millisecond)
		}
		if n := len(heard.take()); n < 5 || n > 6 {
			t.Errorf("%d gaps in 5 s", n)
		}
	})
}

// What one node has told is a gap if the others were not heard since: one of them may have
// made it a majority. If they were, a minority did it.
func TestSilentNodesMakeAGap(t *testing.T) {
	for _, kind := range []fencing.EventKind{fencing.EventGranted, fencing.EventReleased, fencing.EventLeft} {
		for _, others := range []bool{false, true} {
			t.Run(fmt.Sprint(kind, others), func(t *testing.T) {
				play(t, func(s *scene) {
					heard := &notes{}
					defer s.Watch(heard)()
					sinks := [3]nodeSink{}
					for i := range sinks {
						sinks[i] = nodeSink{&s.events, i}
					}
					e := fencing.Event{Kind: fencing.EventGranted, Name: "a", Lease: "A", Mode: fencing.ModeExclusive, Token: 1, Claimed: true}
					if kind != fencing.EventGranted {
						for _, sink := range sinks {
							sink.Event(e)
						}
						heard.take()
						advance(time.Minute)
					}
					e.Kind = kind
					sinks[0].Event(e)
					advance(1500 * time.Millisecond)
					e.Name = "b"
					sinks[0].Event(e)
					if others {
						sinks[1].Event(e)
						sinks[2].Event(e)
						heard.take()
					}
					advance(10 * time.Second)
					if gaps := heard.take(); !others != slices.Contains(gaps, "gap") || len(gaps) > 2 {
						t.Errorf("heard %q", gaps)
					}
				})
			})
		}
	}
}

// What is known of grants is bounded: if more happens at once than is kept, a gap is told.
func TestEventsAreBounded(t *testing.T) {
	play(t, func(s *scene) {
		heard := &notes{}
		defer s.Watch(heard)()
		sink := nodeSink{&s.events, 0}
		tell := func(from, n int) {
			for i := range n {
				sink.Event(fencing.Event{
					Kind: fencing.EventGranted, Name: fencing.Name(fmt.Sprint(from + i)), Lease: "A", Token: 1, Mode: fencing.ModeExclusive, Claimed: true,
				})
			}
		}
		tell(0, maxLifetimes)
		s.hears(heard)
		advance(time.Minute)
		s.hears(heard, "gap")            // for who knows what the others did
		tell(maxLifetimes, maxLifetimes) // in the place of old ones
		s.hears(heard)
		tell(2*maxLifetimes, 1000)
		s.hears(heard, "gap")
		w := &s.events
		if len(w.lifetimes) > maxLifetimes || w.count > maxLifetimes || len(w.order) > 2*maxLifetimes {
			t.Errorf("%d lease ids, %d grants, %d in order", len(w.lifetimes), w.count, len(w.order))
		}
	})
}

// What is over is not kept because a node does not tell of it, nor what a minority did; a
// lease that is held is.
func TestEventsForgetWhatIsOverAtMost(t *testing.T) {
	play(t, func(s *scene) {
		heard := &notes{}
		defer s.Watch(heard)()
		held := request("held")
		held.TTL = time.Hour
		out := s.acquire(held)
		s.nodes[0].set(func(n *node) { n.cut = true })
		for i := range 100 {
			r := request(fencing.Name(fmt.Sprint(i)))
			s.acquire(r)
			s.release(r)
		}
		nodeSink{&s.events, 1}.Event(fencing.Event{
			Kind: fencing.EventGranted, Name: "stray", Lease: "A", Token: 1, Mode: fencing.ModeExclusive, Claimed: true,
		})
		w := &s.events
		kept := func() int {
			synctest.Wait()
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.count
		}
		if n := kept(); n != 102 {
			t.Errorf("%d grants are followed, want 102", n)
		}
		advance(keepTime + time.Minute)
		if n := kept(); n != 1 {
			t.Errorf("%d grants are followed later, want that which is held", n)
		}
		heard.take()
		s.release(held)
		s.hears(heard, fmt.Sprintf("released held %d", out.Holder.Token))
	})
}

// Nothing is kept of what is over at all nodes.
func TestEventsForgetWhatIsOver(t *testing.T) {
	playLenient(t, asIs, func(s *scene) {
		defer s.Watch(&notes{})()
		for i := range 1000 {
			r := request(fencing.Name(fmt.Sprint(i % 7)))
			s.acquire(r)
			synctest.Wait()
			s.release(r)
		}
		synctest.Wait()
		w := &s.events
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.lifetimes)+len(w.live)+w.count != 0 || len(w.order) > 64 {
			t.Errorf("%d lease ids, %d names, %d grants, %d in order", len(w.lifetimes), len(w.live), w.count, len(w.order))
		}
	})
}
