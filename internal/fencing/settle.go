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
	t.hear()
	t.endDue()
	t.dropDead()
	t.record.Queue.wake(t.now)
	t.handOff()
	if t.record.forgotten(t.now) {
		delete(t.Records, t.name)
		t.record = nil
	}
}

// endDue ends the leases that are not live any more, however many in one pass.
func (t *step) endDue() {
	holders := t.record.Holders
	due := func(h *Holding) bool {
		return h.Provisional && !t.alive(h.Gateway) || !h.Provisional && !h.Live(t.now)
	}
	first := 0
	for first < len(holders) && !due(&holders[first]) {
		first++
	}
	if first == len(holders) {
		return
	}
	t.record.Holders = slices.Clone(holders[:first])
	for i := first; i < len(holders); i++ {
		switch h := &holders[i]; {
		case !due(h):
			t.record.Holders = append(t.record.Holders, *h)
		case h.Provisional:
			t.revert(h)
		default:
			t.bury(h, ReasonExpired, h.ExpiresAt)
		}
	}
}

// hear notes a sign of life where it matters to whom the lock is handed.
func (t *step) hear() {
	if t.record.Queue.Len() > 0 || slices.ContainsFunc(t.record.Holders, func(h Holding) bool { return h.Provisional }) {
		t.Gateways.hear(t.guard.Gateway, t.now)
	}
}

func (t *step) alive(gateway Gateway) bool {
	return gateway == t.guard.Gateway || t.now < t.Gateways.lapse(gateway)
}

// dropDead takes the waiters of all dead gateways out in one pass.
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
	for _, p := range t.record.Queue.removeAll(dead) {
		t.departed(p)
	}
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
	kept := make([]Holding, 0, len(t.record.Holders)-1)
	for i := range t.record.Holders {
		if other := &t.record.Holders[i]; other != h {
			kept = append(kept, *other)
		}
	}
	t.record.Holders = kept
}
