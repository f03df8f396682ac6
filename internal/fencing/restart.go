package fencing

// Restart is what a restart of the only gateway brings about, at now: every lease that has not ended begins its TTL anew,
// for its holder could not renew it, but the time that it was held before counts against its bound. Places, and leases that
// nobody has confirmed, go: the connections of their clients are gone. So do streams. gateway is that gateway from now on, and
// counts as alive for ever; empty: there is none yet. The quarantine of a restored copy begins.
//
// It is no rule of Step, for a store with other gateways has no such thing.
func (s *State) Restart(now Instant, gateway Gateway) {
	for _, r := range s.Records {
		r.restart(now)
	}
	if q := &s.Quarantine; q.Again > 0 {
		q.Until, q.Again = max(q.Until, now.Add(q.Again)), 0
	}
	s.Gateways.Seen = map[Gateway]Instant{}
	if gateway != "" {
		s.Gateways.Seen[gateway] = Instant(MaxToken)
	}
}

func (r *Record) restart(now Instant) {
	hs := &r.Holders
	if only := hs.only; only != nil && !only.provisional { // as most are
		h := only.holding()
		h.restart(now)
		only.packed = pack(&h)
	} else {
		var left Holders
		for h := range hs.All() {
			if !h.Provisional {
				h.restart(now)
				left.Put(h)
			}
		}
		*hs = left
	}
	r.Queue, r.RetryAt, r.Intent = Queue{}, 0, Intent{}
	if hs.Len() == 0 && r.ForgetAt == 0 { // all it had were places and a lease that nobody has confirmed
		r.ForgetAt = now.Add(ForgetAfter)
	}
}

func (h *Holding) restart(now Instant) {
	h.ExpiresAt = now.Add(h.TTL)
	if h.MaxHold > 0 {
		h.ExpiresAt = min(h.ExpiresAt, h.AcquiredAt.Add(h.MaxHold))
	}
	if h.BreakAt != 0 {
		h.ExpiresAt = min(h.ExpiresAt, h.BreakAt)
	}
	h.Attached, h.Gateway, h.Stamp, h.Keep, h.Seq, h.JoinedAt, h.Told = "", "", "", false, 0, 0, false
}
