package redis

import (
	"context"
	"slices"
	"sync"
	"time"

	"fencepost/internal/fencing"
)

const (
	// searchFor is how long names are looked after whose commands had no answer.
	// By then heartbeats have found what there was to find.
	searchFor = 10 * time.Second

	// searchPause is how long a search rests between two attempts.
	searchPause = 100 * time.Millisecond
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
	s.sentry.notice(c.partition, r)
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
		s.search(c)
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
	s.sentry.uses(h.TTL)
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
		s.search(c)
		return
	}
	s.announce(c, r)
}

// search has the waiters on the name of a command looked after, which may have
// handed the lock on but had no answer that can be read: now, and when the store
// answers again.
func (s *Store) search(c *command) {
	if !c.verb.rules() {
		return
	}
	hears := s.hears()
	if hears == nil {
		return
	}
	hears.Recheck([]fencing.Name{c.name})
	s.searches.add(s, c.name)
}

// searches are the names that are looked after in the background.
type searches struct {
	mu      sync.Mutex
	until   map[fencing.Name]time.Time
	active  bool
	cancel  context.CancelFunc
	ctx     context.Context
	running sync.WaitGroup
}

func (w *searches) add(s *Store, name fencing.Name) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx.Err() != nil {
		return
	}
	w.until[name] = time.Now().Add(searchFor)
	if !w.active {
		w.active = true
		w.running.Go(func() { w.run(s) })
	}
}

// run asks for the names until there are none.
func (w *searches) run(s *Store) {
	for names := w.names(); names != nil; names = w.names() {
		err := s.attend(w.ctx, names, nil)
		over := w.over(names, err == nil)
		if hears := s.hears(); hears != nil && len(over) > 0 {
			hears.Recheck(over)
		}
		if err == nil {
			continue
		}
		pause := time.NewTimer(searchPause)
		select {
		case <-pause.C:
		case <-w.ctx.Done():
		}
		pause.Stop()
	}
}

// names returns what is to be looked after; with nil the search has ended.
func (w *searches) names() []fencing.Name {
	w.mu.Lock()
	defer w.mu.Unlock()
	var names []fencing.Name
	for name := range w.until {
		if names = append(names, name); len(names) == maxBatch {
			break
		}
	}
	if names == nil || w.ctx.Err() != nil {
		w.active = false
		return nil
	}
	return names
}

// over drops those of names for which the search is over, and returns them: all
// if they were found, else those whose time is up.
func (w *searches) over(names []fencing.Name, found bool) []fencing.Name {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	over := slices.DeleteFunc(names, func(name fencing.Name) bool { return !found && now.Before(w.until[name]) })
	for _, name := range over {
		delete(w.until, name)
	}
	return over
}

func (w *searches) close() {
	w.mu.Lock()
	w.cancel()
	w.mu.Unlock()
	w.running.Wait()
}
