package main

import (
	"context"
	"sync"
	"testing"

	"fencepost/internal/redis/redistest"
)

// A quorum gives a lease less than its TTL, for it allows for clocks. An attached one is
// renewed before that is over.
func TestAttachedToAQuorumWithAShortTTL(t *testing.T) {
	t.Parallel()
	attachedToAQuorum(t, 6)
}

func TestSystemAttachedToAQuorumWithAShortTTL(t *testing.T) {
	t.Parallel()
	attachedToAQuorum(t, 20)
}

func attachedToAQuorum(t *testing.T, renewals int) {
	url := "http://" + startOn(t, redistest.QuorumURL(redistest.StartQuorum(t, 3)), "FENCEPOST_MAX_CLOCK_SKEW=1300ms").addr
	eventually(t, "POST", url+"/locks/first", 201)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	defer stop()
	s := attach(ctx, t, &running, url+"/locks/short", `{"ttl_ms":2000}`)
	s.await("renewed", renewals)
	if n := s.count("lost"); n > 0 {
		t.Errorf("it was lost: %v", s.events)
	}
}
