package watchdog

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
)

// source is a store that only has events.
type source struct {
	fencing.Store
	sink             fencing.EventSink
	told             int
	watches, stopped int
}

func (s *source) Capabilities() fencing.Capabilities { return fencing.Capabilities{Queue: true} }

func (s *source) Watch(sink fencing.EventSink) (stop func()) {
	s.watches++
	s.sink = sink
	sink.Event(fencing.Event{ID: "at once"}) // it may call back before it returns
	return func() { s.stopped++; s.sink = nil }
}

func (s *source) tell(names ...fencing.Name) {
	for _, name := range names {
		s.told++
		s.sink.Event(fencing.Event{ID: strconv.Itoa(s.told), Name: name})
	}
}

func subscribe(t *testing.T, w *Watchdog, after, prefix string) *Subscription {
	t.Helper()
	s, err := w.Subscribe(after, prefix)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// expect reads notices: an id each, "resync", or "none" for none.
func expect(t *testing.T, s *Subscription, want ...string) {
	t.Helper()
	for _, id := range want {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		n, err := s.Next(ctx)
		cancel()
		got := n.Event.ID
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			got = "none"
		case err != nil:
			t.Fatalf("reading ended with %v", err)
		case n.Resync:
			got = "resync"
		}
		if got != id {
			t.Fatalf("the next notice is %q, want %q", got, id)
		}
	}
}

func withSource(t *testing.T, o Options, test func(t *testing.T, s *source, w *Watchdog)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &source{}
		w := New(s, o)
		test(t, s, w)
		w.Stop()
	})
}

func TestEventsAreFilteredAndReplayed(t *testing.T) {
	withSource(t, Options{}, func(t *testing.T, s *source, w *Watchdog) {
		all, some := subscribe(t, w, "", ""), subscribe(t, w, "", "a/")
		s.tell("a/1", "b", "a/2")
		expect(t, all, "1", "2", "3", "none")
		expect(t, some, "1", "3", "none")
		expect(t, subscribe(t, w, "1", ""), "2", "3", "none")
		expect(t, subscribe(t, w, "1", "b"), "2", "none")
		expect(t, subscribe(t, w, "3", ""), "none")
		late := subscribe(t, w, "never", "")
		expect(t, late, "resync", "none")
		s.tell("c")
		expect(t, late, "4", "none")
		if s.watches != 1 {
			t.Errorf("the store is watched %d times", s.watches)
		}
	})
}

// TestComesBackFromWhereItStood: who has the id with which a subscription began, or that of a
// resync, misses nothing, whether there was an event or not; at another gateway it has a resync.
func TestComesBackFromWhereItStood(t *testing.T) {
	withSource(t, Options{}, func(t *testing.T, s *source, w *Watchdog) {
		comesBack := func(id string, want ...string) {
			t.Helper()
			if id == "" {
				t.Fatal("there is no id to come back with")
			}
			back := subscribe(t, w, id, "a")
			if at := back.At(); at != id {
				t.Errorf("who comes back with %q stands at %q", id, at)
			}
			expect(t, back, want...)
		}
		quiet := subscribe(t, w, "", "a")
		comesBack(quiet.At(), "none")
		s.tell("b", "a")
		from := quiet.At()
		comesBack(from, "2", "none")
		expect(t, quiet, "2", "none")
		s.tell("b", "b")
		expect(t, quiet, "none")
		if at := quiet.At(); at != "4" { // what is not for it is behind it all the same
			t.Errorf("it stands at %q", at)
		}
		comesBack(quiet.At(), "none")
		comesBack(subscribe(t, w, "", "a").At(), "none")
		s.sink.Gap()
		after := subscribe(t, w, "", "a")
		comesBack(from, "2", "resync", "none")
		comesBack(after.At(), "none")
		s.tell("a")
		comesBack(after.At(), "5", "none")

		for _, id := range []string{"never", New(s, Options{}).hub.run + "0"} {
			unknown := subscribe(t, w, id, "a")
			if at := unknown.At(); at != "" {
				t.Errorf("%q: before it was told of the gap it stands at %q", id, at)
			}
			n, err := unknown.Next(t.Context())
			if err != nil || !n.Resync {
				t.Fatalf("%q: %+v, %v", id, n, err)
			}
			comesBack(n.Event.ID, "none")
		}
	})
}

// TestNextEndsBesideNotices: who reads in vain until an instant hears of that instant, and
// what is there meanwhile comes after it.
func TestNextEndsBesideNotices(t *testing.T) {
	withSource(t, Options{}, func(t *testing.T, s *source, w *Watchdog) {
		sub := subscribe(t, w, "", "")
		s.tell("a")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if n, err := sub.Next(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%+v, %v", n, err)
		}
		expect(t, sub, "1", "none")
	})
}

func TestNextWaits(t *testing.T) {
	withSource(t, Options{}, func(t *testing.T, s *source, w *Watchdog) {
		var got [3]string
		for i := range got {
			sub := subscribe(t, w, "", "")
			go func() {
				n, err := sub.Next(t.Context())
				got[i] = fmt.Sprint(n.Event.ID, err)
			}()
		}
		synctest.Wait()
		s.tell("a")
		synctest.Wait()
		if got != [3]string{"1<nil>", "1<nil>", "1<nil>"} {
			t.Errorf("they were told %q", got)
		}
	})
}

func TestAGapIsToldToAll(t *testing.T) {
	withSource(t, Options{}, func(t *testing.T, s *source, w *Watchdog) {
		all, some := subscribe(t, w, "", ""), subscribe(t, w, "", "a")
		s.tell("a")
		s.sink.Gap()
		s.tell("b", "a")
		expect(t, all, "1", "resync", "2", "3", "none")
		expect(t, some, "1", "resync", "3", "none")
		expect(t, subscribe(t, w, "1", ""), "resync", "2")
	})
}

func TestASlowSubscriptionResyncs(t *testing.T) {
	withSource(t, Options{}, func(t *testing.T, s *source, w *Watchdog) {
		slow := subscribe(t, w, "", "")
		for range maxEvents {
			s.tell("a")
		}
		expect(t, slow, "1")
		s.tell("a")
		expect(t, slow, "2")
		s.tell("a", "a")
		if at := slow.At(); at != "" {
			t.Errorf("before it was told of the gap it stands at %q", at)
		}
		expect(t, slow, "resync", "none")
		s.tell("a")
		expect(t, slow, strconv.Itoa(s.told), "none")
		expect(t, subscribe(t, w, "3", ""), "resync", "none")
	})
}

// The store is watched while somebody reads, and for a while after.
func TestTheWatchLingers(t *testing.T) {
	withSource(t, Options{}, func(t *testing.T, s *source, w *Watchdog) {
		first := subscribe(t, w, "", "")
		s.tell("a")
		first.Close()
		first.Close()
		advance(watchLinger / 2)
		s.tell("a")
		second := subscribe(t, w, "1", "")
		expect(t, second, "2", "none")
		advance(2 * watchLinger)
		synctest.Wait()
		if s.stopped != 0 {
			t.Fatal("the watch has ended under a reader")
		}
		second.Close()
		advance(watchLinger + time.Second)
		synctest.Wait()
		if s.stopped != 1 {
			t.Fatalf("the watch was stopped %d times", s.stopped)
		}
		expect(t, subscribe(t, w, "2", ""), "resync", "at once", "none")
		if s.watches != 2 {
			t.Errorf("the store was watched %d times", s.watches)
		}
	})
}

func TestSubscriptionsAreCapped(t *testing.T) {
	withSource(t, Options{MaxSubscriptions: 2}, func(t *testing.T, s *source, w *Watchdog) {
		first := subscribe(t, w, "", "")
		subscribe(t, w, "", "")
		if _, err := w.Subscribe("", ""); fencing.CodeOf(err) != fencing.CodeTooManyRequests {
			t.Errorf("a third was answered %v", err)
		}
		first.Close()
		subscribe(t, w, "", "")
	})
}

func TestDrainEndsSubscriptions(t *testing.T) {
	withSource(t, Options{}, func(t *testing.T, s *source, w *Watchdog) {
		sub := subscribe(t, w, "", "")
		ended := make(chan error)
		go func() {
			_, err := sub.Next(t.Context())
			ended <- err
		}()
		synctest.Wait()
		w.Drain()
		if err := <-ended; fencing.CodeOf(err) != fencing.CodeDraining {
			t.Errorf("it ended with %v", err)
		}
		if _, err := w.Subscribe("", ""); fencing.CodeOf(err) != fencing.CodeDraining {
			t.Errorf("a new one was answered %v", err)
		}
		sub.Close()
		if s.stopped != 1 {
			t.Errorf("the watch was stopped %d times", s.stopped)
		}
	})
}

// Close ends a Next that waits.
func TestCloseEndsNext(t *testing.T) {
	withSource(t, Options{}, func(t *testing.T, s *source, w *Watchdog) {
		sub := subscribe(t, w, "", "")
		ended := make(chan error)
		go func() {
			_, err := sub.Next(t.Context())
			ended <- err
		}()
		synctest.Wait()
		sub.Close()
		if err := <-ended; err == nil {
			t.Error("a closed subscription goes on")
		}
	})
}

// TestComesBackToAnotherGateway: between two gateways of a store nothing is missed in silence.
func TestComesBackToAnotherGateway(t *testing.T) {
	inWorld(t, func(w *world) {
		ids := map[string]bool{} // of where a reader stood, and whether something was told before
		first := subscribe(w.t, w.dogs[0], "", "")
		ids[first.At()] = false
		other := subscribe(w.t, w.dogs[1], "", "")
		w.ask(1, request("a"))
		n, err := first.Next(w.t.Context())
		if err != nil {
			w.t.Fatal(err)
		}
		ids[n.Event.ID] = true
		first.Close()
		w.ask(0, request("b"))
		for id, told := range ids {
			back := subscribe(w.t, w.dogs[1], id, "")
			for n, err = back.Next(w.t.Context()); err == nil && !n.Resync && n.Event.Name != "b"; n, err = back.Next(w.t.Context()) {
				told = told || n.Event.Name == "a"
			}
			if err != nil || !n.Resync && !told {
				w.t.Errorf("after %q: %+v, %v, and of the first name: %t", id, n, err, told)
			}
			back.Close()
		}
		other.Close()
	})
}

// The store's own events come through, from whatever gateway.
func TestEventsOfTheStore(t *testing.T) {
	inWorld(t, func(w *world) {
		sub := subscribe(w.t, w.dogs[0], "", "")
		defer sub.Close()
		first := w.ask(1, request("a"))
		second := w.ask(0, request("a"))
		w.release(1, first)
		w.holds(second)
		for _, want := range []fencing.EventKind{fencing.EventGranted, fencing.EventQueued, fencing.EventReleased, fencing.EventGranted} {
			n, err := sub.Next(w.t.Context())
			if err != nil || n.Event.Kind != want {
				t.Errorf("%+v, %v; want %s", n.Event, err, want)
			}
		}
	})
}
