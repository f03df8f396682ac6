package redis

import (
	"errors"
	"strconv"
	"strings"

	"fencepost/internal/fencing"
)

// eventsChannel is where every change of every lock is told.
const eventsChannel = "fencepost:events"

// gatewayChannel is where a gateway is told of its own waiters.
func gatewayChannel(id fencing.Gateway) string { return "fencepost:gateway:" + string(id) }

var errMessage = errors.New("redis: a message can't be read")

// gatewayMessage tells a gateway what became of requests that wait there.
type gatewayMessage struct {
	now      fencing.Instant
	grants   []fencing.Grant // all provisional
	replaced []parkedRequest // a newer one with its lease id has taken over
	ask      []parkedRequest // its place was taken from it
}

// parkedRequest is a request that waits at the gateway.
type parkedRequest struct {
	name  fencing.Name
	stamp fencing.Stamp
}

// decodeGatewayMessage reads a message of gatewayChannel.
func decodeGatewayMessage(payload string) (gatewayMessage, error) {
	in := codec{rest: payload}
	m := gatewayMessage{}
	number(&in, "", &m.now)
	in.items(func(name fencing.Name, tag byte) {
		switch tag {
		case itemGrant:
			m.grants = append(m.grants, in.grant(name))
		case itemReplaced:
			var gateway string
			r := parkedRequest{name: name}
			word(&in, "", &gateway)
			word(&in, "", &r.stamp)
			m.replaced = append(m.replaced, r)
		case itemAsk:
			r := parkedRequest{name: name}
			word(&in, "", &r.stamp)
			m.ask = append(m.ask, r)
		default:
			in.bad = true
		}
	})
	if in.bad {
		return gatewayMessage{}, errMessage
	}
	return m, nil
}

// items reads the items of a message, and passes on the letter of each and the name it
// is about.
func (c *codec) items(read func(name fencing.Name, tag byte)) {
	var name fencing.Name
	for c.rest != "" && !c.bad {
		tag := c.rest[0]
		if c.rest = c.rest[1:]; tag == itemName {
			word(c, "", &name)
			continue
		}
		read(name, tag)
	}
}

// decodeEventsMessage reads a message of eventsChannel. What all gateways of one master call an event
// is made of the partition, the time and, where a test's clock stands still, which of
// the calls it was.
func decodeEventsMessage(payload string) ([]fencing.Event, error) {
	in := codec{rest: payload}
	var prefix string
	var steps int64
	var now fencing.Instant
	word(&in, "", &prefix)
	number(&in, "", &steps)
	number(&in, "", &now)
	partition := strings.TrimSuffix(strings.TrimPrefix(prefix, "fencepost:{"), "}:")
	id := strconv.FormatInt(int64(now), 10) + "-" + partition + "-"
	if steps > 0 {
		id += strconv.FormatInt(steps, 10) + "-"
	}
	var events []fencing.Event
	in.items(func(name fencing.Name, tag byte) {
		event := fencing.Event{ID: id + strconv.Itoa(len(events)), Name: name, At: now}
		var h fencing.Holding
		switch tag {
		case itemEnd:
			e := in.end(name)
			event.Kind, event.At, event.Took, event.BreakReason, h.Holder = fencing.EventKind(e.Reason), e.At, e.Held(), e.BreakReason, e.Holder
		case itemLeft:
			in.lease(&h)
			event.Kind, h.Token = fencing.EventLeft, 0
		case itemEvicted:
			e := in.eviction(now)
			event.Kind, event.Evicted, event.BreakReason = fencing.EventLeft, true, e.Reason
			h.Lease, h.Owner, h.Mode = e.Waiter.Lease, e.Waiter.Owner, e.Waiter.Mode
		case itemGrant:
			in.lease(&h)
			event.Kind, event.Took = fencing.EventGranted, h.Waited
		case itemNotice:
			in.lease(&h)
			event.Kind, event.BreakAt, event.BreakReason = fencing.EventNotice, h.BreakAt, h.BreakReason
		case itemJoined:
			in.lease(&h)
			event.Kind, h.Token = fencing.EventQueued, 0
		default:
			in.bad = true
		}
		event.Lease, event.Owner, event.Mode, event.Token, event.Claimed = h.Lease, h.Owner, h.Mode, h.Token, h.Claimed && h.Token != 0
		events = append(events, cloneTexts(event))
	})
	if in.bad {
		return nil, errMessage
	}
	return events, nil
}

// cloneTexts copies the texts of an event that are parts of a message: events are kept for those
// who read them later, and the message has metadata and more.
func cloneTexts(e fencing.Event) fencing.Event {
	texts := string(e.Name) + string(e.Lease) + string(e.Kind) + e.Owner + e.BreakReason
	next := func(n int) (text string) {
		text, texts = texts[:n], texts[n:]
		return text
	}
	e.Name, e.Lease = fencing.Name(next(len(e.Name))), fencing.LeasePublic(next(len(e.Lease)))
	e.Kind, e.Owner = fencing.EventKind(next(len(e.Kind))), next(len(e.Owner))
	e.BreakReason = texts
	return e
}
