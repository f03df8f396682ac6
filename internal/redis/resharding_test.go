package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"

	goredis "github.com/redis/go-redis/v9"
)

// Slots with names in use move from node to node while two gateways go on: tokens
// grow, nobody loses a lease, and nothing but unavailable comes between.
func TestResharding(t *testing.T)       { testResharding(t, 2, 2) }
func TestSystemResharding(t *testing.T) { testResharding(t, 6, 8) }

func testResharding(t *testing.T, names, moves int) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	race := &race{t: t, last: map[fencing.Name]fencing.Token{}}
	var running sync.WaitGroup
	o := unguarded(cluster.URL())
	o.OperationTimeout = time.Second // less than what goes by until the Cluster is asked though nothing failed
	idle := open(t, o)
	for range 2 {
		s := open(t, unguarded(cluster.URL()))
		for i := range names {
			running.Go(func() { race.run(ctx, s, fencing.Name(fmt.Sprintf("orders/%d", i))) })
		}
	}
	masters := cluster.Masters()
	for i := range moves {
		slot := slots[clusterPartition(fencing.Name(fmt.Sprintf("orders/%d", i%names)))]
		to := masters[i%len(masters)]
		if to == cluster.Owner(slot) {
			to = masters[(i+1)%len(masters)]
		}
		cluster.MoveSlot(slot, to, func() {
			before := race.pairs.Load()
			until(t, func() bool { return race.pairs.Load() >= before+20 })
		})
	}
	before := race.pairs.Load()
	until(t, func() bool { return race.pairs.Load() >= before+100 })
	stop()
	running.Wait()
	t.Logf("%d pairs, %d answers unavailable", race.pairs.Load(), race.unavailable.Load())

	for name, last := range race.last {
		cluster.MoveSlot(slots[clusterPartition(name)], masters[0], nil)
		cluster.MoveSlot(slots[clusterPartition(name)], masters[1], nil)
		r := acquireRequest(name)
		if got := mustAcquire(t, idle, r); got.Holder.Token <= last {
			t.Errorf("%s: token %d after %d", name, got.Holder.Token, last)
		}
		mustRelease(t, idle, r)
	}
	if len(race.last) != names {
		t.Errorf("%d names were granted, want %d", len(race.last), names)
	}
	for _, server := range cluster.Members() {
		client := server.Client()
		defer client.Close()
		if stats := client.Info(t.Context(), "errorstats").Val(); strings.Contains(stats, "CROSSSLOT") {
			t.Errorf("a node was asked for keys of several slots: %s", stats)
		}
	}
}

// race is what callers on a few names know of them together.
type race struct {
	t                  *testing.T
	pairs, unavailable atomic.Int64

	mu   sync.Mutex
	last map[fencing.Name]fencing.Token // while a name is held, its token
}

// run acquires, renews and releases a name until ctx ends; what it has begun it
// ends.
func (r *race) run(ctx context.Context, s *Store, name fencing.Name) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for ; ctx.Err() == nil; <-tick.C {
		request := acquireRequest(name)
		got, err := r.insist("acquire", func(ctx context.Context) (fencing.Outcome, error) { return s.Do(ctx, request) })
		if code(err) == fencing.CodeLocked {
			continue
		}
		if err != nil {
			return
		}
		r.mu.Lock()
		if got.Holder.Token <= r.last[name] {
			r.t.Errorf("%s: token %d after %d", name, got.Holder.Token, r.last[name])
		}
		r.last[name] = got.Holder.Token
		r.mu.Unlock()
		for what, call := range map[string]func(context.Context) (fencing.Outcome, error){
			"renew": func(ctx context.Context) (fencing.Outcome, error) {
				return s.Do(ctx, fencing.RenewRequest{Name: name, Lease: request.Lease})
			},
			"inspect": func(ctx context.Context) (fencing.Outcome, error) {
				return s.Do(ctx, fencing.InspectRequest{Name: name})
			},
		} {
			if _, err := r.insist(what, call); err != nil {
				return
			}
		}
		_, err = r.insist("release", func(ctx context.Context) (fencing.Outcome, error) {
			return s.Do(ctx, fencing.ReleaseRequest{Name: name, Lease: request.Lease})
		})
		if err != nil {
			return
		}
		r.pairs.Add(1)
	}
}

// insist calls until the answer is not unavailable. It is an error of the test
// unless it is a success, or that another caller holds the name.
func (r *race) insist(what string, call func(context.Context) (fencing.Outcome, error)) (fencing.Outcome, error) {
	for {
		out, err := call(r.t.Context())
		var answer goredis.Error
		switch {
		case err == nil || what == "acquire" && code(err) == fencing.CodeLocked:
			return out, err
		case code(err) != fencing.CodeUnavailable || r.t.Context().Err() != nil,
			errors.As(err, &answer) && strings.HasPrefix(answer.Error(), "CROSSSLOT"):
			r.t.Errorf("%s: %v", what, err)
			return out, err
		}
		r.unavailable.Add(1)
	}
}
