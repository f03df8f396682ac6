package watchdog

import (
	"sync"
	"time"

	"fencepost/internal/fencing"
)

// maxLingering bounds for how many names a heartbeat is made where nobody waits any more.
const maxLingering = 4096

// registry is where requests are known: every request that waits, or may be about to, by
// name and stamp, so that a message that overtakes the store's answer finds it.
type registry struct {
	mu         sync.Mutex // held for moments only, and never across a call to the store
	waiters    map[key]*Waiter
	held       map[key]struct{}    // provisional leases of incomplete sets
	atStore    bool                // the store has a queue: else see retry.go
	reconciles bool                // the store's heartbeats tell what it has: fencing.Listener.Has
	places     map[leaseOn]*Waiter // parked requests, by their leases, at a store without a queue
	queues     map[fencing.Name]*queue
	draining   bool

	origin    time.Time                  // of all durations here
	beating   bool                       // heartbeats runs
	lingering map[fencing.Name]time.Time // names that heartbeats go on for, since when: see linger

	missing []*queue // with requests that the store does not have
	askers  int      // goroutines that ask for them

	lostGrants      []*Waiter // with a lease that they have not heard of
	lostGrantAskers int       // goroutines that ask for it
}

// key names a request in the queue of a name.
type key struct {
	name  fencing.Name
	stamp fencing.Stamp
}

// queue is what this gateway has to do with a name.
type queue struct {
	first, last *Waiter   // parked requests that have no grant yet: see registry.link
	parked      int       // how many those are
	members     int       // requests, joining ones too, and held leases
	missing     []*Waiter // those that are to ask again, and some that need not any more
	asking      bool      // they do, or will

	retries // of a store without a queue
}

func newRegistry(can fencing.Capabilities, origin time.Time) registry {
	return registry{
		waiters: map[key]*Waiter{}, held: map[key]struct{}{}, queues: map[fencing.Name]*queue{},
		atStore: can.Queue, reconciles: can.Queue && can.Tells, places: map[leaseOn]*Waiter{}, origin: origin, lingering: map[fencing.Name]time.Time{},
	}
}

// leaseOn is a lease on a name.
type leaseOn struct {
	name  fencing.Name
	lease fencing.LeasePublic
}

func (t *Waiter) leaseOn() leaseOn { return leaseOn{t.ask.Name, t.ask.Lease.Public()} }

func (t *Waiter) key() key { return key{t.ask.Name, t.ask.Stamp} }

// enter makes a request known. The caller holds mu.
func (l *registry) enter(t *Waiter) {
	l.waiters[t.key()] = t
	t.queue = l.addMember(t.ask.Name)
}

// addMember counts a request, or a held lease, among those of a name, whose queue it
// returns. The caller holds mu.
func (l *registry) addMember(name fencing.Name) *queue {
	n := l.queues[name]
	if n == nil {
		n = &queue{}
		l.queues[name] = n
	}
	n.members++
	return n
}

// drop forgets a member of a queue. The caller holds mu.
func (l *registry) drop(name fencing.Name) {
	if n := l.queues[name]; n != nil {
		if n.members--; n.members == 0 {
			delete(l.queues, name)
			l.linger(name)
		}
	}
}

// linger has heartbeats go on for a name where something may be left behind, until they
// have told of it. The caller holds mu.
func (l *registry) linger(name fencing.Name) {
	if l.beating && l.reconciles && len(l.lingering) < maxLingering {
		l.lingering[name] = time.Now()
	}
}

// link puts a parked request into its queue, or to its end, for the store is now known to
// have its place: those of whom that was not told for long are in front. A store without
// a queue tells nothing, and its requests are in order of arrival. The caller holds mu.
func (l *registry) link(t *Waiter, joinedAt fencing.Instant) {
	l.unlink(t)
	t.joinedAt, t.known, t.linked, t.missing = joinedAt, time.Since(l.origin), true, false
	n := t.queue
	after := n.last
	for !l.atStore && after != nil && after.joinedAt > joinedAt { // it has taken the place of another one
		after = after.prev
	}
	t.prev = after
	if after == nil {
		t.next, n.first = n.first, t
	} else {
		t.next, after.next = after.next, t
	}
	if t.next == nil {
		n.last = t
	} else {
		t.next.prev = t
	}
	if n.parked++; !l.atStore && l.places[t.leaseOn()] == nil {
		l.places[t.leaseOn()] = t
	}
}

// unlink takes a request out of its queue. The caller holds mu.
func (l *registry) unlink(t *Waiter) {
	if !t.linked {
		return
	}
	n := t.queue
	if t.prev == nil {
		n.first = t.next
	} else {
		t.prev.next = t.next
	}
	if t.next == nil {
		n.last = t.prev
	} else {
		t.next.prev = t.prev
	}
	t.prev, t.next, t.linked = nil, nil, false
	n.parked--
	if l.atStore {
		return
	}
	if l.places[t.leaseOn()] == t {
		delete(l.places, t.leaseOn())
	}
	if n.first != nil {
		n.first.signal() // it may be its turn
	}
}

// exit makes a request unknown; it does so once. The caller holds mu.
func (l *registry) exit(t *Waiter, how state) {
	l.unlink(t)
	delete(l.waiters, t.key())
	l.drop(t.ask.Name)
	t.state = how
	if t.timer != nil {
		t.timer.Stop()
	}
}
