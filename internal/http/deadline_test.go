package http

import (
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"
)

// watchedListener tells of every write to a connection whether it was bounded.
type watchedListener struct {
	net.Listener
	wrote func(deadline time.Time)
}

func (l watchedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return &watchedConn{Conn: conn, wrote: l.wrote}, err
}

type watchedConn struct {
	net.Conn
	wrote func(deadline time.Time)

	mu       sync.Mutex
	deadline time.Time
}

func (c *watchedConn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	c.deadline = t
	c.mu.Unlock()
	return c.Conn.SetWriteDeadline(t)
}

func (c *watchedConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	c.wrote(c.deadline)
	c.mu.Unlock()
	return c.Conn.Write(b)
}

// A client that does not read must not keep an answer, and what holds it, for
// ever: also not the second one on a connection.
func TestEveryAnswerHasADeadline(t *testing.T) {
	t.Parallel()
	g := start(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var deadlines []time.Time
	server := NewHTTPServer(g.Handler(), slog.New(slog.DiscardHandler))
	var serving sync.WaitGroup
	serving.Go(func() {
		server.Serve(watchedListener{listener, func(deadline time.Time) {
			mu.Lock()
			defer mu.Unlock()
			deadlines = append(deadlines, deadline)
		}})
	})
	transport := &http.Transport{}
	client := &http.Client{Transport: transport}
	for _, path := range []string{"/livez", "/locks", "/locks/a", "/openapi.yaml", "/nothing"} {
		response, err := client.Get("http://" + listener.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
	}
	transport.CloseIdleConnections()
	server.Close()
	serving.Wait()
	mu.Lock()
	defer mu.Unlock()
	if len(deadlines) < 5 {
		t.Fatalf("%d writes were seen for 5 answers", len(deadlines))
	}
	for i, deadline := range deadlines {
		if left := time.Until(deadline); left <= 0 || left > writeTimeout {
			t.Errorf("write %d had the deadline %v", i+1, deadline)
		}
	}
}
