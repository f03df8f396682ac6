package embedded

import (
	"fencepost/internal/fencing"
)

// decideAll decides calls until the store is closed: the only goroutine that
// changes state and index. While one flush is under way, what comes is decided
// already and gathers for the next; releases don't wait for either.
func (s *Store) decideAll() {
	defer close(s.ended)
	jobs, flushed := make(chan *job), make(chan error, 1)
	go s.flushAll(jobs, flushed)
	defer close(jobs)

	next := &job{}    // gathers
	var flushing *job // is under way
	for {
		closed := s.closed
		if flushing != nil {
			closed = nil // what is under way is to end first
		}
		select {
		case c := <-s.queue:
			s.decide(c, next, flushing)
		case err := <-flushed:
			flushing = nil
			if err != nil {
				s.fail(err)
			}
		case <-closed:
			if len(s.queue) == 0 {
				s.flushClock()
				return
			}
			continue
		}
		switch {
		case flushing != nil:
		case next.changed.empty() || s.cause != nil:
			next.answer(s.cause)
			next = &job{late: next.late[:0]}
		default:
			next.encode(s.state)
			s.flushed = next.now
			jobs <- next
			next, flushing = &job{}, next
		}
	}
}

// flushAll makes jobs durable, one after the other, and answers what waited.
func (s *Store) flushAll(jobs <-chan *job, flushed chan<- error) {
	for j := range jobs {
		err := s.disk.commit(&j.writes)
		j.answer(err)
		flushed <- err
	}
}

// job is what one flush makes durable, and the calls that wait for it.
type job struct {
	changed changes
	writes  writes
	late    []*call
	now     fencing.Instant // of the last decision
}

// encode takes down what is to be written. State stands still meanwhile, so it
// is all that was decided before: a prefix of what happened.
func (j *job) encode(state *fencing.State) { j.writes = j.changed.encode(state, j.now) }

// has reports whether a job, nil for none, changes the record of name.
func (j *job) has(name fencing.Name) bool {
	if j == nil {
		return false
	}
	_, has := j.changed.records[name]
	return has
}

func (j *job) answer(err error) {
	for _, c := range j.late {
		c.err = err
		close(c.done)
	}
}

// decide runs a call, and those that have queued up behind it, through Step, and
// answers those that need not wait.
func (s *Store) decide(c *call, next, flushing *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next.now = s.now()
	for n := len(s.queue); ; n-- {
		switch {
		case s.cause != nil:
			c.err = s.cause
			close(c.done)
		case c.ctx.Err() != nil: // the caller has gone: grant nothing to nobody
			c.err = c.ctx.Err()
			close(c.done)
		case s.step(c, next, flushing):
			next.late = append(next.late, c)
		default:
			close(c.done)
		}
		if n == 0 {
			return
		}
		c = <-s.queue
	}
}

// step decides one call, notes what it changed, and reports whether its answer
// has to wait until that is durable.
func (s *Store) step(c *call, next, flushing *job) (wait bool) {
	now, changed := next.now, &next.changed
	if c.op == nil {
		s.expire(c, now, changed)
		return true
	}
	name := c.op.LockName()
	pending := next.has(name) || flushing.has(name)
	before := holdingsOf(s.state, name)
	c.out = fencing.Step(s.state, now, fencing.Guard{}, c.op)
	after := holdingsOf(s.state, name)

	s.bury(c.out.Ended, changed)
	if before != after || len(c.out.Ended) > 0 {
		changed.record(name)
	}
	s.index.update(s.state, name)

	switch c.op.(type) {
	case fencing.ReleaseRequest:
		return c.out.Err != nil
	case fencing.RenewRequest:
		// What is pending may be the grant, or the longer TTL that a retry finds set.
		return c.out.Err != nil || pending || after.ttl > before.ttl
	}
	return true
}

// bury notes the tombstones of leases that have ended.
func (s *Store) bury(ended []fencing.Ended, changed *changes) {
	for i := range ended {
		key := fencing.EndedLease{Name: ended[i].Name, Lease: ended[i].Holder.Lease}
		changed.end(key)
		s.index.remember(key, s.state.Tombstones[key].Until)
	}
}

// holdings is what of a record has to be durable, short enough to compare: the
// expiry is not, for a restart begins the TTL anew.
type holdings struct {
	exists bool
	count  int
	token  fencing.Token
	ttl    int64 // sum of the holders' TTLs
}

func holdingsOf(state *fencing.State, name fencing.Name) holdings {
	r := state.Records[name]
	if r == nil {
		return holdings{}
	}
	h := holdings{exists: true, count: len(r.Holders), token: r.LastToken}
	for i := range r.Holders {
		h.ttl += int64(r.Holders[i].TTL)
	}
	return h
}

// expire attends to up to c.limit names that are due, and forgets old tombstones.
func (s *Store) expire(c *call, now fencing.Instant, changed *changes) {
	for range c.limit {
		name, ok := s.index.popDue(s.state, now)
		if !ok {
			break
		}
		out := fencing.Step(s.state, now, fencing.Guard{}, fencing.ExpireRequest{Name: name})
		s.bury(out.Ended, changed)
		c.expiry.Ended = append(c.expiry.Ended, out.Ended...)
		changed.record(name)
		s.index.update(s.state, name)
	}
	for range min(c.limit, 1) * tombstonesPerCall {
		key, ok := s.index.popTombstone(now)
		if !ok {
			break
		}
		if tomb, ok := s.state.Tombstones[key]; ok && tomb.Until <= now {
			delete(s.state.Tombstones, key)
			changed.forget(key, tomb.Until)
		}
	}
	// How long a lease was held counts against its bound after a restart, even
	// if the wall clock is set back meanwhile: so the file knows the time.
	changed.clock = s.index.held.Len() > 0 && now.Sub(s.flushed) >= idlePause
	c.expiry.Next = s.index.nextDue(now)
}

// flushClock writes the time of a clean end.
func (s *Store) flushClock() {
	if s.cause != nil {
		return
	}
	last := changes{clock: true}
	w := last.encode(s.state, s.now())
	if err := s.disk.commit(&w); err != nil {
		s.fail(err)
	}
}

// fail makes the store refuse everything from now on.
func (s *Store) fail(err error) {
	s.log.Error("a flush failed; the store stops", "error", err)
	s.cause = err
	close(s.failed)
}
