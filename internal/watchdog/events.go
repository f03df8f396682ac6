package watchdog

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"fencepost/internal/fencing"
)

const (
	// maxEvents is how many events are kept for those who come back.
	maxEvents = 8192

	// watchLinger is how long events are kept on being heard when nobody needs them:
	// a reader who reconnects meanwhile misses none.
	watchLinger = time.Minute
)

// Notice is an event or, with Resync, that events may have been missed: what was
// known has to be asked for again. After it events go on. Either has an Event.ID to
// come back with; that of a Resync may be known to this gateway only.
type Notice struct {
	Event  fencing.Event
	Resync bool
}

// hub passes the store's events on to subscriptions, and to streams that leases hang on.
// It has no goroutine, nor has a subscription. The store is watched while there is any
// of both.
type hub struct {
	watch  func(fencing.EventSink) (stop func())
	heard  func(fencing.Event) // of every event, before subscriptions do
	missed func()              // after events may have been missed, before subscriptions hear of it
	max    int                 // subscriptions; 0 is any number
	run    string              // begins the ids of Resyncs: no store has such, nor another run

	// switching is held while the store's watch starts or stops, and before mu:
	// the store calls back.
	switching sync.Mutex
	stop      func() // nil while nothing is watched
	lastIdle  *time.Timer

	mu       sync.Mutex // guards what follows
	ring     []Notice   // of maxEvents, once there is one
	end      uint64     // notices so far; the last one is at (end-1) % maxEvents
	changed  chan struct{}
	readers  int // subscriptions
	keepers  int // streams that leases hang on
	draining bool
}

// Subscription reads events. It is used by one goroutine at a time.
type Subscription struct {
	hub    *hub
	prefix string
	next   uint64 // the notice to read next
	resync bool   // comes first
	closed bool
}

// Subscribe reads the events of all names that begin with prefix: with after
// empty from now on, else from the one behind the event of that id, or with a
// Resync first if that is not known any more. CodeTooManyRequests: there are as
// many subscriptions as may be. CodeDraining: the gateway is shutting down. The
// Subscription is to be closed.
func (w *Watchdog) Subscribe(after string, prefix string) (*Subscription, error) {
	h := &w.hub
	h.switching.Lock()
	defer h.switching.Unlock()
	h.mu.Lock()
	switch {
	case h.draining:
		h.mu.Unlock()
		return nil, fencing.DrainingError()
	case h.max > 0 && h.readers >= h.max:
		h.mu.Unlock()
		return nil, &fencing.Error{
			Code: fencing.CodeTooManyRequests, Detail: "this gateway has as many event streams as it allows (FENCEPOST_MAX_STREAMS)", RetryAfter: time.Second,
		}
	}
	h.readers++
	h.mu.Unlock()
	h.start()

	h.mu.Lock()
	defer h.mu.Unlock()
	s := &Subscription{hub: h, prefix: prefix, next: h.end}
	if after != "" {
		s.next, s.resync = h.find(after)
	}
	return s, nil
}

// At returns the id of where the subscription stands, behind what Next and Poll have returned: who
// comes back with it misses nothing of what follows. It is empty where a Resync comes first.
func (s *Subscription) At() string {
	h := s.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.resync || s.next <= h.oldest() {
		return ""
	}
	return h.before(s.next)
}

// before returns the id of the notice before another one. There is one while the store is watched. The
// caller holds mu.
func (h *hub) before(next uint64) string { return h.ring[(next-1)%maxEvents].Event.ID }

// start has the store's events watched. The caller holds switching.
func (h *hub) start() {
	if h.lastIdle != nil {
		h.lastIdle.Stop()
		h.lastIdle = nil
	}
	if h.stop != nil {
		return
	}
	h.add(Notice{Resync: true}) // nobody has listened
	h.stop = h.watch(h)
}

// retain has the store's events watched until leave, for a stream that leases hang on.
func (h *hub) retain() {
	h.switching.Lock()
	defer h.switching.Unlock()
	h.mu.Lock()
	draining := h.draining
	h.keepers++
	h.mu.Unlock()
	if !draining {
		h.start()
	}
}

func (h *hub) leave() {
	h.mu.Lock()
	h.keepers--
	idle := h.unused()
	h.mu.Unlock()
	if idle {
		h.idle()
	}
}

// unused reports whether nobody needs the store's events. The caller holds mu.
func (h *hub) unused() bool { return h.readers+h.keepers == 0 }

// find returns where the notice behind the one of an id is, or the end, and true,
// if it is not known. The caller holds mu.
func (h *hub) find(id string) (next uint64, unknown bool) {
	for at := h.end; at > h.oldest(); at-- {
		if h.ring[(at-1)%maxEvents].Event.ID == id {
			return at, false
		}
	}
	return h.end, true
}

// oldest returns the first notice that is still kept.
func (h *hub) oldest() uint64 {
	if h.end < maxEvents {
		return 0
	}
	return h.end - maxEvents
}

// Event implements fencing.EventSink.
func (h *hub) Event(e fencing.Event) {
	h.heard(e)
	h.add(Notice{Event: e})
}

// Gap implements fencing.EventSink.
func (h *hub) Gap() {
	h.missed()
	h.add(Notice{Resync: true})
}

func (h *hub) add(n Notice) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ring == nil {
		h.ring = make([]Notice, maxEvents)
	}
	if n.Resync {
		n.Event.ID = h.run + strconv.FormatUint(h.end, 10)
	}
	h.ring[h.end%maxEvents] = n
	h.end++
	h.wake()
}

// wake has all look who wait for something new. The caller holds mu.
func (h *hub) wake() {
	if h.changed != nil {
		close(h.changed)
		h.changed = nil
	}
}

// Next waits for the next notice. A subscription that has fallen behind by more
// than is kept gets a Resync. It returns ctx.Err() when ctx ends, also while there is
// always a next one, and CodeDraining when the gateway shuts down or the Subscription
// is closed.
func (s *Subscription) Next(ctx context.Context) (Notice, error) {
	for {
		if ctx.Err() != nil {
			return Notice{}, ctx.Err()
		}
		n, ok, changed, err := s.look()
		if ok || err != nil {
			return n, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Notice{}, ctx.Err()
		}
	}
}

// Poll returns the next notice if there is one already.
func (s *Subscription) Poll() (n Notice, ok bool) {
	n, ok, _, err := s.look()
	return n, ok && err == nil
}

// look returns the next notice, or what to wait for.
func (s *Subscription) look() (n Notice, ok bool, changed <-chan struct{}, err error) {
	h := s.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.draining:
		return n, false, nil, fencing.DrainingError()
	case s.closed:
		return n, false, nil, &fencing.Error{Code: fencing.CodeUnavailable, Detail: "the subscription is closed"}
	}
	if s.resync || s.next < h.oldest() {
		s.resync, s.next = false, h.end
		return Notice{Resync: true, Event: fencing.Event{ID: h.before(h.end)}}, true, nil, nil
	}
	for s.next < h.end {
		n := &h.ring[s.next%maxEvents]
		s.next++
		if n.Resync || strings.HasPrefix(string(n.Event.Name), s.prefix) {
			return *n, true, nil, nil
		}
	}
	if h.changed == nil {
		h.changed = make(chan struct{})
	}
	return n, false, h.changed, nil
}

// Close ends the subscription, and a Next that waits. It may be called twice.
func (s *Subscription) Close() {
	h := s.hub
	h.mu.Lock()
	if s.closed {
		h.mu.Unlock()
		return
	}
	s.closed = true
	h.readers--
	idle := h.unused()
	h.wake()
	h.mu.Unlock()
	if idle {
		h.idle()
	}
}

// idle has the watch stop in a while, unless it is needed again before.
func (h *hub) idle() {
	h.switching.Lock()
	defer h.switching.Unlock()
	if h.stop != nil && h.lastIdle == nil && h.isUnused() {
		h.lastIdle = time.AfterFunc(watchLinger, h.stopIfUnused)
	}
}

func (h *hub) isUnused() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.unused()
}

func (h *hub) stopIfUnused() {
	h.switching.Lock()
	defer h.switching.Unlock()
	if h.lastIdle == nil || !h.isUnused() {
		return
	}
	h.lastIdle = nil
	h.stopWatching()
}

// stopWatching is called with switching held.
func (h *hub) stopWatching() {
	if h.stop != nil {
		h.stop()
		h.stop = nil
	}
}

// drain ends all subscriptions.
func (h *hub) drain() {
	h.mu.Lock()
	h.draining = true
	h.wake()
	h.mu.Unlock()
	h.switching.Lock()
	defer h.switching.Unlock()
	if h.lastIdle != nil {
		h.lastIdle.Stop()
		h.lastIdle = nil
	}
	h.stopWatching()
}
