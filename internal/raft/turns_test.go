package raft

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

// turning is a cluster in which another node leads after each command, before the looks that
// follow it: the three nodes in turn, of which the suite has two. So no leader carries out two
// commands, and they come to the leader itself, to a node that has just led, and to one that will.
type turning struct {
	*cluster
	clocks []*testClock // of the nodes: what one says has nothing to do with the others

	now atomic.Int64 // the suite's instant, and the wall clock of all

	mu     sync.Mutex
	looked bool // since the last command
}

// turningStore is a node of it.
type turningStore struct {
	fencing.Store
	of *turning
}

func (s turningStore) Do(ctx context.Context, op fencing.Op) (fencing.Outcome, error) {
	if _, inspects := op.(fencing.InspectRequest); inspects {
		s.of.mu.Lock()
		s.of.looked = true
		s.of.mu.Unlock()
	}
	return s.Store.Do(ctx, op)
}

// openTurning opens such a cluster.
func openTurning(o func(*Options)) fencingtest.Open {
	return func(t testing.TB) fencingtest.Backend {
		b := &turning{clocks: make([]*testClock, 3)}
		b.now.Store(int64(fencingtest.Epoch))
		own := ownClocks(b.clocks)
		b.cluster = newCluster(t, 3, func(i int, options *Options) {
			own(i, options)
			options.wall = func() time.Time { return b.instant().Time() } // else each look would write down how far it is off
			o(options)
		})
		b.raised()
		return b
	}
}

// Store has the next node lead first, unless it was only looked since it last did.
func (b *turning) Store(handle int) fencing.Store {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := turningStore{b.nodes[handle].Store, b}
	if b.looked {
		b.looked = false
		return s
	}
	next := (b.leads() + 1) % len(b.nodes)
	b.elect(next)
	if b.awaitLeader() != b.nodes[next] {
		b.t.Errorf("node %d does not lead", next+1)
	}
	b.set()
	return s
}

func (b *turning) SetTime(now fencing.Instant) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now.Store(int64(now))
	b.set()
}

func (b *turning) instant() fencing.Instant { return fencing.Instant(b.now.Load()) }

func (b *turning) SetSkew(int, time.Duration) { panic("raft: one clock") }

// set has as much time go by for the leader, who begins where the log ends, as makes it the
// suite's.
func (b *turning) set() {
	i := b.leads()
	behind := b.instant().Sub(b.nodes[i].leading.Load().clock())
	if behind < 0 {
		b.t.Errorf("node %d begins to lead %s after the last command", i+1, -behind)
	}
	b.clocks[i].advance(behind)
}

// leads returns which node does.
func (b *turning) leads() int {
	leader := b.awaitLeader()
	for i, n := range b.nodes {
		if n == leader {
			return i
		}
	}
	panic("raft: the leader is no node")
}

// TestSystemConformanceWithAnotherLeaderEachTime plays the suite on a cluster in which no
// leader carries out two commands.
func TestSystemConformanceWithAnotherLeaderEachTime(t *testing.T) {
	t.Parallel()
	all, small, few := gateways(0), gateways(0), gateways(0)
	all.Histories, small.StepLimit, few.MaxHolders = 24, 2, 2
	for title, caps := range map[string]fencingtest.Capabilities{"three nodes": all, "small steps": small, "few holders": few} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			fencingtest.Run(t, openTurning(func(o *Options) { o.stepLimit, o.MaxHolders = caps.StepLimit, caps.MaxHolders }), caps)
		})
	}
}
