package redis

import (
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"

	goredis "github.com/redis/go-redis/v9"
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
		out, err := s.Do(t.Context(), acquireRequest(name))
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

// Moving slots quarantines nothing, also not the last ones of a node that is to go, which is
// a replica from then on.
func TestScaleIn(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0, "--cluster-allow-replica-migration", "yes") // Redis's default
	from, to := cluster.Masters()[0], cluster.Masters()[1]
	s := open(t, Options{URL: "redis+cluster://" + to.Addr()})
	until(t, func() bool { return s.Check(t.Context()) == nil })
	cluster.Drain(from, to)
	until(t, func() bool {
		all := s.topology.nodes()
		return len(all) == 2 && all[0].isChecked() && all[1].isChecked()
	})
	if left := s.guards.quarantine(fencing.InstantOf(time.Now())); left > 0 || s.Losses() > 0 {
		t.Errorf("moving slots put something into quarantine for %s; %d losses", left, s.Losses())
	}
}

// A node that joins gets slots with what is in them: that is no loss either, also for a
// gateway that has never spoken with that node.
func TestScaleOut(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	joins := cluster.Masters()[0]
	cluster.Drain(joins, cluster.Masters()[1])
	s := open(t, Options{URL: cluster.URL()})
	until(t, func() bool { return s.Check(t.Context()) == nil })
	if slices.ContainsFunc(s.topology.nodes(), func(n *node) bool { return n.addr == joins.Addr() }) {
		t.Fatal("the node has slots")
	}
	for _, slot := range slots[:5] {
		cluster.MoveSlot(slot, joins, nil)
	}
	until(t, func() bool {
		return slices.ContainsFunc(s.topology.nodes(), func(n *node) bool { return n.addr == joins.Addr() && n.isChecked() })
	})
	stats, err := s.Stats(t.Context())
	if err != nil || stats.Quarantine > 0 || s.Losses() > 0 {
		t.Errorf("slots were moved to a new node: quarantine of %s, %d losses, %v", stats.Quarantine, s.Losses(), err)
	}
}

// A partition that comes to a node which the gateway knows is checked before the next
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

// A server that has forgotten what it was told after a slot was moved to it looks as if it
// had just been given that, to a gateway that has not checked it meanwhile.
func TestRestartAfterMove(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0, "--cluster-require-full-coverage", "no")
	name := fencing.Name("home")
	slot := slots[clusterPartition(name)]
	from := cluster.Owner(slot)
	to := cluster.Masters()[slices.IndexFunc(cluster.Masters(), func(m *redistest.Server) bool { return m != from })]
	s, other := open(t, Options{URL: cluster.URL()}), open(t, Options{URL: cluster.URL()})
	s.guards.close()
	client := to.Client()
	defer client.Close()
	cluster.MoveSlot(slot, to, func() {
		if err := client.Save(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	})
	until(t, func() bool {
		g, err := decodeGuard(client.Get(t.Context(), s.keys[clusterPartition(name)].guard).Val(), s.partitions)
		return err == nil && g.Server == serverAt(t, to)
	})
	token := mustAcquire(t, other, acquireRequest(name)).Holder.Token
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if err := to.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := to.Restart(); err != nil { // with the snapshot
		t.Fatal(err)
	}
	until(t, func() bool {
		out, err := s.Do(t.Context(), acquireRequest(name))
		if err == nil {
			t.Errorf("P1: the lost lease (token %d) is granted to another: %d", token, out.Holder.Token)
		}
		return err == nil || code(err) == fencing.CodeQuarantined
	})
}

// serverAt returns what a server is called in guards.
func serverAt(t *testing.T, server *redistest.Server) string {
	client := server.Client()
	defer client.Close()
	id, err := identify(client.Info(t.Context(), identityInfo...).Val())
	if err != nil {
		t.Fatal(err)
	}
	return id.server()
}

// A slot that nobody has leaves the others in service, also that of the key which tells of a
// layout of before.
func TestUnassignedSlotOfNoPartition(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0, "--cluster-require-full-coverage", "no")
	for _, m := range cluster.Members() {
		client := m.Client()
		defer client.Close()
		must(t, client.Do(t.Context(), "cluster", "delslots", hashSlot("meta")).Err())
	}
	s := open(t, Options{URL: cluster.URL()})
	until(t, func() bool {
		_, err := s.Do(t.Context(), acquireRequest("home"))
		return err == nil
	})
}

// A slot that nobody has leaves the others in service, also when a node gets one more.
func TestUnassignedSlot(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0, "--cluster-require-full-coverage", "no")
	s := open(t, Options{URL: cluster.URL()})
	until(t, func() bool { return s.Check(t.Context()) == nil })
	s.guards.close()
	name := fencing.Name("home")
	n := s.topology.node(clusterPartition(name))
	nobodys := slices.IndexFunc(slots[:], func(slot int) bool { return cluster.Owner(slot).Addr() != n.addr })
	for _, m := range cluster.Members() {
		client := m.Client()
		defer client.Close()
		if err := client.Do(t.Context(), "cluster", "delslots", slots[nobodys]).Err(); err != nil {
			t.Fatal(err)
		}
	}
	until(t, func() bool {
		s.topology.refresh()
		return s.topology.node(nobodys).client == nil
	})
	n.changes.Add(1) // as when it gets a partition
	mustAcquire(t, s, acquireRequest(name))
}

// A node that gets a partition while it is checked has not been checked.
func TestPartitionComesDuringAnArrival(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	s := open(t, Options{URL: cluster.URL()})
	until(t, func() bool { return s.Check(t.Context()) == nil })
	s.guards.close()
	s.topology.cancel()
	s.topology.running.Wait()
	from := s.topology.node(0)
	to := s.topology.nodes()[slices.IndexFunc(s.topology.nodes(), func(n *node) bool { return n != from })]
	comes := sync.OnceFunc(func() {
		l := masterAddrs{}
		for _, owner := range s.topology.table.Load().owners {
			l = append(l, owner.addr)
		}
		l[0] = to.addr
		s.topology.apply(l)
	})
	err := s.arriveAt(t.Context(), to, time.Time{}, func(was *remembered, is *reported) verdict {
		comes()
		return reconcile(was, is)
	})
	if err != nil || to.isChecked() {
		t.Errorf("%v, and the node counts as checked: %t", err, to.isChecked())
	}
}

// A guard or a counter that can't be read costs its own partition: the others are checked,
// and what they have lost is dealt with once.
func TestUnreadablePartition(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0, "--maxmemory-policy", "volatile-random")
	var log logBuffer
	s := open(t, Options{URL: cluster.URL(), Logger: slog.New(slog.NewTextHandler(&log, nil))})
	until(t, func() bool { return s.Check(t.Context()) == nil })
	s.guards.close()
	names := []fencing.Name{"home"} // of partitions of one node
	n := s.topology.node(clusterPartition(names[0]))
	mine := s.topology.table.Load().partitionsOf(n)
	client := cluster.Owner(slots[clusterPartition(names[0])]).Client()
	defer client.Close()
	for i := 0; len(names) < 5; i++ {
		name := fencing.Name(strconv.Itoa(i))
		used := func(other fencing.Name) bool { return clusterPartition(other) == clusterPartition(name) }
		if slices.Contains(mine, clusterPartition(name)) && !slices.ContainsFunc(names, used) {
			names = append(names, name)
		}
	}
	ends := func() fencing.Instant {
		_ = s.arriveAt(t.Context(), n, time.Time{}, reconcile)
		return s.guards.recall(clusterPartition("home"), "").until
	}
	for i, c := range []struct {
		why    string
		key    func(*keyspace) string
		damage func(key string)
	}{
		{"a guard that is cut short", guardKey, func(key string) { client.Set(t.Context(), key, client.Get(t.Context(), key).Val()[:9], 0) }},
		{"a guard that is a list", guardKey, func(key string) { client.Del(t.Context(), key); client.RPush(t.Context(), key, "1") }},
		{"a counter that is no number", counterKey, func(key string) { client.Set(t.Context(), key, "?", 0) }},
		{"a counter that is a list", counterKey, func(key string) { client.Del(t.Context(), key); client.RPush(t.Context(), key, "1") }},
	} {
		name := names[i+1]
		k := &s.keys[clusterPartition(name)]
		key := c.key(k)
		c.damage(key)
		evict(t, client, clusterPartition(name))
		was := s.guards.recall(clusterPartition("home"), "").until
		first := ends()
		if first <= was {
			t.Errorf("%s: evicted keys put nothing else into quarantine", c.why)
		}
		if later := ends(); later != first {
			t.Errorf("%s: a quarantine was begun again, to end %s later", c.why, later.Sub(first))
		}
		n.changes.Add(1)
		if err := n.ready(); err != nil || !n.isChecked() {
			t.Errorf("%s: the node is not in service: %v", c.why, err)
		}
		_, err := s.Do(t.Context(), acquireRequest(name))
		wantCode(t, "acquire beside "+c.why, err, fencing.CodeUnavailable)
		if got := strings.Count(log.String(), "key="+key+" "); got != 1 {
			t.Errorf("%s: the key was told %d times, want once", c.why, got)
		}
		if key != k.guard { // it is put right: what was lost before is in quarantine all the same
			client.Del(t.Context(), key)
			refused(t, s, name)
		}
	}
}

// evict has a server evict a key of a partition. It has volatile-random. A key of 10 MB takes a
// busy machine some time.
func evict(t *testing.T, client *goredis.Client, partition int) {
	t.Helper()
	before := evictedBy(t, client)
	does := func(what func() error) {
		t.Helper()
		until(t, func() bool { return what() == nil })
	}
	does(func() error {
		return client.Set(t.Context(), fmt.Sprintf("{%d}other", partition), make([]byte, 10<<20), time.Hour).Err()
	})
	does(func() error { return client.ConfigSet(t.Context(), "maxmemory", "9mb").Err() })
	until(t, func() bool { return evictedBy(t, client) > before })
	does(func() error { return client.ConfigSet(t.Context(), "maxmemory", "0").Err() })
}

// What a master has evicted since it was last checked may be of a partition that was moved
// away after that.
func TestEvictedBeforeAMove(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0, "--maxmemory-policy", "volatile-random")
	s := open(t, Options{URL: cluster.URL()})
	until(t, func() bool { return s.Check(t.Context()) == nil })
	s.guards.close()
	name := fencing.Name("home")
	partition := clusterPartition(name)
	from := cluster.Owner(slots[partition])
	to := cluster.Masters()[slices.IndexFunc(cluster.Masters(), func(m *redistest.Server) bool { return m != from })]
	client := from.Client()
	defer client.Close()
	evict(t, client, partition)
	cluster.MoveSlot(slots[partition], to, nil)
	until(t, func() bool {
		_, err := s.Do(t.Context(), acquireRequest(name))
		if err == nil {
			t.Error("granted, though it may have been held by a lease that was evicted")
		}
		return err == nil || code(err) == fencing.CodeQuarantined
	})
}

func guardKey(k *keyspace) string   { return k.guard }
func counterKey(k *keyspace) string { return k.token }
