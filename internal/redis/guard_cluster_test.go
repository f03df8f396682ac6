package redis

import (
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
	until(t, func() bool { return s.sentry.born[clusterPartition(name)].Load() != 0 })
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
