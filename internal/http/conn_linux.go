package http

import (
	"encoding/binary"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// States of a connection, as the kernel numbers them (include/net/tcp_states.h).
const (
	tcpEstablished = 1 // neither side has closed
	tcpClose       = 7 // reset, or both have closed
)

// state returns the state of the connection; tcpEstablished if it can't be told.
func (c *connection) state() uint8 {
	l := socketStates.Get().(*socketState)
	defer socketStates.Put(l)
	l.state = tcpEstablished
	c.control(l.take)
	return l.state
}

// socketState reads the state of a socket. Every grant needs two; they are kept, so that they
// are not allocated each time.
type socketState struct {
	take  func(fd uintptr)
	state uint8
}

var socketStates = sync.Pool{New: func() any {
	l := &socketState{}
	l.take = func(fd uintptr) {
		// The state is the first byte of tcp_info; the kernel writes no more than is asked for.
		if head, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			var b [4]byte
			binary.NativeEndian.PutUint32(b[:], uint32(head))
			l.state = b[0]
		}
	}
	return l
}}

// left reports whether the peer has closed, half-closed or reset the connection,
// also when bytes are still to be read before its end.
func (c *connection) left() bool { return c.state() != tcpEstablished }

// leftUntold reports whether the peer had closed the connection before what was
// written last reached its system, so that it can't have read it. The end of its
// stream came (that carries an acknowledgement of all it had received) and what was
// written is not acknowledged: if a reset followed, nobody was there to read it. While
// none has, the peer may have closed its half only, or be far away; that is waited for.
// A peer that resets the connection without an end before it may have read everything,
// or nothing: it counts as told.
func (c *connection) leftUntold() bool {
	for wait := firstVerdict; ; wait *= 2 {
		switch state := c.state(); {
		case state == tcpEstablished, c.acknowledged():
			return false
		case state == tcpClose:
			return c.error() == unix.EPIPE // after an end; else it is ECONNRESET
		case wait > lastVerdict:
			return false
		}
		time.Sleep(wait)
	}
}

// error returns the error that the connection has ended with, and clears it.
func (c *connection) error() (err error) {
	c.control(func(fd uintptr) {
		if n, failed := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR); failed == nil && n != 0 {
			err = unix.Errno(n)
		}
	})
	return err
}

// acknowledged reports whether the peer has acknowledged all that was written.
func (c *connection) acknowledged() bool {
	pending := 0
	c.control(func(fd uintptr) { pending, _ = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ) })
	return pending == 0
}

// progress returns how many bytes the peer has acknowledged and how many have been written
// without that, of all that is on the connection. It reports false if that can't be told.
func (c *connection) progress() (acknowledged, pending uint64, known bool) {
	c.control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return
		}
		n, err := unix.IoctlGetInt(int(fd), unix.TIOCOUTQ)
		acknowledged, pending, known = info.Bytes_acked, uint64(n), err == nil
	})
	return acknowledged, pending, known
}

// setUserTimeout ends the connection when written bytes are not acknowledged for
// so long. Where there is no TCP it does nothing.
func (c *connection) setUserTimeout(d time.Duration) {
	c.control(func(fd uintptr) {
		unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(max(d.Milliseconds(), 1)))
	})
}
