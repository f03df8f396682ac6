package redis

import (
	"time"

	"fencepost/internal/fencing"
)

// currentListener returns who is to hear of this gateway's waiters, nil if nobody is, or
// not any more.
func (s *Store) currentListener() fencing.Listener {
	s.subscription.mu.Lock()
	defer s.subscription.mu.Unlock()
	if s.subscription.ctx.Err() != nil {
		return nil
	}
	return s.subscription.listener
}

// announce notes which tokens and TTLs a command has brought, and tells of what it has
// brought to requests that wait here, but not of the caller's own lease.
func (s *Store) announce(c *command, r *reply) {
	s.guards.raiseAlarm(c, r)
	for i := range r.grants {
		s.noteLease(c.partition, &r.grants[i].Holder)
	}
	if r.holder != nil {
		s.noteLease(c.partition, r.holder)
	}
	s.noteToken(c.partition, r.lock.LastToken)
	if r.more {
		s.handOffs.resume(s, c.name)
	}
	if len(r.grants) == 0 && r.replaced == nil && r.evicted == nil {
		return
	}
	listener := s.currentListener()
	if listener == nil {
		return
	}
	here := fencing.Gateway(s.handle)
	if c.unacked && len(r.grants) > 0 { // they are asked for again, until replicas confirm them
		s.gap(c)
		return
	}
	for _, g := range r.grants {
		if g.Gateway != here || c.lease == g.Holder.Lease {
			continue
		}
		asked := c.sentAt
		if g.Holder.Provisional {
			asked = time.Time{}
		}
		listener.Granted(g, r.now, asked)
	}
	if e := r.evicted; e != nil && e.Request != nil && e.Request.Gateway == here {
		listener.Ask(c.name, e.Request.Stamp)
	}
	if r.replaced != nil && r.replaced.Gateway == here {
		listener.Replaced(c.name, r.replaced.Stamp)
	}
}

// noteLease notes what the next server has to be told of a lease, should this one forget it.
func (s *Store) noteLease(partition int, h *fencing.Holder) {
	s.noteToken(partition, h.Token)
	s.guards.noteTTL(h.TTL)
}

func (s *Store) noteToken(partition int, token fencing.Token) {
	if token != 0 {
		s.sender.raiseFloor(partition, token)
	}
}

// orphaned takes the answer of a command whose caller has left.
func (s *Store) orphaned(c *command) {
	r, err := s.result(c)
	if err != nil {
		s.gap(c)
		return
	}
	s.announce(c, r)
}

// gap tells that a command may have handed the lock on and had no answer that can be read.
func (s *Store) gap(c *command) {
	if listener := s.currentListener(); listener != nil && c.verb.rules() {
		listener.Gap()
	}
}
