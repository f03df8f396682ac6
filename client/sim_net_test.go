package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// simLatency is how long what is written takes to be read at most, in a network without trouble.
const simLatency = 5 * time.Millisecond

// simDropped is how much later what the proxy drops its client with comes to the gateway at most, and how much later than that the end.
const simDropped = time.Second

var errSimReset = &net.OpError{Op: "read", Net: "sim", Err: syscall.ECONNRESET}

// simReach is what comes of a new connection.
type simReach int

const (
	simReached simReach = iota
	simRefused          // at once, as by a host where nobody listens
	simUnheard          // no word ever comes back
)

// simNet is the network between one client and all gateways, with the proxy in it, which acknowledges all
// that either writes.
type simNet struct {
	sim    *simulation
	client *simClient

	mu      sync.Mutex
	dice    *rand.Rand // of latencies
	reach   simReach
	latency time.Duration // one way, at most, over connections that are long
	drops   bool          // the proxy drops every other request: see drop
	mute    [2]bool       // what is written in a direction is lost, silently: see simDirection
	conns   map[*simConn]bool
	read    time.Time // when the client read something last
}

// simDirection is the way of bytes over a connection.
type simDirection int

const (
	toGateway simDirection = iota
	toClient
)

// simConn is a connection; the end of either side is a simEnd.
type simConn struct {
	net     *simNet
	gateway *simGateway
	pipes   [2]*simPipe

	reads   int       // of the client; the mutex of net guards these
	said    time.Time // when the gateway wrote last that another request has the lease of the stream
	told    time.Time // when the client read that
	carried time.Time // when the gateway read something last
}

// dial connects the client with a gateway.
func (n *simNet) dial(ctx context.Context, g *simGateway) (net.Conn, error) {
	if err := n.client.awake(ctx); err != nil {
		return nil, err
	}
	n.mu.Lock()
	reach := n.reach
	n.mu.Unlock()
	listener, state := g.listening()
	if reach == simReached && state != simReached {
		reach = state
	}
	switch reach {
	case simRefused:
		return nil, &net.OpError{Op: "dial", Net: "sim", Err: syscall.ECONNREFUSED}
	case simUnheard:
		<-ctx.Done()
		return nil, &net.OpError{Op: "dial", Net: "sim", Err: ctx.Err()}
	}
	c := &simConn{net: n, gateway: g}
	for d := range c.pipes {
		c.pipes[d] = &simPipe{changed: make(chan struct{})}
	}
	n.mu.Lock()
	for d, mute := range n.mute {
		c.pipes[d].lost, c.pipes[d].long = mute, n.dice.IntN(2) == 0
	}
	n.conns[c] = true
	n.mu.Unlock()
	if !listener.offer(&simEnd{simConn: c, reads: toGateway}) {
		return nil, &net.OpError{Op: "dial", Net: "sim", Err: syscall.ECONNREFUSED}
	}
	return &simEnd{simConn: c, reads: toClient}, nil
}

// delay returns how long the next bytes take.
func (n *simNet) delay(long bool) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	most := simLatency
	if long {
		most = max(most, n.latency)
	}
	return time.Duration(n.dice.Int64N(int64(most)))
}

// all returns the connections that are open, of one gateway or, with nil, of all.
func (n *simNet) all(g *simGateway) (conns []*simConn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		if g == nil || c.gateway == g {
			conns = append(conns, c)
		}
	}
	return conns
}

func (n *simNet) set(change func(*simNet)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change(n)
}

// silence has what is written in a direction be lost from now on, and no connection that is open now recovers.
func (n *simNet) silence(d simDirection) {
	n.set(func(n *simNet) { n.mute[d] = true })
	for _, c := range n.all(nil) {
		c.pipes[d].lose()
	}
}

// cut breaks the connection at the ends that are named. The other end hears nothing more, and does not know.
func (c *simConn) cut(atGateway, atClient bool, why error) {
	for _, p := range c.pipes {
		p.lose()
	}
	if atGateway {
		c.pipes[toGateway].finish(why)
	}
	if atClient {
		c.pipes[toClient].finish(why)
	}
}

// dropsNext reports whether the proxy drops the client that writes next, and how late it passes that on.
func (n *simNet) dropsNext() (late time.Duration, dropped bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.drops || n.dice.IntN(2) == 0 {
		return 0, false
	}
	return time.Duration(n.dice.Int64N(int64(simDropped))), true
}

// drop breaks the connection at the client's end. What it has written until now comes to the gateway all the same, and the end later.
func (c *simConn) drop(comes time.Time) {
	for _, p := range c.pipes {
		p.lose()
	}
	c.pipes[toClient].finish(errSimReset)
	c.net.mu.Lock()
	keeps := time.Until(comes) + time.Duration(c.net.dice.Int64N(int64(simDropped)))
	c.net.mu.Unlock()
	c.net.sim.running.Go(func() {
		advance(keeps)
		c.pipes[toGateway].finish(io.EOF)
	})
}

// seen reports since when an end knows that the connection is over; the zero time if it does not.
func (c *simConn) seen(d simDirection) time.Time {
	p := c.pipes[d]
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.told
}

// isClosed reports whether the client has closed the connection.
func (c *simConn) isClosed() bool {
	p := c.pipes[toClient]
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// isReplaced returns when the gateway wrote last that another request has the lease of the stream, and when the client read that; the zero
// time: it has not.
func (c *simConn) isReplaced() (said, read time.Time) {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	return c.said, c.told
}

// carriedOut returns when what the gateway read last was carried out, at the latest: it asks the store twice.
func (c *simConn) carriedOut() time.Time {
	c.gateway.mu.Lock()
	lags := c.gateway.lags
	c.gateway.mu.Unlock()
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	return c.carried.Add(2 * lags)
}

// isOfReplaced reports whether what is written or read says that another request has the lease.
func isOfReplaced(b []byte) bool { return bytes.Contains(b, []byte(`"replaced"`)) }

// read returns how often the client has read something.
func (c *simConn) read() int {
	c.net.mu.Lock()
	defer c.net.mu.Unlock()
	return c.reads
}

// heard returns when the client read something last.
func (n *simNet) heard() time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.read
}

// simChunk is what was written at once, and when it can be read.
type simChunk struct {
	data []byte
	at   time.Time
}

// simPipe is one direction of a connection. Who writes is never held up.
type simPipe struct {
	mu      sync.Mutex
	chunks  []simChunk
	end     error         // what who reads is told after the chunks
	lost    bool          // what is written is lost
	long    bool          // in a slow network it takes longer
	closed  bool          // who reads has closed the connection
	told    time.Time     // when who reads was told of the end
	changed chan struct{} // closed at each change
	limit   time.Time     // until when a read may take; zero: for ever
}

// change is called with the mutex held, after a change.
func (p *simPipe) change() {
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *simPipe) lose() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost = true
}

func (p *simPipe) finish(why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.end == nil {
		p.end = why
		p.change()
	}
}

// simEnd is one end of a connection.
type simEnd struct {
	*simConn
	reads simDirection
}

func (e *simEnd) ofClient() bool { return e.reads == toClient }

// Read implements net.Conn. A client that stands still reads nothing.
func (e *simEnd) Read(b []byte) (int, error) {
	for p := e.pipes[e.reads]; ; {
		if e.ofClient() {
			e.net.client.awake(context.Background())
		}
		p.mu.Lock()
		now := time.Now()
		wait := time.Duration(-1)
		switch {
		case p.closed:
			p.mu.Unlock()
			return 0, net.ErrClosed
		case !p.limit.IsZero() && !now.Before(p.limit):
			p.mu.Unlock()
			return 0, os.ErrDeadlineExceeded
		case len(p.chunks) > 0 && !now.Before(p.chunks[0].at):
			n := copy(b, p.chunks[0].data)
			if p.chunks[0].data = p.chunks[0].data[n:]; len(p.chunks[0].data) == 0 {
				p.chunks = p.chunks[1:]
			}
			p.mu.Unlock()
			e.net.set(func(net *simNet) {
				if !e.ofClient() {
					e.carried = now
					return
				}
				net.read = now
				if e.simConn.reads++; isOfReplaced(b[:n]) {
					e.simConn.told = now
				}
			})
			return n, nil
		case len(p.chunks) > 0:
			wait = p.chunks[0].at.Sub(now)
		case p.end != nil:
			if p.told.IsZero() {
				p.told = now
			}
			err := p.end
			p.mu.Unlock()
			return 0, err
		}
		if !p.limit.IsZero() && (wait < 0 || p.limit.Sub(now) < wait) {
			wait = p.limit.Sub(now)
		}
		changed := p.changed
		p.mu.Unlock()
		if wait < 0 {
			<-changed
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// Write implements net.Conn.
func (e *simEnd) Write(b []byte) (int, error) {
	mine, its := e.pipes[e.reads], e.pipes[1-e.reads]
	mine.mu.Lock()
	err := mine.end
	if err != nil && mine.told.IsZero() {
		mine.told = time.Now()
	}
	if mine.closed {
		err = net.ErrClosed
	} else if errors.Is(err, io.EOF) { // a half that is closed can be written to; here it is a whole
		err = &net.OpError{Op: "write", Net: "sim", Err: syscall.EPIPE}
	}
	mine.mu.Unlock()
	if err != nil {
		return 0, err
	}
	at := time.Now().Add(e.net.delay(its.long))
	if !e.ofClient() && isOfReplaced(b) {
		e.net.set(func(*simNet) { e.said, e.simConn.told = time.Now(), time.Time{} })
	}
	if e.ofClient() {
		at = e.net.client.wakes(at)
		if late, dropped := e.net.dropsNext(); dropped {
			at = at.Add(late)
			defer e.drop(at)
		}
	}
	its.mu.Lock()
	defer its.mu.Unlock()
	if its.lost || its.end != nil {
		return len(b), nil
	}
	if n := len(its.chunks); n > 0 && at.Before(its.chunks[n-1].at) {
		at = its.chunks[n-1].at
	}
	its.chunks = append(its.chunks, simChunk{append([]byte(nil), b...), at})
	its.change()
	return len(b), nil
}

// Close implements net.Conn. The other end hears of it, unless that is lost.
func (e *simEnd) Close() error {
	mine, its := e.pipes[e.reads], e.pipes[1-e.reads]
	mine.mu.Lock()
	if !mine.closed {
		mine.closed = true
		mine.change()
	}
	mine.mu.Unlock()
	e.net.set(func(n *simNet) { delete(n.conns, e.simConn) })
	its.mu.Lock()
	lost := its.lost
	its.mu.Unlock()
	if !lost {
		its.finish(io.EOF)
	}
	return nil
}

// SetReadDeadline implements net.Conn.
func (e *simEnd) SetReadDeadline(t time.Time) error {
	p := e.pipes[e.reads]
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limit = t
	p.change()
	return nil
}

// SetDeadline implements net.Conn.
func (e *simEnd) SetDeadline(t time.Time) error { return e.SetReadDeadline(t) }

// SetWriteDeadline implements net.Conn: nobody is held up.
func (e *simEnd) SetWriteDeadline(time.Time) error { return nil }

// simAddr is an address of a network that there is not.
type simAddr string

func (simAddr) Network() string  { return "sim" }
func (a simAddr) String() string { return string(a) }

// LocalAddr implements net.Conn.
func (e *simEnd) LocalAddr() net.Addr { return simAddr("10.0.0.1:80") }

// RemoteAddr implements net.Conn.
func (e *simEnd) RemoteAddr() net.Addr { return simAddr(fmt.Sprintf("10.0.1.%d:80", e.net.client.n)) }

// simListener takes the connections of one run of a gateway.
type simListener struct {
	arrived chan net.Conn
	once    sync.Once
	closed  chan struct{}
}

func newSimListener() *simListener {
	return &simListener{arrived: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *simListener) offer(c net.Conn) bool {
	select {
	case l.arrived <- c:
		return true
	case <-l.closed:
		return false
	}
}

// Accept implements net.Listener.
func (l *simListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.arrived:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *simListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (l *simListener) Addr() net.Addr { return simAddr("10.0.0.1:80") }
