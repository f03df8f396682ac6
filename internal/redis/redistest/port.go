package redistest

import (
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
)

// Ports that no system takes for a connection it opens (Linux: from 32768 on, IANA:
// from 49152 on). A port from there could be taken while a killed server is away, also
// by a client that dials the server and, by chance, from that port.
const (
	firstPort = 10_000
	pastPorts = 32_768
)

var (
	takenMu sync.Mutex
	taken   = map[int]bool{}
)

// processesTried has Go have made, once, the process with which it finds out how it can start others: it does so before the first one that
// is started, or found, and without syscall.ForkLock.
var processesTried = sync.OnceFunc(func() {
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Release()
	}
})

// FreePort returns a TCP port of loopback that nobody listens on, and never the same
// one twice in a process. It stays free of outgoing connections, so that a server can
// be started on it again. Who listens in this process takes Listen.
func FreePort() (int, error) {
	processesTried()
	// A process that is being started has copies of our files until its program is loaded, and
	// a copy would keep the port taken.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	l, err := Listen()
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// FreeAddr returns host and port of such a port.
func FreeAddr(t testing.TB) string {
	t.Helper()
	port, err := FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return addr(port)
}

// Listen listens on a port like those of FreePort.
func Listen() (net.Listener, error) {
	takenMu.Lock()
	defer takenMu.Unlock()
	for range 100 {
		port := firstPort + rand.IntN(pastPorts-firstPort)
		if taken[port] {
			continue
		}
		if l, err := net.Listen("tcp", addr(port)); err == nil {
			taken[port] = true
			return l, nil
		}
	}
	return nil, errors.New("no TCP port of loopback is free")
}

func addr(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
