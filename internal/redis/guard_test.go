package redis

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

// A gateway that ran all the time must have a Redis that forgot everything waited
// for, also if a new gateway (or `gateway doctor`) came there first.
func TestNewcomerFirstAfterLoss(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr())
	old := open(t, Options{URL: proxy.URL()})
	gone := open(t, Options{URL: server.URL()})
	held := acquireRequest("a")
	held.TTL = time.Minute
	mustAcquire(t, gone, held) // its holder believes in it for a minute
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	proxy.Cut(true)
	if err := server.Restart(); err != nil { // forgets all
		t.Fatal(err)
	}
	newcomer := open(t, Options{URL: server.URL()})
	_, err := newcomer.Do(t.Context(), acquireRequest("b"))
	t.Logf("the newcomer's first acquire: %v", err)
	proxy.Cut(false)
	until(t, func() bool { return old.Check(t.Context()) == nil })
	old.checkGuards(t.Context()) // what is done each second
	old.checkGuards(t.Context())
	out, err := old.Do(t.Context(), acquireRequest("a"))
	var e *fencing.Error
	if !errors.As(err, &e) || e.Code != fencing.CodeQuarantined {
		t.Errorf("P1: the lost lease is granted to another by the gateway that ran all the time: %+v, %v", out.Holder.Token, err)
	}
}

// The same with FLUSHALL: until the others check, the newcomer grants.
func TestNewcomerGrantsAfterFlush(t *testing.T) {
	server := redistest.Start(t)
	old := open(t, Options{URL: server.URL()})
	listen(t, old) // as every gateway does
	until(t, old.subscription.confirmed.Load)
	mustAcquire(t, old, acquireRequest("a"))
	flush(t, server)
	newcomer := open(t, Options{URL: server.URL()})
	_, err := newcomer.Do(t.Context(), acquireRequest("a"))
	var e *fencing.Error
	if !errors.As(err, &e) || e.Code != fencing.CodeQuarantined {
		t.Errorf("P1: granted to another by a newcomer while a gateway runs that remembers: %v", err)
	}
}

// A promoted or restarted server is arrived at out of skew; then the clocks agree.
func TestClockRightAfterConnecting(t *testing.T) {
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	var c clocks
	s := open(t, c.options(server.URL()))
	mustAcquire(t, s, acquireRequest("other"))
	client := server.Client()
	defer client.Close()
	held := acquireRequest("a")
	mustAcquire(t, s, held)
	s2 := s
	// What a fail-over or an old snapshot loses: the lease, and this gateway's floor does not tell (another gateway's grant).
	k := &newKeyspaces(alonePartitions)[0]
	client.Del(t.Context(), k.lock("a"))
	c.redis.Store(int64(time.Hour))
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { _, err := s2.Do(t.Context(), fencing.InspectRequest{Name: "a"}); return err == nil })
	c.redis.Store(0)
	out, err := s2.Do(t.Context(), acquireRequest("a"))
	var e *fencing.Error
	if !errors.As(err, &e) || e.Code != fencing.CodeQuarantined {
		t.Errorf("P1: granted at a server that was not arrived at: %d %v", out.Holder.Token, err)
	}
}

// A quarantine set to a duration waits for a Redis that seems new, whoever checked
// it with doctor before.
func TestDurationAfterDoctor(t *testing.T) {
	server := redistest.Start(t)
	doctor := open(t, Options{URL: server.URL(), Passive: true})
	if _, err := doctor.Examine(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := doctor.Close(); err != nil {
		t.Fatal(err)
	}
	s := open(t, Options{URL: server.URL(), Quarantine: QuarantinePolicy{For: time.Minute}})
	_, err := s.Do(t.Context(), acquireRequest("a"))
	if code(err) != fencing.CodeQuarantined {
		t.Errorf("a duration that waits for a Redis that seems new did not wait after doctor had looked: %v", err)
	}
}

// A TTL that was in use hours ago does not count.
func TestLongTTLLongAgo(t *testing.T) {
	server := redistest.Start(t)
	var c clocks
	s := open(t, c.options(server.URL()))
	long := acquireRequest("long")
	long.TTL = 4 * time.Minute
	mustAcquire(t, s, long)
	mustRelease(t, s, long)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	c.redis.Store(int64(3 * time.Hour))
	c.gateway.Store(int64(3 * time.Hour))
	s = open(t, c.options(server.URL()))
	mustAcquire(t, s, acquireRequest("a")) // 30 s
	flush(t, server)
	if left := refused(t, s, "a"); left > 31*time.Second {
		t.Errorf("quarantine of %s for a TTL that was last in use 3 hours ago; want 30 s", left)
	}
}

// What a renewal hands on is answered when enough replicas have it, as all else.
func TestAcksOfDowngrade(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	plain := open(t, Options{URL: server.URL()})
	s := open(t, Options{URL: server.URL(), ReplicaAcks: 1})
	e := listen(t, s)
	held, waiter := acquireRequest("a"), waitRequest("a")
	mustAcquire(t, plain, held)
	waiter.Mode = fencing.ModeShared
	mustWait(t, s, waiter)
	if _, err := s.Do(t.Context(), fencing.RenewRequest{Name: "a", Lease: held.Lease, Mode: fencing.ModeShared}); err != nil {
		t.Fatal(err)
	}
	if got := e.granted(waiter.Lease); len(got) != 0 {
		t.Errorf("told of a grant although no replica has it: %+v", got)
	}
}

// A quarantine that is far shorter than the leases endangers P1.
func TestShortQuarantineIsFine(t *testing.T) {
	s := open(t, Options{URL: redistest.Start(t).URL(), Quarantine: QuarantinePolicy{For: time.Second, Least: 30 * time.Second}})
	if f := s.lossFinding(); f.OK {
		t.Errorf("with a quarantine of 1 s and a default TTL of 30 s: %+v", f)
	}
}

// A master that has had no replica for long forgets that it was promoted: that is no
// reason to be careful.
func TestAPromotionIsForgotten(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	server, other := redistest.Start(t), redistest.Start(t, "--repl-diskless-sync-delay", "0")
	client := server.Client()
	defer client.Close()
	host, port, _ := net.SplitHostPort(other.Addr())
	client.ReplicaOf(ctx, host, port)
	until(t, func() bool { return strings.Contains(client.Info(ctx, "replication").Val(), "master_link_status:up") })
	client.ReplicaOf(ctx, "no", "one")
	s := open(t, Options{URL: server.URL()})
	mustAcquire(t, s, acquireRequest("a"))
	promoted := func() bool {
		id, err := identify(client.Info(ctx, identityInfo...).Val())
		return err != nil || id.promoted != ""
	}
	if !promoted() {
		t.Fatal("it was never promoted")
	}
	client.ConfigSet(ctx, "repl-backlog-ttl", "1")
	until(t, func() bool { return !promoted() })
	mustAcquire(t, open(t, Options{URL: server.URL()}), acquireRequest("b"))
}
