package embedded

import (
	"fencepost/internal/fencing"
)

// write decides calls until the store is closed: the only goroutine that
// changes state, index and disk.
func (s *Store) write() {
	defer close(s.ended)
	batch := make([]*call, 0, maxBatch)
	for {
		batch = batch[:0]
		select {
		case c := <-s.queue:
			batch = append(batch, c)
		case <-s.closed:
			if len(s.queue) == 0 {
				s.flushClock()
				return
			}
		}
		for len(batch) < maxBatch && len(s.queue) > 0 {
			batch = append(batch, <-s.queue)
		}
		s.decide(batch)
	}
}

// decide runs a batch through Step, flushes what it changed, and answers.
func (s *Store) decide(batch []*call) {
	if s.cause != nil {
		for _, c := range batch {
			c.err = s.cause
			close(c.done)
		}
		return
	}
	var changed changes
	late := batch[:0] // the calls that wait for the flush
	s.mu.Lock()
	now := s.now()
	for _, c := range batch {
		if c.err = c.ctx.Err(); c.err != nil { // the caller has gone: grant nothing to nobody
			close(c.done)
			continue
		}
		if s.step(c, now, &changed) {
			late = append(late, c)
		} else {
			close(c.done)
		}
	}
	s.mu.Unlock()

	if !changed.empty() {
		if err := s.disk.commit(s.state, now, &changed); err != nil {
			s.fail(err)
		}
		s.flushed = now
	}
	for _, c := range late {
		c.err = s.cause
		close(c.done)
	}
}

// step decides one call, notes what it changed, and reports whether its answer
// has to wait until that is durable.
func (s *Store) step(c *call, now fencing.Instant, changed *changes) (wait bool) {
	if c.op == nil {
		s.expire(c, now, changed)
		return true
	}
	name := c.op.LockName()
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
		return c.out.Err != nil || after.ttl > before.ttl
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
	for range c.limit {
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
	if s.cause == nil {
		if err := s.disk.commit(s.state, s.now(), &changes{clock: true}); err != nil {
			s.fail(err)
		}
	}
}

// fail makes the store refuse everything from now on.
func (s *Store) fail(err error) {
	s.log.Error("a flush failed; the store stops", "error", err)
	s.cause = err
	close(s.failed)
}
