package watchdog

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

const (
	// simAttempts and simPatience are how often a command is sent, and how long its
	// answer may take each time.
	simAttempts = 3
	simPatience = 700 * time.Millisecond

	// simPage is how many entries a page of a heartbeat has, and simPages how many of them
	// one reads at most.
	simPage  = 2
	simPages = 3

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
	telling       *simTelling   // heartbeats come one after the other
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

func (g *simGateway) gap() { g.hears(func(l fencing.Listener) { l.Gap() }) }

func (g *simGateway) replaced(name fencing.Name, stamp fencing.Stamp) {
	g.hears(func(l fencing.Listener) { l.Replaced(name, stamp) })
}

// simDo sends a command until it is answered; what names it for the dice. All that is
// answered is taken, though it be too late for the caller. An attempt without an answer
// is a gap, and told of as repeated.
func simDo[R any](ctx context.Context, g *simGateway, what string,
	do func(now fencing.Instant, guard fencing.Guard) R, take func(answer R, sent time.Time),
) (answer R, sent time.Time, repeated bool, err error) {
	var none R
	for attempt := range simAttempts {
		if attempt > 0 {
			g.sim.background(g.gap)
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
			g.sim.background(g.gap)
			return none, sent, false, fencing.Unavailable(ctx.Err())
		}
	}
	g.sim.background(g.gap)
	return none, time.Time{}, false, fencing.Unavailable(fencingtest.ErrCut)
}

// simAnswer is what comes back from a step.
type simAnswer struct {
	out fencing.Outcome
	own []fencing.Grant
}

func (g *simGateway) op(ctx context.Context, what string, op fencing.Op) (fencing.Outcome, error) {
	answer, sent, repeated, err := simDo(ctx, g, what, func(now fencing.Instant, guard fencing.Guard) simAnswer {
		out, own := g.sim.server.step(g, now, guard, op)
		return simAnswer{out, own}
	}, func(answer simAnswer, sent time.Time) {
		g.learn(&answer.out, answer.own)
		for _, grant := range answer.own {
			g.hears(func(l fencing.Listener) { l.Granted(grant, answer.out.Now, sent) })
		}
	})
	if err != nil {
		if r, acquires := op.(fencing.AcquireRequest); acquires && !r.Again {
			g.sim.leftOpen(r.Lease.Public())
		}
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
	return fencing.Capabilities{Queue: true, LosesMessages: true, LosesGrants: true, Tells: true}
}

func (g *simGateway) Do(ctx context.Context, op fencing.Op) (fencing.Outcome, error) {
	switch r := op.(type) {
	case fencing.AcquireRequest:
		return g.op(ctx, "acquire "+string(r.Stamp), r)
	case fencing.RenewRequest:
		return g.op(ctx, "renew "+string(r.Lease.Public()), r)
	case fencing.ReleaseRequest:
		return g.op(ctx, "release "+string(r.Lease.Public()), r)
	case fencing.ConfirmRequest:
		if g.sim.flaw.noConfirm {
			return g.sim.unconfirmed(r)
		}
		return g.op(ctx, "confirm "+string(r.Stamp), r)
	case fencing.LeaveRequest:
		return g.op(ctx, "leave "+string(r.Stamp), r)
	case fencing.TakeBackRequest:
		if g.sim.flaw.noTakeBack {
			return fencing.Outcome{Now: 1}, nil
		}
		return g.op(ctx, "takeback "+string(r.Stamp), r)
	}
	return g.Store.Do(ctx, op)
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
	a, _, _, err := simDo(ctx, g, "expire", func(now fencing.Instant, guard fencing.Guard) (a answer) {
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

// simTelling is how far a heartbeat has told what there is for a gateway, some entries a page.
type simTelling struct {
	since time.Time
	after fencing.Entry
}

func compareEntries(a, b fencing.Entry) int {
	switch {
	case a.Provisional == b.Provisional:
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Stamp, b.Stamp))
	case a.Provisional:
		return -1
	}
	return 1
}

// Heartbeat reads a few pages, and the next one goes on where it ended.
func (g *simGateway) Heartbeat(ctx context.Context, names []fencing.Name) error {
	names = slices.Clone(names) // an attempt may outlive the call
	t := g.telling
	if t == nil {
		t = &simTelling{since: time.Now()}
	}
	for page := range simPages {
		entries, more, err := g.beat(ctx, names, *t, page == 0)
		if g.telling = t; err != nil {
			return err
		} else if !more {
			g.telling = nil
			return nil
		}
		t.after = entries[len(entries)-1]
	}
	return nil
}

// beat asks for a page; the first one is the sign of life, and does what is due.
func (g *simGateway) beat(ctx context.Context, names []fencing.Name, t simTelling, first bool) ([]fencing.Entry, bool, error) {
	type answer struct {
		entries []fencing.Entry
		more    bool
		now     fencing.Instant
		own     []fencing.Grant
		err     *fencing.Error
	}
	a, _, _, err := simDo(ctx, g, "heartbeat", func(now fencing.Instant, guard fencing.Guard) answer {
		server := g.sim.server
		if g.sim.flaw.noHeartbeat {
			return answer{now: now}
		}
		a := answer{now: now}
		if a.entries, a.err = fencing.Beat(server.state, now, guard); a.err != nil {
			return a
		}
		a.entries = slices.DeleteFunc(a.entries, func(e fencing.Entry) bool { return compareEntries(e, t.after) <= 0 && t.after.Stamp != "" })
		slices.SortFunc(a.entries, compareEntries)
		a.more = len(a.entries) > simPage
		a.entries = a.entries[:min(len(a.entries), simPage)]
		for _, name := range names {
			if first && server.state.Records[name] != nil && server.state.Due(name) <= now {
				_, own := server.step(g, now, guard, fencing.ExpireRequest{Name: name})
				a.own = append(a.own, own...)
			}
		}
		return a
	}, func(a answer, sent time.Time) {
		g.learn(&fencing.Outcome{}, a.own)
		complete := names
		if a.more {
			complete = nil
		}
		if a.err == nil && !g.sim.flaw.noRecovery && !g.sim.flaw.noHeartbeat {
			g.hears(func(l fencing.Listener) { l.Has(complete, t.since, a.entries) })
		}
		for _, grant := range a.own {
			g.hears(func(l fencing.Listener) { l.Granted(grant, a.now, sent) })
		}
	})
	if err == nil && a.err != nil {
		err = a.err
	}
	return a.entries, a.more, err
}

func (g *simGateway) Examine(context.Context) ([]fencing.Finding, error) { return nil, nil }
