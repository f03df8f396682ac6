package redis

import (
	"context"
	"errors"
	"net"
	"slices"
	"syscall"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

// A caller's deadline holds also while another command has somebody check for what
// is missing.
func TestDeadlineWhileArriving(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL()})
	mustAcquire(t, s, acquireRequest("a"))
	flush(t, server)
	client := server.Client()
	defer client.Close()
	entering := s.topology.node(0).entering
	entering <- struct{}{} // at a Redis that hangs
	free := time.AfterFunc(time.Minute, entering.unlock)
	defer free.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := s.Do(ctx, acquireRequest("a"))
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("an acquire with 300 ms took %s: %v", took, err)
	}
}

// An operation has its time once, also where it is answered late, and that has somebody check
// for what is missing.
func TestBudgetWhileArriving(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr())
	const budget = 8 * time.Second
	s := open(t, Options{URL: proxy.URL(), ReadTimeout: 2 * budget, OperationTimeout: budget})
	s.guards.close()
	mustAcquire(t, s, acquireRequest("a"))
	flush(t, server)
	proxy.Delay(budget * 3 / 4)
	s.topology.node(0).entering <- struct{}{} // at a Redis that hangs
	began := time.Now()
	_, err := s.Do(t.Context(), acquireRequest("a"))
	if took := time.Since(began); took > budget*3/2 {
		t.Errorf("an operation of %s took %s: %v", budget, took, err)
	}
	proxy.Delay(0)
}

// A node that hangs keeps nobody from checking the others.
func TestCheckBesideHungNodes(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 5, 0, "--cluster-require-full-coverage", "no")
	s := open(t, Options{URL: cluster.URL()})
	until(t, func() bool { return s.Check(t.Context()) == nil })
	nodes := s.topology.nodes()
	at := func(addr string) *redistest.Server {
		i := slices.IndexFunc(cluster.Members(), func(m *redistest.Server) bool { return m.Addr() == addr })
		return cluster.Members()[i]
	}
	for _, n := range nodes[:2] {
		server := at(n.addr)
		if err := server.Pause(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = server.Resume() }()
	}
	last := nodes[4]
	hung := time.NewTimer(4 * time.Second)
	<-hung.C
	flush(t, at(last.addr))
	began := time.Now()
	quarantined := func() bool {
		for _, p := range s.topology.table.Load().partitionsOf(last) {
			if s.guards.recall(p, "").until > fencing.InstantOf(time.Now()) {
				return true
			}
		}
		return false
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for time.Since(began) < 8*time.Second && !quarantined() {
		<-tick.C
	}
	if took := time.Since(began); took > 2500*time.Millisecond {
		t.Errorf("what a check is to notice within a second took %s, for two other nodes that hang", took)
	}
}

// A check that finds a replica has the next command check again, also by a connection that
// was there all the time: a replica that is promoted has what another server had.
func TestArrivalAtAReplica(t *testing.T) {
	server, other := redistest.Start(t), redistest.Start(t, "--repl-diskless-sync-delay", "0")
	s := open(t, Options{URL: server.URL()})
	s.guards.close()
	mustAcquire(t, s, acquireRequest("a"))
	mustAcquire(t, open(t, Options{URL: other.URL()}), acquireRequest("b")) // with a later token
	client := server.Client()
	defer client.Close()
	host, port, _ := net.SplitHostPort(other.Addr())
	if err := client.ReplicaOf(t.Context(), host, port).Err(); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool {
		return errors.Is(s.arriveAt(t.Context(), s.topology.node(0), time.Time{}, reconcile), errReplica)
	})
	until(t, func() bool { return client.Exists(t.Context(), s.keys[0].lock("b")).Val() == 1 })
	if err := client.ReplicaOf(t.Context(), "no", "one").Err(); err != nil {
		t.Fatal(err)
	}
	if left := refused(t, s, "a"); left < 29*time.Second {
		t.Errorf("quarantine of %s", left)
	}
}

// Commands that wait while a check fails are answered by it, and don't each check in vain.
func TestArrivalFailsForAllWhoWait(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL(), ReadTimeout: time.Second, OperationTimeout: time.Minute})
	s.guards.close()
	mustAcquire(t, s, acquireRequest("a"))
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Resume() }()
	n := s.topology.node(0)
	if err := s.arriveAt(t.Context(), n, time.Time{}, reconcile); err == nil || !n.isChecked() {
		t.Fatalf("a check of a Redis that hangs, which says nothing of what it has: %v", err)
	}
	n.changes.Add(1)
	began := time.Now()
	_ = inParallel(20, func(int) error {
		if err := n.ready(); err == nil {
			t.Error("a Redis that hangs counts as checked")
		}
		return nil
	})
	if took := time.Since(began); took > 10*time.Second { // half of what they take one after the other
		t.Errorf("20 commands took %s for a Redis that hangs for the first of them", took)
	}
	if err := syscall.Kill(server.Pid(), syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if mustAcquire(t, s, acquireRequest("b")); s.Losses() > 0 { // it is who it was
		t.Error("a Redis that stood still counts as one that forgot")
	}
}

// What an operation finds behind is dealt with by a check that begins after that was noted,
// also where one has begun since the operation was sent.
func TestBehindDuringALook(t *testing.T) {
	s := open(t, Options{URL: redistest.Start(t).URL()})
	s.guards.close()
	c := &command{sentAt: time.Now().Add(time.Minute)} // after the last arrival
	began := time.Now()
	s.guards.raiseAlarm(c, &reply{behind: true})
	if a := receive(t, "the alarm", s.guards.alarm); a.since.Equal(c.sentAt) || a.since.Before(began) {
		t.Errorf("a check counts that began at %s, want %s or later", a.since, began)
	}
}

// A check that has waited for another goes by what the server says then: of what was evicted
// before, it would have the next one say that again.
func TestLookAfterAnother(t *testing.T) {
	server := redistest.Start(t, "--maxmemory-policy", "volatile-random")
	s := open(t, Options{URL: server.URL(), ReadTimeout: time.Minute, OperationTimeout: time.Minute})
	s.guards.close()
	n, client := s.topology.node(0), server.Client()
	defer client.Close()
	n.arriving <- struct{}{}
	checked := make(chan error, 1)
	go func() { checked <- s.arriveAt(t.Context(), n, time.Time{}, reconcile) }()
	until(t, func() bool { return len(n.entering) == 1 && n.client.PoolStats().IdleConns == 0 })
	if err := client.Set(t.Context(), "other", make([]byte, 10<<20), time.Hour).Err(); err != nil {
		t.Fatal(err)
	}
	client.ConfigSet(t.Context(), "maxmemory", "9mb")
	client.ConfigSet(t.Context(), "maxmemory", "0")
	n.arriving.unlock()
	if err := receive(t, "the look", checked); err != nil {
		t.Fatal(err)
	}
	if got, want := s.guards.server(serverAt(t, server)).evicted, evictedBy(t, client); want == 0 || got != want {
		t.Errorf("%d evicted keys are remembered, of %d", got, want)
	}
}

// Who leaves while he checks leaves that to those who wait for him.
func TestLookOfACallerWhoLeaves(t *testing.T) {
	s := open(t, Options{URL: redistest.Start(t).URL()})
	s.guards.close()
	n, since := s.topology.node(0), time.Now()
	n.arriving <- struct{}{}
	leaves, leave := context.WithCancel(t.Context())
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- s.arriveAt(leaves, n, since, reconcile) }()
	until(t, func() bool { return len(n.entering) == 1 })
	go func() { second <- s.arriveAt(t.Context(), n, since, reconcile) }()
	leave()
	if err := receive(t, "the look of who leaves", first); err == nil {
		t.Fatal("he who left has checked")
	}
	n.arriving.unlock()
	if err := receive(t, "the look of who waited", second); err != nil {
		t.Errorf("he who waited: %v", err)
	}
}
