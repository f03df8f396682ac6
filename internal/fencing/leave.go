package fencing

func (t *step) leave(op LeaveRequest) *Error {
	if t.skewed {
		return t.clockSkew()
	}
	if h := t.holding(op.Lease.Public()); h != nil && !h.Left() && h.Secret.Equal(op.Lease.Hash()) {
		if h.Stamp != op.Stamp {
			return ReplacedError()
		}
		t.out.Holder, t.out.Fresh = h.Holder, !h.Told
		return nil
	}
	p := t.place(op.Lease)
	if p == nil {
		return nil
	}
	if p.Stamp != op.Stamp {
		return ReplacedError()
	}
	if p.RestTill == 0 {
		place := p.waiter(t.now, t.record.Queue.position(p))
		t.out.Place = &place
		t.depart(p)
	}
	t.handOff()
	t.out.Lock = t.view()
	return nil
}

func (t *step) takeBack(op TakeBackRequest) *Error {
	if t.record == nil || op.Stamp == "" {
		return nil
	}
	asked := func(secret SecretHash, stamp Stamp, gateway Gateway) bool {
		return stamp == op.Stamp && (secret.Equal(op.Lease.Hash()) || op.Unknown && gateway == t.guard.Gateway)
	}
	if h := t.holding(op.Lease.Public()); h != nil {
		switch {
		case asked(h.Secret, h.Stamp, h.Gateway) && (h.Provisional || !op.Unknown) && (!h.Told || op.Refused):
			t.undo(h)
		case op.Left && !op.Unknown && h.Secret.Equal(op.Lease.Hash()) && h.hangsOn(op.Stamp, op.Epoch):
			return t.letGo(h, ReleaseRequest{Stamp: op.Stamp, Linger: op.Linger, Epoch: op.Epoch}) // as by the end of the stream
		}
		return nil
	}
	if p := t.findPlace(op.Lease.Public()); p != nil && asked(p.Secret, p.Stamp, p.Gateway) && p.RestTill == 0 {
		t.depart(p)
	}
	return nil
}

func (t *step) evict(op EvictRequest) *Error {
	if t.skewed {
		return t.clockSkew()
	}
	if h := t.holding(op.Waiter); h != nil {
		return HoldsError(h.Token)
	}
	if t.record != nil {
		if p := t.findPlace(op.Waiter); p != nil {
			t.expel(p, op.BreakReason)
			return nil
		}
	}
	if tomb, ok := t.tombstone(op.Waiter); ok && tomb.Reason == ReasonEvicted {
		return nil // a retry
	}
	return NoWaiterError()
}

// expel takes a place out of the queue for good.
func (t *step) expel(p *Place, reason string) {
	gone := Eviction{Waiter: p.waiter(t.now, 0), Reason: reason}
	if p.RestTill == 0 {
		gone.Request = &Parked{Gateway: p.Gateway, Stamp: p.Stamp}
	}
	t.record.Queue.remove(p)
	t.Tombstones[EndedLease{t.name, p.lease()}] = Tombstone{
		Secret: p.Secret, Reason: ReasonEvicted, At: t.now, Until: t.now.Add(TombstoneTTL), BreakReason: reason,
	}
	t.out.Evicted = &gone
}

// undo takes a grant back that its holder was not told of. All is as if it had not been
// made, but that its place rests if Keep was asked for.
func (t *step) undo(h *Holding) {
	t.record.Holders.Remove(h.Lease)
	t.freed(h, t.now)
	limit := h.Limit
	if h.Mode == ModeExclusive {
		limit = 0 // as a request has it
	}
	t.out.Left = append(t.out.Left, Waiter{Lease: h.Lease, Owner: h.Owner, Mode: h.Mode, Limit: limit, Permits: h.Permits, Waiting: t.now.Sub(h.JoinedAt)})
	if h.Keep {
		t.rest(&Place{Secret: h.Secret, Stamp: h.Stamp, Gateway: h.Gateway, Seq: h.Seq, JoinedAt: h.JoinedAt, Ask: AcquireRequest{
			Name: t.name, Lease: LeaseID{public: h.Lease}, Owner: h.Owner, Metadata: h.Metadata.Map(),
			Mode: h.Mode, Limit: limit, Permits: h.Permits, Hold: 1, TTL: h.GrantTTL, MaxHold: h.MaxHold, LockDelay: h.LockDelay, Wait: 1, Keep: true, Set: h.Set, Attach: h.Attached != "",
		}})
	}
}

// depart takes a connected place out of the queue; it may rest.
func (t *step) depart(p *Place) {
	t.record.Queue.remove(p)
	t.departed(p)
}

func (t *step) departed(p *Place) {
	t.out.Left = append(t.out.Left, p.waiter(t.now, 0))
	if p.Ask.Keep {
		t.rest(p)
	}
}
