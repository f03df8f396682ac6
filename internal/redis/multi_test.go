package redis

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"

	goredis "github.com/redis/go-redis/v9"
)

// waitRequest asks for a lease and waits for it.
func waitRequest(name fencing.Name) fencing.AcquireRequest {
	r := acquireRequest(name)
	r.Wait = time.Minute
	return r
}

// mustAcquire has a request granted at once.
func mustAcquire(t testing.TB, s *Store, r fencing.AcquireRequest) fencing.Outcome {
	t.Helper()
	out, err := s.Do(t.Context(), r)
	if err != nil || out.Waits() || out.Holder.Lease != r.Lease.Public() {
		t.Fatalf("acquire of %s: got %+v, %v, want the lease", r.Name, out, err)
	}
	return out
}

// mustWait has a request join the queue.
func mustWait(t testing.TB, s *Store, r fencing.AcquireRequest) {
	t.Helper()
	out, err := s.Do(t.Context(), r)
	if err != nil || !out.Waits() {
		t.Fatalf("acquire of %s: got %+v, %v, want a place", r.Name, out, err)
	}
}

func mustRelease(t testing.TB, s *Store, r fencing.AcquireRequest) fencing.Outcome {
	t.Helper()
	out, err := s.Do(t.Context(), fencing.ReleaseRequest{Name: r.Name, Lease: r.Lease})
	if err != nil {
		t.Fatalf("release of %s: %v", r.Name, err)
	}
	return out
}

func confirm(t testing.TB, s *Store, r fencing.AcquireRequest) fencing.Outcome {
	t.Helper()
	out, err := s.Do(t.Context(), fencing.ConfirmRequest{Name: r.Name, Lease: r.Lease, Stamp: r.Stamp})
	if err != nil || out.Holder.Provisional || out.Holder.Lease != r.Lease.Public() {
		t.Fatalf("confirm: got %+v, %v, want a firm lease", out.Holder, err)
	}
	return out
}

// A grant that one gateway hands to a waiter of another arrives there at once
// and is provisional; one to a waiter of its own is firm and told with the
// instant before it was asked for.
func TestHandOffAcross(t *testing.T) {
	server := redistest.Start(t)
	stores := [2]*Store{open(t, Options{URL: server.SocketURL()}), open(t, Options{URL: server.SocketURL()})}
	recorders := [2]*recorder{listen(t, stores[0]), listen(t, stores[1])}
	name := fencing.Name("orders/42")

	holder := acquireRequest(name)
	last := mustAcquire(t, stores[0], holder).Holder.Token
	var took []time.Duration
	for i := range 40 {
		from, to := i%2, (i+1)%2
		waiter := waitRequest(name)
		mustWait(t, stores[to], waiter)
		arrived := recorders[to].expect(waiter.Lease)
		began := time.Now()
		mustRelease(t, stores[from], holder)
		got := receive(t, "news of a grant", arrived)
		took = append(took, got.at.Sub(began))
		switch {
		case !got.grant.Holder.Provisional || !got.asked.IsZero():
			t.Errorf("told of %+v, asked %s; want a provisional lease", got.grant.Holder, got.asked)
		case got.grant.Name != name || got.grant.Stamp != waiter.Stamp || got.grant.Gateway != fencing.Gateway(stores[to].handle):
			t.Errorf("told of %+v", got.grant)
		case got.grant.Holder.Token <= last:
			t.Errorf("token %d after %d", got.grant.Holder.Token, last)
		}
		out := confirm(t, stores[to], waiter)
		if last = got.grant.Holder.Token; out.Holder.Token != last || out.Holder.ExpiresAt != out.Now.Add(waiter.TTL) {
			t.Errorf("confirmed at %d: %+v, want token %d and the whole TTL", out.Now, out.Holder, last)
		}
		if n := len(recorders[from].granted(waiter.Lease)); n != 0 {
			t.Errorf("the gateway that released was told %d times of another's waiter", n)
		}
		holder = waiter
	}
	slices.Sort(took)
	t.Logf("arrived after %s in the median, %s at most", took[len(took)/2], took[len(took)-1])
	if most := took[len(took)/4]; most > fencing.HeartbeatInterval { // then they came by the heartbeats
		t.Errorf("only a quarter arrived within %s", most)
	}

	own := waitRequest(name)
	mustWait(t, stores[0], own)
	arrived := recorders[0].expect(own.Lease)
	before := time.Now()
	mustRelease(t, stores[0], holder)
	got := receive(t, "news of a grant", arrived)
	if got.grant.Holder.Provisional || got.asked.Before(before) || got.asked.After(got.at) || got.grant.Stamp != own.Stamp {
		t.Errorf("told of %+v, asked %s after the release began; want a firm lease", got.grant, got.asked.Sub(before))
	}
}

// No message arrives: the heartbeat tells of the lease until it is confirmed.
func TestMessagesSwallowed(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr())
	near, far := open(t, Options{URL: server.URL()}), open(t, Options{URL: proxy.URL()})
	listen(t, near)
	e := listen(t, far)
	proxy.SwallowMessages(true)
	holder, waiter := acquireRequest("orders/42"), waitRequest("orders/42")
	mustAcquire(t, near, holder)
	mustWait(t, far, waiter)
	mustRelease(t, near, holder)
	until(t, func() bool { return proxy.Swallowed() == 1 })
	for _, want := range [][]fencing.Entry{
		{{Name: "orders/42", Lease: waiter.Lease.Public(), Stamp: waiter.Stamp, Provisional: true}},
		nil,
	} {
		for range 2 {
			wantCode(t, "heartbeat", far.Heartbeat(t.Context(), []fencing.Name{"orders/42"}), fencing.CodeOK)
			if got := e.entries(); !slices.Equal(got, want) {
				t.Errorf("told of %+v, want %+v", got, want)
			}
		}
		if want != nil {
			confirm(t, far, waiter)
		}
	}
	if n := e.gapped(); n != 1 {
		t.Errorf("%d gaps, want that of the start", n)
	}
}

// Where a message was said while nobody heard it, the gateway knows of the gap.
func TestMessageMissed(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr())
	near, far := open(t, Options{URL: server.URL()}), open(t, Options{URL: proxy.URL()})
	listen(t, near)
	e := listen(t, far)
	holder, waiter := acquireRequest("orders/42"), waitRequest("orders/42")
	mustAcquire(t, near, holder)
	mustWait(t, far, waiter)
	until(t, func() bool { return e.gapped() == 1 })
	proxy.Cut(true)
	until(t, func() bool { return far.awaitSubscription(t.Context()) != nil })
	mustRelease(t, near, holder)
	proxy.Cut(false)
	until(t, func() bool { return e.gapped() == 2 })
	if got := mustAcquire(t, far, waiter); !got.Fresh || got.Holder.Provisional {
		t.Errorf("got %+v, want a firm lease of this request", got)
	}
	if n := len(e.granted(waiter.Lease)); n != 0 {
		t.Errorf("told %d times of a grant whose message was lost", n)
	}
}

// The answer to a release that handed the lock to a waiter of the same gateway
// is lost, and with it the message: the gateway is asked to look.
func TestHandOffAnswerLost(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr())
	s := open(t, Options{URL: proxy.URL(), ReadTimeout: 200 * time.Millisecond})
	e := listen(t, s)
	holder := acquireRequest("orders/42")
	mustAcquire(t, s, holder)
	for i := range 6 {
		waiter := waitRequest("orders/42")
		mustWait(t, s, waiter)
		before := e.gapped()
		lost := proxy.Lost()
		proxy.SwallowReply(i%2 == 0)
		mustRelease(t, s, holder)
		if proxy.Lost() != lost+1 {
			t.Fatal("no answer was lost")
		}
		if n := len(e.granted(waiter.Lease)); n == 0 {
			until(t, func() bool { return e.gapped() > before })
		}
		if got := mustAcquire(t, s, waiter); !got.Fresh || got.Holder.Provisional {
			t.Errorf("got %+v, want a firm lease of this request", got)
		}
		holder = waiter
	}
}

// A gateway that has died stands 500 times in the queue before a live waiter:
// steps skip it, as many at a time as a step may.
func TestDeadGateway(t *testing.T) {
	const dead = 500
	server := redistest.Start(t)
	b := openBackend(t, server)
	client := server.Client()
	defer client.Close()
	ctx := t.Context()
	silent := open(t, Options{
		URL: server.SocketURL(), MaxSkew: maxSkew, Now: b.stores[0].options.Now, Clock: b.stores[0].options.Clock,
	})
	near, far := b.stores[0], b.stores[1]
	listen(t, near)
	e := listen(t, far)
	listen(t, silent)
	name := fencing.Name("orders/42")
	first, holder := acquireRequest(name), waitRequest(name)
	mustAcquire(t, near, first)
	mustWait(t, near, holder)
	mustRelease(t, near, first) // Redis knows the library from here on
	for range dead {
		mustWait(t, silent, waitRequest(name))
	}
	waiter := waitRequest(name)
	mustWait(t, far, waiter)

	// All but one go on saying that they live. They name another lock, so that
	// nothing is done on this one before its release.
	now := epoch
	for ; now < epoch.Add(fencing.GatewayTTL); now = now.Add(fencing.HeartbeatInterval) {
		b.SetTime(now)
		for _, s := range []*Store{near, far} {
			wantCode(t, "heartbeat", s.Heartbeat(ctx, []fencing.Name{sibling(name)}), fencing.CodeOK)
		}
	}
	b.SetTime(now)
	before := evaluations(t, client)
	out := mustRelease(t, near, holder)
	if len(out.Left) != fencing.StepLimit || !out.More {
		t.Errorf("%d left the queue in the first step, want %d", len(out.Left), fencing.StepLimit)
	}
	until(t, func() bool { return len(e.granted(waiter.Lease)) == 1 })
	if n := evaluations(t, client) - before; n != dead/fencing.StepLimit+1 {
		t.Errorf("%d calls, want %d", n, dead/fencing.StepLimit+1)
	}
	confirm(t, far, waiter)
	view, err := near.Do(ctx, fencing.InspectRequest{Name: name})
	if err != nil || view.Lock.Waiting != 0 || len(view.Lock.Holders) != 1 {
		t.Errorf("%+v (%v), want one holder and nobody waiting", view.Lock, err)
	}
}

// A grant to a gateway that has died before it confirmed goes to the next.
func TestDeadGatewayUnconfirmed(t *testing.T) {
	server := redistest.Start(t)
	b := openBackend(t, server)
	near, far := b.stores[0], b.stores[1]
	e := listen(t, near)
	listen(t, far)
	name := fencing.Name("orders/42")
	holder, first, second := acquireRequest(name), waitRequest(name), waitRequest(name)
	mustAcquire(t, near, holder)
	mustWait(t, far, first)
	mustWait(t, near, second)
	mustRelease(t, near, holder)
	for now := epoch; now <= epoch.Add(fencing.GatewayTTL); now = now.Add(fencing.HeartbeatInterval) {
		if n := len(e.granted(second.Lease)); n != 0 {
			t.Errorf("the next was served %s after the hand-off", now.Sub(epoch))
		}
		b.SetTime(now)
		wantCode(t, "heartbeat", near.Heartbeat(t.Context(), []fencing.Name{name}), fencing.CodeOK)
	}
	until(t, func() bool { return len(e.granted(second.Lease)) == 1 })
	_, err := far.Do(t.Context(), fencing.ConfirmRequest{Name: name, Lease: first.Lease, Stamp: first.Stamp})
	wantCode(t, "confirm of what was taken back", err, fencing.CodeLeaseLost)
}

// A gateway that was silent for too long is not told of places that are gone; what it
// asks for again is at the end of the queue.
func TestLapsedGateway(t *testing.T) {
	server := redistest.Start(t)
	b := openBackend(t, server)
	near, far := b.stores[0], b.stores[1]
	listen(t, near)
	e := listen(t, far)
	names := []fencing.Name{"orders/42"}
	holder, early, late := acquireRequest(names[0]), waitRequest(names[0]), waitRequest(names[0])
	mustAcquire(t, near, holder)
	mustWait(t, far, early)
	mustWait(t, near, late)
	wantCode(t, "heartbeat", far.Heartbeat(t.Context(), names), fencing.CodeOK)
	want := []fencing.Entry{{Name: names[0], Lease: early.Lease.Public(), Stamp: early.Stamp}}
	if got := e.entries(); !slices.Equal(got, want) {
		t.Errorf("told of %+v, want %+v", got, want)
	}
	for now := epoch; now <= epoch.Add(fencing.GatewayTTL); now = now.Add(fencing.HeartbeatInterval) {
		b.SetTime(now)
		wantCode(t, "heartbeat", near.Heartbeat(t.Context(), names), fencing.CodeOK)
	}
	wantCode(t, "heartbeat", far.Heartbeat(t.Context(), names), fencing.CodeOK)
	if got := e.entries(); len(got) != 0 {
		t.Errorf("told of %+v, whose gateway counts as dead", got)
	}
	out, err := far.Do(t.Context(), early)
	if err != nil || !out.Waits() || !out.Joined || out.Place.Position != 2 {
		t.Errorf("%+v, %v; want the second place", out.Place, err)
	}
}

// A request whose lease id another one takes over hears of it, wherever it waits.
func TestReplaced(t *testing.T) {
	server := redistest.Start(t)
	stores := [2]*Store{open(t, Options{URL: server.URL()}), open(t, Options{URL: server.URL()})}
	recorders := [2]*recorder{listen(t, stores[0]), listen(t, stores[1])}
	mustAcquire(t, stores[0], acquireRequest("orders/42"))
	waiter := waitRequest("orders/42")
	mustWait(t, stores[0], waiter)
	replaced := func(e *recorder, stamp fencing.Stamp) func() bool {
		return func() bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			return slices.Contains(e.replaced, stamp)
		}
	}
	for i, at := range []int{1, 1, 0, 0, 1} {
		older := waiter
		waiter.Stamp = fencing.NewStamp()
		mustWait(t, stores[at], waiter)
		before := []int{0, 1, 1, 0, 0}[i]
		until(t, replaced(recorders[before], older.Stamp))
		if replaced(recorders[1-before], older.Stamp)() {
			t.Errorf("request %d: the other gateway was told too", i)
		}
	}
}

// Redis is stopped and started: who waits goes on waiting, and is served.
func TestRedisRestarted(t *testing.T) {
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	options := Options{URL: server.URL(), Quarantine: QuarantinePolicy{Off: true}}
	near, far := open(t, options), open(t, options)
	listen(t, near)
	e := listen(t, far)
	holder, waiter := acquireRequest("orders/42"), waitRequest("orders/42")
	mustAcquire(t, near, holder)
	mustWait(t, far, waiter)
	until(t, func() bool { return e.gapped() == 1 })
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return e.gapped() == 2 && near.Check(t.Context()) == nil })
	mustWait(t, far, waiter) // it asks again
	mustRelease(t, near, holder)
	until(t, func() bool { return len(e.granted(waiter.Lease)) == 1 })
	confirm(t, far, waiter)
}

// sibling returns another name of the same partition and batcher.
func sibling(name fencing.Name) fencing.Name {
	for i := 0; ; i++ {
		if other := fencing.Name(fmt.Sprintf("sibling/%d", i)); clusterPartition(other) == clusterPartition(name) {
			return other
		}
	}
}

// clusterPartition returns the partition of a name in a Cluster.
func clusterPartition(name fencing.Name) int { return partitionOf(name, clusterPartitions) }

// evaluations returns how many calls of the library Redis has run.
func evaluations(t testing.TB, client *goredis.Client) int {
	t.Helper()
	stats := client.Info(t.Context(), "commandstats").Val()
	return calls(stats, "fcall")
}
