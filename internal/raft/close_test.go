package raft

import (
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for patience := time.After(time.Minute); !holds(); {
		select {
		case <-ticker.C:
		case <-patience:
			t.Errorf("it never came to this: %s", what)
			return
		}
	}
}

// receive waits for what a goroutine has to tell.
func receive[T any](t testing.TB, what string, from <-chan T) (told T) {
	t.Helper()
	select {
	case told = <-from:
	case <-time.After(time.Minute):
		t.Fatalf("never: %s", what)
	}
	return told
}

// closes waits until a node is closed.
func closes(t testing.TB, n *node) {
	t.Helper()
	closed, s := make(chan error, 1), n.Store
	n.Store = nil // should it not end, nobody else is to wait for it
	go func() { closed <- s.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Errorf("Close: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("Close does not return")
	}
}

// closeRounds is how often a node is closed while hashicorp/raft has something to do: every other time it
// leaves that unanswered.
const closeRounds = 8

// Close returns, though hashicorp/raft leaves entries unanswered that were committed, and waited to be
// carried out when it was shut down.
func TestCloseBesideEntriesOnTheirWay(t *testing.T) {
	for range closeRounds {
		n := newCluster(t, 1, func(_ int, o *Options) { o.closeTime = time.Millisecond }).nodes[0]
		s, committed := n.Store, n.raft.CommitIndex()
		s.fsm.mu.Lock() // entries are not carried out
		for i := range uint64(entriesInFlight) {
			s.work.Go(func() { _, _ = s.Do(t.Context(), acquire("a", time.Minute)) })
			eventually(t, "the entry is committed", func() bool { return s.raft.CommitIndex() > committed+i })
		}
		s.work.Go(func() {
			defer s.fsm.mu.Unlock()
			eventually(t, "the node is shut down", func() bool { return s.raft.State() == raft.Shutdown })
		})
		closes(t, n)
	}
}

// Close returns, though hashicorp/raft leaves the question unanswered whether the node leads, once it was shut
// down.
func TestCloseBesideReads(t *testing.T) {
	for range closeRounds {
		n := newCluster(t, 1, nil).nodes[0]
		if err := n.raft.Shutdown().Error(); err != nil {
			t.Fatal(err)
		}
		n.verifier.next, n.verifier.running = &verification{done: make(chan struct{})}, true
		n.work.Go(n.verifyAll)
		closes(t, n)
	}
}
