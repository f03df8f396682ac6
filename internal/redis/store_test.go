package redis

import (
	"context"
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

func TestParseURL(t *testing.T) {
	for _, tt := range []struct {
		url, network, addr, user, password string
		db                                 int
		tls                                bool
	}{
		{url: "redis://example.com", network: "tcp", addr: "example.com:6379"},
		{url: "redis://[::1]:7000/3", network: "tcp", addr: "[::1]:7000", db: 3},
		{url: "rediss://worker:pa%2Fss@example.com:7000/", network: "tcp", addr: "example.com:7000", user: "worker", password: "pa/ss", tls: true},
		{url: "redis://:pass@example.com", network: "tcp", addr: "example.com:6379", password: "pass"},
		{url: "unix:///run/redis.sock", network: "unix", addr: "/run/redis.sock"},
		{url: "unix://u:p@/run/redis.sock?db=2", network: "unix", addr: "/run/redis.sock", user: "u", password: "p", db: 2},
	} {
		o, err := parseURL(tt.url)
		if err != nil {
			t.Errorf("%s: %v", tt.url, err)
			continue
		}
		if o.network != tt.network || !slices.Equal(o.addrs, []string{tt.addr}) || o.username != tt.user || o.password != tt.password || o.db != tt.db || o.tls != tt.tls {
			t.Errorf("%s: got %+v", tt.url, o)
		}
	}
	for _, url := range []string{
		"", "localhost:6379", "http://h", "redis://", "redis:///0", "redis://h:0", "redis://h:70000", "redis://h/x", "redis://h/-1",
		"redis://h/0/1", "redis://h?pool_size=3", "unix://run/redis.sock", "unix://", "unix:///s?db=x", "unix:///s?x=1", "redis://user@h",
		"redis://u:hunter2/x@h", "redis://u:1/hunter2@h", "redis://u:1?hunter2@h", "redis://u:1#hunter2@h", "redis://u:hunter2@h:x",
		"redis://u:hunter2@h/x", "redis://u:hunter2@h%zz/", "redis://u:hunter2@h?hunter2=1", "ftp://u:hunter2@h", "redis://u:hunter2@h:99999",
	} {
		err := CheckURL(url)
		if err == nil {
			t.Errorf("%q was accepted", url)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error for %q tells the password: %v", url, err)
		}
	}
}

func TestOpen(t *testing.T) {
	ctx := t.Context()
	if _, err := Open(ctx, Options{URL: "redis://h/x", Logger: quiet}); err == nil {
		t.Error("a bad URL was accepted")
	}

	server := redistest.Start(t, "--requirepass", "sesame")
	s := open(t, Options{URL: strings.Replace(server.URL(), "//", "//:sesame@", 1)})
	wantCode(t, "check with the password", s.Check(ctx), fencing.CodeOK)
	for _, user := range []string{"//", "//:wrong@"} {
		s := open(t, Options{URL: strings.Replace(server.URL(), "//", user, 1)})
		wantCode(t, "check with "+user, s.Check(ctx), fencing.CodeUnavailable)
	}

	server = redistest.Start(t)
	client := server.Client()
	defer client.Close()
	s = open(t, Options{URL: server.SocketURL() + "?db=3"})
	_, err := s.Do(ctx, acquireRequest("a"))
	wantCode(t, "acquire in database 3", err, fencing.CodeOK)
	if n := client.DBSize(ctx).Val(); n != 0 {
		t.Errorf("database 0 has %d keys", n)
	}
	s = open(t, Options{URL: server.URL()})
	wantCode(t, "check", s.Check(ctx), fencing.CodeOK)
	key := s.keys[0].guard
	whole := client.Get(ctx, key).Val()
	other := guard{layout: layoutVersion, partitions: clusterPartitions}
	w := codec{mode: writing}
	w.guard(&other)
	for what, text := range map[string]string{
		"layout": "1000" + whole[len(layoutVersion):], "number of partitions": string(w.b), "layout, of version 3": strings.Repeat("0", 80) + "\n3\n256\n",
	} {
		client.Set(ctx, key, text, 0)
		_, err := Open(ctx, Options{URL: server.URL(), Logger: quiet})
		var meta *metaError
		if !errors.As(err, &meta) {
			t.Errorf("another %s: got %v", what, err)
		}
	}

	// One that is down when the gateway starts is looked at when it is there.
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	s = open(t, Options{URL: server.URL(), OperationTimeout: 50 * time.Millisecond})
	wantCode(t, "check without Redis", s.Check(ctx), fencing.CodeUnavailable)
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return s.Check(ctx) == nil })
	if g, err := decodeGuard(client.Get(ctx, key).Val(), alonePartitions); err != nil || g.Server == "" {
		t.Errorf("the guard is %+v (%v)", g, err)
	}
}

func TestClose(t *testing.T) {
	s := open(t, Options{URL: redistest.Start(t).URL()})
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	_, err := s.Do(t.Context(), acquireRequest("a"))
	wantCode(t, "acquire", err, fencing.CodeUnavailable)
	_, err = s.Stats(t.Context())
	wantCode(t, "stats", err, fencing.CodeUnavailable)
}

// Commands that share batches are run in the order in which they were asked
// for, and every caller gets its own answer.
func TestBatches(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr())
	s, ctx := open(t, Options{URL: proxy.URL(), DialTimeout: time.Minute, ReadTimeout: time.Minute, OperationTimeout: time.Minute}), t.Context()
	_, err := s.Do(ctx, acquireRequest("another")) // Redis knows the library now: nothing is sent twice
	wantCode(t, "acquire", err, fencing.CodeOK)

	// While one answer is held back, all others queue: their order is known.
	release := proxy.Hold()
	defer release()
	var running sync.WaitGroup
	running.Go(func() {
		_, err := s.Do(ctx, fencing.InspectRequest{Name: "one"})
		wantCode(t, "inspect", err, fencing.CodeOK)
	})
	queued := func() int {
		b := s.topology.node(0).batchers[hashOf("one")%batchers]
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.queue)
	}
	until(t, busy(s, "one"))
	const callers = 20
	requests := make([]fencing.AcquireRequest, callers)
	for i := range callers {
		requests[i] = acquireRequest("one")
		requests[i].Owner = fmt.Sprint(i)
		running.Go(func() {
			_, err := s.Do(ctx, requests[i])
			if i == 0 {
				wantCode(t, "the first", err, fencing.CodeOK)
				return
			}
			wantCode(t, "one of the others", err, fencing.CodeLocked)
		})
		until(t, func() bool { return queued() == i+1 })
	}
	release()
	running.Wait()

	for i := range 64 {
		running.Go(func() {
			name := fencing.Name(fmt.Sprintf("many/%d", i))
			var last fencing.Token
			for round := range 30 {
				r := acquireRequest(name)
				r.Owner = fmt.Sprintf("%d-%d", i, round)
				got, err := s.Do(ctx, r)
				if err != nil || got.Holder.Owner != r.Owner || got.Holder.Lease != r.Lease.Public() || got.Holder.Token <= last {
					t.Errorf("caller %d: got %v and %v", i, got.Holder, err)
					return
				}
				last = got.Holder.Token
				out, err := s.Do(ctx, fencing.ReleaseRequest{Name: name, Lease: r.Lease})
				if err != nil || len(out.Ended) != 1 || out.Ended[0].Name != name || out.Ended[0].Holder.Token != last {
					t.Errorf("caller %d: released %v and %v", i, out.Ended, err)
				}
			}
		})
	}
	running.Wait()
}

// busy reports whether a batch is under way in the batcher of a name.
func busy(s *Store, name fencing.Name) func() bool {
	return func() bool {
		b := s.topology.node(0).batchers[hashOf(name)%batchers]
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.inFlight == 1
	}
}

// A caller that leaves is let go at once, and its command goes on.
func TestCancel(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr())
	s := open(t, Options{URL: proxy.URL(), DialTimeout: time.Minute, ReadTimeout: time.Minute, OperationTimeout: time.Minute})
	wantCode(t, "check", s.Check(t.Context()), fencing.CodeOK)
	ctx, cancel := context.WithCancel(t.Context())
	r := acquireRequest("a")
	release := proxy.Hold()
	defer release()
	left := make(chan error, 1)
	go func() {
		_, err := s.Do(ctx, r)
		left <- err
	}()
	until(t, busy(s, "a"))
	cancel()
	err := receive(t, "the acquire that was left", left) // while the answer is still held back
	wantCode(t, "acquire", err, fencing.CodeUnavailable)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the cause in it", err)
	}
	release()
	got, err := s.Do(t.Context(), r)
	wantCode(t, "acquire again", err, fencing.CodeOK)
	if !got.Fresh {
		t.Error("the grant of the first attempt is not its own")
	}
	_, err = s.Do(ctx, acquireRequest("b"))
	wantCode(t, "acquire with a dead context", err, fencing.CodeUnavailable)
}

func TestListManyPages(t *testing.T) {
	t.Parallel()
	b := openBackend(t, redistest.Start(t))
	s, ctx := b.stores[0], t.Context()
	var want []fencing.Name
	var running sync.WaitGroup
	for i := range 3000 {
		name := fencing.Name(fmt.Sprintf("orders/%d", i))
		if i%7 == 0 {
			name = fencing.Name(fmt.Sprintf("bills/%d", i))
		}
		want = append(want, name)
	}
	for part := range slices.Chunk(want, 100) {
		running.Go(func() {
			for _, name := range part {
				if _, err := s.Do(ctx, acquireRequest(name)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	running.Wait()
	slices.Sort(want)
	for _, tt := range []struct {
		request fencing.ListRequest
		want    func(fencing.Name) bool
	}{
		{fencing.ListRequest{Limit: 1000}, func(fencing.Name) bool { return true }},
		{fencing.ListRequest{Limit: 7, Prefix: "bills/"}, func(n fencing.Name) bool { return strings.HasPrefix(string(n), "bills/") }},
		{fencing.ListRequest{Limit: 100, Prefix: "orders/", After: "bills/99"}, func(n fencing.Name) bool { return strings.HasPrefix(string(n), "orders/") }},
		{fencing.ListRequest{Limit: 5, Query: "/299"}, func(n fencing.Name) bool { return strings.Contains(string(n), "/299") }},
		{fencing.ListRequest{Limit: 5, Prefix: "nothing"}, func(fencing.Name) bool { return false }},
	} {
		var got []fencing.Name
		for r := tt.request; ; {
			page, err := s.List(ctx, r)
			if err != nil {
				t.Fatal(err)
			}
			for _, lock := range page.Locks {
				got = append(got, lock.Name)
			}
			if len(page.Locks) > r.Limit || page.Next != "" && r.Query == "" && len(page.Locks) < r.Limit {
				t.Errorf("%+v: a page of %d", r, len(page.Locks))
			}
			if r.After = page.Next; page.Next == "" {
				break
			}
		}
		if expected := slices.DeleteFunc(slices.Clone(want), func(n fencing.Name) bool { return !tt.want(n) }); !slices.Equal(got, expected) {
			t.Errorf("%+v: got %d names, want %d: %.200q", tt.request, len(got), len(expected), got)
		}
	}
	if stats, err := s.Stats(ctx); err != nil || stats.Held != len(want) {
		t.Errorf("stats: %+v and %v, want %d", stats, err, len(want))
	}

	// They all run out at once, and one of the two handles ends them.
	b.SetTime(epoch.Add(30 * time.Second))
	ended := 0
	until(t, func() bool {
		for i, limit := range []int{250, 250} {
			e, err := b.stores[i].Expire(ctx, limit)
			if err != nil {
				t.Fatal(err)
			}
			if i == 1 && !e.Standby {
				t.Error("both handles reap")
			}
			if len(e.Ended) > limit || e.Next > time.Second || i == 0 && ended+len(e.Ended) < len(want) && e.Next != 0 {
				t.Errorf("ended %d of %d, next %s", len(e.Ended), limit, e.Next)
			}
			ended += len(e.Ended)
		}
		return ended >= len(want)
	})
	if stats, err := s.Stats(ctx); err != nil || stats.Held != 0 || ended != len(want) {
		t.Errorf("stats: %+v and %v, %d ended, want %d", stats, err, ended, len(want))
	}
}

// A held lock costs at most 500 bytes of Redis's memory, all indexes included: what is usual
// is left out of its record, which so is in the size class of 160 bytes. FENCEPOST_LONG makes
// it 100,000 locks; as many as these fill Redis's tables to the same part.
func TestMemory(t *testing.T) { testMemory(t, rounds(6_250, 100_000)) }

func TestSystemMemory(t *testing.T) { testMemory(t, 25_000) }

func testMemory(t *testing.T, locks int) {
	t.Parallel()
	const most = 500
	// On a busy machine the slow log has many calls. The latencies of each command that is used take 24 kB, and how many commands
	// are used depends on how long this takes.
	server := redistest.Start(t, "--slowlog-log-slower-than", "-1", "--latency-tracking", "no")
	s, ctx := open(t, Options{URL: server.SocketURL(), OperationTimeout: 20 * time.Second}), t.Context()
	client := server.Client()
	defer client.Close()
	used := func() int64 { // but for the buffers of connections, which come and go
		info := client.Info(ctx, "memory").Val()
		of := func(field string) (n int64) {
			_, text, _ := strings.Cut(info, "\n"+field+":")
			if _, err := fmt.Sscan(text, &n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		return of("used_memory") - of("mem_clients_normal")
	}
	before := used()
	var running sync.WaitGroup
	for part := range 100 {
		running.Go(func() {
			for i := range locks / 100 {
				r := acquireRequest(fencing.Name(fmt.Sprintf("orders/%d", 100_000+part*locks/100+i)))
				r.TTL = time.Hour
				if _, err := s.Do(ctx, r); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	running.Wait()
	s.Close()
	var each float64
	defer func() { t.Logf("%.0f bytes a held lock, want at most %d", each, most) }()
	until(t, func() bool { // Redis frees the connections, and counts those that are left, in its own time
		each = float64(used()-before) / float64(locks)
		return each <= most
	})
}
