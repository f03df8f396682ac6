package session

import (
	"maps"
	"slices"
	"time"

	"fencepost/internal/fencing"
)

// news is what a stream has heard of and not acted on. Nothing in it decides anything: the stream
// asks the store.
type news struct {
	replaced map[fencing.Name]struct{} // of which a message said that another request has it
	told     map[fencing.Name]struct{} // of which the store is to be asked: the lease may have ended, or been given notice

	renewed map[fencing.Name]fencing.Outcome // by another request, at this gateway
}

// request is what a message calls a request by, of one of its names.
type request struct {
	name  fencing.Name
	stamp fencing.Stamp
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
	for _, s := range h.byName[name][lease] {
		s.tell(name)
		s.signal()
	}
}

// Renewed implements watchdog.Keeper.
func (h hearer) Renewed(name fencing.Name, lease fencing.LeasePublic, out *fencing.Outcome) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.byName[name][lease] {
		switch other, is := s.news.renewed[name]; {
		case out.Holder.Attached != s.ask.Stamp: // it is another's, or nobody's
			s.tell(name)
		case !is && s.news.renewed == nil:
			s.news.renewed = map[fencing.Name]fencing.Outcome{name: *out}
		case !is || out.Now > other.Now:
			s.news.renewed[name] = *out
		}
		s.signal()
	}
}

// Kept implements watchdog.Keeper.
func (h hearer) Kept() []fencing.Name {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Keys(h.byName))
}

// Has implements watchdog.Keeper. A stream asks about a lease that it has and of which the store does not tell: it was
// taken over, has ended or was given notice, and no message has said so.
func (h hearer) Has(names []fencing.Name, since time.Time, entries []fencing.Entry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range entries {
		e := &entries[i]
		if s := h.byRequest[request{e.Name, e.Stamp}]; s != nil {
			s.confirmed(e.Name, since)
		}
	}
	for _, name := range names {
		for _, streams := range h.byName[name] {
			for _, s := range streams {
				if known, has := s.known[name]; has && known.Before(since) {
					s.tell(name)
					s.signal()
				}
			}
		}
	}
}

// confirmed notes that the store has had a lease which the stream has hang on it, since an instant. The caller holds the mutex.
func (s *Session) confirmed(name fencing.Name, since time.Time) {
	if known, has := s.known[name]; has && known.Before(since) {
		s.known[name] = since
	}
}

// noticeRest is the least from one renewal to the next of a lease that was given notice: heartbeats do not tell of it, so each
// has its stream ask, and after gaps there are many.
const noticeRest = fencing.HeartbeatInterval / 2

// noteHas notes that the stream has a lease, as the store has just said.
func (s *Session) noteHas(name fencing.Name, out *fencing.Outcome) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if s.known[name] = time.Now(); out.Holder.BreakAt != 0 {
		s.known[name] = s.known[name].Add(noticeRest)
	}
}

// register makes a stream known, before the store is asked for it.
func (o *Sessions) register(s *Session) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s.known = map[fencing.Name]time.Time{}
	lease := s.ask.Lease.Public()
	for _, name := range s.names {
		o.byRequest[request{name, s.ask.Stamp}] = s
		if o.byName[name] == nil {
			o.byName[name] = map[fencing.LeasePublic][]*Session{}
		}
		o.byName[name][lease] = append(o.byName[name][lease], s)
	}
}

// forget has a stream hear no more of names.
func (o *Sessions) forget(s *Session, names ...fencing.Name) {
	o.mu.Lock()
	defer o.mu.Unlock()
	lease := s.ask.Lease.Public()
	for _, name := range names {
		if k := (request{name, s.ask.Stamp}); o.byRequest[k] == s {
			delete(o.byRequest, k)
		}
		delete(s.known, name)
		leases := o.byName[name]
		rest := slices.DeleteFunc(leases[lease], func(other *Session) bool { return other == s })
		if len(rest) > 0 {
			leases[lease] = rest
			continue
		}
		if delete(leases, lease); len(leases) == 0 {
			delete(o.byName, name)
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
func (s *Session) hasNews() bool {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	for name := range s.news.replaced {
		s.tell(name)
	}
	clear(s.news.replaced)
	return len(s.news.told)+len(s.news.renewed) > 0
}
