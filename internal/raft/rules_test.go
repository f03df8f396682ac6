package raft

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

// rulesOf returns the rules in force at a node.
func (n *node) rulesOf() int {
	inForce, _ := n.Rules()
	return inForce
}

// stops waits until a node has stopped for an error, and returns what it says.
func (n *node) stops(t *testing.T, of error) string {
	t.Helper()
	select {
	case <-n.Failed():
	case <-time.After(time.Minute):
		t.Fatal("it does not stop")
	}
	if err := n.Cause(); !errors.Is(err, of) {
		t.Fatalf("it stops for %v", err)
	}
	return n.Cause().Error()
}

// raise has the node that leads raise the rules, if it may.
func (c *cluster) raise() {
	c.t.Helper()
	n := c.awaitLeader()
	if err := n.raiseRules(n.leading.Load()); err != nil {
		c.t.Fatal(err)
	}
}

// raised has the newest rules be in force at all nodes.
func (c *cluster) raised() {
	c.t.Helper()
	c.raise()
	for _, n := range c.nodes {
		eventually(c.t, "the newest rules are in force", func() bool { return n.rulesOf() == fencing.NewestRules })
	}
}

// The rules are raised once all members know later ones: not while one does not, or is not there. Who does not know them does not start
// any more, and is told whom to start.
func TestTheRulesOfACluster(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, func(i int, o *Options) {
		o.Version, o.rules = "v2", 2
		if i == 2 {
			o.Version, o.rules = "v1", 1
		}
	})
	late := c.nodes[2]
	if _, err := c.nodes[0].Do(t.Context(), acquire("a", fencing.LongestTTL)); err != nil {
		t.Fatal(err)
	}
	c.raise()
	c.hub.setCut(late.options.Self.Address, true)
	late.fsm.mu.Lock()
	late.fsm.machine.Know(2)
	late.fsm.mu.Unlock()
	c.raise()
	if is := c.nodes[0].rulesOf(); is != 1 {
		t.Fatalf("the rules are %d while one member did not know them, or was not there", is)
	}
	c.hub.setCut(late.options.Self.Address, false)
	eventually(t, "all know them", func() bool { c.raise(); return c.nodes[0].rulesOf() == 2 })
	for _, n := range c.nodes {
		eventually(t, "the rules are raised", func() bool { return n.rulesOf() == 2 })
	}
	for range 2 { // from the log, and from the snapshot of who started meanwhile
		late.Close()
		late.options.Version, late.options.rules = "v1", 1
		late.options.Network = &hubNetwork{listen(t, late.options.Self.Address), c.hub, late.options.Self.Address}
		if _, err := Open(late.options); !errors.Is(err, machine.ErrRules) || !strings.Contains(err.Error(), "start version v2") {
			t.Errorf("it starts: %v", err)
		}
		_ = late.options.Network.Close()
		late.options.Version, late.options.rules = "v2", 2
		c.reopen(2)
		c.awaitLeader()
		eventually(t, "the rules are in force", func() bool { return late.rulesOf() == 2 })
	}
	if out, err := c.nodes[1].Do(t.Context(), fencing.InspectRequest{Name: "a"}); err != nil || !out.Lock.Held() {
		t.Errorf("the lease is gone: %+v, %v", out.Lock, err)
	}
}

// A node whose log has an entry that raises the rules above what it knows does not start, though no snapshot has that yet; nor does it
// go on where it meets the entry.
func TestANodeThatMeetsOtherRules(t *testing.T) {
	t.Parallel()
	const known, next = fencing.NewestRules, fencing.NewestRules + 1
	c := newCluster(t, 3, func(_ int, o *Options) { o.Version, o.rules = "v2", next })
	odd := c.nodes[2]
	odd.fsm.mu.Lock()
	odd.fsm.version = "v1"
	odd.fsm.machine.Know(known)
	odd.fsm.mu.Unlock()
	leader := c.nodes[0]
	now, wall := leader.leading.Load().time()
	e := machine.Entry{Term: leader.leading.Load().term, Now: int64(now), Wall: int64(wall), Writer: "v2", Rules: next}
	if err := leader.raft.Apply(must(e.Encode()), 0).Error(); err != nil {
		t.Fatal(err)
	}
	if says := odd.stops(t, machine.ErrRules); !strings.Contains(says, "start version v2") {
		t.Error(says)
	}
	odd.Close()
	if names := snapshotsOf(t, odd); len(names) > 0 {
		t.Errorf("it has written %v", names)
	}
	odd.options.Version, odd.options.rules = "v1", known
	odd.options.Network = &hubNetwork{listen(t, odd.options.Self.Address), c.hub, odd.options.Self.Address}
	if _, err := Open(odd.options); !errors.Is(err, machine.ErrRules) {
		t.Errorf("it starts: %v", err)
	}
	_ = odd.options.Network.Close()
	if _, err := Examine(odd.options.Dir); !errors.Is(err, machine.ErrRules) {
		t.Errorf("the doctor says %v", err)
	}
	odd.Store = nil
	if _, err := leader.Do(t.Context(), acquire("b", time.Minute)); err != nil {
		t.Errorf("the others do not go on: %v", err)
	}
}

// Nodes of another version than the one that writes the log stop by themselves where they come to something else, and outvote nobody, also
// if they are the majority.
func TestAnotherVersionIsNoMajority(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, func(i int, o *Options) {
		if o.Version = "v2"; i == 0 {
			o.Version = "v1"
		}
	})
	leader := c.nodes[0]
	if _, err := leader.Do(t.Context(), acquire("a", fencing.LongestTTL)); err != nil {
		t.Fatal(err)
	}
	for _, n := range c.nodes[1:] {
		last, _ := leader.fsm.lastDigest()
		n.fsm.await(last, t.Context().Done())
		n.fsm.mu.Lock()
		n.fsm.machine.State().Records["a"].Holders = fencing.Holders{}
		n.fsm.mu.Unlock()
	}
	_, _ = leader.Do(t.Context(), acquire("a", fencing.LongestTTL)) // each has an answer of its own
	for _, n := range c.nodes[1:] {
		if says := n.stops(t, machine.ErrDiffers); !strings.Contains(says, "start version v1 here") || !strings.Contains(says, "stop all nodes") ||
			!strings.Contains(says, "with an empty directory then, while others of the cluster serve") {
			t.Error(says)
		}
	}
	if err := leader.Cause(); err != nil {
		t.Errorf("the one that has written the log stops: %v", err)
	}
	for _, n := range c.nodes[1:] {
		n.Close()
		if names := snapshotsOf(t, n); len(names) > 0 {
			t.Errorf("a node that differs has written %v", names)
		}
		n.Store = nil
	}
}

// A node that is stopped has a snapshot take the place of its log, so that another version need not carry that out: it has none of it then,
// and sends who is behind the snapshot.
func TestAnotherVersionGoesOnFromASnapshot(t *testing.T) {
	t.Parallel()
	for _, writer := range []string{"v1", "v2"} {
		t.Run("written by "+writer, func(t *testing.T) {
			t.Parallel()
			goOnFromASnapshot(t, writer)
		})
	}
}

// goOnFromASnapshot has a cluster of v1, but for the node that leads first, be stopped, and go on with v2.
func goOnFromASnapshot(t *testing.T, writer string) {
	c := newCluster(t, 3, func(i int, o *Options) {
		if o.Version = "v1"; i == 0 {
			o.Version = writer
		}
	})
	reach := func(n *node) {
		late, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		last, _ := c.awaitLeader().fsm.lastDigest()
		n.fsm.await(last, late.Done())
	}
	if _, err := c.nodes[0].Do(t.Context(), acquire("b", time.Minute)); err != nil {
		t.Fatal(err)
	}
	reach(c.nodes[2])
	c.nodes[2].Close()
	out, err := c.nodes[0].Do(t.Context(), acquire("a", fencing.LongestTTL))
	if err != nil {
		t.Fatal(err)
	}
	reach(c.nodes[1])
	c.nodes[1].Close()
	c.nodes[0].Close()
	for i, n := range c.nodes {
		if names := snapshotsOf(t, n); len(names) == 0 {
			t.Fatalf("node %d has written no snapshot", i)
		}
		n.options.Version, n.options.Election = "v2", time.Second
		c.reopen(i)
	}
	leader := c.awaitLeader()
	for i, n := range c.nodes {
		reach(n)
		if first, err := n.dir.log.FirstIndex(); err != nil || first >= 1 && first <= 3 && (i > 0 || writer == "v1") {
			t.Errorf("the log still begins with entry %d, %v", first, err)
		}
		var last raft.Log // a leader that goes on behind it asks for it; the one that was behind has the leader's snapshot
		if err := n.dir.log.GetLog(n.dir.covered(), &last); err != nil && i < 2 {
			t.Errorf("the last entry of the snapshot, %d: %v", n.dir.covered(), err)
		}
	}
	if again, err := leader.Do(t.Context(), fencing.InspectRequest{Name: "a"}); err != nil || len(again.Lock.Holders) != 1 || again.Lock.Holders[0].Token != out.Holder.Token {
		t.Errorf("%+v, %v", again.Lock, err)
	}
}
