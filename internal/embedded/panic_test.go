package embedded

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"fencepost/internal/disk"
	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

// poison panics in a decision that has changed the state by then: no list has so many slots.
func poison(name fencing.Name) fencing.AcquireRequest {
	r := acquire(name, time.Minute)
	r.Mode, r.Limit, r.Permits = fencing.ModeShared, 1<<60, 1<<60
	return r
}

// M4: what is in memory is not to be trusted then, and what is on disk is.
func TestAPanicInADecisionEndsTheStore(t *testing.T) {
	dir, logged := t.TempDir(), &bytes.Buffer{}
	hold, flushing := make(chan struct{}), make(chan struct{}, 10)
	s, err := Open(Options{Dir: dir, Logger: slog.New(slog.NewTextHandler(logged, nil)), Now: newTestClock().read, beforeFlush: func() error {
		select {
		case flushing <- struct{}{}:
		default:
		}
		<-hold
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	type answer struct {
		request fencing.AcquireRequest
		err     error
	}
	ask := func(r fencing.AcquireRequest) chan answer {
		answers := make(chan answer, 1)
		go func() {
			_, err := s.Do(context.Background(), r)
			answers <- answer{r, err}
		}()
		return answers
	}
	kept := ask(acquire("kept", time.Minute))
	<-flushing // it is on its way to the disk
	pending := ask(acquire("pending", time.Minute))
	for gathers := false; !gathers; {
		s.mu.Lock()
		gathers = !s.next.empty()
		s.mu.Unlock()
	}
	bad := poison("poison")
	_, err = s.Do(t.Context(), bad)
	if fencing.CodeOf(err) != fencing.CodeUnavailable {
		t.Fatalf("what panics is answered %v", err)
	}
	if got := <-pending; fencing.CodeOf(got.err) != fencing.CodeUnavailable {
		t.Errorf("what was pending is answered %v", got.err)
	}
	<-s.Failed()
	if _, err := s.Do(t.Context(), acquire("late", time.Minute)); fencing.CodeOf(err) != fencing.CodeUnavailable {
		t.Errorf("what comes later is answered %v", err)
	}
	close(hold)
	first := <-kept
	if first.err != nil {
		t.Errorf("what was being written is answered %v", first.err)
	}
	if cause := fmt.Sprint(s.Cause()); !strings.Contains(cause, `acquire of "poison" by lease `+string(bad.Lease.Public())) {
		t.Errorf("the cause is %q", cause)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	text := logged.String()
	for _, want := range []string{"acquire of", "poison", "fencing.Step", string(bad.Lease.Public()), "Permits:1152921504606846976"} {
		if !strings.Contains(text, want) {
			t.Errorf("the log lacks %q:\n%s", want, text)
		}
	}
	if secret := strings.TrimPrefix(bad.Lease.Reveal(), string(bad.Lease.Public())); strings.Contains(text, secret[1:]) {
		t.Error("the log has the secret of the lease")
	}
	if all, err := filepath.Glob(filepath.Join(dir, disk.SnapshotsName, "*")); err != nil || len(all) > 0 {
		t.Errorf("a snapshot was written of what panicked: %v, %v", all, err)
	}

	s = open(t, Options{Dir: dir, Now: newTestClock().read})
	page, err := s.List(t.Context(), fencing.ListRequest{Limit: 10})
	if err != nil || len(page.Locks) != 1 || page.Locks[0].Name != "kept" || page.Locks[0].Holders[0].Lease != first.request.Lease.Public() {
		t.Fatalf("after a restart there is %+v, %v", page.Locks, err)
	}
	for _, name := range []fencing.Name{"poison", "pending"} {
		out, err := s.Do(t.Context(), acquire(name, time.Minute))
		if err != nil || out.Holder.Token <= page.Locks[0].Holders[0].Token {
			t.Errorf("%s after a restart: token %d, %v", name, out.Holder.Token, err)
		}
	}
}

// The same in the goroutine that flushes.
func TestAPanicBetweenFlushesEndsTheStore(t *testing.T) {
	hold, flushing := make(chan struct{}), make(chan struct{}, 10)
	s, err := Open(Options{Dir: t.TempDir(), Now: newTestClock().read, beforeFlush: func() error {
		flushing <- struct{}{}
		<-hold
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	errs := make([]error, 2)
	all.Go(func() { _, errs[0] = s.Do(context.Background(), acquire("a", time.Minute)) })
	<-flushing
	all.Go(func() { _, errs[1] = s.Do(context.Background(), acquire("b", time.Minute)) })
	for gathers := false; !gathers; {
		s.mu.Lock()
		if gathers = !s.next.empty(); gathers {
			s.machine = &machine.Machine{} // has no state
		}
		s.mu.Unlock()
	}
	close(hold)
	<-s.Failed()
	all.Wait()
	if errs[0] != nil || fencing.CodeOf(errs[1]) != fencing.CodeUnavailable {
		t.Errorf("before it %v, with it %v", errs[0], errs[1])
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// Who only looks leaves the lock, whatever happens.
func TestAPanicOfAReaderLeavesTheLock(t *testing.T) {
	s := &Store{clock: newClock(&Options{Now: newTestClock().read}), machine: &machine.Machine{}} // which has no index
	for name, look := range map[string]func(){
		"a list":      func() { s.List(t.Context(), fencing.ListRequest{Limit: 1}) },
		"a count":     func() { s.List(t.Context(), fencing.ListRequest{Limit: 1, Count: true}) },
		"the figures": func() { s.Stats(t.Context()) },
	} {
		if p := machine.Caught(look); p == nil {
			t.Errorf("%s does not panic", name)
		}
		if !s.mu.TryLock() {
			t.Fatalf("%s has left the lock held", name)
		}
		s.mu.Unlock()
	}
}
