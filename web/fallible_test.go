package web_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"fencepost/internal/auth"
	"fencepost/internal/fencing"
)

// fallibleStore can be cut off, set up badly, and in quarantine.
type fallibleStore struct {
	fencing.Store
	down       atomic.Bool
	findings   atomic.Pointer[[]fencing.Finding]
	quarantine atomic.Pointer[time.Time] // until when, by the store's clock
	clock      func() time.Time
	strict     bool       // the gateway grants nothing while a promise is in danger
	keys       *auth.Keys // that the gateway wants; nil: none
}

func (s *fallibleStore) Examine(ctx context.Context) ([]fencing.Finding, error) {
	if found := s.findings.Load(); found != nil {
		return *found, nil
	}
	return s.Store.Examine(ctx)
}

func (s *fallibleStore) Stats(ctx context.Context) (fencing.Stats, error) {
	stats, err := s.Store.Stats(ctx)
	if until := s.quarantine.Load(); until != nil {
		stats.Quarantine = max(0, until.Sub(s.clock()))
	}
	return stats, err
}

func (s *fallibleStore) List(ctx context.Context, r fencing.ListRequest) (fencing.ListPage, error) {
	if s.down.Load() {
		return fencing.ListPage{}, fencing.Unavailable(errors.New("cut off by the test"))
	}
	return s.Store.List(ctx, r)
}

// front stands before the gateway, counts what the page asks, and can refuse to
// let it have events.
type front struct {
	next    http.Handler
	refuse  atomic.Bool
	busy    atomic.Bool  // the list is refused with 429
	streams atomic.Int64 // open now
	told    atomic.Int64 // events that went out on streams

	mu       sync.Mutex
	asked    map[string]int // by the first segment of the path, GET only
	recorded *[]asked       // what is asked for, nil if nobody wants to know
	since    time.Time      // of the record
}

// asked is a GET that came so long after a record began.
type asked struct {
	after  time.Duration
	url    string // path and query
	header http.Header
}

// record keeps what is asked for from now on, until recording is called.
func (f *front) record() (recording func() []asked) {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := []asked{}
	f.recorded, f.since = &all, time.Now()
	return func() []asked {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.recorded = nil
		return all
	}
}

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		f.next.ServeHTTP(w, r)
		return
	}
	kind, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if kind == "locks" {
		kind = "lock"
		if r.URL.Path == "/locks" {
			kind = "list"
			if query := r.URL.Query(); !query.Has("total") && query.Get("limit") == "1000" && (query.Has("waiting") || query.Has("expires_within_ms")) {
				kind = "walk" // for what needs attention
			} else if query.Has("prefix") {
				kind = "row"
			}
		}
	}
	f.mu.Lock()
	if f.asked == nil {
		f.asked = map[string]int{}
	}
	f.asked[kind]++
	if f.recorded != nil {
		*f.recorded = append(*f.recorded, asked{time.Since(f.since), r.URL.RequestURI(), r.Header.Clone()})
	}
	f.mu.Unlock()
	if kind == "list" && f.busy.Load() {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	if kind == "events" {
		if f.refuse.Load() {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		f.streams.Add(1)
		defer f.streams.Add(-1)
		w = teller{w, &f.told}
	}
	f.next.ServeHTTP(w, r)
}

// teller counts the events that go out.
type teller struct {
	http.ResponseWriter
	told *atomic.Int64
}

func (t teller) Write(p []byte) (int, error) {
	n, err := t.ResponseWriter.Write(p)
	t.told.Add(int64(bytes.Count(p[:n], []byte("event: "))))
	return n, err
}

// Unwrap serves http.ResponseController.
func (t teller) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// count returns how often the page has asked for the list, a row of it, a lock
// or its history.
func (f *front) count(kinds ...string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, kind := range kinds {
		n += f.asked[kind]
	}
	return n
}

// settled waits until the page has not asked for a kind for a second, but no longer
// than ten.
func (f *front) settled(kind string) {
	last := time.Now()
	for began, n := last, f.count(kind); time.Since(last) < time.Second && time.Since(began) < 10*time.Second; <-time.After(20 * time.Millisecond) {
		if now := f.count(kind); now != n {
			n, last = now, time.Now()
		}
	}
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
