package fencing

import "time"

// AfterSkew is the Record.RetryAt of a name on which a step has written something while the
// clocks differed. It is due by any clock: the first step with clocks that agree puts right
// what was written, and tries the hand-off.
const AfterSkew Instant = 2

// While the clocks differ it is not known which of them is wrong, the store's or the
// gateway's. So a time that is set then counts by both: it stands there by the store's clock,
// and beside it is when it was set by either, 0 and 0 for a time that was set while they
// agreed. Whether the store's clock was wrong is seen by the first step with clocks that
// agree: it has jumped to where the gateway's was.

// lead returns by how much the gateway's clock is ahead of the store's, 0 while they agree.
func (t *step) lead() time.Duration {
	if !t.skewed {
		return 0
	}
	return t.guard.Sent.Sub(t.now)
}

// latest returns an instant, of the store's clock, by the clock that is ahead. What is kept until
// then is not gone too soon, and bounded all the same.
func (t *step) latest(at Instant) Instant { return at.Add(min(max(0, t.lead()), ForgetAfter)) }

// setNow returns when a time is set, by both clocks.
func (t *step) setNow() (set, sent Instant) {
	if !t.skewed {
		return 0, 0
	}
	t.doubt = true
	return t.now, t.guard.Sent
}

// wasWrong reports whether the store's clock was wrong when a time was set. A clock that was
// behind has to have come to the gateway's time then; one that was ahead has gone back.
func (t *step) wasWrong(set, sent Instant) bool {
	if sent > set {
		return t.now >= sent.Add(-t.guard.MaxSkew)
	}
	return t.now < set
}

// end is an end of a lease that a step sets.
type end struct {
	at        Instant // by the store's clock
	set, sent Instant
	sure      time.Duration // what is left by either clock, whichever is wrong
}

// endAfter returns the end of a lease that lives for ttl from now. Is the store's clock behind by
// no more than half of that, or the gateway's ahead, there is one end: later it could not be told
// which was wrong, so the holder is told of less. It is not sooner than the one before, which a
// clock has set that went back since.
func (t *step) endAfter(h *Holding, ttl time.Duration) end {
	at, lead := h.expiresAt(t.now, ttl), t.lead()
	if lead == 0 {
		return end{at: at, sure: at.Sub(t.now)}
	}
	other := h.expiresAt(t.guard.Sent, ttl)
	if lead > 0 && 2*lead <= ttl {
		if h.ExpiresAt.Add(-h.TTL) > t.now {
			at = max(at, min(h.ExpiresAt, other))
		}
		return end{at: at, sure: at.Sub(t.guard.Sent)}
	}
	return end{at: at, set: t.now, sent: t.guard.Sent, sure: min(at.Sub(t.now), other.Sub(t.guard.Sent))}
}

// prolong sets an end.
func (t *step) prolong(h *Holding, ttl time.Duration, e end) {
	h.TTL, h.ExpiresAt, h.SetAt, h.SentAt = ttl, e.at, e.set, e.sent
	t.doubt = t.doubt || e.sent != 0
	t.uses(h)
}

// sure returns what is left of a lease by either clock.
func (t *step) sure(h *Holding) time.Duration {
	left := h.ExpiresAt.Sub(t.now)
	switch {
	case !t.skewed:
		return left
	case h.SentAt != 0:
		return min(left, h.expiresAt(h.SentAt, h.TTL).Sub(t.guard.Sent))
	}
	return min(left, h.ExpiresAt.Sub(t.guard.Sent))
}

// tell answers with a lease, of which so much is left by either clock (P9).
func (t *step) tell(h *Holding, sure time.Duration) {
	t.out.Holder = h.Holder
	t.out.Holder.ExpiresAt = t.now.Add(sure)
	if h.BreakAt != 0 {
		t.out.Holder.BreakAt = h.BreakAt.Add(-max(0, t.lead()))
	}
}

// delay has nobody granted the name before an instant, nor before one that was set earlier.
func (t *step) delay(until Instant) {
	r := t.record
	if t.skewed {
		before := r.DelayedUntil
		if r.DelaySentAt != 0 {
			before = r.DelayedOther
		}
		r.DelayedOther = max(before, until.Add(t.lead()))
	}
	r.DelayedUntil = max(r.DelayedUntil, until)
	r.DelaySetAt, r.DelaySentAt = t.setNow()
}

// delayOver forgets a lock delay, which so stays over if the clock is set back.
func (r *Record) delayOver() {
	r.DelayedUntil, r.DelaySetAt, r.DelaySentAt, r.DelayedOther = 0, 0, 0, 0
}

// Doubtful reports whether anything was written on the name while the clocks differed.
func (r *Record) Doubtful() bool { return r.RetryAt == AfterSkew || r.DelaySentAt != 0 }

// putRight puts right what was written on the name while the clocks differed. A lock delay is
// bounded whoever has set it.
func (t *step) putRight() {
	r := t.record
	if r.RetryAt == AfterSkew {
		t.putHoldersRight()
		r.Queue.putRight(t.now, t.wasWrong)
	}
	if r.DelaySentAt != 0 && t.wasWrong(r.DelaySetAt, r.DelaySentAt) {
		r.DelayedUntil = r.DelayedOther
	}
	r.DelayedUntil = min(r.DelayedUntil, t.now.Add(MaxLockDelay))
	r.DelaySetAt, r.DelaySentAt, r.DelayedOther = 0, 0, 0
}

// putHoldersRight puts the ends of leases right. None is later than a TTL from now: it was set
// before, by whatever clock.
func (t *step) putHoldersRight() {
	var doubtful []Holding
	for h := range t.record.Holders.All() {
		if h.SentAt != 0 {
			doubtful = append(doubtful, h)
		}
	}
	for i := range doubtful {
		h := &doubtful[i]
		if t.wasWrong(h.SetAt, h.SentAt) {
			h.ExpiresAt = h.expiresAt(h.SentAt, h.TTL)
		}
		h.ExpiresAt = min(h.ExpiresAt, h.expiresAt(t.now, h.TTL))
		h.SetAt, h.SentAt = 0, 0
		t.record.Holders.Put(*h)
	}
}

// putRight puts the ends of rests right, of which none is later than a RestTTL from now either.
func (q *Queue) putRight(now Instant, wasWrong func(set, sent Instant) bool) {
	if q.places == nil {
		return
	}
	var till Instant
	for _, p := range q.resting {
		if p.SentAt != 0 {
			if wasWrong(p.SetAt, p.SentAt) {
				p.RestTill = p.SentAt.Add(RestTTL)
			}
			p.RestTill = min(p.RestTill, now.Add(RestTTL))
		}
		p.SetAt, p.SentAt = 0, 0
		if till == 0 || p.RestTill < till {
			till = p.RestTill
		}
	}
	q.restTill = till
}
