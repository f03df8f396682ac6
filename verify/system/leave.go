package system

import (
	"errors"
	"net"
	"syscall"
	"time"
)

// Sharp is how long the last look for an answer and the close may take together: a
// client that was put aside by the machine in between may have been answered first.
const Sharp = 20 * time.Microsecond

// Pause waits with the precision that a moment within a request needs: timers of the
// runtime are off by up to a millisecond.
func Pause(d time.Duration) {
	if d > 0 {
		wait := syscall.NsecToTimespec(int64(d))
		_ = syscall.Nanosleep(&wait, nil) // a signal ends it early: another random moment
	}
}

// CloseUnanswered closes a connection, and reports whether its answer had come just
// before, and how long that look and the close took: with another hold on the socket
// they are two system calls in a row. reset: it closes with RST, else with FIN.
func CloseUnanswered(conn *net.TCPConn, reset bool) (late bool, took time.Duration, err error) {
	if reset {
		err = conn.SetLinger(0)
	}
	raw, rawErr := conn.SyscallConn()
	if err = errors.Join(err, rawErr); err != nil {
		return false, 0, err
	}
	var held int
	var dupErr error
	if err := raw.Control(func(fd uintptr) { held, dupErr = syscall.Dup(int(fd)) }); err != nil || dupErr != nil {
		return false, 0, errors.Join(err, dupErr)
	}
	err = conn.Close()
	begun := time.Now()
	n, _, peekErr := syscall.Recvfrom(held, make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	closeErr := syscall.Close(held)
	return peekErr == nil && n > 0, time.Since(begun), errors.Join(err, closeErr)
}

// Answered reports whether a byte of the answer has reached this side.
func Answered(conn *net.TCPConn) (yes bool) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) {
		n, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		yes = err == nil && n > 0
	})
	return yes
}
