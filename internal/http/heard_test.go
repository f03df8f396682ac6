//go:build linux

package http

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// fill writes to a connection whose peer does not read, until nothing more fits.
func fill(t *testing.T, conn net.Conn) (written int64) {
	t.Helper()
	for block := make([]byte, 64<<10); ; {
		conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		n, err := conn.Write(block)
		written += int64(n)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return written
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// TestHeardBesideOthers: who shares its connection with others has heard what was written
// once it has acknowledged that, however much is on its way to them since.
func TestHeardBesideOthers(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	peer := dialTo(t, listener.Addr().String())
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	heard := newConnection(conn).heard()
	if !heard() {
		t.Error("nothing was written, and it has not been heard")
	}
	written := fill(t, conn)
	for range 3 {
		if heard() {
			t.Fatal("what nobody reads has been heard")
		}
	}
	if _, err := io.CopyN(io.Discard, peer, written); err != nil {
		t.Fatal(err)
	}
	fill(t, conn)
	if !heard() {
		t.Error("it has been heard, and what was written since counts")
	}
	for range 3 {
		if heard() {
			t.Fatal("what nobody reads has been heard")
		}
	}
}
