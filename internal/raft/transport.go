package raft

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// streams is a Network as hashicorp/raft knows it. It closes its connections when it is
// closed, which hashicorp/raft leaves open.
type streams struct {
	Network
	self address

	mu     sync.Mutex
	open   map[*stream]struct{}
	closed bool
}

// stream is a connection of streams.
type stream struct {
	net.Conn
	of *streams
}

// Close implements net.Conn.
func (c *stream) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

func (s *streams) add(conn net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.Join(net.ErrClosed, conn.Close())
	}
	c := &stream{conn, s}
	s.open[c] = struct{}{}
	return c, nil
}

// Accept implements net.Listener.
func (s *streams) Accept() (net.Conn, error) { return s.add(s.Network.Accept()) }

// Dial implements raft.StreamLayer.
func (s *streams) Dial(to raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	return s.add(s.Network.Dial(string(to), timeout))
}

// Addr implements net.Listener: where the other nodes reach this one.
func (s *streams) Addr() net.Addr { return s.self }

// Close implements net.Listener.
func (s *streams) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	return errors.Join(s.Network.Close(), s.cut())
}

// cut closes all connections: what was asked of this node has no answer then.
func (s *streams) cut() (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.open {
		err = errors.Join(err, c.Conn.Close())
		delete(s.open, c)
	}
	return err
}

// address is that of a node.
type address string

// Network implements net.Addr.
func (address) Network() string { return "tcp" }

// String implements net.Addr.
func (a address) String() string { return string(a) }

// connectionsKept is how many idle connections to a node stay open.
const connectionsKept = 3

func newTransport(o *Options, done <-chan struct{}) *patient {
	all := &streams{Network: o.Network, self: address(o.Self.Address), open: map[*stream]struct{}{}}
	return &patient{
		NetworkTransport: raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
			Stream: all, MaxPool: connectionsKept, Timeout: ioTimeout, Logger: newLogger(o.Logger, "network"),
		}),
		streams: all, done: done, awaited: map[raft.ServerAddress]chan struct{}{},
	}
}

// newLogger returns a logger for hashicorp's libraries.
func newLogger(to *slog.Logger, name string) hclog.Logger {
	if !to.Enabled(context.Background(), slog.LevelError) {
		return hclog.NewNullLogger()
	}
	return hclog.New(&hclog.LoggerOptions{Name: name, Level: hclog.Info, Output: newLogWriter(to, time.Now), DisableTime: true})
}

// warningPause is how long a warning of hashicorp/raft is not repeated: of a member that is away it has several a second.
const warningPause = time.Minute

// mostWarnings is how many warnings are told apart.
const mostWarnings = 100

// logWriter passes lines on. What hashicorp/raft calls an error is a member that it does not
// reach, as a rule: the store says itself when it can't go on. A warning that comes again within warningPause is for debug.
type logWriter struct {
	to  *slog.Logger
	now func() time.Time

	mu     sync.Mutex
	warned map[string]time.Time // when each was written last, by what it says and of whom
}

func newLogWriter(to *slog.Logger, now func() time.Time) *logWriter {
	return &logWriter{to: to, now: now, warned: map[string]time.Time{}}
}

func (w *logWriter) Write(line []byte) (int, error) {
	level, text := slog.LevelInfo, strings.TrimSpace(string(line))
	warns := bytes.HasPrefix(line, []byte("[WARN]")) || bytes.HasPrefix(line, []byte("[ERROR]"))
	if _, rest, ok := strings.Cut(text, "]"); ok {
		text = strings.TrimSpace(rest)
	}
	if warns {
		if level = slog.LevelWarn; strings.Contains(text, errLeaves.Error()) || w.repeats(text) {
			level = slog.LevelDebug
		}
	}
	w.to.Log(context.Background(), level, text)
	return len(line), nil
}

// repeats reports whether a warning was written less than warningPause ago, but for its time-out and error.
func (w *logWriter) repeats(text string) bool {
	what, _, _ := strings.Cut(text, " backoff time=")
	what, _, _ = strings.Cut(what, " error=")
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	if last, ok := w.warned[what]; ok && now.Sub(last) < warningPause {
		return true
	}
	if len(w.warned) >= mostWarnings {
		clear(w.warned)
	}
	w.warned[what] = now
	return false
}
