package http

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/watchdog"
)

// watching is a GET /events.
type watching struct {
	prefix string
	after  string // the id of the last event seen; empty for none
}

const (
	// eventPace is for how long a stream that has told all rests, and streamShare for how
	// long it does for each stream that is open, if that is more. What happens meanwhile is
	// told in one write: each is a system call and wakes the stream, and there may be
	// a thousand streams, with thousands of events a second, and others who wait for the
	// processor behind all that want it.
	eventPace   = 50 * time.Millisecond
	streamShare = 200 * time.Microsecond

	// maxTold is how many bytes are written at a time, but for the last event, and
	// eventBuffer how many the system keeps for a client that does not read: without
	// a bound it takes megabytes before a stream that nobody reads is noticed.
	maxTold     = 8 << 10
	eventBuffer = 16 << 10
)

// maxEventID is the length of the longest id that Last-Event-ID may name.
const maxEventID = 64

func decodeWatch(c *call) (watching, error) {
	var req watching
	if _, err := c.leaseID(); err != nil {
		return req, err
	}
	switch values := c.r.Header["Last-Event-Id"]; {
	case len(values) > 1:
		return req, invalid("Last-Event-ID", "is given %d times; only once is allowed", len(values))
	case len(values) == 1:
		req.after = values[0]
		if req.after == "" || len(req.after) > maxEventID || strings.Trim(req.after, eventIDBytes) != "" {
			return req, invalid("Last-Event-ID", "must be the id of an event: 1 to %d of A-Z a-z 0-9 . _ : -", maxEventID)
		}
	}
	err := readQuery(c.r.URL.RawQuery, "prefix", func(name string, values []string) error {
		if name != "prefix" {
			return errUnknownField
		}
		value, err := once(name, values)
		if err == nil {
			req.prefix, err = parsePrefix(value)
		}
		return err
	})
	return req, err
}

const eventIDBytes = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-"

// watchEvents streams events until the client leaves or the gateway drains.
func watchEvents(c *call) {
	req, err := decodeWatch(c)
	if err != nil {
		c.writeError(err)
		return
	}
	if c.r.Method == http.MethodHead {
		c.setStreamHeader()
		c.WriteHeader(http.StatusOK)
		return
	}
	if c.s.draining.Load() {
		c.writeError(&fencing.Error{Code: fencing.CodeDraining, Detail: "this gateway is shutting down"})
		return
	}
	if err := c.enter(allowedStreams); err != nil {
		c.writeError(err)
		return
	}
	events, err := c.s.dog.Subscribe(req.after, req.prefix)
	if err != nil {
		c.writeError(err)
		return
	}
	defer events.Close()
	if c.r.ProtoMajor < 2 { // there the connection is for others, too
		connectionOf(c.r).limitBuffer(eventBuffer)
	}
	c.s.watching.Add(1)
	defer c.s.watching.Add(-1)
	s := stream{c}
	for err = s.startStreamAt("events", events.At()); err == nil; {
		err = s.relay(events)
	}
}

// relay passes events on until the next heartbeat is due, and sends that: it says where the stream
// stands, which may be far behind the last event that was for it.
func (s stream) relay(events *watchdog.Subscription) error {
	ctx, cancel := context.WithTimeout(s.c.r.Context(), s.c.s.heartbeat)
	defer cancel()
	for {
		notice, err := events.Next(ctx)
		if refused := s.c.stillPermitted(); refused != nil {
			return refused // what the principal is told when it comes back
		}
		behind := false
		if err == nil {
			behind, err = s.tell(notice, events)
		} else if errors.Is(ctx.Err(), context.DeadlineExceeded) && s.c.r.Context().Err() == nil {
			return s.standsAt(events.At())
		}
		if err != nil {
			return err
		}
		if behind {
			continue
		}
		select {
		case <-time.After(s.rest()):
		case <-ctx.Done():
		}
	}
}

// standsAt sends a comment with the id of where the stream stands, unless that is empty.
func (s stream) standsAt(id string) error {
	if id == "" {
		return s.comment()
	}
	return s.write([]byte(":\nid: " + id + "\n\n"))
}

// rest returns how long a stream rests. At random, so that not all tell at once.
func (s stream) rest() time.Duration {
	pace := max(eventPace, time.Duration(s.c.s.watching.Load())*streamShare)
	return pace/2 + rand.N(pace)
}

// tell writes a notice and those that are there already; behind says that there may be more.
func (s stream) tell(n watchdog.Notice, events *watchdog.Subscription) (behind bool, err error) {
	b := s.c.appendNotice(s.c.out[:0], &n)
	for behind = true; behind && len(b) < maxTold; {
		if n, behind = events.Poll(); behind {
			b = s.c.appendNotice(b, &n)
		}
	}
	if s.c.out = b; len(b) > 0 {
		err = s.write(b)
	}
	return behind, err
}

// appendNotice appends nothing of what the principal may not hear of.
func (c *call) appendNotice(b []byte, n *watchdog.Notice) []byte {
	if n.Resync {
		return appendEvent(b, "resync", n.Event.ID, func(b []byte) []byte { return append(b, '{', '}') })
	}
	e := &n.Event
	if !c.covers(e.Name) {
		return b
	}
	return appendEvent(b, string(e.Kind), e.ID, func(b []byte) []byte {
		b = append(b, `{"name":`...)
		b = appendString(b, string(e.Name))
		b = appendStringMember(b, "lease", string(e.Lease))
		b = appendStringMember(b, "owner", e.Owner)
		b = appendStringMember(b, "mode", string(e.Mode))
		if e.Token != 0 {
			b = appendIntMember(b, "fencing_token", int64(e.Token))
		}
		b = appendTimeMember(b, "at", c.s.wall(e.At))
		switch e.Kind {
		case fencing.EventGranted:
			b = appendIntMember(b, "waited_ms", e.Took.Milliseconds())
		case fencing.EventReleased, fencing.EventExpired, fencing.EventBroken:
			b = appendIntMember(b, "held_ms", c.s.wall.between(e.At.Add(-e.Took), e.At).Milliseconds())
		}
		if e.BreakAt != 0 {
			b = appendTimeMember(b, "breaks_at", c.s.wall(e.BreakAt))
		}
		if e.Evicted {
			b = appendBoolMember(b, "evicted", true)
		}
		if e.BreakReason != "" {
			b = appendStringMember(b, "break_reason", e.BreakReason)
		}
		return append(b, '}')
	})
}
