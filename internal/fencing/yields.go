package fencing

import "slices"

// Yields is the list of the operations that let others have some of what a lease has: they end it, take permits from it, or have it tolerate
// more. It returns the tokens of the firm leases that op does this to at now; a store in which they are not to yield anything for a while
// carries op out later, and has Guard.Kept keep the leases that end by themselves meanwhile. skewed: the clocks differ, so that nothing
// is judged by the time.
//
// It holds as well where other operations of the same instant come first, none of which had a lease here yield anything: so it
// does not ask whether op will be refused. TestYields holds it to Step.
func (s *State) Yields(now Instant, skewed bool, op Op) (tokens []Token) {
	r := s.Records[op.LockName()]
	if r == nil || OnlyLooks(op) {
		return nil
	}
	if !skewed && r.Holders.firm() > 0 && r.outdated(now) { // the name may be forgotten, and with it what is over and kept
		for h := range r.Holders.All() {
			if !h.Provisional {
				tokens = append(tokens, h.Token)
			}
		}
		return tokens
	}
	var h Holding
	found := false
	if b, breaks := op.(BreakRequest); breaks {
		h, found = r.Holders.WithToken(b.Token)
	} else if h, found = r.Holders.Find(op.LockLease().Public()); found {
		found = h.Secret.Equal(op.LockLease().Hash())
	}
	if !found || h.Provisional {
		return nil
	}
	if h.yieldsTo(op) || !skewed && (!h.Live(now) || h.SentAt != 0) { // nor is one that is kept to be renewed; of a doubtful one it is not known
		return []Token{h.Token}
	}
	return nil
}

// yieldsTo reports whether an operation that is about a lease has it yield something.
func (h *Holding) yieldsTo(op Op) bool {
	switch op := op.(type) {
	case RenewRequest:
		limit := op.Limit
		if limit == 0 && op.Mode == ModeShared && h.Mode == ModeExclusive {
			limit = AnyNumber
		}
		return limit > tolerates(h.Mode, h.Limit) || op.Permits > 0 && op.Permits < h.Permits
	case ReleaseRequest:
		return op.Hold < 2 && op.Linger == 0
	case BreakRequest:
		return op.Notice == 0
	case TakeBackRequest, ClaimRequest: // a claim gives it another token, which nobody keeps
		return true
	}
	return false
}

// MayYield returns the tokens of the firm leases of which others may have something by an operation at now: those that Yields names,
// and those on its name whose time is over, or is perhaps when what clocks that differed have set is put right. These end unless
// Guard.Kept has them.
func (s *State) MayYield(now Instant, op Op) (tokens []Token) {
	r := s.Records[op.LockName()]
	if r == nil || r.Holders.Len() == 0 || OnlyLooks(op) && !r.Doubtful() {
		return nil
	}
	for _, h := range r.Holders.Over(now) {
		tokens = append(tokens, h.Token)
	}
	if r.Doubtful() {
		for h := range r.Holders.All() {
			if !h.Provisional && h.SentAt != 0 && h.Live(now) {
				tokens = append(tokens, h.Token)
			}
		}
	}
	if own := s.Yields(now, false, op); len(own) == 1 && !slices.Contains(tokens, own[0]) { // several are over, all of them
		tokens = append(tokens, own[0])
	}
	return tokens
}
