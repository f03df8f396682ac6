package watchdog

import "time"

// Observer hears what is worth counting about requests that wait. Its methods are
// called from many goroutines and must return at once.
type Observer interface {
	// Waited tells how long a parked request waited, and what it came to: granted,
	// left (its client went away) or the code it was refused with.
	Waited(d time.Duration, outcome string)

	// HandedOver tells how long it took from the hand-off in the store until the
	// waiting request had its lease.
	HandedOver(latency time.Duration)

	// TakenBack tells of a grant whose waiting request had gone before it came.
	TakenBack()

	// FoundLost tells of a grant that no message or answer told of, but a heartbeat found.
	FoundLost()

	// Dropped tells that a request was not let into the queue, or lost its place
	// there: see the constants of Dropped.
	Dropped(reason string)

	// Waiting tells that so many more requests are parked, or fewer.
	Waiting(delta int)
}

// The reasons of Observer.Dropped.
const (
	DroppedNameFull    = "name_full"    // as many wait for the name as may
	DroppedProcessFull = "process_full" // Options.MaxWaiters
	DroppedDraining    = "draining"     // the gateway is shutting down
	DroppedLapsed      = "lapsed"       // the store had taken this gateway for dead; the request joined anew
)

// The outcomes of Observer.Waited beside the codes.
const (
	WaitedGranted = "granted"
	WaitedLeft    = "left"
)

// silent is the Observer of who wants none.
type silent struct{}

func (silent) Waited(time.Duration, string) {}
func (silent) HandedOver(time.Duration)     {}
func (silent) TakenBack()                   {}
func (silent) FoundLost()                   {}
func (silent) Dropped(string)               {}
func (silent) Waiting(int)                  {}
