package fencing

import "slices"

func (t *step) break_(op BreakRequest) *Error {
	if t.record != nil {
		h, found := t.record.Holders.WithToken(op.Token)
		switch {
		case found && t.due(&h):
			t.endOverdue(&h)
		case found && op.Notice > 0 && !h.Provisional: // of a provisional one nobody was told
			return t.giveNotice(&h, op)
		case found:
			t.endBroken(&h, t.now, op.BreakReason)
			return nil
		}
		if slices.Contains(t.record.Broken, op.Token) {
			return nil // a retry
		}
	}
	if t.skewed {
		return t.clockSkew()
	}
	return NoHolderError(op.Token, t.view())
}

// giveNotice has a lease end by the time that a break leaves it. What its holder was told
// stays true, for its expiry is not moved (P9); renewals are bounded from then on. Of two
// notices the earlier end counts.
func (t *step) giveNotice(h *Holding, op BreakRequest) *Error {
	if t.skewed { // the time to leave would be counted by a clock that may be wrong
		return t.clockSkew()
	}
	if at := max(t.now.Add(op.Notice), h.ExpiresAt); h.BreakAt == 0 || at < h.BreakAt {
		h.BreakAt, h.BreakReason, t.out.Noticed = at, op.BreakReason, true
		t.record.Holders.Put(*h)
	}
	t.out.Holder = h.Holder
	return nil
}

// endBroken ends a lease that an administrator ends, and remembers its token for retries.
func (t *step) endBroken(h *Holding, at Instant, reason string) {
	t.record.Broken = append(t.record.Broken, h.Token)
	if excess := len(t.record.Broken) - MaxBroken; excess > 0 {
		t.record.Broken = t.record.Broken[excess:]
	}
	t.end(h, ReasonBroken, at, reason)
}
