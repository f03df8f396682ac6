package fencing

import (
	"maps"
	"slices"
	"time"
)

const (
	// TombstoneTTL is how long the end of a lease is remembered at least; it is
	// remembered until the lease's former expiry when that is later.
	TombstoneTTL = 5 * time.Minute

	// ForgetAfter is how long a name's record outlives its last lease. The
	// partition's counter keeps tokens growing when the record is gone.
	ForgetAfter = 24 * time.Hour

	// StepLimit is how much of what has come due on a name one step does at most:
	// leases it ends, places it drops and leases it hands on count alike. A call that
	// does no more than this keeps Redis from others for some milliseconds.
	StepLimit = 64

	// AtOnce is the Record.RetryAt of a name on which a step has left something to do.
	AtOnce Instant = 1

	// MaxBroken is how many broken tokens a record remembers for retried breaks.
	MaxBroken = 8

	// MaxHistory is how many ended leases a name remembers for people.
	MaxHistory = 16
)

// State is all that a partition of names remembers. Only Step changes it.
type State struct {
	Counter    Token // the highest token issued
	Records    map[Name]*Record
	Tombstones map[EndedLease]Tombstone
	Gateways   Gateways
	Quarantine Quarantine
	Rules      int // the version of the rules in force, from 1 to NewestRules
}

// NewState returns an empty state, by the newest rules.
func NewState() *State {
	return &State{
		Rules:   NewestRules,
		Records: map[Name]*Record{}, Tombstones: map[EndedLease]Tombstone{},
		Gateways: Gateways{Seen: map[Gateway]Instant{}},
	}
}

// Record is what is remembered of one name.
type Record struct {
	LastToken       Token // the highest of a grant
	EndedToken      Token // the highest of a lease that is over, or higher; below LastToken only while one is live
	Intent          Intent
	LastClaimed     Token         // the highest that was claimed
	Mark            Token         // no lower token is admitted: the first of a grant that is remembered, or one admitted without slot
	SlotMarks       map[int]Token // the marks of slots that are above Mark; never changed but for a new entry, or dropped whole
	HighestAdmitted Token         // that has moved a mark
	Holders         Holders
	Queue           Queue
	RetryAt         Instant // a hand-off is to be tried again then; 0 if none is; AtOnce: the next Expire goes on; AfterSkew
	Broken          []Token // the last few tokens that were broken, oldest first
	History         []Ended // the last leases that ended, oldest first
	ForgetAt        Instant // with no holders: when the record may go
	DelayedUntil    Instant // nobody is granted the name before: see AcquireRequest.LockDelay; 0 once somebody was
	DelaySetAt      Instant // of a DelayedUntil that was set while the clocks differed when that was, by the store's clock
	DelaySentAt     Instant // and by the gateway's; 0: they agreed
	DelayedOther    Instant // DelayedUntil, if the store's clock was wrong then
}

// Holding is a holder with what proves it.
type Holding struct {
	Holder
	Secret SecretHash
	Stamp  Stamp // of the request that made the grant; empty once another one has retried it
	Told   bool  // the holder has renewed, so it knows of the grant: see TakeBackRequest
	Keep   bool  // taken back, it goes back to its place in the queue and rests

	Gateway  Gateway // where the request is
	Set      string  // see AcquireRequest
	Seq      Instant // of that place
	JoinedAt Instant

	SetAt  Instant // of an ExpiresAt that was set while the clocks differed when that was, by the store's clock
	SentAt Instant // and by the gateway's; 0: they agreed
}

// Grant returns what the gateway of a lease on name is told of it.
func (h *Holding) Grant(name Name) Grant {
	return Grant{Name: name, Holder: h.Holder, Gateway: h.Gateway, Stamp: h.Stamp}
}

// EndedLease is the key of a tombstone.
type EndedLease struct {
	Name  Name
	Lease LeasePublic
}

// Tombstone remembers how a lease ended, so that a late request gets the true
// reason and the lease id is never granted twice.
type Tombstone struct {
	Secret SecretHash
	Token  Token   // 0 of ReasonEvicted
	Reason Reason  // ReasonReleased, ReasonExpired, ReasonBroken or, of a waiter, ReasonEvicted
	At     Instant // when the lease ended
	Until  Instant // when the tombstone may go

	BreakReason string // of ReasonBroken and ReasonEvicted: see BreakRequest
}

// Clone returns a copy that shares nothing that Step changes.
func (s *State) Clone() *State {
	c := &State{
		Counter: s.Counter, Records: make(map[Name]*Record, len(s.Records)), Tombstones: maps.Clone(s.Tombstones),
		Gateways: s.Gateways, Quarantine: s.Quarantine, Rules: s.Rules,
	}
	c.Gateways.Seen = maps.Clone(s.Gateways.Seen)
	for name, r := range s.Records {
		c.Records[name] = r.Clone()
	}
	return c
}

// Clone returns a copy that shares nothing that Step changes.
func (r *Record) Clone() *Record {
	c := *r
	c.Holders, c.Broken, c.History = r.Holders.clone(), slices.Clone(r.Broken), slices.Clone(r.History)
	c.SlotMarks = maps.Clone(r.SlotMarks)
	c.Queue = r.Queue.clone()
	return &c
}

// Due returns the instant at which ExpireRequest has something to do for a name
// that has a record: the first expiry, end of a rest, lapse of a gateway or
// hand-off to be tried again or, when it is idle, ForgetAt.
func (s *State) Due(name Name) Instant {
	r := s.Records[name]
	due := r.Holders.nextEnd()
	if r.idle() {
		due = r.ForgetAt
	}
	r.Holders.gateways(func(gateway Gateway, _, _ int) { due = min(due, s.Gateways.deadAt(gateway)) })
	for gateway := range r.Queue.look().gateways {
		due = min(due, s.Gateways.deadAt(gateway))
	}
	if places := r.Queue.look(); len(places.resting) > 0 {
		due = min(due, places.restTill)
	}
	if r.RetryAt != 0 {
		due = min(due, r.RetryAt)
	}
	return due
}

// idle reports whether the name has neither holder nor place.
func (r *Record) idle() bool { return r.Holders.Len() == 0 && r.Queue.Empty() }

// forgotten reports whether nothing needs to be remembered of the name at now:
// it has been idle for ForgetAfter, also if nobody has noticed yet that its last
// lease ran out.
func (r *Record) forgotten(now Instant) bool {
	if !r.Queue.Empty() || r.Holders.Unconfirmed() {
		return false
	}
	return r.outdated(now)
}

// outdated reports whether the last of the leases, those included that nobody has noticed to be over, ended ForgetAfter before now.
func (r *Record) outdated(now Instant) bool {
	return max(r.ForgetAt, r.Holders.lastEnd().Add(ForgetAfter)) <= now
}

// View returns the public view of a name at now, as guard.Gateway sees it; with
// waiters it lists them.
func (s *State) View(name Name, now Instant, guard Guard, waiters bool) *Lock {
	return s.view(name, now, guard, waiters, MaxHoldersShown)
}

func (s *State) view(name Name, now Instant, guard Guard, waiters bool, holders int) *Lock {
	alive := func(gateway Gateway) bool { return gateway == guard.Gateway || now < s.Gateways.deadAt(gateway) }
	return s.Records[name].view(name, now, alive, waiters, holders)
}

// view returns the public view of a record (nil for none) at now; alive judges
// the gateways, with waiters it lists them, and holders is how many it shows at most.
func (r *Record) view(name Name, now Instant, alive func(Gateway) bool, waiters bool, holders int) *Lock {
	lock := &Lock{Name: name, Now: now}
	if r == nil || r.forgotten(now) {
		return lock
	}
	lock.LastToken, lock.HighestAdmitted, lock.DelayedUntil = r.LastToken, r.HighestAdmitted, r.delayedUntil(now)
	lock.HolderCount, lock.Holders = r.Holders.live(now, alive, holders)
	for gateway, n := range r.Queue.look().gateways {
		if alive(gateway) {
			lock.Waiting += n
		}
	}
	if !waiters {
		return lock
	}
	for _, p := range r.Queue.look().order {
		if len(lock.Waiters) == MaxWaitersShown {
			break
		}
		if alive(p.Gateway) {
			lock.Waiters = append(lock.Waiters, p.waiter(now, len(lock.Waiters)+1))
		}
	}
	return lock
}

// delayedUntil returns until when nobody is granted the name, 0 if somebody may be at now.
// Leases count whose end nobody has noticed: of many those that ended last.
func (r *Record) delayedUntil(now Instant) Instant {
	until := r.DelayedUntil
	if r.Holders.delay() {
		for _, h := range r.Holders.expired(now, MaxHoldersShown) {
			if reason, _ := h.outOfTime(); h.LockDelay > 0 && reason != ReasonReleased {
				until = max(until, h.ExpiresAt.Add(h.LockDelay))
			}
		}
	}
	if until <= now {
		return 0
	}
	return min(until, now.Add(MaxLockDelay))
}

// PruneTombstones drops the tombstones that are due at now.
func (s *State) PruneTombstones(now Instant) {
	maps.DeleteFunc(s.Tombstones, func(_ EndedLease, t Tombstone) bool { return t.Until <= now })
}
