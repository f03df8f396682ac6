package http

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// listenTLS has a gateway listen with TLS and HTTP/2. All requests of its client go over
// one connection, which the test can break.
func (g *gateway) listenTLS(change func(*http.Server)) (broken func()) {
	ts := httptest.NewUnstartedServer(nil)
	ts.Config = NewHTTPServer(g.Handler(), slog.New(slog.NewTextHandler(g.log, nil)))
	change(ts.Config)
	ts.EnableHTTP2 = true
	ts.StartTLS()
	g.url, g.client = ts.URL, ts.Client()
	var mu sync.Mutex
	var conns []net.Conn
	transport := g.client.Transport.(*http.Transport)
	transport.DisableCompression = true
	transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		mu.Lock()
		defer mu.Unlock()
		conns = append(conns, conn)
		return conn, err
	}
	g.t.Cleanup(ts.Close)
	return func() {
		mu.Lock()
		defer mu.Unlock()
		for _, conn := range conns {
			conn.Close()
		}
	}
}

// ask sends a request that the test may cancel, and tells of its end.
func (g *gateway) ask(ctx context.Context, method, path, body string) <-chan error {
	done := make(chan error, 1)
	r, err := http.NewRequestWithContext(ctx, method, g.url+path, strings.NewReader(body))
	if err != nil {
		g.t.Fatal(err)
	}
	go func() {
		resp, err := g.client.Do(r)
		if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if resp.ProtoMajor != 2 {
				err = fmt.Errorf("%s is spoken", resp.Proto)
			} else if err == nil && resp.StatusCode >= 300 {
				err = fmt.Errorf("answered %s", resp.Status)
			}
		}
		done <- err
	}()
	return done
}

// TestHTTP2WaitersLeave: over one connection one of two waiters gives up. Its place goes
// at once, and the other one's stays.
func TestHTTP2WaitersLeave(t *testing.T) {
	t.Parallel()
	for path, body := range map[string]string{"/locks/a": `{"wait_ms":3600000}`, "/locks": `{"names":["a","b"],"wait_ms":3600000}`} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			g := newServer(t, func(o *Options) { o.Bounds.MaxWait = time.Hour })
			g.listenTLS(func(*http.Server) {})
			id := g.acquired("a")
			ctx, leave := context.WithCancel(t.Context())
			first := g.ask(ctx, "POST", path, body)
			g.waiting("a", 1)
			second := g.ask(t.Context(), "POST", "/locks/a", `{"wait_ms":3600000,"owner":"second"}`)
			g.waiting("a", 2)
			leave()
			g.waiting("a", 1) // long before its wait is over
			if err := <-first; err == nil {
				t.Error("who left was answered")
			}
			g.release("a", id)
			if err := <-second; err != nil {
				t.Error(err)
			}
			if owner := g.lock("a").Holders[0].Owner; owner != "second" {
				t.Errorf("%q has it", owner)
			}
		})
	}
}

// TestHTTP2ConnectionBreaks: with the connection all go that wait on it, and what is
// attached to it.
func TestHTTP2ConnectionBreaks(t *testing.T) {
	t.Parallel()
	g := startHTTP2Running(t)
	breaks := g.listenTLS(func(*http.Server) {})
	s := g.stream("POST", "/locks/b", `{"ttl_ms":60000}`, attach)
	s.next("granted")
	g.acquired("a")
	waits := g.ask(t.Context(), "POST", "/locks/a", `{"wait_ms":60000}`)
	g.waiting("a", 1)
	breaks()
	g.waiting("a", 0)
	g.wantFree("b")
	if err := <-waits; err == nil {
		t.Error("it was answered")
	}
}

func startHTTP2Running(t *testing.T) *gateway {
	g := newServer(t)
	g.clock.runs = true
	return g
}

// TestHTTP2Attached: a lease lives as long as its stream of HTTP/2, and ends with it, not
// with the connection.
func TestHTTP2Attached(t *testing.T) {
	t.Parallel()
	g := startHTTP2Running(t)
	g.listenTLS(func(*http.Server) {})
	first := g.stream("POST", "/locks/a", `{"ttl_ms":2000}`, attach)
	second := g.stream("POST", "/locks/b", `{"ttl_ms":60000}`, attach)
	for _, s := range []*openedStream{first, second} {
		if s.resp.ProtoMajor != 2 {
			t.Fatalf("%s is spoken", s.resp.Proto)
		}
		s.next("granted")
	}
	for time.Since(first.sent) < 3*time.Second {
		first.next("renewed")
	}
	first.cancel()
	g.wantFree("a")
	if !g.lock("b").Held() {
		t.Error("another stream has ended as well")
	}
	second.cancel()
	g.wantFree("b")
}

// TestHTTP2WaitsLongerThanItsRequestMayTake: the time for a request's body is not one for
// its answer.
func TestHTTP2WaitsLongerThanItsRequestMayTake(t *testing.T) {
	t.Parallel()
	g := newServer(t)
	const readTimeout = 2 * time.Second // the handshake has to fit into it
	g.listenTLS(func(server *http.Server) { server.ReadTimeout = readTimeout })
	id := g.acquired("a")
	waits := g.ask(t.Context(), "POST", "/locks/a", `{"wait_ms":60000}`)
	g.waiting("a", 1)
	for began := time.Now(); time.Since(began) < 3*readTimeout/2; {
		if lock := g.lock("a"); lock.Waiting != 1 {
			t.Fatalf("%d wait after %v", lock.Waiting, time.Since(began))
		}
		<-time.After(readTimeout / 10)
	}
	g.release("a", id)
	if err := <-waits; err != nil {
		t.Error(err)
	}
}

// TestHTTP2LeavesBeforeTheAnswer: a grant whose client has reset the stream is taken back.
func TestHTTP2LeavesBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	g := newServer(t)
	g.listenTLS(func(*http.Server) {})
	ctx, leave := context.WithCancel(t.Context())
	var once sync.Once
	g.store.set(func(s *scriptedStore) {
		s.acquire = func(ctx context.Context, r fencing.AcquireRequest) (fencing.Outcome, error) {
			out, err := s.Model.Do(context.WithoutCancel(ctx), r)
			once.Do(leave)
			<-ctx.Done() // the gateway has heard of it
			return out, err
		}
	})
	if err := <-g.ask(ctx, "POST", "/locks/a", ""); err == nil {
		t.Error("it was answered")
	}
	g.wantFree("a")
}

// TestHTTP2QuietStreamsStay: a stream that has nothing to say for longer than an answer may
// take to be written goes on.
func TestHTTP2QuietStreamsStay(t *testing.T) {
	t.Parallel()
	const timeout = 2 * time.Second // what is said at the beginning has to be written in it
	g := newServer(t, func(o *Options) { o.writeTimeout = timeout })
	g.clock.runs = true
	g.listenTLS(func(*http.Server) {})
	watch := g.stream("GET", "/events", "")
	held := g.stream("POST", "/locks/a", `{"ttl_ms":60000}`, attach)
	held.next("granted")
	watch.next("granted")
	waits := g.stream("POST", "/locks/a", `{"wait_ms":60000}`, attach)
	waits.next("queued")
	watch.next("queued")
	for began := time.Now(); time.Since(began) < 3*timeout/2; <-time.After(timeout / 10) {
		if lock := g.lock("a"); !lock.Held() || lock.Waiting != 1 {
			t.Fatalf("after %v: %+v", time.Since(began), lock)
		}
	}
	held.cancel()
	watch.next("released")
	waits.next("granted")
}

// TestRefusedConnectionsOverTLS: one connection too many is told so, in HTTP/1.1 whatever
// it would rather speak.
func TestRefusedConnectionsOverTLS(t *testing.T) {
	t.Parallel()
	g := newServer(t)
	certificates := httptest.NewUnstartedServer(nil)
	certificates.StartTLS()
	defer certificates.Close()
	config := &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{Certificates: certificates.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"}}, nil
	}}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	server := NewHTTPServer(g.Handler(), log)
	server.TLSConfig = config
	var serving sync.WaitGroup
	limited := LimitConnections(server, listener, ConnectionOptions{Most: 1, TLS: config, Logger: log, refusalTime: patience})
	serving.Go(func() { server.ServeTLS(limited, "", "") })
	defer serving.Wait()
	defer server.Close()
	get := func(path string) (int, int) {
		client := certificates.Client()
		transport := client.Transport.(*http.Transport).Clone()
		transport.ForceAttemptHTTP2, transport.TLSClientConfig.ServerName = true, "example.com"
		t.Cleanup(transport.CloseIdleConnections)
		r, _ := http.NewRequest("GET", "https://"+listener.Addr().String()+path, nil)
		r.Host = "localhost"
		resp, err := (&http.Client{Transport: transport}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		io.Copy(io.Discard, resp.Body)
		return resp.StatusCode, resp.ProtoMajor
	}
	for _, c := range []struct {
		path          string
		status, major int
	}{{"/locks", 200, 2}, {"/locks", 503, 1}, {"/livez", 200, 1}} {
		if status, major := get(c.path); status != c.status || major != c.major {
			t.Errorf("%s: %d over HTTP/%d, want %+v", c.path, status, major, c)
		}
	}
}

// TestHTTP2PeersThatDoNotRead are let go, whether something is to be written to them or not.
func TestHTTP2PeersThatDoNotRead(t *testing.T) {
	t.Parallel()
	const timeout = time.Second // the handshake has to fit into it
	for what, c := range map[string]struct {
		path    string
		streams int
		change  func(*http.HTTP2Config)
	}{
		"much to write":    {"/openapi.yaml", maxStreamsPerConnection, func(o *http.HTTP2Config) { o.WriteByteTimeout, o.SendPingTimeout = min(o.WriteByteTimeout, timeout), 0 }},
		"nothing to write": {"/events", 1, func(o *http.HTTP2Config) { o.SendPingTimeout, o.PingTimeout = min(o.SendPingTimeout, timeout), timeout }},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			g := newServer(t)
			closed := make(chan struct{})
			g.listenTLS(func(server *http.Server) {
				c.change(server.HTTP2)
				server.ConnState = func(_ net.Conn, state http.ConnState) {
					if state == http.StateClosed {
						close(closed)
					}
				}
			})
			var deaf atomic.Bool
			until := make(chan struct{})
			transport := g.client.Transport.(*http.Transport)
			dial := transport.DialContext
			transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := dial(ctx, network, addr)
				if err == nil {
					conn.(*net.TCPConn).SetReadBuffer(4 << 10)
				}
				return deafConn{conn, &deaf, until}, err
			}
			if resp, err := g.client.Get(g.url + "/livez"); err != nil {
				t.Fatal(err)
			} else {
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
			deaf.Store(true)
			var asking sync.WaitGroup
			for range c.streams {
				asking.Go(func() { <-g.ask(t.Context(), "GET", c.path, "") })
			}
			select {
			case <-closed:
			case <-time.After(patience):
				t.Error("its connection stays open")
			}
			close(until)
			asking.Wait()
		})
	}
}

// deafConn reads nothing from when it has become deaf until a channel is closed.
type deafConn struct {
	net.Conn
	deaf  *atomic.Bool
	until chan struct{}
}

func (c deafConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.deaf.Load() {
		<-c.until
		return 0, io.EOF
	}
	return n, err
}
