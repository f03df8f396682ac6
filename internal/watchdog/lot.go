package watchdog

import (
	"sync"
	"time"

	"fencepost/internal/fencing"
)

const (
	// goneTTL is how long a request that went away is remembered after what it had was
	// taken back, so that a grant that crossed its leaving is known for what it is: until
	// the next heartbeats have told of what could not be undone.
	goneTTL = 2 * fencing.GatewayTTL

	// maxGone bounds that memory, at about 200 bytes each.
	maxGone = 1 << 15
)

// strangerTTL is how long a provisional lease that nobody knows of is remembered: a
// store that has many to tell of may do so in several heartbeats.
const strangerTTL = 10 * time.Minute

// lot is where requests are parked: every request that waits, or may be about to,
// is known here by name and stamp, so that a message that overtakes the store's
// answer finds it.
type lot struct {
	mu       sync.Mutex // held for moments only, and never across a call to the store
	waiters  map[key]*Waiter
	held     map[key]struct{} // provisional leases of incomplete sets
	attached map[key]*attachment
	kept     map[leaseOn][]*attachment // the same, by their leases: an older one may not have ended yet
	queue    bool                      // the store has one: see retry.go
	places   map[leaseOn]*Waiter       // parked requests, by their leases, at a store without a queue
	lines    map[fencing.Name]*line
	draining bool
	beating  bool // heartbeats runs
	quiet    int  // heartbeats in a row for which there was no reason
	passes   uint // of recheck, so far

	dirty    []fencing.Name // lines to be rechecked
	checkers int            // goroutines that recheck

	strangers map[key]time.Time // provisional leases nobody knows of, and since when

	gone      map[key]*departed
	goneOrder []key // as they went
}

// key names a request in the queue of a name.
type key struct {
	name  fencing.Name
	stamp fencing.Stamp
}

// line is what this gateway has to do with a name.
type line struct {
	first, last *Waiter // parked requests that have no grant yet, by their arrival at the store
	parked      int     // how many those are
	members     int     // requests, joining ones too, and held leases
	queued      bool    // in lot.dirty
	checking    bool    // a pass of recheck is under way
	again       bool    // another one is to follow it
	whole       bool    // the next pass asks for all of them: their places may be gone

	retries // of a store without a queue
}

// departed is a request that has gone, and whose place or grant is being taken back.
type departed struct {
	lease   fencing.LeaseID
	until   time.Time
	counted bool
	last    time.Time // when it was last taken back
}

func newLot(queue bool) lot {
	return lot{
		waiters: map[key]*Waiter{}, held: map[key]struct{}{}, lines: map[fencing.Name]*line{}, attached: map[key]*attachment{}, kept: map[leaseOn][]*attachment{},
		queue: queue, places: map[leaseOn]*Waiter{},
		gone: map[key]*departed{}, strangers: map[key]time.Time{},
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
func (l *lot) enter(t *Waiter) {
	l.waiters[t.key()] = t
	l.member(t.ask.Name)
}

func (l *lot) member(name fencing.Name) {
	n := l.lines[name]
	if n == nil {
		n = &line{}
		l.lines[name] = n
	}
	n.members++
}

// drop forgets a member of a line. The caller holds mu.
func (l *lot) drop(name fencing.Name) {
	if n := l.lines[name]; n != nil {
		if n.members--; n.members == 0 {
			delete(l.lines, name)
		}
	}
}

// link puts a parked request into its line, where the store has it. The caller
// holds mu.
func (l *lot) link(t *Waiter, joinedAt fencing.Instant) {
	l.unlink(t)
	t.joinedAt, t.linked = joinedAt, true
	n := l.lines[t.ask.Name]
	after := n.last
	for after != nil && after.joinedAt > joinedAt {
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
	if n.parked++; !l.queue && l.places[t.leaseOn()] == nil {
		l.places[t.leaseOn()] = t
	}
}

// unlink takes a request out of its line. The caller holds mu.
func (l *lot) unlink(t *Waiter) {
	if !t.linked {
		return
	}
	n := l.lines[t.ask.Name]
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
	if l.queue {
		return
	}
	if l.places[t.leaseOn()] == t {
		delete(l.places, t.leaseOn())
	}
	if n.first != nil {
		n.first.tell() // it may be its turn
	}
}

// exit makes a request unknown; it does so once. The caller holds mu.
func (l *lot) exit(t *Waiter, how state) {
	l.unlink(t)
	delete(l.waiters, t.key())
	l.drop(t.ask.Name)
	t.state = how
	if t.timer != nil {
		t.timer.Stop()
	}
}

// remember notes that a request has gone whose place or grant is being taken
// back. The caller holds mu.
func (l *lot) remember(k key, lease fencing.LeaseID, counted bool) {
	now := time.Now()
	l.forget(now)
	if l.gone[k] == nil {
		l.goneOrder = append(l.goneOrder, k)
	}
	l.gone[k] = &departed{lease: lease, until: now.Add(takeBackPatience + goneTTL), counted: counted, last: now}
}

// returned notes that what requests that have gone had is taken back.
func (l *lot) returned(names []fencing.Name, stamp fencing.Stamp) {
	l.mu.Lock()
	defer l.mu.Unlock()
	until := time.Now().Add(goneTTL)
	for _, name := range names {
		if d := l.gone[key{name, stamp}]; d != nil {
			d.until = until
		}
	}
}

// stranger notes that the store told of a provisional lease that no request here
// knows of, and reports whether it has done so for longer than a message told twice
// would explain. What there is no room for is noted when others have been taken
// back. The caller holds the lot's mutex.
func (w *Watchdog) stranger(k key) bool {
	l, now := &w.lot, time.Now()
	since, told := l.strangers[k]
	switch {
	case told && now.Sub(since) >= fencing.HeartbeatInterval/2:
		delete(l.strangers, k)
		return true
	case !told && len(l.strangers) < maxGone && !l.draining:
		l.strangers[k] = now
		w.beat() // which tells of it again
	}
	return false
}

// forget drops the memory of those that went long ago. The caller holds mu.
func (l *lot) forget(now time.Time) {
	n := 0
	for n < len(l.goneOrder) {
		k := l.goneOrder[n]
		if len(l.goneOrder)-n < maxGone && now.Before(l.gone[k].until) {
			break
		}
		delete(l.gone, k)
		n++
	}
	if l.goneOrder = l.goneOrder[n:]; len(l.goneOrder) == 0 {
		l.goneOrder = nil
	}
}
