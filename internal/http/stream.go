package http

import (
	"net/http"
	"time"
)

var (
	streamType = []string{"text/event-stream"}
	unbuffered = []string{"no"}
)

// stream is an answer of server-sent events. Each write has its own deadline.
type stream struct{ c *call }

// startStream sends the header of a stream, and a comment so that something comes
// at once.
func (s stream) startStream(kind string) error {
	s.writeHeader(kind)
	return s.comment()
}

// startStreamAt is startStream with the id of where the stream stands, unless it is empty.
func (s stream) startStreamAt(kind, id string) error {
	if id == "" {
		return s.startStream(kind)
	}
	s.writeHeader(kind)
	return s.write([]byte("id: " + id + "\n\n"))
}

func (s stream) writeHeader(kind string) {
	c := s.c
	c.leaveRequest()
	gauge := c.s.metrics.streams.WithLabelValues(kind)
	gauge.Inc()
	c.openStream = gauge
	c.setStreamHeader()
	c.WriteHeader(http.StatusOK)
}

// setStreamHeader says what the answer is, and has nginx, and what understands its header, pass
// on each event as it comes: it would gather 4 KiB of them, while a lock is held.
func (c *call) setStreamHeader() {
	c.Header()["Content-Type"] = streamType
	c.Header()["X-Accel-Buffering"] = unbuffered
}

// event sends an event: data is one line, and id may be empty.
func (s stream) event(name, id string, data func([]byte) []byte) error {
	s.c.out = appendEvent(s.c.out[:0], name, id, data)
	return s.write(s.c.out)
}

// appendEvent appends an event.
func appendEvent(b []byte, name, id string, data func([]byte) []byte) []byte {
	if id != "" {
		b = append(b, "id: "...)
		b = append(b, id...)
		b = append(b, '\n')
	}
	b = append(b, "event: "...)
	b = append(b, name...)
	b = append(b, "\ndata: "...)
	b = data(b)
	return append(b, '\n', '\n')
}

// comment sends what no client sees: it shows that the connection lives.
func (s stream) comment() error { return s.write([]byte(":\n\n")) }

func (s stream) write(b []byte) error {
	s.c.setWriteDeadline()
	if _, err := s.c.Write(b); err != nil {
		return err
	}
	err := s.c.flush()
	s.c.clearWriteDeadline()
	return err
}

// heartbeats returns a ticker of a stream.
func (s stream) heartbeats() *time.Ticker { return time.NewTicker(s.c.s.heartbeat) }
