package fencing

import "slices"

// settle does what time alone has brought about on the name: it ends leases that
// ran out, takes back what dead gateways have not confirmed, drops their waiters
// and the places nobody came back to, hands the lock on, and forgets the name
// when it has been idle.
func (t *step) settle() {
	if t.record == nil || t.skewed {
		return
	}
	t.putRight()
	t.hear()
	t.endDue()
	t.dropDead()
	t.wake()
	t.handOff()
	if !t.more && t.record.forgotten(t.now) {
		delete(t.Records, t.name)
		t.record = nil
	}
}

// due reports whether the time of a lease is over, or it is provisional and its
// gateway is dead.
func (t *step) due(h *Holding) bool {
	if t.skewed {
		return false
	}
	return h.Provisional && !t.alive(h.Gateway) || !h.Provisional && !h.Live(t.now) && !t.guard.Kept[h.Token]
}

// endOverdue ends a lease that is due.
func (t *step) endOverdue(h *Holding) {
	if h.Provisional {
		t.undo(h)
	} else if reason, why := h.outOfTime(); reason == ReasonBroken {
		t.endBroken(h, h.ExpiresAt, why)
	} else {
		t.end(h, reason, h.ExpiresAt, "")
	}
}

// endDue ends leases that are due, in order of grant: if the step may not end all,
// those that ran out first.
func (t *step) endDue() {
	due, more := t.record.Holders.due(t.now, t.alive, t.left+len(t.guard.Kept))
	if due = slices.DeleteFunc(due, func(h Holding) bool { return t.guard.Kept[h.Token] }); len(due) > t.left {
		due, more = due[:t.left], true
	}
	t.left, t.more = t.left-len(due), t.more || more
	for i := range due {
		t.endOverdue(&due[i])
	}
}

// hear notes a sign of life where it matters to whom the lock is handed.
func (t *step) hear() {
	if t.record.Queue.Len() > 0 || t.record.Holders.Unconfirmed() {
		t.Gateways.hear(t.guard.Gateway, t.now)
	}
}

func (t *step) alive(gateway Gateway) bool {
	return gateway == t.guard.Gateway || t.now < t.Gateways.deadAt(gateway)
}

// dropDead takes the waiters of dead gateways out, the first in the queue first.
func (t *step) dropDead() {
	var dead map[Gateway]bool
	for gateway := range t.record.Queue.look().gateways {
		if t.alive(gateway) {
			continue
		}
		if dead == nil {
			dead = map[Gateway]bool{}
		}
		dead[gateway] = true
	}
	if len(dead) == 0 {
		return
	}
	removed, more := t.record.Queue.removeAll(dead, t.left)
	t.left, t.more = t.left-len(removed), t.more || more
	for _, p := range removed {
		t.departed(p)
	}
}

// wake drops places whose rest is over.
func (t *step) wake() {
	dropped, more := t.record.Queue.wake(t.now, t.left)
	t.left, t.more = t.left-dropped, t.more || more
}

// end ends a lease: what remains is its tombstone, and a line of the history.
func (t *step) end(h *Holding, reason Reason, at Instant, breakReason string) {
	t.record.Holders.Remove(h.Lease)
	t.Tombstones[EndedLease{t.name, h.Lease}] = Tombstone{
		Secret: h.Secret, Token: h.Token, Reason: reason, At: at,
		Until: t.latest(max(h.ExpiresAt, at.Add(TombstoneTTL))), BreakReason: breakReason,
	}
	ended := Ended{Name: t.name, Holder: h.Holder, Reason: reason, At: at, BreakReason: breakReason}
	t.out.Ended = append(t.out.Ended, ended)
	t.record.History = append(t.record.History, ended)
	if excess := len(t.record.History) - MaxHistory; excess > 0 {
		t.record.History = slices.Delete(t.record.History, 0, excess)
	}
	if reason != ReasonReleased && !h.Provisional && h.LockDelay > 0 {
		t.delay(at.Add(h.LockDelay))
	}
	t.freed(h, at)
}

// freed notes until when the record is to be kept once a lease is gone.
func (t *step) freed(h *Holding, at Instant) {
	t.record.EndedToken = max(t.record.EndedToken, h.Token)
	forgetAt := at.Add(ForgetAfter)
	if !h.Provisional {
		forgetAt = max(forgetAt, h.ExpiresAt) // see Record.forgotten
	}
	t.record.ForgetAt = max(t.record.ForgetAt, t.latest(forgetAt))
}
