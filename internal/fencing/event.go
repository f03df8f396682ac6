package fencing

import "time"

// EventKind says what happened.
type EventKind string

// The kinds of events.
const (
	EventGranted  EventKind = "granted"
	EventReleased EventKind = "released"
	EventExpired  EventKind = "expired"
	EventBroken   EventKind = "broken"
	EventNotice   EventKind = "notice" // a holder was given notice: see BreakRequest
	EventQueued   EventKind = "queued" // a request joined the queue, or came back to it
	EventLeft     EventKind = "left"   // a waiter left the queue or was evicted, or a grant that its client was not told of was taken back
)

// EventKinds lists every kind.
func EventKinds() []EventKind {
	return []EventKind{EventGranted, EventReleased, EventExpired, EventBroken, EventNotice, EventQueued, EventLeft}
}

// Event is one change of a lock.
type Event struct {
	ID    string // stores set it: the same on gateways that tell all events in the same order, another one on any other
	Kind  EventKind
	Name  Name
	Lease LeasePublic
	Owner string
	Mode  Mode
	Token Token // 0 of EventQueued and EventLeft
	At    Instant

	// Took is how long it took: of EventGranted the time in the queue before; of the end of a
	// lease for how long it was held; 0 of the others.
	Took time.Duration

	BreakAt     Instant // EventNotice: see Holder
	BreakReason string  // EventBroken, EventNotice, and EventLeft if Evicted: see BreakRequest
	Evicted     bool    // EventLeft: an administrator took the place away

	// Claimed: the token is that of a claim: see Holder. For a quorum, which counts what
	// its nodes tell.
	Claimed bool
}

// Events returns what a step changed, in order.
func (o *Outcome) Events(name Name) []Event {
	var events []Event
	for i := range o.Ended {
		e := &o.Ended[i]
		events = append(events, Event{
			Kind: EventKind(e.Reason), Name: name, Lease: e.Holder.Lease, Owner: e.Holder.Owner, Mode: e.Holder.Mode,
			Token: e.Holder.Token, At: e.At, Took: e.Held(), BreakReason: e.BreakReason, Claimed: e.Holder.Claimed,
		})
	}
	for i := range o.Left {
		w := &o.Left[i]
		events = append(events, Event{Kind: EventLeft, Name: name, Lease: w.Lease, Owner: w.Owner, Mode: w.Mode, At: o.Now})
	}
	if o.Evicted != nil {
		w := &o.Evicted.Waiter
		events = append(events, Event{
			Kind: EventLeft, Name: name, Lease: w.Lease, Owner: w.Owner, Mode: w.Mode, At: o.Now, Evicted: true, BreakReason: o.Evicted.Reason,
		})
	}
	granted := func(h *Holder) {
		events = append(events, Event{
			Kind: EventGranted, Name: name, Lease: h.Lease, Owner: h.Owner, Mode: h.Mode, Token: h.Token, At: o.Now,
			Took: h.Waited, Claimed: h.Claimed,
		})
	}
	for i := range o.Granted {
		granted(&o.Granted[i].Holder)
	}
	if o.Claimed {
		granted(&o.Holder)
	}
	if h := &o.Holder; o.Noticed {
		events = append(events, Event{
			Kind: EventNotice, Name: name, Lease: h.Lease, Owner: h.Owner, Mode: h.Mode, Token: h.Token, At: o.Now,
			BreakAt: h.BreakAt, BreakReason: h.BreakReason, Claimed: h.Claimed,
		})
	}
	if o.Joined && o.Place != nil {
		w := o.Place
		events = append(events, Event{Kind: EventQueued, Name: name, Lease: w.Lease, Owner: w.Owner, Mode: w.Mode, At: o.Now})
	}
	return events
}
