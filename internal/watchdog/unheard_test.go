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

// farStore answers an acquire that is made again after a round trip, and those for names of
// a part that hangs never.
type farStore struct {
	straysStore
	trip  time.Duration
	hangs func(fencing.Name) bool
	mu    sync.Mutex
	asked map[fencing.Stamp]time.Time // first
}

func (s *farStore) Do(ctx context.Context, op fencing.Op) (fencing.Outcome, error) {
	r, acquires := op.(fencing.AcquireRequest)
	if !acquires {
		return s.straysStore.Do(ctx, op)
	}
	if r.Again {
		if s.hangs != nil && s.hangs(r.Name) {
			<-ctx.Done()
			return fencing.Outcome{}, fencing.Unavailable(ctx.Err())
		}
		<-time.After(s.trip)
		s.mu.Lock()
		if s.asked[r.Stamp].IsZero() {
			s.asked[r.Stamp] = time.Now()
		}
		s.mu.Unlock()
	}
	return fencing.Outcome{Now: fencing.InstantOf(time.Now()), Place: &fencing.Waiter{Position: 1}}, nil
}

func (s *farStore) Heartbeat(context.Context, []fencing.Name) error { return nil }

// A lease whose message was lost is asked for at once when a heartbeat tells of it (P5: 2 s),
// however many places are missing, of its name or of others, and though a part of the store
// does not answer.
func TestALeaseDoesNotWaitForTheMissing(t *testing.T) {
	for _, c := range []struct {
		title       string
		names, each int // that are missing
		of          fencing.Name
		hang        bool
	}{
		{"of its name", 1, 2000, "n0", false},
		{"of other names", 2 * maxAskers, 500, "other", false},
		{"of names that hang", 640, 1, "other", true},
	} {
		t.Run(c.title, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &farStore{trip: 5 * time.Millisecond, asked: map[fencing.Stamp]time.Time{}}
				if c.hang {
					s.hangs = func(name fencing.Name) bool { return name != c.of }
				}
				w := New(s, Options{})
				w.listen()
				join := func(name fencing.Name) *Waiter {
					_, waiter, err := w.Join(t.Context(), request(name))
					if err != nil {
						t.Fatal(err)
					}
					return waiter
				}
				first := join(c.of)
				var names []fencing.Name
				for i := range c.names {
					name := fencing.Name(fmt.Sprint("n", i))
					names = append(names, name)
					for range c.each {
						join(name)
						advance(time.Microsecond)
					}
				}
				advance(time.Millisecond)
				listener{w}.Has(names, time.Now(), entriesFor([]*Waiter{first}, false)) // it has its place
				advance(500 * time.Millisecond)
				told := time.Now()
				for range 3 {
					listener{w}.Has(names, told.Add(-time.Second), entriesFor([]*Waiter{first}, true))
					advance(time.Second)
				}
				s.mu.Lock()
				asked := s.asked[first.ask.Stamp]
				s.mu.Unlock()
				if asked.IsZero() || asked.Sub(told) > fencing.HeartbeatInterval {
					t.Errorf("asked for %s after the heartbeat told of it", asked.Sub(told))
				}
				w.Stop()
			})
		})
	}
}
