package raft

import (
	"context"
	"slices"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// A node that reaches another one, but not the leader, serves nobody, and has nobody else elected. It serves
// as soon as one leads that it reaches.
func TestApartFromTheLeader(t *testing.T) {
	c := newCluster(t, 3, func(_ int, o *Options) { o.Election = time.Second })
	serves := func(n *node, name fencing.Name) fencing.Code {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := n.Do(ctx, acquire(name, time.Minute))
		return code(err)
	}
	for range 5 { // a machine that stands still for long has another leader elected, too
		leader := c.awaitLeader()
		at := slices.Index(c.nodes, leader)
		apart, third := c.nodes[(at+1)%3], (at+2)%3
		lead := leader.leading.Load()
		c.hub.setApart(leader.self.Address, apart.self.Address, true)
		refused, ready := serves(apart, "a"), code(apart.Check(t.Context()))
		if lead == nil || leader.leading.Load() != lead {
			c.hub.setApart(leader.self.Address, apart.self.Address, false)
			continue
		}
		if refused != fencing.CodeUnavailable || ready != fencing.CodeUnavailable {
			t.Errorf("where the leader is not reached an acquire is %q, and Check %q", refused, ready)
		}
		if got := serves(leader, "b"); got != fencing.CodeOK {
			t.Errorf("at the leader: %q", got)
		}
		c.elect(third)
		c.awaitLeader()
		if got := serves(apart, "c"); got != fencing.CodeOK {
			t.Errorf("once another node leads: %q", got)
		}
		return
	}
	t.Error("another leader was elected each time")
}
