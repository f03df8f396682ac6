package embedded

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// sink keeps the events it hears.
type sink struct {
	mu     sync.Mutex
	events []fencing.Event
}

func (s *sink) Event(e fencing.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
}

func (s *sink) Gap() {}

func (s *sink) heard() []fencing.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.events)
}

func TestEventsAreOfWhatIsDurable(t *testing.T) {
	b := openBlocking(t)
	b.Listen(&listener{})
	var early, late sink
	defer b.Watch(&early)()
	stop := b.Watch(&late)
	first, next := acquire("a", time.Minute), waiting("a")
	granted := make(chan error)
	go func() { granted <- second(b.Do(context.Background(), first)) }()
	<-b.begun
	if heard := early.heard(); len(heard) > 0 {
		t.Errorf("told before the flush: %+v", heard)
	}
	b.proceed <- nil
	if err := <-granted; err != nil {
		t.Fatal(err)
	}
	join(t, b.Store, next)
	mustRelease(t, b.Store, first)
	b.flush(nil)
	want := []fencing.EventKind{fencing.EventGranted, fencing.EventQueued, fencing.EventReleased, fencing.EventGranted}
	waitFor(t, "the events", func() bool { return len(early.heard()) == len(want) })
	ids := map[string]bool{}
	for i, e := range early.heard() {
		if e.Kind != want[i] || e.ID == "" || ids[e.ID] {
			t.Errorf("event %d is %+v, want %s", i, e, want[i])
		}
		ids[e.ID] = true
	}
	if !slices.Equal(early.heard(), late.heard()) {
		t.Errorf("two sinks heard\n%+v and\n%+v", early.heard(), late.heard())
	}
	stop()
	stop()
	mustRelease(t, b.Store, next)
	b.flush(nil)
	waitFor(t, "the release", func() bool { return len(early.heard()) == len(want)+1 })
	if len(late.heard()) != len(want) {
		t.Error("told after it stopped")
	}
}

// Many callers at once: the events of a name tell a possible story, in the order
// of its tokens.
func TestEventsOfANameAreInOrder(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir(), segment: smallSegment, snapshotAt: smallSnapshot})
	listener := newParked()
	s.Listen(listener)
	var all sink
	s.Watch(&all)
	var group sync.WaitGroup
	const callers, rounds, names = 16, 30, 3
	for caller := range callers {
		group.Go(func() {
			for round := range rounds {
				r := waiting(fencing.Name(fmt.Sprint("n", (caller+round)%names)))
				granted := listener.await(r.Stamp)
				out, err := s.Do(context.Background(), r)
				if err != nil {
					t.Error(err)
					return
				}
				if out.Waits() {
					<-granted
				}
				mustRelease(t, s, r)
			}
		})
	}
	group.Wait()
	waitFor(t, "the last release", func() bool {
		released := 0
		for _, e := range all.heard() {
			if e.Kind == fencing.EventReleased {
				released++
			}
		}
		return released == callers*rounds
	})
	holder := map[fencing.Name]fencing.Token{}
	last := map[fencing.Name]fencing.Token{}
	for _, e := range all.heard() {
		switch e.Kind {
		case fencing.EventGranted:
			if holder[e.Name] != 0 || e.Token <= last[e.Name] {
				t.Fatalf("%+v while %d holds it, after token %d", e, holder[e.Name], last[e.Name])
			}
			holder[e.Name], last[e.Name] = e.Token, e.Token
		case fencing.EventReleased:
			if holder[e.Name] != e.Token {
				t.Fatalf("%+v while %d holds it", e, holder[e.Name])
			}
			holder[e.Name] = 0
		}
	}
}

// A reader that has an event of a run that is over, or of a directory that was put back, does not take another one for it.
func TestEventsOfAnotherRun(t *testing.T) {
	c := openCrashing(t)
	ids := map[string]bool{}
	for range 2 {
		s := open(t, c.onLast(t))
		var events sink
		stop := s.Watch(&events)
		mustAcquire(t, s, acquire("a", time.Minute))
		waitFor(t, "the event", func() bool { return len(events.heard()) > 0 })
		id := events.heard()[0].ID
		stop()
		if ids[id] {
			t.Errorf("%s is an event of both runs", id)
		}
		ids[id] = true
	}
}
