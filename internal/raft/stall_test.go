package raft

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/internal/fencing"
)

// hangingDisk is a disk on which a write takes until it is let go, from when hangs is set. It may fail then.
type hangingDisk struct {
	walStore
	hangs *atomic.Pointer[chan error]
}

// hangingDiskOf gives one node such a disk.
func hangingDiskOf(of int, hangs *atomic.Pointer[chan error]) func(int, *Options) {
	return func(i int, o *Options) {
		if i == of {
			o.wrapLog = func(w walStore) walStore { return hangingDisk{w, hangs} }
		}
	}
}

func (d hangingDisk) StoreLogs(entries []*raft.Log) error {
	if letGo := d.hangs.Load(); letGo != nil {
		if err := <-*letGo; err != nil {
			return err
		}
	}
	return d.walStore.StoreLogs(entries)
}

// Close waits for the write that is under way, as that of a wal.Log does.
func (d hangingDisk) Close() error {
	if letGo := d.hangs.Load(); letGo != nil {
		<-*letGo
	}
	return d.walStore.Close()
}

// A node ends though its disk hangs.
func TestANodeWhoseDiskHangsEnds(t *testing.T) {
	var hangs atomic.Pointer[chan error]
	c := newCluster(t, 3, func(i int, o *Options) {
		o.Election, o.closeTime, o.stopTime = 200*time.Millisecond, 50*time.Millisecond, 50*time.Millisecond
		hangingDiskOf(0, &hangs)(i, o)
	})
	n := c.nodes[0]
	letGo := make(chan error)
	defer close(letGo)
	hangs.Store(&letGo)
	serves(t, c.nodes[1], "beside")
	eventually(t, "a write hangs", func() bool { return n.dir.log.busyFor() > 0 })
	closed, s := make(chan error, 1), n.Store
	n.Store = nil
	go func() { closed <- s.Close() }()
	if err := receive(t, "it ends", closed); !errors.Is(err, errStuck) {
		t.Errorf("it ends with %v", err)
	}
}

// serves waits until a node grants.
func serves(t *testing.T, n *node, name fencing.Name) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for r := acquire(name, time.Hour); ; { // asked again, it is the same lease
		_, err := n.Do(ctx, r)
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("nothing is granted: %v", err)
		}
	}
}

// A leader whose disk hangs does not keep the lead: the others serve, and it follows when its disk goes on.
func TestALeaderWhoseDiskHangsIsReplaced(t *testing.T) {
	var hangs atomic.Pointer[chan error]
	c := newCluster(t, 3, func(i int, o *Options) {
		o.Election = 200 * time.Millisecond
		hangingDiskOf(0, &hangs)(i, o)
	})
	for c.awaitLeader() != c.nodes[0] { // a machine that is slow may have elected another one
		c.elect(0)
	}
	serves(t, c.nodes[1], "before")
	letGo := make(chan error)
	hangs.Store(&letGo)
	defer close(letGo)
	for _, n := range c.nodes[1:] {
		serves(t, n, fencing.Name("beside."+n.self.ID))
	}
	hangs.Store(nil)
	letGo <- nil
	serves(t, c.nodes[0], "after")
	out, err := c.nodes[0].Do(t.Context(), fencing.InspectRequest{Name: "before"})
	if err != nil || !out.Lock.Held() {
		t.Errorf("the lease is %+v, %v; nothing was lost", out.Lock, err)
	}
}

// A leader whose disk is full does not keep the lead either: the others serve, and it says that it does not.
func TestALeaderWhoseDiskFailsIsReplaced(t *testing.T) {
	var fails atomic.Bool
	c := newCluster(t, 3, func(i int, o *Options) {
		o.Election = 200 * time.Millisecond
		diskOf(0, &fails)(i, o)
	})
	fails.Store(true)
	for _, n := range c.nodes[1:] {
		serves(t, n, fencing.Name("beside."+n.self.ID))
	}
	awaitFailure(t, c.nodes[0])
	if err := c.nodes[0].Check(t.Context()); code(err) != fencing.CodeUnavailable {
		t.Errorf("the node that has failed is checked: %v", err)
	}
}

// A follower whose disk hung, failed, and is there again, is sent what it has missed by the same leader: also where
// that had sent it more than it had answered.
func TestAFollowerCatchesUpAfterItsDiskHasFailed(t *testing.T) {
	var hangs atomic.Pointer[chan error]
	c := newCluster(t, 3, hangingDiskOf(2, &hangs))
	leader, follower := c.nodes[0], c.nodes[2]
	serves(t, leader, "before")
	letGo := make(chan error)
	hangs.Store(&letGo)
	for i := range 20 {
		serves(t, leader, fencing.Name(fmt.Sprint("meanwhile", i)))
	}
	letGo <- errDisk
	awaitFailure(t, follower)
	hangs.Store(nil)
	close(letGo)
	if err := follower.Close(); err != nil {
		t.Fatal(err)
	}
	c.reopen(2)
	serves(t, leader, "after")
	if leader.leading.Load() == nil {
		t.Fatal("another node leads: that proves nothing")
	}
	leader.fsm.mu.RLock()
	applied := leader.fsm.machine.Applied()
	leader.fsm.mu.RUnlock()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	follower.fsm.await(applied, ctx.Done())
	if ctx.Err() != nil {
		t.Error("the follower has not heard of what came meanwhile")
	}
}
