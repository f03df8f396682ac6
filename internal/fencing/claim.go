package fencing

// Intent is a writer that could not get in for the readers there are.
type Intent struct {
	Lease LeasePublic
	Until Instant // nobody is kept out at and after this instant
}

// intend notes that an exclusive lease was refused for the shared ones.
func (t *step) intend(op AcquireRequest) {
	if op.Intent == 0 || op.Mode != ModeExclusive || t.record == nil || t.waiters() > 0 || t.record.Holders.Len() == 0 {
		return
	}
	if t.record.Holders.First().Mode == ModeShared {
		t.record.Intent = Intent{Lease: op.Lease.Public(), Until: t.now.Add(op.Intent)}
	}
}

// fulfil ends the intent of a lease that was granted. It may be that of an earlier
// request, which was to keep others out for longer.
func (t *step) fulfil(op AcquireRequest) {
	if (op.Intent > 0 || op.Propose > 0) && t.record.Intent.Lease == op.Lease.Public() {
		t.record.Intent = Intent{}
	}
}

// keptOut reports whether a shared lease is not granted for the intent of
// another one. Who waits is served in order anyway.
func (t *step) keptOut(op AcquireRequest) bool {
	if op.Mode != ModeShared || op.Wait > 0 || t.record == nil {
		return false
	}
	return t.now < t.record.Intent.Until && t.record.Intent.Lease != op.Lease.Public()
}

// claim sets the token of a lease to one that a majority of nodes is to agree on, whether
// it is above or below the one that was issued here, if it is above the tokens of all
// leases that are over. Without that condition a holder that was paused could outrank the
// one after it.
func (t *step) claim(op ClaimRequest) *Error {
	h, err := t.kept(op.Lease)
	switch {
	case err != nil:
		return err
	case t.skewed:
		return t.clockSkew()
	case h.Provisional: // of a set, which a quorum has not
		return LostError(ReasonUnknown)
	case t.farAhead(op.Token):
		return FloorError()
	case !t.claimable(h, op.Token):
		if h.Claimed {
			return ClaimError(h.Token)
		}
		return ClaimError(t.record.LastToken)
	}
	t.out.Claimed = !h.Claimed
	h.Token, h.Claimed = op.Token, true
	t.Counter = max(t.Counter, op.Token)
	t.record.issued(h)
	t.record.Holders.Put(*h)
	t.out.Holder = h.Holder
	return nil
}

// farAhead reports whether a token comes from a clock that was wrong.
func (t *step) farAhead(token Token) bool {
	return token > t.Counter && token > Token(t.now.Add(MaxFloorLead)) || token > MaxToken
}

// proposable reports whether a new lease can have a token as if it had claimed it. What
// ended on a name that was forgotten is not known, so that a token below the clock, by more
// than the skew, counts as too old.
func (t *step) proposable(token Token) bool {
	return !t.farAhead(token) && token >= Token(t.now.Add(-t.guard.MaxSkew)) && t.claimable(&Holding{}, token)
}

// claimable reports whether a token is above that of every lease that is over,
// and nobody else's; a token that was merely issued to this lease does not count.
// The first claim stays: two that cross can't both have a majority, so that a
// lease has one token for ever (P7).
func (t *step) claimable(h *Holding, token Token) bool {
	if h.Claimed {
		return token == h.Token
	}
	other, taken := t.record.Holders.WithToken(token)
	return token > t.record.EndedToken && (!taken || other.Lease == h.Lease)
}
