// Package watchdog does what happens over time: it ends leases whose time has
// run out, driven by the next expiry, parks the requests that wait, takes back
// places and grants that could not be delivered, and passes events on, also to
// who keeps leases alive (Keeper). It decides nothing itself: the store does.
//
// Of each grant to a request that waits exactly one thing becomes: it is
// delivered, or taken back.
package watchdog

import (
	"cmp"
	"crypto/rand"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"fencepost/internal/fencing"
)

const (
	// reapLimit is on how many names one call of Expire ends leases at most, so that a
	// mass expiry does not keep the store from other work for long.
	reapLimit = 256

	// reapSlack is added to the next expiry, so that a timer that fires a little
	// early does not find the lease still live.
	reapSlack = time.Millisecond

	// callTimeout bounds one call to the store.
	callTimeout = 3 * time.Second

	minBackoff = 50 * time.Millisecond
	maxBackoff = time.Second
)

// Options says how to run a Watchdog.
type Options struct {
	Logger *slog.Logger // nil discards

	// MaxSkew is the store's guard against late commands: a take-back is
	// repeated once after twice this time, so that a late acquire can't come to
	// life behind it. 0 is for a store that has no late commands: no repeat.
	MaxSkew time.Duration

	MaxWaiters       int // parked requests of this process; 0 is any number
	MaxSubscriptions int // 0 is any number

	Strict bool // there is a Refusal while what is known of the store endangers a promise

	Examine time.Duration // how long an examination of the store is good for; 0 is a minute

	Observer Observer // nil is none
}

// Watchdog is a fencing.Store that wraps another one and looks after its
// leases between Start and Stop.
type Watchdog struct {
	fencing.Store
	log     *slog.Logger
	maxSkew time.Duration
	doubts  bool // it asks again for what an old answer says: see recent.go
	tells   bool // its heartbeats do: see keeper.go

	strict       bool
	examineEvery time.Duration
	examined     atomic.Pointer[examination] // nil until the first one
	examining    chan struct{}               // holds one while the store is examined
	outdated     chan struct{}               // tells that what was examined is old

	origin time.Time     // what next counts from
	next   atomic.Int64  // when the reaper wakes, in nanoseconds since origin
	sooner chan struct{} // tells the reaper that next was moved forward

	calls  chan struct{} // a place each for the take-backs that ask the store
	asking chan struct{} // a place each for the requests that ask a store without a queue again
	gap    chan struct{} // tells heartbeats that messages may have been lost
	work   sync.WaitGroup
	stop   chan struct{}

	mu         sync.Mutex // guards what follows
	started    bool
	stopped    bool
	stopBy     time.Time // when last attempts end, once stopped
	takeBacks  map[key]*takeBack
	takingBack bool // retryTakeBacks runs

	requests   registry
	keeping    atomic.Pointer[Keeper]
	maxWaiters int
	observer   Observer
	listening  sync.Once
	drained    chan struct{} // closed by Drain
	hub        hub
}

// New returns a watchdog over store.
func New(store fencing.Store, o Options) *Watchdog {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Observer == nil {
		o.Observer = silent{}
	}
	can := store.Capabilities()
	doubts := can.LosesGrants || can.LosesMessages
	if doubts {
		store = recent{store}
	}
	w := &Watchdog{
		Store: store, log: o.Logger, maxSkew: o.MaxSkew, doubts: doubts, tells: can.Tells, strict: o.Strict, examineEvery: cmp.Or(o.Examine, examinePause), origin: time.Now(),
		outdated: make(chan struct{}, 1), examining: make(chan struct{}, 1),
		sooner: make(chan struct{}, 1), stop: make(chan struct{}),
		calls: make(chan struct{}, maxTakeBackCalls), gap: make(chan struct{}, 1), asking: make(chan struct{}, maxAsking),
		takeBacks: map[key]*takeBack{}, maxWaiters: o.MaxWaiters, observer: o.Observer, drained: make(chan struct{}),
		hub: hub{watch: store.Watch, max: o.MaxSubscriptions, run: "gap." + rand.Text() + "."},
	}
	w.requests = newRegistry(can, w.origin)
	w.KeepWith(nobody{})
	w.hub.heard, w.hub.missed = w.heard, w.beatNow
	return w
}

// Start begins to reap and to examine the store. Calling it again, or after Stop,
// does nothing.
func (w *Watchdog) Start() {
	w.listen()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.started || w.stopped {
		return
	}
	w.started = true
	w.work.Go(w.reap)
	w.work.Go(w.examine)
}

// Stop drains, ends the reaping, lets every take-back make one last attempt, and
// waits for all of it; attempts that a store out of reach keeps from beginning within
// 10 s are left out. It may be called twice, and before Start.
func (w *Watchdog) Stop() {
	w.Drain()
	w.mu.Lock()
	if !w.stopped {
		w.stopped, w.stopBy = true, time.Now().Add(stopPatience)
		close(w.stop)
	}
	w.mu.Unlock()
	w.work.Wait()
}

// Close stops the watchdog, and then closes the store.
func (w *Watchdog) Close() error {
	w.Stop()
	return w.Store.Close()
}

// sleep waits for d and reports false if the watchdog was stopped meanwhile.
func (w *Watchdog) sleep(d time.Duration) bool { return w.sleepUnless(nil, d) }

// sleepUnless is sleep that ends sooner when it is woken.
func (w *Watchdog) sleepUnless(woken <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-woken:
		return true
	case <-timer.C:
		return true
	case <-w.stop:
		return false
	}
}
