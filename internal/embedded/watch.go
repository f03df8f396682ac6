package embedded

import (
	"crypto/rand"
	"encoding/hex"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"fencepost/internal/fencing"
)

// watchers are those who hear of every change.
type watchers struct {
	run   string // sets the events of this run apart from those of others
	count uint64 // events so far; of the one goroutine that tells

	mu    sync.Mutex // held to change sinks
	sinks atomic.Pointer[[]*fencing.EventSink]
}

func newWatchers() *watchers {
	var b [4]byte
	rand.Read(b[:]) // never fails
	return &watchers{run: hex.EncodeToString(b[:]) + "-"}
}

func (w *watchers) any() bool {
	sinks := w.sinks.Load()
	return sinks != nil && len(*sinks) > 0
}

func (w *watchers) add(sink fencing.EventSink) (remove func()) {
	added := &sink
	w.change(func(sinks []*fencing.EventSink) []*fencing.EventSink { return append(sinks, added) })
	return func() {
		w.change(func(sinks []*fencing.EventSink) []*fencing.EventSink {
			return slices.DeleteFunc(sinks, func(s *fencing.EventSink) bool { return s == added })
		})
	}
}

func (w *watchers) change(do func([]*fencing.EventSink) []*fencing.EventSink) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var sinks []*fencing.EventSink
	if old := w.sinks.Load(); old != nil {
		sinks = slices.Clone(*old)
	}
	sinks = do(sinks)
	w.sinks.Store(&sinks)
}

// tell publishes events, in order.
func (w *watchers) tell(events []fencing.Event) {
	if len(events) == 0 || !w.any() {
		return
	}
	sinks := *w.sinks.Load()
	for _, e := range events {
		w.count++
		e.ID = w.run + strconv.FormatUint(w.count, 10)
		for _, sink := range sinks {
			(*sink).Event(e)
		}
	}
}
