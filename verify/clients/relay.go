package clients

import (
	"bytes"
	"errors"
	"net"
	"regexp"
	"strconv"
	"sync"
	"time"
)

// exchange is a request of a client and what came of it, as a relay has seen it.
type exchange struct {
	method   string
	sent     time.Time     // before the gateway had it
	answered time.Time     // before the client had the answer; zero: there was none
	status   int           // of the answer
	lives    time.Duration // what the answer says: so long after sent the client may count on the lease
}

// relay passes on what a client and its gateways say to each other, byte by byte and end by end. The
// trial hears of each request before the gateway does, and of each answer before the client does.
type relay struct {
	t        *trial
	listener net.Listener
	target   string // of new connections
	running  sync.WaitGroup

	mu     sync.Mutex
	closed bool
	links  []*relayed
}

// relayed is a connection, and the request that is under way on it.
type relayed struct {
	client, server net.Conn
	mu             sync.Mutex
	asked          *exchange
}

func newRelay(t *trial, target string) (*relay, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &relay{t: t, listener: listener, target: target}
	r.running.Go(r.serve)
	return r, nil
}

func (r *relay) url() string { return "http://" + r.listener.Addr().String() }

func (r *relay) close() {
	r.listener.Close()
	r.mu.Lock()
	r.closed = true
	for _, l := range r.links {
		l.close()
	}
	r.mu.Unlock()
	r.running.Wait()
}

func (l *relayed) close() {
	l.client.Close()
	l.server.Close()
}

func (r *relay) serve() {
	for {
		conn, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.running.Go(func() {
			server, err := net.Dial("tcp", r.target)
			if err != nil {
				conn.Close()
				return
			}
			l := &relayed{client: conn, server: server}
			r.mu.Lock()
			r.links = append(r.links, l)
			closed := r.closed
			r.mu.Unlock()
			if closed {
				l.close()
				return
			}
			r.running.Go(func() { r.back(l) })
			r.forward(l)
		})
	}
}

var requestLine = regexp.MustCompile(`^(POST|PUT|DELETE) /locks`)

// forward passes on what the client says. Its end is the end of both sides.
func (r *relay) forward(l *relayed) {
	defer l.close()
	buf := make([]byte, 16<<10)
	for {
		n, err := l.client.Read(buf)
		if err != nil {
			return
		}
		if m := requestLine.FindSubmatch(buf[:n]); m != nil {
			x := r.t.ask(string(m[1]))
			l.mu.Lock()
			l.asked = x
			l.mu.Unlock()
			r.t.reach(sent(x.method))
		}
		if _, err := l.server.Write(buf[:n]); err != nil {
			return
		}
	}
}

// back passes on what the gateway says.
func (r *relay) back(l *relayed) {
	defer l.close()
	buf, body := make([]byte, 16<<10), []byte(nil)
	for {
		n, err := l.server.Read(buf)
		if err != nil {
			return
		}
		l.mu.Lock()
		x := l.asked
		l.mu.Unlock()
		if x != nil {
			first := r.t.answer(x, buf[:n])
			if first {
				body = body[:0]
			}
			body = append(body, buf[:n]...)
			r.t.lives(x, body)
			if first {
				r.t.reach(answered(x.method))
			}
		}
		if _, err := l.client.Write(buf[:n]); err != nil {
			return
		}
	}
}

// ask notes a request.
func (t *trial) ask(method string) *exchange {
	t.mu.Lock()
	defer t.mu.Unlock()
	x := &exchange{method: method, sent: time.Now()}
	t.asked = append(t.asked, x)
	return x
}

// answer notes the beginning of an answer, and reports whether it is that.
func (t *trial) answer(x *exchange, data []byte) (first bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !x.answered.IsZero() || !bytes.HasPrefix(data, []byte("HTTP/1.1 ")) || len(data) < 12 {
		return false
	}
	x.answered = time.Now()
	x.status, _ = strconv.Atoi(string(data[9:12]))
	return true
}

var (
	waitedOf  = regexp.MustCompile(`"waited_ms":(\d+)`)
	expiresOf = regexp.MustCompile(`"expires_in_ms":(\d+)`)
)

// lives notes how long the answer says that the lease lives.
func (t *trial) lives(x *exchange, answer []byte) {
	waited, expires := waitedOf.FindSubmatch(answer), expiresOf.FindSubmatch(answer)
	if waited == nil || expires == nil {
		return
	}
	w, err := strconv.Atoi(string(waited[1]))
	e, err2 := strconv.Atoi(string(expires[1]))
	if errors.Join(err, err2) != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if x.status == 200 || x.status == 201 {
		x.lives = time.Duration(w+e) * time.Millisecond
	}
}
