package watchdog

import (
	"time"

	"fencepost/internal/fencing"
)

// Keeper keeps leases alive for their clients, and hears what may have become of them. Its methods
// must return at once. What it hears is a hint: what counts is what the store answers.
type Keeper interface {
	// Replaced tells that another request has, or had, the lease of the one with a stamp.
	Replaced(name fencing.Name, stamp fencing.Stamp)

	// Changed tells that a lease has ended, or was given notice of a break.
	Changed(name fencing.Name, lease fencing.LeasePublic)

	// Renewed tells what a renewal by another request has come to, at this gateway.
	Renewed(name fencing.Name, lease fencing.LeasePublic, out *fencing.Outcome)

	// Kept returns the names of the leases that it keeps: heartbeats are made for them.
	Kept() []fencing.Name

	// Has tells, in a heartbeat, what the store has hang on requests of this gateway, with Entry.Attached,
	// as fencing.Listener.Has does: any of what is said above may have been lost.
	Has(names []fencing.Name, since time.Time, entries []fencing.Entry)
}

// KeepWith has a Keeper hear from now on, and no other.
func (w *Watchdog) KeepWith(k Keeper) { w.keeping.Store(&k) }

func (w *Watchdog) keeper() Keeper { return *w.keeping.Load() }

// nobody keeps no leases.
type nobody struct{}

func (nobody) Replaced(fencing.Name, fencing.Stamp)                        {}
func (nobody) Changed(fencing.Name, fencing.LeasePublic)                   {}
func (nobody) Renewed(fencing.Name, fencing.LeasePublic, *fencing.Outcome) {}
func (nobody) Kept() []fencing.Name                                        { return nil }
func (nobody) Has([]fencing.Name, time.Time, []fencing.Entry)              {}

// Hear has the messages and events of the store come to the Keeper until stop is called, and heartbeats be made
// while it keeps anything.
func (w *Watchdog) Hear() (stop func()) {
	w.listen()
	w.hub.retain()
	l := &w.requests
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.tells && !l.draining {
		w.beat()
	}
	return w.hub.leave
}

// heard passes on what an event says of a lease.
func (w *Watchdog) heard(e fencing.Event) {
	switch e.Kind {
	case fencing.EventBroken, fencing.EventReleased, fencing.EventExpired, fencing.EventNotice:
		w.keeper().Changed(e.Name, e.Lease)
	}
}

// Run calls f in a goroutine that Stop waits for. It reports false, and does not, once the gateway is
// shutting down: Stop may be waiting.
func (w *Watchdog) Run(f func()) bool {
	l := &w.requests
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.draining {
		return false
	}
	w.work.Go(f)
	return true
}
