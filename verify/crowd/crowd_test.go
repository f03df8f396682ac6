package crowd

import (
	"testing"
	"time"

	"fencepost/internal/seed"
	"fencepost/verify/check"
	"fencepost/verify/system"
)

// passes runs a check that must find nothing.
func passes(t *testing.T, run func(r *check.Result) error) {
	t.Helper()
	r := check.NewResult(seed.Of(t))
	if err := run(r); err != nil {
		t.Fatal(err)
	}
	if n, violations := r.Violations(); n > 0 {
		t.Errorf("%d violations, seed %d: %q", n, r.Seed, violations)
	}
	t.Log(r)
}

// The short version; go run ./verify -only turns-redis has the long one.
func TestTurns(t *testing.T) {
	for title, o := range map[string]system.Options{
		"embedded": {Store: system.Embedded}, "redis": {Store: system.Redis}, "two gateways": {Store: system.Redis, Gateways: 2},
	} {
		t.Run(title, func(t *testing.T) {
			s := system.StartTest(t, o)
			passes(t, func(r *check.Result) error {
				return Turns{Threads: 32, Names: 5, Turns: 1000, Hold: 5 * time.Millisecond}.Run(t.Context(), s, r)
			})
		})
	}
}

// The short version; go run ./verify -only closers-redis has the long one.
func TestClosers(t *testing.T) {
	for _, store := range []system.Kind{system.Embedded, system.Redis} {
		t.Run(string(store), func(t *testing.T) {
			s := system.StartTest(t, system.Options{Store: store})
			passes(t, func(r *check.Result) error { return Closers{Clients: 2000, Concurrent: 16}.Run(t.Context(), s, r) })
		})
	}
}

// The short version; go run ./verify -only waiters-redis has the long one.
func TestWaiters(t *testing.T) {
	for title, o := range map[string]system.Options{
		"embedded": {Store: system.Embedded}, "redis": {Store: system.Redis}, "two gateways": {Store: system.Redis, Gateways: 2},
	} {
		t.Run(title, func(t *testing.T) {
			s := system.StartTest(t, o)
			passes(t, func(r *check.Result) error { return Waiters{Rounds: 1, Waiters: 400}.Run(t.Context(), s, r) })
		})
	}
}

// What is allowed is asked of each way to go by itself: many clients that close do not
// hide those that reset.
func TestClosersAreJudgedByTheWayTheyGo(t *testing.T) {
	for way, c := range ways {
		for left, found := range map[int]int{0: 0, 30_000/c.allowed - 1: 0, 30_000 / c.allowed: 1} {
			s := &closing{r: check.NewResult(1)}
			s.gone[way].Store(30_000)
			s.left[way] = map[string]int{kindNames[direct]: left}
			for i := range ways {
				s.judge(i)
			}
			if n, violations := s.r.Violations(); n != found {
				t.Errorf("%s: %d left behind by 30000: %q", c.title, left, violations)
			}
		}
	}
}

// The short version; go run ./verify -only readers-redis has the long one.
func TestReaders(t *testing.T) {
	for title, o := range map[string]system.Options{
		"embedded": {Store: system.Embedded}, "two gateways": {Store: system.Redis, Gateways: 2},
	} {
		t.Run(title, func(t *testing.T) {
			s := system.StartTest(t, o)
			passes(t, func(r *check.Result) error { return Readers{Rounds: 1, Crowds: 2, Each: 150}.Run(t.Context(), s, r) })
		})
	}
}
