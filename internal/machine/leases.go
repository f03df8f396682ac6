package machine

import "fencepost/internal/fencing"

// What follows is for a store that keeps the leases in a place of its own beside the log.

// Doubtful reports whether something was written on a name while clocks differed. A look puts it right once they agree, so it is to be
// an operation of the log then.
func (m *Machine) Doubtful(name fencing.Name) bool {
	r := m.state.Records[name]
	return r != nil && r.Doubtful()
}

// touch notes what an operation may change, before it is decided: the lease that it comes with or breaks, and those whose
// ends a step puts right, where clocks differed.
func (m *Machine) touch(t *Telling, name fencing.Name, op fencing.Op) {
	r := m.state.Records[name]
	if t.Leases == nil {
		return
	}
	if lease := op.LockLease().Public(); lease != "" {
		t.changes(name, lease, tokenOf(r, lease))
	}
	if r == nil {
		return
	}
	if b, breaks := op.(fencing.BreakRequest); breaks {
		if h, ok := r.Holders.WithToken(b.Token); ok {
			t.changes(name, h.Lease, h.Token)
		}
	}
	if r.RetryAt == fencing.AfterSkew {
		for h := range r.Holders.All() {
			if h.SentAt != 0 {
				t.changes(name, h.Lease, h.Token)
			}
		}
	}
}

// changed notes what a step has ended and granted.
func (t *Telling) changed(name fencing.Name, out *fencing.Outcome) {
	if t.Leases == nil {
		return
	}
	for i := range out.Ended {
		t.changes(name, out.Ended[i].Holder.Lease, out.Ended[i].Holder.Token)
	}
	for i := range out.Granted {
		t.changes(name, out.Granted[i].Holder.Lease, 0)
	}
}

// changes notes a lease. What it was before counts from the first time.
func (t *Telling) changes(name fencing.Name, lease fencing.LeasePublic, token fencing.Token) {
	key := fencing.EndedLease{Name: name, Lease: lease}
	if _, noted := t.Leases[key]; !noted {
		t.Leases[key] = token
	}
}

func tokenOf(r *fencing.Record, lease fencing.LeasePublic) fencing.Token {
	if r == nil {
		return 0
	}
	if h, _ := r.Holders.Find(lease); !h.Provisional {
		return h.Token
	}
	return 0
}
