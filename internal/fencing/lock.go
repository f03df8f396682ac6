package fencing

import "time"

// Mode says how many holders a lease tolerates.
type Mode string

// The modes: an exclusive lease tolerates one holder, itself; a shared one
// tolerates as many as its limit says.
const (
	ModeExclusive Mode = "exclusive"
	ModeShared    Mode = "shared"
)

// NoSlot is the Slot of a lease that has none.
const NoSlot = -1

// Holder is the public view of a lease: everything but its secret.
type Holder struct {
	Lease    LeasePublic
	Owner    string // a label for people, never a proof
	Metadata map[string]string
	Mode     Mode
	Limit    int // holders tolerated, itself included; 0 is any number; 1 when exclusive
	Slot     int // the permit's number, 0 to Limit-1, or NoSlot
	Hold     int // depth of re-entry, from 1
	Token    Token

	TTL      time.Duration // what the last grant or renewal set
	GrantTTL time.Duration // what the lease was granted with
	MaxHold  time.Duration // bound on the whole time held; 0 is none

	AcquiredAt Instant
	ExpiresAt  Instant       // the lease is live before this instant, and not at it
	Waited     time.Duration // time in the queue before the grant
}

// Live reports whether the lease is live at now. It is the only predicate of
// liveness; live in record.lua is its twin.
func (h *Holder) Live(now Instant) bool { return now < h.ExpiresAt }

// expiresAt returns when a grant or renewal at now with ttl ends, bounded by
// MaxHold.
func (h *Holder) expiresAt(now Instant, ttl time.Duration) Instant {
	end := now.Add(ttl)
	if h.MaxHold > 0 {
		end = min(end, h.AcquiredAt.Add(h.MaxHold))
	}
	return end
}

// Waiter is the public view of a place in the queue.
type Waiter struct {
	Lease    LeasePublic
	Owner    string
	Mode     Mode
	Position int           // from 1
	Waiting  time.Duration // since it joined
}

// Lock is the public view of a name at the instant Now of the store's clock.
// Only live holders and live waiters appear in it.
type Lock struct {
	Name            Name
	Now             Instant
	Holders         []Holder // in order of grant; none if free
	Waiters         []Waiter // in order of arrival; left out in lists
	Waiting         int      // how many live waiters there are
	LastToken       Token    // the last token issued, 0 if none is known
	HighestAdmitted Token    // the highest token a fence admitted, 0 if none
}

// Held reports whether anybody holds the lock.
func (l *Lock) Held() bool { return len(l.Holders) > 0 }

// NextExpiry returns the time until the first of the holders expires, 0 if
// there is none.
func (l *Lock) NextExpiry() time.Duration {
	var next time.Duration
	for i := range l.Holders {
		if left := l.Holders[i].ExpiresAt.Sub(l.Now); next == 0 || left < next {
			next = left
		}
	}
	return next
}

// Ended is a lease that has come to its end.
type Ended struct {
	Name   Name
	Holder Holder
	Reason Reason  // ReasonReleased, ReasonExpired or ReasonBroken
	At     Instant // when it ended: an expired lease ended at its ExpiresAt, however late that was noticed
}

// Outcome is what an operation came to, decided at the instant Now.
type Outcome struct {
	Now    Instant
	Holder Holder        // Acquire and Renew: the lease as it now is
	Fresh  bool          // Acquire: this request (its Stamp) made the grant
	Margin time.Duration // Renew: how long the lease still had to live
	Lock   *Lock         // Inspect
	Ended  []Ended       // leases that this step ended, in order
	Err    *Error        // why it was refused; nil if it was not
}

// Code returns CodeOK or the code of the refusal.
func (o *Outcome) Code() Code {
	if o.Err == nil {
		return CodeOK
	}
	return o.Err.Code
}

// Result returns the outcome as a Store returns it: an Err becomes the error.
func (o Outcome) Result() (Outcome, error) {
	if o.Err == nil {
		return o, nil
	}
	return o, o.Err
}
