package client

import (
	"errors"
	"testing"
	"time"
)

// After a lease with a lock delay was broken nobody is granted the lock, and everybody is told
// for how long.
func TestLockDelay(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	must[*Lease](t)(c.Acquire(t.Context(), "a", TTL(time.Minute), LockDelay(time.Minute)))
	held := must[Lock](t)(c.Inspect(t.Context(), "a"))
	if held.Delayed != 0 || held.Holders[0].LockDelay != 60_000 {
		t.Errorf("%+v", held)
	}
	if err := c.Break(t.Context(), "a", held.Token, ""); err != nil {
		t.Fatal(err)
	}
	_, err := c.TryAcquire(t.Context(), "a")
	if e := refusal(err); !errors.Is(err, CodeLocked) || len(e.Holders) != 0 || e.Delayed <= 0 || e.Delayed > time.Minute || e.RetryAfter != e.Delayed {
		t.Errorf("%+v", e)
	}
	if free := must[Lock](t)(c.Inspect(t.Context(), "a")); free.Held || free.Delayed <= 0 || free.Delayed > 60_000 {
		t.Errorf("%+v", free)
	}
	_, err = c.TryAcquire(t.Context(), "b", LockDelay(time.Minute+time.Millisecond))
	if !errors.Is(err, CodeInvalidRequest) || refusal(err).Field != "lock_delay_ms" {
		t.Errorf("%v", err)
	}
}
