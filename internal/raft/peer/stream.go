package peer

import (
	"context"
	"net"
	"sync"
	"time"
)

// StreamLayer carries Raft's own messages; addresses are what Node.String returns.
type StreamLayer struct {
	peer   *Peer
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

// StreamLayer returns what Raft's transport is to use. There is one of them a Peer.
func (p *Peer) StreamLayer() *StreamLayer { return p.streams }

// Accept implements net.Listener.
func (s *StreamLayer) Accept() (net.Conn, error) {
	select {
	case conn := <-s.conns:
		return conn, nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

// give hands a connection to Accept; false: nobody accepts any more.
func (s *StreamLayer) give(conn net.Conn) bool {
	select {
	case s.conns <- conn:
		return true
	case <-s.closed:
		return false
	}
}

// Close implements net.Listener. What was accepted stays open until the Peer is closed.
func (s *StreamLayer) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

// Addr implements net.Listener: it is the Node.
func (s *StreamLayer) Addr() net.Addr { return s.peer.options.Self }

// Dial connects to a node, as Node.String has it. Who answers is the node with the id that is meant, or there is
// an error.
func (s *StreamLayer) Dial(address string, timeout time.Duration) (net.Conn, error) {
	to, err := ParseNode(address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(s.peer.ctx, timeout)
	defer cancel()
	conn, _, err := s.peer.dial(ctx, to, forRaft)
	return conn, err
}

// stream is a connection that came, and is Raft's.
type stream struct {
	net.Conn
	end func()
}

// Close closes the connection, and forgets it.
func (s *stream) Close() error {
	err := s.Conn.Close()
	s.end()
	return err
}
