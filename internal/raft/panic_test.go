package raft

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

// poison panics in a step that has changed the state by then: no list has so many slots.
func poison(name fencing.Name) fencing.AcquireRequest {
	r := acquire(name, fencing.LongestTTL)
	r.Mode, r.Limit, r.Permits = fencing.ModeShared, 1<<60, 1<<59
	return r
}

// agreed waits until all nodes have carried out the log, and returns what they have come to.
func (c *cluster) agreed() (index, digest uint64) {
	c.t.Helper()
	late, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	at := c.awaitLeader().raft.CommitIndex()
	for i, n := range c.nodes {
		n.fsm.await(at, late.Done())
		n.fsm.mu.RLock()
		is, known := n.fsm.machine.DigestAt(at)
		n.fsm.mu.RUnlock()
		if !known || i > 0 && is != digest {
			c.t.Errorf("node %d has come to %x, %v after entry %d, the first one to %x", i, is, known, at, digest)
		}
		digest = is
	}
	return at, digest
}

// M4: an operation that panics is refused, the same way at every node, and at every start; all else goes on.
func TestAnOperationThatPanicsIsRefused(t *testing.T) {
	t.Parallel()
	clock := newTestClock()
	c := newCluster(t, 3, func(_ int, o *Options) { o.wall, o.monotonic = clock.wall, clock.since })
	kept, held := acquire("kept", 3*time.Hour), acquire("held", 3*time.Hour)
	held.Mode, held.Limit = fencing.ModeShared, 1<<61
	tokens := map[fencing.Name]fencing.Token{}
	for _, r := range []fencing.AcquireRequest{kept, held} {
		out, err := c.nodes[1].Do(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		tokens[r.Name] = out.Holder.Token
	}
	refused := func(i int, op fencing.Op) {
		t.Helper()
		_, err := c.nodes[i].Do(t.Context(), op)
		if e := fencing.AsError(err); e == nil || e.Code != fencing.CodeUnavailable || !strings.Contains(e.Detail, "report it") || e.RetryAfter == 0 {
			t.Errorf("%T of %s at node %d: %v", op, op.LockName(), i, err)
		}
	}
	bad := poison("new")
	refused(1, bad)
	refused(0, poison("held"))
	refused(2, acquire("new", time.Minute))                               // nobody is granted it meanwhile
	refused(0, fencing.RenewRequest{Name: "held", Lease: held.Lease})     // and no holder is told that it has lost
	refused(0, fencing.BreakRequest{Name: "held", Token: tokens["held"]}) // nor ends
	for i, n := range c.nodes {
		c.agreed()
		if got := n.Panics(); got != 2 {
			t.Errorf("node %d counts %d", i, got)
		}
	}
	if _, err := c.nodes[2].Do(t.Context(), acquire("other", time.Minute)); err != nil {
		t.Errorf("other names: %v", err)
	}
	before, digest := c.agreed()
	if err := c.nodes[0].raft.Snapshot().Error(); err != nil && !strings.Contains(err.Error(), "nothing new") {
		t.Error(err)
	}
	for i, n := range c.nodes { // one reads it out of a snapshot, the others carry out the log
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
		c.reopen(i)
		c.awaitLeader()
	}
	for i, n := range c.nodes {
		late, cancel := context.WithTimeout(t.Context(), time.Minute)
		n.fsm.await(before, late.Done())
		cancel()
		n.fsm.mu.RLock()
		if is, known := n.fsm.machine.DigestAt(before); known && is != digest {
			t.Errorf("node %d has come to %x after a start, %x before", i, is, digest)
		}
		n.fsm.mu.RUnlock()
		if n.Panics() != 0 {
			t.Errorf("node %d counts what it knows already", i)
		}
		refused(i, fencing.RenewRequest{Name: "held", Lease: held.Lease})
	}
	c.agreed()
	out, err := c.nodes[0].Do(t.Context(), fencing.RenewRequest{Name: "kept", Lease: kept.Lease})
	if err != nil || out.Holder.Token != tokens["kept"] {
		t.Errorf("kept: %+v, %v", out.Holder, err)
	}
	clock.advance(machine.RestAfterPanic + time.Second)
	for _, name := range []fencing.Name{"new", "held"} {
		op := fencing.Op(acquire(name, time.Minute))
		if name == "held" {
			op = fencing.RenewRequest{Name: "held", Lease: held.Lease}
		}
		if out, err := c.nodes[1].Do(t.Context(), op); err != nil || out.Holder.Token < tokens[name] {
			t.Errorf("%s an hour later: %+v, %v", name, out.Holder, err)
		}
	}
	c.agreed()
}

// A read that panics ends nobody, wherever it was asked, and is not repeated.
func TestAReadThatPanics(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	leader := c.awaitLeader()
	for _, n := range c.nodes {
		before := leader.Panics()
		_, err := n.ask(t.Context(), message{Errand: errandList}) // of no list
		if e := fencing.AsError(err); e == nil || e.Code != fencing.CodeUnavailable || !strings.Contains(e.Detail, "report it") {
			t.Errorf("answered %v", err)
		}
		if got := leader.Panics() - before; got != 1 {
			t.Errorf("it has panicked %d times", got)
		}
		if _, err := n.Do(t.Context(), acquire(fencing.Name("behind/"+n.self.ID), time.Minute)); err != nil {
			t.Error(err)
		}
		if _, err := n.List(t.Context(), fencing.ListRequest{Limit: 10}); err != nil {
			t.Error(err)
		}
	}
}

// Of panics in a row the first has a node read its log, however many names they are on.
func TestPanicsInARowReadTheLogOnce(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	read := make([]atomic.Int64, len(c.nodes))
	for i, n := range c.nodes {
		n.fsm.mu.Lock()
		anew := n.fsm.anew
		n.fsm.anew = func(upTo uint64, refused machine.Refused) (*machine.Machine, error) {
			read[i].Add(1)
			return anew(upTo, refused)
		}
		n.fsm.mu.Unlock()
	}
	const panics = 20
	for i := range panics {
		if _, err := c.nodes[i%3].Do(t.Context(), poison(fencing.Name(fmt.Sprint("new", i)))); code(err) != fencing.CodeUnavailable {
			t.Errorf("answered %v", err)
		}
	}
	c.agreed()
	for i, n := range c.nodes {
		if got, counted := read[i].Load(), n.Panics(); got != 1 || counted != panics {
			t.Errorf("node %d read its log %d times, and counts %d", i, got, counted)
		}
	}
}

// A snapshot that takes the place of the log while a machine is made of that is read then.
func TestTheLogIsCutWhileAMachineIsMade(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	n := c.nodes[0]
	for i := range 5 {
		if _, err := n.Do(t.Context(), acquire(fencing.Name(fmt.Sprint("n", i)), time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	at, digest := c.agreed()
	cut := sync.OnceFunc(func() { compacted(t, n) })
	made, err := n.dir.machineAt(at, machine.Refused{}, cut)
	if err != nil {
		t.Fatal(err)
	}
	if is, known := made.DigestAt(at); !known || is != digest {
		t.Errorf("it comes to %x, %v, the node to %x", is, known, digest)
	}
}

// A cluster of one that becomes a single gateway, and that becomes a cluster again, refuse what was refused.
func TestWhatPanickedIsRefusedByAStoreWithoutPeers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := newCluster(t, 1, func(_ int, o *Options) { o.Dir = dir })
	all := []had{}
	for _, name := range []fencing.Name{"kept", "held"} {
		r := acquire(name, fencing.LongestTTL)
		out, err := c.nodes[0].Do(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, had{r, out.Holder.Token})
	}
	if _, err := c.nodes[0].Do(t.Context(), poison("new")); code(err) != fencing.CodeUnavailable {
		t.Fatal(err)
	}
	if err := c.nodes[0].Close(); err != nil {
		t.Fatal(err)
	}
	c.nodes[0].Store = nil
	check := func(what string, s fencing.Store) {
		t.Helper()
		keeps(t, s, what, all)
		if _, err := s.Do(t.Context(), acquire("new", time.Minute)); code(err) != fencing.CodeUnavailable {
			t.Errorf("%s: %v", what, err)
		}
	}
	crashed := copied(t, dir)
	s := withoutPeers(t, dir)
	check("without peers", s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	check("from its snapshot", withoutPeers(t, copied(t, dir)))
	again := newCluster(t, 1, func(_ int, o *Options) { o.Dir = crashed })
	check("a node", again.nodes[0])
}
