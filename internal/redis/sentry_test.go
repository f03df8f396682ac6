package redis

import (
	"context"
	"slices"
	"syscall"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

// A caller's deadline holds also while another command has somebody look for what
// is missing.
func TestDeadlineWhileArriving(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL()})
	mustAcquire(t, s, acquireRequest("a"))
	flush(t, server)
	client := server.Client()
	defer client.Close()
	s.sentry.arriving <- struct{}{} // a reArrive at a Redis that hangs: 2 s each, one after the other
	free := time.AfterFunc(5*time.Second, func() { <-s.sentry.arriving })
	defer free.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := s.Acquire(ctx, acquireRequest("a"))
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("an acquire with 300 ms took %s: %v", took, err)
	}
}

// A node that hangs keeps nobody from looking at the others.
func TestLookBesideHungNodes(t *testing.T) {
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
		pid := at(n.addr).Pid()
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	}
	last := nodes[4]
	hung := time.NewTimer(4 * time.Second)
	<-hung.C
	flush(t, at(last.addr))
	began := time.Now()
	quarantined := func() bool {
		for _, p := range s.topology.chart.Load().partitionsOf(last) {
			if s.sentry.until[p].Load() > int64(fencing.InstantOf(time.Now())) {
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
		t.Errorf("what a look is to notice within a second took %s, for two other nodes that hang", took)
	}
}
