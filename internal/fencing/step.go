package fencing

import (
	"fmt"
	"time"
)

// Step decides an operation: it is the specification of a lock. It depends on
// its arguments alone, and changes s in place (Clone gives a copy to keep) only
// after every check, so a refused operation leaves nothing behind but the
// expiry of leases whose time had run out. The Lua scripts are its twin.
func Step(s *State, now Instant, guard Guard, op Op) Outcome {
	t := step{State: s, now: now, guard: guard, skewed: guard.skewed(now), name: op.LockName()}
	t.out.Now = now
	t.record = s.Records[t.name]
	if _, reads := op.(InspectRequest); reads {
		t.out.Lock = t.record.View(t.name, now)
		return t.out
	}
	if t.record != nil && !t.skewed {
		t.expire()
	}
	switch op := op.(type) {
	case AcquireRequest:
		t.out.Err = t.acquire(op)
	case RenewRequest:
		t.out.Err = t.renew(op)
	case ReleaseRequest:
		t.out.Err = t.release(op)
	case TakeBackRequest:
		t.out.Err = t.takeBack(op)
	case BreakRequest:
		t.out.Err = t.break_(op)
	case ExpireRequest: // done above
	default:
		panic(fmt.Sprintf("fencing: no rule for %T", op))
	}
	return t.out
}

// step is the operation under way.
type step struct {
	*State
	now    Instant
	guard  Guard
	skewed bool
	name   Name
	record *Record // nil if nothing is remembered of the name
	out    Outcome
}

func (t *step) acquire(op AcquireRequest) *Error {
	if t.skewed {
		return t.clockSkew()
	}
	if h := t.holding(op.Lease.Public()); h != nil {
		if !h.Secret.Equal(op.Lease.Hash()) {
			return lost(ReasonUnknown)
		}
		t.out.Fresh = h.Stamp == op.Stamp
		if !t.out.Fresh {
			h.Stamp = "" // another request has taken over: nobody may take the grant back
		}
		t.out.Holder = h.Holder
		return nil
	}
	if tomb, ok := t.tombstone(op.Lease); ok {
		return t.lostTo(tomb, op.Lease)
	}
	if t.record != nil && len(t.record.Holders) > 0 {
		return t.locked()
	}
	return t.grant(op)
}

// grant gives the lease: the only place that issues a token.
func (t *step) grant(op AcquireRequest) *Error {
	var last Token
	if t.record != nil {
		last = t.record.LastToken
	}
	token, err := nextToken(t.Counter, last, t.guard.Floor, t.now)
	if err != nil {
		return err
	}
	holding := Holding{
		Holder: Holder{
			Lease: op.Lease.Public(), Owner: op.Owner, Metadata: op.Metadata,
			Mode: ModeExclusive, Limit: 1, Slot: NoSlot, Hold: 1, Token: token,
			TTL: op.TTL, GrantTTL: op.TTL, MaxHold: op.MaxHold, AcquiredAt: t.now,
		},
		Secret: op.Lease.Hash(),
		Stamp:  op.Stamp,
	}
	holding.ExpiresAt = holding.expiresAt(t.now, op.TTL)

	if t.record == nil {
		t.record = &Record{}
		t.Records[t.name] = t.record
	}
	t.Counter, t.record.LastToken = token, token
	t.record.Holders = append(t.record.Holders, holding)
	t.out.Holder, t.out.Fresh = holding.Holder, true
	return nil
}

func (t *step) renew(op RenewRequest) *Error {
	h, err := t.own(op.Lease)
	if err != nil {
		return err
	}
	if !h.Live(t.now) { // only seen here when skewed: an expiry is not judged then
		return t.clockSkew()
	}
	ttl := op.TTL
	if ttl == 0 {
		ttl = h.GrantTTL
	}
	t.out.Margin = h.ExpiresAt.Sub(t.now)
	h.TTL, h.ExpiresAt = ttl, h.expiresAt(t.now, ttl)
	h.Stamp = "" // the holder was told of the grant: nobody may take it back
	t.out.Holder = h.Holder
	return nil
}

func (t *step) release(op ReleaseRequest) *Error {
	h, err := t.own(op.Lease)
	if err != nil {
		if err.Reason == ReasonReleased {
			return nil // a retry
		}
		return err
	}
	t.end(h, ReasonReleased, t.now)
	return nil
}

func (t *step) takeBack(op TakeBackRequest) *Error {
	h := t.holding(op.Lease.Public())
	if h != nil && h.Secret.Equal(op.Lease.Hash()) && h.Stamp != "" && h.Stamp == op.Stamp {
		t.remove(h, t.now)
	}
	return nil
}

func (t *step) break_(op BreakRequest) *Error {
	if t.record != nil {
		for i := range t.record.Holders {
			if h := &t.record.Holders[i]; h.Token == op.Token {
				t.record.Broken = append(t.record.Broken, op.Token)
				if excess := len(t.record.Broken) - maxBroken; excess > 0 {
					t.record.Broken = t.record.Broken[excess:]
				}
				t.end(h, ReasonBroken, t.now)
				return nil
			}
		}
		for _, token := range t.record.Broken {
			if token == op.Token {
				return nil // a retry
			}
		}
	}
	if t.skewed {
		return t.clockSkew()
	}
	return &Error{
		Code:   CodeStaleToken,
		Detail: fmt.Sprintf("no live lease on this name has the token %d", op.Token),
		Lock:   t.record.View(t.name, t.now),
	}
}

// expire ends what is due on the name, and forgets the name when it is idle.
func (t *step) expire() {
	for i := 0; i < len(t.record.Holders); {
		h := &t.record.Holders[i]
		if h.Live(t.now) {
			i++
			continue
		}
		t.end(h, ReasonExpired, h.ExpiresAt)
	}
	if t.record.forgotten(t.now) {
		delete(t.Records, t.name)
		t.record = nil
	}
}

// end moves a holding to its tombstone.
func (t *step) end(h *Holding, reason Reason, at Instant) {
	t.Tombstones[EndedLease{t.name, h.Lease}] = Tombstone{
		Secret: h.Secret, Token: h.Token, Reason: reason, At: at,
		Until: max(h.ExpiresAt, at.Add(TombstoneTTL)),
	}
	t.out.Ended = append(t.out.Ended, Ended{Name: t.name, Holder: h.Holder, Reason: reason, At: at})
	t.remove(h, at)
}

// remove frees the place of a holding; h is invalid afterwards.
func (t *step) remove(h *Holding, at Instant) {
	t.record.ForgetAt = max(t.record.ForgetAt, h.ExpiresAt, at.Add(ForgetAfter)) // see Record.forgotten
	kept := make([]Holding, 0, len(t.record.Holders)-1)
	for i := range t.record.Holders {
		if other := &t.record.Holders[i]; other != h {
			kept = append(kept, *other)
		}
	}
	t.record.Holders = kept
}

// own returns the holding of a lease id, or why it is not the holder's any more.
// Without skew it is live.
func (t *step) own(lease LeaseID) (*Holding, *Error) {
	if h := t.holding(lease.Public()); h != nil {
		if !h.Secret.Equal(lease.Hash()) {
			return nil, lost(ReasonUnknown)
		}
		return h, nil
	}
	tomb, ok := t.tombstone(lease)
	if ok && (tomb.Reason == ReasonReleased || tomb.Reason == ReasonBroken) {
		return nil, t.lostTo(tomb, lease)
	}
	if t.skewed {
		return nil, t.clockSkew()
	}
	if ok {
		return nil, t.lostTo(tomb, lease)
	}
	return nil, lost(ReasonUnknown)
}

func (t *step) holding(lease LeasePublic) *Holding {
	if t.record == nil {
		return nil
	}
	for i := range t.record.Holders {
		if h := &t.record.Holders[i]; h.Lease == lease {
			return h
		}
	}
	return nil
}

func (t *step) tombstone(lease LeaseID) (Tombstone, bool) {
	tomb, ok := t.Tombstones[EndedLease{t.name, lease.Public()}]
	return tomb, ok && t.now < tomb.Until
}

// lostTo says how the lease of a tombstone was lost.
func (t *step) lostTo(tomb Tombstone, lease LeaseID) *Error {
	if !tomb.Secret.Equal(lease.Hash()) {
		return lost(ReasonUnknown)
	}
	err := lost(tomb.Reason)
	if tomb.Reason == ReasonExpired {
		err.Late = t.now.Sub(tomb.At)
		if t.record != nil && t.record.LastToken > tomb.Token {
			err.Reason, err.CurrentToken = ReasonSuperseded, t.record.LastToken
		}
	}
	err.Detail = lostDetail[err.Reason]
	return err
}

func lost(reason Reason) *Error {
	return &Error{Code: CodeLeaseLost, Reason: reason, Detail: lostDetail[reason]}
}

var lostDetail = map[Reason]string{
	ReasonExpired:    "the lease ran out; nobody has had the lock since",
	ReasonSuperseded: "the lease ran out, and the lock has been granted again since",
	ReasonBroken:     "an administrator broke the lease",
	ReasonReleased:   "the lease was released",
	ReasonUnknown:    "no such lease on this name: it was never granted, its secret is another, or it ended too long ago to be remembered",
}

func (t *step) locked() *Error {
	view := t.record.View(t.name, t.now)
	return &Error{Code: CodeLocked, Detail: "somebody else holds the lock", Lock: view, RetryAfter: view.NextExpiry()}
}

func (t *step) clockSkew() *Error {
	return SkewError(t.guard, t.now)
}

// SkewError says by how much the clocks differ: positive when the store is
// ahead of the gateway (or the operation was late), negative when it is behind.
func SkewError(g Guard, now Instant) *Error {
	return &Error{Code: CodeClockSkew, Detail: fmt.Sprintf(
		"the store's clock differs from the gateway's by %s; %s is allowed",
		now.Sub(g.Sent).Round(time.Millisecond), g.MaxSkew)}
}
