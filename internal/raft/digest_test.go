package raft

import (
	"bytes"
	"context"
	"io"
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
			if _, err := all.nodes[0].Acquire(t.Context(), acquire("a", fencing.LongestTTL)); err != nil {
				t.Fatal(err)
			}
			odd := all.nodes[c.odd]
			late, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			odd.machine.await(all.nodes[0].raft.CommitIndex(), late.Done())
			odd.machine.mu.Lock()
			record := odd.machine.state.Records["a"]
			if record != nil {
				record.Holders = fencing.Holders{}
			}
			odd.machine.mu.Unlock()
			if record == nil {
				t.Fatal("it has not heard of the lease")
			}
			if out, err := all.nodes[1].Acquire(t.Context(), acquire("a", fencing.LongestTTL)); c.odd != 0 && err == nil {
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
				if _, err := all.nodes[0].Acquire(t.Context(), acquire("b", fencing.LongestTTL)); err != nil {
					t.Errorf("the others do not go on: %v", err)
				}
			}
		})
	}
}

// A node that began with a snapshot has come to the same as those that carried out all entries, and one with another
// state has not.
func TestANodeFromASnapshotIsCompared(t *testing.T) {
	log := logOf(3, 400)
	whole, from, odd := testMachine(t), testMachine(t), testMachine(t)
	for _, l := range log[:200] {
		whole.Apply(l)
	}
	snapshot := encoded(t, whole)
	for _, m := range []*machine{from, odd} {
		if err := m.Restore(io.NopCloser(bytes.NewReader(snapshot))); err != nil {
			t.Fatal(err)
		}
	}
	odd.state.Counter += 1 << 40
	for _, l := range log[200:] {
		for _, m := range []*machine{whole, from, odd} {
			m.Apply(l)
		}
		want, ok := whole.digestOf(l.Index)
		if got, known := from.digestOf(l.Index); !ok || !known || got != want {
			t.Fatalf("entry %d comes to something else behind a snapshot", l.Index)
		}
		if got, known := odd.digestOf(l.Index); !known || got == want {
			t.Fatalf("entry %d comes to the same for another state", l.Index)
		}
	}
	if _, known := from.digestOf(200); known {
		t.Error("what an entry before the snapshot came to is known")
	}
	if last, ok := whole.lastDigest(); !ok || last.index != 400 {
		t.Errorf("the last is of entry %d", last.index)
	}
}
