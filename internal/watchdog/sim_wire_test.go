package watchdog

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"fencepost/internal/fencing"
)

const (
	// simAttempts and simPatience are how often a command is sent, and how long its
	// answer may take each time.
	simAttempts = 3
	simPatience = 700 * time.Millisecond

	// simLongest is how long a command may be on its way.
	simLongest = 4 * time.Second
)

var errGatewayDead = errors.New("the gateway is dead")

// simGateway is the store as a gateway has it: commands are stamped with the
// gateway's clock, late, lost, answered to nobody, and sent again.
type simGateway struct {
	fencing.Store // nil: what a watchdog does not need
	sim           *simulation
	id            fencing.Gateway
	dog           *Watchdog
	skew          time.Duration // its clock is ahead of true time

	mu        sync.Mutex
	listener  fencing.Listener
	floor     fencing.Token
	longest   time.Duration
	server    int       // whom it has a connection to
	paused    time.Time // until when it stands still
	killed    bool
	lastHeard time.Time     // when the server last got a command
	hung      chan struct{} // closed when it dies
}

func (g *simGateway) dead() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.killed
}

func (g *simGateway) heard(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lastHeard = now
}

func (g *simGateway) silentFor() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return time.Since(g.lastHeard)
}

func (g *simGateway) highest() fencing.Token {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.floor
}

func (g *simGateway) longestTTL() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.longest
}

// meets reports whether a server is new to the gateway.
func (g *simGateway) meets(server int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	fresh := g.server != server
	g.server = server
	return fresh
}

// stand waits while the gateway stands still.
func (g *simGateway) stand() {
	for {
		g.mu.Lock()
		wait := time.Until(g.paused)
		g.mu.Unlock()
		if wait <= 0 {
			return
		}
		advance(wait)
	}
}

// hears calls the listener when the gateway can hear.
func (g *simGateway) hears(what func(fencing.Listener)) {
	g.stand()
	g.mu.Lock()
	l := g.listener
	if g.killed {
		l = nil
	}
	g.mu.Unlock()
	if l != nil {
		what(l)
	}
}

func (g *simGateway) recheck(names []fencing.Name) {
	if !g.sim.flaw.noRecheck {
		g.hears(func(l fencing.Listener) { l.Recheck(names) })
	}
}

func (g *simGateway) replaced(name fencing.Name, stamp fencing.Stamp) {
	g.hears(func(l fencing.Listener) { l.Replaced(name, stamp) })
}

// search has the waiters on names looked after, for a command without an answer may
// have handed the lock on to them: now, and until it can't be on its way any more.
func (g *simGateway) search(names []fencing.Name) {
	g.sim.background(func() {
		for waited := time.Duration(0); waited <= simLongest; waited += fencing.HeartbeatInterval {
			g.recheck(names)
			advance(fencing.HeartbeatInterval)
		}
	})
}

// simDo sends a command until it is answered; what names it for the dice. All that is
// answered is taken, though it be too late for the caller. An attempt without an answer
// has the waiters on names looked after, and is told of as repeated.
func simDo[R any](ctx context.Context, g *simGateway, what string, names []fencing.Name,
	do func(now fencing.Instant, guard fencing.Guard) R, take func(answer R, sent time.Time),
) (answer R, sent time.Time, repeated bool, err error) {
	var none R
	for attempt := range simAttempts {
		if attempt > 0 {
			g.search(names)
		}
		g.stand()
		if g.dead() {
			return none, time.Time{}, false, fencing.Unavailable(errGatewayDead)
		}
		sent, answers := time.Now(), make(chan R, 1)
		there, back := g.sim.journey(g, what), g.sim.journey(g, what+" answered")
		g.sim.background(func() {
			if !there.travel() {
				return
			}
			var answer R
			if !g.sim.server.do(simCall{g, sent, what}, func(now fencing.Instant, guard fencing.Guard) { answer = do(now, guard) }) {
				return
			}
			if back.travel() {
				g.stand()
				take(answer, sent)
				answers <- answer
			}
		})
		select {
		case answer := <-answers:
			return answer, sent, attempt > 0, nil
		case <-time.After(simPatience):
		case <-ctx.Done():
			g.search(names)
			return none, sent, false, fencing.Unavailable(ctx.Err())
		}
	}
	g.search(names)
	return none, time.Time{}, false, fencing.Unavailable(errCut)
}

// simAnswer is what comes back from a step.
type simAnswer struct {
	out fencing.Outcome
	own []fencing.Grant
}

func (g *simGateway) op(ctx context.Context, what string, op fencing.Op) (fencing.Outcome, error) {
	answer, sent, repeated, err := simDo(ctx, g, what, []fencing.Name{op.LockName()}, func(now fencing.Instant, guard fencing.Guard) simAnswer {
		out, own := g.sim.server.step(g, now, guard, op)
		return simAnswer{out, own}
	}, func(answer simAnswer, sent time.Time) {
		g.learn(&answer.out, answer.own)
		for _, grant := range answer.own {
			g.hears(func(l fencing.Listener) { l.Granted(grant, answer.out.Now, sent) })
		}
	})
	if err != nil {
		return fencing.Outcome{}, err
	}
	answer.out.Asked = sent
	if _, acquires := op.(fencing.AcquireRequest); acquires && repeated && answer.out.Err != nil {
		refusal := *answer.out.Err
		refusal.Unanswered = true
		answer.out.Err = &refusal
	}
	return answer.out.Result()
}

// learn notes the highest token and the longest TTL.
func (g *simGateway) learn(out *fencing.Outcome, own []fencing.Grant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.floor, g.longest = max(g.floor, out.Holder.Token), max(g.longest, out.Holder.TTL)
	for i := range own {
		g.floor, g.longest = max(g.floor, own[i].Holder.Token), max(g.longest, own[i].Holder.TTL)
	}
	if out.Lock != nil {
		g.floor = max(g.floor, out.Lock.LastToken)
	}
}

func (g *simGateway) Capabilities() fencing.Capabilities {
	return fencing.Capabilities{Queue: true, Forgets: true}
}

func (g *simGateway) Acquire(ctx context.Context, r fencing.AcquireRequest) (fencing.Outcome, error) {
	return g.op(ctx, "acquire "+string(r.Stamp), r)
}

func (g *simGateway) Renew(ctx context.Context, r fencing.RenewRequest) (fencing.Outcome, error) {
	return g.op(ctx, "renew "+string(r.Lease.Public()), r)
}

func (g *simGateway) Release(ctx context.Context, r fencing.ReleaseRequest) (fencing.Outcome, error) {
	return g.op(ctx, "release "+string(r.Lease.Public()), r)
}

func (g *simGateway) Confirm(ctx context.Context, r fencing.ConfirmRequest) (fencing.Outcome, error) {
	if g.sim.flaw.noConfirm {
		return g.sim.unconfirmed(r)
	}
	return g.op(ctx, "confirm "+string(r.Stamp), r)
}

func (g *simGateway) Leave(ctx context.Context, r fencing.LeaveRequest) (fencing.Outcome, error) {
	return g.op(ctx, "leave "+string(r.Stamp), r)
}

func (g *simGateway) TakeBack(ctx context.Context, r fencing.TakeBackRequest) (fencing.Outcome, error) {
	if g.sim.flaw.noTakeBack {
		return fencing.Outcome{Now: 1}, nil
	}
	return g.op(ctx, "takeback "+string(r.Stamp), r)
}

func (g *simGateway) Listen(l fencing.Listener) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.listener = l
}

func (g *simGateway) Watch(fencing.EventSink) func() { return func() {} }

func (g *simGateway) Expire(ctx context.Context, limit int) (fencing.Expiry, error) {
	type answer struct {
		expiry fencing.Expiry
		now    fencing.Instant
		own    []fencing.Grant
		err    *fencing.Error
	}
	a, _, _, err := simDo(ctx, g, "expire", nil, func(now fencing.Instant, guard fencing.Guard) (a answer) {
		server := g.sim.server
		a.now = now
		if guard.Sent != 0 && now.Sub(guard.Sent).Abs() > guard.MaxSkew {
			return answer{err: fencing.SkewError(guard, now)}
		}
		for i, name := range server.due(now) {
			if i == limit {
				break
			}
			out, own := server.step(g, now, guard, fencing.ExpireRequest{Name: name})
			a.expiry.Ended, a.own = append(a.expiry.Ended, out.Ended...), append(a.own, own...)
		}
		a.expiry.Next = time.Second
		for name := range server.state.Records {
			a.expiry.Next = min(a.expiry.Next, max(time.Millisecond, server.state.Due(name).Sub(now)))
		}
		server.state.PruneTombstones(now)
		return a
	}, func(a answer, sent time.Time) {
		g.learn(&fencing.Outcome{}, a.own)
		for _, grant := range a.own {
			g.hears(func(l fencing.Listener) { l.Granted(grant, a.now, sent) })
		}
	})
	switch {
	case err != nil:
		return fencing.Expiry{}, err
	case a.err != nil:
		return fencing.Expiry{}, a.err
	}
	return a.expiry, nil
}

func (g *simGateway) Heartbeat(ctx context.Context, names []fencing.Name) error {
	type answer struct {
		pulse fencing.Pulse
		now   fencing.Instant
		own   []fencing.Grant
	}
	names = slices.Clone(names) // an attempt may outlive the call
	a, _, _, err := simDo(ctx, g, "heartbeat", names, func(now fencing.Instant, guard fencing.Guard) answer {
		server := g.sim.server
		if g.sim.flaw.noHeartbeat {
			return answer{now: now}
		}
		a := answer{pulse: fencing.Beat(server.state, now, guard), now: now}
		if a.pulse.Err != nil {
			return a
		}
		for _, name := range names {
			if server.state.Records[name] != nil && server.state.Due(name) <= now {
				_, own := server.step(g, now, guard, fencing.ExpireRequest{Name: name})
				a.own = append(a.own, own...)
			}
		}
		return a
	}, func(a answer, sent time.Time) {
		g.learn(&fencing.Outcome{}, a.own)
		if !g.sim.flaw.noRecheck {
			for _, grant := range a.pulse.Grants {
				g.hears(func(l fencing.Listener) { l.Granted(grant, a.now, time.Time{}) })
			}
		}
		for _, grant := range a.own {
			g.hears(func(l fencing.Listener) { l.Granted(grant, a.now, sent) })
		}
	})
	switch {
	case err != nil:
		return err
	case a.pulse.Err != nil:
		return a.pulse.Err
	}
	if a.pulse.Lapsed {
		g.recheck(nil)
	}
	return nil
}

func (g *simGateway) Examine(context.Context) ([]fencing.Finding, error) { return nil, nil }
