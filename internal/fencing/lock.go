package fencing

import (
	"cmp"
	"slices"
	"time"
)

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
	Metadata Labels
	Mode     Mode
	Limit    int   // permits tolerated, its own included; 0 is any number; 1 when exclusive
	Permits  int   // how many of them it has, from 1; 1 also where there is no limit
	Slot     int   // the permit's number, below the Limit of its grant, the lowest if it has several, or NoSlot
	Slots    Slots // the numbers of several permits
	Hold     int   // depth of re-entry, from 1; 0: its holder has left, see ReleaseRequest.Linger
	Token    Token

	TTL      time.Duration // what the last grant or renewal set
	GrantTTL time.Duration // what the lease was granted with
	MaxHold  time.Duration // bound on the whole time held; 0 is none

	LockDelay time.Duration // see AcquireRequest; 0 is none

	AcquiredAt Instant
	ExpiresAt  Instant       // the lease is live before this instant, and not at it
	Waited     time.Duration // time in the queue before the grant

	// Attached is the stamp of the stream that the lease is attached to, whose gateway
	// renews it; empty: none, or not known any more, as of a stream that a store which
	// runs inside the gateway had before a restart.
	Attached Stamp

	// Epoch grows by one each time another request takes the lease over, be it a stream or
	// not, and when a stream leaves it to linger. It tells a stream that was replaced from one
	// of which the store has forgotten.
	Epoch int64

	// BreakAt is when the lease is broken at the latest, if it is not over by then, 0 if it
	// was given no notice: see BreakRequest.Notice. It is never before ExpiresAt.
	BreakAt     Instant
	BreakReason string // with BreakAt: why, in the words of who gave the notice

	// Provisional: no TTL runs yet, ExpiresAt only says what it would be. The
	// lease hangs on its gateway's heartbeat until that confirms it, which it
	// does before the first byte of the answer.
	Provisional bool

	// Claimed: Token was set by a claim. The token that a node of a quorum issued
	// by itself counts for nothing before.
	Claimed bool
}

// Live reports whether a lease that is not provisional is live at now. It is the
// only predicate of liveness; live in holders.lua is its twin.
func (h *Holder) Live(now Instant) bool { return live(h.ExpiresAt, now) }

func live(end, now Instant) bool { return now < end }

// BreaksAtEnd reports whether a lease is broken when its time runs out, so that no renewal
// moves its end. Otherwise it would expire, or be released.
func (h *Holder) BreaksAtEnd() bool { return h.BreakAt != 0 && h.ExpiresAt >= h.BreakAt }

// Left reports whether the holder has left, and the lease lives on for the time that it asked for: for its
// lease id it is released.
func (h *Holder) Left() bool { return h.Hold == 0 }

// outOfTime returns how a lease ends whose time runs out: with ReasonBroken also why.
func (h *Holder) outOfTime() (reason Reason, breakReason string) {
	switch {
	case h.BreaksAtEnd():
		return ReasonBroken, h.BreakReason
	case h.Left():
		return ReasonReleased, ""
	}
	return ReasonExpired, ""
}

// expiresAt returns when a grant or renewal at now with ttl ends, bounded by
// MaxHold and BreakAt.
func (h *Holder) expiresAt(now Instant, ttl time.Duration) Instant {
	end := now.Add(ttl)
	if h.MaxHold > 0 {
		end = min(end, h.AcquiredAt.Add(h.MaxHold))
	}
	if h.BreakAt != 0 {
		end = min(end, h.BreakAt)
	}
	return end
}

// RenewedAt returns when the lease was last renewed, AcquiredAt if it never was: a grant, a
// renewal and a deeper hold set the end a TTL away, and so does the restart of a store that
// gives all leases their TTL anew. Of a lease that MaxHold or BreakAt ends sooner it may have
// been later than this, never earlier.
func (h *Holder) RenewedAt() Instant {
	if h.Provisional {
		return h.AcquiredAt
	}
	return max(h.AcquiredAt, h.ExpiresAt.Add(-h.TTL))
}

// RenewIn returns how long to wait before a lease is renewed that has so much left, 0
// if it is to be renewed at once: a third of its TTL leaves time for attempts that
// fail, and half of what is left is sooner where that is less than the TTL, as from a
// quorum, which allows for clocks, or of a lease that was granted a while ago. It is
// what clients are told, and what attached leases are renewed by.
func (h *Holder) RenewIn(left time.Duration) time.Duration { return max(min(h.TTL/3, left/2), 0) }

// Waiter is the public view of a place in the queue.
type Waiter struct {
	Lease    LeasePublic
	Owner    string
	Mode     Mode
	Limit    int           // ModeShared only: permits it tolerates; 0 is any number
	Permits  int           // it asks for, from 1
	Position int           // among the live waiters, from 1; 0 once it has left
	Waiting  time.Duration // since it joined
}

// Lock is the public view of a name at the instant Now of the store's clock.
// Only live holders and live waiters appear in it.
type Lock struct {
	Name            Name
	Now             Instant
	Holders         []Holder // in order of grant: of more than MaxHoldersShown those that expire first
	HolderCount     int      // how many live holders there are
	Waiters         []Waiter // in order of arrival, at most MaxWaitersShown; Inspect alone shows more than the first
	Waiting         int      // how many live waiters there are
	LastToken       Token    // the last token issued, 0 if none is known
	HighestAdmitted Token    // the highest token that has moved a mark of its fence, 0 if none has
	DelayedUntil    Instant  // nobody is granted the name before, for the LockDelay of a lease that has ended; 0 if somebody may be
}

// Held reports whether anybody holds the lock.
func (l *Lock) Held() bool { return l.HolderCount > 0 }

// Trim keeps at most most of the holders: those that expire first.
func (l *Lock) Trim(most int) {
	if len(l.Holders) > most {
		slices.SortFunc(l.Holders, func(a, b Holder) int {
			return cmp.Or(cmp.Compare(a.ExpiresAt, b.ExpiresAt), cmp.Compare(a.Lease, b.Lease))
		})
		l.Holders = l.Holders[:most]
		slices.SortFunc(l.Holders, func(a, b Holder) int { return cmp.Compare(a.Token, b.Token) })
	}
}

// NextExpiry returns the time until the first of the holders expires, which is always
// among those that are shown; 0 if there is none.
func (l *Lock) NextExpiry() time.Duration {
	var next time.Duration
	for i := range l.Holders {
		if left := l.Holders[i].ExpiresAt.Sub(l.Now); next == 0 || left < next {
			next = left
		}
	}
	return next
}

// Delayed returns how long it takes until anybody is granted the lock, for the LockDelay of a
// lease that has ended; 0 if that is not so.
func (l *Lock) Delayed() time.Duration {
	if l.DelayedUntil == 0 {
		return 0
	}
	return l.DelayedUntil.Sub(l.Now)
}

// RetryAfter returns when the lock may next be granted as far as is known, 0 if nothing is: when
// the first of the holders expires, and not before the delay is over.
func (l *Lock) RetryAfter() time.Duration { return max(l.NextExpiry(), l.Delayed()) }

// Ended is a lease that has come to its end.
type Ended struct {
	Name   Name
	Holder Holder
	Reason Reason  // ReasonReleased, ReasonExpired or ReasonBroken
	At     Instant // when it ended: an expired lease ended at its ExpiresAt, however late that was noticed

	BreakReason string // of ReasonBroken: see BreakRequest
}

// Held returns for how long the lease was held.
func (e *Ended) Held() time.Duration { return max(0, e.At.Sub(e.Holder.AcquiredAt)) }

// Grant is a lease that a step granted, to its caller or to a waiter.
type Grant struct {
	Name    Name
	Holder  Holder  // Provisional unless the gateway that ran the step has the request
	Gateway Gateway // where the request is
	Stamp   Stamp   // of the request
}

// Eviction is a waiter that was evicted.
type Eviction struct {
	Waiter  Waiter
	Request *Parked // that waited there, which is to ask again and be told; nil: the place rested
	Reason  string  // see EvictRequest.BreakReason
}

// Parked is a request that waits at a gateway.
type Parked struct {
	Gateway Gateway
	Stamp   Stamp
}

// Outcome is what an operation came to, decided at the instant Now.
type Outcome struct {
	Now    Instant
	Holder Holder        // Acquire, Renew, Confirm; Release where holds remain, TakeBack where the lease lingers; Leave where the grant came first; Break with notice
	Fresh  bool          // Acquire, Leave: this request (its Stamp) made the grant
	Margin time.Duration // Renew: how long the lease still had to live
	Lock   *Lock         // Inspect, History; and with Place
	Place  *Waiter       // Acquire: the request waits here; Leave: where it waited
	Past   []Ended       // Inspect, History: the last ended leases, newest first, at most MaxHistory
	Fence  *Fence        // Admit, Judge

	Ended    []Ended   // leases that this step ended, in order
	Granted  []Grant   // leases that this step granted, in order, that of Holder included
	More     bool      // what has come due on the name is more than one step does: Expire is to go on at once; see AskAgain
	Claimed  bool      // Claim: the lease has got its token by this step, which is told like a grant
	Noticed  bool      // Break: this step has set Holder.BreakAt
	Joined   bool      // Acquire: the request has just joined the queue, or come back to it
	Left     []Waiter  // waiters that this step took out of the queue, in order, and grants it took back
	Evicted  *Eviction // Evict: whom this step took out of the queue
	Replaced *Parked   // Acquire: the older request with this lease id that waited until now; also Renew: the stream that the lease hung on

	// Asked is the gateway's clock before the store decided. Stores set it, Step
	// does not. Counted from it, what is left of a lease is never too long (P9).
	Asked time.Time

	Err *Error // why it was refused; nil if it was not
}

// Waits reports whether an Acquire joined the queue: there is a place, and no
// lease yet.
func (o *Outcome) Waits() bool { return o.Err == nil && o.Place != nil && o.Holder.Token == 0 }

// Remaining returns how long the lease of Holder has to live at now, on the gateway's clock: never more than the
// store gives it, for it is counted from before the store was asked (P9).
func (o *Outcome) Remaining(now time.Time) time.Duration {
	return o.Holder.ExpiresAt.Sub(o.Now) - now.Sub(o.Asked)
}

// AskAgain reports whether an Acquire was refused while leases that ran out, or places
// that nobody has any more, may still have counted: more had come due than one step
// does. A store asks again when all of that is done, for a free lock is granted. Who was
// refused because others wait stays refused: nobody overtakes them. Who asked from its own place,
// and has given that up, counts itself among those.
func (o *Outcome) AskAgain() bool {
	if !o.More || o.Err == nil || o.Err.Lock == nil {
		return false
	}
	others := o.Err.Lock.Waiting
	if o.Err.Position > 0 {
		others--
	}
	return o.Err.Code == CodeLocked && others == 0 || o.Err.Code == CodeTooManyRequests
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
