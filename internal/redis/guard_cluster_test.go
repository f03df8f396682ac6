package redis

import (
	"slices"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

// A master of a Cluster that is restarted refuses everything with CLUSTERDOWN for
// its first 2 s. A gateway that connects meanwhile must arrive before it is granted
// something there.
func TestClusterRestart(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0, "--cluster-require-full-coverage", "no")
	name := fencing.Name("home")
	owner := cluster.Owner(slots[clusterPartition(name)])
	s := open(t, Options{URL: cluster.URL()})
	other := open(t, Options{URL: cluster.URL()})
	mustAcquire(t, s, acquireRequest("first"))
	client := owner.Client()
	defer client.Close()
	until(t, func() bool { return s.guards.recall(clusterPartition(name), "").born != 0 })
	if err := client.Save(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	held := acquireRequest(name)
	held.TTL = time.Minute
	token := mustAcquire(t, other, held).Holder.Token
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if err := owner.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := owner.Restart(); err != nil { // with the snapshot
		t.Fatal(err)
	}
	began := time.Now()
	until(t, func() bool {
		out, err := s.Acquire(t.Context(), acquireRequest(name))
		switch code(err) {
		case fencing.CodeQuarantined:
			return true
		case fencing.CodeOK:
			t.Errorf("P1: after %s the lost lease (token %d) is granted to another: %d", time.Since(began), token, out.Holder.Token)
			return true
		}
		return false
	})
}

// Moving slots quarantines nothing, also not the last ones of a node that is to go.
func TestScaleIn(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	s := open(t, Options{URL: cluster.URL()})
	last := slots[0]
	from := cluster.Owner(last)
	var to *redistest.Server
	for _, m := range cluster.Masters() {
		if m != from {
			to = m
		}
	}
	var mine []int
	for p, slot := range slots {
		if s.topology.node(p).addr == from.Addr() && slot != last {
			mine = append(mine, slot)
		}
	}
	t.Logf("%d slots", len(mine)+1)
	for _, slot := range append(mine, last) {
		cluster.MoveSlot(slot, to, nil)
	}
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end); {
		stats, err := s.Stats(t.Context())
		if err == nil && stats.Quarantine > 0 {
			t.Fatalf("moving slots put something into quarantine for %s; %d losses", stats.Quarantine, s.Losses())
		}
	}
}

// A node that joins gets slots with what is in them: that is no loss either, also for a
// gateway that has never spoken with that node.
func TestScaleOut(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	joins := cluster.Owner(slots[0])
	var from *redistest.Server
	for _, m := range cluster.Masters() {
		if m != joins {
			from = m
		}
	}
	var mine []int
	for _, slot := range slots {
		if cluster.Owner(slot) == joins {
			mine = append(mine, slot)
		}
	}
	for _, slot := range mine {
		cluster.MoveSlot(slot, from, nil)
	}
	s := open(t, Options{URL: cluster.URL()})
	until(t, func() bool { return s.Check(t.Context()) == nil })
	if slices.ContainsFunc(s.topology.nodes(), func(n *node) bool { return n.addr == joins.Addr() }) {
		t.Fatal("the node has slots")
	}
	for _, slot := range mine[:5] {
		cluster.MoveSlot(slot, joins, nil)
	}
	until(t, func() bool {
		return slices.ContainsFunc(s.topology.nodes(), func(n *node) bool { return n.addr == joins.Addr() && n.settled.Load() })
	})
	stats, err := s.Stats(t.Context())
	if err != nil || stats.Quarantine > 0 || s.Losses() > 0 {
		t.Errorf("slots were moved to a new node: quarantine of %s, %d losses, %v", stats.Quarantine, s.Losses(), err)
	}
}

// A partition that comes to a node which the gateway knows is looked at before the next
// command is sent there, not when a second has passed.
func TestPartitionComesToAKnownNode(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	s := open(t, Options{URL: cluster.URL()})
	until(t, func() bool { return s.Check(t.Context()) == nil })
	s.guards.close()
	name := fencing.Name("home")
	partition := clusterPartition(name)
	from := cluster.Owner(slots[partition])
	to := cluster.Masters()[slices.IndexFunc(cluster.Masters(), func(m *redistest.Server) bool { return m != from })]
	cluster.MoveSlot(slots[partition], to, nil)
	mustAcquire(t, s, acquireRequest(name))
	client := to.Client()
	defer client.Close()
	id, err := identify(client.Info(t.Context(), identityInfo...).Val())
	if err != nil {
		t.Fatal(err)
	}
	g, err := decodeGuard(client.Get(t.Context(), s.keys[partition].guard).Val(), s.partitions)
	if err != nil || g.Server != id.server() || g.Until != 0 {
		t.Errorf("the guard is %+v, %v; want that %s serves, and no quarantine", g, err, id.server())
	}
}
