package redis

import (
	"fmt"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

// namesOf returns count names that begin with prefix and are kept by a master.
func namesOf(s *Store, addr, prefix string, count int) []fencing.Name {
	var names []fencing.Name
	for i := 0; len(names) < count; i++ {
		name := fencing.Name(fmt.Sprintf("%s/%d", prefix, i))
		if s.topology.node(clusterPartition(name)).addr == addr {
			names = append(names, name)
		}
	}
	return names
}

// As TestFailovers, for one master of a Cluster. What the others keep goes on being
// granted meanwhile.
func TestSystemClusterFailovers(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 3, "--cluster-require-full-coverage", "no")
	o := hurried(cluster.URL())
	home := fencing.Name("home")
	slot := slots[clusterPartition(home)]
	probe := open(t, o)
	struck := startTroop(t, 2, 3, o, []time.Duration{2500 * time.Millisecond, 3 * time.Second}, namesOf(probe, cluster.Owner(slot).Addr(), "struck", 6)...)
	var others []fencing.Name
	keeps := map[fencing.Name]*redistest.Server{}
	for _, master := range cluster.Masters() {
		if master != cluster.Owner(slot) {
			for _, name := range namesOf(probe, master.Addr(), "others", 3) {
				others, keeps[name] = append(others, name), master
			}
		}
	}
	spared := startTroop(t, 2, 3, o, briefTTLs, others...)
	lost := 0
	for round := range rounds(2, 100) {
		struck.more(6)
		before := spared.sum()
		began := time.Now()
		if round%2 == 0 {
			lost += struck.killedOf(cluster, slot, round)
			if during := spared.sum() - before; during < 20 {
				t.Errorf("while a master was replaced, the others granted %d times in %s", during, time.Since(began))
			}
		} else {
			old := cluster.Owner(slot)
			cluster.Failover(cluster.ReplicasOf(old)[0])
			struck.moved(clusterPartition(home), cluster.NextOwner(slot, old).Addr())
		}
		struck.more(6)
	}
	struck.stop()
	spared.stop()
	struck.check(true)
	spared.check(true)
	for what, tr := range map[string]*troop{"at the masters that changed": struck, "at the others": spared} {
		t.Logf("%s %d grants, %d leases told lost before their time; at most %s without an answer and %s without a grant; %v",
			what, tr.sum(), tr.early, tr.longestOutage.Round(time.Millisecond), tr.longestPause.Round(time.Millisecond), tr.counts)
	}
	forgotten, refused := struck.counts["renew lost: unknown"], struck.counts["acquire quarantined"]
	if lost == 0 || forgotten == 0 || refused == 0 {
		t.Errorf("%d grants were lost, %d leases were told lost, %d requests of a quarantine: this proves nothing", lost, forgotten, refused)
	}
	for _, name := range others {
		if keeps[name] != cluster.Owner(slots[clusterPartition(name)]) {
			t.Log("the machine was so busy that another master was replaced as well")
			return
		}
	}
	if n := spared.counts["acquire quarantined"]; n != 0 || spared.early != 0 {
		t.Errorf("of what other masters keep %d leases were lost, and %d requests told of a quarantine", spared.early, n)
	}
	if spared.longestPause >= struck.longestPause {
		t.Errorf("for %s nothing was granted at masters that are well", spared.longestPause)
	}
}

// killedOf kills the master of a slot behind the back of its replica, and returns
// how many grants were lost.
func (tr *troop) killedOf(cluster *redistest.Cluster, slot, round int) int {
	t := tr.t
	t.Helper()
	old := cluster.Owner(slot)
	cluster.CutReplication(old)
	before := tr.sum()
	doomed := namesOf(tr.stores[0], old.Addr(), fmt.Sprintf("doomed/%d", round), len(tr.stores))
	tr.more(3)
	check := tr.doom(round, func(i int) fencing.Name { return doomed[i] })
	lost := tr.sum() - before
	if err := old.Kill(); err != nil {
		t.Fatal(err)
	}
	check()
	next := cluster.NextOwner(slot, old)
	tr.moved(clusterPartition("home"), next.Addr())
	cluster.HealReplication()
	if err := old.Restart(); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return len(cluster.ReplicasOf(next)) == 1 })
	return lost
}
