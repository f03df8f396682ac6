package http

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"fencepost/internal/fencing"
	"fencepost/internal/watchdog"
)

// watching is a GET /events.
type watching struct {
	prefix string
	after  string // the id of the last event seen; empty for none
}

// maxEventID is the length of the longest id that Last-Event-ID may name.
const maxEventID = 64

func decodeWatch(c *call) (watching, error) {
	var req watching
	if _, err := c.leaseID(); err != nil {
		return req, err
	}
	switch values := c.r.Header["Last-Event-Id"]; {
	case len(values) > 1:
		return req, invalid("Last-Event-ID", "is given %d times; once is allowed", len(values))
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
		c.Header()["Content-Type"] = streamType
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
	s := stream{c}
	for err = s.startStream("events"); err == nil; {
		err = s.relay(events)
	}
}

// relay passes events on until the next heartbeat is due, and sends that.
func (s stream) relay(events *watchdog.Subscription) error {
	ctx, cancel := context.WithTimeout(s.c.r.Context(), s.c.s.heartbeat)
	defer cancel()
	for {
		notice, err := events.Next(ctx)
		if refused := s.c.stillPermitted(); refused != nil {
			return refused // what the principal is told when it comes back
		}
		if err == nil {
			err = s.notice(&notice)
		} else if errors.Is(ctx.Err(), context.DeadlineExceeded) && s.c.r.Context().Err() == nil {
			return s.comment()
		}
		if err != nil {
			return err
		}
	}
}

func (s stream) notice(n *watchdog.Notice) error {
	if n.Resync {
		return s.event("resync", n.Event.ID, func(b []byte) []byte { return append(b, '{', '}') })
	}
	e := &n.Event
	if !s.c.covers(e.Name) {
		return nil
	}
	return s.event(string(e.Kind), e.ID, func(b []byte) []byte {
		b = append(b, `{"name":`...)
		b = appendString(b, string(e.Name))
		b = appendStringMember(b, "lease", string(e.Lease))
		b = appendStringMember(b, "owner", e.Owner)
		b = appendStringMember(b, "mode", string(e.Mode))
		if e.Token != 0 {
			b = appendIntMember(b, "fencing_token", int64(e.Token))
		}
		b = appendTimeMember(b, "at", e.At)
		return append(b, '}')
	})
}
