package redistest

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"strconv"
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
	links   map[*link]bool
	swallow bool   // the next answer is lost
	hold    bool   // its connection stays open
	instead []byte // answered in place of the server
	denied  int    // how often that was
	delay   time.Duration
	held    chan struct{} // answers are held back until it is closed; nil: they are not
	lag     time.Duration
	lagOnce bool
	lagged  int // how many requests were
	late    int // how many answers were held back or delayed
	refuse  bool
	cut     int // how many connections were closed or refused
	lost    int

	gag    bool // messages to subscribers are dropped
	gagged int

	accepted int
}

// link is one connection, of which the proxy has both sides.
type link struct {
	client, server net.Conn
	subscriber     bool // has asked to hear messages
	stalled        bool
	ended          chan struct{} // closed with the link
}

// close ends the link, once. p.mu is held.
func (l *link) close() {
	select {
	case <-l.ended:
	default:
		close(l.ended)
	}
	l.client.Close()
	l.server.Close()
}

// StartProxy starts a proxy in front of addr that ends with the test.
func StartProxy(t testing.TB, addr string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{target: addr, listener: l, links: map[*link]bool{}}
	p.running.Go(p.serve)
	t.Cleanup(p.close)
	return p
}

// URL returns the proxy's address as a URL of a Redis.
func (p *Proxy) URL() string { return "redis://" + p.listener.Addr().String() + "/0" }

// SwallowReply loses the next answer to a command: the server has done the work,
// the client never hears of it. The connection is cut at once, or with hold it
// stays open in silence. Connections of subscribers go on.
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

// Answered returns how often the proxy has answered in place of the server.
func (p *Proxy) Answered() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.denied
}

// Delay holds back every answer by d from now on.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Hold holds back every answer until release is called, which may be called again.
func (p *Proxy) Hold() (release func()) {
	held := make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = held
	return sync.OnceFunc(func() {
		close(held)
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.held == held {
			p.held = nil
		}
	})
}

// Lag makes requests travel for d from now on, or only the next one.
func (p *Proxy) Lag(d time.Duration, once bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lag, p.lagOnce = d, once
}

// Late returns how many answers were delayed or held back.
func (p *Proxy) Late() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.late
}

// Lagged returns how many requests were delayed.
func (p *Proxy) Lagged() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lagged
}

// Broken returns how many connections were closed by Cut, or refused.
func (p *Proxy) Broken() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cut
}

// Cut closes all connections; with refuse, new ones as well until Cut(false).
func (p *Proxy) Cut(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = refuse
	p.cut += len(p.links)
	for l := range p.links {
		l.close()
	}
}

// Redirect passes new connections on to addr, and closes those that there are.
func (p *Proxy) Redirect(addr string) {
	p.RedirectNew(addr)
	p.Cut(false)
}

// RedirectNew passes new connections on to addr, and leaves those that there are.
func (p *Proxy) RedirectNew(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = addr
}

// SwallowMessages drops every message to a subscriber from now on until it is
// called with false. What subscribers ask is answered as ever.
func (p *Proxy) SwallowMessages(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gag = on
}

// Swallowed returns how many messages were dropped.
func (p *Proxy) Swallowed() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gagged
}

// Accepted returns how many connections have been made.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// CutSubscribers closes the connections of subscribers, and returns how many
// there were.
func (p *Proxy) CutSubscribers() int { return p.harmSubscribers((*link).close) }

// StallSubscribers leaves the present connections of subscribers open in
// silence, as a network that drops every packet does, and returns how many
// there were.
func (p *Proxy) StallSubscribers() int {
	return p.harmSubscribers(func(l *link) { l.stalled = true })
}

func (p *Proxy) harmSubscribers(harm func(*link)) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for l := range p.links {
		if l.subscriber {
			n++
			harm(l)
		}
	}
	return n
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
		p.mu.Lock()
		target := p.target
		p.mu.Unlock()
		server, err := net.Dial("tcp", target)
		if err != nil {
			client.Close()
			continue
		}
		l := &link{client: client, server: server, ended: make(chan struct{})}
		if !p.keep(l) {
			l.close()
			continue
		}
		p.running.Go(func() { p.forward(l) })
		p.running.Go(func() { p.back(l) })
	}
}

func (p *Proxy) keep(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse {
		p.cut++
		return false
	}
	p.links[l] = true
	p.accepted++
	return true
}

func (p *Proxy) drop(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.close()
	delete(p.links, l)
}

// stall waits for the end of a link that has been stalled.
func (p *Proxy) stall(l *link) {
	p.mu.Lock()
	stalled := l.stalled
	p.mu.Unlock()
	if stalled {
		<-l.ended
	}
}

// forward passes requests on.
func (p *Proxy) forward(l *link) {
	defer p.drop(l)
	buf := make([]byte, 64<<10)
	for {
		n, err := l.client.Read(buf)
		if err != nil {
			return
		}
		p.mu.Lock()
		instead, lag := p.instead, p.lag
		if p.lagOnce {
			p.lag = 0
		}
		if bytes.Contains(buf[:n], []byte("\r\nsubscribe\r\n")) {
			l.subscriber = true // before the server knows: its answer is read as that of a subscriber
		}
		p.mu.Unlock()
		if lag > 0 {
			p.mu.Lock()
			p.lagged++
			p.mu.Unlock()
			<-time.After(lag)
		}
		p.stall(l)
		to, data := l.server, buf[:n]
		if instead != nil {
			to, data = l.client, instead
			p.mu.Lock()
			p.denied++
			p.mu.Unlock()
		}
		if _, err := to.Write(data); err != nil {
			return
		}
	}
}

// back passes answers on, those to subscribers one by one.
func (p *Proxy) back(l *link) {
	defer p.drop(l)
	in := bufio.NewReaderSize(l.server, 64<<10)
	buf := make([]byte, 64<<10)
	for {
		if _, err := in.Peek(1); err != nil {
			return
		}
		p.mu.Lock()
		subscriber, gag := l.subscriber, p.gag
		swallow, hold, delay, held := p.swallow && !subscriber, p.hold, p.delay, p.held
		if swallow {
			p.swallow = false
			p.lost++
		}
		p.mu.Unlock()
		if swallow {
			if hold {
				_, _ = io.Copy(io.Discard, l.server) // until the client has had enough
			}
			return
		}
		var data []byte
		var err error
		if subscriber {
			data, err = readReply(in)
		} else {
			var n int
			n, err = in.Read(buf)
			data = buf[:n]
		}
		if err != nil {
			return
		}
		if gag && bytes.HasPrefix(data, []byte("*3\r\n$7\r\nmessage\r\n")) {
			p.mu.Lock()
			p.gagged++
			p.mu.Unlock()
			continue
		}
		if delay > 0 || held != nil {
			p.mu.Lock()
			p.late++
			p.mu.Unlock()
		}
		if delay > 0 {
			<-time.After(delay)
		}
		if held != nil {
			select {
			case <-held:
			case <-l.ended:
			}
		}
		p.stall(l)
		if _, err := l.client.Write(data); err != nil {
			return
		}
	}
}

// readReply reads one reply of RESP2, as it stands.
func readReply(in *bufio.Reader) ([]byte, error) {
	line, err := in.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(string(bytes.TrimSpace(line[1:])))
	switch {
	case line[0] == '$' && err == nil && n >= 0:
		text := make([]byte, n+2)
		_, err = io.ReadFull(in, text)
		return append(line, text...), err
	case line[0] == '*' && err == nil:
		for range n {
			part, err := readReply(in)
			if err != nil {
				return nil, err
			}
			line = append(line, part...)
		}
	}
	return line, nil
}
