package redis

import (
	"slices"
	"sync"
	"time"

	"fencepost/internal/fencing"
)

// watchGrace is how long events are still asked for when nobody watches any
// more: a page that is loaded again then starts without a gap.
const watchGrace = time.Minute

// watcher is one call of Watch.
type watcher struct{ sink fencing.EventSink }

// Watch is fencing.Store.Watch. A call of sink that is under way may end after
// stop has returned.
func (s *Store) Watch(sink fencing.EventSink) (stop func()) {
	l := s.subscription
	w := &watcher{sink}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sinks = append(slices.Clip(l.sinks), w)
	l.want()
	return sync.OnceFunc(func() { l.unwatch(w) })
}

func (l *subscription) unwatch(w *watcher) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sinks = slices.DeleteFunc(slices.Clone(l.sinks), func(other *watcher) bool { return other == w })
	if len(l.sinks) == 0 {
		l.unwatchedAt = l.clock()
	}
}

// watched reports whether events are wanted. l.mu is held.
func (l *subscription) watched() bool {
	return len(l.sinks) > 0 || !l.unwatchedAt.IsZero() && l.clock().Sub(l.unwatchedAt) < watchGrace
}

func (l *subscription) watching() []*watcher {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sinks
}

// onEvents passes on a message that tells of events.
func (l *subscription) onEvents(payload string) {
	sinks := l.watching()
	events, err := decodeEventsMessage(payload)
	if err != nil {
		l.logUnreadable(err)
		l.gap()
		return
	}
	own := ""
	if l.topology.location.kind == kindCluster { // what two masters publish comes elsewhere in another order
		own = "-" + l.topology.store.handle
	}
	for _, event := range events {
		event.ID += own
		for _, w := range sinks {
			w.sink.Event(event)
		}
	}
}

// gap tells everybody who watches that events may have been lost.
func (l *subscription) gap() {
	for _, w := range l.watching() {
		w.sink.Gap()
	}
}
