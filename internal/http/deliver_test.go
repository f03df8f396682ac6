package http

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"

	"fencepost/internal/fencing"
)

// wantTakenBack waits for a take-back and checks that the lock is free.
func (g *gateway) wantTakenBack(name fencing.Name) {
	g.t.Helper()
	select {
	case r := <-g.takenBack:
		if r.Name != name {
			g.t.Errorf("taken back %s, want %s", r.Name, name)
		}
	case <-time.After(60 * time.Second):
		g.t.Fatal("the grant was not taken back")
	}
	out, _ := g.store.Do(context.Background(), fencing.InspectRequest{Name: name})
	if out.Lock.Held() {
		g.t.Errorf("%s is still held", name)
	}
}

func (g *gateway) wantNotTakenBack() {
	g.t.Helper()
	if n := len(g.takenBack); n != 0 {
		g.t.Errorf("%d grants were taken back", n)
	}
}

// TestExpiresInIsConservative: the time the store took to answer is not counted
// twice (P9).
func TestExpiresInIsConservative(t *testing.T) {
	t.Parallel()
	g := start(t)
	g.store.set(func(s *scriptedStore) {
		s.acquire = func(ctx context.Context, r fencing.AcquireRequest) (fencing.Outcome, error) {
			out, err := s.Model.Do(ctx, r)
			g.clock.advance(40*time.Millisecond + time.Microsecond)
			return out, err
		}
	})
	a := g.do("POST", "/locks/a", `{"ttl_ms":1000}`).want(t, 201)
	if a.number("expires_in_ms") != 959 || a.number("renew_in_ms") != 333 {
		t.Errorf("%s", a.body)
	}
	g.wantNotTakenBack()
}

func TestNothingLeftIsNotDelivered(t *testing.T) {
	t.Parallel()
	g := start(t)
	slow := func(ctx context.Context, r fencing.AcquireRequest) (fencing.Outcome, error) {
		out, err := g.store.Model.Do(ctx, r)
		g.clock.advance(100 * time.Millisecond)
		return out, err
	}
	g.store.set(func(s *scriptedStore) { s.acquire = slow })
	a := g.do("POST", "/locks/a", `{"ttl_ms":100}`).problem(t, 503, fencing.CodeUnavailable)
	if a.header.Get("Retry-After") != "1" || a.header.Get("Fencing-Token") != "" || a.header.Get("Location") != "" {
		t.Errorf("%v", a.header)
	}
	g.wantTakenBack("a")

	// A lease that this request did not grant is not its to take back.
	g.store.set(func(s *scriptedStore) { s.acquire = nil })
	id := newID()
	g.do("POST", "/locks/a", `{"ttl_ms":150}`, "Lease-Id: "+id).want(t, 201)
	g.clock.advance(60 * time.Millisecond)
	g.store.set(func(s *scriptedStore) { s.acquire = slow })
	g.do("POST", "/locks/a", `{"ttl_ms":100}`, "Lease-Id: "+id).problem(t, 503, fencing.CodeUnavailable)
	g.wantNotTakenBack()

	// Nor is a renewal that says nothing any more a "lost".
	g.do("PUT", "/locks/a", `{"ttl_ms":100}`, "Lease-Id: "+id).problem(t, 412, fencing.CodeLeaseLost)
	g.store.set(func(s *scriptedStore) { s.acquire = nil })
	g.do("POST", "/locks/b", "", "Lease-Id: "+id).want(t, 201)
	g.store.set(func(s *scriptedStore) {
		s.afterRenew = func(*fencing.Outcome) { g.clock.advance(100 * time.Millisecond) }
	})
	g.do("PUT", "/locks/b", `{"ttl_ms":100}`, "Lease-Id: "+id).problem(t, 503, fencing.CodeUnavailable)
	g.wantNotTakenBack()

	// Nor is it told of as living on, beside one that is lost.
	both := newID()
	g.store.set(func(s *scriptedStore) { s.afterRenew = nil })
	g.do("POST", "/locks", `{"names":["e","f"]}`, "Lease-Id: "+both).want(t, 201)
	g.do("DELETE", "/locks?name=e", "", "Lease-Id: "+both).want(t, 204)
	g.store.set(func(s *scriptedStore) {
		s.afterRenew = func(*fencing.Outcome) { g.clock.advance(100 * time.Millisecond) }
	})
	g.do("PUT", "/locks", `{"names":["e","f"],"ttl_ms":100}`, "Lease-Id: "+both).problem(t, 503, fencing.CodeUnavailable)
	g.wantNotTakenBack()
}

// TestPanicAfterTheGrant: a defect leaves no phantom holder either.
func TestPanicAfterTheGrant(t *testing.T) {
	t.Parallel()
	g := start(t)
	g.store.set(func(s *scriptedStore) {
		s.acquire = func(ctx context.Context, r fencing.AcquireRequest) (fencing.Outcome, error) {
			s.Model.Do(ctx, r)
			panic("a defect")
		}
	})
	g.do("POST", "/locks/a", "").want(t, 500)
	g.wantTakenBack("a")
}

// TestUnknownOutcome: the gateway undoes what only it could ask for again, and
// leaves a client's own lease id to the client's retry (P7, P8).
func TestUnknownOutcome(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		err       error
		code      fencing.Code
		takenBack bool
	}{
		{"unavailable", fencing.Unavailable(errors.New("reply lost")), fencing.CodeUnavailable, true},
		{"skew", &fencing.Error{Code: fencing.CodeClockSkew, Detail: "late"}, fencing.CodeClockSkew, true},
		{"unexpected", errors.New("a defect"), fencing.CodeUnavailable, true},
		{"bare code", &fencing.Error{Code: "new_code"}, fencing.CodeUnavailable, false},
		{"quarantined", &fencing.Error{Code: fencing.CodeQuarantined}, fencing.CodeQuarantined, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := start(t)
			g.store.set(func(s *scriptedStore) {
				s.acquire = func(ctx context.Context, r fencing.AcquireRequest) (fencing.Outcome, error) {
					s.Model.Do(ctx, r) // granted, and the answer lost
					return fencing.Outcome{}, c.err
				}
			})
			if a := g.do("POST", "/locks/a", "").problem(t, 503, c.code); a.header.Get("Retry-After") != "1" {
				t.Errorf("Retry-After %q", a.header.Get("Retry-After"))
			}
			if c.takenBack {
				g.wantTakenBack("a")
				g.do("POST", "/locks/w", `{"wait_ms":1000}`).problem(t, 503, c.code)
				g.wantTakenBack("w") // once
			}
			id := newID()
			g.do("POST", "/locks/b", "", "Lease-Id: "+id).problem(t, 503, c.code)
			g.wantNotTakenBack()
			g.store.set(func(s *scriptedStore) { s.acquire = nil })
			g.do("POST", "/locks/b", "", "Lease-Id: "+id).want(t, 200)
			if strings.Contains(g.log.String(), "reply lost") != (c.name == "unavailable") {
				t.Error("the cause belongs in the log")
			}
		})
	}
}

// TestFlushFails: an answer that the network refused was not delivered.
func TestFlushFails(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		writer func() *brokenWriter
	}{
		{name: "flush", writer: func() *brokenWriter { return &brokenWriter{flush: errors.New("reset")} }},
		{name: "write", writer: func() *brokenWriter { return &brokenWriter{write: errors.New("reset")} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newServer(t)
			w := c.writer()
			w.ResponseRecorder = httptest.NewRecorder()
			r := httptest.NewRequest("POST", "http://localhost/locks/a", nil)
			r.Header.Set("Lease-Id", newID())
			g.Handler().ServeHTTP(w, r)
			g.wantTakenBack("a")
			if !w.deadline.After(time.Now()) {
				t.Error("the write had no deadline")
			}

			// An undelivered retry made no grant that would have to be undone.
			good := httptest.NewRecorder()
			g.Handler().ServeHTTP(good, r)
			if good.Code != 201 {
				t.Fatal(good.Code)
			}
			w = c.writer()
			w.ResponseRecorder = httptest.NewRecorder()
			g.Handler().ServeHTTP(w, r)
			g.wantNotTakenBack()
		})
	}
}

type brokenWriter struct {
	*httptest.ResponseRecorder
	write, flush error
	deadline     time.Time
}

func (w *brokenWriter) Write(b []byte) (int, error) {
	if w.write != nil {
		return 0, w.write
	}
	return w.ResponseRecorder.Write(b)
}

func (w *brokenWriter) FlushError() error { return w.flush }

func (w *brokenWriter) SetWriteDeadline(t time.Time) error {
	w.deadline = t
	return nil
}

// TestExpiredBeforeTheReply: a client that brought no lease id can't have lost a
// lease, whatever the store found when it asked again after a lost reply.
func TestExpiredBeforeTheReply(t *testing.T) {
	t.Parallel()
	g := start(t)
	g.store.set(func(s *scriptedStore) {
		s.acquire = func(ctx context.Context, r fencing.AcquireRequest) (fencing.Outcome, error) {
			if out, err := s.Model.Do(ctx, r); err != nil {
				return out, err
			}
			g.clock.advance(r.TTL)
			return s.Model.Do(ctx, r)
		}
	})
	a := g.do("POST", "/locks/a", `{"ttl_ms":100}`).problem(t, 503, fencing.CodeUnavailable)
	if a.header.Get("Retry-After") != "1" {
		t.Errorf("%v", a.header)
	}
	g.wantNotTakenBack() // it has ended
	g.do("POST", "/locks/a", `{"ttl_ms":100}`, "Lease-Id: "+newID()).problem(t, 412, fencing.CodeLeaseLost)
	if !strings.Contains(g.log.String(), "lease_lost (expired)") {
		t.Error("the cause belongs in the log")
	}
	g.store.set(func(s *scriptedStore) { s.acquire = nil })
	g.do("POST", "/locks/a", "").want(t, 201)
}

func TestDrain(t *testing.T) {
	t.Parallel()
	g := start(t)
	id := g.acquired("a")
	g.Drain()
	g.Drain()
	before := g.store.Snapshot()
	a := g.do("POST", "/locks/b", "").problem(t, 503, fencing.CodeDraining)
	if a.header.Get("Retry-After") != "1" {
		t.Errorf("%v", a.header)
	}
	after := g.store.Snapshot()
	after.Gateways = before.Gateways // a heartbeat may have been made
	if !reflect.DeepEqual(before, after) {
		t.Error("the store has changed")
	}
	g.do("GET", "/readyz", "").problem(t, 503, fencing.CodeDraining)
	g.do("GET", "/livez", "").want(t, 200)
	g.do("PUT", "/locks/a", "", "Lease-Id: "+id).want(t, 200)
	g.do("DELETE", "/locks/a", "", "Lease-Id: "+id).want(t, 204)
	g.do("GET", "/locks", "").want(t, 200)
	g.wantNotTakenBack()
}

// withoutStore are the routes that ask the store for nothing before they answer.
var withoutStore = []string{"/livez", "/metrics", "/events", "/openapi.yaml", "/", "/assets/*"}

// TestStoreFailures: what can't be asked is 503 and never a "no" (P8); a defect
// is 500 without a code.
func TestStoreFailures(t *testing.T) {
	t.Parallel()
	g := start(t)
	id := g.acquired("a")
	requests := []struct{ method, path, header, body string }{
		{"POST", "/locks/a", "", ""}, {"PUT", "/locks/a", "Lease-Id: " + id, ""}, {"DELETE", "/locks/a", "Lease-Id: " + id, ""},
		{"DELETE", "/locks/a", `If-Match: "1"`, ""}, {"DELETE", "/locks/a?notice_ms=1000", `If-Match: "1"`, ""},
		{"DELETE", "/queues/a?lease=" + public(id), "", ""}, {"GET", "/locks/a", "", ""}, {"GET", "/locks", "", ""},
		{"POST", "/locks/a", "", `{"wait_ms":1000}`}, {"POST", "/locks/a", attach, `{"wait_ms":1000}`}, {"POST", "/locks/a", attach, ""},
		{"POST", "/locks", "", `{"names":["a","b"]}`}, {"POST", "/locks", "", `{"names":["a","b"],"wait_ms":1000}`},
		{"PUT", "/locks", "Lease-Id: " + id, `{"names":["a","b"]}`}, {"DELETE", "/locks?name=a&name=b", "Lease-Id: " + id, ""},
		{"GET", "/fences/a?token=1", "", ""}, {"POST", "/fences/a", "", `{"fencing_token":1}`},
		{"GET", "/authorize/a", "Fencing-Token: 1", ""}, {"POST", "/authorize/a", "Fencing-Token: 1", ""}, {"PUT", "/authorize/a", "Fencing-Token: 1", ""},
		{"PATCH", "/authorize/a", "Fencing-Token: 1", ""}, {"DELETE", "/authorize/a", "Fencing-Token: 1", ""},
		{"GET", "/history/a", "", ""}, {"GET", "/readyz", "", ""}, {"GET", "/readyz?verbose", "", ""},
	}
	for of := range g.operations {
		asked := slices.ContainsFunc(requests, func(r struct{ method, path, header, body string }) bool {
			path, _, _ := strings.Cut(r.path, "?")
			return operationKey{r.method, g.mux.Find(chi.NewRouteContext(), r.method, path)} == of
		})
		if !asked && of.method != "HEAD" && !slices.Contains(withoutStore, of.pattern) {
			t.Errorf("%s %s is not asked here: what does it answer when the store can't be reached?", of.method, of.pattern)
		}
	}
	before := unbeaten(g)
	g.store.set(func(s *scriptedStore) {
		s.before = func(string) error { return fencing.Unavailable(errors.New("dial: refused by 10.1.2.3")) }
	})
	for _, r := range requests {
		a := g.do(r.method, r.path, r.body, r.header).problem(t, 503, fencing.CodeUnavailable)
		if a.header.Get("Retry-After") != "1" || strings.Contains(a.body, "10.1.2.3") {
			t.Errorf("%v %s", a.header, a.body)
		}
	}
	if !strings.Contains(g.log.String(), "10.1.2.3") {
		t.Error("the cause belongs in the log")
	}
	g.do("GET", "/livez", "").want(t, 200)

	g.clock.advance(probeInterval)
	g.store.set(func(s *scriptedStore) { s.before = func(string) error { panic("a defect of 10.9.8.7") } })
	for _, r := range requests {
		a := g.do(r.method, r.path, r.body, r.header).want(t, 500)
		if a.text("type") != "about:blank" || a.json["code"] != nil || a.header.Get("Content-Type") != "application/problem+json" || strings.Contains(a.body, "10.9") {
			t.Errorf("%v %s", a.header, a.body)
		}
		request := strings.TrimPrefix(a.text("instance"), "urn:fencepost:request:")
		if !strings.Contains(g.log.String(), `"panic while serving a request","request_id":"`+request+`"`) {
			t.Errorf("the log does not know request %s", request)
		}
	}
	after := g.store.Snapshot()
	after.Gateways = before.Gateways // a heartbeat may have been made
	if !reflect.DeepEqual(before, after) {
		t.Error("the store has changed")
	}
	g.store.set(func(s *scriptedStore) { s.before = nil })
	g.do("GET", "/readyz", "").want(t, 200)
}

// TestPanicAfterTheHeader: half an answer must not look like a whole one.
func TestPanicAfterTheHeader(t *testing.T) {
	t.Parallel()
	g := newServer(t)
	defer func() {
		if p := recover(); p != http.ErrAbortHandler {
			t.Errorf("recovered %v", p)
		}
	}()
	g.operations[operationKey{"GET", "/"}].serve = func(c *call) {
		c.Write([]byte("half"))
		panic("a defect")
	}
	g.Handler().ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "http://localhost/", nil))
	t.Error("the connection was not broken off")
}

// TestRefusedWithAnAttemptUnanswered: what an attempt may yet get that was on its way
// when another was refused is nobody's, with the client's own lease id too (P6).
func TestRefusedWithAnAttemptUnanswered(t *testing.T) {
	t.Parallel()
	for _, header := range []string{"", "Lease-Id: " + newID()} {
		for _, body := range []string{"", `{"wait_ms":1000}`} {
			g := start(t)
			g.store.set(func(s *scriptedStore) {
				s.acquire = func(ctx context.Context, r fencing.AcquireRequest) (fencing.Outcome, error) {
					s.Model.Do(ctx, r) // when the other had been refused
					return fencing.Outcome{}, &fencing.Error{Code: fencing.CodeLocked, Lock: &fencing.Lock{Name: r.Name}, Unanswered: true}
				}
			})
			g.do("POST", "/locks/a", body, header).problem(t, 423, fencing.CodeLocked)
			g.wantTakenBack("a")
		}
	}
}

// Of a lease that is attached again, and of which nothing is left when the store answers, nothing is known: it stays for the
// client, which asks again.
func TestNothingLeftOfAReattach(t *testing.T) {
	t.Parallel()
	g := start(t)
	id := newID()
	granted := g.do("POST", "/locks/a", `{"ttl_ms":1000}`, "Lease-Id: "+id).want(t, 201)
	g.store.set(func(s *scriptedStore) {
		s.acquire = func(ctx context.Context, r fencing.AcquireRequest) (fencing.Outcome, error) {
			g.clock.advance(500 * time.Millisecond)
			return g.store.Model.Do(ctx, r)
		}
	})
	g.do("POST", "/locks/a", `{"ttl_ms":1000}`, "Lease-Id: "+id, "Accept: text/event-stream").problem(t, 503, fencing.CodeUnavailable)
	g.store.set(func(s *scriptedStore) { s.acquire = nil })
	again := g.do("POST", "/locks/a", `{"ttl_ms":1000}`, "Lease-Id: "+id).want(t, 200)
	if again.number("fencing_token") != granted.number("fencing_token") {
		t.Errorf("%s, then %s", granted.body, again.body)
	}
}
