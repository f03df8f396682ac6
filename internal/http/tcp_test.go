package http

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

func (g *gateway) dial() *net.TCPConn {
	g.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(g.url, "http://"))
	if err != nil {
		g.t.Fatal(err)
	}
	conn.SetDeadline(time.Now().Add(patience))
	g.t.Cleanup(func() { conn.Close() })
	return conn.(*net.TCPConn)
}

func send(t testing.TB, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
}

// receive reads one answer. The method of the request it belongs to matters for
// its body.
func receive(t testing.TB, conn net.Conn, method string) (*http.Response, string) {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

// readAll reads until the gateway closes the connection.
func readAll(t testing.TB, conn net.Conn) string {
	t.Helper()
	text, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestRawRequests(t *testing.T) {
	t.Parallel()
	g := start(t)
	before := g.store.Snapshot()
	const id = "01JZ0000000000000000000000.EXAMPLE-EXAMPLE-EXAMPLE"
	for _, c := range []struct {
		what, request string
		status        int
		contains      string
	}{
		{"NUL in the path", "POST /locks/a%00b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n", 400, `"field":"name"`},
		{"a raw double slash", "POST /locks//a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n", 400, `"field":"name"`},
		{"a raw dot dot", "POST /locks/../locks/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n", 400, `"field":"name"`},
		{"a path of slashes", "GET //locks/a HTTP/1.1\r\nHost: localhost\r\n\r\n", 404, `"code":"not_found"`},
		{"bad escapes", "POST /locks/%zz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n", 400, ""},
		{"no Host", "POST /locks/a HTTP/1.1\r\nContent-Length: 0\r\n\r\n", 400, ""},
		{"empty Host", "POST /locks/a HTTP/1.1\r\nHost:\r\nContent-Length: 0\r\n\r\n", 421, `"code":"misdirected"`},
		{"two Hosts", "POST /locks/a HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n", 400, ""},
		{"HTTP/1.0 without Host", "POST /locks/a HTTP/1.0\r\nContent-Length: 0\r\n\r\n", 421, `"code":"misdirected"`},
		{"another Host in the target", "GET http://evil.example/locks HTTP/1.1\r\nHost: localhost\r\n\r\n", 421, `"code":"misdirected"`},
		{"lease ids in two lines", "POST /locks/a HTTP/1.1\r\nHost: localhost\r\nLease-Id: " + id + "\r\nlease-id: " + id + "\r\nContent-Length: 0\r\n\r\n", 400, `"field":"Lease-Id"`},
		{"If-Match in two lines", "DELETE /locks/a HTTP/1.1\r\nHost: localhost\r\nIf-Match: \"1\"\r\nif-match: \"1\"\r\n\r\n", 400, `"field":"If-Match"`},
		{"OPTIONS *", "OPTIONS * HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421, `"code":"misdirected"`},
		{"OPTIONS * here", "OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", 404, `"code":"not_found"`},
		{"CONNECT", "CONNECT localhost:1 HTTP/1.1\r\nHost: localhost:1\r\n\r\n", 405, `"code":"method_not_allowed"`},
		{"an unheard-of method", "FROB /locks/a HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, `"code":"method_not_allowed"`},
		{"a half-closed body", "POST /locks/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{\"ttl_ms\":1000}", 400, `"field":"body"`},
		{"half a chunk", "POST /locks/a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n20\r\n{}", 400, `"field":"body"`},
		{"a broken chunk", "POST /locks/a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nxx\r\n{}", 400, `"field":"body"`},
		{"two lengths", "POST /locks/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400, ""},
		{"chunks of more than 16 KiB", "POST /locks/a HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n4001\r\n" + strings.Repeat(" ", 0x4001) + "\r\n0\r\n\r\n", 413, `"code":"too_large"`},
	} {
		t.Run(c.what, func(t *testing.T) {
			conn := g.dial()
			send(t, conn, c.request)
			conn.CloseWrite()
			method, _, _ := strings.Cut(c.request, " ")
			if method == "CONNECT" {
				method = "GET"
			}
			resp, body := receive(t, conn, method)
			if resp.StatusCode != c.status || !strings.Contains(body, c.contains) {
				t.Errorf("%d %s, want %d with %s", resp.StatusCode, body, c.status, c.contains)
			}
			if !reflect.DeepEqual(g.store.Snapshot(), before) {
				t.Fatal("the store has changed")
			}
		})
	}
}

func TestHTTP10(t *testing.T) {
	t.Parallel()
	g := start(t)
	conn := g.dial()
	send(t, conn, "POST /locks/a HTTP/1.0\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}")
	resp, body := receive(t, conn, "POST")
	if resp.StatusCode != 201 || !strings.Contains(body, `"lease_id"`) {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}

// TestChunkedBody: a body without a length is read to its end like any other, and is the last
// one of its connection.
func TestChunkedBody(t *testing.T) {
	t.Parallel()
	g := start(t)
	for i := range 2 {
		conn := g.dial()
		send(t, conn, fmt.Sprintf("POST /locks/n%d HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", i))
		for _, part := range []string{`{"ttl`, `_ms":1`, `000}`} {
			send(t, conn, fmt.Sprintf("%x\r\n%s\r\n", len(part), part))
		}
		send(t, conn, "0\r\n\r\n")
		if text := readAll(t, conn); !strings.HasPrefix(text, "HTTP/1.1 201 ") || !strings.Contains(text, `"ttl_ms":1000`) || !strings.Contains(text, "Connection: close\r\n") {
			t.Errorf("%s", text)
		}
	}
}

// TestTwoLengths: a request that has a length in two ways is the last one of its connection,
// whatever comes of it. What somebody may have taken for its body, or for the next request, is neither.
func TestTwoLengths(t *testing.T) {
	t.Parallel()
	g := start(t)
	const hidden = "POST /locks/hidden HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
	body := "2\r\n{}\r\n0\r\n\r\n" + hidden
	length := fmt.Sprintf("Content-Length: %d\r\n", len(body))
	g.acquired("c")
	for i, c := range []struct{ path, host, headers, version string }{
		{"/locks/a", "localhost", length + "Transfer-Encoding: chunked\r\n", "1.1"},
		{"/locks/b", "localhost", "Transfer-Encoding: chunked\r\n" + length, "1.1"},
		{"/locks/c", "localhost", length + "Transfer-Encoding: chunked\r\nAccept: text/event-stream\r\n", "1.1"}, // attached, and refused
		{"/nothing", "localhost", length + "Transfer-Encoding: chunked\r\n", "1.1"},
		{"/locks/d", "evil.example", length + "Transfer-Encoding: chunked\r\n", "1.1"},
		{"/locks/e", "localhost", length + "Connection: keep-alive\r\nTransfer-Encoding: chunked\r\n", "1.0"},
	} {
		conn := g.dial()
		send(t, conn, "POST "+c.path+" HTTP/"+c.version+"\r\nHost: "+c.host+"\r\n"+c.headers+"\r\n"+body)
		text := readAll(t, conn)
		if strings.Count(text, "HTTP/1.") != 1 || !strings.Contains(text, "Connection: close\r\n") {
			t.Errorf("%d: %s", i, text)
		}
		if g.lock("hidden").Held() {
			t.Fatalf("%d: what was hidden in it was carried out", i)
		}
	}
}

// TestSlowBody: a body that does not arrive in time is refused, and the store
// was never asked.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	g := newServer(t)
	g.listen(func(s *http.Server) { s.ReadTimeout = time.Second })
	before := g.store.Snapshot()
	conn := g.dial()
	send(t, conn, "POST /locks/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
	resp, body := receive(t, conn, "POST")
	if resp.StatusCode != 400 || !strings.Contains(body, `"field":"body"`) {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	if !reflect.DeepEqual(g.store.Snapshot(), before) {
		t.Error("the store has changed")
	}
}

// TestResetWhileSending: nothing is asked for a client that never said it all.
func TestResetWhileSending(t *testing.T) {
	t.Parallel()
	g := start(t)
	before := g.store.Snapshot()
	conn := g.dial()
	send(t, conn, "POST /locks/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
	conn.SetLinger(0)
	conn.Close()
	g.waitForLog(`"code":"invalid_request"`)
	if !reflect.DeepEqual(g.store.Snapshot(), before) {
		t.Error("the store has changed")
	}
}

func (g *gateway) waitForLog(text string) {
	g.t.Helper()
	for deadline := time.Now().Add(patience); !strings.Contains(g.log.String(), text); {
		if time.Now().After(deadline) {
			g.t.Fatalf("no %s in the log:\n%s", text, g.log)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// TestClientLeaves: a client that closes, resets or half-closes its connection
// while the store is asked has left. What it was granted is taken back (P6).
func TestClientLeaves(t *testing.T) {
	t.Parallel()
	for _, own := range []bool{false, true} {
		for _, knows := range []bool{false, true} {
			for how, leave := range map[string]func(*net.TCPConn){
				"closes":      func(c *net.TCPConn) { c.Close() },
				"resets":      func(c *net.TCPConn) { c.SetLinger(0); c.Close() },
				"half-closes": func(c *net.TCPConn) { c.CloseWrite() },
			} {
				t.Run(fmt.Sprintf("%s own=%t knows=%t", how, own, knows), func(t *testing.T) {
					g := start(t)
					asked := make(chan struct{})
					g.store.set(func(s *scriptedStore) {
						s.acquire = func(ctx context.Context, r fencing.AcquireRequest) (fencing.Outcome, error) {
							close(asked)
							<-ctx.Done()
							out, err := s.Model.Do(context.Background(), r)
							if !knows {
								return fencing.Outcome{}, fencing.Unavailable(ctx.Err())
							}
							return out, err
						}
					})
					header := ""
					if own {
						header = "Lease-Id: " + newID() + "\r\n"
					}
					conn := g.dial()
					send(t, conn, "POST /locks/a HTTP/1.1\r\nHost: localhost\r\n"+header+"Content-Length: 2\r\n\r\n{}")
					<-asked
					leave(conn)
					g.wantTakenBack("a")
					if how == "half-closes" {
						resp, body := receive(t, conn, "POST")
						if resp.StatusCode != 503 || strings.Contains(body, "lease_id") || resp.Header.Get("Fencing-Token") != "" {
							t.Errorf("%d %s", resp.StatusCode, body)
						}
					}
				})
			}
		}
	}
}

// TestReleaseOutlivesItsClient: who asked for a release and left still wants it.
func TestReleaseOutlivesItsClient(t *testing.T) {
	t.Parallel()
	g := newServer(t)
	requests := make(chan context.Context, 2)
	g.listen(func(s *http.Server) {
		s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requests <- r.Context()
			g.Handler().ServeHTTP(w, r)
		})
	})
	id := g.acquired("a")
	<-requests
	asked, left, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	g.store.set(func(s *scriptedStore) {
		s.before = func(verb string) error {
			if verb == "release" {
				close(asked)
				<-left
				defer close(done)
			}
			return nil
		}
	})
	conn := g.dial()
	send(t, conn, "DELETE /locks/a HTTP/1.1\r\nHost: localhost\r\nLease-Id: "+id+"\r\n\r\n")
	<-asked
	conn.SetLinger(0)
	conn.Close()
	<-(<-requests).Done() // the gateway has noticed
	close(left)
	<-done
	g.waitForLog(`"method":"DELETE","route":"/locks/{name}","status":204`)
	if a := g.do("GET", "/locks/a", "").want(t, 200); a.json["held"] != false {
		t.Errorf("%s", a.body)
	}
}
