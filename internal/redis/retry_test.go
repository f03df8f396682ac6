package redis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/redis/redistest"
)

// Every call whose answer is lost on the way is run again with the same
// arguments and comes to the same outcome, whether the connection is cut or
// goes silent.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for _, hold := range []bool{false, true} {
		t.Run(fmt.Sprintf("hold=%t", hold), func(t *testing.T) { testLostReplies(t, server, hold) })
	}
}

func testLostReplies(t *testing.T, server *redistest.Server, hold bool) {
	proxy, ctx := redistest.StartProxy(t, server.Addr()), t.Context()
	s := open(t, Options{URL: proxy.URL(), ReadTimeout: 200 * time.Millisecond, OperationTimeout: 10 * time.Second})
	name := fencing.Name(fmt.Sprintf("orders/%t", hold))
	counterKey := s.keys[0].token
	counter := func() fencing.Token {
		n, err := s.redis().Get(ctx, counterKey).Int64()
		if err != nil {
			t.Fatal(err)
		}
		return fencing.Token(n)
	}
	lost := 0
	lose := func(what string, run func() error) {
		t.Helper()
		if err := s.Check(ctx); err != nil { // the connection is there: the next answer is the call's
			t.Fatal(err)
		}
		proxy.SwallowReply(hold)
		wantCode(t, what, run(), fencing.CodeOK)
		if lost++; proxy.Lost() != lost {
			t.Errorf("%s: %d answers lost so far, want %d", what, proxy.Lost(), lost)
		}
	}

	r := acquireRequest(name)
	_, err := s.Do(ctx, acquireRequest(name+"/other"))
	wantCode(t, "acquire of another name", err, fencing.CodeOK)
	var got fencing.Outcome
	lose("acquire", func() (err error) { got, err = s.Do(ctx, r); return err })
	if !got.Fresh || got.Holder.Token != counter() {
		t.Errorf("acquire: fresh %t, token %d, want true and the counter, %d", got.Fresh, got.Holder.Token, counter())
	}
	var again fencing.Outcome
	lose("renew", func() (err error) {
		again, err = s.Do(ctx, fencing.RenewRequest{Name: name, Lease: r.Lease})
		return err
	})
	if again.Holder.Token != got.Holder.Token || again.Holder.Lease != r.Lease.Public() {
		t.Errorf("renew: got %v, want the lease with token %d", again.Holder, got.Holder.Token)
	}
	lose("inspect", func() (err error) { again, err = s.Do(ctx, fencing.InspectRequest{Name: name}); return err })
	if !again.Lock.Held() {
		t.Error("inspect: not held")
	}
	lose("check", func() error { return s.Check(ctx) })
	lose("release", func() (err error) {
		_, err = s.Do(ctx, fencing.ReleaseRequest{Name: name, Lease: r.Lease})
		return err
	})
	if counter() != got.Holder.Token {
		t.Errorf("the counter went on to %d without a grant", counter())
	}

	r = acquireRequest(name)
	got, err = s.Do(ctx, r)
	wantCode(t, "acquire", err, fencing.CodeOK)
	lose("take back", func() (err error) {
		_, err = s.Do(ctx, fencing.TakeBackRequest{Name: name, Lease: r.Lease, Stamp: r.Stamp})
		return err
	})
	again, err = s.Do(ctx, r)
	wantCode(t, "acquire of the same lease id after it was taken back", err, fencing.CodeOK)
	if again.Holder.Token <= got.Holder.Token {
		t.Errorf("token %d after %d", again.Holder.Token, got.Holder.Token)
	}
	lose("break", func() (err error) {
		_, err = s.Do(ctx, fencing.BreakRequest{Name: name, Token: again.Holder.Token})
		return err
	})
	_, err = s.Do(ctx, fencing.RenewRequest{Name: name, Lease: r.Lease})
	wantLost(t, "renew of a broken lease", err, fencing.ReasonBroken)

	short := acquireRequest(name)
	short.TTL = time.Second
	_, err = s.Do(ctx, short)
	wantCode(t, "acquire", err, fencing.CodeOK)
	until(t, func() bool {
		out, err := s.Do(ctx, fencing.InspectRequest{Name: name})
		return err == nil && !out.Lock.Held()
	})
	lose("expire", func() error {
		return s.run(ctx, s.newCommand(operation{verb: expireVerb, name: name}, nil)).err
	})
	var page fencing.ListPage
	lose("list", func() (err error) { page, err = s.List(ctx, fencing.ListRequest{Limit: 10}); return err })
	for _, lock := range page.Locks {
		if lock.Name == name {
			t.Error("the list shows an expired lock")
		}
	}
	_, err = s.Do(ctx, fencing.ReleaseRequest{Name: name, Lease: short.Lease})
	wantLost(t, "release of an expired lease", err, fencing.ReasonExpired)
}

// A refusal says that the attempt before it has had no answer, and may be carried out
// yet: only where that is so, for a take-back follows.
func TestRefusedWithAnAttemptUnanswered(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr())
	s := open(t, Options{URL: proxy.URL(), ReadTimeout: 200 * time.Millisecond, OperationTimeout: 10 * time.Second})
	mustAcquire(t, s, acquireRequest("a"))
	for _, unanswered := range []bool{false, true} {
		if unanswered {
			if err := s.Check(t.Context()); err != nil { // the connection is there
				t.Fatal(err)
			}
			proxy.SwallowReply(true)
		}
		_, err := s.Do(t.Context(), acquireRequest("a"))
		wantCode(t, "acquire", err, fencing.CodeLocked)
		if e := err.(*fencing.Error); e.Unanswered != unanswered {
			t.Errorf("unanswered is %t", e.Unanswered)
		}
	}
}

func wantLost(t *testing.T, what string, err error, want fencing.Reason) {
	t.Helper()
	e, ok := err.(*fencing.Error)
	if !ok || e.Code != fencing.CodeLeaseLost || e.Reason != want {
		t.Errorf("%s: got %v, want lease_lost (%s)", what, err, want)
	}
}

// until polls a condition that must come true soon.
func until(t testing.TB, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(60 * time.Second)
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("the condition did not come true")
		}
	}
}

// Whatever Redis forgets, tokens grow, and nothing but unavailable comes between.
func TestForgetfulRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	ctx := t.Context()
	s := open(t, Options{URL: server.URL(), OperationTimeout: 3 * time.Second, Quarantine: QuarantinePolicy{Off: true}})
	client := server.Client()
	defer client.Close()
	var last fencing.Token
	grant := func(what string) {
		t.Helper()
		r := acquireRequest("orders/42")
		got, err := s.Do(ctx, r)
		wantCode(t, "acquire after "+what, err, fencing.CodeOK)
		if got.Holder.Token <= last {
			t.Errorf("after %s: token %d, want more than %d", what, got.Holder.Token, last)
		}
		last = got.Holder.Token
		_, err = s.Do(ctx, fencing.ReleaseRequest{Name: "orders/42", Lease: r.Lease})
		wantCode(t, "release after "+what, err, fencing.CodeOK)
	}
	grant("the start")
	client.ScriptFlush(ctx)
	grant("SCRIPT FLUSH")
	client.FlushAll(ctx)
	grant("FLUSHALL")
	// A floor ahead of the clock is what carries tokens over when the clock can't.
	s.sender.raiseFloor(0, last+1_000_000_000)
	last += 1_000_000_000
	client.FlushAll(ctx)
	grant("FLUSHALL with tokens ahead of the clock")
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	grant("a restart without data")
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	_, err := s.Do(ctx, acquireRequest("orders/42"))
	wantCode(t, "acquire without Redis", err, fencing.CodeUnavailable)
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return s.Check(ctx) == nil })
	grant("kill and restart")
}

// What Redis refuses to run is unavailable, not lost or held; and it goes by.
func TestRefusals(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--busy-reply-threshold", "20")
	ctx := t.Context()
	proxy := redistest.StartProxy(t, server.Addr())
	o := Options{URL: proxy.URL(), OperationTimeout: 60 * time.Second, ReadTimeout: 20 * time.Second, Quarantine: QuarantinePolicy{Off: true}}
	s := open(t, o) // for what has to be done, however busy the machine is
	o.OperationTimeout, o.ReadTimeout = 500*time.Millisecond, 400*time.Millisecond
	hasty := open(t, o) // for what can't be done, which takes all of its time
	client := server.Client()
	defer client.Close()
	held := acquireRequest("held")
	_, err := s.Do(ctx, held)
	wantCode(t, "acquire", err, fencing.CodeOK)

	storeFor := func(want fencing.Code) *Store {
		if want == fencing.CodeOK {
			return s
		}
		return hasty
	}
	all := func(what string, want, renewal fencing.Code) {
		t.Helper()
		var asking sync.WaitGroup
		for how, ask := range map[string]func() error{
			"acquire of a held name": func() error { _, err := storeFor(want).Do(ctx, acquireRequest("held")); return err },
			"acquire of a free name": func() error { _, err := storeFor(want).Do(ctx, acquireRequest("free")); return err },
			"check":                  func() error { return storeFor(want).Check(ctx) },
		} {
			asking.Go(func() { wantCode(t, what+": "+how, ask(), want) })
		}
		asking.Go(func() {
			_, err := storeFor(renewal).Do(ctx, fencing.RenewRequest{Name: "held", Lease: held.Lease})
			wantCode(t, what+": renew", err, renewal)
		})
		asking.Wait()
	}
	set := func(args ...any) {
		t.Helper()
		if err := client.Do(ctx, args...).Err(); err != nil {
			t.Fatal(err)
		}
	}

	// A dead master: nothing is read from this server's old data.
	set("replicaof", "127.0.0.1", "1")
	all("READONLY", fencing.CodeUnavailable, fencing.CodeUnavailable)
	_, err = hasty.Do(ctx, fencing.InspectRequest{Name: "held"})
	wantCode(t, "READONLY: inspect", err, fencing.CodeUnavailable)
	set("replicaof", "no", "one")
	wantCode(t, "after READONLY", s.Check(ctx), fencing.CodeOK)

	set("config", "set", "maxmemory", "1")
	all("OOM", fencing.CodeUnavailable, fencing.CodeOK) // nobody loses a lease for want of memory
	_, err = s.Do(ctx, fencing.ReleaseRequest{Name: "held", Lease: held.Lease})
	wantCode(t, "OOM: release, which frees memory", err, fencing.CodeOK)
	set("config", "set", "maxmemory", "0")
	_, err = s.Do(ctx, acquireRequest("held"))
	wantCode(t, "after OOM", err, fencing.CodeOK)

	running := make(chan struct{})
	go func() {
		defer close(running)
		other := server.Client()
		defer other.Close()
		other.Options().ReadTimeout = time.Minute
		other.Eval(ctx, "while true do end", nil)
	}()
	until(t, func() bool { return client.Ping(ctx).Err() != nil })
	all("BUSY", fencing.CodeUnavailable, fencing.CodeUnavailable)
	set("script", "kill")
	receive(t, "the end of the script", running)
	wantCode(t, "after BUSY", s.Check(ctx), fencing.CodeOK)

	for _, answer := range []string{"LOADING Redis is loading", "MISCONF can't persist", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN",
		"NOAUTH Authentication required.", "NOPERM no permission", "ERR something else"} {
		wantCode(t, "check", s.Check(ctx), fencing.CodeOK)
		proxy.Answer("-" + answer)
		_, err := hasty.Do(ctx, fencing.ReleaseRequest{Name: "held", Lease: held.Lease})
		wantCode(t, answer, err, fencing.CodeUnavailable)
		proxy.Answer("")
	}
	wantCode(t, "at the end", s.Check(ctx), fencing.CodeOK)
}

// An acquire that was answered too late, and a stall that looks like skew.
func TestSlowRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	ctx := t.Context()
	proxy := redistest.StartProxy(t, server.Addr())
	const maxSkew, stall = 300 * time.Millisecond, 500 * time.Millisecond // a busy machine stalls for less
	s := open(t, Options{URL: proxy.URL(), MaxSkew: maxSkew})
	wantCode(t, "check", s.Check(ctx), fencing.CodeOK)
	proxy.Delay(120 * time.Millisecond)
	r := acquireRequest("a")
	r.TTL = 100 * time.Millisecond
	_, err := s.Do(ctx, r)
	wantCode(t, "an acquire of which nothing is left", err, fencing.CodeUnavailable)
	proxy.Delay(0)

	// What arrives late by the store's clock was stamped too long ago, though
	// both clocks agree.
	proxy.Lag(stall, true)
	_, err = s.Do(ctx, acquireRequest("b"))
	wantCode(t, "acquire with one stall", err, fencing.CodeOK)
	proxy.Lag(stall, false)
	_, err = s.Do(ctx, acquireRequest("c"))
	wantCode(t, "acquire while all stall", err, fencing.CodeUnavailable)
	if !errors.Is(err, errStalled) {
		t.Errorf("got %v, want errStalled", err)
	}
	proxy.Lag(0, false)
	ahead := open(t, Options{
		URL: proxy.URL(), MaxSkew: maxSkew,
		Clock: func() time.Time { return time.Now().Add(time.Second) },
	})
	_, err = ahead.Do(ctx, acquireRequest("d"))
	wantCode(t, "acquire with a clock ahead", err, fencing.CodeClockSkew)
	wantCode(t, "check with a clock ahead", ahead.Check(ctx), fencing.CodeClockSkew)
}

// What nobody waits for any more is not sent late, unless it ends something.
func TestAbandonedCommands(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	proxy := redistest.StartProxy(t, redistest.Start(t).Addr())
	s := open(t, Options{URL: proxy.URL(), DialTimeout: time.Minute, ReadTimeout: time.Minute, OperationTimeout: time.Minute})
	held := acquireRequest("held")
	mustAcquire(t, s, held)
	mustRelease(t, s, held) // Redis knows the library now: what is sent once is run
	held = acquireRequest("held")
	mustAcquire(t, s, held)
	b := s.topology.node(0).batchers[hashOf("held")%batchers]
	queued := func(busy, n int) func() bool {
		return func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.inFlight == busy && len(b.queue) == n
		}
	}
	until(t, queued(0, 0)) // else the next ones go out together
	release := proxy.Hold()
	defer release()
	first := make(chan error, 1)
	go func() {
		_, err := s.Do(ctx, acquireRequest(sibling("held")))
		first <- err
	}()
	until(t, queued(1, 0))
	name := fencing.Name("0")
	for i := 0; hashOf(name)%batchers != hashOf("held")%batchers; i++ {
		name = fencing.Name(strconv.Itoa(i))
	}
	left, leave := context.WithCancel(ctx)
	gone := make(chan error, 2)
	go func() {
		_, err := s.Do(left, fencing.ReleaseRequest{Name: "held", Lease: held.Lease})
		gone <- err
	}()
	go func() {
		_, err := s.Do(left, acquireRequest(name))
		gone <- err
	}()
	until(t, queued(1, 2))
	leave()
	for range 2 {
		wantCode(t, "a caller that leaves", receive(t, "a caller that leaves", gone), fencing.CodeUnavailable)
	}
	release()
	wantCode(t, "acquire that was under way", receive(t, "the acquire", first), fencing.CodeOK)
	for name, want := range map[fencing.Name]bool{"held": false, name: false} {
		out, err := s.Do(ctx, fencing.InspectRequest{Name: name})
		if err != nil || out.Lock.Held() != want {
			t.Errorf("%s: held %v, %v", name, out.Lock.Held(), err)
		}
	}
}

// A connection that Redis refuses is no answer: the commands of a batch are tried
// again, and no record is said to be damaged.
func TestBatchWithoutAConnection(t *testing.T) {
	proxy := redistest.StartProxy(t, redistest.Start(t).Addr())
	var log logBuffer
	s := open(t, Options{URL: proxy.URL(), Logger: slog.New(slog.NewTextHandler(&log, nil))})
	mustAcquire(t, s, acquireRequest("a"))
	proxy.Answer("-LOADING Redis is loading the dataset in memory")
	proxy.Cut(false)
	before := proxy.Answered()
	go func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for proxy.Answered() == before {
			<-tick.C
		}
		proxy.Answer("")
		proxy.Cut(false)
	}()
	if err := s.expireNames(t.Context(), []fencing.Name{"a", "b", "c"}, nil); err != nil {
		t.Error(err)
	}
	if text := log.String(); strings.Contains(text, "level=ERROR") {
		t.Error(text)
	}
}
