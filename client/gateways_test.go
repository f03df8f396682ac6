package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/redis/redistest"
	"fencepost/verify/system"
)

// A wait goes on at its place when its gateway dies, and a lease is renewed through the
// other one.
func TestOtherGateway(t *testing.T) {
	t.Parallel()
	s := two(t)
	a, b := s.Gateways[0], s.Gateways[1]
	holder, later := connect(t, b.URL()), connect(t, b.URL())
	for _, harm := range []struct {
		name string
		do   func() error
	}{{"stopped", a.Pause}, {"killed", a.Kill}} {
		held := must[*Lease](t)(holder.Acquire(t.Context(), harm.name, TTL(10*time.Second)))
		first := nimble(connect(t, a.URL(), b.URL()))
		var arrived atomic.Int64
		first.http.Transport = counted{first.http.Transport, func(r *http.Request) {
			if r.Method == http.MethodPost && r.URL.Host == b.Addr() {
				arrived.Add(1)
			}
		}}
		kept := must[*Lease](t)(first.Acquire(t.Context(), harm.name+"/kept", TTL(10*time.Second)))
		got := make(chan *Lease, 2)
		wait := func(c *Client) {
			l, err := c.Acquire(t.Context(), harm.name, TTL(5*time.Second))
			if err != nil {
				t.Error(err)
			}
			got <- l
		}
		waiting := func(n int) func() bool {
			return func() bool { return must[Lock](t)(later.Inspect(t.Context(), harm.name)).Waiting >= n }
		}
		go wait(first)
		until(t, "the first waits", waiting(1))
		go wait(later)
		until(t, "both wait", waiting(2))
		if err := harm.do(); err != nil {
			t.Fatal(err)
		}
		sent := kept.sentAt()
		until(t, "the lease is renewed elsewhere", func() bool { return kept.sentAt() != sent })
		until(t, "the first waits elsewhere", func() bool { return arrived.Load() > 1 }) // the first request there only finds out that it answers
		until(t, "both wait", waiting(2))
		if err := held.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i, c := range []*Client{first, later} {
			l := <-got
			if l == nil || l.c != c {
				t.Fatalf("%s: the wrong one is number %d", harm.name, i)
			}
			if err := l.Release(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if err := kept.Err(); err != nil {
			t.Errorf("%s: the other lease is lost: %v", harm.name, err)
		}
		if err := a.Resume(); err != nil {
			t.Fatal(err)
		}
	}
}

// counted tells of requests before they are sent.
type counted struct {
	http.RoundTripper
	tell func(*http.Request)
}

func (c counted) RoundTrip(r *http.Request) (*http.Response, error) {
	c.tell(r)
	return c.RoundTripper.RoundTrip(r)
}

func (c counted) CloseIdleConnections() { c.RoundTripper.(*http.Transport).CloseIdleConnections() }

// An attached lease goes on through the other gateway when its own drains, or is killed.
func TestAttached(t *testing.T) {
	t.Parallel()
	s := two(t)
	a, b := s.Gateways[0], s.Gateways[1]
	attachedThrough(t, s, a.Stop, a.Start, b.Kill, b.Start)
}

// So it does when its own stands still, after all that.
func TestSystemAttached(t *testing.T) {
	t.Parallel()
	s := two(t)
	a, b := s.Gateways[0], s.Gateways[1]
	attachedThrough(t, s, a.Stop, a.Start, b.Kill, b.Start, a.Pause, a.Resume)
}

// attachedThrough is what an attached lease goes through: it is renewed after each harm, which
// its remedy follows.
func attachedThrough(t *testing.T, s *system.System, harmsAndRemedies ...func() error) {
	a, b := s.Gateways[0], s.Gateways[1]
	c, other := connect(t, a.URL(), b.URL()), connect(t, b.URL())
	l := must[*Lease](t)(c.Acquire(t.Context(), "a", Attached(), TTL(9*time.Second)))
	renewed(t, l)
	for i, do := range harmsAndRemedies {
		if err := do(); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			renewed(t, l)
		}
	}
	if err := l.settled(); err != nil {
		t.Fatal(err)
	}
	if seen := must[[]Past](t)(other.History(t.Context(), "a")); len(seen) != 1 || seen[0].Outcome != "held" {
		t.Errorf("%+v", seen)
	}
	waiting := make(chan *Lease)
	go func() {
		next, err := other.Acquire(t.Context(), "a", Attached())
		if err != nil {
			t.Error(err)
		}
		waiting <- next
	}()
	until(t, "it waits", func() bool { return must[Lock](t)(other.Inspect(t.Context(), "a")).Waiting == 1 })
	if _, err := other.TryAcquire(t.Context(), "a", Attached()); !errors.Is(err, CodeLocked) {
		t.Error(err)
	}
	if err := l.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	next := <-waiting
	if err := other.Break(t.Context(), "a", next.Token(), ""); err != nil {
		t.Fatal(err)
	}
	if err := cause(t, next); !errors.Is(err, CodeLeaseLost) {
		t.Error(err)
	}
	must[*Lease](t)(c.Acquire(t.Context(), "a", Attached(), TTL(10*time.Second)))
	c.Close()
	until(t, "closing releases", func() bool { return !must[Lock](t)(other.Inspect(t.Context(), "a")).Held })
}

// A link in silence: the attached lease's context ends in time, and the lease is kept while
// its work stops.
func TestAttachedInSilence(t *testing.T) {
	t.Parallel()
	s, direct := start(t)
	proxy := redistest.StartProxy(t, s.Gateways[0].Addr())
	c := connect(t, "http://"+proxy.Addr())
	l := must[*Lease](t)(c.Acquire(t.Context(), "a", Attached(), TTL(6*time.Second), StopEarly(3*time.Second))) // a busy machine has this much time to see the end
	defer proxy.Hold()()
	err := cause(t, l)
	if left := l.Remaining(); !errors.Is(err, ErrUnknown) || left <= 0 {
		t.Errorf("%v, %s before the deadline", err, left)
	}
	if seen := must[Lock](t)(direct.Inspect(t.Context(), "a")); !seen.Held {
		t.Error("the lock is free while the work stops")
	}
}

func TestEvents(t *testing.T) {
	t.Parallel()
	s := two(t)
	c, other := connect(t, s.Gateways[0].URL(), s.Gateways[1].URL()), connect(t, s.Gateways[1].URL())
	ctx, cancel := context.WithCancel(t.Context())
	kinds := make(chan string, 100)
	ended := make(chan error)
	go func() {
		var last error
		for e, err := range c.Events(ctx, "seen/") {
			if last = err; err == nil {
				kinds <- e.Kind + " " + e.Name
			}
		}
		ended <- last
	}()
	seen := func() {
		t.Helper()
		told := map[string]bool{}
		until(t, "a grant and a release are told", func() bool { // the subscription may come later than the first
			must[*Lease](t)(other.Acquire(t.Context(), "seen/a", TTL(time.Second))).Release(t.Context())
			for len(kinds) > 0 {
				told[<-kinds] = true
			}
			return told["granted seen/a"] && told["released seen/a"]
		})
	}
	seen()
	if err := s.Gateways[0].Kill(); err != nil {
		t.Fatal(err)
	}
	seen()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestLooks(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	for i := range 3 {
		must[*Lease](t)(c.Acquire(t.Context(), fmt.Sprintf("list/%d", i), Permit(2), Metadata(map[string]string{"build": "42"})))
	}
	n := 0
	for l, err := range c.List(t.Context(), "list/") {
		if err != nil || l.Name != fmt.Sprintf("list/%d", n) || l.Holders[0].Metadata["build"] != "42" || *l.Holders[0].Slot != 0 {
			t.Errorf("%+v, %v", l, err)
		}
		n++
	}
	for _, err := range c.List(t.Context(), "//") {
		if n++; err != nil {
			t.Error(err)
		}
	}
	if n != 3 {
		t.Errorf("%d locks are listed", n)
	}
	seen := must[Lock](t)(c.Inspect(t.Context(), "list/0"))
	if err := c.Break(t.Context(), "list/0", seen.Token+1, ""); !errors.Is(err, CodeStaleToken) {
		t.Error(err)
	}
	if all := c.Examine(t.Context()); len(all) != 1 || !all[0].Ready || all[0].Store != "embedded" || len(all[0].Checks) == 0 {
		t.Errorf("%+v", all)
	}
}

// fake is a gateway that answers as it is told.
func fake(t *testing.T, answer func(w http.ResponseWriter, r *http.Request)) *Client {
	server := httptest.NewServer(http.HandlerFunc(answer))
	t.Cleanup(server.Close)
	return connect(t, server.URL)
}

// renew_in_ms is obeyed, and never exceeded.
func TestRenewsWhenTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := make(chan time.Time, 100)
		c := scripted(t, 1, func(r *http.Request) (*http.Response, error) {
			switch r.Method {
			case http.MethodPut:
				sent <- time.Now()
			case http.MethodDelete:
				return says(204, "")
			}
			return says(200, fmt.Sprintf(`{"name":"a","lease_id":%q,"fencing_token":7,"ttl_ms":60000,"expires_in_ms":60000,"renew_in_ms":100,"waited_ms":0}`, r.Header.Get("Lease-Id")))
		})
		defer c.Close()
		last := time.Now()
		l := must[*Lease](t)(c.Acquire(t.Context(), "a"))
		for range 20 {
			at := <-sent
			if gap := at.Sub(last); gap < 85*time.Millisecond || gap > 100*time.Millisecond {
				t.Errorf("it is renewed after %s", gap)
			}
			last = at
		}
		if err := l.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// When to come back is obeyed.
func TestComesBackWhenTold(t *testing.T) {
	t.Parallel()
	for name, refused := range map[string]struct {
		status int
		header string
		body   string
	}{
		"retry_after_ms": {429, "1", `{"code":"too_many_requests","retry_after_ms":300}`},
		"Retry-After":    {503, "1", `{"code":"quarantined"}`},
		"unavailable":    {503, "1", `{"code":"unavailable"}`},
		"proxy":          {502, "1", `<html>`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int64
			var first atomic.Pointer[time.Time]
			c := fake(t, func(w http.ResponseWriter, r *http.Request) {
				if asked.Add(1) == 1 {
					begun := time.Now()
					first.Store(&begun)
					w.Header().Set("Retry-After", refused.header)
					w.WriteHeader(refused.status)
					fmt.Fprint(w, refused.body)
					return
				}
				fmt.Fprintf(w, `{"name":"a","lease_id":%q,"fencing_token":7,"ttl_ms":60000,"expires_in_ms":60000,"renew_in_ms":20000,"waited_ms":0}`, r.Header.Get("Lease-Id"))
			})
			must[*Lease](t)(c.Acquire(t.Context(), "a"))
			pause := time.Since(*first.Load())
			if least := 300 * time.Millisecond; pause < least || refused.status != 429 && pause < time.Second {
				t.Errorf("it comes back after %s", pause)
			}
			if asked.Load() != 2 {
				t.Errorf("%d requests", asked.Load())
			}
		})
	}
}

// An operator may allow shorter waits only.
func TestShorterWaits(t *testing.T) {
	t.Parallel()
	s := system.StartTest(t, system.Options{Store: system.Embedded, Env: []string{"FENCEPOST_MAX_WAIT=1s"}})
	c := connect(t, s.Gateways[0].URL())
	l := must[*Lease](t)(c.Acquire(t.Context(), "a"))
	got := make(chan error)
	go func() {
		next, err := c.Acquire(t.Context(), "a")
		if err == nil {
			err = next.Release(t.Context())
		}
		got <- err
	}()
	until(t, "it waits", func() bool { return must[Lock](t)(c.Inspect(t.Context(), "a")).Waiting == 1 })
	l.Release(t.Context())
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// noted notes that something of an answer was read.
type noted struct {
	counted
	read func()
}

func (n noted) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := n.counted.RoundTrip(r)
	if err == nil {
		response.Body = &notedBody{response.Body, n.read}
	}
	return response, err
}

type notedBody struct {
	io.ReadCloser
	read func()
}

func (b *notedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.read()
	}
	return n, err
}

// What happens while a stream of events is broken off is told, or a resync is: at the same gateway when it is
// there again, and at another one, where others read already.
func TestEventsMissNothing(t *testing.T) {
	t.Parallel()
	eventsMissNothing(t, map[system.Kind]int{system.Embedded: 1, system.Redis: 2})
}

// So it is with the stores of which each gateway hears in its own way.
func TestSystemEventsMissNothing(t *testing.T) {
	t.Parallel()
	eventsMissNothing(t, map[system.Kind]int{system.Raft: 3, system.Quorum: 2, system.Cluster: 2})
}

func eventsMissNothing(t *testing.T, gateways map[system.Kind]int) {
	for store, n := range gateways {
		t.Run(string(store), func(t *testing.T) {
			s := system.StartTest(t, system.Options{Store: store, Gateways: n})
			var addresses []string
			for _, g := range s.Gateways {
				addresses = append(addresses, g.URL())
			}
			c, direct := connect(t, addresses...), connect(t, addresses[n-1])
			happens := func(name string) {
				l, err := direct.Acquire(t.Context(), name)
				if err == nil {
					err = l.Release(t.Context())
				}
				if err != nil {
					t.Error(err)
				}
			}
			var streams atomic.Int64
			begun, broken, acted := make(chan struct{}), make(chan struct{}), make(chan struct{})
			c.http.Transport = noted{counted{c.http.Transport, func(r *http.Request) {
				if streams.Add(1) == 2 { // it is opened again
					<-broken
					happens("seen/gap")
					close(acted)
				}
			}}, sync.OnceFunc(func() { close(begun) })}
			reads := func(c *Client, prefix string) (told func(kinds ...string) bool) {
				var mu sync.Mutex
				seen := map[string]bool{}
				c.goes(func() {
					for e, err := range c.Events(c.ctx, prefix) {
						if err != nil && c.ctx.Err() == nil {
							t.Error(err)
						}
						mu.Lock()
						seen[e.Kind+" "+e.Name] = true
						mu.Unlock()
					}
				})
				return func(kinds ...string) bool {
					mu.Lock()
					defer mu.Unlock()
					return !slices.ContainsFunc(kinds, func(kind string) bool { return !seen[kind] })
				}
			}
			for _, address := range addresses {
				told := reads(connect(t, address), "")
				until(t, "somebody reads there", func() bool { happens("other"); return told("released other") })
			}
			told := reads(c, "seen/")
			<-begun
			if err := s.Gateways[0].Kill(); err != nil {
				t.Fatal(err)
			}
			if n == 1 {
				if err := s.Gateways[0].Start(); err != nil {
					t.Fatal(err)
				}
			}
			close(broken)
			<-acted
			until(t, "it goes on", func() bool { happens("seen/after"); return told("released seen/after") })
			if !told("resync ") && !told("granted seen/gap", "released seen/gap") {
				t.Error("what happened meanwhile is not told, and no resync is")
			}
		})
	}
}
