package redis

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"

	goredis "github.com/redis/go-redis/v9"
)

// hooked is a clock that runs something when it is read for the nth time from now.
type hooked struct {
	offset atomic.Int64
	at     atomic.Int64
	do     func()
}

func (h *hooked) now() time.Time {
	if h.at.Load() > 0 && h.at.Add(-1) == 0 {
		h.do()
	}
	return time.Now().Add(time.Duration(h.offset.Load()))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A gateway that remembers loses the race for the guard of an emptied Redis to one that is
// new, on the new connection that a command needs which was prepared before: its header says
// that all is checked.
func TestOvertakenOnANewConnection(t *testing.T) {
	server := redistest.Start(t)
	h := &hooked{}
	s := open(t, Options{URL: server.URL(), Clock: h.now})
	third := open(t, Options{URL: server.URL()})
	s.guards.close()
	mustAcquire(t, third, acquireRequest("a")) // s has seen the guard, but no token
	must(t, s.arriveAt(t.Context(), s.topology.node(0), time.Time{}, reconcile))
	_ = third.Close()
	s.subscription.close() // as while its connection is being made anew
	n := s.topology.node(0)
	must(t, server.Kill())
	must(t, server.Restart())
	flush(t, server)
	if !n.isChecked() {
		t.Fatal("not checked")
	}
	h.do = func() {
		rival := open(t, Options{URL: server.URL()})
		mustAcquire(t, rival, acquireRequest("b"))
	}
	h.at.Store(5) // 1, 2: the batch; 3, 4: askIdentity; 5: the arrival, after GET of the guard
	out, err := s.Do(t.Context(), acquireRequest("a"))
	t.Logf("hook ran: %t, checked %t", h.at.Load() <= 0, n.isChecked())
	if err == nil {
		t.Errorf("P1: %q was granted, token %d, while the lease that was lost is believed in", "a", out.Holder.Token)
	}
}

// The same where the clocks differ by a little more than is allowed when it arrives, and by a
// little less when the command was prepared.
func TestSkewedOnANewConnection(t *testing.T) {
	server := redistest.Start(t)
	h := &hooked{}
	s := open(t, Options{URL: server.URL(), Clock: h.now})
	third := open(t, Options{URL: server.URL()})
	s.guards.close()
	third.guards.close()
	client := server.Client()
	defer client.Close()
	must(t, client.Save(t.Context()).Err())
	client.ConfigSet(t.Context(), "save", "")
	mustAcquire(t, third, acquireRequest("a"))
	_ = third.Close()
	s.subscription.close()
	must(t, server.Kill())
	must(t, server.Restart())
	if got := client.Exists(t.Context(), s.keys[0].guard, s.keys[0].lock("a")).Val(); got != 1 {
		t.Fatalf("%d keys", got)
	}
	h.offset.Store(int64(999 * time.Millisecond))
	h.do = func() { h.offset.Add(int64(20 * time.Millisecond)) } // stands for the time that the dial took
	h.at.Store(3)
	out, err := s.Do(t.Context(), acquireRequest("a"))
	t.Logf("hook ran: %t", h.at.Load() <= 0)
	if err == nil {
		t.Errorf("P1: %q was granted, token %d, while the lease that was lost is believed in", "a", out.Holder.Token)
	}
}

// An address behind which two servers take turns, neither of which restarts.
func TestServersTakeTurns(t *testing.T) {
	t.Parallel()
	one, two := redistest.Start(t), redistest.Start(t, "--repl-diskless-sync-delay", "0")
	proxy := redistest.StartProxy(t, one.Addr())
	s := open(t, Options{URL: proxy.URL(), Quarantine: QuarantinePolicy{Least: time.Second}})
	r := acquireRequest("first")
	r.TTL = time.Second
	mustAcquire(t, s, r)
	promoteCopy(t, one, two)
	proxy.Redirect(two.Addr())
	proxy.Cut(false)
	until(t, func() bool {
		_, err := s.Do(t.Context(), acquireRequest("probe"))
		return code(err) == fencing.CodeQuarantined
	})
	until(t, func() bool { _, err := s.Do(t.Context(), acquireRequest("probe2")); return err == nil })
	other := open(t, Options{URL: two.URL()})
	token := mustAcquire(t, other, acquireRequest("a")).Holder.Token
	proxy.Redirect(one.Addr())
	proxy.Cut(false)
	s.sender.floors[0].Store(0) // a gateway that was given no token there
	until(t, func() bool {
		out, err := s.Do(t.Context(), acquireRequest("a"))
		if err == nil {
			t.Errorf("P1: a (token %d) is granted to another: %d", token, out.Holder.Token)
		}
		return err == nil || code(err) == fencing.CodeQuarantined
	})
}

// promoteCopy has a server take over what another has, and be a master beside it.
func promoteCopy(t *testing.T, from, to *redistest.Server) {
	c := to.Client()
	defer c.Close()
	host, port, _ := strings.Cut(from.Addr(), ":")
	must(t, c.ReplicaOf(t.Context(), host, port).Err())
	guard := newKeyspaces(alonePartitions)[0].guard
	until(t, func() bool {
		return c.Exists(t.Context(), guard).Val() == 1 && strings.Contains(c.Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
	must(t, c.ReplicaOf(t.Context(), "no", "one").Err())
}

// Connections that are older than the last check stay with the server that was left: it
// grants nothing any more.
func TestOlderConnections(t *testing.T) {
	t.Parallel()
	one, two := redistest.Start(t), redistest.Start(t, "--repl-diskless-sync-delay", "0")
	proxy := redistest.StartProxy(t, one.Addr())
	s := open(t, Options{URL: proxy.URL()})
	s.guards.close()
	mustAcquire(t, s, acquireRequest("first"))
	promoteCopy(t, one, two)
	client := s.topology.node(0).client
	var older []*goredis.Conn
	for client.PoolStats().IdleConns > 0 {
		conn := client.Conn()
		must(t, conn.Ping(t.Context()).Err())
		older = append(older, conn)
	}
	proxy.RedirectNew(two.Addr()) // as a load balancer does
	refused(t, s, "a")
	if s.topology.node(0).server != serverAt(t, two) {
		t.Fatal("it has not arrived at the new server")
	}
	for _, conn := range older { // the next command takes one of them
		must(t, conn.Close())
	}
	out, err := s.Do(t.Context(), acquireRequest("a"))
	if code(err) != fencing.CodeQuarantined {
		t.Errorf("P1: token %d is granted by the server that was left, and the other one does not know of it: %v", out.Holder.Token, err)
	}
}

// A partition's guard that is no text of any layout keeps the others from being checked.
func TestGuardOfNoLayout(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	s := open(t, Options{URL: cluster.URL()})
	until(t, func() bool { return s.Check(t.Context()) == nil })
	s.guards.close()
	n := s.topology.nodes()[0]
	mine := s.topology.table.Load().partitionsOf(n)
	p, q := mine[0], mine[1]
	c := n.client
	must(t, c.Set(t.Context(), s.keys[p].guard, "?", 0).Err())
	text := c.Get(t.Context(), s.keys[q].guard).Val()
	g, err := decodeGuard(text, s.partitions)
	must(t, err)
	must(t, c.Set(t.Context(), s.keys[q].guard, strings.Replace(text, g.Server, strings.Repeat("0", len(g.Server)), 1), 0).Err())
	s.checkGuards(t.Context())
	after, err := decodeGuard(c.Get(t.Context(), s.keys[q].guard).Val(), s.partitions)
	must(t, err)
	if after.Until <= fencing.InstantOf(time.Now()) {
		t.Errorf("partition %d was not arrived at, because of the guard of partition %d", q, p)
	}
	open(t, Options{URL: cluster.URL()}) // and gateways start
}

// A guard that could not be read was there: without it, a gateway that was started meanwhile
// does not take its partition for new.
func TestUnreadableGuardIsDeleted(t *testing.T) {
	server := redistest.Start(t)
	s := open(t, Options{URL: server.URL()})
	s.guards.close()
	mustAcquire(t, s, acquireRequest("x"))
	flush(t, server)
	if left := refused(t, s, "a"); left < 20*time.Second {
		t.Fatal(left)
	}
	client := server.Client()
	defer client.Close()
	client.Set(t.Context(), s.keys[0].guard, "4\x00?", 0)
	_ = s.Close()
	next := open(t, Options{URL: server.URL()})
	_, err := next.Do(t.Context(), acquireRequest("b"))
	wantCode(t, "acquire beside a guard that can't be read", err, fencing.CodeUnavailable)
	client.Del(t.Context(), s.keys[0].guard)
	if left := refused(t, next, "a"); left < 20*time.Second {
		t.Errorf("quarantine of %s", left)
	}
}
