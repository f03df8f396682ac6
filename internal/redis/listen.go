package redis

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"fencepost/internal/fencing"

	goredis "github.com/redis/go-redis/v9"
)

const (
	// pingInterval is how often Redis is made to say something.
	pingInterval = 500 * time.Millisecond

	// maxSilence is how long Redis may say nothing before the connection counts
	// as dead. That is noticed within 2 s, whatever state the network left it in.
	maxSilence = 1500 * time.Millisecond

	// maxJoinDelay is how long a request that is to wait is held back at most
	// until its gateway can be told of what becomes of it.
	maxJoinDelay = 500 * time.Millisecond

	firstReconnect = 10 * time.Millisecond
	lastReconnect  = 500 * time.Millisecond

	// stableAfter is how long a connection lasts that was worth having: the next
	// attempt then comes at once.
	stableAfter = 2 * time.Second
)

var errNotSubscribed = errors.New("redis: messages can't be received now")

// endedContext is a context that has ended. Reading and writing only look at a deadline,
// but the reconnecting that the library does by itself fails with it: that is to
// be done here, with pauses and with an end.
var endedContext = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// subscription is the receiving side of the messages of all gateways: one connection
// of its own, so that nothing that waits takes one from the commands. A message
// is lost only with the connection, and every time a channel has been subscribed
// whoever hears it is told that some may have been.
type subscription struct {
	topology *topology
	logger   *slog.Logger
	clock    func() time.Time
	channel  string // of this gateway

	cancel    context.CancelFunc
	ctx       context.Context // of the connection; ends with close
	running   sync.WaitGroup
	changed   chan struct{}        // room for one: other channels are wanted
	confirmed atomic.Bool          // Redis has confirmed that it tells what is said on channel
	at        atomic.Pointer[node] // where the last connection was made

	mu          sync.Mutex
	started     bool
	listener    fencing.Listener
	attempted   chan struct{} // closed while hearing, and from a failed attempt on: there is nothing to wait for
	attempting  bool          // attempted is open
	downLogged  bool          // logged
	sinks       []*watcher    // replaced, never changed
	unwatchedAt time.Time     // when the last sink did

	refusal atomic.Pointer[fencing.Fault] // why nothing is heard, if that can be told

	unreadableLogged sync.Once // logged
}

func newSubscription(topology *topology, logger *slog.Logger, clock func() time.Time, channel string) *subscription {
	l := &subscription{
		topology: topology, logger: logger, clock: clock, channel: channel,
		changed: make(chan struct{}, 1), attempted: make(chan struct{}), attempting: true,
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// Listen is fencing.Store.Listen.
func (s *Store) Listen(listener fencing.Listener) {
	l := s.subscription
	l.mu.Lock()
	defer l.mu.Unlock()
	l.listener = listener
	l.want()
}

// awaitSubscription returns once this gateway would hear of a grant to a request of its
// own, or fails if that can't be soon. The request may then go on: heartbeats
// find what was not heard.
func (s *Store) awaitSubscription(ctx context.Context) error {
	l := s.subscription
	if l.active() {
		return nil
	}
	l.mu.Lock()
	listener, attempted := l.listener, l.attempted
	l.mu.Unlock()
	if listener == nil {
		return nil
	}
	limit := time.NewTimer(maxJoinDelay)
	defer limit.Stop()
	select {
	case <-attempted:
	case <-limit.C:
	case <-ctx.Done():
	}
	if !l.active() {
		return errNotSubscribed
	}
	return nil
}

// active reports whether messages are heard, and at a node where they are
// published.
func (l *subscription) active() bool { return l.confirmed.Load() && !l.at.Load().retired() }

// want has the connection look at what is wanted of it. l.mu is held.
func (l *subscription) want() {
	if !l.started && l.ctx.Err() == nil {
		l.started = true
		l.running.Go(l.run)
	}
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// close ends the connection, and returns when nobody is told anything any more.
func (l *subscription) close() {
	l.mu.Lock()
	l.cancel()
	l.mu.Unlock()
	l.running.Wait()
	l.onFailure(nil)
}

// run keeps a connection while any channel is wanted.
func (l *subscription) run() {
	for attempt := 0; l.ctx.Err() == nil; attempt++ {
		for len(l.channels()) == 0 {
			select {
			case <-l.changed:
			case <-l.ctx.Done():
				return
			}
		}
		began := time.Now()
		err := l.connect()
		if mayHaveMoved(err) {
			l.topology.refresh()
		}
		l.onFailure(err)
		if time.Since(began) > stableAfter {
			attempt = -1
			continue
		}
		backoff := min(firstReconnect<<min(attempt, 10), lastReconnect)
		wait := time.NewTimer(backoff/2 + rand.N(backoff/2))
		select {
		case <-wait.C:
		case <-l.ctx.Done():
		}
		wait.Stop()
	}
}

// connect makes one connection and keeps it until it breaks, is no longer wanted,
// or is to a Redis that is no master any more: what is published now may not be
// heard there.
func (l *subscription) connect() error {
	n := l.topology.subscriptionNode()
	if n == nil {
		return errNoMaster
	}
	l.at.Store(n)
	pubsub := n.client.Subscribe(l.ctx) // to nothing yet: that does not connect
	defer pubsub.Close()
	have := l.channels()
	if err := pubsub.Subscribe(l.ctx, have...); err != nil {
		return err
	}
	broken := make(chan error, 1)
	var receiving sync.WaitGroup
	receiving.Go(func() { broken <- l.receive(pubsub) })
	defer receiving.Wait()
	defer pubsub.Close() // wakes it

	ping := time.NewTicker(pingInterval)
	defer ping.Stop()
	for {
		var err error
		select {
		case err = <-broken:
			return err
		case <-l.ctx.Done():
			return nil
		case <-n.gone:
			return errRetired
		case <-l.changed:
		case <-ping.C:
			err = pubsub.Ping(endedContext)
		}
		want := l.channels()
		if len(want) == 0 {
			return nil
		}
		for _, channel := range want {
			if !slices.Contains(have, channel) {
				err = cmp.Or(err, pubsub.Subscribe(endedContext, channel))
			}
		}
		for _, channel := range have {
			if !slices.Contains(want, channel) {
				err = cmp.Or(err, pubsub.Unsubscribe(endedContext, channel))
			}
		}
		if err != nil {
			return err
		}
		have = want
	}
}

// receive passes on what Redis says. A connection on which it says nothing for
// long is of no use any more: it may be dead, and its next words cut in two.
func (l *subscription) receive(pubsub *goredis.PubSub) error {
	for {
		message, err := pubsub.ReceiveTimeout(endedContext, maxSilence)
		if err != nil {
			return err
		}
		switch m := message.(type) {
		case *goredis.Subscription:
			if m.Kind == "subscribe" {
				l.onSubscribed(m.Channel)
			}
		case *goredis.Message:
			if m.Channel == l.channel {
				l.onMessage(m.Payload)
			} else {
				l.onEvents(m.Payload)
			}
		}
	}
}

// channels returns what is wanted now.
func (l *subscription) channels() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var want []string
	if l.listener != nil {
		want = append(want, l.channel)
	}
	if l.watched() {
		want = append(want, eventsChannel)
	}
	return want
}

// onSubscribed tells whoever hears a channel that what was said on it before now
// was missed.
func (l *subscription) onSubscribed(channel string) {
	l.refusal.Store(nil)
	if channel == eventsChannel {
		l.gap()
		return
	}
	l.mu.Lock()
	listener, down := l.listener, l.downLogged
	l.confirmed.Store(true)
	l.endAttempt()
	l.downLogged = false
	l.mu.Unlock()
	if down {
		l.logger.Info("messages from other gateways are received again")
	}
	listener.Gap()
}

// onFailure notes that there is no connection, for the reason err.
func (l *subscription) onFailure(err error) {
	err = l.topology.diagnose(err)
	l.refusal.Store(fencing.FaultOf(err))
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.confirmed.Swap(false) && l.ctx.Err() == nil {
		l.attempted, l.attempting = make(chan struct{}), true // the next attempt may do
	} else {
		l.endAttempt()
	}
	if err != nil && l.ctx.Err() == nil && !l.downLogged {
		l.downLogged = true
		l.logger.Warn("messages from other gateways can't be received; waiting requests are served by heartbeats until they can", "error", err)
	}
}

// endAttempt lets those go who wait for the outcome of an attempt. l.mu is held.
func (l *subscription) endAttempt() {
	if l.attempting {
		l.attempting = false
		close(l.attempted)
	}
}

// onMessage passes on a message to this gateway.
func (l *subscription) onMessage(payload string) {
	l.mu.Lock()
	listener := l.listener
	l.mu.Unlock()
	m, err := decodeGatewayMessage(payload)
	if err != nil {
		l.logUnreadable(err)
		listener.Gap()
		return
	}
	for _, g := range m.grants {
		listener.Granted(g, m.now, time.Time{})
	}
	for _, r := range m.replaced {
		listener.Replaced(r.name, r.stamp)
	}
	for _, r := range m.ask {
		listener.Ask(r.name, r.stamp)
	}
}

// logUnreadable tells of a message that can't be read, once: the next will be alike.
func (l *subscription) logUnreadable(err error) {
	l.unreadableLogged.Do(func() {
		l.logger.Error("a message from another gateway can't be decoded; is another version running on the same Redis?", "error", err)
	})
}
