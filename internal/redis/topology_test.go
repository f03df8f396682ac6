package redis

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

// unguarded are options for tests that are not about quarantine.
func unguarded(url string) Options {
	return Options{URL: url, Quarantine: QuarantinePolicy{Off: true}}
}

// A waiter at another gateway than the holder's is served by message when the
// master is another one, whether the old one is dead or well.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartSentinel(t, 2, 3)
	near, far := open(t, unguarded(cluster.URL())), open(t, unguarded(cluster.URL()))
	heard := listen(t, near)
	served := servedAfter(t, near, far, heard)
	served(2, func() string { return cluster.NextMaster(cluster.KillMaster()).Addr() })
	cluster.Connected(1)
	served(1, func() string { return cluster.Failover().Addr() })

	// Sentinels that know less than others did are not believed for a while.
	behind := &sentinels{topology: near.topology, epoch: 1 << 40, used: time.Now()}
	if _, err := behind.discover(t.Context()); !errors.Is(err, errOutdated) {
		t.Errorf("a fail-over of the past is believed: %v", err)
	}
	behind.used = time.Now().Add(-staleEpochGrace)
	if l, err := behind.discover(t.Context()); err != nil || l[0] != near.topology.node(0).addr {
		t.Errorf("got %s, %v", l[0], err)
	}
}

func TestClusterFailover(t *testing.T) { testClusterFailover(t, 1) }

// TestSystemClusterFailover has every master die once, and with it those that messages are
// heard at.
func TestSystemClusterFailover(t *testing.T) { testClusterFailover(t, 3) }

func testClusterFailover(t *testing.T, deaths int) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 3)
	near, far := open(t, unguarded(cluster.URL())), open(t, unguarded(cluster.URL()))
	heard := listen(t, near)
	served := servedAfter(t, near, far, heard)
	slot := slots[clusterPartition("a")]
	served(1, func() string {
		master := cluster.Owner(slot)
		cluster.Failover(cluster.ReplicasOf(master)[0])
		return cluster.NextOwner(slot, master).Addr()
	})
	for range deaths {
		served(1, func() string {
			master := cluster.Owner(slot)
			if err := master.Kill(); err != nil {
				t.Fatal(err)
			}
			next := cluster.NextOwner(slot, master)
			if err := master.Restart(); err != nil {
				t.Fatal(err)
			}
			until(t, func() bool { return len(cluster.ReplicasOf(next)) == 1 })
			return next.Addr()
		})
	}
}

// servedAfter returns a function that has far hold the name a and near wait for it,
// moves the master to the address that failOver returns, and has the name handed
// over. All replicas, so many, know of both before. Tokens grow from call to call.
func servedAfter(t *testing.T, near, far *Store, recorder *recorder) func(replicas int, failOver func() string) {
	const name fencing.Name = "a"
	var last fencing.Token
	return func(replicas int, failOver func() string) {
		t.Helper()
		ctx, partition := t.Context(), near.partitionOf(name)
		holder, waiter := acquireRequest(name), acquireRequest(name)
		waiter.Wait = time.Minute
		mustAcquire(t, far, holder)
		mustWait(t, near, waiter)
		client := far.topology.node(partition).client
		until(t, func() bool { return client.Wait(ctx, replicas, 500*time.Millisecond).Val() >= int64(replicas) })
		addr := failOver()
		until(t, func() bool {
			return near.Heartbeat(ctx, []fencing.Name{name}) == nil && near.topology.node(partition).addr == addr && near.awaitSubscription(ctx) == nil &&
				far.topology.node(partition).addr == addr // the old one, if it is well, would take the release
		})
		arrives := recorder.expect(waiter.Lease)
		var err error
		until(t, func() bool {
			_, err = far.Do(ctx, fencing.ReleaseRequest{Name: name, Lease: holder.Lease})
			return code(err) != fencing.CodeUnavailable
		})
		wantCode(t, "release", err, fencing.CodeOK)
		if a := receive(t, "news of a grant", arrives); !a.asked.IsZero() || a.grant.Holder.Token <= last {
			t.Errorf("got %+v, want a message with a token above %d", a, last)
		} else {
			last = a.grant.Holder.Token
		}
		mustAcquire(t, near, waiter)
		mustRelease(t, near, waiter)
	}
}

// A slot is where Redis says it is.
func TestHashSlots(t *testing.T) {
	client := redistest.Start(t, "--cluster-enabled", "yes").Client()
	defer client.Close()
	for n, keys := range newKeyspaces(clusterPartitions) {
		if slot := client.ClusterKeySlot(t.Context(), keys.lock("a/b")).Val(); slot != int64(slots[n]) {
			t.Errorf("partition %d is in slot %d, want %d", n, slots[n], slot)
		}
	}
}

// Everything goes to the node that has it, and what is asked of all nodes works
// where one of them does not answer.
func TestClusterNodes(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0, "--cluster-require-full-coverage", "no")
	o := unguarded(cluster.URL())
	s, ctx := open(t, o), t.Context()
	wantCode(t, "check", s.Check(ctx), fencing.CodeOK)
	rejected := func() (n int) {
		for _, server := range cluster.Members() {
			client := server.Client()
			defer client.Close()
			_, rest, _ := strings.Cut(client.Info(ctx, "commandstats").Val(), "cmdstat_fcall:")
			_, rest, _ = strings.Cut(rest, "rejected_calls=")
			var some int
			_, _ = fmt.Sscan(strings.ReplaceAll(rest, ",", " "), &some)
			n += some
		}
		return n
	}
	before := rejected()
	byNode := map[string][]fencing.AcquireRequest{}
	var want []fencing.Name
	for i := range 60 {
		r := acquireRequest(fencing.Name(fmt.Sprintf("orders/%d", i)))
		r.TTL = 6 * time.Second
		mustAcquire(t, s, r)
		addr := s.topology.node(clusterPartition(r.Name)).addr
		byNode[addr] = append(byNode[addr], r)
		want = append(want, r.Name)
	}
	if err := s.Heartbeat(ctx, want); err != nil || len(byNode) != 3 {
		t.Fatalf("heartbeat: %v; the names are on %d nodes", err, len(byNode))
	}
	page, err := s.List(ctx, fencing.ListRequest{Limit: 100})
	var got []fencing.Name
	for _, lock := range page.Locks {
		got = append(got, lock.Name)
	}
	slices.Sort(want)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("list: %v, %q", err, got)
	}
	if stats, err := s.Stats(ctx); err != nil || stats.Held != len(want) {
		t.Errorf("stats: %+v, %v", stats, err)
	}
	if n := rejected() - before; n != 0 {
		t.Errorf("%d commands went to nodes that do not have the name", n)
	}

	// A node that hangs holds up nobody else's commands.
	stopped := cluster.Members()[0]
	if err := stopped.Pause(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stopped.Resume() }()
	var hanging sync.WaitGroup
	for _, r := range byNode[stopped.Addr()] {
		hanging.Go(func() {
			_, err := s.Do(ctx, fencing.RenewRequest{Name: r.Name, Lease: r.Lease})
			wantCode(t, "renewal at a node that hangs", err, fencing.CodeUnavailable)
		})
	}
	began, done := time.Now(), 0
	for addr, requests := range byNode {
		for _, r := range requests {
			if addr != stopped.Addr() {
				_, err := s.Do(ctx, fencing.RenewRequest{Name: r.Name, Lease: r.Lease})
				wantCode(t, "renewal", err, fencing.CodeOK)
				done++
			}
		}
	}
	if took := time.Since(began); took > time.Duration(done)*s.options.ReadTimeout/2 { // half of what they take if each is held up
		t.Errorf("%d renewals took %s beside a node that hangs", done, took)
	}
	wantCode(t, "heartbeat", s.Heartbeat(ctx, want), fencing.CodeUnavailable)
	_, err = s.List(ctx, fencing.ListRequest{Limit: 10})
	wantCode(t, "list", err, fencing.CodeUnavailable)
	if err = s.Check(ctx); code(err) != fencing.CodeUnavailable || !strings.Contains(err.Error(), stopped.Addr()) {
		t.Errorf("check: %v, want unavailable with the address %s", err, stopped.Addr())
	}
	ended := 0
	until(t, func() bool {
		e, err := s.Expire(ctx, 100)
		wantCode(t, "expire", err, fencing.CodeUnavailable)
		ended += len(e.Ended)
		return ended == done
	})
	hanging.Wait()
}

// What a node refuses because a slot moves is sent again until it goes through,
// by this program alone: the library repeats nothing.
func TestMovingAnswers(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client()
	defer client.Close()
	proxy := redistest.StartProxy(t, server.Addr())
	o := unguarded(proxy.URL())
	o.OperationTimeout = 10 * time.Second
	s, ctx := open(t, o), t.Context()
	runs := func() int { return calls(client.Info(ctx, "commandstats").Val(), "fcall") }
	mustAcquire(t, s, acquireRequest("a")) // the library is known
	for i, answer := range []string{"MOVED 1 127.0.0.1:1", "ASK 1 127.0.0.1:1", "TRYAGAIN wait", "CLUSTERDOWN wait"} {
		wantCode(t, "check", s.Check(ctx), fencing.CodeOK) // there is a connection
		before := runs()
		proxy.Answer("-" + answer)
		outcome := make(chan error, 1)
		go func() {
			_, err := s.Do(ctx, acquireRequest(fencing.Name(fmt.Sprintf("orders/%d", i))))
			outcome <- err
		}()
		until(t, func() bool { return proxy.Answered() >= 3*(i+1) })
		proxy.Answer("")
		wantCode(t, "acquire after "+answer, receive(t, "the acquire after "+answer, outcome), fencing.CodeOK)
		if n := runs() - before; n != 1 {
			t.Errorf("%s: it was run %d times", answer, n)
		}
	}
}
