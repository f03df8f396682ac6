package peer

import (
	"net"
	"testing"
)

// Connections that say nothing keep no node out, and are not many at once.
func TestHandshakes(t *testing.T) {
	for name, credentials := range map[string]*Credentials{"secret": shared(t, secret), "none": nil} {
		t.Run(name, func(t *testing.T) {
			a, b := node(t, Options{Credentials: credentials, Handler: echo}), node(t, Options{Credentials: credentials})
			const more = 10
			var silent []net.Conn
			for range maxHandshakes + more {
				conn, err := net.Dial("tcp", a.Self().Addr)
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				silent = append(silent, conn)
			}
			if got, err := b.Call(bounded(t), a.Self(), []byte("x")); err != nil || string(got) != b.Self().Addr+" x" {
				t.Errorf("a node beside %d silent connections: %q, %v", len(silent), got, err)
			}
			for _, conn := range silent[:more] { // the first ones have made room
				within(conn, patience)
				if _, err := conn.Read(make([]byte, 1)); err == nil {
					t.Error("a silent connection was answered")
				}
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			if len(a.handshaking) > maxHandshakes {
				t.Errorf("%d handshakes are waited for, at most %d should be", len(a.handshaking), maxHandshakes)
			}
		})
	}
}
