package fencing

import (
	"maps"
	"slices"
	"time"
)

const (
	// TombstoneTTL is how long the end of a lease is remembered at least; it is
	// remembered until the lease's former expiry when that is later (DESIGN 11.12).
	TombstoneTTL = 5 * time.Minute

	// ForgetAfter is how long a name's record outlives its last lease. The
	// partition's counter keeps tokens growing when the record is gone.
	ForgetAfter = 24 * time.Hour

	// maxBroken is how many broken tokens a record remembers for retried breaks.
	maxBroken = 8
)

// State is all that a partition of names remembers. Only Step changes it.
type State struct {
	Counter    Token // the highest token issued
	Records    map[Name]*Record
	Tombstones map[EndedLease]Tombstone
}

// NewState returns an empty state.
func NewState() *State {
	return &State{Records: map[Name]*Record{}, Tombstones: map[EndedLease]Tombstone{}}
}

// Record is what is remembered of one name.
type Record struct {
	LastToken       Token // of the last grant
	HighestAdmitted Token // by the name's fence
	Holders         []Holding
	Broken          []Token // the last few tokens that were broken, oldest first
	ForgetAt        Instant // with no holders: when the record may go
}

// Holding is a holder with what proves it.
type Holding struct {
	Holder
	Secret SecretHash
	Stamp  Stamp // of the request that made the grant; empty once another one has retried it, or the holder has renewed
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
	Token  Token
	Reason Reason  // ReasonReleased, ReasonExpired or ReasonBroken
	At     Instant // when the lease ended
	Until  Instant // when the tombstone may go
}

// Clone returns a copy that shares nothing that Step changes.
func (s *State) Clone() *State {
	c := &State{Counter: s.Counter, Records: make(map[Name]*Record, len(s.Records)), Tombstones: maps.Clone(s.Tombstones)}
	for name, r := range s.Records {
		copied := *r
		copied.Holders = slices.Clone(r.Holders)
		copied.Broken = slices.Clone(r.Broken)
		c.Records[name] = &copied
	}
	return c
}

// Due returns the instant at which ExpireRequest has something to do for a
// record: its first expiry or, when idle, ForgetAt.
func (r *Record) Due() Instant {
	if len(r.Holders) == 0 {
		return r.ForgetAt
	}
	due := r.Holders[0].ExpiresAt
	for i := range r.Holders[1:] {
		due = min(due, r.Holders[1+i].ExpiresAt)
	}
	return due
}

// forgotten reports whether nothing needs to be remembered of the name at now:
// it has been idle for ForgetAfter, also if nobody has noticed yet that its last
// lease ran out.
func (r *Record) forgotten(now Instant) bool {
	forgetAt := r.ForgetAt
	for i := range r.Holders {
		forgetAt = max(forgetAt, r.Holders[i].ExpiresAt.Add(ForgetAfter))
	}
	return forgetAt <= now
}

// View returns the public view of a record (nil for none) at now.
func (r *Record) View(name Name, now Instant) *Lock {
	lock := &Lock{Name: name, Now: now}
	if r == nil || r.forgotten(now) {
		return lock
	}
	lock.LastToken, lock.HighestAdmitted = r.LastToken, r.HighestAdmitted
	for i := range r.Holders {
		if h := &r.Holders[i].Holder; h.Live(now) {
			lock.Holders = append(lock.Holders, *h)
		}
	}
	return lock
}

// PruneTombstones drops the tombstones that are due at now.
func (s *State) PruneTombstones(now Instant) {
	maps.DeleteFunc(s.Tombstones, func(_ EndedLease, t Tombstone) bool { return t.Until <= now })
}
