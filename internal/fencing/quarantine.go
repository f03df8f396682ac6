package fencing

import "time"

// LongestQuarantine bounds a quarantine that counts from the TTLs in use. Leases
// that live longer are the published exception to P1.
const LongestQuarantine = 5 * time.Minute

// TTLPeriod is how long a TTL counts as in use at least, and half of how long it
// does at most. It is longer than LongestQuarantine, so that a TTL which matters
// and is still renewed is not forgotten in between.
const TTLPeriod = 2 * LongestQuarantine

// Quarantine is what a partition remembers in order to be careful when it may
// have forgotten the rest: a lease that was lost is believed in for as long as its
// TTL.
type Quarantine struct {
	Until  Instant       // nothing new is granted before this instant
	Period Instant       // when the present period of TTLs began
	TTL    time.Duration // the longest granted or renewed in it
	Before time.Duration // the same of the period before
	Server string        // who served last; empty if nobody has said
	Again  time.Duration // for how long nothing new is granted from the next Restart on; 0: it does not matter
}

// note counts a TTL as in use.
func (q *Quarantine) note(now Instant, ttl time.Duration) {
	began := now - now%Instant(TTLPeriod/time.Microsecond)
	if began > q.Period {
		q.Before = 0
		if began == q.Period.Add(TTLPeriod) {
			q.Before = q.TTL
		}
		q.Period, q.TTL = began, 0
	}
	q.TTL = max(q.TTL, ttl)
}

// Longest returns the longest TTL in use at now: what was not for two periods does
// not count.
func (q Quarantine) Longest(now Instant) time.Duration {
	q.note(now, 0)
	return max(q.TTL, q.Before)
}

// uses counts what is left of a lease as a TTL in use. By a clock that may be wrong no period
// begins, for those that are known would be forgotten.
func (t *step) uses(h *Holding) {
	left := h.ExpiresAt.Sub(t.now)
	if t.skewed {
		t.Quarantine.TTL = max(t.Quarantine.TTL, left)
		return
	}
	t.Quarantine.note(t.now, left)
}

// Arrival says that a gateway has found a server in charge of a partition.
type Arrival struct {
	Server  string        // which run of which server
	Longest time.Duration // the longest TTL that the gateway knows to be in use
	Until   Instant       // until when the gateway knows a quarantine to last; 0 if it knows of none

	// Least and Most bound a quarantine. Both 0: there is none.
	Least, Most time.Duration

	// Floor is the highest token that the gateway was given here. If it is above the
	// counter, something was lost: the counter goes on from it. One that is too far
	// ahead of the clock (MaxFloorLead) says nothing.
	Floor Token

	Lossless bool // another server, but nothing can have been lost
	Lost     bool // something was lost, whoever serves
	Late     bool // another server served this gateway until now: what it renewed there counts from now
}

// Arrive notes who serves. If that is not who served last, something was lost, or
// a quarantine turns out to be too short, nothing new is granted for as long as somebody may still believe in a
// lease that was lost. Its twin is verbs.arrive.
func Arrive(s *State, now Instant, a Arrival) Quarantine {
	q := &s.Quarantine
	q.note(now, 0)
	behind := a.Floor > s.Counter && a.Floor <= Token(now.Add(MaxFloorLead))
	longer := now < q.Until && (a.Longest > q.Longest(now) || a.Late) // than who began the quarantine knew of
	if a.Lost || behind || longer || !a.Lossless && q.Server != a.Server {
		q.Until = max(q.Until, now.Add(min(max(q.Longest(now), a.Longest, a.Least), a.Most)))
	}
	if a.Most > 0 {
		q.Until = max(q.Until, min(a.Until, now.Add(a.Most)))
	}
	q.Server = a.Server
	if behind {
		s.Counter = a.Floor
	}
	if a.Longest > 0 {
		q.note(now, a.Longest)
	}
	return *q
}

// quarantined refuses a grant while what was forgotten may still be believed in,
// or if something has just turned out to be forgotten.
func (t *step) quarantined() *Error {
	if floor := t.guard.Floor; t.guard.HeedLoss && floor > t.Counter && floor <= Token(t.now.Add(MaxFloorLead)) {
		return &Error{Code: CodeQuarantined, Detail: "the store has lost tokens that were issued; no new leases are granted until lost ones have expired"}
	}
	if left := t.Quarantine.Until.Sub(t.now.Add(min(0, t.lead()))); left > 0 {
		return QuarantineError(left)
	}
	return nil
}

// QuarantineError says that nothing new is granted for a while.
func QuarantineError(left time.Duration) *Error {
	return &Error{
		Code: CodeQuarantined, RetryAfter: left,
		Detail: "the store may have lost leases; no new ones are granted until those have expired; leases that it still has can be renewed",
	}
}
