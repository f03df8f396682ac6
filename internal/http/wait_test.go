package http

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// patience is how long a test waits for what should happen at once.
const patience = 60 * time.Second

// eventually waits until a condition holds.
func (g *gateway) eventually(what string, holds func() bool) {
	g.t.Helper()
	pause := time.Millisecond
	for deadline := time.Now().Add(patience); !holds(); pause = min(2*pause, 20*time.Millisecond) {
		if time.Now().After(deadline) {
			g.t.Fatalf("%s: not within %v", what, patience)
		}
		<-time.After(pause)
	}
}

func (g *gateway) lock(name fencing.Name) *fencing.Lock {
	out, err := g.store.Model.Do(context.Background(), fencing.InspectRequest{Name: name})
	if err != nil {
		g.t.Error(err)
		return &fencing.Lock{}
	}
	return out.Lock
}

// waiting waits until so many wait on a name.
func (g *gateway) waiting(name fencing.Name, n int) {
	g.t.Helper()
	g.eventually(fmt.Sprintf("%d wait on %s", n, name), func() bool { return g.lock(name).Waiting == n })
}

// later sends a request that is not answered at once. What it returns waits for
// the answer.
func (g *gateway) later(method, path, body string, headers ...string) func() *answered {
	answers := make(chan *answered, 1)
	go func() { answers <- g.do(method, path, body, headers...) }()
	return func() *answered {
		g.t.Helper()
		select {
		case a := <-answers:
			return a
		case <-time.After(patience):
			g.t.Fatalf("%s %s is not answered", method, path)
			return nil
		}
	}
}

func (g *gateway) release(name, id string) {
	g.t.Helper()
	g.do("DELETE", "/locks/"+name, "", "Lease-Id: "+id).want(g.t, 204)
}

// TestWaitsItsTurn: a request that waits is granted when its turn comes, and is
// told what its lease has left from then on (P9).
func TestWaitsItsTurn(t *testing.T) {
	t.Parallel()
	g := start(t)
	first := g.acquired("a")
	second := g.later("POST", "/locks/a", `{"wait_ms":60000,"ttl_ms":20000}`)
	g.waiting("a", 1)
	third := g.later("POST", "/locks/a", `{"wait_ms":60000,"owner":"third"}`, "Lease-Id: "+newID())
	g.waiting("a", 2)
	a := g.do("POST", "/locks/a", "").problem(t, 423, fencing.CodeLocked)
	if a.number("waiting") != 2 || a.json["position"] != nil {
		t.Errorf("%s", a.body)
	}
	g.clock.advance(4200*time.Millisecond + 700*time.Microsecond)
	g.release("a", first)
	got := second().want(t, 201)
	if got.number("waited_ms") != 4200 || got.number("expires_in_ms") != 20000 || got.number("renew_in_ms") != 6666 ||
		got.header.Get("Location") != "/locks/a" || got.header.Get("Fencing-Token") == "" {
		t.Errorf("%s %v", got.body, got.header)
	}
	g.release("a", got.text("lease_id"))
	if got := third().want(t, 201); got.text("owner") != "third" {
		t.Errorf("%s", got.body)
	}
	g.waitForLog(`"code":"ok","duration_ms":4200.7,"waited_ms":4200,"lease":`)
	if body := g.do("GET", "/metrics", "").body; !strings.Contains(body, `fencepost_http_request_duration_seconds_bucket{method="POST",route="/locks/{name}",le="0.00025"} 4`) {
		t.Error("the time in the queue counts as time to answer")
	}
	g.wantNotTakenBack()
}

// TestGrantCrossesTheJoining: the message of the grant may be there before the store's
// answer that there is a wait (P5).
func TestGrantCrossesTheJoining(t *testing.T) {
	t.Parallel()
	g := start(t)
	first := g.acquired("a")
	g.store.set(func(s *scriptedStore) {
		s.acquire = func(ctx context.Context, r fencing.AcquireRequest) (fencing.Outcome, error) {
			out, err := s.Model.Do(ctx, r)
			lease, _ := fencing.ParseLeaseID(first)
			if _, err := s.Model.Do(ctx, fencing.ReleaseRequest{Name: r.Name, Lease: lease}); err != nil {
				t.Error(err)
			}
			return out, err
		}
	})
	g.later("POST", "/locks/a", `{"wait_ms":60000}`)().want(t, 201)
	g.wantNotTakenBack()
}

// TestExpiresInCountsFromTheGrant: a grant that took long to arrive has less left.
func TestExpiresInCountsFromTheGrant(t *testing.T) {
	t.Parallel()
	g := start(t)
	first := g.acquired("a")
	second := g.later("POST", "/locks/a", `{"wait_ms":60000,"ttl_ms":600000}`)
	g.waiting("a", 1)
	g.store.set(func(s *scriptedStore) {
		s.onGrant = func() { g.clock.advance(250*time.Millisecond + time.Microsecond) }
	})
	g.clock.advance(100 * time.Millisecond)
	g.release("a", first)
	if a := second().want(t, 201); a.number("expires_in_ms") != 599749 || a.number("waited_ms") != 350 {
		t.Errorf("%s", a.body)
	}
	g.wantNotTakenBack()
}

func TestWaitRunsOut(t *testing.T) {
	t.Parallel()
	g := start(t)
	id := newID()
	g.do("POST", "/locks/a", `{"ttl_ms":21500}`, "Lease-Id: "+id).want(t, 201)
	a := g.do("POST", "/locks/a", `{"wait_ms":20}`).problem(t, 423, fencing.CodeWaitTimeout)
	if a.text("name") != "a" || len(a.json["holders"].([]any)) != 1 || a.number("position") != 1 || a.json["waiting"] == nil ||
		a.number("retry_after_ms") != 10000 || a.header.Get("Retry-After") != "10" {
		t.Errorf("%s %v", a.body, a.header)
	}
	// With a lease id of its own the place is kept, and it is told to come back
	// before that is over.
	mine := "Lease-Id: " + newID()
	a = g.do("POST", "/locks/a", `{"wait_ms":20}`, mine).problem(t, 423, fencing.CodeWaitTimeout)
	if a.number("position") != 1 || a.number("retry_after_ms") != 5000 || a.header.Get("Retry-After") != "5" {
		t.Errorf("%s %v", a.body, a.header)
	}
	other := g.later("POST", "/locks/a", `{"wait_ms":60000}`)
	g.waiting("a", 1)
	a = g.do("POST", "/locks/a", "", mine).problem(t, 423, fencing.CodeLocked) // a look, without going on to wait
	if a.number("position") != 1 || a.number("retry_after_ms") != 5000 {
		t.Errorf("%s", a.body)
	}
	back := g.later("POST", "/locks/a", `{"wait_ms":60000}`, mine)
	g.waiting("a", 2)
	g.release("a", id)
	got := back().want(t, 201)
	g.release("a", got.text("lease_id"))
	g.release("a", other().want(t, 201).text("lease_id"))
	for line := range strings.Lines(g.log.String()) {
		if strings.Contains(line, `"code":"wait_timeout"`) && !(strings.Contains(line, `"level":"DEBUG"`) && strings.Contains(line, `"waited_ms":`)) {
			t.Errorf("%s", line)
		}
	}
	if body := g.do("GET", "/metrics", "").body; !strings.Contains(body, `fencepost_acquire_outcomes_total{outcome="wait_timeout"} 2`+"\n") {
		t.Error("no wait_timeout in the metrics")
	}
	g.wantNotTakenBack()
}

func TestReplaced(t *testing.T) {
	t.Parallel()
	g := start(t)
	first := g.acquired("a")
	id := "Lease-Id: " + newID()
	older := g.later("POST", "/locks/a", `{"wait_ms":60000}`, id)
	g.waiting("a", 1)
	newer := g.later("POST", "/locks/a", `{"wait_ms":60000}`, id)
	older().problem(t, 409, fencing.CodeReplaced)
	g.waiting("a", 1)
	g.release("a", first)
	newer().want(t, 201)
	g.wantNotTakenBack()
}

func TestCapsOnWaiters(t *testing.T) {
	t.Parallel()
	t.Run("name", func(t *testing.T) {
		g := start(t, func(o *Options) { o.Bounds.MaxWaiters = 1 })
		id := g.acquired("a")
		one := g.later("POST", "/locks/a", `{"wait_ms":60000}`)
		g.waiting("a", 1)
		a := g.do("POST", "/locks/a", `{"wait_ms":60000}`).problem(t, 429, fencing.CodeTooManyRequests)
		if a.header.Get("Retry-After") != "10" || a.number("waiting") != 1 || a.text("name") != "a" {
			t.Errorf("%s %v", a.body, a.header)
		}
		g.release("a", id)
		one().want(t, 201)
	})
	t.Run("client", func(t *testing.T) {
		g := start(t, func(o *Options) { o.MaxWaitersPerClient = 2 })
		held := map[string]string{"a": g.acquired("a"), "b": g.acquired("b")}
		one := g.later("POST", "/locks/a", `{"wait_ms":60000}`)
		two := g.later("POST", "/locks", `{"names":["b","c"],"wait_ms":60000}`)
		g.waiting("a", 1)
		g.waiting("b", 1)
		g.do("POST", "/locks/d", `{"wait_ms":1}`).want(t, 201) // it need not wait
		for _, headers := range []string{"", "Accept: text/event-stream"} {
			a := g.do("POST", "/locks/d", `{"wait_ms":1}`, headers).problem(t, 429, fencing.CodeTooManyRequests)
			if a.header.Get("Retry-After") != "1" || !strings.Contains(a.text("detail"), "2 requests of this client wait") {
				t.Errorf("%s %v", a.body, a.header)
			}
		}
		g.do("POST", "/locks", `{"names":["d"],"wait_ms":1}`).problem(t, 429, fencing.CodeTooManyRequests)
		g.do("POST", "/locks/d", "").problem(t, 423, fencing.CodeLocked) // one that will not wait is none
		for name, id := range held {
			g.release(name, id)
		}
		one().want(t, 201)
		two().want(t, 201)
		for range 3 { // who has stopped to wait counts no more
			g.do("POST", "/locks/d", `{"wait_ms":1}`).problem(t, 423, fencing.CodeWaitTimeout)
		}
		g.eventually("nobody is remembered", func() bool {
			g.clients.mu.Lock()
			defer g.clients.mu.Unlock()
			return len(g.clients.has) == 0
		})
		if body := g.do("GET", "/metrics", "").body; !strings.Contains(body, `fencepost_acquire_outcomes_total{outcome="too_many_requests"} 3`+"\n") {
			t.Error("no too_many_requests in the metrics")
		}
	})
}

func TestDrainAnswersWhoWaits(t *testing.T) {
	t.Parallel()
	g := start(t)
	g.acquired("a")
	one := g.later("POST", "/locks/a", `{"wait_ms":60000}`)
	two := g.later("POST", "/locks", `{"names":["a"],"wait_ms":60000}`)
	g.waiting("a", 2)
	g.Drain()
	for _, answer := range []func() *answered{one, two} {
		if a := answer().problem(t, 503, fencing.CodeDraining); a.header.Get("Retry-After") != "1" {
			t.Errorf("%v", a.header)
		}
	}
	g.waiting("a", 0)
	g.do("POST", "/locks", `{"names":["b"]}`).problem(t, 503, fencing.CodeDraining)
	if strings.Contains(g.log.String(), `"level":"WARN"`) {
		t.Error("shutting down is no fault")
	}
}

// TestWaitOutlivesTheReadTimeout: the time to read a request does not bound how
// long it waits.
func TestWaitOutlivesTheReadTimeout(t *testing.T) {
	t.Parallel()
	const readTimeout = 2 * time.Second // what is sent has to be read in it
	g := newServer(t)
	g.clock.runs = true
	g.listen(func(s *http.Server) { s.ReadTimeout = readTimeout })
	for name, encoding := range map[string]string{"length": "Content-Length: 17\r\n\r\n{\"wait_ms\":60000}", "chunked": "Transfer-Encoding: chunked\r\n\r\n11\r\n{\"wait_ms\":60000}\r\n0\r\n\r\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id := g.acquired(name)
			conn := g.dial()
			began := time.Now()
			send(t, conn, "POST /locks/"+name+" HTTP/1.1\r\nHost: localhost\r\n"+encoding)
			g.waiting(fencing.Name(name), 1)
			g.eventually("the time to read is over", func() bool { return time.Since(began) > 3*readTimeout/2 })
			if n := g.lock(fencing.Name(name)).Waiting; n != 1 {
				t.Fatalf("%d wait", n)
			}
			g.release(name, id)
			if resp, body := receive(t, conn, "POST"); resp.StatusCode != 201 {
				t.Fatalf("%d %s", resp.StatusCode, body)
			}
		})
	}
}

// field returns a text of a JSON object.
func field(body, name string) string {
	_, rest, _ := strings.Cut(body, `"`+name+`":"`)
	value, _, _ := strings.Cut(rest, `"`)
	return value
}

// TestLeavesWhileItWaits: in whatever way a client leaves, it waits no longer.
// Only a lease id of its own keeps its place, and that is not live.
func TestLeavesWhileItWaits(t *testing.T) {
	t.Parallel()
	const next = "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
	for how, leave := range map[string]func(*net.TCPConn){
		"closes":      func(c *net.TCPConn) { c.Close() },
		"resets":      func(c *net.TCPConn) { c.SetLinger(0); c.Close() },
		"half-closes": func(c *net.TCPConn) { c.CloseWrite() },
		"closes behind a next request": func(c *net.TCPConn) {
			c.Write([]byte(next))
			c.Close()
		},
		"half-closes behind a next request": func(c *net.TCPConn) {
			c.Write([]byte(next))
			c.CloseWrite()
		},
	} {
		for _, path := range []string{"/locks/a", "/locks"} {
			for _, own := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s %s own=%t", how, path, own), func(t *testing.T) {
					t.Parallel()
					g := startRunning(t)
					held := g.acquired("a")
					body, header := `{"wait_ms":60000}`, ""
					if path == "/locks" {
						body = `{"wait_ms":60000,"names":["a"]}`
					}
					if own {
						header = "Lease-Id: " + newID() + "\r\n"
					}
					conn := g.dial()
					send(t, conn, fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %d\r\n\r\n%s", path, header, len(body), body))
					g.waiting("a", 1)
					leave(conn)
					g.waiting("a", 0)
					if how == "half-closes" {
						if resp, body := receive(t, conn, "POST"); resp.StatusCode != 503 || strings.Contains(body, "lease_id") {
							t.Errorf("%d %s", resp.StatusCode, body)
						}
					}
					g.waitForLog(`"level":"DEBUG","msg":"request","request_id":`)
					g.waitForLog(`"code":"left"`)
					if strings.Contains(g.log.String(), `"level":"WARN"`) {
						t.Errorf("a client may leave:\n%s", g.log)
					}
					if rests := len(g.store.Snapshot().Records["a"].Queue.Resting()); own != (rests == 1) {
						t.Errorf("%d places rest", rests)
					}
					g.release("a", held)
					if g.lock("a").Held() {
						t.Error("who has left was granted the lock")
					}
				})
			}
		}
	}
}

// TestGrantCrossesTheLeaving: a grant that comes when the client has just left is
// taken back, also if net/http does not know of the leaving yet.
func TestGrantCrossesTheLeaving(t *testing.T) {
	t.Parallel()
	for how, leave := range map[string]func(*net.TCPConn){
		"closes":      func(c *net.TCPConn) { c.Close() },
		"resets":      func(c *net.TCPConn) { c.SetLinger(0); c.Close() },
		"half-closes": func(c *net.TCPConn) { c.CloseWrite() },
	} {
		for _, own := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s own=%t", how, own), func(t *testing.T) {
				g := startRunning(t)
				held := g.acquired("a")
				header := ""
				if own {
					header = "Lease-Id: " + newID() + "\r\n"
				}
				conn := g.dial()
				send(t, conn, "POST /locks/a HTTP/1.1\r\nHost: localhost\r\n"+header+"Content-Length: 17\r\n\r\n{\"wait_ms\":60000}")
				g.waiting("a", 1)
				var once sync.Once
				g.store.set(func(s *scriptedStore) { s.onGrant = func() { once.Do(func() { leave(conn) }) } })
				g.release("a", held)
				g.wantTakenBack("a")
				if rests := len(g.store.Snapshot().Records["a"].Queue.Resting()); own != (rests == 1) {
					t.Errorf("%d places rest", rests)
				}
				g.acquired("a")
			})
		}
	}
}

// TestNextRequestWhileItWaits: a request sent ahead is served in its turn.
func TestNextRequestWhileItWaits(t *testing.T) {
	t.Parallel()
	g := startRunning(t)
	held := g.acquired("a")
	for _, together := range []bool{true, false} {
		conn := g.dial()
		first := "POST /locks/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 17\r\n\r\n{\"wait_ms\":60000}"
		second := "GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
		if together {
			send(t, conn, first+second)
			g.waiting("a", 1)
		} else {
			send(t, conn, first)
			g.waiting("a", 1)
			send(t, conn, second)
		}
		g.release("a", held)
		text := readAll(t, conn)
		created, alive := strings.Index(text, "HTTP/1.1 201 Created"), strings.Index(text, `{"status":"alive"}`)
		if created != 0 || alive < 0 {
			t.Errorf("%s", text)
		}
		held = field(text, "lease_id")
	}
}
