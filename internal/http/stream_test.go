package http

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"fencepost/internal/fencing"
)

// openedStream is a stream that a test reads. Each of its events is held against
// the contract.
type openedStream struct {
	t       testing.TB
	resp    *http.Response
	cancel  context.CancelFunc
	sent    time.Time
	events  chan streamEvent // closed at its end
	schemas map[string]*openapi3.Schema

	mu       sync.Mutex
	raw      bytes.Buffer
	comments int
	at       string // the id of where it stands
}

type streamEvent struct {
	name, id, data string
	json           map[string]any
}

func (e *streamEvent) number(field string) int64 { n, _ := e.json[field].(float64); return int64(n) }
func (e *streamEvent) text(field string) string  { s, _ := e.json[field].(string); return s }

// stream opens a stream; its end is checked against the contract, too.
func (g *gateway) stream(method, path, body string, headers ...string) *openedStream {
	g.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, err := http.NewRequestWithContext(ctx, method, g.url+path, strings.NewReader(body))
	if err != nil {
		g.t.Fatal(err)
	}
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		r.Header.Add(name, value)
	}
	s := &openedStream{t: g.t, cancel: cancel, sent: time.Now(), events: make(chan streamEvent, 1000)}
	unbegun := time.AfterFunc(patience, cancel)
	if s.resp, err = g.client.Do(r); err != nil {
		g.t.Fatalf("%s %s is not answered with a stream: %v", method, path, err)
	}
	unbegun.Stop()
	if s.resp.StatusCode != 200 || s.resp.Header.Get("Content-Type") != "text/event-stream" {
		g.t.Fatalf("%d %v", s.resp.StatusCode, s.resp.Header)
	}
	route, _ := contract().route(g.Server, method, r.URL.Path)
	s.schemas = eventSchemas(g.t, route.Operation.Responses.Value("200").Value.Content["text/event-stream"])
	var reading sync.WaitGroup
	reading.Go(s.read)
	g.t.Cleanup(func() {
		cancel()
		reading.Wait()
		s.resp.Body.Close()
		if err := contract().check(g.Server, r, body, s.resp.StatusCode, s.resp.Header, s.raw.Bytes()); err != nil {
			g.t.Error(err)
		}
	})
	return s
}

// eventSchemas returns the schemas that x-events names.
func eventSchemas(t testing.TB, media *openapi3.MediaType) map[string]*openapi3.Schema {
	t.Helper()
	schemas := map[string]*openapi3.Schema{}
	for name, ref := range media.Extensions["x-events"].(map[string]any) {
		path := ref.(map[string]any)["$ref"].(string)
		schema := contract().Components.Schemas[strings.TrimPrefix(path, "#/components/schemas/")]
		if schema == nil {
			t.Fatalf("%s: no %s", name, path)
		}
		schemas[name] = schema.Value
	}
	return schemas
}

func (s *openedStream) read() {
	defer close(s.events)
	var e streamEvent
	lines := bufio.NewScanner(s.resp.Body)
	for lines.Scan() {
		line := lines.Text()
		s.mu.Lock()
		s.raw.WriteString(line + "\n")
		s.mu.Unlock()
		field, value, _ := strings.Cut(line, ": ")
		switch {
		case line == "":
			if e.id != "" {
				s.mu.Lock()
				s.at = e.id
				s.mu.Unlock()
			}
			if e.name != "" {
				s.check(&e)
				s.events <- e
			}
			e = streamEvent{}
		case strings.HasPrefix(line, ":"):
			s.mu.Lock()
			s.comments++
			s.mu.Unlock()
		case field == "event":
			e.name = value
		case field == "id":
			e.id = value
		case field == "data":
			e.data = value
		default:
			s.t.Errorf("line %q", line)
		}
	}
}

func (s *openedStream) check(e *streamEvent) {
	schema := s.schemas[e.name]
	if schema == nil {
		s.t.Errorf("event %s is not in the contract", e.name)
		return
	}
	if err := json.Unmarshal([]byte(e.data), &e.json); err != nil {
		s.t.Errorf("event %s: %v: %s", e.name, err, e.data)
		return
	}
	if err := contract().conforms(schema, e.json); err != nil {
		s.t.Errorf("event %s is not in the contract: %v: %s", e.name, err, e.data)
	}
}

func (s *openedStream) heartbeats() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.comments
}

// next waits for the next event and checks its name.
func (s *openedStream) next(name string) *streamEvent {
	s.t.Helper()
	select {
	case e, open := <-s.events:
		if !open {
			s.t.Fatalf("the stream has ended; want %s", name)
		}
		if e.name != name {
			s.t.Fatalf("event %s %s, want %s", e.name, e.data, name)
		}
		return &e
	case <-time.After(patience):
		s.t.Fatalf("no event %s", name)
		return nil
	}
}

// rest returns what the stream says until its end, for which it waits.
func (s *openedStream) rest() iter.Seq[streamEvent] {
	return func(yield func(streamEvent) bool) {
		s.t.Helper()
		for limit := time.After(patience); ; {
			select {
			case e, open := <-s.events:
				if !open || !yield(e) {
					return
				}
			case <-limit:
				s.t.Fatal("the stream does not end")
			}
		}
	}
}

// ended waits for the end of the stream.
func (s *openedStream) ended() {
	s.t.Helper()
	select {
	case e, open := <-s.events:
		if open {
			s.t.Fatalf("event %s %s, want the end", e.name, e.data)
		}
	case <-time.After(patience):
		s.t.Fatal("the stream does not end")
	}
}

// TestContractExamplesOfStreams: each event of an example is in the contract.
func TestContractExamplesOfStreams(t *testing.T) {
	checked := 0
	for path, item := range contract().Paths.Map() {
		for _, operation := range item.Operations() {
			for _, response := range operation.Responses.Map() {
				media := response.Value.Content["text/event-stream"]
				if media == nil {
					continue
				}
				s := &openedStream{t: t, schemas: eventSchemas(t, media)}
				for block := range strings.SplitSeq(strings.TrimSpace(media.Example.(string)), "\n\n") {
					var e streamEvent
					for line := range strings.Lines(block) {
						field, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
						switch field {
						case "event":
							e.name = value
						case "data":
							e.data = value
						}
					}
					if e.name == "" {
						continue // where the stream stands
					}
					s.check(&e)
					checked++
				}
				if checked == 0 {
					t.Errorf("%s has no example", path)
				}
			}
		}
	}
	if checked < 4 {
		t.Errorf("%d events were checked", checked)
	}
}

func heartbeatEach(d time.Duration) func(*Options) { return func(o *Options) { o.heartbeat = d } }

func (g *gateway) metric(line string) func() bool {
	return func() bool { return strings.Contains(g.do("GET", "/metrics", "").body, line+"\n") }
}

func TestEvents(t *testing.T) {
	t.Parallel()
	g := start(t)
	all := g.stream("GET", "/events", "")
	some := g.stream("GET", "/events?prefix=b/", "")
	g.eventually("the streams are counted", g.metric(`fencepost_http_streams{kind="events"} 2`))
	first := g.do("POST", "/locks/a", `{"owner":"me"}`).want(t, 201)
	second := g.later("POST", "/locks/a", `{"wait_ms":20}`)
	second().want(t, 423)
	g.clock.advance(3 * time.Second)
	g.release("a", first.text("lease_id"))
	other := g.acquired("b/1")

	e := all.next("granted")
	if e.data != fmt.Sprintf(`{"name":"a","lease":%q,"owner":"me","mode":"exclusive","fencing_token":%d,"at":"2026-01-01T00:00:00.000Z","waited_ms":0}`,
		public(first.text("lease_id")), first.number("fencing_token")) || e.id == "" {
		t.Errorf("%s %s", e.id, e.data)
	}
	for _, kind := range []string{"queued", "left"} {
		if e := all.next(kind); e.json["fencing_token"] != nil || e.json["waited_ms"] != nil || e.json["held_ms"] != nil {
			t.Errorf("%s %s", kind, e.data)
		}
	}
	if e := all.next("released"); e.number("held_ms") != 3000 || e.json["waited_ms"] != nil {
		t.Errorf("%s", e.data)
	}
	last := all.next("granted")
	if e := some.next("granted"); e.text("name") != "b/1" || e.id != last.id {
		t.Errorf("%s %s", e.id, e.data)
	}
	all.cancel()
	all.ended()
	g.eventually("the stream is gone", g.metric(`fencepost_http_streams{kind="events"} 1`))

	// Who comes back goes on where it was.
	g.release("b/1", other)
	back := g.stream("GET", "/events", "", "Last-Event-ID: "+e.id)
	for _, want := range []string{"queued", "left", "released", "granted", "released"} {
		back.next(want)
	}
	lost := g.stream("GET", "/events", "", "Last-Event-ID: 999999")
	if e := lost.next("resync"); e.data != "{}" {
		t.Errorf("%s", e.data)
	}
	g.acquired("c")
	lost.next("granted")
	some.next("released")
	g.Drain()
	for _, s := range []*openedStream{some, lost} {
		s.ended()
	}
	g.do("GET", "/events", "").want(t, 503)
	if strings.Contains(g.log.String(), `"level":"WARN"`) {
		t.Errorf("streams end:\n%s", g.log)
	}
}

// TestEventsGoOnWhereTheyStood: a stream that breaks off before it told an event is gone on with
// all the same, and so is one whose last word was a resync.
func TestEventsGoOnWhereTheyStood(t *testing.T) {
	t.Parallel()
	g := start(t)
	stood := func(s *openedStream) (id string) {
		t.Helper()
		g.eventually("it says where it stands", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			id = s.at
			return id != ""
		})
		s.cancel()
		return id
	}
	quiet := stood(g.stream("GET", "/events?prefix=b", ""))
	g.acquired("a")
	g.acquired("b")
	back := g.stream("GET", "/events?prefix=b", "", "Last-Event-ID: "+quiet)
	back.next("granted")
	lost := g.stream("GET", "/events?prefix=b", "", "Last-Event-ID: never")
	resync := lost.next("resync")
	if id := stood(lost); id != resync.id {
		t.Errorf("the resync has the id %q, and it stands at %q", resync.id, id)
	}
	g.acquired("b/2")
	g.stream("GET", "/events?prefix=b", "", "Last-Event-ID: "+resync.id).next("granted")
}

func TestEventsHeartbeat(t *testing.T) {
	t.Parallel()
	g := start(t, heartbeatEach(10*time.Millisecond))
	s := g.stream("GET", "/events", "")
	g.eventually("heartbeats", func() bool { return s.heartbeats() > 3 })
	g.acquired("a")
	s.next("granted")
	if a := g.do("HEAD", "/events", "").want(t, 200); a.header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("%v", a.header)
	}
}

// TestHeartbeatsBesideOthersNames: a stream that tells of nothing has its heartbeats, also
// where there is always something that it may not tell of.
func TestHeartbeatsBesideOthersNames(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGuarded(t)
		ctx, leave := context.WithCancel(t.Context())
		r := httptest.NewRequestWithContext(ctx, "GET", "http://localhost/events", nil)
		name, value, _ := strings.Cut(g.as["ours"], ": ")
		r.Header.Set(name, value)
		w := &countedWriter{ResponseWriter: httptest.NewRecorder()}
		var serving sync.WaitGroup
		serving.Go(func() { g.Handler().ServeHTTP(w, r) })
		defer serving.Wait()
		defer leave()
		synctest.Wait()
		for began := time.Now(); time.Since(began) < 4*heartbeat+heartbeat/2; <-time.After(eventPace / 5) {
			g.takeAndRelease("theirs/a")
		}
		text, _ := w.seen()
		beats := strings.Split(strings.TrimSuffix(text, "\n\n"), "\n\n")
		stood := ""
		for i, beat := range beats {
			id, is := strings.CutPrefix(strings.TrimPrefix(beat, ":\n"), "id: ")
			if !is || id == stood || strings.HasPrefix(beat, ":") != (i > 0) {
				t.Errorf("it says %q after it stood at %q", beat, stood)
			}
			stood = id
		}
		if len(beats) != 5 {
			t.Errorf("it begins and has four heartbeats with %q", text)
		}
	})
}

func TestCapOnStreams(t *testing.T) {
	t.Parallel()
	g := startRunning(t, func(o *Options) { o.MaxStreamsPerClient = 2 })
	one := g.stream("GET", "/events", "")
	two := g.stream("POST", "/locks/a", "", "Accept: text/event-stream")
	two.next("granted")
	for _, r := range [][3]string{{"GET", "/events"}, {"POST", "/locks/b", "Accept: text/event-stream"}} {
		a := g.do(r[0], r[1], "", r[2]).want(t, 429)
		if a.header.Get("Retry-After") != "1" || !strings.Contains(a.text("detail"), "2 streams of this client are open") {
			t.Errorf("%s", a.body)
		}
	}
	if g.lock("b").Held() {
		t.Error("the lock was taken")
	}
	one.cancel()
	g.eventually("there is room", g.metric(`fencepost_http_streams{kind="events"} 0`))
	g.stream("GET", "/events", "").cancel()
}

// TestEventsFail: a defect is 500, as long as nothing was sent.
func TestEventsFail(t *testing.T) {
	t.Parallel()
	g := start(t)
	g.Server.dog = nil
	g.do("GET", "/events", "").want(t, 500)
}

// countedWriter is an answer of which flushes are counted.
type countedWriter struct {
	http.ResponseWriter
	mu      sync.Mutex
	text    strings.Builder
	flushes int
}

func (w *countedWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(b)
}

func (w *countedWriter) Flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flushes++
}

func (w *countedWriter) seen() (text string, flushes int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String(), w.flushes
}

// takeAndRelease makes two events, without a request.
func (g *gateway) takeAndRelease(name fencing.Name) {
	g.t.Helper()
	ctx, lease := context.Background(), fencing.NewLeaseID(g.clock.time())
	if _, err := g.store.Model.Do(ctx, fencing.AcquireRequest{Name: name, Lease: lease, Stamp: fencing.NewStamp(), TTL: time.Minute, Hold: 1}); err != nil {
		g.t.Fatal(err)
	}
	if _, err := g.store.Model.Do(ctx, fencing.ReleaseRequest{Name: name, Lease: lease}); err != nil {
		g.t.Fatal(err)
	}
}

// TestEventsAreToldTogether: many events are few writes, and none is left out.
func TestEventsAreToldTogether(t *testing.T) {
	t.Parallel()
	const pairs = 500
	g := newServer(t)
	ctx, leave := context.WithCancel(t.Context())
	w := &countedWriter{ResponseWriter: httptest.NewRecorder()}
	var serving sync.WaitGroup
	serving.Go(func() {
		g.Handler().ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "http://localhost/events", nil))
	})
	defer serving.Wait()
	defer leave()
	g.eventually("the stream is open", func() bool { _, flushes := w.seen(); return flushes > 0 })

	began := time.Now()
	for i := range pairs {
		g.takeAndRelease(fencing.Name(fmt.Sprintf("of/%d", i)))
	}
	g.eventually("all is told", func() bool {
		text, _ := w.seen()
		return strings.Count(text, "event: ") >= 2*pairs
	})
	text, flushes := w.seen()
	for i := range pairs {
		if n := strings.Count(text, fmt.Sprintf(`{"name":"of/%d",`, i)); n != 2 {
			t.Fatalf("of/%d is told of %d times", i, n)
		}
	}
	if most := int(time.Since(began)/(eventPace/2)) + len(text)/maxTold + 3; flushes > most {
		t.Errorf("%d events are %d writes, want at most %d", 2*pairs, flushes, most)
	}
}
