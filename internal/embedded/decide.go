package embedded

import (
	"time"

	"fencepost/internal/fencing"
)

// What follows is for decisions: the caller holds the mutex, and s.next takes what has
// changed.

// step decides one operation, notes what it changed, and reports whether the answer has
// to wait until that is durable.
func (s *Store) step(op fencing.Op) (out fencing.Outcome, wait bool) {
	name, next := op.LockName(), s.next
	subject := s.subjectOf(op)
	pending := next.has(subject) || s.flushing.has(subject)
	before := s.durableViewOf(subject)
	slotMarks, slotMark := s.marksOf(op)
	out = fencing.Step(s.state, next.now, s.guard, op)
	out.Asked = next.asked
	s.noteMarks(op, slotMarks, slotMark)
	after := s.durableViewOf(subject)

	if before.promised != after.promised {
		next.changed.record(name)
		next.changed.holder(name, subject.Lease)
	}
	if r, renews := op.(fencing.RenewRequest); renews && out.Err == nil && (r.Owner != "" || r.Metadata != nil) {
		next.changed.holder(name, subject.Lease)
	}
	s.note(name, before, after, &out, op)
	builds := pending || after.promised.exceeds(&before.promised)
	switch op.(type) {
	case fencing.AcquireRequest:
		code := out.Code()
		return out, !out.Waits() && !out.Holder.Provisional && code != fencing.CodeLocked && code != fencing.CodeTooManyRequests
	case fencing.RenewRequest:
		return out, out.Err != nil || builds
	case fencing.ReleaseRequest:
		return out, out.Err != nil || out.Holder.Token != 0 && builds
	case fencing.LeaveRequest:
		return out, out.Holder.Token != 0
	case fencing.TakeBackRequest:
		return out, false
	}
	return out, true
}

// subjectOf returns the lease that an operation is about, if it is about one: its caller's,
// or that which is to be broken.
func (s *Store) subjectOf(op fencing.Op) fencing.EndedLease {
	subject := fencing.EndedLease{Name: op.LockName(), Lease: op.LockLease().Public()}
	if b, breaks := op.(fencing.BreakRequest); breaks {
		if r := s.state.Records[b.Name]; r != nil {
			h, _ := r.Holders.WithToken(b.Token)
			subject.Lease = h.Lease
		}
	}
	return subject
}

// expire attends to up to limit names that are due, and forgets old tombstones.
func (s *Store) expire(limit int) (expiry fencing.Expiry) {
	next := s.next
	for _, name := range s.index.Due(next.now, limit) {
		expiry.Ended = append(expiry.Ended, s.attend(name)...)
	}
	for range min(limit, 1) * tombstonesPerCall {
		due, ok := s.tombstones.pop(next.now)
		if !ok {
			break
		}
		if tomb, ok := s.state.Tombstones[due.key]; ok && tomb.Until == due.until { // else a newer one took its place
			delete(s.state.Tombstones, due.key)
		}
		next.changed.forget(due.key, due.until)
	}
	// How long a lease was held counts against its bound after a restart, even
	// if the wall clock is set back meanwhile: so the file knows the time.
	next.changed.clock = next.changed.clock || s.index.Held() > 0 && next.now.Sub(s.flushed) >= idlePause
	expiry.Next = s.nextDue(next.now)
	return expiry
}

// nextDue returns how long nothing will be due.
func (s *Store) nextDue(now fencing.Instant) time.Duration {
	s.index.Due(now, 1) // corrects what is early
	next := s.tombstones.next(now)
	if at, ok := s.index.Next(); ok {
		next = min(next, max(0, at.Sub(now)))
	}
	return min(next, idlePause)
}

// beat attends to what is due on names.
func (s *Store) beat(names []fencing.Name) {
	for _, name := range names {
		if s.state.Records[name] != nil && s.state.Due(name) <= s.next.now {
			s.attend(name)
		}
	}
}

// attend does what time has brought about on name, and returns the leases that
// this ended.
func (s *Store) attend(name fencing.Name) []fencing.Ended {
	subject := fencing.EndedLease{Name: name}
	before := s.durableViewOf(subject)
	op := fencing.ExpireRequest{Name: name}
	slotMarks, _ := s.marksOf(op)
	out := fencing.Step(s.state, s.next.now, s.guard, op)
	s.noteMarks(op, slotMarks, 0)
	out.Asked = s.next.asked
	s.note(name, before, s.durableViewOf(subject), &out, op)
	return out.Ended
}

// note takes down what a step on name has changed, beside what it promised to
// its own lease, and whom to tell.
func (s *Store) note(name fencing.Name, before, after durableView, out *fencing.Outcome, op fencing.Op) {
	next := s.next
	for i := range out.Ended {
		lease := out.Ended[i].Holder.Lease
		next.changed.holder(name, lease)
		s.noteTombstone(fencing.EndedLease{Name: name, Lease: lease})
	}
	if out.Evicted != nil {
		s.noteTombstone(fencing.EndedLease{Name: name, Lease: out.Evicted.Waiter.Lease})
	}
	for i := range out.Granted {
		next.changed.holder(name, out.Granted[i].Holder.Lease)
	}
	if before.exists != after.exists || before.kept != after.kept {
		next.changed.record(name)
	}
	if len(out.Ended) > 0 || before.past != after.past {
		s.histories.follow(s.state, name, len(out.Ended), &next.changed)
	}
	s.index.Update(name)

	switch {
	case fencing.OnlyLooks(op): // it does nothing of what is due
	case out.More && s.guard.StepLimit == 0:
		s.unfinished[name] = true
	default:
		delete(s.unfinished, name)
	}
	if out.Replaced != nil {
		next.told = append(next.told, told{grant: fencing.Grant{Name: name}, replaced: out.Replaced})
	}
	if e := out.Evicted; e != nil && e.Request != nil {
		next.told = append(next.told, told{grant: fencing.Grant{Name: name}, asks: e.Request})
	}
	_, acquires := op.(fencing.AcquireRequest)
	for _, g := range out.Granted {
		if !acquires || g.Holder.Token != out.Holder.Token { // the caller hears of its own from its answer
			next.told = append(next.told, told{grant: g, now: out.Now, asked: out.Asked})
		}
	}
	if s.watchers.Any() {
		next.events = append(next.events, out.Events(name)...)
	}
}

// noteTombstone takes down a tombstone that was just made.
func (s *Store) noteTombstone(key fencing.EndedLease) {
	tomb := s.state.Tombstones[key]
	s.next.changed.addTombstone(key, tomb)
	s.tombstones.add(key, tomb.Until)
}

// durableView is what of a record is looked at before and after a step: what differs is to be
// written. The step tells itself of leases that it granted and ended.
type durableView struct {
	exists   bool
	kept     keptRecord
	past     int // entries of its history
	promised promise
}

// keptRecord is what of a record a file keeps, so that two of them differ if the
// records of the file do: see diskRecord.
type keptRecord struct {
	lastToken       fencing.Token
	highestAdmitted fencing.Token
	mark            fencing.Token
	broken          int
	lastBroken      fencing.Token
	forgetAt        fencing.Instant
	delayedUntil    fencing.Instant
}

func keptOf(r *fencing.Record) keptRecord {
	k := keptRecord{lastToken: r.LastToken, highestAdmitted: r.HighestAdmitted, mark: r.Mark, broken: len(r.Broken), forgetAt: r.ForgetAt, delayedUntil: r.DelayedUntil}
	if k.broken > 0 {
		k.lastBroken = r.Broken[k.broken-1]
	}
	return k
}

// promise is what a lease that is not provisional is to find after a restart,
// which begins its TTL anew. The zero promise is of no such lease.
type promise struct {
	token fencing.Token
	mode  fencing.Mode
	limit int
	slot  int
	hold  int
	ttl   time.Duration

	permits int // they are only ever given back, which promises nothing more
	slots   fencing.Slots

	breakAt     fencing.Instant
	breakReason string
}

// exceeds reports whether p promises anything that earlier does not.
func (p *promise) exceeds(earlier *promise) bool {
	if p.token != earlier.token || p.mode != earlier.mode || p.limit != earlier.limit || p.slot != earlier.slot {
		return true
	}
	return p.hold > earlier.hold || p.ttl > earlier.ttl
}

func (s *Store) durableViewOf(subject fencing.EndedLease) durableView {
	r := s.state.Records[subject.Name]
	if r == nil {
		return durableView{}
	}
	at := durableView{exists: true, kept: keptOf(r), past: len(r.History)}
	if subject.Lease == "" {
		return at
	}
	if h, ok := r.Holders.Find(subject.Lease); ok && !h.Provisional {
		at.promised = promise{h.Token, h.Mode, h.Limit, h.Slot, h.Hold, h.TTL, h.Permits, h.Slots, h.BreakAt, h.BreakReason}
	}
	return at
}
