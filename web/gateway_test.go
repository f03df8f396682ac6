package web_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/embedded"
	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
	gatewayhttp "fencepost/internal/http"
	"fencepost/internal/watchdog"
	"fencepost/web"
)

// gateway is the real HTTP layer and watchdog over a store in memory.
type gateway struct {
	t             *testing.T
	origin        string
	store         *fallibleStore
	front         *front
	door          *door
	withoutReader func()        // see startKeys
	ahead         *atomic.Int64 // how far the store's clock is ahead of the browser's, in nanoseconds
}

func startGateway(t *testing.T, prepare ...func(*fallibleStore)) *gateway {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ahead := new(atomic.Int64)
	clock := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	g := &gateway{
		t: t, origin: "http://" + listener.Addr().String(), ahead: ahead,
		store: &fallibleStore{Store: fencingtest.NewModel(func() fencing.Instant { return fencing.InstantOf(clock()) }), clock: clock},
		door:  &door{Listener: listener, inside: map[net.Conn]bool{}},
	}
	for _, p := range prepare {
		p(g.store)
	}
	dog := watchdog.New(g.store, watchdog.Options{Strict: g.store.strict})
	dog.Start()
	t.Cleanup(dog.Stop)
	bounds := fencing.DefaultBounds()
	bounds.DefaultTTL = 10 * time.Minute // on a busy machine a test takes longer than the default
	server := gatewayhttp.New(gatewayhttp.Options{Watchdog: dog, Bounds: bounds, Page: web.Files, Keys: g.store.keys})
	g.front = &front{next: server.Handler()}
	srv := gatewayhttp.NewHTTPServer(g.front, slog.New(slog.DiscardHandler))
	done := make(chan error, 1)
	go func() { done <- srv.Serve(g.door) }()
	t.Cleanup(func() {
		srv.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("serve: %v", err)
		}
	})
	return g
}

// indexed has the gateway work on a store that lists locks without sorting the names of all for each
// page, as the model does; clock is the store's, nil for one that advance moves.
func indexed(t *testing.T, clock func() time.Time) func(*fallibleStore) {
	return func(s *fallibleStore) {
		t.Helper()
		if clock == nil {
			clock = s.clock
		}
		store, err := embedded.Open(embedded.Options{Dir: t.TempDir(), Now: func() fencing.Instant { return fencing.InstantOf(clock()) }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { store.Close() })
		s.Store = store
	}
}

// advance moves the store's clock.
func (g *gateway) advance(d time.Duration) { g.ahead.Add(int64(d)) }

// expire moves the store's clock and has it notice what that has ended.
func (g *gateway) expire(d time.Duration) {
	g.t.Helper()
	g.advance(d)
	if _, err := g.store.Expire(g.t.Context(), 1000); err != nil {
		g.t.Fatal(err)
	}
}

// readiness returns what is known of the store.
func (g *gateway) readiness() string {
	g.t.Helper()
	response, err := http.Get(g.origin + "/readyz?verbose")
	if err != nil {
		g.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	return string(body)
}

// lease is what the tests need of the answer to a POST.
type lease struct {
	Name  string `json:"name"`
	ID    string `json:"lease_id"`
	Token int64  `json:"fencing_token"`
}

// acquire takes a lock over HTTP; fields is the JSON body.
func (g *gateway) acquire(name, fields string) lease {
	g.t.Helper()
	got, err := g.post(g.t.Context(), name, fields)
	if err != nil {
		g.t.Fatal(err)
	}
	return got
}

// attach takes a lock that lives as long as a stream, which the test's end closes.
func (g *gateway) attach(name, fields string) {
	g.t.Helper()
	response, err := g.call(g.t.Context(), "POST", name, http.Header{"Accept": {"text/event-stream"}}, fields)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { response.Body.Close() })
	if response.StatusCode != http.StatusOK {
		g.t.Fatalf("POST %s, attached: %s", name, response.Status)
	}
}

// acquireBehind takes a lock in the store, for when HTTP is too slow or shut.
func (g *gateway) acquireBehind(name, owner string) lease {
	g.t.Helper()
	id := fencing.NewLeaseID(time.Now())
	out, err := g.store.Do(g.t.Context(), fencing.AcquireRequest{
		Name: fencing.Name(name), Lease: id, Stamp: fencing.NewStamp(), Owner: owner, Mode: fencing.ModeExclusive, Hold: 1, TTL: 3 * time.Hour,
	})
	if err != nil {
		g.t.Fatal(err)
	}
	return lease{Name: name, ID: id.Reveal(), Token: int64(out.Holder.Token)}
}

// renewBehind gives a lease that acquireBehind took another TTL.
func (g *gateway) renewBehind(l lease, ttl time.Duration) {
	g.t.Helper()
	id, err := fencing.ParseLeaseID(l.ID)
	if err != nil {
		g.t.Fatal(err)
	}
	if _, err := g.store.Do(g.t.Context(), fencing.RenewRequest{Name: fencing.Name(l.Name), Lease: id, TTL: ttl}); err != nil {
		g.t.Fatal(err)
	}
}

// releaseBehind undoes acquireBehind.
func (g *gateway) releaseBehind(l lease) {
	g.t.Helper()
	id, err := fencing.ParseLeaseID(l.ID)
	if err != nil {
		g.t.Fatal(err)
	}
	if _, err := g.store.Do(g.t.Context(), fencing.ReleaseRequest{Name: fencing.Name(l.Name), Lease: id}); err != nil {
		g.t.Fatal(err)
	}
}

func (g *gateway) post(ctx context.Context, name, fields string) (got lease, err error) {
	response, err := g.call(ctx, "POST", name, nil, fields)
	if err != nil {
		return lease{}, err
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(&got); err != nil {
		return lease{}, err
	}
	if response.StatusCode != http.StatusCreated {
		return lease{}, errors.New("POST " + name + ": " + response.Status)
	}
	return got, nil
}

// waiter is a request that waits for a lock.
type waiter struct {
	g      *gateway
	name   string
	cancel context.CancelFunc
	done   chan struct{}
	lease  lease
	err    error
}

// queue asks for a lock that is held, and returns when the request waits.
func (g *gateway) queue(name, fields string) *waiter {
	g.t.Helper()
	before := g.waiting(name)
	ctx, cancel := context.WithCancel(g.t.Context())
	w := &waiter{g: g, name: name, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.lease, w.err = g.post(ctx, name, strings.Replace(fields, "{", `{"wait_ms":60000,`, 1))
	}()
	g.t.Cleanup(w.hangUp)
	eventually(g.t, name+" is waited for", func() bool { return g.waiting(name) > before })
	return w
}

func (w *waiter) hangUp() {
	w.cancel()
	<-w.done
}

// leave hangs up and returns when the place is given up.
func (w *waiter) leave() {
	w.g.t.Helper()
	before := w.g.waiting(w.name)
	w.hangUp()
	eventually(w.g.t, w.name+" is left", func() bool { return w.g.waiting(w.name) < before })
}

// granted waits for the grant.
func (w *waiter) granted() lease {
	w.g.t.Helper()
	select {
	case <-w.done:
	case <-time.After(patience):
		w.g.t.Fatalf("%s: not granted in %s", w.name, patience)
	}
	if w.err != nil {
		w.g.t.Fatal(w.err)
	}
	return w.lease
}

// eventually waits for something outside of the page.
func eventually(t *testing.T, what string, met func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !met(); {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-t.Context().Done():
		}
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func (g *gateway) waiting(name string) int {
	g.t.Helper()
	out, err := g.store.Store.Do(g.t.Context(), fencing.InspectRequest{Name: fencing.Name(name)})
	if err != nil {
		g.t.Fatal(err)
	}
	return out.Lock.Waiting
}

func (g *gateway) renew(l lease) { g.must("PUT", l, http.StatusOK, "{}") }

func (g *gateway) release(l lease) { g.must("DELETE", l, http.StatusNoContent, "") }

// break_ ends a lease as an operator would.
func (g *gateway) break_(l lease) {
	g.t.Helper()
	if _, err := g.store.Do(g.t.Context(), fencing.BreakRequest{Name: fencing.Name(l.Name), Token: fencing.Token(l.Token), BreakReason: "stuck, <b>ann</b> asked"}); err != nil {
		g.t.Fatal(err)
	}
}

func (g *gateway) must(method string, l lease, status int, body string) {
	g.t.Helper()
	response, err := g.call(g.t.Context(), method, l.Name, http.Header{"Lease-Id": {l.ID}}, body)
	if err != nil {
		g.t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != status {
		g.t.Fatalf("%s %s: %s", method, l.Name, response.Status)
	}
}

func (g *gateway) call(ctx context.Context, method, name string, header http.Header, body string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, g.origin+"/locks/"+name, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	for key, values := range header {
		request.Header[key] = values
	}
	return http.DefaultClient.Do(request)
}
