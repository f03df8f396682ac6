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
	"fencepost/internal/watchdog"
)

// clock is the time of a test's store and gateway. It stands still between two
// calls of advance, unless it runs.
type clock struct {
	base time.Time // the gateway's time at fencingtest.Epoch
	runs bool

	mu  sync.Mutex
	now fencing.Instant
}

func (c *clock) instant() fencing.Instant {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.runs {
		return c.now.Add(time.Since(c.base))
	}
	return c.now
}

// time is the gateway's time. It is not far from the real one, which the watchdog
// counts in.
func (c *clock) time() time.Time { return c.base.Add(c.instant().Sub(fencingtest.Epoch)) }

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// scriptedStore is a model whose methods a test can replace.
type scriptedStore struct {
	*fencingtest.Model
	clock     *clock
	takenBack chan fencing.TakeBackRequest // tells of each, as long as there is room
	wallTime  func(fencing.Instant) time.Time

	mu      sync.Mutex
	acquire func(context.Context, fencing.AcquireRequest) (fencing.Outcome, error)
	before  func(verb string) error // called before every method; an error is its result

	beforeName func(verb string, name fencing.Name) error // the same, of those about one name

	afterRenew func(*fencing.Outcome)
	onGrant    func() // before a waiter hears of its grant
}

func (s *scriptedStore) set(change func(*scriptedStore)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

func (s *scriptedStore) hook(verb string, names ...fencing.Name) error {
	s.mu.Lock()
	before, beforeName := s.before, s.beforeName
	s.mu.Unlock()
	for _, name := range names {
		if beforeName != nil {
			return beforeName(verb, name)
		}
	}
	if before == nil {
		return nil
	}
	return before(verb)
}

// Capabilities says that the store loses nothing: by the clock that stands, every answer
// would be an old one after a while.
func (s *scriptedStore) Capabilities() fencing.Capabilities {
	can := s.Model.Capabilities()
	can.LosesMessages, can.LosesGrants, can.WallTime = false, false, s.wallTime
	return can
}

func (s *scriptedStore) Do(ctx context.Context, op fencing.Op) (fencing.Outcome, error) {
	s.mu.Lock()
	acquire, after := s.acquire, s.afterRenew
	s.mu.Unlock()
	switch op.(type) {
	case fencing.ConfirmRequest, fencing.TakeBackRequest:
	default:
		if err := s.hook(fencing.Verb(op), op.LockName()); err != nil {
			return fencing.Outcome{}, err
		}
	}
	asked := s.clock.time()
	var out fencing.Outcome
	var err error
	if r, acquires := op.(fencing.AcquireRequest); acquires && acquire != nil {
		out, err = acquire(ctx, r)
	} else {
		out, err = s.Model.Do(ctx, op)
	}
	out.Asked = asked
	switch r := op.(type) {
	case fencing.RenewRequest:
		if after != nil {
			after(&out)
		}
	case fencing.TakeBackRequest:
		select {
		case s.takenBack <- r:
		default:
		}
	}
	return out, err
}

// Listen has the listener hear of times on the gateway's clock.
func (s *scriptedStore) Listen(l fencing.Listener) { s.Model.Listen(&scriptedListener{l, s}) }

type scriptedListener struct {
	fencing.Listener
	store *scriptedStore
}

func (l *scriptedListener) Granted(g fencing.Grant, now fencing.Instant, _ time.Time) {
	asked := l.store.clock.time()
	l.store.mu.Lock()
	onGrant := l.store.onGrant
	l.store.mu.Unlock()
	if onGrant != nil {
		onGrant()
	}
	l.Listener.Granted(g, now, asked)
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
	dog       *watchdog.Watchdog
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
	"index.html": {Data: []byte("<!doctype html><title>locks</title>" + strings.Repeat("<p>", 99))},
	"style.css":  {Data: []byte(strings.Repeat(":root {}", 99))},
	"icon.svg":   {Data: []byte("<svg/>")},
	"js/main.js": {Data: []byte(strings.Repeat("export {};", 99))},
	"notes.txt":  {Data: []byte("not for the world")},
}

// newServer makes a Server on a model, without a port.
func newServer(t testing.TB, options ...func(*Options)) *gateway {
	g := &gateway{t: t, clock: &clock{base: time.Now(), now: fencingtest.Epoch}, takenBack: make(chan fencing.TakeBackRequest, 100), log: &lockedBuffer{}}
	g.store = &scriptedStore{Model: fencingtest.NewModel(g.clock.instant), clock: g.clock, takenBack: g.takenBack}
	g.dog = watchdog.New(g.store, watchdog.Options{})
	t.Cleanup(g.dog.Stop)
	registry := prometheus.NewRegistry()
	o := Options{
		Watchdog: g.dog, Bounds: fencing.DefaultBounds(), Page: testPage, StoreKind: "model", Version: "test",
		Gatherer: registry, Registerer: registry, now: g.clock.time,
		Logger: slog.New(slog.NewJSONHandler(g.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		takeBack: func(r fencing.TakeBackRequest) { // at once, so that tests can see that there was none
			if _, err := g.store.Do(context.Background(), r); err != nil {
				t.Errorf("take back: %v", err)
			}
		},
	}
	for _, option := range options {
		option(&o)
	}
	g.Server = New(o)
	return g
}

// startRunning makes a gateway that listens, with a clock that runs: for what the
// watchdog does by real time.
func startRunning(t testing.TB, options ...func(*Options)) *gateway {
	g := newServer(t, options...)
	g.clock.runs = true
	g.listen(func(*http.Server) {})
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
	body   string // without the newline that ends it
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
		line, ended := strings.CutSuffix(a.body, "\n")
		if a.body = line; !ended || strings.Contains(line, "\n") { // a terminal's next prompt stands on a line of its own
			g.t.Errorf("%s %s: the answer is not one line with its end: %.100q", method, path, data)
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
