package watchdog

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
)

// A place whose request nobody remembers, as a join leaves behind that arrives after
// its request has gone, is handed the lock in its turn: heartbeats tell of it, and
// the gateway gives it back, so that who waits behind it is served (P5, P6).
func TestAGrantToNobodyIsTakenBack(t *testing.T) {
	inWorld(t, func(w *world) {
		holder := w.ask(1, request("a"))
		w.holds(holder)
		if out, err := w.wires[0].Do(t.Context(), request("a")); err != nil || !out.Waits() {
			t.Fatalf("%+v, %v", out, err)
		}
		behind := w.ask(0, request("a"))
		w.waits(behind)
		w.release(1, holder) // hands it to gateway 0, provisionally
		for range 3 {
			advance(time.Second)
			synctest.Wait()
		}
		w.holds(behind)
		w.want("grants taken back", w.seen[0].of("takenBack"), 1)
	})
}

// The same when no request is left at the gateway that would keep its heartbeats
// going: they end when there is nothing more to tell of.
func TestWhatTheLastRequestLeftBehindIsTakenBack(t *testing.T) {
	inWorld(t, func(w *world) {
		r := request("b")
		r.Wait, r.Set = time.Minute, "a set"
		if out, err := w.wires[0].Do(t.Context(), r); err != nil || !out.Holder.Provisional {
			t.Fatalf("%+v, %v", out, err)
		}
		holder := w.ask(0, request("a"))
		w.holds(holder)
		advance(4 * time.Second)
		w.free("b")
		w.want("grants taken back", w.seen[0].of("takenBack"), 1)
		advance(3 * time.Second)
		if w.dogs[0].requests.beating {
			t.Error("heartbeats go on")
		}
	})
}

// However many there are, all are taken back: those that there is no room to note
// have their turn later.
func TestManyGrantsToNobodyAreTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 3 * maxTakeBacks / 2
		s := &straysStore{left: map[fencing.Name]fencing.Stamp{}}
		for i := range many {
			s.left[fencing.Name(fmt.Sprint("n", i))] = fencing.NewStamp()
		}
		w := New(s, Options{})
		w.listen()
		w.requests.mu.Lock()
		w.beat()
		w.requests.linger("n0")
		w.requests.mu.Unlock()
		advance(10 * time.Second)
		w.Stop()
		s.mu.Lock()
		defer s.mu.Unlock()
		if n := len(s.left); n != 0 {
			t.Errorf("%d of %d are left", n, many)
		}
	})
}

// straysStore tells of leases that nobody knows of until they are taken back.
type straysStore struct {
	fencing.Store
	listener fencing.Listener
	mu       sync.Mutex
	left     map[fencing.Name]fencing.Stamp
}

func (s *straysStore) Capabilities() fencing.Capabilities {
	return fencing.Capabilities{Queue: true, LosesMessages: true, LosesGrants: true, Tells: true}
}

func (s *straysStore) Listen(l fencing.Listener) { s.listener = l }

func (s *straysStore) Heartbeat(_ context.Context, names []fencing.Name) error {
	s.mu.Lock()
	var entries []fencing.Entry
	for name, stamp := range s.left {
		entries = append(entries, fencing.Entry{Name: name, Stamp: stamp, Provisional: true})
	}
	s.mu.Unlock()
	s.listener.Has(names, time.Now(), entries)
	return nil
}

func (s *straysStore) Do(ctx context.Context, op fencing.Op) (fencing.Outcome, error) {
	r, takesBack := op.(fencing.TakeBackRequest)
	if !takesBack {
		return s.Store.Do(ctx, op)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Unknown && s.left[r.Name] == r.Stamp {
		delete(s.left, r.Name)
	}
	return fencing.Outcome{}, nil
}
