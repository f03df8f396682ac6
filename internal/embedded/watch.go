package embedded

import (
	"crypto/rand"
	"encoding/hex"
	"strconv"

	"fencepost/internal/fencing"
)

// watchers are those who hear of every change.
type watchers struct {
	fencing.Watchers
	run   string // sets the events of this run apart from those of others
	count uint64 // events so far; of the one goroutine that tells
}

func newWatchers() *watchers {
	var b [4]byte
	rand.Read(b[:]) // never fails
	return &watchers{run: hex.EncodeToString(b[:]) + "-"}
}

// tell publishes events, in order. It gives them their ids.
func (w *watchers) tell(events []fencing.Event) {
	if !w.Any() {
		return
	}
	for i := range events {
		w.count++
		events[i].ID = w.run + strconv.FormatUint(w.count, 10)
	}
	w.Tell(events)
}
