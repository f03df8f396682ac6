package redistest

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy stands between a client and a server and does harm on request. It
// passes everything on unless told otherwise.
type Proxy struct {
	target   string
	listener net.Listener
	running  sync.WaitGroup

	mu      sync.Mutex
	conns   map[net.Conn]bool // both sides
	swallow bool              // the next answer is lost
	hold    bool              // its connection stays open
	instead []byte            // answered in place of the server
	delay   time.Duration
	lag     time.Duration
	lagOnce bool
	refuse  bool
	lost    int
}

// StartProxy starts a proxy in front of addr that ends with the test.
func StartProxy(t testing.TB, addr string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{target: addr, listener: l, conns: map[net.Conn]bool{}}
	p.running.Go(p.serve)
	t.Cleanup(p.close)
	return p
}

// URL returns the proxy's address as a URL of a Redis.
func (p *Proxy) URL() string { return "redis://" + p.listener.Addr().String() + "/0" }

// SwallowReply loses the next answer: the server has done the work, the client
// never hears of it. The connection is cut at once, or with hold it stays open
// in silence.
func (p *Proxy) SwallowReply(hold bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.swallow, p.hold = true, hold
}

// Lost returns how many answers were swallowed.
func (p *Proxy) Lost() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

// Answer makes the proxy itself answer every command on open connections with
// line, such as "-LOADING wait", until it is called with an empty line.
func (p *Proxy) Answer(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.instead = nil
	if line != "" {
		p.instead = []byte(line + "\r\n")
	}
}

// Delay holds back every answer by d from now on.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Lag makes requests travel for d from now on, or only the next one.
func (p *Proxy) Lag(d time.Duration, once bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lag, p.lagOnce = d, once
}

// Cut closes all connections; with refuse, new ones as well until Cut(false).
func (p *Proxy) Cut(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = refuse
	for conn := range p.conns {
		conn.Close()
	}
}

func (p *Proxy) close() {
	p.listener.Close()
	p.Cut(true)
	p.running.Wait()
}

func (p *Proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil || !p.keep(client, server) {
			client.Close()
			if server != nil {
				server.Close()
			}
			continue
		}
		p.running.Go(func() { p.forward(client, server) })
		p.running.Go(func() { p.back(server, client) })
	}
}

func (p *Proxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse {
		return false
	}
	for _, conn := range conns {
		p.conns[conn] = true
	}
	return true
}

func (p *Proxy) drop(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range conns {
		conn.Close()
		delete(p.conns, conn)
	}
}

// forward passes requests on.
func (p *Proxy) forward(client, server net.Conn) {
	defer p.drop(client, server)
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		p.mu.Lock()
		instead, lag := p.instead, p.lag
		if p.lagOnce {
			p.lag = 0
		}
		p.mu.Unlock()
		if lag > 0 {
			<-time.After(lag)
		}
		to, data := server, buf[:n]
		if instead != nil {
			to, data = client, instead
		}
		if _, err := to.Write(data); err != nil {
			return
		}
	}
}

// back passes answers on.
func (p *Proxy) back(server, client net.Conn) {
	defer p.drop(client, server)
	buf := make([]byte, 64<<10)
	for {
		n, err := server.Read(buf)
		if err != nil {
			return
		}
		p.mu.Lock()
		swallow, hold, delay := p.swallow, p.hold, p.delay
		if swallow {
			p.swallow = false
			p.lost++
		}
		p.mu.Unlock()
		if swallow {
			if hold {
				_, _ = io.Copy(io.Discard, server) // until the client has had enough
			}
			return
		}
		if delay > 0 {
			<-time.After(delay)
		}
		if _, err := client.Write(buf[:n]); err != nil {
			return
		}
	}
}
