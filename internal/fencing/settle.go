package fencing

import (
	"cmp"
	"slices"
)

// settle does what time alone has brought about on the name: it ends leases that
// ran out, takes back what dead gateways have not confirmed, drops their waiters
// and the places nobody came back to, hands the lock on, and forgets the name
// when it has been idle.
func (t *step) settle() {
	if t.record == nil || t.skewed {
		return
	}
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
	return h.Provisional && !t.alive(h.Gateway) || !h.Provisional && !h.Live(t.now)
}

// lapse ends a lease that is due; h is invalid afterwards.
func (t *step) lapse(h *Holding) {
	if h.Provisional {
		t.undo(h)
	} else {
		t.end(h, ReasonExpired, h.ExpiresAt)
	}
}

// endDue ends leases that are due, in order of grant: if the step may not end all,
// those that ran out first.
func (t *step) endDue() {
	var due []*Holding
	for i := range t.record.Holders {
		if h := &t.record.Holders[i]; t.due(h) {
			due = append(due, h)
		}
	}
	if len(due) == 0 {
		return
	}
	if t.more = len(due) > t.left; t.more {
		slices.SortFunc(due, (*Holding).compareDue)
		due = due[:t.left]
	}
	t.left -= len(due)
	ends := map[LeasePublic]bool{}
	for _, h := range due {
		ends[h.Lease] = true
	}
	holders := t.record.Holders
	t.record.Holders = make([]Holding, 0, len(holders)-len(due))
	for i := range holders {
		switch h := &holders[i]; {
		case !ends[h.Lease]:
			t.record.Holders = append(t.record.Holders, *h)
		case h.Provisional:
			t.revert(h)
		default:
			t.bury(h, ReasonExpired, h.ExpiresAt)
		}
	}
}

// compareDue orders leases that are due: first those whose time ran out, by when,
// then those of dead gateways.
func (h *Holding) compareDue(other *Holding) int {
	if h.Provisional != other.Provisional {
		if other.Provisional {
			return -1
		}
		return 1
	}
	if h.Provisional {
		return cmp.Or(cmp.Compare(h.Gateway, other.Gateway), cmp.Compare(h.Lease, other.Lease))
	}
	return cmp.Or(cmp.Compare(h.ExpiresAt, other.ExpiresAt), cmp.Compare(h.Lease, other.Lease))
}

// hear notes a sign of life where it matters to whom the lock is handed.
func (t *step) hear() {
	if t.record.Queue.Len() > 0 || t.record.Unconfirmed() {
		t.Gateways.hear(t.guard.Gateway, t.now)
	}
}

func (t *step) alive(gateway Gateway) bool {
	return gateway == t.guard.Gateway || t.now < t.Gateways.lapse(gateway)
}

// dropDead takes the waiters of dead gateways out, the first in the queue first.
func (t *step) dropDead() {
	var dead map[Gateway]bool
	for gateway := range t.record.Queue.gateways {
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

// end ends a lease; h is invalid afterwards.
func (t *step) end(h *Holding, reason Reason, at Instant) {
	t.bury(h, reason, at)
	t.remove(h)
}

// bury moves a holding to its tombstone and into the history.
func (t *step) bury(h *Holding, reason Reason, at Instant) {
	t.Tombstones[EndedLease{t.name, h.Lease}] = Tombstone{
		Secret: h.Secret, Token: h.Token, Reason: reason, At: at,
		Until: max(h.ExpiresAt, at.Add(TombstoneTTL)),
	}
	ended := Ended{Name: t.name, Holder: h.Holder, Reason: reason, At: at}
	t.out.Ended = append(t.out.Ended, ended)
	t.record.History = append(t.record.History, ended)
	if excess := len(t.record.History) - MaxHistory; excess > 0 {
		t.record.History = slices.Delete(t.record.History, 0, excess)
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
	t.record.ForgetAt = max(t.record.ForgetAt, forgetAt)
}

// remove takes a holding out; h is invalid afterwards.
func (t *step) remove(h *Holding) {
	for i := range t.record.Holders {
		if &t.record.Holders[i] == h {
			t.record.Holders = slices.Delete(t.record.Holders, i, i+1)
			return
		}
	}
}
