package raft

import (
	"context"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// A node that has come to something else than the majority stops, the leader too; the others go on.
func TestANodeThatDiffersStops(t *testing.T) {
	for _, c := range []struct {
		what string
		odd  int
	}{{"the leader", 0}, {"a follower", 2}} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			all := newCluster(t, 3, nil)
			if _, err := all.nodes[0].Do(t.Context(), acquire("a", fencing.LongestTTL)); err != nil {
				t.Fatal(err)
			}
			odd := all.nodes[c.odd]
			late, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			odd.fsm.await(all.nodes[0].raft.CommitIndex(), late.Done())
			odd.fsm.mu.Lock()
			record := odd.fsm.machine.State().Records["a"]
			if record != nil {
				record.Holders = fencing.Holders{}
			}
			odd.fsm.mu.Unlock()
			if record == nil {
				t.Fatal("it has not heard of the lease")
			}
			if out, err := all.nodes[1].Do(t.Context(), acquire("a", fencing.LongestTTL)); c.odd != 0 && err == nil {
				t.Errorf("granted twice: %+v", out)
			}
			select {
			case <-odd.Failed():
			case <-time.After(time.Minute):
				t.Fatal("it does not stop")
			}
			for i, n := range all.nodes {
				if cause := n.Cause(); i != c.odd && cause != nil {
					t.Errorf("node %d stops: %v", i, cause)
				}
			}
			if c.odd != 0 {
				if _, err := all.nodes[0].Do(t.Context(), acquire("b", fencing.LongestTTL)); err != nil {
					t.Errorf("the others do not go on: %v", err)
				}
			}
		})
	}
}
