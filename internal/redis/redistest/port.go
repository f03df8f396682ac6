package redistest

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
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

// FreePort returns a TCP port of loopback that nobody listens on, and never the same
// one twice in a process. It stays free of outgoing connections, so that a server can
// be started on it again.
func FreePort() (int, error) {
	takenMu.Lock()
	defer takenMu.Unlock()
	for range 100 {
		port := firstPort + rand.IntN(pastPorts-firstPort)
		if taken[port] {
			continue
		}
		if l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			taken[port] = true
			return port, l.Close()
		}
	}
	return 0, errors.New("no TCP port of loopback is free")
}
