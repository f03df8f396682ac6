package http

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

// clock is the time of a test's store and gateway.
type clock struct {
	mu  sync.Mutex
	now fencing.Instant
}

func (c *clock) instant() fencing.Instant {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) time() time.Time { return c.instant().Time() }

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// scriptedStore is a model whose methods a test can replace.
type scriptedStore struct {
	*fencingtest.Model
	mu      sync.Mutex
	acquire func(context.Context, fencing.AcquireRequest) (fencing.Outcome, error)
	before  func(verb string) error // called before every method; an error is its result

	afterRenew func()
}

func (s *scriptedStore) set(change func(*scriptedStore)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

func (s *scriptedStore) hook(verb string) error {
	s.mu.Lock()
	before := s.before
	s.mu.Unlock()
	if before == nil {
		return nil
	}
	return before(verb)
}

func (s *scriptedStore) Acquire(ctx context.Context, r fencing.AcquireRequest) (fencing.Outcome, error) {
	s.mu.Lock()
	acquire := s.acquire
	s.mu.Unlock()
	if err := s.hook("acquire"); err != nil {
		return fencing.Outcome{}, err
	}
	if acquire != nil {
		return acquire(ctx, r)
	}
	return s.Model.Acquire(ctx, r)
}

func (s *scriptedStore) Renew(ctx context.Context, r fencing.RenewRequest) (fencing.Outcome, error) {
	if err := s.hook("renew"); err != nil {
		return fencing.Outcome{}, err
	}
	out, err := s.Model.Renew(ctx, r)
	s.mu.Lock()
	after := s.afterRenew
	s.mu.Unlock()
	if after != nil {
		after()
	}
	return out, err
}

func (s *scriptedStore) Release(ctx context.Context, r fencing.ReleaseRequest) (fencing.Outcome, error) {
	if err := s.hook("release"); err != nil {
		return fencing.Outcome{}, err
	}
	return s.Model.Release(ctx, r)
}

func (s *scriptedStore) Break(ctx context.Context, r fencing.BreakRequest) (fencing.Outcome, error) {
	if err := s.hook("break"); err != nil {
		return fencing.Outcome{}, err
	}
	return s.Model.Break(ctx, r)
}

func (s *scriptedStore) Inspect(ctx context.Context, r fencing.InspectRequest) (fencing.Outcome, error) {
	if err := s.hook("inspect"); err != nil {
		return fencing.Outcome{}, err
	}
	return s.Model.Inspect(ctx, r)
}

func (s *scriptedStore) List(ctx context.Context, r fencing.ListRequest) (fencing.ListPage, error) {
	if err := s.hook("list"); err != nil {
		return fencing.ListPage{}, err
	}
	return s.Model.List(ctx, r)
}

func (s *scriptedStore) Check(ctx context.Context) error {
	if err := s.hook("check"); err != nil {
		return err
	}
	return s.Model.Check(ctx)
}

// gateway is a Server on a real port.
type gateway struct {
	*Server
	t         testing.TB
	clock     *clock
	store     *scriptedStore
	url       string
	takenBack chan fencing.TakeBackRequest
	log       *lockedBuffer
	client    *http.Client
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

var testPage fs.FS = fstest.MapFS{
	"index.html": {Data: []byte("<!doctype html><title>locks</title>")},
	"style.css":  {Data: []byte(":root {}")},
	"icon.svg":   {Data: []byte("<svg/>")},
	"js/main.js": {Data: []byte("export {};")},
	"notes.txt":  {Data: []byte("not for the world")},
}

// newServer makes a Server on a model, without a port.
func newServer(t testing.TB, options ...func(*Options)) *gateway {
	g := &gateway{t: t, clock: &clock{now: fencingtest.Epoch}, takenBack: make(chan fencing.TakeBackRequest, 100), log: &lockedBuffer{}}
	g.store = &scriptedStore{Model: fencingtest.NewModel(g.clock.instant)}
	registry := prometheus.NewRegistry()
	o := Options{
		Store: g.store, Bounds: fencing.DefaultBounds(), Page: testPage, StoreKind: "model", Version: "test",
		Gatherer: registry, Registerer: registry, now: g.clock.time,
		Logger: slog.New(slog.NewJSONHandler(g.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		TakeBack: func(r fencing.TakeBackRequest) {
			if _, err := g.store.Model.TakeBack(context.Background(), r); err != nil {
				t.Errorf("take back: %v", err)
			}
			g.takenBack <- r
		},
	}
	for _, option := range options {
		option(&o)
	}
	g.Server = New(o)
	return g
}

// start makes a gateway that listens.
func start(t testing.TB, options ...func(*Options)) *gateway {
	g := newServer(t, options...)
	g.listen(func(*http.Server) {})
	return g
}

func (g *gateway) listen(change func(*http.Server)) {
	ts := httptest.NewUnstartedServer(nil)
	ts.Config = NewHTTPServer(g.Handler(), slog.New(slog.NewTextHandler(g.log, nil)))
	change(ts.Config)
	ts.Start()
	g.url = ts.URL
	g.client = ts.Client()
	g.client.Transport.(*http.Transport).DisableCompression = true
	g.t.Cleanup(ts.Close)
}

// answered is an answer that fits the contract.
type answered struct {
	status int
	header http.Header
	body   string
	json   map[string]any
}

// do sends a request and holds it and the answer against the contract. Headers
// are given as "Name: value".
func (g *gateway) do(method, path, body string, headers ...string) *answered {
	g.t.Helper()
	r, err := http.NewRequest(method, g.url+path, strings.NewReader(body))
	if err != nil {
		g.t.Fatal(err)
	}
	if body == "" {
		r.Body = http.NoBody
	}
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		if name == "" {
			continue
		}
		if name == "Host" {
			r.Host = value
			continue
		}
		r.Header.Add(name, value)
	}
	copied := r.Clone(context.Background())
	resp, err := g.client.Do(r)
	if err != nil {
		g.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		g.t.Fatal(err)
	}
	if err := contract().check(g.Server, copied, body, resp.StatusCode, resp.Header, data); err != nil {
		g.t.Errorf("%v\n%s", err, data)
	}
	a := &answered{status: resp.StatusCode, header: resp.Header, body: string(data)}
	if strings.HasSuffix(resp.Header.Get("Content-Type"), "json") && len(data) > 0 {
		if err := json.Unmarshal(data, &a.json); err != nil {
			g.t.Errorf("%s: %v", data, err)
		}
	}
	return a
}

// want fails the test unless the answer has the status.
func (a *answered) want(t testing.TB, status int) *answered {
	t.Helper()
	if a.status != status {
		t.Fatalf("status %d, want %d: %s", a.status, status, a.body)
	}
	return a
}

// problem fails the test unless the answer is the problem.
func (a *answered) problem(t testing.TB, status int, code fencing.Code) *answered {
	t.Helper()
	a.want(t, status)
	if a.json["code"] != string(code) || a.header.Get("Content-Type") != "application/problem+json" {
		t.Fatalf("answer %s (%s), want code %s", a.body, a.header.Get("Content-Type"), code)
	}
	return a
}

func (a *answered) text(field string) string { s, _ := a.json[field].(string); return s }

func (a *answered) number(field string) int64 { n, _ := a.json[field].(float64); return int64(n) }

func newID() string { return fencing.NewLeaseID(fencingtest.Epoch.Time()).Reveal() }

func public(id string) string { return id[:26] }

// acquired takes a lock and returns the lease id.
func (g *gateway) acquired(name string) string {
	g.t.Helper()
	return g.do("POST", "/locks/"+name, "").want(g.t, 201).text("lease_id")
}
