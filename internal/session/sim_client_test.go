package session

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"fencepost/internal/fencing"
)

const (
	// simPatience is after how long without a word a client asks another gateway.
	simPatience = 3 * time.Second

	// simAsks is how many requests a client makes for a lease at most because it was told that nothing is known.
	simAsks = 8
)

// simLease is a lease id with its client, as docs/clients.md has clients be.
type simLease struct {
	sim     *simulation
	id      fencing.LeaseID
	rand    *rand.Rand // of the client
	names   []fencing.Name
	several bool
	ttl     time.Duration
	linger  time.Duration
	news    chan struct{} // holds one when there is something to look at

	// What follows the simulation's mutex guards.

	requests []*simRequest
	away     time.Time                          // the client stands still until then
	closed   bool                               // the client has closed a connection that had not ended, or one broke: that may be a release
	released map[fencing.Name]bool              // by a DELETE
	broken   map[fencing.Name]bool              // an administrator breaks it, without notice
	noticed  map[fencing.Name]bool              // it was given notice
	over     map[fencing.Name]fencing.EventKind // how its lease has ended
	unknown  bool                               // the client was told that nothing is known, and asks no more
	short    time.Time                          // a PUT has asked for no longer than until then
	shortAt  time.Time                          // and was answered then
	dropped  bool                               // a request did not name all that the lease had
	plain    bool                               // a request was no stream
}

func (l *simLease) oneIn(n int) bool { return l.rand.IntN(n) == 0 }

func (l *simLease) upTo(d time.Duration) time.Duration { return time.Duration(l.rand.Int64N(int64(d))) }

// stand waits while the client stands still.
func (l *simLease) stand() {
	l.sim.mu.Lock()
	until := l.away
	l.sim.mu.Unlock()
	advance(time.Until(until))
}

// signal has the client look. The caller holds the simulation's mutex.
func (l *simLease) signal() {
	select {
	case l.news <- struct{}{}:
	default:
	}
}

// lease begins a lease id.
func (s *simulation) lease(r *rand.Rand, n int) *simLease {
	id, err := fencing.ParseLeaseID(fmt.Sprintf("01KD%022d.%022d", n, n))
	if err != nil {
		panic(err)
	}
	l := &simLease{
		sim: s, id: id, rand: r, news: make(chan struct{}, 1),
		released: map[fencing.Name]bool{}, broken: map[fencing.Name]bool{}, over: map[fencing.Name]fencing.EventKind{}, noticed: map[fencing.Name]bool{},
	}
	l.ttl = []time.Duration{6 * time.Second, 12 * time.Second, 60 * time.Second}[r.IntN(3)]
	if l.oneIn(5) {
		l.linger = time.Second
	}
	pool := slices.Clone(simNames)
	if !s.kind.leaves { // no lease ends: each has names of its own
		pool = pool[n%2*3:][:3]
	}
	r.Shuffle(len(pool), func(i, j int) { pool[i], pool[j] = pool[j], pool[i] })
	l.several = s.kind.stalls || l.oneIn(2)
	l.names = pool[:1]
	if l.several {
		l.names = slices.Sorted(slices.Values(pool[:2+r.IntN(2)]))
	}
	s.mu.Lock()
	s.leases[id.Public()] = l
	s.mu.Unlock()
	return l
}

// open makes one more request.
func (l *simLease) open(names []fencing.Name, stream bool) *simRequest {
	s := l.sim
	s.mu.Lock()
	n := len(l.requests) + 1
	s.mu.Unlock()
	r := &simRequest{names: names, of: l, n: n, g: s.gateways[l.rand.IntN(len(s.gateways))], sent: time.Now(), word: time.Now()}
	r.AcquireRequest = fencing.AcquireRequest{
		Lease: l.id, Stamp: fencing.Stamp(fmt.Sprintf("%s-%d", l.id.Public()[20:], n)), Mode: fencing.ModeExclusive, Hold: 1,
		TTL: l.ttl, Keep: true, Attach: stream,
	}
	if stream {
		r.linger = l.linger
		r.Wait = []time.Duration{0, 5 * time.Second, time.Minute}[l.rand.IntN(3)]
	}
	if !l.several {
		r.Name = names[0]
	}
	r.ctx, r.hangUp = context.WithCancel(s.t.Context())
	s.mu.Lock()
	l.requests = append(l.requests, r)
	l.plain = l.plain || !stream
	s.byStamp[r.Stamp] = r
	s.mu.Unlock()
	s.note("%v is sent", r)
	d := l.upTo(simNet)
	s.serving.Go(func() {
		advance(d)
		r.serve()
	})
	return r
}

// live is what a client does with one lease id, until the trouble is over or the lease is.
func (l *simLease) live() {
	s := l.sim
	for range s.together(l.rand) {
		l.open(l.names, true)
		if l.oneIn(2) {
			advance(l.upTo(100 * time.Millisecond))
		}
	}
	for asked := 0; !s.ended(); {
		l.stand()
		switch holds, open, again := l.look(); {
		case holds && l.hold():
			return
		case holds:
		case again && asked < simAsks:
			asked++
			advance(l.upTo(500 * time.Millisecond))
			l.open(l.wants(), true)
			continue
		case !open && again:
			s.mu.Lock()
			l.unknown = true
			s.mu.Unlock()
			return
		case !open:
			return
		}
		timer := time.NewTimer(l.upTo(2 * time.Second))
		select {
		case <-l.news:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// look returns whether the client believes in what it wanted, whether it waits for an answer, and whether it has to ask
// again: it was told that nothing is known, the gateway has said nothing for too long, or the newest stream
// of it has ended for a request that can only have been its own.
func (l *simLease) look() (holds, open, again bool) {
	s, now := l.sim, time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	silent, uncertain, replaced, gone, lost := true, false, false, false, false
	for _, r := range l.requests {
		switch code := fencing.CodeOf(r.end); {
		case r.end == errBroke || r.end != nil && fencing.Uncertain(r.end):
			uncertain = uncertain || !r.doubted
		case r.left:
			gone = gone || r.Attach // it may yet have taken the lease, or has released it
		case r.end != nil:
			lost = lost || code == fencing.CodeLeaseLost
			replaced = replaced || code == fencing.CodeReplaced && !r.doubted
		case r.Attach && r.has != nil && now.Before(r.until):
			holds = true
		default:
			open = true
			silent = silent && !r.waits && now.Sub(r.word) > simPatience
		}
	}
	again = !holds && !lost && (open && silent || !open && (uncertain || replaced && gone))
	for _, r := range l.requests {
		r.doubted = r.doubted || again && r.end != nil
	}
	return holds, open, again
}

// wants are the names that the client has not released.
func (l *simLease) wants() []fencing.Name {
	l.sim.mu.Lock()
	defer l.sim.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.names), func(name fencing.Name) bool { return l.released[name] })
}

// hold is one thing that a client does which has its lease. It reports whether it wants it no more.
func (l *simLease) hold() (done bool) {
	advance(l.upTo(3 * time.Second))
	s := l.sim
	switch act := l.rand.IntN(16); {
	case s.ended():
	case act < 4: // newer requests
		for range s.together(l.rand) {
			l.open(l.wants(), true)
		}
	case !s.kind.leaves:
	case act < 6 && l.several: // one more name, or one that comes no more
		l.changeNames()
	case act < 7 && !l.several: // not as a stream
		l.open(l.names, false)
	case act < 9:
		l.put()
	case act < 10 && l.several && len(l.wants()) > 1:
		names := l.wants()
		l.delete(names[l.rand.IntN(len(names))])
	case act < 11:
		for _, name := range l.wants() {
			l.delete(name)
		}
		return true
	case act < 13:
		l.leaveOne()
	case act < 14:
		s.mu.Lock()
		l.away = time.Now().Add(500*time.Millisecond + l.upTo(4500*time.Millisecond))
		s.mu.Unlock()
	}
	return false
}

func (l *simLease) changeNames() {
	s, names := l.sim, l.wants()
	more := slices.DeleteFunc(slices.Clone(simNames), func(name fencing.Name) bool { return slices.Contains(l.names, name) })
	switch {
	case len(more) > 0 && l.oneIn(2):
		s.mu.Lock()
		l.dropped = true // an older request may come late
		s.mu.Unlock()
		l.names = slices.Sorted(slices.Values(append(slices.Clone(l.names), more[l.rand.IntN(len(more))])))
	case len(names) > 1:
		s.mu.Lock()
		l.dropped = true
		s.mu.Unlock()
		drop := names[l.rand.IntN(len(names))]
		l.names = slices.DeleteFunc(slices.Clone(l.names), func(name fencing.Name) bool { return name == drop })
	}
	if names = l.wants(); len(names) > 0 {
		l.open(names, true)
	}
}

// put renews the lease at a gateway that a stream of it is at, for less: the stream hears of that, as far as its
// gateway was answered.
func (l *simLease) put() {
	s := l.sim
	r := l.streams()
	if len(r) != 1 || len(l.wants()) == 0 || r[0].has == nil || !r[0].Attach {
		return
	}
	const ttl = 1500 * time.Millisecond
	names, sent := l.wants(), time.Now()
	s.mu.Lock()
	l.short, l.shortAt = sent.Add(ttl), sent.Add(time.Hour)
	for _, other := range l.requests {
		if l.short.Before(other.until) {
			other.until = l.short
		}
	}
	s.mu.Unlock()
	s.note("%v: a PUT for %s", r[0], ttl)
	all := true
	for _, name := range names {
		ctx, cancel := context.WithTimeout(s.t.Context(), simCallTimeout)
		_, err := r[0].g.dog.Do(ctx, fencing.RenewRequest{Name: name, Lease: l.id, TTL: ttl})
		cancel()
		all = all && err == nil
	}
	if !all { // its stream may not have heard: the client takes over
		l.open(l.wants(), true)
		return
	}
	s.mu.Lock()
	l.shortAt = time.Now()
	s.mu.Unlock()
}

// streams returns the requests of which the client has not heard the end, or that its gateway still has.
func (l *simLease) streams() (all []*simRequest) {
	l.sim.mu.Lock()
	defer l.sim.mu.Unlock()
	for _, r := range l.requests {
		if !r.over || r.Attach && r.end == nil && !r.left {
			all = append(all, r)
		}
	}
	return all
}

// delete releases a name, until that is answered.
func (l *simLease) delete(name fencing.Name) {
	s := l.sim
	s.mu.Lock()
	l.released[name] = true
	for _, r := range l.requests {
		r.has = slices.DeleteFunc(slices.Clone(r.has), func(n fencing.Name) bool { return n == name })
	}
	s.mu.Unlock()
	s.note("%s is released by %s", name, l.id.Public())
	for {
		ctx, cancel := context.WithTimeout(s.t.Context(), simCallTimeout)
		_, err := s.gateways[l.rand.IntN(len(s.gateways))].dog.Do(ctx, fencing.ReleaseRequest{Name: name, Lease: l.id})
		if cancel(); err == nil || !fencing.Uncertain(err) {
			return
		}
		advance(50*time.Millisecond + l.upTo(300*time.Millisecond))
	}
}

// leaveOne closes a connection.
func (l *simLease) leaveOne() {
	l.sim.mu.Lock()
	var open []*simRequest
	for _, r := range l.requests {
		if !r.left && r.end == nil {
			open = append(open, r)
		}
	}
	l.sim.mu.Unlock()
	if len(open) > 0 {
		open[l.rand.IntN(len(open))].leave()
	}
}

// goes has the client be gone: it closes all connections.
func (l *simLease) goes() {
	l.sim.mu.Lock()
	requests := slices.Clone(l.requests)
	l.sim.mu.Unlock()
	for _, r := range requests {
		r.leave()
	}
}
