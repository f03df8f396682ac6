package peer

import (
	"bufio"
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"
)

// server answers the calls that come on one connection.
type server struct {
	peer *Peer
	from Node
	turn uint64 // in which it was accepted: a higher one is newer; 0: it ends no other, nor is it ended
	conn net.Conn
	out  *sender

	ctx   context.Context // of all calls
	end   context.CancelFunc
	ended chan struct{} // closed when nothing of it is handled any more

	mu    sync.Mutex
	calls map[uint64]context.CancelFunc
	size  int // of all requests that are being handled, in bytes
}

// serve answers calls until the connection ends, or the same node makes a newer one with a turn.
// Nothing that came by an older one is handled any more when the first call is.
func (p *Peer) serve(conn net.Conn, from Node, turn uint64) {
	s := &server{peer: p, from: from, turn: turn, conn: conn, ended: make(chan struct{}), calls: map[uint64]context.CancelFunc{}}
	s.ctx, s.end = context.WithCancel(context.WithValue(p.ctx, callerKey{}, conn))
	defer close(s.ended)
	defer s.end()
	if turn > 0 {
		if !p.supersede(s) {
			return
		}
		defer p.retire(s)
	}
	var running sync.WaitGroup
	s.out = newSender(conn, func(error) { cut(conn) })
	running.Go(s.out.run)
	s.read(&running)
	s.end()
	s.out.end()
	cut(conn)
	running.Wait()
}

type callerKey struct{}

// Caller returns from which host a call came whose context it is, and for whom its certificate is, if it has one.
func Caller(ctx context.Context) (client, certificate string) {
	conn, ok := ctx.Value(callerKey{}).(net.Conn)
	if !ok {
		return "", ""
	}
	client, _, _ = net.SplitHostPort(conn.RemoteAddr().String())
	if secured, ok := conn.(*tls.Conn); ok {
		if all := secured.ConnectionState().PeerCertificates; len(all) > 0 {
			certificate = all[0].Subject.String()
		}
	}
	return client, certificate
}

// supersede ends the connection that a node had before, and takes its place; false: there is
// a newer one, whose requests may have been handled.
func (p *Peer) supersede(s *server) bool {
	for {
		p.mu.Lock()
		if p.newest[s.from.ID] > s.turn {
			p.mu.Unlock()
			return false
		}
		p.newest[s.from.ID] = s.turn
		older := p.served[s.from.ID]
		if older == nil {
			p.served[s.from.ID] = s
			p.mu.Unlock()
			return true
		}
		p.mu.Unlock()
		older.end()
		cut(older.conn)
		<-older.ended
	}
}

// retire makes room for the next connection of the node.
func (p *Peer) retire(s *server) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.served, s.from.ID)
}

// read takes requests until the connection ends, or is silent.
func (s *server) read(running *sync.WaitGroup) {
	// Twice what the caller waits, which gives up first and comes again.
	r := bufio.NewReaderSize(steady{Conn: s.conn, within: 2 * silence * s.peer.options.KeepAlive}, 64<<10)
	for s.ctx.Err() == nil {
		f, err := readFrame(r)
		if err != nil {
			return
		}
		switch f.kind {
		case request:
			if ctx, end, ok := s.begin(f); ok {
				running.Go(func() { s.handle(ctx, f); end() })
			} else if !s.out.send(frame{kind: busy, call: f.call}) {
				return
			}
		case cancel:
			s.mu.Lock()
			stop := s.calls[f.call]
			s.mu.Unlock()
			if stop != nil {
				stop()
			}
		case ping:
			if !s.out.send(frame{kind: pong}) {
				return
			}
		default:
			return
		}
	}
}

// begin makes room for a request; false: there is none.
func (s *server) begin(f frame) (ctx context.Context, end func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.calls) >= MaxCalls || s.size+len(f.body) > maxQueued || s.calls[f.call] != nil {
		return nil, nil, false
	}
	ctx, stop := context.WithCancel(s.ctx)
	if f.limit > 0 {
		stop()
		ctx, stop = context.WithTimeout(s.ctx, time.Duration(f.limit)*time.Millisecond)
	}
	s.calls[f.call] = stop
	s.size += len(f.body)
	return ctx, func() {
		stop()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.calls, f.call)
		s.size -= len(f.body)
	}, true
}

// handle answers one request. An answer that can't be sent ends the connection: its caller would
// wait for nothing.
func (s *server) handle(ctx context.Context, f frame) {
	told := frame{kind: failure, call: f.call}
	if handler := s.peer.options.Handler; handler == nil {
		told.body = []byte("this node answers no calls")
	} else if body, err := handler(ctx, s.from, f.body); err != nil {
		told.body = []byte(err.Error())
	} else {
		told.kind, told.body = answer, body
	}
	if len(told.body) > MaxMessage {
		told.kind, told.body = failure, []byte("the answer is too large")
	}
	if !s.out.send(told) {
		cut(s.conn)
	}
}
