package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

// Many leases are watched by one goroutine, and all contexts end when their time has come,
// though other leases were acquired before and after.
func TestManyLeasesAreWatched(t *testing.T) {
	const n = 500
	var ahead atomic.Int64
	c := scripted(t, 1, func(r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodDelete {
			return says(204, "")
		}
		return grants(r)
	})
	defer c.Close()
	c.now = func() instant { i := now(); i.boot += time.Duration(ahead.Load()); return i }
	acquire := func(options ...Option) *Lease {
		return must[*Lease](t)(c.Acquire(t.Context(), "a", append(options, NotRenewed())...))
	}
	before := runtime.NumGoroutine()
	leases := make([]*Lease, n)
	for i := range leases {
		leases[i] = acquire()
	}
	until(t, "there is no goroutine for each lease", func() bool { return runtime.NumGoroutine() < before+n/2 })
	if err := leases[0].Release(t.Context()); err != nil {
		t.Error(err)
	}
	for i, l := range leases {
		if err := l.Err(); (err != nil) != (i == 0) {
			t.Fatalf("lease %d: %v", i, err)
		}
	}
	ahead.Store(int64(29*time.Second + 500*time.Millisecond)) // the margin is a second
	for _, l := range leases[1:] {
		if err := cause(t, l); !errors.Is(err, ErrUnknown) {
			t.Fatal(err)
		}
	}
	until(t, "nothing is watched", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return !c.watching
	})
	later := acquire()
	ahead.Add(int64(time.Minute))
	if err := cause(t, later); !errors.Is(err, ErrUnknown) {
		t.Error(err)
	}
	last := acquire()
	c.Close()
	if err := cause(t, last); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

func TestLook(t *testing.T) {
	const ms = time.Millisecond
	for _, test := range []struct{ left, margin, want time.Duration }{
		{time.Hour, time.Second, 100 * ms},
		{time.Hour, 15 * time.Second, 100 * ms},
		{time.Hour, 0, 5 * ms},
		{time.Hour, 20 * ms, 10 * ms},
		{50 * ms, time.Second, 50 * ms},
		{ms, time.Second, ms},
	} {
		if got := lookAfter(test.left, test.margin); got != test.want {
			t.Errorf("%s before the end of a context with a margin of %s it looks after %s, want %s", test.left, test.margin, got, test.want)
		}
	}
}

// owned is a transport that counts what is asked of it.
type owned struct {
	http.RoundTripper
	asked, closed atomic.Int64
}

func (o *owned) RoundTrip(r *http.Request) (*http.Response, error) {
	o.asked.Add(1)
	return o.RoundTripper.RoundTrip(r)
}

func (o *owned) CloseIdleConnections() { o.closed.Add(1) }

// A client may be given a way to its gateways: here a unix socket.
func TestTransport(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		fmt.Fprintf(w, `{"name":"a","lease_id":%q,"fencing_token":7,"ttl_ms":60000,"expires_in_ms":60000,"renew_in_ms":100,"waited_ms":0}`, r.Header.Get("Lease-Id"))
	})}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() { server.Close(); <-served }()
	there := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	defer there.CloseIdleConnections()
	transport := &owned{RoundTripper: there}
	c, err := New(Options{Addresses: []string{"http://gateway"}, Transport: transport})
	if err != nil {
		t.Fatal(err)
	}
	l := must[*Lease](t)(c.Acquire(t.Context(), "a"))
	until(t, "it is renewed", func() bool { return transport.asked.Load() >= 2 })
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
	c.Close()
	if transport.closed.Load() > 0 {
		t.Error("the caller's connections were closed")
	}
}
