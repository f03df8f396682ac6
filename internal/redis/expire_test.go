package redis

import (
	"fmt"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

// holdMany acquires so many names, whose leases all run out together.
func holdMany(t *testing.T, s *Store, many int) {
	for i := range many {
		_, err := s.Do(t.Context(), acquireRequest(fencing.Name(fmt.Sprintf("%03d", i))))
		wantCode(t, "acquire", err, fencing.CodeOK)
	}
}

// A round of the reaper ends as many leases as it may, though all are in one partition.
func TestExpireEndsAsManyAsItMay(t *testing.T) {
	const many = 200
	b := openBackend(t, redistest.Start(t))
	s := b.stores[0]
	holdMany(t, s, many)
	b.SetTime(epoch.Add(30 * time.Second))
	for _, want := range []int{150, many - 150} {
		e, err := s.Expire(t.Context(), 150)
		wantCode(t, "expire", err, fencing.CodeOK)
		if len(e.Ended) != want {
			t.Errorf("%d leases ended, want %d", len(e.Ended), want)
		}
	}
}

// A heartbeat looks after what waits at the gateway, though hundreds of other names have
// been due for longer.
func TestHeartbeatBesideManyThatAreDue(t *testing.T) {
	b := openBackend(t, redistest.Start(t))
	s, ctx := b.stores[0], t.Context()
	holdMany(t, s, 500)
	b.SetTime(epoch.Add(time.Second))
	_, err := s.Do(ctx, acquireRequest("mine"))
	wantCode(t, "acquire", err, fencing.CodeOK)
	waiter := waitRequest("mine")
	_, err = s.Do(ctx, waiter)
	wantCode(t, "wait", err, fencing.CodeOK)
	for at := 3 * time.Second; at <= 31*time.Second; at += 2 * time.Second { // the others are due at 30 s, this one at 31
		b.SetTime(epoch.Add(at))
		wantCode(t, "heartbeat", s.Heartbeat(ctx, []fencing.Name{"mine"}), fencing.CodeOK)
	}
	out, err := s.Do(ctx, fencing.InspectRequest{Name: "mine", Holders: 1})
	wantCode(t, "inspect", err, fencing.CodeOK)
	if len(out.Lock.Holders) != 1 || out.Lock.Holders[0].Lease != waiter.Lease.Public() {
		t.Errorf("%+v holds, want the waiter", out.Lock.Holders)
	}
}
