package system

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"fencepost/internal/redis/redistest"
)

// Links are the ways between the nodes of a cluster, of which each direction can be cut:
// what is sent there arrives only when it is mended, as over a network that drops packets.
// A node is told apart by the process that has the other end of a connection.
type Links struct {
	mu      sync.Mutex
	nodes   []*Gateway
	cut     map[[2]int]chan struct{} // from and to; closed when it is mended
	held    int                      // how many packets had to wait for that
	conns   map[net.Conn]bool
	closed  bool
	running sync.WaitGroup
}

// nobody is who is no node: a command.
const nobody = -1

func newLinks() *Links {
	return &Links{cut: map[[2]int]chan struct{}{}, conns: map[net.Conn]bool{}}
}

// Cut keeps what one node sends from another, until Mend.
func (l *Links) Cut(from, to int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut[[2]int{from, to}] == nil {
		l.cut[[2]int{from, to}] = make(chan struct{})
	}
}

// Mend lets everything through again, at first what was held back.
func (l *Links) Mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, mended := range l.cut {
		close(mended)
	}
	clear(l.cut)
}

// wait returns when the way from one node to another is open for a packet.
func (l *Links) wait(from, to int) {
	for first := true; ; first = false {
		l.mu.Lock()
		mended := l.cut[[2]int{from, to}]
		if mended != nil && first {
			l.held++
		}
		l.mu.Unlock()
		if mended == nil {
			return
		}
		<-mended
	}
}

// Held returns how many packets had to wait, or do.
func (l *Links) Held() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held
}

// count returns how many nodes there are.
func (l *Links) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.nodes)
}

// join notes the next node.
func (l *Links) join(g *Gateway) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.nodes = append(l.nodes, g)
}

// front listens for a node, and passes on to where it really is.
func (l *Links) front(node int, real string) (addr string, stop func() error, err error) {
	listener, err := redistest.Listen()
	if err != nil {
		return "", nil, err
	}
	l.running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			l.running.Go(func() { l.pass(conn, node, real) })
		}
	})
	return listener.Addr().String(), listener.Close, nil
}

// keep notes a connection, so that close ends it.
func (l *Links) keep(conn net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.conns[conn] = true
	}
	return !l.closed
}

func (l *Links) drop(conn net.Conn) {
	conn.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, conn)
}

func (l *Links) pass(caller net.Conn, to int, real string) {
	defer l.drop(caller)
	from := l.owner(caller)
	if !l.keep(caller) {
		return
	}
	l.wait(from, to) // its first packet
	callee, err := net.DialTimeout("tcp", real, 5*time.Second)
	if err != nil {
		return
	}
	defer l.drop(callee)
	if !l.keep(callee) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { l.copy(callee, caller, from, to) })
	both.Go(func() { l.copy(caller, callee, to, from) })
	both.Wait()
}

// copy passes on one direction; the end of a connection takes the same way.
func (l *Links) copy(dst, src net.Conn, from, to int) {
	buf := make([]byte, 64<<10)
	for {
		n, err := src.Read(buf)
		l.wait(from, to)
		if n > 0 {
			if _, err := dst.Write(buf[:n]); err != nil {
				src.Close()
				return
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				src.Close()
			}
			dst.Close()
			return
		}
	}
}

// close ends all connections.
func (l *Links) close() error {
	l.Mend()
	l.mu.Lock()
	l.closed = true
	for conn := range l.conns {
		conn.Close()
	}
	l.mu.Unlock()
	l.running.Wait()
	return nil
}

// owner returns which node has the other end of a connection.
func (l *Links) owner(conn net.Conn) int {
	inode := inodeOf(conn.RemoteAddr().(*net.TCPAddr).Port, conn.LocalAddr().(*net.TCPAddr).Port)
	if inode == "" {
		return nobody
	}
	l.mu.Lock()
	nodes := slices.Clone(l.nodes)
	l.mu.Unlock()
	for node, g := range nodes {
		p := g.current()
		if p == nil {
			continue
		}
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.cmd.Process.Pid))
		for _, file := range files {
			if target, err := os.Readlink(file); err == nil && target == "socket:["+inode+"]" {
				return node
			}
		}
	}
	return nobody
}

// inodeOf returns the socket of this machine that is connected from one port to another.
func inodeOf(from, to int) string {
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) > 9 && strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", from)) && strings.HasSuffix(fields[2], fmt.Sprintf(":%04X", to)) {
			return fields[9]
		}
	}
	return ""
}
