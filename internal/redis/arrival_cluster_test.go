package redis

import (
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

// Those who served before are asked at the same time, and one that hangs is waited for once:
// an arrival has as long as one operation for all it asks.
func TestFormerServersThatHang(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	s := open(t, Options{URL: cluster.URL()})
	s.guards.close()
	begun := time.Now()
	var found []partitionCheck
	const formers = 40
	for i := range formers {
		hung, err := net.Listen("tcp", "127.0.0.1:0") // whose connections nobody takes
		must(t, err)
		defer hung.Close()
		former := fmt.Sprint("former", i)
		s.guards.servers[former] = serverMemory{name: former, addr: hung.Addr().String()}
		found = append(found, partitionCheck{
			reported:  reported{identity: identity{run: "now", master: true, since: begun.Add(-time.Minute)}, guard: &guard{born: 1, Quarantine: fencing.Quarantine{Server: former}}},
			was:       remembered{born: 1, server: former, seen: begun},
			partition: i,
		})
	}
	s.askFormerServers(t.Context(), s.topology.node(0), found)
	if took := time.Since(begun); took > formers/2*s.options.DialTimeout {
		t.Errorf("%d who hang were waited for %s, want %s", formers, took, s.options.DialTimeout)
	}
	for _, f := range found {
		if f.given {
			t.Errorf("one that does not answer has given partition %d away", f.partition)
		}
	}
}

// Those who served before may be asked what they gave away though the Cluster does not name
// them any more: a discovery does not close the connection meanwhile.
func TestConnectionsToFormerServers(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	s := open(t, Options{URL: "redis+cluster://" + cluster.Members()[0].Addr()})
	until(t, func() bool { return s.Check(t.Context()) == nil })
	for _, n := range s.topology.nodes() {
		client := s.topology.discoveryClient(n.addr)
		s.topology.remember(nil)
		if err := client.Ping(t.Context()).Err(); err != nil {
			t.Errorf("the node at %s can't be asked: %v", n.addr, err)
		}
	}
}

// A node that says that one of its partitions is elsewhere has the topology asked for again: else it
// would count as checked without that partition, and none the less have it when it comes back.
func TestAPartitionThatIsElsewhere(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	s := open(t, Options{URL: cluster.URL()})
	until(t, func() bool { return s.Check(t.Context()) == nil })
	s.guards.close()
	stopSurveys(s)
	n := s.topology.node(0)
	must(t, s.arriveAt(t.Context(), n, time.Time{}, reconcile))
	if len(s.topology.wanted) != 0 {
		t.Error("a discovery was asked for though nothing has moved")
	}
	from := cluster.Owner(slots[0])
	to := cluster.Masters()[slices.IndexFunc(cluster.Masters(), func(m *redistest.Server) bool { return m != from })]
	cluster.MoveSlot(slots[0], to, nil)
	must(t, s.arriveAt(t.Context(), n, time.Time{}, reconcile))
	if len(s.topology.wanted) != 1 {
		t.Error("no discovery was asked for")
	}
}

// stopSurveys leaves those that are asked for to the test.
func stopSurveys(s *Store) {
	s.topology.cancel()
	s.topology.running.Wait()
	for len(s.topology.wanted) > 0 {
		<-s.topology.wanted
	}
}

// A check that finds no master has the topology asked for again: where nothing is asked for, nobody
// else notices.
func TestCheckOfAMasterThatHasGone(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	s := open(t, Options{URL: cluster.URL()})
	until(t, func() bool { return s.Check(t.Context()) == nil })
	s.guards.close()
	stopSurveys(s)
	s.checkGuards(t.Context())
	if len(s.topology.wanted) != 0 {
		t.Error("a discovery was asked for though all masters are there")
	}
	must(t, cluster.Masters()[0].Kill())
	s.checkGuards(t.Context())
	if len(s.topology.wanted) != 1 {
		t.Error("no discovery was asked for")
	}
}

// A partition of a Cluster without a guard is new only if the Cluster is: an old guard of
// another partition, of the same master or another one, says that it is in use.
func TestAnOldGuardElsewhere(t *testing.T) {
	t.Parallel()
	for what, forget := range map[string]func(s *Store, p int) error{
		"a master is emptied": func(s *Store, p int) error { return s.topology.node(p).client.FlushAll(t.Context()).Err() },
		"a partition is lost": func(s *Store, p int) error {
			return s.topology.node(p).client.Del(t.Context(), s.keys[p].guard, s.keys[p].lock("home")).Err()
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			cluster := redistest.StartCluster(t, 3, 0)
			s := open(t, Options{URL: cluster.URL()})
			until(t, func() bool { return s.Check(t.Context()) == nil })
			s.guards.close()
			token := mustAcquire(t, s, acquireRequest("home")).Holder.Token
			for p, k := range s.keys {
				client := s.topology.node(p).client
				g, err := decodeGuard(client.Get(t.Context(), k.guard).Val(), s.partitions)
				must(t, err)
				g.born = g.born.Add(-2 * newFor)
				w := codec{mode: writing}
				w.guard(&g)
				must(t, client.Set(t.Context(), k.guard, w.b, 0).Err())
			}
			must(t, forget(s, clusterPartition("home")))
			must(t, s.Close())
			next := open(t, Options{URL: cluster.URL()})
			until(t, func() bool {
				out, err := next.Do(t.Context(), acquireRequest("home"))
				if err == nil {
					t.Errorf("P1: the lost lease (token %d) is granted to another: %d", token, out.Holder.Token)
				}
				return err == nil || code(err) == fencing.CodeQuarantined
			})
		})
	}
}

// A node of a Cluster that remembers nothing is new only if no other gateway is there,
// whichever node that one listens at.
func TestAnotherListensElsewhere(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	s := open(t, Options{URL: cluster.URL()})
	until(t, func() bool { return s.Check(t.Context()) == nil })
	s.Listen(&recorder{})
	until(t, s.subscription.active)
	s.guards.close() // it has not noticed yet
	name := fencing.Name("home")
	for i := 0; s.topology.node(clusterPartition(name)) == s.subscription.at.Load(); i++ {
		name = fencing.Name("home" + string(rune('a'+i)))
	}
	token := mustAcquire(t, s, acquireRequest(name)).Holder.Token
	flush(t, cluster.Owner(slots[clusterPartition(name)]))
	next := open(t, Options{URL: cluster.URL()})
	until(t, func() bool {
		out, err := next.Do(t.Context(), acquireRequest(name))
		if err == nil {
			t.Errorf("P1: the lost lease (token %d) is granted to another: %d", token, out.Holder.Token)
		}
		return err == nil || code(err) == fencing.CodeQuarantined
	})
}
