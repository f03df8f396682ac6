package fencing

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Watchers are those who hear of every change of a store that tells of them itself. The zero
// value is nobody. All methods may be called at once.
type Watchers struct {
	mu    sync.Mutex // held to change sinks
	sinks atomic.Pointer[[]*EventSink]
}

// Any reports whether there is anybody.
func (w *Watchers) Any() bool { return len(w.all()) > 0 }

// Add has a sink hear of what is told from now on, until remove.
func (w *Watchers) Add(sink EventSink) (remove func()) {
	added := &sink
	w.change(func(sinks []*EventSink) []*EventSink { return append(sinks, added) })
	return func() {
		w.change(func(sinks []*EventSink) []*EventSink {
			return slices.DeleteFunc(sinks, func(s *EventSink) bool { return s == added })
		})
	}
}

// Tell tells all of events, in order.
func (w *Watchers) Tell(events []Event) {
	sinks := w.all()
	for i := range events {
		for _, sink := range sinks {
			(*sink).Event(events[i])
		}
	}
}

// Gap tells all that events were lost.
func (w *Watchers) Gap() {
	for _, sink := range w.all() {
		(*sink).Gap()
	}
}

func (w *Watchers) all() []*EventSink {
	if sinks := w.sinks.Load(); sinks != nil {
		return *sinks
	}
	return nil
}

func (w *Watchers) change(do func([]*EventSink) []*EventSink) {
	w.mu.Lock()
	defer w.mu.Unlock()
	sinks := do(slices.Clone(w.all()))
	w.sinks.Store(&sinks)
}
