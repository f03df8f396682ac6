package http

import (
	"bufio"
	"cmp"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// limited is a server of which so many connections may be open.
func limited(t *testing.T, o ConnectionOptions) (addr string, l *limitedListener) {
	t.Helper()
	server := NewHTTPServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(w, r.Body)
	}), slog.New(slog.DiscardHandler))
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o.Logger = slog.New(slog.DiscardHandler)
	o.refusalTime = cmp.Or(o.refusalTime, patience) // a busy machine may need more than a second for a request
	l = LimitConnections(server, inner, o).(*limitedListener)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Close()
		<-served
	})
	return inner.Addr().String(), l
}

func dialTo(t *testing.T, addr string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	conn.SetDeadline(time.Now().Add(patience))
	t.Cleanup(func() { conn.Close() })
	return conn
}

// ask sends a request on a connection and returns the answer.
func ask(t *testing.T, conn net.Conn, method, path, body string) (status int, header http.Header, answer string) {
	t.Helper()
	r, err := http.NewRequest(method, "http://"+conn.RemoteAddr().String()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Write(conn); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), r)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header, string(data)
}

func (l *limitedListener) awaitOpen(t *testing.T, n int) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; <-time.After(time.Millisecond) {
		l.mu.Lock()
		open := l.open
		l.mu.Unlock()
		if open == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d connections are counted instead of %d", open, n)
		}
	}
}

// One connection too many is told so, those that are open go on, and a place that
// becomes free is given to the next.
func TestConnectionLimit(t *testing.T) {
	t.Parallel()
	addr, l := limited(t, ConnectionOptions{Most: 2})
	first, second := dialTo(t, addr), dialTo(t, addr)
	for _, conn := range []net.Conn{first, second} {
		if status, _, _ := ask(t, conn, "POST", "/a", "x"); status != 200 {
			t.Fatalf("status %d", status)
		}
	}
	for _, size := range []int{0, 1, maxBodyBytes} { // the answer survives what was not read
		status, header, body := ask(t, dialTo(t, addr), "POST", "/locks/a", strings.Repeat("x", size))
		if status != 503 || header.Get("Retry-After") != "1" || header.Get("Content-Type") != "application/problem+json" ||
			!strings.Contains(body, `"code":"unavailable"`) || !strings.Contains(body, "(FENCEPOST_MAX_CONNECTIONS)") || !strings.HasSuffix(body, "}\n") {
			t.Errorf("%d bytes: %d %v %s", size, status, header, body)
		}
	}
	for path, want := range map[string]int{"/livez": 200, "/livez?x": 200, "/livezz": 503, "/readyz": 503} {
		if status, _, body := ask(t, dialTo(t, addr), "GET", path, ""); status != want {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if status, _, body := ask(t, first, "POST", "/a", "still"); status != 200 || body != "still" {
		t.Errorf("an open connection: %d %s", status, body)
	}
	second.Close()
	l.awaitOpen(t, 1)
	if status, _, body := ask(t, dialTo(t, addr), "POST", "/a", "x"); status != 200 {
		t.Errorf("after one has left: %d %s", status, body)
	}
}

// TestCloseDuringRefusals: who closes the listener waits for nobody who says nothing, and
// nothing runs on.
func TestCloseDuringRefusals(t *testing.T) {
	t.Parallel()
	addr, l := limited(t, ConnectionOptions{Most: 1})
	ask(t, dialTo(t, addr), "POST", "/a", "x")
	silent := dialTo(t, addr)
	for deadline := time.Now().Add(patience); len(l.refusing) == 0; <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nobody is refused")
		}
	}
	l.Close()
	if n := len(l.refusing); n != 0 {
		t.Errorf("%d refusals are under way", n)
	}
	if _, err := silent.Read(make([]byte, 1)); err == nil {
		t.Error("an answer before the request")
	}
}

// A client at its own limit is refused; what it has is given back.
func TestConnectionLimitOfClient(t *testing.T) {
	t.Parallel()
	addr, l := limited(t, ConnectionOptions{Most: 10, MostPerClient: 1})
	first := dialTo(t, addr)
	ask(t, first, "GET", "/", "")
	if status, _, body := ask(t, dialTo(t, addr), "GET", "/", ""); status != 503 || !strings.Contains(body, "MAX_CONNECTIONS_PER_CLIENT") {
		t.Errorf("%d %s", status, body)
	}
	first.Close()
	l.awaitOpen(t, 0)
	l.mu.Lock()
	kept := len(l.clients)
	l.mu.Unlock()
	if kept != 0 {
		t.Errorf("%d clients without connections are kept", kept)
	}
	if status, _, _ := ask(t, dialTo(t, addr), "GET", "/", ""); status != 200 {
		t.Errorf("status %d", status)
	}
}

// Clients that connect and say nothing hold no more than MaxRefusals descriptors.
func TestSilentConnections(t *testing.T) {
	t.Parallel()
	addr, l := limited(t, ConnectionOptions{Most: 1, refusalTime: refusalTime})
	ask(t, dialTo(t, addr), "GET", "/", "")
	silent := make([]net.Conn, 3*MaxRefusals)
	for i := range silent {
		silent[i] = dialTo(t, addr)
	}
	for _, conn := range silent { // each is closed: at once, or when its time is over
		if n, err := io.Copy(io.Discard, conn); n != 0 {
			t.Errorf("%d bytes, %v", n, err)
		}
	}
	if len(l.refusing) > MaxRefusals {
		t.Errorf("%d refusals", len(l.refusing))
	}
}

// TestConnectionRate: an address that opens connections too fast is told so, and what is
// open goes on.
func TestConnectionRate(t *testing.T) {
	t.Parallel()
	addr, l := limited(t, ConnectionOptions{Most: 1000, RatePerClient: 1})
	first := dialTo(t, addr)
	ask(t, first, "GET", "/", "")
	for i := 0; ; i++ {
		status, header, body := ask(t, dialTo(t, addr), "GET", "/", "")
		if status == 503 && header.Get("Retry-After") == "1" && strings.Contains(body, "FENCEPOST_MAX_CONNECTION_RATE_PER_CLIENT") {
			break
		}
		if status != 200 || i == 100 {
			t.Fatalf("connection %d: %d %s", i, status, body)
		}
	}
	if status, _, _ := ask(t, first, "GET", "/", ""); status != 200 {
		t.Errorf("an open connection: %d", status)
	}
	if n := len(l.arrivals.clients); n != 1 {
		t.Errorf("%d clients are remembered", n)
	}
}

// TestAnswersToRefusedConnections: of a flood so many are answered, fewer where that takes
// a handshake, and one line a minute tells of it.
func TestAnswersToRefusedConnections(t *testing.T) {
	for _, c := range []struct {
		tls  *tls.Config
		most int
	}{{nil, refusalRate}, {&tls.Config{}, tlsRefusalRate}} {
		l := LimitConnections(&http.Server{}, nil, ConnectionOptions{Most: 1, TLS: c.tls}).(*limitedListener)
		logged, answered := 0, 0
		for now := time.Now(); now.Before(l.logged.Add(time.Second)) || logged == 0; now = now.Add(time.Millisecond / 2) {
			log, answer := l.attention(now)
			if log {
				logged++
			}
			if answer {
				answered++
			}
		}
		if logged != 1 || answered < c.most || answered > 2*c.most {
			t.Errorf("of 2,000 in a second %d are answered and %d logged, want at most %d and one", answered, logged, 2*c.most)
		}
	}
}

// TestErrorLog: what clients have net/http say is not logged without end.
func TestErrorLog(t *testing.T) {
	var log lockedBuffer
	server := NewHTTPServer(nil, slog.New(slog.NewTextHandler(&log, nil)))
	for range 1000 {
		server.ErrorLog.Print("http2: server: error reading preface from client")
		server.ErrorLog.Print("http: TLS handshake error from 10.1.2.3:4: EOF")
	}
	if n := strings.Count(log.String(), "level=WARN"); n != noticedBurst || strings.Contains(log.String(), "10.1.2.3") {
		t.Errorf("%d lines, want %d", n, noticedBurst)
	}
}

// TestArrivalsFromManyNetworks: who has addresses in more networks than are told apart keeps
// nobody else from connecting.
func TestArrivalsFromManyNetworks(t *testing.T) {
	arrivals := newArrivals(10)
	now := time.Now()
	for i := range 2 * maxNetworks {
		network := netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 0, 0, byte(i >> 8), byte(i)})
		if wait, _ := arrivals.note(network.String(), now); wait > 0 {
			t.Fatalf("the first of network %d has to wait for %v", i, wait)
		}
	}
	for i := range 20 {
		if wait, _ := arrivals.note("192.0.2.1", now); wait > 0 {
			t.Fatalf("connection %d of a stranger has to wait for %v", i, wait)
		}
		if wait, _ := arrivals.note("2001:db8::1", now); i >= 9 && wait == 0 {
			t.Fatalf("connection %d of one that came first is admitted", i)
		}
	}
	if len(arrivals.clients) > maxNetworks {
		t.Errorf("%d networks are remembered", len(arrivals.clients))
	}
}
