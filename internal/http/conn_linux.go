package http

import (
	"time"

	"golang.org/x/sys/unix"
)

// tcpEstablished is the state of a connection that neither side has closed.
const tcpEstablished = 1

// left reports whether the peer has closed, half-closed or reset the connection,
// also when bytes are still to be read before its end.
func (c *connection) left() (left bool) {
	c.control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		left = err == nil && info.State != tcpEstablished
	})
	return left
}

// acknowledged reports whether the peer has acknowledged all that was written.
func (c *connection) acknowledged() bool {
	pending := 0
	c.control(func(fd uintptr) { pending, _ = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ) })
	return pending == 0
}

// setUserTimeout ends the connection when written bytes are not acknowledged for
// so long. Where there is no TCP it does nothing.
func (c *connection) setUserTimeout(d time.Duration) {
	c.control(func(fd uintptr) {
		unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(max(d.Milliseconds(), 1)))
	})
}
