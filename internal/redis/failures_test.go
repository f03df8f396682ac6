package redis

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"

	goredis "github.com/redis/go-redis/v9"
)

// briefTTLs are those of leases in tests that wait for their quarantines.
var briefTTLs = []time.Duration{600 * time.Millisecond, 800 * time.Millisecond, time.Second}

// trouble is a Redis under load, and ways to harm it.
type trouble struct {
	*troop
	server *redistest.Server
	proxy  *redistest.Proxy
	client *goredis.Client
	probe  *ledger   // of a caller on a name of its own, which is free whenever it asks
	harmed time.Time // before this nobody can have noticed that leases may be forgotten
}

// do runs a command on the Redis, which must succeed.
func (tr *trouble) do(args ...any) {
	tr.t.Helper()
	if err := tr.client.Do(tr.t.Context(), args...).Err(); err != nil {
		tr.t.Fatalf("%v: %v", args, err)
	}
}

// during harms the Redis for as long as it takes to get some requests refused.
func (tr *trouble) during(refusals int, harm, undo func()) {
	tr.t.Helper()
	before := tr.unavailable()
	harm()
	until(tr.t, func() bool { return tr.unavailable() >= before+refusals })
	undo()
}

// unavailable returns how many requests were.
func (tr *trouble) unavailable() int {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.counts["acquire unavailable"] + tr.counts["renew unavailable"] + tr.counts["release unavailable"]
}

// A Redis that forgets or refuses gives no wrong answer: requests succeed, are
// told that nothing is known, or that nothing new is granted for a while. It recovers
// without help.
func TestFailures(t *testing.T) {
	t.Parallel()
	for _, f := range failures {
		t.Run(f.title, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, f.args...)
			proxy := redistest.StartProxy(t, server.Addr())
			client := server.Client()
			defer client.Close()
			o := hurried(proxy.URL())
			o.OperationTimeout, o.ReadTimeout = 200*time.Millisecond, 150*time.Millisecond
			tr := &trouble{startTroop(t, 2, 4, o, briefTTLs, "a", "b", "c", sibling("a")), server, proxy, client, newLedger(t, briefTTLs...), time.Now()}
			ctx, stop := context.WithCancel(t.Context())
			tr.running.Go(func() { tr.probing(ctx) })
			tr.acquire(tr.stores[0], "longest", briefTTLs[len(briefTTLs)-1], true)
			tr.more(10)
			tr.harmed = time.Now()
			f.harm(tr)
			tr.more(15)
			until(t, tr.probe.isOpen)
			stop()
			tr.stop()
			f.verify(tr)
		})
	}
}

// verify holds what callers were told against what may come of the failure.
func (f *failure) verify(tr *trouble) {
	t := tr.t
	overlaps := tr.check(!f.unnoticed)
	tr.probe.check(!f.unnoticed)
	shut, over := tr.probe.shut.to.Sub(tr.probe.shut.from), tr.probe.reopened.Sub(tr.harmed)
	t.Logf("%d grants, %d requests unavailable, at most %s without an answer; nothing new was granted for %s; P1 did not hold %d times; %v",
		tr.sum(), tr.unavailable(), tr.longestOutage.Round(time.Millisecond), shut.Round(time.Millisecond), overlaps, tr.counts)
	longest := briefTTLs[len(briefTTLs)-1]
	switch {
	case !f.forgets && !f.restarts:
		if shut != 0 || tr.early != 0 {
			t.Errorf("nothing was lost, but nothing new was granted for %s, and %d leases were told lost", shut, tr.early)
		}
	case shut == 0 || over < longest || shut > longest+5*time.Second:
		t.Errorf("nothing new was granted for %s, until %s after the harm; want the longest TTL in use, %s", shut, over, longest)
	case f.restarts && tr.early != 0:
		t.Errorf("%d leases were lost that were not to be", tr.early)
	}
}

// failure is what a Redis does to its clients.
type failure struct {
	title     string
	args      []string // of the server
	forgets   bool     // leases: nothing new is granted for a while
	restarts  bool     // what may have forgotten leases is treated as if it had
	unnoticed bool     // until the next check: P1 does not hold so long
	harm      func(*trouble)
}

var failures = []failure{
	{title: "SCRIPT FLUSH", harm: func(tr *trouble) {
		for range 5 {
			tr.do("script", "flush")
			tr.more(3)
		}
	}},
	{title: "FLUSHALL", forgets: true, harm: func(tr *trouble) {
		check := tr.doomed()
		tr.do("flushall")
		check()
	}},
	{title: "restart without persistence", forgets: true, harm: func(tr *trouble) {
		check := tr.doomed()
		tr.restart((*redistest.Server).Kill)
		check()
	}},
	{title: "restart with an AOF", args: []string{"--appendonly", "yes", "--appendfsync", "always"}, restarts: true, harm: func(tr *trouble) {
		tr.restart((*redistest.Server).Stop)
	}},
	{title: "an old snapshot", forgets: true, harm: func(tr *trouble) {
		tr.do("save")
		tr.more(5)
		check := tr.doomed()
		tr.restart((*redistest.Server).Kill)
		check()
	}},
	{title: "eviction", args: []string{"--maxmemory-policy", "allkeys-random"}, forgets: true, unnoticed: true, harm: (*trouble).evict},
	{title: "READONLY", restarts: true, harm: func(tr *trouble) {
		tr.during(5, func() { tr.do("replicaof", "127.0.0.1", "1") }, func() {
			tr.harmed = time.Now()
			tr.do("replicaof", "no", "one")
		})
	}},
	{title: "LOADING", harm: func(tr *trouble) {
		tr.during(5, func() { tr.proxy.Answer("-LOADING Redis is loading the dataset in memory") }, func() { tr.proxy.Answer("") })
	}},
	{title: "MISCONF", harm: (*trouble).misconfigure},
	{title: "OOM", harm: func(tr *trouble) {
		tr.during(5, func() { tr.do("config", "set", "maxmemory", "1") }, func() { tr.do("config", "set", "maxmemory", "0") })
	}},
	{title: "BUSY", args: []string{"--busy-reply-threshold", "20"}, harm: (*trouble).occupy},
	{title: "a connection that is cut again and again", harm: func(tr *trouble) {
		for range 10 {
			tr.proxy.Cut(false)
			tr.more(2)
		}
	}},
	{title: "nobody there", harm: func(tr *trouble) {
		tr.during(5, func() { tr.proxy.Cut(true) }, func() { tr.proxy.Cut(false) })
	}},
}

// probing takes a lease on a name of its own, and releases it, until ctx ends.
func (tr *trouble) probing(ctx context.Context) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		if g, r := tr.probe.acquire(tr.stores[0], "probe", briefTTLs[0], false); g != nil {
			tr.probe.release(tr.stores[0], g, r)
		}
		<-tick.C
	}
}

// doomed has every gateway take a lease that is about to be lost, and returns a
// check that it was.
func (tr *trouble) doomed() (check func()) {
	return tr.doom(0, func(i int) fencing.Name { return fencing.Name(fmt.Sprintf("doomed/%d", i)) })
}

// restart ends the server in a way, waits until that is felt, and starts it again.
func (tr *trouble) restart(end func(*redistest.Server) error) {
	tr.t.Helper()
	if err := end(tr.server); err != nil {
		tr.t.Fatal(err)
	}
	before := tr.unavailable()
	until(tr.t, func() bool { return tr.unavailable() >= before+3 })
	tr.harmed = time.Now()
	if err := tr.server.Restart(); err != nil {
		tr.t.Fatal(err)
	}
}

// evict has the server drop keys until something of ours is gone.
func (tr *trouble) evict() {
	tr.do("set", "ballast", bytes.Repeat([]byte("x"), 20<<20))
	for i := 0; evictedBy(tr.t, tr.client) < 40 && i < 1000; i++ {
		tr.do("config", "set", "maxmemory", 8<<20)
		tr.do("config", "set", "maxmemory", "0")
		tr.do("set", "ballast", bytes.Repeat([]byte("x"), 20<<20))
	}
	tr.do("del", "ballast")
}

// misconfigure has snapshots fail, after which the server refuses to write.
func (tr *trouble) misconfigure() {
	dump := filepath.Join(filepath.Dir(tr.server.Socket()), "dump.rdb")
	if err := os.MkdirAll(filepath.Join(dump, "x"), 0o700); err != nil { // no file can take its place
		tr.t.Fatal(err)
	}
	tr.during(5, func() {
		tr.do("config", "set", "save", "3600 1")
		until(tr.t, func() bool {
			tr.client.Do(tr.t.Context(), "bgsave")
			return strings.Contains(tr.client.Info(tr.t.Context(), "persistence").Val(), "rdb_last_bgsave_status:err")
		})
	}, func() { tr.do("config", "set", "save", "") })
}

// occupy has the server run a script that does not end.
func (tr *trouble) occupy() {
	running := make(chan struct{})
	tr.during(5, func() {
		go func() {
			defer close(running)
			other := tr.server.Client()
			defer other.Close()
			other.Options().ReadTimeout = time.Minute
			other.Eval(tr.t.Context(), "while true do end", nil)
		}()
		until(tr.t, func() bool { return tr.client.Ping(tr.t.Context()).Err() != nil })
	}, func() { tr.do("script", "kill"); receive(tr.t, "the end of the script", running) })
}
