package fencing

import "cmp"

func (t *step) acquire(op AcquireRequest) *Error {
	if t.skewed {
		return t.clockSkew()
	}
	if err := t.trial(op); err != nil {
		return err
	}
	if h := t.holding(op.Lease.Public()); h != nil {
		return t.again(h, op)
	}
	if t.record != nil {
		if p := t.findPlace(op.Lease.Public()); p != nil {
			return t.resume(p, op)
		}
	}
	if tomb, ok := t.tombstone(op.Lease.Public()); ok {
		return t.lostTo(tomb, op.Lease)
	}
	if op.Hold > 1 {
		return HoldError(op.Hold, 0)
	}
	op.Mode = cmp.Or(op.Mode, ModeExclusive)
	p := t.placeOf(op)
	if t.waiters() == 0 && t.fits(p) && !t.keptOut(op) {
		h, err := t.grant(p, op.Set == "")
		if err == nil {
			t.out.Holder, t.out.Fresh = h.Holder, true
			t.fulfil(op)
			return nil
		}
		if op.Wait == 0 || err.Code != CodeQuarantined || err.RetryAfter == 0 {
			return err
		}
	}
	if op.Wait == 0 {
		t.intend(op)
		return t.locked(CodeLocked)
	}
	if op.MaxWaiters > 0 && t.places() >= op.MaxWaiters {
		return t.locked(CodeTooManyRequests)
	}
	t.Gateways.join(t.guard.Gateway, t.now)
	if t.record == nil { // in quarantine
		t.record = &Record{}
		t.Records[t.name] = t.record
	}
	t.record.Queue.enter(p)
	t.out.Joined = true
	t.waits(p)
	return nil
}

// again answers an acquire whose lease id holds the name: a retry, or one that
// deepens the hold.
func (t *step) again(h *Holding, op AcquireRequest) *Error {
	switch {
	case !h.Secret.Equal(op.Lease.Hash()):
		return LostError(ReasonUnknown)
	case h.Left():
		return LostError(ReasonReleased)
	case h.Set != op.Set:
		return OtherNamesError()
	case h.Provisional && op.Hold > 1: // nobody was told of it
		return HoldError(op.Hold, 0)
	case op.Hold > h.Hold+1:
		return HoldError(op.Hold, h.Hold)
	}
	if err := op.Contradicts(h.Mode, h.Limit, h.Permits, h.Owner); err != nil {
		return err
	}
	if op.Again && h.Stamp != op.Stamp || h.takenSince(&op) {
		return ReplacedError()
	}
	switch {
	case h.Provisional: // not told yet, so the lease is this request's from here on
		unsafe := t.quarantined() // as in confirm; a request that waits waits for the end of that
		if op.Set == "" && unsafe != nil && (op.Wait == 0 || unsafe.RetryAfter == 0) {
			return unsafe
		}
		if h.Stamp != op.Stamp {
			t.out.Replaced = &Parked{Gateway: h.Gateway, Stamp: h.Stamp}
		}
		h.Stamp, h.Gateway = op.Stamp, t.guard.Gateway
		if op.Set == "" && unsafe == nil {
			t.firm(h)
		} else {
			t.Gateways.join(t.guard.Gateway, t.now)
		}
	case h.Stamp != op.Stamp:
		if h.Stamp != "" && !h.Told { // the lost writes may include a take-back, after which another was granted
			if err := t.quarantined(); err != nil {
				return err
			}
		}
		h.Stamp = "" // another request has taken over: nobody may take the grant back
	}
	t.out.Fresh = h.Stamp == op.Stamp && !h.Told
	if !op.Again && (op.Attach || op.Hold < 2 && op.Set == "") {
		t.attach(h, op)
	}
	if op.Hold == h.Hold+1 {
		h.Hold, h.Stamp, t.out.Fresh = op.Hold, "", false
		if until := h.expiresAt(t.now, op.TTL); until > h.ExpiresAt {
			h.TTL, h.ExpiresAt = op.TTL, until
			t.uses(h)
		}
	}
	t.record.Holders.Put(*h)
	t.out.Holder = h.Holder
	return nil
}

// takenSince reports whether a lease that a stream is to have as one of a set has been taken over
// since the stream saw it last. It has its names one after the other, and the newest stream is the
// one that began so last: an older one, which comes late to a name, does not take it from that.
func (h *Holding) takenSince(op *AcquireRequest) bool {
	return op.Attach && !op.Again && op.Set != "" && h.Attached != op.Stamp && h.Epoch > op.Epoch
}

// attach makes the newest request the one that the lease hangs on, if it is a
// stream; an older stream is replaced. A set has it do so once it is complete: until then
// what it holds already hangs on the older stream. So it does where a hold is asked for that is
// deeper, be it for the first time or again. The request that was granted the lease takes
// nothing over by asking again, unless it is a stream by now, of a set.
func (t *step) attach(h *Holding, op AcquireRequest) {
	if h.Attached != op.Stamp && (op.Attach || h.Attached != "" || h.Stamp != op.Stamp) {
		h.Epoch++
	}
	t.hang(h, op.Stamp, op.Attach)
}

// hang has a lease hang on a request, if that is a stream, and on nothing else. Another stream
// that it hung on is replaced.
func (t *step) hang(h *Holding, stamp Stamp, stream bool) {
	if h.Attached != "" && h.Attached != stamp && t.out.Replaced == nil {
		t.out.Replaced = &Parked{Gateway: h.Gateway, Stamp: h.Attached}
	}
	h.Attached = ""
	if stream {
		h.Attached, h.Gateway = stamp, t.guard.Gateway
	}
}

// resume answers an acquire whose lease id has a place: the request takes it
// over, with the limit that it names, if it has one, and is granted at once if it can be.
func (t *step) resume(p *Place, op AcquireRequest) *Error {
	queue := &t.record.Queue
	switch {
	case !p.Secret.Equal(op.Lease.Hash()):
		return LostError(ReasonUnknown)
	case p.Ask.Set != op.Set:
		return OtherNamesError()
	case op.Hold > 1:
		return HoldError(op.Hold, 0)
	}
	limit := p.Ask.Limit
	if limit > 0 && op.Limit >= p.permits() && !op.Again {
		limit = op.Limit // it says anew what it tolerates
	}
	if err := op.Contradicts(p.Ask.Mode, limit, p.permits(), p.Ask.Owner); err != nil {
		return err
	}
	if op.Again && p.Stamp != op.Stamp {
		return ReplacedError()
	}
	if p.RestTill == 0 && p.Stamp != op.Stamp {
		t.out.Replaced = &Parked{Gateway: p.Gateway, Stamp: p.Stamp}
	}
	rested := p.RestTill != 0
	t.Gateways.join(t.guard.Gateway, t.now)
	queue.remove(p)
	p.Stamp, p.Gateway, p.Ask.Attach, p.Ask.Limit = op.Stamp, t.guard.Gateway, op.Attach, limit
	queue.enter(p)
	if queue.order[0] == p {
		t.left = max(t.left, 1) // a grant to who asks is none of what has come due
	}
	t.handOff()
	if h := t.holding(p.lease()); h != nil {
		t.out.Holder, t.out.Fresh = h.Holder, true
		return nil
	}
	if op.Wait > 0 {
		t.out.Joined = rested
		t.waits(p)
		return nil
	}
	err := t.locked(CodeLocked)
	err.Position = queue.position(p)
	t.depart(p)
	if rested { // it had left before
		t.out.Left = t.out.Left[:len(t.out.Left)-1]
	}
	return err
}

// waits makes the outcome of a request that waits in p.
func (t *step) waits(p *Place) {
	place := p.waiter(t.now, t.record.Queue.position(p))
	t.out.Place, t.out.Lock = &place, t.view()
}

func (t *step) placeOf(op AcquireRequest) *Place {
	p := &Place{Ask: op, Secret: op.Lease.Hash(), Stamp: op.Stamp, Gateway: t.guard.Gateway, JoinedAt: t.now}
	p.Ask.Lease.secret = ""
	if t.record != nil {
		p.Seq = t.record.Queue.next(t.now)
	} else {
		p.Seq = t.now + 1
	}
	return p
}

// waiters returns how many wait: settle has taken out those of dead gateways.
func (t *step) waiters() int {
	if t.record == nil {
		return 0
	}
	return t.record.Queue.Len()
}

// places returns how many places there are, those included that rest.
func (t *step) places() int {
	if t.record == nil {
		return 0
	}
	return t.record.Queue.Places()
}
