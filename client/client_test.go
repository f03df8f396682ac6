package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"fencepost/internal/redis/redistest"
	"fencepost/verify/system"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait for a condition: only what hangs reaches it.
const patience = 60 * time.Second

// connect returns a client of some gateways, which is closed with the test.
func connect(t *testing.T, addresses ...string) *Client {
	t.Helper()
	c, err := New(Options{Addresses: addresses, Owner: t.Name(), Patience: patience / 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// nimble has a client ask another gateway after 3 s: it waits at one for as long as its patience has room for.
func nimble(c *Client) *Client {
	c.options.Patience = 3 * answerTimeout
	return c
}

// start starts one gateway with the embedded store.
func start(t *testing.T, env ...string) (*system.System, *Client) {
	t.Helper()
	s := system.StartTest(t, system.Options{Store: system.Embedded, Env: env})
	return s, connect(t, s.Gateways[0].URL())
}

// two starts two gateways on one Redis.
func two(t *testing.T) *system.System {
	t.Helper()
	return system.StartTest(t, system.Options{Gateways: 2, Env: []string{"FENCEPOST_DEFAULT_TTL=2s", "FENCEPOST_MAX_TTL=10s"}})
}

// until waits for a condition.
func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(patience); !condition(); {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: that did not come true", what)
		}
	}
}

// cause waits until a lease's context ends, and returns why.
func cause(t *testing.T, l *Lease) error {
	t.Helper()
	select {
	case <-l.Context().Done():
	case <-time.After(patience):
		t.Fatal("the context does not end")
	}
	return context.Cause(l.Context())
}

func must[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestDo(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	var token int64
	for range 2 {
		if err := c.Do(t.Context(), "orders/42", func(ctx context.Context, l *Lease) error {
			if l.Token() <= token || l.Name() != "orders/42" || ctx.Err() != nil || l.Err() != nil {
				t.Errorf("token %d after %d, name %s, %v", l.Token(), token, l.Name(), l.Err())
			}
			token = l.Token()
			seen := must[Lock](t)(c.Inspect(ctx, "orders/42"))
			if !seen.Held || seen.Token != token || seen.Holders[0].Lease != l.Public() || seen.Holders[0].Owner != t.Name() {
				t.Errorf("it is shown as %+v", seen)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if seen := must[Lock](t)(c.Inspect(t.Context(), "orders/42")); seen.Held {
		t.Error("it is held after Do")
	}
	failed := errors.New("failed")
	if err := c.Do(t.Context(), "a", func(context.Context, *Lease) error { return failed }); err != failed {
		t.Errorf("Do returns %v", err)
	}
	func() {
		defer func() { recover() }()
		c.Do(t.Context(), "a", func(context.Context, *Lease) error { panic("at the disco") })
	}()
	if seen := must[Lock](t)(c.Inspect(t.Context(), "a")); seen.Held {
		t.Error("it is held after a panic")
	}
}

// The end of the caller's context asks the work to end; the lease is renewed until it has.
func TestDoKeepsTheLeaseWhileWorkStops(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	err := c.Do(ctx, "a", func(ctx context.Context, l *Lease) error {
		cancel(enough)
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), enough) || l.Err() != nil {
			t.Errorf("the cause is %v, the lease %v", context.Cause(ctx), l.Err())
		}
		first := l.sentAt()
		until(t, "it is renewed", func() bool { return l.sentAt() != first })
		return context.Cause(ctx)
	}, TTL(4*time.Second))
	if err != enough {
		t.Errorf("Do returns %v", err)
	}
}

func TestTryAcquire(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	l := must[*Lease](t)(c.TryAcquire(t.Context(), "a", TTL(time.Minute)))
	_, err := c.TryAcquire(t.Context(), "a")
	e := refusal(err)
	if !errors.Is(err, CodeLocked) || e.Status != http.StatusLocked || len(e.Holders) != 1 || e.Holders[0].Lease != l.Public() || e.RetryAfter <= 0 {
		t.Fatalf("%+v", e)
	}
	_, err = c.Acquire(t.Context(), "a", Wait(time.Second))
	if !errors.Is(err, CodeWaitTimeout) || refusal(err).Position != 1 {
		t.Fatalf("%+v", refusal(err))
	}
	if err := l.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := l.Release(t.Context()); err != nil || l.Err() != ErrReleased || cause(t, l) != ErrReleased {
		t.Errorf("%v, %v", err, l.Err())
	}
	for _, bad := range [][]Option{{TTL(time.Microsecond)}, {TTL(-time.Second)}, {Permit(-1)}, {Permits(3, 2)}, {Also("a")}, {Also("..")}, {TTL(time.Second), StopEarly(600 * time.Millisecond)}, {LeaseID("nonsense")}} {
		if l, err := c.TryAcquire(t.Context(), "a", bad...); !errors.Is(err, CodeInvalidRequest) || refusal(err).Field == "" {
			t.Errorf("%v, %+v", l, err)
		}
	}
}

func TestModes(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	both := must[*Lease](t)(c.Acquire(t.Context(), "b", Also("a"), TTL(4*time.Second)))
	if g := both.Grants(); len(g) != 2 || g[0].Name != "b" || g[1].Name != "a" || g[0].Token != both.Token() || g[1].Token == 0 || both.Slot() != NoSlot {
		t.Errorf("%+v", g)
	}
	first := both.sentAt()
	until(t, "it is renewed", func() bool { return both.sentAt() != first })
	if err := both.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		if seen := must[Lock](t)(c.Inspect(t.Context(), name)); seen.Held {
			t.Errorf("%s is held", name)
		}
	}
	slots := []int{}
	for range 2 {
		slots = append(slots, must[*Lease](t)(c.TryAcquire(t.Context(), "permits", Permit(2))).Slot())
	}
	if _, err := c.TryAcquire(t.Context(), "permits", Permit(2)); !slices.Equal(slots, []int{0, 1}) || !errors.Is(err, CodeLocked) {
		t.Errorf("slots %v, %v", slots, err)
	}
	several := must[*Lease](t)(c.TryAcquire(t.Context(), "several", Permits(3, 4), TTL(time.Minute)))
	if _, err := c.TryAcquire(t.Context(), "several", Permits(2, 4)); !slices.Equal(several.Slots(), []int{0, 1, 2}) || several.Slot() != 0 || !errors.Is(err, CodeLocked) {
		t.Errorf("slots %v, %v", several.Slots(), err)
	}
	if err := several.KeepPermits(t.Context(), 2); err != nil || !slices.Equal(several.Slots(), []int{0, 1}) {
		t.Errorf("slots %v, %v", several.Slots(), err)
	}
	if err := several.KeepPermits(t.Context(), 3); !errors.Is(err, CodeInvalidRequest) || several.Err() != nil {
		t.Errorf("permits are taken: %v, %v", err, several.Err())
	}
	for _, none := range []int{0, -1} {
		if err := several.KeepPermits(t.Context(), none); !errors.Is(err, CodeInvalidRequest) || refusal(err).Field != "permits" || !slices.Equal(several.Slots(), []int{0, 1}) {
			t.Errorf("%d are kept: %v, slots %v", none, err, several.Slots())
		}
	}
	if others := must[*Lease](t)(c.TryAcquire(t.Context(), "several", Permits(2, 4))).Slots(); !slices.Equal(others, []int{2, 3}) {
		t.Errorf("slots %v", others)
	}
	for _, none := range []int{0, -1, 1, 10_001} {
		if err := several.SetLimit(t.Context(), none); !errors.Is(err, CodeInvalidRequest) || refusal(err).Field != "limit" {
			t.Errorf("the limit %d of a lease with two permits: %v", none, err)
		}
	}
	if err := several.SetLimit(t.Context(), 2); err != nil {
		t.Errorf("the limit is lowered: %v", err)
	}
	if seen := must[Lock](t)(c.Inspect(t.Context(), "several")).Holders; len(seen) != 2 || seen[0].Limit != 2 || seen[1].Limit != 4 {
		t.Errorf("%+v", seen)
	}
	if seen := must[Lock](t)(c.Inspect(t.Context(), "several")).Holders[0]; seen.Permits != 2 || !slices.Equal(seen.Slots, []int{0, 1}) {
		t.Errorf("%+v", seen)
	}
	for range 2 {
		must[*Lease](t)(c.TryAcquire(t.Context(), "readers", Shared()))
	}
}

// TestAllPermits: who asks for all permits among many who each take one, again and again, is
// served in its turn: nobody who came after it is granted before it.
func TestAllPermits(t *testing.T) {
	const limit, clients, rounds = 100, 64, 3
	_, c := start(t)
	type grant struct {
		after int // how many requests for all waited, or had been served, before it was asked for
		token int64
	}
	var joined atomic.Int64
	whole := []int64{} // the tokens of those for all
	singles := make([][]grant, clients)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var loops sync.WaitGroup
	for i := range clients {
		loops.Go(func() {
			for ctx.Err() == nil {
				after := int(joined.Load())
				l, err := c.Acquire(ctx, "pool", Permit(limit))
				if err != nil {
					if ctx.Err() == nil {
						t.Error(err)
					}
					return
				}
				singles[i] = append(singles[i], grant{after, l.Token()})
				if err := l.Release(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range rounds {
		public := make(chan string, 1)
		served := make(chan *Lease, 1)
		go func() {
			l, err := c.Acquire(t.Context(), "pool", Permits(limit, limit), OnLeaseID(func(id string) { public <- id }))
			if err != nil {
				t.Error(err)
			}
			served <- l
		}()
		id := <-public
		until(t, "all permits are waited for, or taken", func() bool {
			seen := must[Lock](t)(c.Inspect(t.Context(), "pool"))
			return slices.ContainsFunc(seen.Waiters, func(w Waiter) bool { return w.Lease == id && w.Permits == limit }) ||
				slices.ContainsFunc(seen.Holders, func(h Holder) bool { return h.Lease == id && h.Permits == limit })
		})
		joined.Add(1)
		l := <-served
		if l == nil {
			break
		}
		if seen := must[Lock](t)(c.Inspect(t.Context(), "pool")); seen.HolderCount != 1 || len(l.Slots()) != limit {
			t.Errorf("%d hold beside all permits, of which there are %d", seen.HolderCount, len(l.Slots()))
		}
		whole = append(whole, l.Token())
		if err := l.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
	stop()
	loops.Wait()
	all := 0
	for _, of := range singles {
		all += len(of)
		for _, g := range of {
			if g.after > 0 && g.after <= len(whole) && g.token < whole[g.after-1] {
				t.Errorf("the token %d was granted before %d, to a request that came after it", g.token, whole[g.after-1])
			}
		}
	}
	if len(whole) != rounds || all < clients {
		t.Errorf("%d requests for all and %d for one permit were served", len(whole), all)
	}
}

// Renewals go on for many TTLs, and somebody who breaks the lease is told from silence.
func TestLostIsNotUnknown(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	const ttl = 3 * time.Second
	l := must[*Lease](t)(c.Acquire(t.Context(), "a", TTL(ttl)))
	begun := time.Now()
	until(t, "the lease is held for 2 TTLs", func() bool {
		if err := l.Err(); err != nil {
			t.Fatal(err)
		}
		return time.Since(begun) > 2*ttl
	})
	if err := c.Break(t.Context(), "a", l.Token(), "stuck"); err != nil {
		t.Fatal(err)
	}
	if err := cause(t, l); !errors.Is(err, CodeLeaseLost) || errors.Is(err, ErrUnknown) || refusal(err).Reason != ReasonBroken || refusal(err).BreakReason != "stuck" {
		t.Errorf("broken: %v", err)
	}
	if err := l.Release(t.Context()); !errors.Is(err, CodeLeaseLost) {
		t.Errorf("released: %v", err)
	}

	l = must[*Lease](t)(c.Acquire(t.Context(), "a", TTL(4*time.Second), StopEarly(2*time.Second))) // a busy machine has this much time to see the end
	if err := s.Gateways[0].Kill(); err != nil {
		t.Fatal(err)
	}
	err := cause(t, l)
	if left := l.Remaining(); left <= 0 {
		t.Errorf("the context ended %s after the deadline", -left)
	}
	if !errors.Is(err, ErrUnknown) || errors.Is(err, CodeLeaseLost) {
		t.Errorf("killed: %v", err)
	}
	ended, end := context.WithCancel(t.Context()) // so that it is not tried for long
	end()
	if err := l.Release(ended); !errors.Is(err, ErrUnreachable) {
		t.Errorf("released: %v", err)
	}
}

// What the machine's clocks say while Go's timers stand still ends the lease, at the next look.
func TestSuspended(t *testing.T) {
	for _, clock := range []string{"boot", "wall"} {
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			var suspended atomic.Int64
			c := scripted(t, 1, grants)
			defer c.Close()
			c.now = func() instant {
				i := instant{time.Now().Round(0), time.Since(begun)}
				if by := time.Duration(suspended.Load()); clock == "boot" {
					i.boot += by
				} else {
					i.t = i.t.Add(by)
				}
				return i
			}
			asked := must[*Lease](t)(c.Acquire(t.Context(), "a", NotRenewed()))
			l := must[*Lease](t)(c.Acquire(t.Context(), "a", NotRenewed()))
			if l.Err() != nil || l.Remaining() != 30*time.Second {
				t.Errorf("%s: %v, %s left", clock, l.Err(), l.Remaining())
			}
			woken := time.Now()
			suspended.Store(int64(time.Minute))
			if !errors.Is(asked.Err(), ErrUnknown) || asked.Context().Err() == nil {
				t.Errorf("%s: asked, it says %v", clock, asked.Err())
			}
			<-l.Context().Done()
			if err := context.Cause(l.Context()); !errors.Is(err, ErrUnknown) || time.Since(woken) > 100*time.Millisecond {
				t.Errorf("%s: %v after %s", clock, err, time.Since(woken))
			}
		})
	}
}

// Nothing is left of an acquire that was given up, and no goroutine of the client's: see TestMain.
func TestGivenUp(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	l := must[*Lease](t)(c.Acquire(t.Context(), "a"))
	for _, mode := range [][]Option{nil, {Attached()}} {
		ctx, cancel := context.WithCancelCause(t.Context())
		enough := errors.New("enough")
		given := make(chan error)
		go func() {
			_, err := c.Acquire(ctx, "a", mode...)
			given <- err
		}()
		until(t, "it waits", func() bool { return must[Lock](t)(c.Inspect(t.Context(), "a")).Waiting == 1 })
		cancel(enough)
		if err := <-given; !errors.Is(err, enough) {
			t.Error(err)
		}
		until(t, "it waits no more", func() bool { return must[Lock](t)(c.Inspect(t.Context(), "a")).Waiting == 0 })
	}
	waits := make(chan error)
	go func() {
		_, err := c.Acquire(t.Context(), "a")
		waits <- err
	}()
	until(t, "it waits", func() bool { return must[Lock](t)(c.Inspect(t.Context(), "a")).Waiting == 1 })
	c.Close()
	c.Close()
	if err := <-waits; !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if !errors.Is(cause(t, l), ErrClosed) {
		t.Error(cause(t, l))
	}
	if _, err := c.Acquire(t.Context(), "b"); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	c, err := New(Options{Addresses: []string{"http://127.0.0.1:1", "http://127.0.0.1:2"}, Patience: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.TryAcquire(t.Context(), "a"); !errors.Is(err, ErrUnreachable) {
		t.Error(err)
	}
	if _, err := c.Acquire(t.Context(), "a", Wait(time.Millisecond)); !errors.Is(err, ErrUnreachable) {
		t.Error(err)
	}
	for _, bad := range []string{"", "127.0.0.1:8080", "ftp://a", "http://", "http://a?b"} {
		if _, err := New(Options{Addresses: []string{bad}}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", bad)) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// The answer to the POST is lost; the retry is told of the same lease.
func TestRetryFindsTheLease(t *testing.T) {
	t.Parallel()
	s, direct := start(t)
	proxy := redistest.StartProxy(t, s.Gateways[0].Addr())
	for name, hang := range map[string]bool{"reset": false, "hang": true} {
		c := connect(t, "http://"+proxy.Addr())
		proxy.SwallowReply(hang)
		l := must[*Lease](t)(c.TryAcquire(t.Context(), name, TTL(time.Minute)))
		past := must[[]Past](t)(direct.History(t.Context(), name))
		if proxy.Lost() == 0 || len(past) != 1 || past[0].Token != l.Token() {
			t.Errorf("%s: lost %d answers, token %d, history %+v", name, proxy.Lost(), l.Token(), past)
		}
		proxy.SwallowReply(hang) // of the release
		if err := l.Release(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLeaseIDs(t *testing.T) {
	t.Parallel()
	form := regexp.MustCompile(`^[0-7][0-9A-HJKMNP-TV-Z]{25}\.[A-Za-z0-9_-]{22,43}$`) // as api/openapi.yaml has it
	contract, err := os.ReadFile("../api/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(contract), form.String()) {
		t.Error("the form of a lease id has changed")
	}
	seen := map[string]bool{}
	for range 1000 {
		id := NewLeaseID()
		if !form.MatchString(id) || seen[id] {
			t.Fatal(id)
		}
		seen[id] = true
	}
	// Computed with: printf 'fencepost public nightly-7' | openssl dgst -sha256 -hmac 'a secret'
	if id := DeriveLeaseID([]byte("a secret"), "nightly-7"); !form.MatchString(id) || id != "01EF3BDDB58943628D9D53E3B5.d12c3a4e663918287edbbddc6d9ae51ad99aa819" {
		t.Error(id)
	}

	_, c := start(t)
	id := DeriveLeaseID([]byte("another"), "nightly-7")
	first := must[*Lease](t)(c.Acquire(t.Context(), "a", LeaseID(id), NotRenewed()))
	again := must[*Lease](t)(c.TryAcquire(t.Context(), "a", LeaseID(id)))
	if first.Token() != again.Token() || first.ID() != id {
		t.Errorf("tokens %d and %d", first.Token(), again.Token())
	}
	_, secret, _ := strings.Cut(id, ".")
	if shown := fmt.Sprintf("%v %+v %#v %s", first, first, first, first.LogValue()); strings.Contains(shown, secret) {
		t.Errorf("it is printed as %s", shown)
	}
	if left, err := c.Renew(t.Context(), id, time.Minute, "a"); err != nil || left > time.Minute || left < 50*time.Second {
		t.Errorf("%s, %v", left, err)
	}
	if err := again.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := c.Release(t.Context(), id, "a"); err != nil {
		t.Error(err)
	}
	if _, err := c.Acquire(t.Context(), "a", LeaseID(id)); !errors.Is(err, CodeLeaseLost) || refusal(err).Reason != ReasonReleased {
		t.Error(err)
	}
}

// The codes are those of the contract.
func TestCodes(t *testing.T) {
	contract, err := os.ReadFile("../api/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	enum := regexp.MustCompile(`(?s)    Code:\n.*?enum:\n(.*?)\n    \w`).FindSubmatch(contract)
	source, err := os.ReadFile("error.go")
	if err != nil || enum == nil {
		t.Fatal(err)
	}
	var want, got []string
	for _, m := range regexp.MustCompile(`- (\w+)`).FindAllSubmatch(enum[1], -1) {
		want = append(want, string(m[1]))
	}
	for _, m := range regexp.MustCompile(`Code\w+ +Code = "(\w+)"`).FindAllSubmatch(source, -1) {
		got = append(got, string(m[1]))
	}
	if len(want) < 20 || !slices.Equal(want, got) {
		t.Errorf("the contract has %v, the client %v", want, got)
	}
}

// TestKey: the key goes along with every request, and what can't be one is refused.
func TestKey(t *testing.T) {
	t.Parallel()
	seen := make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen <- r.Header.Get("Authorization")
		w.WriteHeader(http.StatusUnauthorized)
		w.Write([]byte(`{"code":"unauthenticated","status":401,"detail":"the key is not known"}`))
	}))
	defer server.Close()
	c, err := New(Options{Addresses: []string{server.URL}, Key: "fp_example"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Inspect(t.Context(), "a"); !errors.Is(err, CodeUnauthenticated) {
		t.Errorf("%v", err)
	}
	if got := <-seen; got != "Bearer fp_example" {
		t.Errorf("Authorization is %q", got)
	}
	for _, key := range []string{"a b", "a\n", "a\x00", "schlüssel"} {
		if _, err := New(Options{Addresses: []string{server.URL}, Key: key}); err == nil || strings.Contains(err.Error(), key) {
			t.Errorf("%q: %v", key, err)
		}
	}
}
