package session

import (
	"maps"
	"slices"
	"time"

	"fencepost/internal/fencing"
)

const (
	// gapRest is the least from one time to the next that all streams ask the store because
	// messages may have been lost. It doubles up to longestGapRest as long as that goes on: a
	// store that is slow loses answers, and is not to be asked the more for it.
	gapRest        = time.Second
	longestGapRest = 16 * time.Second
)

// news is what a stream has heard of and not acted on. Nothing in it decides anything: the stream
// asks the store.
type news struct {
	replaced map[fencing.Name]struct{} // of which a message said that another request has it
	missed   bool                      // messages may have been lost
	told     map[fencing.Name]struct{} // of which an event said that the lease has ended, or was given notice

	renewed map[fencing.Name]fencing.Outcome // by another request, at this gateway
}

// any reports whether there is anything to do before the store is asked again that has not
// answered.
func (n *news) any(unanswered bool) bool {
	return n.missed && !unanswered || len(n.told)+len(n.renewed) > 0
}

// request is what a message calls a request by, of one of its names.
type request struct {
	name  fencing.Name
	stamp fencing.Stamp
}

// leaseOn is a lease on a name.
type leaseOn struct {
	name  fencing.Name
	lease fencing.LeasePublic
}

// hearer is the Sessions as the watchdog sees them: it notes what it is told in the streams that it
// may be about, and wakes them.
type hearer struct{ *Sessions }

// Replaced implements watchdog.Keeper.
func (h hearer) Replaced(name fencing.Name, stamp fencing.Stamp) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.byRequest[request{name, stamp}]; s != nil {
		s.noteReplaced(name)
		s.signal()
	}
}

// Changed implements watchdog.Keeper.
func (h hearer) Changed(name fencing.Name, lease fencing.LeasePublic) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.byLease[leaseOn{name, lease}] {
		s.tell(name)
		s.signal()
	}
}

// Renewed implements watchdog.Keeper.
func (h hearer) Renewed(name fencing.Name, lease fencing.LeasePublic, out *fencing.Outcome) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.byLease[leaseOn{name, lease}] {
		if s.news.renewed == nil {
			s.news.renewed = map[fencing.Name]fencing.Outcome{}
		}
		if other, is := s.news.renewed[name]; !is || out.Now > other.Now {
			s.news.renewed[name] = *out
		}
		s.signal()
	}
}

// Gap implements watchdog.Keeper. It does so at once, or after the rest since the last time.
func (h hearer) Gap() {
	h.mu.Lock()
	defer h.mu.Unlock()
	g, now := &h.gaps, time.Now()
	switch {
	case g.due:
		return
	case now.Before(g.last.Add(g.rest)):
		g.due = true
		time.AfterFunc(g.rest-now.Sub(g.last), func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.askAll()
		})
		g.rest = min(2*g.rest, longestGapRest)
	default:
		g.rest = gapRest
		h.askAll()
	}
}

// gaps is when streams ask because messages may have been lost.
type gaps struct {
	last time.Time
	rest time.Duration // after last
	due  bool          // they will
}

// askAll has all streams ask the store. The caller holds mu.
func (h hearer) askAll() {
	h.gaps.last, h.gaps.due = time.Now(), false
	for _, s := range h.byRequest {
		s.news.missed = true
		s.signal()
	}
}

// register makes a stream known, before the store is asked for it.
func (o *Sessions) register(s *Session) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, name := range s.names {
		o.byRequest[request{name, s.ask.Stamp}] = s
		on := leaseOn{name, s.ask.Lease.Public()}
		o.byLease[on] = append(o.byLease[on], s)
	}
}

// forget has a stream hear no more of names.
func (o *Sessions) forget(s *Session, names ...fencing.Name) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, name := range names {
		if k := (request{name, s.ask.Stamp}); o.byRequest[k] == s {
			delete(o.byRequest, k)
		}
		on := leaseOn{name, s.ask.Lease.Public()}
		rest := slices.DeleteFunc(o.byLease[on], func(other *Session) bool { return other == s })
		if o.byLease[on] = rest; len(rest) == 0 {
			delete(o.byLease, on)
		}
	}
}

// noteReplaced notes that another request is said to have names. The caller holds the mutex.
func (s *Session) noteReplaced(names ...fencing.Name) {
	if s.news.replaced == nil {
		s.news.replaced = map[fencing.Name]struct{}{}
	}
	for _, name := range names {
		s.news.replaced[name] = struct{}{}
	}
}

// tell has the stream ask the store about a lease. The caller holds the mutex.
func (s *Session) tell(name fencing.Name) {
	if s.news.told == nil {
		s.news.told = map[fencing.Name]struct{}{}
	}
	s.news.told[name] = struct{}{}
}

// signal has the stream look at its news. The caller holds the mutex.
func (s *Session) signal() {
	select {
	case s.wake <- struct{}{}:
	default: // it is to look already
	}
}

// takeReplaced returns the names that another request is said to have, and forgets that.
func (s *Session) takeReplaced() []fencing.Name {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	names := slices.Sorted(maps.Keys(s.news.replaced))
	clear(s.news.replaced)
	return names
}

// keepReplaced notes what was taken once more: nobody could say.
func (s *Session) keepReplaced(names []fencing.Name) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.noteReplaced(names...)
}

// takeNews returns what there is to ask the store about, and forgets it.
func (s *Session) takeNews() news {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	n := s.news
	s.news = news{replaced: n.replaced}
	return n
}

// hasNews reports whether there is anything to ask the store about. A message that another request
// has a lease may be late: this one may have taken it back since.
func (s *Session) hasNews(unanswered bool) bool {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	for name := range s.news.replaced {
		s.tell(name)
	}
	clear(s.news.replaced)
	return s.news.any(unanswered)
}
