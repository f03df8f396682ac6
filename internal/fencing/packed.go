package fencing

import (
	"iter"
	"time"
)

// packed is a Holding as it is kept. There may be millions, and most have nothing of what few have: so that takes no room.
type packed struct {
	lease      LeasePublic
	owner      string
	metadata   Labels
	gateway    Gateway
	stamp      Stamp
	secret     SecretHash
	token      Token
	ttl        time.Duration
	acquiredAt Instant
	expiresAt  Instant
	few        *few // nil: what few.usual returns

	provisional, claimed, told, keep bool
	joined                           bool // it has the time at which it joined
}

// few is what most have alike.
type few struct {
	mode                         Mode
	limit, permits, slot, hold   int
	slots                        Slots
	grantTTL, maxHold, lockDelay time.Duration
	waited                       time.Duration
	attached                     Stamp
	epoch                        int64
	breakAt                      Instant
	breakReason                  string
	set                          string
	seq, joinedAt, setAt, sentAt Instant
}

// usual returns what a lease has that is exclusive, was granted at once, and is held once, without all that may be asked for.
func (p *packed) usual() few {
	f := few{mode: ModeExclusive, limit: 1, permits: 1, slot: NoSlot, hold: 1, grantTTL: p.ttl}
	if p.joined {
		f.seq, f.joinedAt = p.acquiredAt+1, p.acquiredAt
	}
	return f
}

// pack returns a holding as it is kept.
func pack(h *Holding) packed {
	p := packed{
		lease: h.Lease, owner: h.Owner, metadata: h.Metadata, gateway: h.Gateway, stamp: h.Stamp, secret: h.Secret,
		token: h.Token, ttl: h.TTL, acquiredAt: h.AcquiredAt, expiresAt: h.ExpiresAt,
		provisional: h.Provisional, claimed: h.Claimed, told: h.Told, keep: h.Keep, joined: h.JoinedAt != 0,
	}
	f := few{
		mode: h.Mode, limit: h.Limit, permits: h.Permits, slot: h.Slot, hold: h.Hold, slots: h.Slots,
		grantTTL: h.GrantTTL, maxHold: h.MaxHold, lockDelay: h.LockDelay, waited: h.Waited,
		attached: h.Attached, epoch: h.Epoch, breakAt: h.BreakAt, breakReason: h.BreakReason,
		set: h.Set, seq: h.Seq, joinedAt: h.JoinedAt, setAt: h.SetAt, sentAt: h.SentAt,
	}
	if f != p.usual() {
		p.few = f.kept()
	}
	return p
}

// kept returns a copy of its own, so that one that is not kept stays where it is made.
func (f few) kept() *few { return &f }

// rest returns what few have.
func (p *packed) rest() few {
	if p.few != nil {
		return *p.few
	}
	return p.usual()
}

// holding returns what was packed.
func (p *packed) holding() Holding {
	f := p.rest()
	return Holding{
		Holder: Holder{
			Lease: p.lease, Owner: p.owner, Metadata: p.metadata, Mode: f.mode, Limit: f.limit, Permits: f.permits, Slot: f.slot, Slots: f.slots,
			Hold: f.hold, Token: p.token, TTL: p.ttl, GrantTTL: f.grantTTL, MaxHold: f.maxHold, LockDelay: f.lockDelay,
			AcquiredAt: p.acquiredAt, ExpiresAt: p.expiresAt, Waited: f.waited, Attached: f.attached, Epoch: f.epoch,
			BreakAt: f.breakAt, BreakReason: f.breakReason, Provisional: p.provisional, Claimed: p.claimed,
		},
		Secret: p.secret, Stamp: p.stamp, Told: p.told, Keep: p.keep, Gateway: p.gateway, Set: f.set,
		Seq: f.seq, JoinedAt: f.joinedAt, SetAt: f.setAt, SentAt: f.sentAt,
	}
}

// tolerates returns how many permits it tolerates, its own included.
func (p *packed) tolerates() int {
	if p.few == nil {
		return tolerates(ModeExclusive, 1)
	}
	return tolerates(p.few.mode, p.few.limit)
}

// permits returns how many it has.
func (p *packed) permits() int {
	if p.few == nil {
		return 1
	}
	return p.few.permits
}

// delays reports whether its end keeps the name from others for a while.
func (p *packed) delays() bool { return p.few != nil && p.few.lockDelay > 0 }

// hangs reports whether heartbeats tell the gateway that the lease hangs on a stream there.
func (p *packed) hangs() bool {
	return p.few != nil && p.few.attached != "" && !p.provisional && p.few.breakAt == 0
}

// slots visits the numbers of its permits.
func (p *packed) slots() iter.Seq[int] {
	if p.few == nil {
		return Slots("").All()
	}
	return allSlots(p.few.slot, p.few.slots)
}
