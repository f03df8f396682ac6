package http

import (
	"context"
	"net"
	"net/http"
	"syscall"
	"time"
)

// connection is the network's side of a request: what net/http does not tell.
type connection struct {
	conn net.Conn
	raw  syscall.RawConn // nil where there is no socket

	showed func() // tells that a key was shown on it; nil where nobody asks
}

type connectionKey struct{}

// withConnection is a http.Server's ConnContext.
func withConnection(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, newConnection(socketOf(conn)))
}

// socketOf returns what a connection with TLS is made on, or the connection itself.
func socketOf(conn net.Conn) net.Conn {
	if wrapped, ok := conn.(interface{ NetConn() net.Conn }); ok {
		return wrapped.NetConn()
	}
	return conn
}

// showedKey tells that a request with a key has come on the connection.
func (c *connection) showedKey() {
	if c != nil && c.showed != nil {
		c.showed()
	}
}

func newConnection(conn net.Conn) *connection {
	c := &connection{conn: conn}
	if socket, ok := conn.(syscall.Conn); ok {
		c.raw, _ = socket.SyscallConn()
	}
	return c
}

// connectionOf returns the connection of a request; nil if it is not known.
func connectionOf(r *http.Request) *connection {
	c, _ := r.Context().Value(connectionKey{}).(*connection)
	return c
}

// control runs f on the socket. It reports false if there is none.
func (c *connection) control(f func(fd uintptr)) bool {
	return c != nil && c.raw != nil && c.raw.Control(f) == nil
}

// heard returns what tells whether the peer has acknowledged what had been written when it
// was asked first since it last said so. Over HTTP/2 others write to the connection as well,
// so that there may always be something on its way.
func (c *connection) heard() func() bool {
	var mark uint64 // of bytes; 0 where none is waited for
	return func() bool {
		acknowledged, pending, known := c.progress()
		switch {
		case !known, pending == 0, mark > 0 && acknowledged >= mark:
			mark = 0
			return true
		case mark == 0:
			mark = acknowledged + pending
		}
		return false
	}
}

const (
	// longestSilence is how long a peer of a stream may leave bytes without an
	// acknowledgement, however long its lease is.
	longestSilence = 30 * time.Second

	// An answer to a peer that has closed is looked after for about so long until it
	// is acknowledged or the connection is reset.
	firstVerdict = 100 * time.Microsecond
	lastVerdict  = 500 * time.Millisecond

	// shortestProbe is the least that keep-alive can count: seconds.
	shortestProbe = time.Second
)

// limitBuffer bounds how many bytes the system keeps that the peer has not acknowledged.
func (c *connection) limitBuffer(bytes int) {
	if c == nil {
		return
	}
	if tcp, ok := c.conn.(*net.TCPConn); ok {
		tcp.SetWriteBuffer(bytes)
	}
}

// limitSilence makes the connection of an attached lease end when its peer is
// not heard of for half the TTL, so that a machine that has died is
// noticed before its lease runs out.
func (c *connection) limitSilence(ttl time.Duration) {
	if c == nil {
		return
	}
	silence := min(ttl/2, longestSilence)
	if tcp, ok := c.conn.(*net.TCPConn); ok {
		tcp.SetKeepAliveConfig(net.KeepAliveConfig{
			Enable: true, Idle: max(silence/2, shortestProbe), Interval: max(silence/4, shortestProbe), Count: 2,
		})
	}
	c.setUserTimeout(silence)
}
