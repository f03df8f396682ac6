package redis

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

// rounds returns how often something is done: often with FENCEPOST_LONG.
func rounds(usually, long int) int {
	if os.Getenv("FENCEPOST_LONG") != "" {
		return long
	}
	return usually
}

// failoverTTLs are those of leases that outlive a fail-over, and are waited for: it
// takes some 2 s.
var failoverTTLs = []time.Duration{1500 * time.Millisecond, 2 * time.Second, 2500 * time.Millisecond}

// hurried are options for a Redis that fails over often.
func hurried(url string) Options {
	return Options{
		URL: url, OperationTimeout: 500 * time.Millisecond, ReadTimeout: 400 * time.Millisecond,
		Quarantine: QuarantinePolicy{Least: 100 * time.Millisecond},
	}
}

// troop is callers at several gateways.
type troop struct {
	*ledger
	stores  []*Store
	stop    func()
	running sync.WaitGroup
}

// startTroop has callers at gateways take leases on names until stop or the end of
// the test.
func startTroop(t *testing.T, gateways, each int, o Options, ttls []time.Duration, names ...fencing.Name) *troop {
	t.Helper()
	tr := &troop{ledger: newLedger(t, ttls...)}
	ctx, cancel := context.WithCancel(t.Context())
	for range gateways {
		tr.stores = append(tr.stores, open(t, o))
	}
	for i := range gateways * each {
		tr.running.Go(func() { tr.run(ctx, tr.stores[i%gateways], uint64(i), names...) })
	}
	var once sync.Once
	tr.stop = func() { once.Do(func() { cancel(); tr.running.Wait() }) }
	t.Cleanup(tr.stop)
	return tr
}

// more waits for so many more grants.
func (tr *troop) more(n int) {
	tr.t.Helper()
	before := tr.sum()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(40 * time.Second)
	for tr.sum() < before+n {
		select {
		case <-tick.C:
		case <-deadline:
			tr.t.Fatalf("%d grants in 40 s, want %d", tr.sum()-before, n)
		}
	}
}

// moved waits until all gateways talk to the master at addr.
func (tr *troop) moved(partition int, addr string) {
	tr.t.Helper()
	for _, s := range tr.stores {
		until(tr.t, func() bool { return s.topology.node(partition).addr == addr })
	}
}

// doom has every gateway take a lease that nobody but the master hears of.
func (tr *troop) doom(round int, name func(gateway int) fencing.Name) (check func()) {
	tr.t.Helper()
	grants, requests := make([]*told, len(tr.stores)), make([]fencing.AcquireRequest, len(tr.stores))
	for i, s := range tr.stores {
		until(tr.t, func() bool {
			grants[i], requests[i] = tr.acquire(s, name(i), tr.ttls[len(tr.ttls)-1], true)
			return grants[i] != nil
		})
	}
	return func() {
		tr.t.Helper()
		for i, s := range tr.stores {
			if tr.renew(s, grants[i], requests[i]) {
				tr.t.Errorf("round %d: a lease that the next master never heard of was renewed", round)
			}
		}
	}
}

// heal has all servers follow the master, as the Sentinels have them sooner or
// later. On a machine that is busy they may have begun yet another fail-over: a master that is
// told to follow another one in the middle of that leaves none, for the Sentinels don't look.
func heal(t *testing.T, cluster *redistest.Sentinel) {
	t.Helper()
	cluster.HealReplication()
	cluster.Calm()
	for range 10 {
		master := cluster.Master()
		host, port, err := net.SplitHostPort(master.Addr())
		if err != nil {
			t.Fatal(err)
		}
		client := master.Client()
		defer client.Close()
		for _, server := range cluster.Servers() {
			if server != master {
				replica := server.Client()
				until(t, func() bool { return replica.ReplicaOf(t.Context(), host, port).Err() == nil })
				replica.Close()
			}
		}
		client.Options().ReadTimeout = 10 * time.Second
		conn := client.Conn()
		n, err := 0, conn.Set(t.Context(), "marker", 1, 0).Err()
		if err == nil {
			var acked int64
			acked, err = conn.Wait(t.Context(), 2, 5*time.Second).Result()
			n = int(acked)
		}
		conn.Close()
		if err == nil && n == 2 && cluster.Master() == master {
			return
		}
	}
	t.Fatal("the replicas do not follow the master")
}

// P1 and P2 when a master dies that has granted what no replica has heard of.
// FENCEPOST_LONG makes it 100 fail-overs, with and without a quarantine, of which half are
// of a master that is well; FENCEPOST_FAILOVERS is how many masters die, on four sets of
// servers.
func TestFailovers(t *testing.T) {
	t.Parallel()
	if wanted := os.Getenv("FENCEPOST_FAILOVERS"); wanted != "" {
		deaths, err := strconv.Atoi(wanted)
		if err != nil {
			t.Fatalf("FENCEPOST_FAILOVERS: %v", err)
		}
		const sets = 4
		for i := range sets {
			t.Run(fmt.Sprint("deaths ", i), func(t *testing.T) {
				t.Parallel()
				testFailovers(t, false, 1, (deaths+i)/sets)
			})
		}
		return
	}
	bothFailovers(t, rounds(1, 100), rounds(0, 100))
}

// TestSystemFailovers is TestFailovers also without a quarantine, and when a replica takes
// over from a master that is well.
func TestSystemFailovers(t *testing.T) {
	t.Parallel()
	bothFailovers(t, 3, 2)
}

// bothFailovers has so many fail-overs with a quarantine, and so many without, if any.
func bothFailovers(t *testing.T, with, without int) {
	for _, tt := range []struct {
		title  string
		off    bool
		rounds int
	}{
		{"quarantine", false, with},
		{"no quarantine", true, without},
	} {
		if tt.rounds == 0 {
			continue
		}
		t.Run(tt.title, func(t *testing.T) {
			t.Parallel()
			testFailovers(t, tt.off, 2, tt.rounds)
		})
	}
}

// testFailovers has a master die every so many rounds, and a replica take over from one
// that is well in the others.
func testFailovers(t *testing.T, off bool, every, rounds int) {
	cluster := redistest.StartSentinel(t, 2, 3)
	o := hurried(cluster.URL())
	o.Quarantine.Off = off
	names := []fencing.Name{"orders/1", "orders/2", "orders/3", "orders/4", "orders/5", "orders/6", "orders/7", "orders/8"}
	tr := startTroop(t, 3, 4, o, failoverTTLs, names...)
	counting, stop := context.WithCancel(t.Context())
	for _, s := range tr.stores {
		tr.running.Go(func() {
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for counting.Err() == nil {
				<-tick.C
				tr.count(counting, s, names[0])
			}
		})
	}
	lost, lossy := 0, 0
	defer func() {
		stop()
		tr.stop()
		tr.report(lossy, lost, off)
	}()
	for round := range rounds {
		tr.more(15)
		if round%every == 0 {
			lossy++
			lost += tr.killed(cluster, round)
		} else {
			tr.handedOver(cluster)
		}
		tr.more(15)
		if t.Failed() {
			break
		}
	}
}

// report judges what fail-overs have come to.
func (tr *troop) report(lossy, lost int, off bool) {
	t := tr.t
	overlaps, backwards := tr.check(!off), len(regressions(tr.naive))
	t.Logf("%d fail-overs with a loss: %d grants, %d of them lost, %d leases told lost before their time; at most %s without an answer and %s without a grant",
		lossy, tr.sum(), lost, tr.early, tr.longestOutage.Round(time.Millisecond), tr.longestPause.Round(time.Millisecond))
	t.Logf("P1 did not hold %d times; by INCR %d tokens of %d did not grow; %v", overlaps, backwards, len(tr.naive), tr.counts)
	if backwards < lossy {
		t.Errorf("by INCR only %d tokens did not grow: nothing was lost, and this proves nothing", backwards)
	}
	if tr.counts["renew lost: unknown"] == 0 || lost == 0 {
		t.Errorf("%d grants were lost, and no lease: this proves nothing", lost)
	}
	if !off && tr.counts["acquire quarantined"] == 0 {
		t.Error("nobody was told of a quarantine")
	}
}

// killed kills a master behind the back of its replicas, and returns how many
// grants were lost.
func (tr *troop) killed(cluster *redistest.Sentinel, round int) int {
	t := tr.t
	t.Helper()
	cluster.CutReplication()
	before := tr.sum()
	tr.more(6) // after 5 s without their master the replicas would not be promoted
	check := tr.doom(round, func(i int) fencing.Name { return fencing.Name(fmt.Sprintf("doomed/%d/%d", round, i)) })
	lost := tr.sum() - before
	old := cluster.KillMaster()
	check()
	next := cluster.NextMaster(old)
	tr.moved(0, next.Addr())
	if err := old.Restart(); err != nil {
		t.Fatal(err)
	}
	heal(t, cluster)
	return lost
}

// handedOver has a replica take over from a master that is well.
func (tr *troop) handedOver(cluster *redistest.Sentinel) {
	next := cluster.Failover()
	tr.moved(0, next.Addr())
	heal(tr.t, cluster)
}

// FAILOVER has the replica catch up before it takes over: nothing is lost, though
// nobody can tell that afterwards, and so it is treated as if something were.
func TestCoordinatedFailover(t *testing.T) {
	t.Parallel()
	master, replica := replicated(t)
	proxy := redistest.StartProxy(t, master.Addr())
	tr := startTroop(t, 2, 4, hurried(proxy.URL()), briefTTLs, "a", "b", "c", sibling("a"))
	for range rounds(2, 10) {
		tr.more(10)
		client, next := master.Client(), replica.Client()
		host, port, err := net.SplitHostPort(replica.Addr())
		if err != nil {
			t.Fatal(err)
		}
		if err := client.Do(t.Context(), "failover", "to", host, port, "timeout", 10000).Err(); err != nil {
			t.Fatal(err)
		}
		until(t, func() bool {
			info, err := identify(next.Info(t.Context(), identityInfo...).Val())
			return err == nil && info.master
		})
		proxy.Redirect(replica.Addr())
		client.Close()
		next.Close()
		master, replica = replica, master
		tr.more(10)
		follows(t, master)
	}
	tr.stop()
	tr.check(true)
	t.Logf("%d grants, at most %s without an answer and %s without a grant; %v",
		tr.sum(), tr.longestOutage.Round(time.Millisecond), tr.longestPause.Round(time.Millisecond), tr.counts)
	if tr.early != 0 || tr.counts["acquire quarantined"] == 0 {
		t.Errorf("%d leases were lost, and %d requests were told of a quarantine", tr.early, tr.counts["acquire quarantined"])
	}
}

// What a replica has confirmed survives the death of the master: no lease that was
// told is forgotten.
func TestAcksThroughFailovers(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartSentinel(t, 2, 3)
	o := hurried(cluster.URL())
	o.ReplicaAcks = 1
	tr := startTroop(t, 2, 4, o, failoverTTLs, "a", "b", "c", "d")
	for range rounds(1, 20) {
		tr.more(15)
		old := cluster.KillMaster()
		tr.moved(0, cluster.NextMaster(old).Addr())
		if err := old.Restart(); err != nil {
			t.Fatal(err)
		}
		heal(t, cluster)
		tr.more(10)
	}
	tr.stop()
	tr.check(true)
	forgotten := tr.counts["renew lost: unknown"] + tr.counts["release lost: unknown"]
	t.Logf("%d grants, %d leases forgotten, %d told lost before their time; at most %s without an answer; %v",
		tr.sum(), forgotten, tr.early, tr.longestOutage.Round(time.Millisecond), tr.counts)
	if forgotten != 0 {
		t.Errorf("%d leases were forgotten that a replica had confirmed", forgotten)
	}
	if tr.counts["acquire quarantined"] == 0 {
		t.Error("there was no fail-over")
	}
}
