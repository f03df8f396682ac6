package redis

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

// Renewals are not held back by WAIT (docs/stores/redis.md).
func TestRenewalsBesideWait(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	plain := open(t, Options{URL: server.URL()})
	s := open(t, Options{URL: server.URL(), ReplicaAcks: 1})
	held := acquireRequest("held")
	mustAcquire(t, plain, held)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for g := range 8 {
		running.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				_, _ = s.Do(t.Context(), acquireRequest(fencing.Name(fmt.Sprintf("n/%d/%d", g, i))))
			}
		})
	}
	fastest := time.Hour
	for range 6 {
		began := time.Now()
		if _, err := s.Do(t.Context(), fencing.RenewRequest{Name: "held", Lease: held.Lease}); err != nil {
			t.Log(err)
		}
		fastest = min(fastest, time.Since(began))
	}
	stop()
	running.Wait()
	if fastest > 400*time.Millisecond {
		t.Errorf("no renewal took less than %s, for acquires that replicas did not acknowledge", fastest)
	}
}
