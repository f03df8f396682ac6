package raft

import (
	"fmt"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

// grants passes on what a gateway is granted.
type grants chan fencing.Grant

func (g grants) Granted(grant fencing.Grant, _ fencing.Instant, _ time.Time) { g <- grant }
func (g grants) Replaced(fencing.Name, fencing.Stamp)                        {}
func (g grants) Ask(fencing.Name, fencing.Stamp)                             {}
func (g grants) Has([]fencing.Name, time.Time, []fencing.Entry)              {}
func (g grants) Gap()                                                        {}

// handOffs has a name go back and forth between two nodes: who holds it releases it when
// the other one waits, which confirms what it is granted.
func handOffs(tb testing.TB, nodes [2]*node, rounds int) {
	var heard [2]grants
	for i := range nodes {
		heard[i] = make(grants, 8)
		nodes[i].Listen(heard[i])
	}
	holder := acquire("a", time.Minute)
	if _, err := nodes[0].Do(tb.Context(), holder); err != nil {
		tb.Fatal(err)
	}
	for round := range rounds {
		from, to := nodes[round%2], nodes[(round+1)%2]
		waiter := acquire("a", time.Minute)
		waiter.Wait = time.Minute
		if out, err := to.Do(tb.Context(), waiter); err != nil || !out.Waits() {
			tb.Fatal(out, err)
		}
		if _, err := from.Do(tb.Context(), fencing.ReleaseRequest{Name: "a", Lease: holder.Lease}); err != nil {
			tb.Fatal(err)
		}
		g := receive(tb, "the grant", heard[(round+1)%2])
		if g.Stamp != waiter.Stamp || !g.Holder.Provisional {
			tb.Fatalf("the grant is %+v", g)
		}
		if _, err := to.Do(tb.Context(), fencing.ConfirmRequest{Name: "a", Lease: waiter.Lease, Stamp: waiter.Stamp}); err != nil {
			tb.Fatal(err)
		}
		holder = waiter
	}
}

// Each waiter hears of its grant once, on whatever node it waits.
func TestAHandOffBetweenNodesIsToldOnce(t *testing.T) {
	c := newCluster(t, 3, nil)
	handOffs(t, [2]*node{c.nodes[1], c.nodes[2]}, 50)
	applied := look(c.nodes[0].fsm, (*machine.Machine).Applied)
	for _, n := range c.nodes[1:] {
		n.fsm.await(applied, t.Context().Done())
		if left := len((*n.fsm.listener.Load()).(grants)); left != 0 {
			t.Errorf("%d more grants were told", left)
		}
	}
}

// BenchmarkHandOff is an acquire that waits, a release, and the confirmation of who was
// handed the lock, on two nodes of three.
func BenchmarkHandOff(b *testing.B) {
	for _, by := range [][2]int{{0, 1}, {1, 2}} {
		b.Run(fmt.Sprintf("nodes %d and %d", by[0]+1, by[1]+1), func(b *testing.B) {
			c := newCluster(b, 3, nil)
			b.ResetTimer()
			handOffs(b, [2]*node{c.nodes[by[0]], c.nodes[by[1]]}, b.N)
		})
	}
}
