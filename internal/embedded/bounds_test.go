package embedded

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// What gathers behind a disk that hangs is bounded, though refusals are answered without waiting: then they wait too, and who has
// gone is told that nothing is known.
func TestWhatGathersIsBounded(t *testing.T) {
	flushing, proceed := make(chan struct{}, 10), make(chan struct{})
	s := open(t, Options{Dir: t.TempDir()})
	held := acquire("held", time.Hour)
	mustAcquire(t, s, held)
	s.hooks.beforeFlush = func() error { flushing <- struct{}{}; <-proceed; return nil }
	var group sync.WaitGroup
	group.Go(func() { _, _ = s.Do(context.Background(), acquire("other", time.Hour)) })
	<-flushing
	r := acquire("held", time.Hour)
	r.Metadata = map[string]string{"k": strings.Repeat("x", 1<<16)}
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan error, 1)
	size := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.next.size
	}
	for size() <= mostGathered {
		if _, err := s.Do(ctx, r); code(err) != fencing.CodeLocked {
			t.Fatal(err)
		}
	}
	full := size()
	group.Go(func() { _, err := s.Do(ctx, r); waiting <- err })
	group.Go(func() { _, _ = s.Do(context.Background(), r) })
	cancel()
	if err := <-waiting; code(err) != fencing.CodeUnavailable {
		t.Errorf("one more is answered %v", err)
	}
	if now := size(); now != full || full > 2*mostGathered {
		t.Errorf("%d bytes have gathered, and %d before", now, full)
	}
	close(proceed)
	group.Wait()
}

// A clock that no machine has writes nothing, for what it would have end or be issued would stay so.
func TestAClockThatCantBeBelieved(t *testing.T) {
	dir, clock := t.TempDir(), newTestClock()
	s := open(t, Options{Dir: dir, Now: clock.read})
	r := acquire("a", time.Hour)
	mustAcquire(t, s, r)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	was := clock.read()
	for _, wrong := range []time.Duration{11 * 365 * 24 * time.Hour, 250 * 365 * 24 * time.Hour} {
		clock.set(was.Add(wrong))
		if _, err := Open(Options{Dir: dir, Now: clock.read}); err == nil || !strings.Contains(err.Error(), "correct the clock") {
			t.Errorf("%s later it is opened: %v", wrong, err)
		}
	}
	clock.set(was)
	mustAcquire(t, open(t, Options{Dir: dir, Now: clock.read}), r)
}
