package redis

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

// A planned fail-over: the old master grants on to gateways that have not heard of
// it. The quarantine of the new one counts from the first gateway that came there.
func TestReviewPlannedFailover(t *testing.T) {
	for _, acks := range []int{0, 1} {
		t.Run(fmt.Sprint(acks, " acks"), func(t *testing.T) { reviewPlannedFailover(t, acks) })
	}
}

func reviewPlannedFailover(t *testing.T, acks int) {
	cluster := redistest.StartSentinel(t, 2, 3, "--min-replicas-to-write", "1", "--min-replicas-max-lag", "3")
	const ttl = 10 * time.Second
	options := Options{URL: cluster.URL(), ReplicaAcks: acks, Quarantine: QuarantinePolicy{Least: ttl}}
	first := open(t, options)
	var others []*Store
	for range 6 {
		others = append(others, open(t, options))
	}
	old := first.topology.node(0).addr
	ctx, stop := context.WithCancel(t.Context())
	type grant struct {
		name     fencing.Name
		until    time.Time
		received time.Time
	}
	var mu sync.Mutex
	var grants []grant
	var running sync.WaitGroup
	for g, s := range others {
		running.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				r := acquireRequest(fencing.Name(fmt.Sprintf("n/%d/%d", g, i)))
				r.TTL = ttl
				sent := time.Now()
				if _, err := s.Acquire(t.Context(), r); err == nil {
					mu.Lock()
					grants = append(grants, grant{r.Name, sent.Add(ttl), time.Now()})
					mu.Unlock()
				}
				select {
				case <-time.After(5 * time.Millisecond):
				case <-ctx.Done():
				}
			}
		})
	}
	until(t, func() bool { mu.Lock(); defer mu.Unlock(); return len(grants) > 100 })
	failing := make(chan struct{})
	go func() { defer close(failing); cluster.Failover() }()
	var ends, came time.Time
	until(t, func() bool {
		if first.topology.node(0).addr == old {
			return false
		}
		r := acquireRequest("probe")
		_, err := first.Acquire(t.Context(), r)
		var e *fencing.Error
		if errors.As(err, &e) && e.Code == fencing.CodeQuarantined && e.RetryAfter > 0 {
			ends, came = time.Now().Add(e.RetryAfter), time.Now()
			return true
		}
		return false
	})
	<-failing
	until(t, func() bool {
		for _, s := range others {
			if s.topology.node(0).addr == old {
				return false
			}
		}
		return true
	})
	stop()
	running.Wait()
	late, worst, lost := 0, time.Duration(0), 0
	for _, g := range grants {
		if g.received.Before(came.Add(-3 * time.Second)) {
			continue
		}
		out, err := first.Inspect(t.Context(), fencing.InspectRequest{Name: g.name})
		if err != nil {
			t.Fatal(err)
		}
		if !out.Lock.Held() {
			lost++
			if over := g.until.Sub(ends); over > 0 {
				late++
				worst = max(worst, over)
			}
		}
	}
	t.Logf("%d grants, %d lost", len(grants), lost)
	for _, server := range cluster.Servers() {
		client := server.Client()
		n := 0
		for _, g := range grants {
			n += int(client.Exists(t.Context(), newKeyspaces()[partitionOf(g.name)].lock(g.name)).Val())
		}
		t.Logf("%s (old %s, now %s) role %v dbsize %d locks %d", server.Addr(), old, first.topology.node(0).addr, client.Do(t.Context(), "role").Val(), client.DBSize(t.Context()).Val(), n)
		client.Close()
	}
	for i, g := range grants {
		if i%100 == 0 {
			out, err := first.Inspect(t.Context(), fencing.InspectRequest{Name: g.name})
			t.Log(g.name, time.Until(g.until), g.received.Sub(came), out.Lock.Held(), out.Lock.LastToken, err)
		}
	}
	// the longest guard counts too: another partition may be longer or shorter
	if late > 0 {
		t.Errorf("P1: %d leases that the new master never heard of are believed in for up to %s after the quarantine", late, worst)
	}
}

// Renewals are not held back by WAIT (docs/stores.md).
func TestReviewRenewalsBesideWait(t *testing.T) {
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
				_, _ = s.Acquire(t.Context(), acquireRequest(fencing.Name(fmt.Sprintf("n/%d/%d", g, i))))
			}
		})
	}
	var worst time.Duration
	for range 6 {
		began := time.Now()
		if _, err := s.Renew(t.Context(), fencing.RenewRequest{Name: "held", Lease: held.Lease}); err != nil {
			t.Log(err)
		}
		worst = max(worst, time.Since(began))
	}
	stop()
	running.Wait()
	if worst > 400*time.Millisecond {
		t.Errorf("a renewal took %s, for acquires that replicas did not acknowledge", worst)
	}
}
