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
	for i := 0; i < len(t.record.Holders); {
		h := &t.record.Holders[i]
		switch {
		case h.Provisional && !t.alive(h.Gateway):
			t.undo(h)
		case !h.Provisional && !h.Live(t.now):
			t.end(h, ReasonExpired, h.ExpiresAt)
		default:
			i++
		}
	}
	t.dropDead()
	t.record.Queue.wake(t.now)
	t.handOff()
	if t.record.forgotten(t.now) {
		delete(t.Records, t.name)
		t.record = nil
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

// end moves a holding to its tombstone and into the history.
func (t *step) end(h *Holding, reason Reason, at Instant) {
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
	t.remove(h, at)
}

// remove frees the place of a holding; h is invalid afterwards.
func (t *step) remove(h *Holding, at Instant) {
	forgetAt := at.Add(ForgetAfter)
	if !h.Provisional {
		forgetAt = max(forgetAt, h.ExpiresAt) // see Record.forgotten
	}
	t.record.ForgetAt = max(t.record.ForgetAt, forgetAt)
	kept := make([]Holding, 0, len(t.record.Holders)-1)
	for i := range t.record.Holders {
		if other := &t.record.Holders[i]; other != h {
			kept = append(kept, *other)
		}
	}
	t.record.Holders = kept
}
