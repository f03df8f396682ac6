package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	slowConnections   = 5000
	deafStreams       = 1000
	greedyConnections = 32
	connectors        = 4

	// abuserKey is the variable with its key.
	abuserKey = "BENCH_KEY"

	tcpEstablished = 1 // include/net/tcp_states.h

	abuserAddress = "127.0.0.2" // the healthy client has 127.0.0.1
)

// abuseCounts are what an abuse came to.
type abuseCounts struct {
	Done, Denied int64
	Seconds      float64
}

func (c abuseCounts) perSecond(n int64) float64 {
	if c.Seconds == 0 {
		return 0
	}
	return float64(n) / c.Seconds
}

// abuser is a client that means no good.
type abuser struct {
	addr, key    string
	done, denied atomic.Int64
}

// serveAbuse abuses a gateway until standard input ends, and writes what that came to.
func serveAbuse(kind, addr string) error {
	if err := yieldCPU(); err != nil {
		return err
	}
	a := &abuser{addr: addr, key: os.Getenv(abuserKey)}
	work := map[string]func(context.Context, func()){"slow": a.drip, "streams": a.watch, "connects": a.connect, "requests": a.ask}[kind]
	if work == nil {
		return errors.New("there is no abuse " + kind)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	var begun time.Time
	work(ctx, func() {
		fmt.Println("ready")
		begun = time.Now()
		a.done.Store(0)
		a.denied.Store(0)
	})
	return json.NewEncoder(os.Stdout).Encode(abuseCounts{Done: a.done.Load(), Denied: a.denied.Load(), Seconds: time.Since(begun).Seconds()})
}

// yieldCPU leaves the cores to all others. Threads that are there already stay as they are, so
// the program begins anew.
func yieldCPU() error {
	const begun = "BENCH_YIELDS"
	if os.Getenv(begun) != "" {
		return nil
	}
	runtime.LockOSThread()
	if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return syscall.Exec(self, os.Args, append(os.Environ(), begun+"=1"))
}

// dial opens a connection, whose kernel keeps next to nothing of what is not read.
func (a *abuser) dial() (net.Conn, error) {
	dialer := net.Dialer{
		LocalAddr: &net.TCPAddr{IP: net.ParseIP(abuserAddress)}, Timeout: 5 * time.Second,
		Control: func(_, _ string, raw syscall.RawConn) error {
			return raw.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<10) })
		},
	}
	conn, err := dialer.Dial("tcp", a.addr)
	if err == nil {
		conn.(*net.TCPConn).SetLinger(0) // so that the ports don't run out
	}
	return conn, err
}

// fill opens what is not open, and counts.
func (a *abuser) fill(conns []net.Conn, request string) {
	for i := range conns {
		if conns[i] != nil {
			continue
		}
		conn, err := a.dial()
		if err == nil {
			_, err = io.WriteString(conn, request)
		}
		if err != nil {
			a.denied.Add(1)
			continue
		}
		conns[i] = conn
		a.done.Add(1)
	}
}

// closeEnded lets go of what the gateway has closed.
func closeEnded(conns []net.Conn) {
	for i, conn := range conns {
		if conn != nil && ended(conn.(*net.TCPConn)) {
			conn.Close()
			conns[i] = nil
		}
	}
}

// ended reports whether the gateway has closed a connection, without reading from it.
func ended(conn *net.TCPConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return true
	}
	ended := true
	raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		ended = err != nil || info.State != tcpEstablished
	})
	return ended
}

// keepOpen keeps so many connections open that have sent a request, and calls more each second.
func (a *abuser) keepOpen(ctx context.Context, most int, request string, ready func(), more func(net.Conn)) {
	conns := make([]net.Conn, most)
	for open := 0; open < most && ctx.Err() == nil; { // the gateway may take them by and by
		a.fill(conns, request)
		open = 0
		for _, conn := range conns {
			if conn != nil {
				open++
			}
		}
		closeEnded(conns)
	}
	ready()
	for tick := time.NewTicker(time.Second); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		closeEnded(conns)
		a.fill(conns, request)
		for _, conn := range conns {
			if conn != nil {
				more(conn)
			}
		}
	}
}

// drip keeps connections open whose headers never end.
func (a *abuser) drip(ctx context.Context, ready func()) {
	a.keepOpen(ctx, slowConnections, "GET /locks HTTP/1.1\r\nHost: localhost\r\nX-Slow: ", ready, func(conn net.Conn) { io.WriteString(conn, "x") })
}

// watch keeps streams of events open that it does not read.
func (a *abuser) watch(ctx context.Context, ready func()) {
	a.keepOpen(ctx, deafStreams, "GET /events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "+a.key+"\r\n\r\n", ready, func(net.Conn) {})
}

// connect opens connections and closes them.
func (a *abuser) connect(ctx context.Context, ready func()) {
	ready()
	a.inParallel(ctx, connectors, func() {
		for ctx.Err() == nil {
			conn, err := a.dial()
			if err != nil {
				a.denied.Add(1)
				continue
			}
			a.done.Add(1)
			conn.Close()
		}
	})
}

// ask acquires and releases, and asks again at once when it is refused.
func (a *abuser) ask(ctx context.Context, ready func()) {
	ready()
	a.inParallel(ctx, greedyConnections, func() {
		var c *client
		for ctx.Err() == nil {
			if c == nil {
				conn, err := a.dial()
				if err != nil {
					a.denied.Add(1)
					continue
				}
				c = clientOn(conn, fmt.Sprintf("abuse/%p", conn))
				c.identify(a.key)
			}
			err := c.pair()
			if err == nil {
				a.done.Add(2)
				continue
			}
			a.denied.Add(1)
			if !strings.Contains(err.Error(), "answered 429") {
				c.conn.Close()
				c = nil
			}
		}
	})
}

func (a *abuser) inParallel(ctx context.Context, many int, work func()) {
	ended := make(chan struct{}, many)
	for range many {
		go func() {
			work()
			ended <- struct{}{}
		}()
	}
	<-ctx.Done()
	for range many {
		<-ended
	}
}
