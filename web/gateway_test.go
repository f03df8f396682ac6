package web_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
	gatewayhttp "fencepost/internal/http"
	"fencepost/web"
)

// gateway is the real HTTP layer over a store in memory.
type gateway struct {
	t      *testing.T
	origin string
	store  *fallibleStore
	door   *door
	ahead  *atomic.Int64 // how far the store's clock is ahead of the browser's, in nanoseconds
}

func startGateway(t *testing.T) *gateway {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ahead := new(atomic.Int64)
	clock := func() fencing.Instant { return fencing.InstantOf(time.Now().Add(time.Duration(ahead.Load()))) }
	g := &gateway{
		t: t, origin: "http://" + listener.Addr().String(), ahead: ahead,
		store: &fallibleStore{Store: fencingtest.NewModel(clock)},
		door:  &door{Listener: listener, inside: map[net.Conn]bool{}},
	}
	server := gatewayhttp.New(gatewayhttp.Options{
		Store: g.store, Bounds: fencing.DefaultBounds(), Page: web.Files,
		TakeBack: func(fencing.TakeBackRequest) {},
	})
	srv := gatewayhttp.NewHTTPServer(server.Handler(), slog.New(slog.DiscardHandler))
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

// advance moves the store's clock.
func (g *gateway) advance(d time.Duration) { g.ahead.Add(int64(d)) }

// lease is what the tests need of the answer to a POST.
type lease struct {
	Name  string `json:"name"`
	ID    string `json:"lease_id"`
	Token int64  `json:"fencing_token"`
}

// acquire takes a lock over HTTP; fields is the JSON body.
func (g *gateway) acquire(name, fields string) lease {
	g.t.Helper()
	var got lease
	response := g.call("POST", name, "", fields)
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(&got); err != nil || response.StatusCode != http.StatusCreated {
		g.t.Fatalf("POST %s: %s, %v", name, response.Status, err)
	}
	return got
}

func (g *gateway) renew(l lease) {
	g.t.Helper()
	response := g.call("PUT", l.Name, l.ID, "{}")
	response.Body.Close()
	if response.StatusCode != http.StatusOK {
		g.t.Fatalf("PUT %s: %s", l.Name, response.Status)
	}
}

func (g *gateway) release(l lease) {
	g.t.Helper()
	response := g.call("DELETE", l.Name, l.ID, "")
	response.Body.Close()
	if response.StatusCode != http.StatusNoContent {
		g.t.Fatalf("DELETE %s: %s", l.Name, response.Status)
	}
}

func (g *gateway) call(method, name, leaseID, body string) *http.Response {
	g.t.Helper()
	request, err := http.NewRequestWithContext(g.t.Context(), method, g.origin+"/locks/"+name, strings.NewReader(body))
	if err != nil {
		g.t.Fatal(err)
	}
	if leaseID != "" {
		request.Header.Set("Lease-Id", leaseID)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		g.t.Fatal(err)
	}
	return response
}

// fallibleStore can be cut off.
type fallibleStore struct {
	fencing.Store
	down atomic.Bool
}

func (s *fallibleStore) List(ctx context.Context, r fencing.ListRequest) (fencing.ListPage, error) {
	if s.down.Load() {
		return fencing.ListPage{}, fencing.Unavailable(errors.New("cut off by the test"))
	}
	return s.Store.List(ctx, r)
}

// door is a listener that can be shut: connections are cut, new ones are closed
// as they come. The port stays taken, so that nobody else gets it meanwhile.
type door struct {
	net.Listener
	mu     sync.Mutex
	shut   bool
	inside map[net.Conn]bool
}

func (d *door) Accept() (net.Conn, error) {
	for {
		conn, err := d.Listener.Accept()
		if err != nil {
			return nil, err
		}
		d.mu.Lock()
		shut := d.shut
		if !shut {
			d.inside[conn] = true
		}
		d.mu.Unlock()
		if !shut {
			return conn, nil
		}
		conn.Close()
	}
}

// Shut cuts the gateway off, as a crash or a cable would.
func (d *door) Shut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shut = true
	for conn := range d.inside {
		conn.Close()
	}
	clear(d.inside)
}

// Reopen lets connections in again.
func (d *door) Reopen() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shut = false
}
