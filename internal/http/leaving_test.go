//go:build linux

package http

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// waysToLeave are those of a client that has not read its answer.
var waysToLeave = map[string]func(*net.TCPConn){
	"closes":      func(c *net.TCPConn) { c.Close() },
	"resets":      func(c *net.TCPConn) { c.SetLinger(0); c.Close() },
	"half-closes": func(c *net.TCPConn) { c.CloseWrite() },
}

// TestLeavesBeforeTheAnswer: net/http may not know yet that the client has left, and
// never learns it behind the first byte of a next request. The socket tells (P6).
func TestLeavesBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	for how, leave := range waysToLeave {
		for path, body := range map[string]string{"/locks/a": `{}`, "/locks": `{"names":["a"]}`} {
			t.Run(how+" "+path, func(t *testing.T) {
				g := start(t)
				conn := g.dial()
				g.store.set(func(s *scriptedStore) {
					s.acquire = func(ctx context.Context, r fencing.AcquireRequest) (fencing.Outcome, error) {
						defer leave(conn)
						return s.Model.Do(ctx, r)
					}
				})
				send(t, conn, fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%sG", path, len(body), body))
				g.wantFree("a")
			})
		}
	}
}

// wantFree waits until a lock that was granted is free again.
func (g *gateway) wantFree(name fencing.Name) {
	g.t.Helper()
	g.eventually(string(name)+" is free again", func() bool {
		lock := g.lock(name)
		return lock.LastToken != 0 && !lock.Held()
	})
}

// interrupted is a connection on which something happens around a write.
type interrupted struct {
	*net.TCPConn
	before, after func()
}

func (c interrupted) Write(b []byte) (int, error) {
	c.before()
	defer c.after()
	return c.TCPConn.Write(b)
}

type interruptedListener struct {
	*net.TCPListener
	before, after func()
}

func (l interruptedListener) Accept() (net.Conn, error) {
	conn, err := l.AcceptTCP()
	return interrupted{conn, l.before, l.after}, err
}

// TestLeavesDuringTheAnswer: what the client did between the last look at its socket
// and the arrival of the answer decides. Who may have read it keeps the lease.
func TestLeavesDuringTheAnswer(t *testing.T) {
	t.Parallel()
	type doing = func(t *testing.T, conn *net.TCPConn)
	read := func(t *testing.T, conn *net.TCPConn) {
		if resp, body := receive(t, conn, "POST"); resp.StatusCode != http.StatusCreated {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
	}
	leave := func(how string) doing { return func(_ *testing.T, conn *net.TCPConn) { waysToLeave[how](conn) } }
	then := func(all ...doing) doing {
		return func(t *testing.T, conn *net.TCPConn) {
			for _, do := range all {
				do(t, conn)
			}
		}
	}
	nothing := then()
	for what, c := range map[string]struct {
		before, after doing
		held          bool
	}{
		"closes before it":      {leave("closes"), nothing, false},
		"resets before it":      {leave("resets"), nothing, false},
		"half-closes, reads it": {leave("half-closes"), read, true},
		"reads it, closes":      {nothing, then(read, leave("closes")), true},
		"reads it, resets":      {nothing, then(read, leave("resets")), true},
		"reads it, half-closes": {nothing, then(read, leave("half-closes")), true},
		"reads it, stays":       {nothing, read, true},
	} {
		t.Run(what, func(t *testing.T) {
			g := newServer(t)
			listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
			if err != nil {
				t.Fatal(err)
			}
			g.url = "http://" + listener.Addr().String()
			conn := g.dial()
			server := NewHTTPServer(g.Handler(), slog.New(slog.NewTextHandler(g.log, nil)))
			served := make(chan struct{})
			go server.Serve(interruptedListener{listener, func() { c.before(t, conn) }, func() { c.after(t, conn); close(served) }})
			defer server.Close()
			send(t, conn, "POST /locks/a HTTP/1.1\r\nHost: localhost\r\n\r\n")
			<-served
			if !c.held {
				g.wantFree("a")
				return
			}
			g.waitForLog(`"status":201`)
			if g.wantNotTakenBack(); !g.lock("a").Held() {
				t.Error("it was told, and does not have the lease")
			}
		})
	}
}

// TestReattachWhoseClientLeaves: a lease that an older stream has goes over to a request whose
// client leaves while the store answers. It hangs on nobody then, and is released.
func TestReattachWhoseClientLeaves(t *testing.T) {
	t.Parallel()
	for how, leave := range waysToLeave {
		for path, body := range map[string]string{"/locks/a": `{"ttl_ms":600000}`, "/locks": `{"names":["a","b"],"ttl_ms":600000}`} {
			t.Run(how+" "+path, func(t *testing.T) {
				t.Parallel()
				g := startRunning(t)
				id := newID()
				older := g.stream("POST", path, body, attach, "Lease-Id: "+id)
				older.next("granted")
				conn := g.dial()
				var attached atomic.Bool
				g.store.set(func(s *scriptedStore) {
					s.acquire = func(ctx context.Context, r fencing.AcquireRequest) (fencing.Outcome, error) {
						out, err := s.Model.Do(ctx, r)
						if r.Attach && attached.CompareAndSwap(false, true) {
							leave(conn)
						}
						return out, err
					}
				})
				send(t, conn, fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\n%s\r\nLease-Id: %s\r\nContent-Length: %d\r\n\r\n%s", path, attach, id, len(body), body))
				for open := true; open; { // it is told that it was replaced, or released by then
					select {
					case _, open = <-older.events:
					case <-time.After(patience):
						t.Fatal("the older stream does not end")
					}
				}
				g.free("a", "b")
			})
		}
	}
}

// TestReattachThatTheStoreForgets: it is released all the same, though the store has it hang on the older
// stream, for a fail-over has come between its answer and the take-back.
func TestReattachThatTheStoreForgets(t *testing.T) {
	t.Parallel()
	g := startRunning(t)
	id, body := newID(), `{"ttl_ms":600000}`
	older := g.stream("POST", "/locks/a", body, attach, "Lease-Id: "+id)
	older.next("granted")
	conn := g.dial()
	g.store.set(func(s *scriptedStore) {
		s.acquire = func(ctx context.Context, r fencing.AcquireRequest) (fencing.Outcome, error) {
			out, err := s.Model.Do(ctx, fencing.RenewRequest{Name: r.Name, Lease: r.Lease})
			out.Holder.Attached, out.Holder.Epoch = r.Stamp, out.Holder.Epoch+1
			waysToLeave["closes"](conn)
			return out, err
		}
	})
	send(t, conn, fmt.Sprintf("POST /locks/a HTTP/1.1\r\nHost: localhost\r\n%s\r\nLease-Id: %s\r\nContent-Length: %d\r\n\r\n%s", attach, id, len(body), body))
	g.free("a")
}
