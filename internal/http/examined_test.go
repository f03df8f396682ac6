package http

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/watchdog"
)

// examined is a store that is as the test says.
type examined struct {
	*scriptedStore
	findings   atomic.Pointer[[]fencing.Finding]
	quarantine atomic.Int64
	away       atomic.Bool
}

func (*examined) Capabilities() fencing.Capabilities { return fencing.Capabilities{Queue: true} }

func (s *examined) Examine(context.Context) ([]fencing.Finding, error) {
	if s.away.Load() {
		return nil, fencing.Unavailable(nil)
	}
	return *s.findings.Load(), nil
}

func (s *examined) Stats(context.Context) (fencing.Stats, error) {
	return fencing.Stats{Quarantine: time.Duration(s.quarantine.Load())}, nil
}

var endangering = []fencing.Finding{
	{Node: "a:6379", Check: "role", OK: true, Detail: "this is a master"},
	{Node: "a:6379", Check: "replicas", Detail: "no replica", Remedy: "add one"},
	{Node: "b:6379", Check: "eviction", Promise: "P1", Detail: `it "drops" leases`, Remedy: "maxmemory-policy noeviction"},
}

// startExamined starts a gateway whose store has been examined.
func startExamined(t *testing.T, strict bool, findings []fencing.Finding) (*gateway, *examined) {
	t.Helper()
	s := &examined{}
	s.findings.Store(&findings)
	var dog *watchdog.Watchdog
	g := start(t, func(o *Options) {
		dog = watchdog.New(s, watchdog.Options{Strict: strict})
		o.Watchdog = dog
	})
	s.scriptedStore = g.store
	dog.Start()
	t.Cleanup(dog.Stop)
	g.eventually("the store is examined", func() bool { _, at := dog.Findings(); return !at.IsZero() })
	return g, s
}

func TestReadinessTellsWhatWasFound(t *testing.T) {
	t.Parallel()
	g, s := startExamined(t, false, endangering)
	s.quarantine.Store(int64(1500*time.Millisecond + 1))
	if a := g.do("GET", "/readyz", "").want(t, 200); a.body != `{"status":"ready"}` {
		t.Errorf("%s", a.body)
	}
	a := g.do("GET", "/readyz?verbose", "").want(t, 200)
	want := `{"name":"accepting","ok":true},{"name":"quarantine","ok":false,"remaining_ms":1501},` +
		`{"name":"role","ok":true,"node":"a:6379","detail":"this is a master"},` +
		`{"name":"replicas","ok":false,"node":"a:6379","detail":"no replica","remedy":"add one"},` +
		`{"name":"eviction","ok":false,"node":"b:6379","promise":"P1","detail":"it \"drops\" leases","remedy":"maxmemory-policy noeviction"}]}`
	if !strings.HasSuffix(a.body, want) {
		t.Errorf("%s\nwant it to end with %s", a.body, want)
	}
	g.do("POST", "/locks/a", "").want(t, 201)
}

// What was fine before an outage is not told during it. Where the store can be examined though it can't be asked, it is.
func TestReadinessTellsNothingOfBefore(t *testing.T) {
	t.Parallel()
	g, s := startExamined(t, false, endangering)
	g.store.set(func(s *scriptedStore) { s.before = func(string) error { return fencing.Unavailable(nil) } })
	const fault = `{"name":"replicas","ok":false,"node":"a:6379","detail":"no replica","remedy":"add one"}`
	s.away.Store(true)
	if a := g.do("GET", "/readyz?verbose", "").want(t, 503); strings.Contains(a.body, "this is a master") || !strings.Contains(a.body, fault) {
		t.Errorf("it is away: %s", a.body)
	}
	s.away.Store(false)
	s.findings.Store(&[]fencing.Finding{{Check: "role", OK: true, Detail: "this is a master since now"}})
	if a := g.do("GET", "/readyz?verbose", "").want(t, 503); !strings.Contains(a.body, "this is a master since now") || strings.Contains(a.body, fault) {
		t.Errorf("it can be examined: %s", a.body)
	}
}

func TestStrictRefusesNewLeasesOnly(t *testing.T) {
	t.Parallel()
	g, s := startExamined(t, true, endangering[:2]) // which endangers no promise
	id := g.acquired("a")
	broken := g.acquired("b")
	g.do("GET", "/readyz", "").want(t, 200)

	s.findings.Store(&endangering)
	g.eventually("it is not ready any more", func() bool { return g.do("GET", "/readyz", "").status == 503 })
	for _, path := range []string{"/readyz", "/readyz?verbose"} {
		if a := g.do("GET", path, "").problem(t, 503, fencing.CodeUnavailable); !strings.Contains(a.text("detail"), `b:6379: it "drops" leases`) {
			t.Errorf("%s", a.body)
		}
	}
	for _, body := range []string{"", `{"wait_ms":1000}`} {
		if a := g.do("POST", "/locks/c", body).problem(t, 503, fencing.CodeUnavailable); !strings.Contains(a.text("detail"), `it "drops" leases`) || a.header.Get("Retry-After") == "" {
			t.Errorf("%s", a.body)
		}
	}
	g.do("POST", "/locks", `{"names":["c","d"]}`).problem(t, 503, fencing.CodeUnavailable)
	g.do("POST", "/locks/c", "", "Accept: text/event-stream").problem(t, 503, fencing.CodeUnavailable)
	if n := len(g.takenBack); n != 0 {
		t.Errorf("%d grants were taken back, though nothing was asked for", n)
	}
	g.do("PUT", "/locks/a", "", "Lease-Id: "+id).want(t, 200)
	g.do("GET", "/locks/a", "").want(t, 200)
	g.do("GET", "/locks", "").want(t, 200)
	g.do("DELETE", "/locks/a", "", "Lease-Id: "+id).want(t, 204)
	token := g.do("GET", "/locks/b", "").want(t, 200).header.Get("ETag")
	g.do("DELETE", "/locks/b", "", "If-Match: "+token).want(t, 204)
	g.do("PUT", "/locks/b", "", "Lease-Id: "+broken).problem(t, 412, fencing.CodeLeaseLost)
}
