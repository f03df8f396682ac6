package redis

import (
	"time"

	"fencepost/internal/fencing"
)

// hears returns who is to hear of this gateway's waiters, nil if nobody is, or
// not any more.
func (s *Store) hears() fencing.Listener {
	s.listener.mu.Lock()
	defer s.listener.mu.Unlock()
	if s.listener.ctx.Err() != nil {
		return nil
	}
	return s.listener.hears
}

// announce notes which tokens and TTLs a command has brought, and tells of what it has
// brought to requests that wait here, but not of the caller's own lease.
func (s *Store) announce(c *command, r *reply) {
	s.guards.notice(c, r)
	for i := range r.grants {
		s.learn(c.partition, &r.grants[i].Holder)
	}
	if r.holder != nil {
		s.learn(c.partition, r.holder)
	}
	s.saw(c.partition, r.lock.LastToken)
	if r.more {
		s.handOffs.goOn(s, c.name)
	}
	if len(r.grants) == 0 && r.replaced == nil {
		return
	}
	hears := s.hears()
	if hears == nil {
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
		hears.Granted(g, r.now, asked)
	}
	if r.replaced != nil && r.replaced.Gateway == here {
		hears.Replaced(c.name, r.replaced.Stamp)
	}
}

// learn notes what the next server has to be told of a lease, should this one forget it.
func (s *Store) learn(partition int, h *fencing.Holder) {
	s.saw(partition, h.Token)
	s.guards.uses(h.TTL)
}

func (s *Store) saw(partition int, token fencing.Token) {
	if token != 0 {
		s.sender.saw(partition, token)
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
	if hears := s.hears(); hears != nil && c.verb.rules() {
		hears.Gap()
	}
}
