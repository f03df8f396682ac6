package redis

import (
	"errors"
	"strconv"
	"strings"

	"fencepost/internal/fencing"
)

// A message is what a script publishes. It begins with the store's clock, 16
// digits; each change is an item of the scripts' replies (see prelude.lua) with
// its length before it, on a line of its own.
//
// To all who watch, a message a script: the clock, the key of the partition's
// counter, a newline, nothing but where a test moves the clock, a newline, the
// name, a newline; then x the record of a plain grant, G
// a grant, E an end, L a place that was left, each with the lease as the next
// item, Q a place that was joined.
//
// To a gateway, what concerns the requests that wait there: the clock, the name,
// a newline; then G a grant, X the stamp of a request that was replaced.

// eventsChannel is where every change of every lock is told.
const eventsChannel = "fencepost:events"

// gatewayChannel is where a gateway is told of its own waiters.
func gatewayChannel(id fencing.Gateway) string { return "fencepost:gateway:" + string(id) }

var errMessage = errors.New("redis: a message can't be read")

// gatewayMessage tells a gateway what became of requests that wait there.
type gatewayMessage struct {
	now      fencing.Instant
	grants   []fencing.Grant // all provisional
	replaced []replacedRequest
}

// replacedRequest is a request that waits while a newer one with its lease id
// has taken over.
type replacedRequest struct {
	name  fencing.Name
	stamp fencing.Stamp
}

// decodeGatewayMessage reads a message of gatewayChannel.
func decodeGatewayMessage(payload string) (gatewayMessage, error) {
	f := fields{rest: payload}
	m := gatewayMessage{now: fencing.Instant(f.number())}
	l := lines{rest: f.rest}
	name := fencing.Name(l.next())
	for item := range l.items() {
		switch item[0] {
		case 'G':
			grant, err := decodeGrant(name, item)
			if err != nil {
				return gatewayMessage{}, err
			}
			m.grants = append(m.grants, grant)
		case 'X':
			m.replaced = append(m.replaced, replacedRequest{name, unpadded(item[1:])})
		default:
			l.bad = true
		}
	}
	if f.bad || l.bad {
		return gatewayMessage{}, errMessage
	}
	return m, nil
}

// decodeEventsMessage reads a message of eventsChannel.
func decodeEventsMessage(payload string) ([]fencing.Event, error) {
	f := fields{rest: payload}
	now := fencing.Instant(f.number())
	l := lines{rest: f.rest}
	key, step, name := l.next(), l.next(), fencing.Name(l.next())
	_, partition, _ := strings.Cut(key, "{")
	partition, _, ok := strings.Cut(partition, "}")
	if f.bad || l.bad || !ok {
		return nil, errMessage
	}
	prefix := strconv.FormatInt(int64(now), 10) + "-" + partition + "-" + step
	var events []fencing.Event
	before := ""
	for item := range l.items() {
		if before == "" && isHeading(item) {
			before = item
			continue
		}
		event, err := decodeEvent(name, now, before, item)
		before = ""
		if err != nil {
			return nil, err
		}
		event.ID = prefix + strconv.Itoa(len(events))
		events = append(events, event)
	}
	if l.bad || before != "" {
		return nil, errMessage
	}
	return events, nil
}

// isHeading reports whether an item is about the lease that is the next one.
func isHeading(item string) bool { return item[0] == 'E' || item == "L" }

// decodeEvent reads an item and the one before it, if that is about it.
func decodeEvent(name fencing.Name, now fencing.Instant, before, item string) (fencing.Event, error) {
	event := fencing.Event{Name: name, At: now}
	h, err := decodeHeld(item)
	switch {
	case before == "L":
		event.Kind, h.Token = fencing.EventLeft, 0
	case before != "":
		var ended fencing.Ended
		if err == nil {
			ended, err = decodeEnded(name, before, &h)
		}
		event.Kind, event.At = fencing.EventKind(ended.Reason), ended.At
	case item[0] == kindExclusive, item[0] == 'G':
		event.Kind = fencing.EventGranted
	case item[0] == 'Q':
		event.Kind, h.Token = fencing.EventQueued, 0
	default:
		err = errMessage
	}
	event.Lease, event.Owner, event.Mode, event.Token = h.Lease, h.Owner, h.Mode, h.Token
	return event, err
}

// decodeHeld reads a lease, behind a tag or not: a holding, or a record with one.
func decodeHeld(item string) (fencing.Holding, error) {
	if item != "" && 'A' <= item[0] && item[0] <= 'Z' {
		item = item[1:]
	}
	if item == "" || item[0] != kindExclusive {
		return decodeHolding(item)
	}
	r, err := decodeRecord(item)
	if err != nil {
		return fencing.Holding{}, err
	}
	return r.holdings[0], nil
}

func decodeGrant(name fencing.Name, item string) (fencing.Grant, error) {
	h, err := decodeHeld(item)
	return fencing.Grant{Name: name, Holder: h.Holder, Gateway: h.Gateway, Stamp: h.Stamp, Secret: h.Secret}, err
}

// decodeEnded reads how a lease ended: E, the reason, a newline, when, 16
// digits.
func decodeEnded(name fencing.Name, item string, h *fencing.Holding) (fencing.Ended, error) {
	reason, rest, ok := strings.Cut(item[1:], "\n")
	f := fields{rest: rest}
	ended := fencing.Ended{Name: name, Holder: h.Holder, Reason: fencing.Reason(reason), At: fencing.Instant(f.number())}
	if f.bad || f.rest != "" || !ok {
		return ended, errUnreadable
	}
	return ended, nil
}

// items reads the items of a message, each behind its length.
func (l *lines) items() func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for l.rest != "" && !l.bad {
			n := int(l.int())
			if l.bad || n < 1 || n > len(l.rest) {
				l.bad = true
				return
			}
			item := l.rest[:n]
			l.rest = l.rest[n:]
			if !yield(item) {
				return
			}
		}
	}
}
