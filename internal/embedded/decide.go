package embedded

import (
	"context"
	"errors"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

var errClosed = errors.New("the store is closed")

// Do implements fencing.Store. It returns when the operation may be answered. What only looks tells only of what is durable. An Acquire that
// stands behind what has come due is decided again until all of that is done.
func (s *Store) Do(ctx context.Context, op fencing.Op) (out fencing.Outcome, err error) {
	if !fencing.Served(op) {
		return out, fencing.UnservedError(op)
	}
	var encoded machine.Op // before others have to wait
	if !fencing.OnlyLooks(op) {
		encoded = machine.EncodeOp(op)
	}
	for again := true; again && err == nil; {
		err = s.decide(ctx, func() (wait bool) {
			out, wait = s.step(op, encoded)
			if again = out.AskAgain() && s.machine.LeftOn(op.LockName()) && s.guard.StepLimit == 0; again {
				s.attend(op.LockName())
			}
			return wait
		})
	}
	if err != nil {
		return fencing.Outcome{}, err
	}
	return out.Result()
}

// decide runs a decision in its caller's goroutine: one at a time. It returns at once,
// or, if the decision says that its answer has to wait, when all that was decided until
// then is durable. A panic ends the store: see condemn.
func (s *Store) decide(ctx context.Context, decision func() (wait bool)) error {
	s.mu.Lock()
	if err := s.awaitRoom(ctx); err != nil {
		s.mu.Unlock()
		return fencing.Unavailable(err)
	}
	s.next.asked, s.next.now = time.Now(), s.now()
	var awaited *batch
	panicked := machine.Caught(func() {
		if decision() {
			if awaited = s.next; awaited.empty() {
				awaited = s.flushing // all before that is on disk
			} else {
				awaited.late = true
			}
		}
		s.scheduleFlush()
	})
	if panicked != nil {
		gathered := s.condemn(panicked)
		s.mu.Unlock()
		s.end(gathered, errPanicked, panicked)
		return fencing.Unavailable(panicked)
	}
	s.mu.Unlock()
	if awaited == nil {
		return nil
	}
	select {
	case <-awaited.done:
	case <-ctx.Done():
		return fencing.Unavailable(ctx.Err())
	}
	if awaited.err != nil {
		return fencing.Unavailable(awaited.err)
	}
	return nil
}

// awaitRoom returns when the batch that gathers has room for a decision, or why nothing is decided. The caller holds the
// mutex, which others may have meanwhile.
func (s *Store) awaitRoom(ctx context.Context) error {
	for s.next.size > mostGathered && s.refusal(ctx) == nil {
		s.awaitTaken(ctx)
	}
	return s.refusal(ctx)
}

// awaitTaken returns when the batch that gathers does so no more. The caller holds the mutex, which others may have meanwhile.
func (s *Store) awaitTaken(ctx context.Context) {
	s.next.due = true
	s.scheduleFlush()
	taken := s.next.taken
	s.mu.Unlock()
	select {
	case <-taken:
	case <-ctx.Done():
	}
	s.mu.Lock()
}

// refusal returns why nothing is decided. The caller holds the mutex.
func (s *Store) refusal(ctx context.Context) error {
	switch {
	case s.ending:
		return errClosed
	case s.cause != nil:
		return s.cause
	}
	return ctx.Err() // the caller has gone: grant nothing to nobody
}

// What follows is for decisions: the caller holds the mutex, and s.next takes what was asked.

// step decides one operation, writes it down, and reports whether the answer has
// to wait until that is durable.
func (s *Store) step(op fencing.Op, encoded machine.Op) (out fencing.Outcome, wait bool) {
	if fencing.OnlyLooks(op) {
		out = s.machine.Look(op, s.next.now, s.guard)
		out.Asked = s.next.asked
		return out, true
	}
	if admit, admits := op.(fencing.AdmitRequest); admits {
		if out, unmoved := s.machine.Unmoved(admit, s.next.now, s.guard); unmoved {
			out.Asked = s.next.asked
			return out, true
		}
	}
	subject := fencing.EndedLease{Name: op.LockName(), Lease: op.LockLease().Public()}
	pending := s.next.has(subject) || s.flushing.has(subject)
	before := s.promiseTo(subject)
	out = s.carryOut(op, encoded)
	after := s.promiseTo(subject)
	more := after.exceeds(&before)
	if more {
		s.next.promises(subject)
	}
	switch op.(type) {
	case fencing.AcquireRequest:
		code := out.Code()
		return out, !out.Waits() && !out.Holder.Provisional && code != fencing.CodeLocked && code != fencing.CodeTooManyRequests
	case fencing.RenewRequest:
		return out, out.Err != nil || pending || more
	case fencing.ReleaseRequest:
		return out, out.Err != nil || out.Holder.Token != 0 && (pending || more)
	case fencing.LeaveRequest:
		return out, out.Holder.Token != 0
	case fencing.TakeBackRequest:
		return out, false
	}
	return out, true
}

// carryOut has the machine carry out an operation, which goes into the log.
func (s *Store) carryOut(op fencing.Op, encoded machine.Op) fencing.Outcome {
	b := s.next
	s.write(encoded)
	b.telling.Asked = b.asked
	out := s.machine.Step(b.index, &b.telling, s.guard, op)
	out.Asked = b.asked
	for i := range out.Granted {
		b.promises(fencing.EndedLease{Name: op.LockName(), Lease: out.Granted[i].Holder.Lease})
	}
	return out
}

// write puts an operation into the log, which is carried out then.
func (s *Store) write(op machine.Op) {
	b := s.next
	if b.empty() {
		now, wall := s.clock.read()
		b.now = now
		b.index, b.entry.Term = s.machine.Applied()+1, s.disk.term
		b.entry.Now, b.entry.Wall = int64(now), int64(wall)
		b.telling.Watched = b.telling.Watched || s.watchers.Any()
		s.machine.BeginEntry(now, wall)
		s.logged = now
	}
	b.size += len(op) + batchOverhead
	s.machine.Advance(b.now)
	after := max(0, int64(b.now)-b.entry.Now)
	if last := len(b.entry.Batches) - 1; last >= 0 && b.entry.Batches[last].After == after {
		b.entry.Batches[last].Ops = append(b.entry.Batches[last].Ops, op)
		return
	}
	b.entry.Batches = append(b.entry.Batches, machine.Batch{
		Gateway: string(self), MaxHolders: s.guard.MaxHolders, StepLimit: s.guard.StepLimit, Ops: []machine.Op{op}, After: after,
	})
}

// attend does what time has brought about on name, and returns the leases that
// this ended.
func (s *Store) attend(name fencing.Name) []fencing.Ended {
	op := fencing.ExpireRequest{Name: name}
	return s.carryOut(op, machine.EncodeOp(op)).Ended
}

// expire attends to up to limit names that are due, and forgets old tombstones.
func (s *Store) expire(limit int) (expiry fencing.Expiry) {
	now := s.next.now
	for _, name := range s.machine.Due(now, limit) {
		expiry.Ended = append(expiry.Ended, s.attend(name)...)
	}
	if limit > 0 && s.machine.PruneDue(now) {
		s.write(machine.Prune())
		s.machine.PruneTombstones()
	}
	expiry.Next = min(s.machine.NextDue(now), s.quarantine.Tell(s.log, s.machine, now))
	wall := s.clock.wall()
	if s.machine.Busy() && now.Sub(s.logged) >= idlePause || s.machine.Walls().Differs(now, wall) {
		s.write(machine.Tick())
		if s.machine.Walls().Differs(now, wall) { // an entry had begun before the wall clock was set
			expiry.Next = min(expiry.Next, time.Second)
		}
	}
	return expiry
}

// noteTime has the log end with what the time is by both clocks: the next start goes on from there.
func (s *Store) noteTime() {
	if now, _ := s.clock.read(); now > s.logged || s.machine.Walls().Differs(s.clock.read()) {
		s.next.now = now
		s.write(machine.Tick())
	}
}

// promise is what of a lease that is not provisional an answer tells its client, who is to find it after a restart. The
// zero promise is of no such lease.
type promise struct {
	token fencing.Token
	mode  fencing.Mode
	limit int
	slot  int
	hold  int
	ttl   time.Duration
}

func (s *Store) promiseTo(lease fencing.EndedLease) promise {
	if r := s.machine.State().Records[lease.Name]; r != nil && lease.Lease != "" {
		if h, ok := r.Holders.Find(lease.Lease); ok && !h.Provisional {
			return promise{h.Token, h.Mode, h.Limit, h.Slot, h.Hold, h.TTL}
		}
	}
	return promise{}
}

// exceeds reports whether p promises anything that earlier does not.
func (p *promise) exceeds(earlier *promise) bool {
	if p.token != earlier.token || p.mode != earlier.mode || p.limit != earlier.limit || p.slot != earlier.slot {
		return p.token != 0
	}
	return p.hold > earlier.hold || p.ttl > earlier.ttl
}
