package fencing

import "cmp"

// AnyNumber is more permits than those of a name ever are.
const AnyNumber = 1 << 30

// tolerates returns how many permits a lease bears, its own included.
func tolerates(mode Mode, limit int) int {
	switch {
	case mode == ModeExclusive:
		return 1
	case limit == 0:
		return AnyNumber
	}
	return limit
}

// fits reports whether a newcomer may be granted the name.
func (t *step) fits(p *Place) bool { return !t.delayed() && t.hasRoom(p) }

// delayed reports whether nobody may be granted the name, for the delay of a lease that has
// ended, or may have: the step has not come to all of them.
func (t *step) delayed() bool {
	r := t.record
	return r != nil && (t.now < r.DelayedUntil || t.more && r.Holders.delay())
}

// hasRoom is the one rule of all modes: the permits of all, the newcomer's included, are no
// more than it bears itself, nor than any of the others bears; and there are no more
// holders than a name may have. Who asks for no permits counts as one.
func (t *step) hasRoom(p *Place) bool {
	if t.record == nil || t.record.Holders.Len() == 0 {
		return true
	}
	holders := &t.record.Holders
	bears := min(tolerates(p.Ask.Mode, p.Ask.Limit), holders.tolerate())
	return holders.Permits()+p.permits() <= bears && holders.Len() < cmp.Or(t.guard.MaxHolders, AnyNumber)
}

// grant gives the lease, with a token: all tokens are issued here. A lease that is not
// firm is provisional, and has to be confirmed.
func (t *step) grant(p *Place, firm bool) (*Holding, *Error) {
	proposes := p.Ask.Wait == 0 && p.Ask.Set == "" && p.Ask.Propose != 0
	if err := t.quarantined(); err != nil && (!proposes || !p.Ask.Claimed || err.RetryAfter == 0) {
		return nil, err
	}
	var last Token
	if t.record != nil {
		last = t.record.LastToken
	}
	token, err := nextToken(t.Counter, last, t.guard.Floor, t.now)
	if err != nil {
		return nil, err
	}
	if t.record == nil {
		t.record = &Record{}
		t.Records[t.name] = t.record
	}
	if t.record.Holders.Len() == 0 {
		t.record.EndedToken = last
	}
	claimed := proposes && (p.Ask.Propose == token || t.proposable(p.Ask.Propose))
	if claimed {
		token = p.Ask.Propose
	}
	t.Counter = max(t.Counter, token)
	ask := &p.Ask
	slot, slots := t.slots(ask.Mode, ask.Limit, p.permits())
	holding := Holding{
		Holder: Holder{
			Lease: p.lease(), Owner: ask.Owner, Metadata: LabelsOf(ask.Metadata),
			Mode: ask.Mode, Limit: ask.Limit, Permits: p.permits(), Slot: slot, Slots: slots, Hold: 1, Token: token,
			TTL: ask.TTL, GrantTTL: ask.TTL, MaxHold: ask.MaxHold, LockDelay: ask.LockDelay, Provisional: true, Claimed: claimed,
		},
		Secret: p.Secret, Stamp: p.Stamp, Gateway: p.Gateway,
		Set: ask.Set, Keep: ask.Keep && ask.Wait > 0, Seq: p.Seq, JoinedAt: p.JoinedAt,
	}
	if ask.Attach {
		holding.Attached = p.Stamp
	}
	if ask.Mode == ModeExclusive {
		holding.Limit = 1
	}
	t.start(&holding)
	if firm {
		holding.Provisional = false
	} else if p.Gateway == t.guard.Gateway { // the gateway of a waiter was registered when that joined
		t.Gateways.join(p.Gateway, t.now)
	}
	t.record.delayOver()
	t.record.issued(&holding)
	t.record.Holders.Put(holding)
	t.out.Granted = append(t.out.Granted, holding.Grant(t.name))
	return &holding, nil
}

// start lets the TTL run from now.
func (t *step) start(h *Holding) {
	h.AcquiredAt, h.Waited = t.now, t.now.Sub(h.JoinedAt)
	h.ExpiresAt = h.expiresAt(t.now, h.TTL)
	t.uses(h)
}

// firm ends the provisional state of a lease.
func (t *step) firm(h *Holding) {
	h.Provisional = false
	t.start(h)
}

// slots returns the lowest numbers that no holder has, or NoSlot. They are below the
// limit: with the newcomer there are no more permits than that, and so no more slots, however
// high the numbers are that others have from before they lowered their limits.
func (t *step) slots(mode Mode, limit, permits int) (int, Slots) {
	if mode != ModeShared || limit == 0 {
		return NoSlot, ""
	}
	taken := t.record.Holders.slots()
	if permits == 1 {
		return taken.first(), ""
	}
	free := taken.free(permits)
	return free[0], slotsOf(free)
}

// handOff grants to the longest-waiting live waiters that fit, as many as the step may.
// While others wait nobody overtakes them, so the next step goes on in order.
func (t *step) handOff() {
	if t.record == nil {
		return
	}
	queue := &t.record.Queue
	retryAt := t.record.RetryAt
	t.record.RetryAt = 0
	if t.more {
		t.record.RetryAt = AtOnce
	}
	if t.skewed {
		if t.doubt || retryAt == AfterSkew {
			t.record.RetryAt = AfterSkew
		} else if queue.Len() > 0 && t.hasRoom(queue.order[0]) {
			t.record.RetryAt = cmp.Or(retryAt, AfterSkew)
		}
		return
	}
	if queue.Len() == 0 {
		return
	}
	if t.delayed() {
		t.record.RetryAt = cmp.Or(t.record.RetryAt, t.record.DelayedUntil)
		return
	}
	for len(queue.order) > 0 && t.hasRoom(queue.order[0]) {
		if t.left == 0 {
			t.record.RetryAt = AtOnce
			return
		}
		p := queue.order[0]
		if _, err := t.grant(p, p.Gateway == t.guard.Gateway && p.Ask.Set == "" && !t.guard.Tentative); err != nil { // refused for this gateway's floor: another one may do it
			t.record.RetryAt = t.now.Add(HeartbeatInterval)
			if t.now < t.Quarantine.Until {
				t.record.RetryAt = t.Quarantine.Until
			}
			return
		}
		t.left--
		queue.remove(p)
	}
}
