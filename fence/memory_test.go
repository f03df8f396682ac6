package fence_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"fencepost/fence"
)

// guards are those that have Do; each call makes a new one.
var guards = map[string]func(t *testing.T) fence.Guard{
	"memory": func(*testing.T) fence.Guard { return new(fence.Memory) },
	"dir":    func(t *testing.T) fence.Guard { return openDir(t, t.TempDir()) },
}

func openDir(t *testing.T, path string) *fence.Dir {
	t.Helper()
	d, err := fence.OpenDir(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// eachGuard runs a test with every guard.
func eachGuard(t *testing.T, test func(t *testing.T, g fence.Guard)) {
	for name, open := range guards {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

// A guard follows the rule, each resource by itself, and runs no write that it refuses.
func TestGuardRule(t *testing.T) {
	eachGuard(t, func(t *testing.T, g fence.Guard) {
		n := 0
		for name, steps := range markCases {
			n++
			for i, step := range steps {
				ran := false
				err := g.Do(t.Context(), fmt.Sprintf("resource-%d", n), step.token, step.slot, func() error { ran = true; return nil })
				admitted(t, i, step, err)
				if ran != (step.stale == 0) {
					t.Errorf("%s, step %d: that the write ran is %v", name, i, ran)
				}
			}
		}
	})
}

func TestGuardInvalid(t *testing.T) {
	eachGuard(t, func(t *testing.T, g fence.Guard) {
		for _, a := range []struct {
			resource string
			token    int64
			slot     int
		}{{"", 1, no}, {strings.Repeat("a", fence.MaxResourceBytes+1), 1, no}, {"a", 0, no}, {"a", 1 << 53, no}, {"a", 1, -2}} {
			err := g.Do(t.Context(), a.resource, a.token, a.slot, func() error { t.Error("it was written"); return nil })
			if !errors.Is(err, fence.ErrInvalid) {
				t.Errorf("%+v: %v", a, err)
			}
		}
	})
}

// A write that fails may have written something, so its token stays.
func TestGuardFailedWrite(t *testing.T) {
	eachGuard(t, func(t *testing.T, g fence.Guard) {
		broken := errors.New("broken")
		if err := g.Do(t.Context(), "a", 5, no, func() error { return broken }); !errors.Is(err, broken) {
			t.Error(err)
		}
		admitted(t, 0, admission{4, no, 5}, g.Do(t.Context(), "a", 4, no, nothing))
		admitted(t, 1, admission{5, no, 0}, g.Do(t.Context(), "a", 5, no, nothing))
		func() {
			defer func() { _ = recover() }()
			_ = g.Do(t.Context(), "a", 6, no, func() error { panic(broken) })
		}()
		admitted(t, 2, admission{5, no, 6}, g.Do(t.Context(), "a", 5, no, nothing))
		admitted(t, 3, admission{6, no, 0}, g.Do(t.Context(), "a", 6, no, nothing))
	})
}

func nothing() error { return nil }

// While a write is under way nobody else is admitted to its resource, and who waits
// leaves with its context; another resource is free.
func TestGuardTurns(t *testing.T) {
	eachGuard(t, func(t *testing.T, g fence.Guard) {
		begun, end := make(chan struct{}), make(chan struct{})
		var writer sync.WaitGroup
		writer.Go(func() {
			if err := g.Do(t.Context(), "a", 5, no, func() error { close(begun); <-end; return nil }); err != nil {
				t.Error(err)
			}
		})
		<-begun
		gone, leave := context.WithCancel(t.Context())
		leave()
		if err := g.Do(gone, "a", 6, no, func() error { t.Error("two write at once"); return nil }); !errors.Is(err, context.Canceled) {
			t.Errorf("who has left is told %v", err)
		}
		if err := g.Do(t.Context(), "b", 1, no, nothing); err != nil {
			t.Error(err)
		}
		close(end)
		writer.Wait()
		// The one that left admitted nothing.
		admitted(t, 0, admission{5, no, 0}, g.Do(t.Context(), "a", 5, no, nothing))
	})
}

// Who has left before it is asked for does not write, free as the resource may be.
func TestGuardGone(t *testing.T) {
	eachGuard(t, func(t *testing.T, g fence.Guard) {
		gone, leave := context.WithCancel(t.Context())
		leave()
		for range 50 {
			if err := g.Do(gone, "a", 5, no, func() error { t.Error("it was written"); return nil }); !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
		}
		admitted(t, 0, admission{4, no, 0}, g.Do(t.Context(), "a", 4, no, nothing))
	})
}

// Of writers that come at once the last one that was admitted has the highest token, and what
// it wrote stands.
func TestGuardConcurrent(t *testing.T) {
	eachGuard(t, func(t *testing.T, g fence.Guard) {
		const writers = 40
		var written atomic.Int64 // by whoever was admitted
		var all sync.WaitGroup
		for token := range int64(writers) {
			all.Go(func() {
				err := g.Do(t.Context(), "a", token+1, no, func() error {
					if before := written.Load(); token+1 < before {
						t.Errorf("%d writes after %d", token+1, before)
					}
					runtime.Gosched()
					written.Store(token + 1)
					return nil
				})
				if stale := new(fence.StaleError); err != nil && !errors.As(err, &stale) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if written.Load() != writers {
			t.Errorf("%d was written last", written.Load())
		}
	})
}
