package raft

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/internal/fencing"
)

// patiently has no node forget its leader while a test runs.
func patiently(_ int, o *Options) { o.Election = time.Minute }

// remove has a leader remove a node.
func remove(t *testing.T, leader, gone *node) {
	t.Helper()
	if err := leader.raft.RemoveServer(raft.ServerID(gone.self.ID), 0, 0).Error(); err != nil {
		t.Fatal(err)
	}
}

// A node that was removed while it was cut off, and has not heard of it, knows the leader when it is back. That does
// nothing for it any more, and the node says why.
func TestTheLeaderServesNoNodeThatWasRemoved(t *testing.T) {
	c := newCluster(t, 3, patiently)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	leader, gone := c.nodes[0], c.nodes[2]
	held := acquire("held", time.Hour)
	if _, err := gone.Do(ctx, held); err != nil {
		t.Fatal(err)
	}
	c.hub.setCut(gone.self.Address, true)
	remove(t, leader, gone)
	c.hub.setCut(gone.self.Address, false)
	if _, _, ok := gone.leader(); !ok {
		t.Fatal("it does not know the leader: that proves nothing")
	}
	for what, ask := range map[string]func() error{
		"Acquire": func() error { _, err := gone.Do(ctx, acquire("a", time.Hour)); return err },
		"Renew": func() error {
			_, err := gone.Do(ctx, fencing.RenewRequest{Name: "held", Lease: held.Lease})
			return err
		},
		"Release": func() error {
			_, err := gone.Do(ctx, fencing.ReleaseRequest{Name: "held", Lease: held.Lease})
			return err
		},
		"Inspect":   func() error { _, err := gone.Do(ctx, fencing.InspectRequest{Name: "held"}); return err },
		"List":      func() error { _, err := gone.List(ctx, fencing.ListRequest{Limit: 1}); return err },
		"Expire":    func() error { _, err := gone.Expire(ctx, 1); return err },
		"Heartbeat": func() error { return gone.Heartbeat(ctx, nil) },
		"Stats":     func() error { _, err := gone.Stats(ctx); return err },
		"Check":     func() error { return gone.Check(ctx) },
	} {
		if err := ask(); code(err) != fencing.CodeUnavailable || !errors.Is(err, errRemoved) {
			t.Errorf("%s at a node that was removed: %v", what, err)
		}
	}
	for name, want := range map[fencing.Name]bool{"a": false, "held": true} {
		if out, err := leader.Do(ctx, fencing.InspectRequest{Name: name}); err != nil || out.Lock.Held() != want {
			t.Errorf("%s is %+v, %v", name, out.Lock, err)
		}
	}
	if err := leader.raft.AddNonvoter(raft.ServerID(gone.self.ID), raft.ServerAddress(gone.self.Address), 0, 0).Error(); err != nil {
		t.Fatal(err)
	}
	serves(t, gone, "without.a.vote")
}

// A leader that was removed while it was cut off still takes itself for the leader of the members before. Alone it grants
// nothing, cut off or back.
func TestALeaderThatWasRemovedGrantsNothing(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, patiently)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	old, next := c.nodes[0], c.nodes[1]
	eventually(t, "all have all entries", func() bool {
		last := old.raft.LastIndex()
		return next.raft.LastIndex() == last && c.nodes[2].raft.LastIndex() == last
	})
	c.hub.setCut(old.self.Address, true)
	elects := c.nodes[2].dir.transport
	if err := elects.TimeoutNow(raft.ServerID(next.self.ID), raft.ServerAddress(next.self.Address), &raft.TimeoutNowRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax},
	}, &raft.TimeoutNowResponse{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another node leads", func() bool { return next.leading.Load() != nil })
	remove(t, next, old)
	if old.leading.Load() == nil {
		t.Fatal("it does not take itself for the leader: that proves nothing")
	}
	for _, cut := range []bool{true, false} {
		c.hub.setCut(old.self.Address, cut)
		brief, stop := context.WithTimeout(ctx, time.Second)
		var asking sync.WaitGroup
		asking.Go(func() {
			if _, err := old.Do(brief, acquire("a", time.Hour)); code(err) != fencing.CodeUnavailable {
				t.Errorf("cut off: %t; an acquire is answered %v", cut, err)
			}
		})
		asking.Go(func() {
			if _, err := old.Do(brief, fencing.InspectRequest{Name: "a"}); code(err) != fencing.CodeUnavailable {
				t.Errorf("cut off: %t; a look is answered %v", cut, err)
			}
		})
		asking.Wait()
		stop()
	}

	none := raft.AppendEntriesRequest{ // as of a leader that has nothing new; a heartbeat would be noticed seconds later
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(next.self.ID), Addr: []byte(next.self.Address)},
		Term:      next.raft.CurrentTerm(), LeaderCommitIndex: 1,
	}
	leads := next.dir.transport
	if err := leads.AppendEntries(raft.ServerID(old.self.ID), raft.ServerAddress(old.self.Address), &none, &raft.AppendEntriesResponse{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has heard of the other leader", func() bool { return old.leading.Load() == nil })
	if _, err := old.Do(ctx, acquire("a", time.Hour)); !errors.Is(err, errRemoved) {
		t.Errorf("an acquire by the other leader is answered %v", err)
	}
	if out, err := next.Do(ctx, fencing.InspectRequest{Name: "a"}); err != nil || out.Lock.Held() {
		t.Errorf("the name is %+v, %v", out.Lock, err)
	}
}
