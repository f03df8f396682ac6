package peer

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"
)

const (
	// DefaultKeepAlive is how often a connection of calls is tried. A machine with a starved
	// processor keeps four of them.
	DefaultKeepAlive = 500 * time.Millisecond

	// silence is after how many of these without a word a connection is given up.
	silence = 4

	// shakeTimeout bounds how long it takes until both sides know each other.
	shakeTimeout = 5 * time.Second

	// maxHandshakes is how many connections may be under way until then, and maxConns how many
	// there are in all: each of up to 16 nodes makes a few. One handshake more, and the one that
	// takes longest has to go: who belongs here is through within milliseconds, so
	// others that say nothing keep nobody out.
	maxHandshakes, maxConns = 64, 512

	// telling is how often at most it is logged that somebody is refused.
	telling = 10 * time.Second
)

// Handler answers the calls of a node, whose ID is empty if it is a command. It has to return
// when ctx ends, which it does at the caller's deadline, or when the caller has gone. It is
// called from many goroutines.
type Handler func(ctx context.Context, from Node, request []byte) ([]byte, error)

// Options say who a node is and whom it lets in.
type Options struct {
	Self   Node   // with an empty ID nothing is listened on: it is a command, which only calls
	Listen string // host:port to listen on; empty: Self.Addr

	// Format is the version of what nodes agree on. Those that have another one, and say who they
	// are, are not let in; commands are.
	Format int

	// Credentials let nodes in; nil: only loopback is listened on, and dialled.
	Credentials *Credentials

	Handler   Handler       // of calls; nil refuses them
	KeepAlive time.Duration // default: DefaultKeepAlive; the same at all nodes
	Logger    *slog.Logger  // default: none
}

// Peer is this node's end of all connections of its cluster.
type Peer struct {
	options  Options
	log      *slog.Logger
	listener net.Listener // nil for a command
	streams  *StreamLayer

	ctx     context.Context // ends with Close
	end     context.CancelFunc
	running sync.WaitGroup

	mu          sync.Mutex
	closed      bool
	conns       map[net.Conn]bool  // all that came
	handshaking []net.Conn         // those of them of which it is not known yet who made them, in order
	links       map[string]*link   // of calls that are made, by the node's String
	served      map[string]*server // of calls that are answered, by the caller's id
	newest      map[string]uint64  // the turn of the newest of these that there was
	told        map[string]time.Time
}

// Open listens, unless the node is a command.
func Open(o Options) (*Peer, error) {
	o.Listen, o.KeepAlive = cmp.Or(o.Listen, o.Self.Addr), cmp.Or(o.KeepAlive, DefaultKeepAlive)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Peer{
		options: o, log: o.Logger,
		conns: map[net.Conn]bool{}, links: map[string]*link{}, served: map[string]*server{}, newest: map[string]uint64{}, told: map[string]time.Time{},
	}
	p.ctx, p.end = context.WithCancel(context.Background())
	p.streams = &StreamLayer{peer: p, conns: make(chan net.Conn), closed: make(chan struct{})}
	if o.Self.ID == "" {
		return p, nil
	}
	if o.Credentials == nil && !IsLoopback(o.Listen) {
		return nil, fmt.Errorf("%s: %w", o.Listen, errExposed)
	}
	listener, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return nil, err
	}
	p.listener = listener
	p.running.Go(p.accept)
	return p, nil
}

// Self returns who this node is.
func (p *Peer) Self() Node { return p.options.Self }

// Close ends all connections and calls, and returns when everything has ended. It may be
// called twice.
func (p *Peer) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.end()
	_ = p.streams.Close()
	var err error
	if p.listener != nil {
		if err = p.listener.Close(); errors.Is(err, net.ErrClosed) {
			err = nil
		}
	}
	p.mu.Lock()
	for conn := range p.conns {
		conn.Close()
	}
	for _, l := range p.links {
		l.fail(errClosed)
	}
	p.mu.Unlock()
	p.running.Wait()
	return err
}

var errClosed = errors.New("this node is being stopped")

// spawn starts what Close waits for; false: it is too late.
func (p *Peer) spawn(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.running.Go(f)
	return true
}

// keep notes a connection that came, so that Close ends it; false: there are too many. crowded
// is another one that had to go for it; nil: none.
func (p *Peer) keep(conn net.Conn) (kept bool, crowded net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.conns) >= maxConns {
		return false, nil
	}
	if len(p.handshaking) >= maxHandshakes {
		crowded = p.handshaking[0]
		crowded.Close()
		p.handshaking = slices.Delete(p.handshaking, 0, 1)
	}
	p.conns[conn], p.handshaking = true, append(p.handshaking, conn)
	return true, crowded
}

// known notes that it is clear who made a connection, or that nobody will say; false: it had
// to go before that.
func (p *Peer) known(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := slices.Index(p.handshaking, conn)
	if at >= 0 {
		p.handshaking = slices.Delete(p.handshaking, at, at+1)
	}
	return at >= 0
}

func (p *Peer) forget(conn net.Conn) {
	conn.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, conn)
}

// alive notices that the other machine has gone without a word.
var alive = net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3}

// accept takes connections until Close.
func (p *Peer) accept() {
	for turn := uint64(1); ; turn++ {
		conn, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no descriptors are left, most likely; some will come back
			p.tell("no connection of another node can be taken", "error", err)
			select {
			case <-time.After(100 * time.Millisecond):
			case <-p.ctx.Done():
				return
			}
			continue
		}
		kept, crowded := p.keep(conn)
		if (!kept || crowded != nil) && p.ctx.Err() == nil {
			p.tell("too many connections are under way to this node of the cluster", "address", cmp.Or(crowded, conn).RemoteAddr().String())
		}
		if !kept {
			conn.Close()
		} else if !p.spawn(func() { p.welcome(conn, turn) }) {
			p.known(conn)
			p.forget(conn)
		}
	}
}

// welcome finds out who has come and for what, and serves that.
func (p *Peer) welcome(conn net.Conn, turn uint64) {
	_ = conn.(*net.TCPConn).SetKeepAliveConfig(alive)
	within(conn, shakeTimeout)
	secured, err := p.options.Credentials.server(conn)
	var said hello
	if err == nil {
		said, err = p.meet(secured)
	}
	if !p.known(conn) { // which has been told
		p.forget(conn)
		return
	}
	if err != nil {
		if p.ctx.Err() == nil {
			p.tell("a connection to this node of the cluster was refused", "address", conn.RemoteAddr().String(), "node", said.Addr, "error", err)
		}
		p.forget(conn)
		return
	}
	within(secured, 0)
	switch said.For {
	case forRaft:
		if p.streams.give(&stream{Conn: secured, end: func() { p.forget(conn) }}) {
			return // it is Raft's now, which closes it
		}
	case forCall:
		if said.ID == "" || said.To == "" { // a command, or one who asks whoever is here
			turn = 0
		}
		p.serve(secured, Node{ID: said.ID, Addr: said.Addr}, turn)
	}
	p.forget(conn)
}

// tell logs a warning, the same one now and then only.
func (p *Peer) tell(message string, args ...any) {
	p.mu.Lock()
	now := time.Now()
	due := now.Sub(p.told[message]) >= telling
	if due {
		p.told[message] = now
	}
	p.mu.Unlock()
	if due {
		p.log.Warn(message, args...)
	}
}

// Identify returns who answers at an address.
func (p *Peer) Identify(ctx context.Context, addr string) (Node, error) {
	conn, found, err := p.dial(ctx, Node{Addr: addr}, forID)
	if err != nil {
		return found, err
	}
	return found, conn.Close()
}

// cut closes a connection without a word: to take leave may take time.
func cut(conn net.Conn) {
	if secured, ok := conn.(*tls.Conn); ok {
		conn = secured.NetConn()
	}
	conn.Close()
}

// dial connects to a node. found is who answered, as far as that is known.
func (p *Peer) dial(ctx context.Context, to Node, what string) (conn net.Conn, found Node, err error) {
	if p.options.Credentials == nil && !IsLoopback(to.Addr) {
		return nil, found, fmt.Errorf("%s: %w", to.Addr, errExposed)
	}
	ctx, cancel := context.WithTimeout(ctx, shakeTimeout)
	defer cancel()
	plain, err := (&net.Dialer{KeepAliveConfig: alive}).DialContext(ctx, "tcp", to.Addr)
	if err != nil {
		return nil, found, err
	}
	stop := context.AfterFunc(ctx, func() { within(plain, time.Nanosecond) })
	conn, err = p.options.Credentials.client(plain, to.Addr)
	if err == nil {
		found, err = p.introduce(conn, to, what)
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		plain.Close()
		if ctx.Err() != nil {
			err = fmt.Errorf("%s does not answer in time: %w", to.Addr, err)
		}
		return nil, found, err
	}
	return conn, found, nil
}
