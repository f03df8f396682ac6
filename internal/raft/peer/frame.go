package peer

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

const (
	// MaxMessage bounds a request and an answer, in bytes.
	MaxMessage = 64 << 20

	// MaxCalls is how many calls may be under way on a connection; more are refused at once.
	MaxCalls = 4096

	// maxQueued bounds what waits to be sent on a connection, and the requests on it that are
	// being handled, in bytes: of either one more than that is refused.
	maxQueued = 128 << 20

	// writeTimeout bounds how long a connection takes nothing until it is given up; what is large
	// has longer: see sendRate.
	writeTimeout = 5 * time.Second
)

// kind is what a frame is.
type kind byte

const (
	request kind = 1 + iota
	answer
	failure // an answer that is an error of the handler
	busy    // there are too many calls; it was not handled
	cancel  // nobody waits for the answer any more
	ping
	pong
)

// headSize is the size of what precedes the body of a frame: its length, kind, the number of the
// call, and of a request the time in ms that it has.
const headSize = 4 + 1 + 8 + 4

type frame struct {
	kind  kind
	call  uint64
	limit uint32
	body  []byte
}

var errFrame = errors.New("the other side did not send a frame")

func readFrame(r *bufio.Reader) (f frame, err error) {
	var head [headSize]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return f, err
	}
	length := binary.BigEndian.Uint32(head[:])
	f.kind, f.call, f.limit = kind(head[4]), binary.BigEndian.Uint64(head[5:]), binary.BigEndian.Uint32(head[13:])
	if length > MaxMessage || f.kind < request || f.kind > pong {
		return f, errFrame
	}
	f.body = make([]byte, length)
	_, err = io.ReadFull(r, f.body)
	return f, err
}

// steady reads from a connection, and notes that something came.
type steady struct {
	net.Conn
	within time.Duration // for which nothing may come; 0: for ever
	came   func()        // nil: nobody wants to know
}

func (s steady) Read(b []byte) (int, error) {
	if s.within > 0 {
		_ = s.SetReadDeadline(time.Now().Add(s.within))
	}
	n, err := s.Conn.Read(b)
	if n > 0 && s.came != nil {
		s.came()
	}
	return n, err
}

// sender writes frames in the order in which they come, many at a time.
type sender struct {
	conn net.Conn

	mu     sync.Mutex
	queue  []frame
	size   int
	ended  bool
	wake   chan struct{} // has an element if there is something to do
	failed func(error)   // called once at most, by run
}

func newSender(conn net.Conn, failed func(error)) *sender {
	return &sender{conn: conn, wake: make(chan struct{}, 1), failed: failed}
}

// send queues a frame; false: there is no room, or the connection has ended.
func (s *sender) send(f frame) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	size := headSize + len(f.body)
	if s.ended || s.size+size > maxQueued {
		return false
	}
	s.queue, s.size = append(s.queue, f), s.size+size
	s.rouse()
	return true
}

// end has run return. What is queued is not sent.
func (s *sender) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.rouse()
}

func (s *sender) rouse() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// run writes what is queued until end or an error.
func (s *sender) run() {
	w := bufio.NewWriterSize(s.conn, 64<<10)
	for range s.wake {
		s.mu.Lock()
		frames, size, ended := s.queue, s.size, s.ended
		s.queue, s.size = nil, 0
		s.mu.Unlock()
		if ended {
			return
		}
		_ = s.conn.SetWriteDeadline(time.Now().Add(writeTimeout + time.Duration(size)*time.Second/sendRate))
		for _, f := range frames {
			var head [headSize]byte
			binary.BigEndian.PutUint32(head[:], uint32(len(f.body)))
			head[4] = byte(f.kind)
			binary.BigEndian.PutUint64(head[5:], f.call)
			binary.BigEndian.PutUint32(head[13:], f.limit)
			_, _ = w.Write(head[:])
			_, _ = w.Write(f.body)
		}
		if err := w.Flush(); err != nil { // which has what the writes failed with
			s.failed(err)
			return
		}
	}
}
