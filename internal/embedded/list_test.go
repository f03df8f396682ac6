package embedded

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

// TestSearchLetsWritersIn: who writes while a search is under way does not wait for its end.
func TestSearchLetsWritersIn(t *testing.T) {
	clock := newTestClock()
	var s *Store
	var looked atomic.Pointer[func()]
	s = open(t, Options{Dir: t.TempDir(), Now: func() fencing.Instant {
		if f := looked.Swap(nil); f != nil {
			(*f)()
		}
		return clock.read()
	}})
	take := func(name string) {
		if _, err := s.Do(context.Background(), fencing.AcquireRequest{
			Name: fencing.Name(name), Lease: fencing.NewLeaseID(clock.read().Time()), Stamp: fencing.NewStamp(), Mode: fencing.ModeExclusive, Hold: 1, TTL: time.Minute,
		}); err != nil {
			t.Error(err)
		}
	}
	var taking sync.WaitGroup
	for i := range 2 * machine.ExaminedAtOnce {
		taking.Go(func() { take(fmt.Sprintf("a/%03d", i)) })
	}
	taking.Wait()
	late := func() { // the search has begun to look, and somebody wants to write
		taking.Go(func() { take("late") })
		for s.mu.TryRLock() { // fails as soon as a writer waits
			s.mu.RUnlock()
			runtime.Gosched()
		}
	}
	looked.Store(&late)
	page, err := s.List(context.Background(), fencing.ListRequest{Limit: 1000, Query: "a"})
	taking.Wait()
	if err != nil || page.Next != "" || !slices.ContainsFunc(page.Locks, func(lock fencing.Lock) bool { return lock.Name == "late" }) {
		t.Errorf("%d locks, %q, %v: who wrote meanwhile was let in after the search", len(page.Locks), page.Next, err)
	}
}
