package fencing

// own returns a copy of the holding of a lease id, or why it is not the holder's any
// more. Without skew it is live.
func (t *step) own(lease LeaseID) (*Holding, *Error) {
	if h := t.holding(lease.Public()); h != nil {
		if !h.Secret.Equal(lease.Hash()) {
			return nil, LostError(ReasonUnknown)
		}
		return h, nil
	}
	tomb, ok := t.tombstone(lease.Public())
	if ok && tomb.Reason != ReasonExpired {
		return nil, t.lostTo(tomb, lease)
	}
	if t.skewed {
		return nil, t.clockSkew()
	}
	if ok {
		return nil, t.lostTo(tomb, lease)
	}
	return nil, LostError(ReasonUnknown)
}

// kept is own for who goes on with a lease: one that its holder has left is released, for that.
func (t *step) kept(lease LeaseID) (*Holding, *Error) {
	h, err := t.own(lease)
	if err == nil && h.Left() {
		return nil, LostError(ReasonReleased)
	}
	return h, err
}

// holding returns a copy of the holding of a lease id, which counts when it is Put back,
// nil if there is none. One that is due, which the step has not come to, is ended before
// it is asked about.
func (t *step) holding(lease LeasePublic) *Holding {
	if t.record == nil {
		return nil
	}
	h, ok := t.record.Holders.Find(lease)
	if !ok {
		return nil
	}
	if t.due(&h) {
		t.endOverdue(&h)
		return nil
	}
	return &h
}

// place returns the place of a lease id, connected or resting.
func (t *step) place(lease LeaseID) *Place {
	if t.record == nil {
		return nil
	}
	if p := t.findPlace(lease.Public()); p != nil && p.Secret.Equal(lease.Hash()) {
		return p
	}
	return nil
}

// findPlace returns the place with the public part of a lease id. One whose rest is
// over, which the step has not come to, is dropped before it is asked about.
func (t *step) findPlace(lease LeasePublic) *Place {
	p := t.record.Queue.find(lease)
	if p != nil && p.over(t.now) && !t.skewed {
		t.record.Queue.remove(p)
		return nil
	}
	return p
}

func (t *step) tombstone(lease LeasePublic) (Tombstone, bool) {
	tomb, ok := t.Tombstones[EndedLease{t.name, lease}]
	return tomb, ok && t.now < tomb.Until
}

// lostTo says how the lease of a tombstone was lost.
func (t *step) lostTo(tomb Tombstone, lease LeaseID) *Error {
	if !tomb.Secret.Equal(lease.Hash()) {
		return LostError(ReasonUnknown)
	}
	err := LostError(tomb.Reason)
	if tomb.Reason == ReasonExpired {
		err.Late = max(0, t.now.Sub(tomb.At)) // the clock may have been set back
		if t.record != nil && t.record.LastToken > tomb.Token {
			err.Reason, err.CurrentToken = ReasonSuperseded, t.record.LastToken
		}
	}
	err.BreakReason = tomb.BreakReason
	err.Detail = lostDetail[err.Reason]
	return err
}
