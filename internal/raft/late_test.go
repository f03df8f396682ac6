package raft

import (
	"context"
	"sync"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// P6: an acquire that was given up, and comes to the leader behind its take-back, is not
// carried out any more.
func TestALateBatchIsNotCarriedOut(t *testing.T) {
	c := newCluster(t, 3, nil)
	follower := c.nodes[1]
	held, letGo := make(chan struct{}), make(chan struct{})
	var once sync.Once
	c.hub.late = func(string, string, []byte) {
		first := false
		once.Do(func() { first = true })
		if first {
			close(held)
			<-letGo
		}
	}
	handled := make(chan error, 1)
	c.hub.calls[c.nodes[0].self.Address].handled = func(err error) {
		select {
		case handled <- err:
		default:
		}
	}
	r := acquire("a", time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	given := make(chan error, 1)
	go func() {
		_, err := follower.Do(ctx, r)
		given <- err
	}()
	receive(t, "the request that is held", held)
	cancel()
	if err := receive(t, "the acquire that is given up", given); code(err) != fencing.CodeUnavailable {
		t.Fatalf("an acquire that was given up: %v", err)
	}
	if _, err := follower.Do(t.Context(), fencing.TakeBackRequest{Name: r.Name, Lease: r.Lease, Stamp: r.Stamp}); err != nil {
		t.Fatal(err)
	}
	receive(t, "the take-back", handled)
	close(letGo)
	receive(t, "the request that was held", handled)
	out, err := follower.Do(t.Context(), fencing.InspectRequest{Name: "a"})
	if err != nil || out.Lock.LastToken != 0 {
		t.Errorf("the name is %+v, %v; nothing was to be granted", out.Lock, err)
	}
	follower.queue.mu.Lock()
	defer follower.queue.mu.Unlock()
	if n := len(follower.queue.gone); n != 0 {
		t.Errorf("%d batches that were given up are remembered; the leader knows of them", n)
	}
}

// A node that does not get through to the leader, which hears of it all the same, keeps nothing of
// what it could not send: it might go on for days.
func TestWhatWasNotSentIsForgotten(t *testing.T) {
	c := newCluster(t, 2, nil)
	follower := c.nodes[1]
	calls := follower.options.Calls.(*hubCalls)
	calls.silent.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := follower.Do(ctx, acquire("a", time.Minute)); code(err) != fencing.CodeUnavailable {
		t.Errorf("it can't ask the leader: %v", err)
	}
	kept := func() int {
		follower.queue.mu.Lock()
		defer follower.queue.mu.Unlock()
		return len(follower.queue.gone) + len(follower.queue.open)
	}
	look, late := time.NewTicker(time.Millisecond), time.After(time.Minute)
	defer look.Stop()
	for kept() > 0 { // the last one may be on its way
		select {
		case <-look.C:
		case <-late:
			t.Fatalf("%d batches are remembered that nobody was ever sent", kept())
		}
	}
	calls.silent.Store(false)
	if _, err := follower.Do(t.Context(), acquire("a", time.Minute)); err != nil {
		t.Error(err)
	}
}
