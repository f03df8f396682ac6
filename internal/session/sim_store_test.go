package session

import (
	"context"
	"sync"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
	"fencepost/internal/watchdog"
)

const (
	// simSkew is the guard of the simulated store: a command that judges the time is refused when it is older.
	simSkew = time.Second

	// simLate is how long a command or an answer is under way at most.
	simLate = 900 * time.Millisecond

	// simCallTimeout is how long a gateway waits for the store, whatever its caller says.
	simCallTimeout = 3 * time.Second
)

// simGateway is a gateway with its way to the store, on which commands, answers, messages and events are late,
// lost, repeated and out of order. It may stand still: then its commands, what it hears and what it says do;
// its timers run on.
type simGateway struct {
	*fencingtest.Model
	sim *simulation
	n   int
	dog *watchdog.Watchdog
	all *Sessions

	mu       sync.Mutex // guards what follows; not held across a call
	listener fencing.Listener
	sinks    []*simSink
	has      func()    // what the heartbeat under way is told
	paused   time.Time // it stands still until then
	deaf     time.Time // what it is told is lost until then
	hurt     time.Time // when a command was refused, lost or left without an answer last
	hangs    time.Time // when the last command that is lost, as nobody notices, is given up
	unheard  time.Time // when it was not told of something last, and not told that it was not
}

// stand waits while the gateway stands still.
func (g *simGateway) stand() {
	for {
		g.mu.Lock()
		until := g.paused
		g.mu.Unlock()
		if !time.Now().Before(until) {
			return
		}
		advance(time.Until(until))
		g.mu.Lock()
		g.hurt = time.Now()
		g.mu.Unlock()
	}
}

// journey is the way of a command or an answer.
type journey struct {
	delay     time.Duration
	lost, cut bool // cut: its sender notices that it is lost
}

func (j journey) travel() bool {
	advance(j.delay)
	return !j.lost
}

func (s *simulation) journey(g *simGateway, what string) journey {
	r := s.dice("journey", g.n, what)
	j := journey{delay: time.Duration(1 + r.Int64N(int64(2*time.Millisecond))), cut: r.IntN(2) == 0}
	if s.storms() {
		switch n := r.IntN(12); {
		case n == 0:
			j.lost = true
		case n < 3:
			j.delay = time.Duration(r.Int64N(int64(simLate)))
		}
	} else if r.IntN(20) == 0 {
		j.delay = time.Duration(r.Int64N(int64(100 * time.Millisecond)))
	}
	return j
}

// simDo makes a call. What it does may be done after its caller has gone, or twice, the first answer
// having been lost.
func simDo[R any](ctx context.Context, g *simGateway, what string, judged bool, do func() (R, error)) (out R, sent time.Time, err error) {
	s := g.sim
	g.stand()
	sent = time.Now()
	if err := ctx.Err(); err != nil && s.oneIn("unsent "+what, 2) {
		return out, sent, fencing.Unavailable(err)
	}
	type answer struct {
		out R
		err error
	}
	there, back, answers := s.journey(g, what), s.journey(g, what+" answered"), make(chan answer, 1)
	if there.lost && !there.cut || back.lost && !back.cut {
		g.mu.Lock()
		g.hangs = sent.Add(simCallTimeout)
		g.mu.Unlock()
	}
	twice := s.storms() && s.oneIn("twice "+what, 12)
	go func() {
		var a answer
		if !there.travel() {
			if there.cut {
				answers <- answer{err: fencing.Unavailable(fencingtest.ErrCut)}
			}
			return
		}
		s.standsStill()
		if judged && time.Since(sent) > simSkew {
			a.err = &fencing.Error{Code: fencing.CodeClockSkew}
		} else if a.out, a.err = do(); twice {
			advance(s.upTo("again "+what, simLate/3))
			if a.out, a.err = do(); a.err != nil {
				e := *fencing.AsError(a.err)
				e.Unanswered = true
				a.err = &e
			}
		}
		if back.travel() {
			answers <- a
		} else if back.cut {
			answers <- answer{err: fencing.Unavailable(fencingtest.ErrCut)}
		}
	}()
	limit := time.NewTimer(simCallTimeout)
	defer limit.Stop()
	select {
	case a := <-answers:
		out, err = a.out, a.err
	case <-ctx.Done():
		err = fencing.Unavailable(ctx.Err())
	case <-limit.C:
		err = fencing.Unavailable(context.DeadlineExceeded)
	}
	g.stand()
	if time.Since(sent) > simLate/2 || err != nil && (fencing.Uncertain(err) || fencing.AsError(err).Unanswered) {
		g.mu.Lock()
		g.hurt = time.Now()
		g.mu.Unlock()
	}
	return out, sent, err
}

func (g *simGateway) outcome(ctx context.Context, what string, judged bool, op any, do func(context.Context) (fencing.Outcome, error)) (fencing.Outcome, error) {
	out, sent, err := simDo(ctx, g, what, judged, func() (fencing.Outcome, error) {
		out, err := do(context.Background())
		if r, acquires := op.(fencing.AcquireRequest); acquires {
			g.sim.taken(&r, &out, err)
		}
		g.sim.note("gateway %d: %T%+v => attached to %q, fresh %t, waits %t, %v", g.n, op, op, out.Holder.Attached, out.Fresh, out.Waits(), err)
		return out, err
	})
	out.Asked = sent
	return out, err
}

// Do implements fencing.Store.
func (g *simGateway) Do(ctx context.Context, op fencing.Op) (fencing.Outcome, error) {
	switch r := op.(type) {
	case fencing.AcquireRequest:
		g.sim.betweenNames(&r)
		op = r
		return g.outcome(ctx, "acquire "+string(r.Name)+string(r.Stamp), true, op, func(ctx context.Context) (fencing.Outcome, error) { return g.Model.Do(ctx, op) })
	case fencing.RenewRequest:
		return g.outcome(ctx, "renew "+string(r.Name)+string(r.Stamp), true, op, func(ctx context.Context) (fencing.Outcome, error) { return g.Model.Do(ctx, op) })
	case fencing.ReleaseRequest:
		return g.outcome(ctx, "release "+string(r.Name)+string(r.Stamp), r.Linger > 0, op, func(ctx context.Context) (fencing.Outcome, error) { return g.Model.Do(ctx, op) })
	case fencing.ConfirmRequest:
		return g.outcome(ctx, "confirm "+string(r.Name)+string(r.Stamp), true, op, func(ctx context.Context) (fencing.Outcome, error) { return g.Model.Do(ctx, op) })
	case fencing.LeaveRequest:
		return g.outcome(ctx, "leave "+string(r.Name)+string(r.Stamp), true, op, func(ctx context.Context) (fencing.Outcome, error) { return g.Model.Do(ctx, op) })
	case fencing.TakeBackRequest:
		return g.outcome(ctx, "take back "+string(r.Name)+string(r.Stamp), false, op, func(ctx context.Context) (fencing.Outcome, error) { return g.Model.Do(ctx, op) })
	}
	return g.Model.Do(ctx, op)
}

// Expire implements fencing.Store.
func (g *simGateway) Expire(ctx context.Context, limit int) (fencing.Expiry, error) {
	out, _, err := simDo(ctx, g, "expire", true, func() (fencing.Expiry, error) { return g.Model.Expire(context.Background(), limit) })
	return out, err
}

// Heartbeat implements fencing.Store. What it tells comes with the answer, or not.
func (g *simGateway) Heartbeat(ctx context.Context, names []fencing.Name) error {
	tell, _, err := simDo(ctx, g, "heartbeat", true, func() (func(), error) {
		g.mu.Lock()
		g.has = nil
		g.mu.Unlock()
		err := g.Model.Heartbeat(context.Background(), names)
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.has, err
	})
	if err == nil && tell != nil {
		tell()
	}
	return err
}

// Listen implements fencing.Store.
func (g *simGateway) Listen(l fencing.Listener) {
	g.mu.Lock()
	g.listener = l
	g.mu.Unlock()
	g.Model.Listen(simListener{l, g})
}

// simListener passes on what the store says, as the simulation lets it.
type simListener struct {
	fencing.Listener
	g *simGateway
}

// Granted implements fencing.Listener.
func (l simListener) Granted(grant fencing.Grant, now fencing.Instant, asked time.Time) {
	l.g.message("granted "+string(grant.Stamp), func() { l.Listener.Granted(grant, now, asked) })
}

// Replaced implements fencing.Listener.
func (l simListener) Replaced(name fencing.Name, stamp fencing.Stamp) {
	l.g.message("replaced "+string(name)+string(stamp), func() { l.Listener.Replaced(name, stamp) })
}

// Ask implements fencing.Listener.
func (l simListener) Ask(name fencing.Name, stamp fencing.Stamp) {
	l.g.message("ask "+string(name)+string(stamp), func() { l.Listener.Ask(name, stamp) })
}

// Has implements fencing.Listener.
func (l simListener) Has(names []fencing.Name, since time.Time, entries []fencing.Entry) {
	l.g.mu.Lock()
	defer l.g.mu.Unlock()
	l.g.has = func() { l.Listener.Has(names, since, entries) }
}

// message has the gateway told of something: once, twice or not at all, sooner or later, so that what
// was said later may come first.
func (g *simGateway) message(what string, tell func()) {
	s, r := g.sim, g.sim.dice("message", g.n, what)
	d, most := time.Duration(r.Int64N(int64(20*time.Millisecond))), simLate
	silent := s.kind.silent && !s.ended() && r.IntN(4) == 0
	if silent || g.isDeaf() {
		s.note("gateway %d is not told: %s (silently: %t)", g.n, what, silent)
		if silent {
			g.mu.Lock()
			g.unheard = time.Now()
			g.mu.Unlock()
		}
		return
	}
	if s.storms() && r.IntN(4) == 0 {
		d = time.Duration(r.Int64N(int64(most)))
	}
	pass := func(d time.Duration) {
		go func() {
			advance(d)
			g.stand()
			s.note("gateway %d is told: %s", g.n, what)
			tell()
		}()
	}
	if pass(d); r.IntN(8) == 0 {
		pass(d + time.Duration(r.Int64N(int64(3*time.Second))))
	}
}

func (g *simGateway) isDeaf() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return time.Now().Before(g.deaf)
}

// misses has the gateway miss all that it is told for so long, and know of it then.
func (g *simGateway) misses(d time.Duration) {
	g.mu.Lock()
	g.deaf = time.Now().Add(d)
	g.mu.Unlock()
	advance(d)
	g.stand()
	g.gap()
}

// gap tells the gateway that it may have missed something.
func (g *simGateway) gap() {
	g.mu.Lock()
	l, sinks := g.listener, g.sinks
	g.mu.Unlock()
	g.sim.note("gateway %d hears of a gap", g.n)
	l.Gap()
	for _, sink := range sinks {
		sink.pipe.send(0, g.stand, sink.to.Gap)
	}
}

// Watch implements fencing.Store.
func (g *simGateway) Watch(sink fencing.EventSink) (stop func()) {
	s := &simSink{to: sink, g: g}
	g.mu.Lock()
	g.sinks = append(g.sinks, s)
	g.mu.Unlock()
	return g.Model.Watch(s)
}

// simSink passes events on, in their order.
type simSink struct {
	to   fencing.EventSink
	g    *simGateway
	pipe simPipe
}

// Event implements fencing.EventSink.
func (s *simSink) Event(e fencing.Event) {
	if !s.g.isDeaf() {
		s.pipe.send(s.g.sim.upTo("event "+e.ID, 20*time.Millisecond), s.g.stand, func() { s.to.Event(e) })
	}
}

// Gap implements fencing.EventSink.
func (s *simSink) Gap() { s.pipe.send(0, s.g.stand, s.to.Gap) }

// simPipe has things happen in the order in which they were sent, each after a delay.
type simPipe struct {
	mu    sync.Mutex
	items []simItem
}

type simItem struct {
	due       time.Time
	stand, do func()
}

// send has do happen after d, and after stand has returned.
func (p *simPipe) send(d time.Duration, stand, do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.items = append(p.items, simItem{time.Now().Add(d), stand, do}); len(p.items) == 1 {
		go p.run()
	}
}

func (p *simPipe) run() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.items) > 0 {
		item := p.items[0]
		p.mu.Unlock()
		advance(time.Until(item.due))
		item.stand()
		item.do()
		p.mu.Lock()
		p.items = p.items[1:]
	}
}
