// Package clients holds client.Do and lockctl run to what they promise: the work has
// stopped before another may have the lock, whatever goes wrong. One holds the lock, the
// next one waits for it at another gateway, and something fails.
package clients

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"fencepost/client"
	"fencepost/internal/redis/redistest"
	"fencepost/verify/check"
	"fencepost/verify/system"
)

const (
	// ttl of all leases here: a machine that is busy may keep a process waiting for some
	// hundred milliseconds.
	ttl = 2 * time.Second

	// patience bounds every wait for a condition.
	patience = 60 * time.Second

	// roundsPerLane is how many rounds justify a system of their own beside the others, as
	// long as there are fewer than lanes.
	roundsPerLane = 3
	lanes         = 4
)

// Holder is what holds the lock.
type Holder string

// The holders: client.Do of this process, and lockctl run.
const (
	Do      Holder = "client.Do"
	Lockctl Holder = "lockctl run"
)

// Rounds is how much is done.
type Rounds struct {
	Holder Holder
	Rounds int
}

// lane is a system with its clients.
type lane struct {
	s     *system.System
	front *redistest.Proxy // before the first gateway: the holder's way to it
	next  *client.Client   // at the second gateway
	r     *check.Result
	tally *tally
}

// tally is what all rounds have come to.
type tally struct {
	mu       sync.Mutex
	smallest time.Duration
	lost     int // rounds in which the lease was not kept
	kept     int
	stopped  int // rounds in which the work outlived its lease, for the holder itself was stopped
	starved  int // rounds in which it did by less than the machine has kept this process waiting
	margins  map[string]time.Duration
	stalls   *stalls
}

// Run plays the rounds, with each fault in turn.
func (o Rounds) Run(ctx context.Context, r *check.Result) error {
	all := faults(o.Holder)
	t := &tally{smallest: time.Hour, margins: map[string]time.Duration{}}
	work := make(chan int, o.Rounds)
	for i := range o.Rounds {
		work <- i
	}
	close(work)
	errs := make([]error, max(1, min(lanes, o.Rounds/roundsPerLane)))
	random := r.Random(-1)
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	watching := watchStalls()
	t.stalls = watching
	var running sync.WaitGroup
	for n := range errs {
		running.Go(func() {
			l, err := newLane(r, t)
			if err != nil {
				errs[n] = err
				return
			}
			defer func() { errs[n] = errors.Join(errs[n], l.close()) }()
			for i := range work {
				if ctx.Err() != nil {
					return
				}
				f := all[i%len(all)]
				if err := l.round(ctx, o.Holder, f, i, r.Random(i)); err != nil {
					errs[n] = fmt.Errorf("round %d, %s: %w", i, f.name, err)
					return
				}
				r.Reach("rounds", 1, 1)
			}
		})
	}
	running.Wait()
	watching.stop()
	r.Count("faults", len(all))
	r.Count("leases lost", t.lost)
	r.Count("kept", t.kept)
	if o.Holder == Lockctl {
		r.Count("overlaps while lockctl was stopped", t.stopped)
	}
	r.Count("overlaps shorter than the machine has kept this process waiting", t.starved)
	r.Count("smallest margin", t.smallest)
	r.Count("longest wait for a processor", t.stalls.longestSince(time.Time{}))
	for _, f := range all {
		if m, ok := t.margins[f.name]; ok {
			r.Note("%s: smallest margin %s", f.name, m.Round(time.Millisecond))
		}
	}
	if t.lost*2 < o.Rounds {
		r.Violation("only %d leases were lost in %d rounds: this proves little", t.lost, o.Rounds)
	}
	return errors.Join(errs...)
}

func newLane(r *check.Result, t *tally) (l *lane, err error) {
	l = &lane{r: r, tally: t}
	if l.s, err = system.Start(system.Options{Gateways: 2, Env: []string{"FENCEPOST_DEFAULT_TTL=2s", "FENCEPOST_MAX_TTL=4s"}}); err != nil {
		return nil, err
	}
	if l.front, err = l.s.Front(l.s.Gateways[0]); err == nil {
		l.next, err = client.New(client.Options{Addresses: []string{l.s.Gateways[1].URL()}, Owner: "next", Patience: patience})
	}
	if err != nil {
		return nil, errors.Join(err, l.s.Close())
	}
	return l, nil
}

func (l *lane) close() error { return errors.Join(l.next.Close(), l.s.Close()) }

// holder is one that has the lock.
type holder interface {
	// ended is closed when the work has stopped; at tells when.
	ended() <-chan struct{}
	at() time.Time

	// finish ends the work of a lease that was kept.
	finish()

	// verdict waits until the holder is gone and returns what is wrong with the way it went.
	verdict(survived bool) error

	keeps() bool // it does not release when its work has ended, so that what ends its lease is time
	token() int64
}

// round plays one fault.
func (l *lane) round(ctx context.Context, kind Holder, f fault, i int, random *rand.Rand) error {
	name := fmt.Sprintf("round/%d", i)
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	if err := l.s.AwaitReady(patience); err != nil {
		return err
	}
	var h holder
	var err error
	if kind == Do {
		h, err = l.startDo(ctx, name)
	} else {
		h, err = l.startCommand(ctx, name, scripts[random.IntN(len(scripts))])
	}
	if err != nil {
		return err
	}
	granted := make(chan grant, 1)
	go func() { granted <- l.succeed(ctx, name) }()
	if err := l.awaitWaiter(ctx, name, h); err != nil {
		return err
	}
	pause(random, ttl)
	faulted := time.Now()
	harm, err := f.inject(l, h)
	if err != nil {
		return err
	}
	pause(random, 3*ttl/2)
	var g grant
	if f.healLate {
		g = await(granted)
	}
	biting, holds := context.WithCancel(ctx) // what has ended uses nothing any more
	go func() {
		defer holds()
		select {
		case <-h.ended():
		case <-biting.Done():
		}
	}()
	did, err := harm.End(biting)
	holds()
	if err != nil {
		return err
	}
	l.r.Harms.Add(f.name, did)
	healed := time.Now()
	survived := false
	select {
	case <-h.ended():
	case <-time.After(2 * ttl):
		survived = true
		h.finish()
	}
	if !f.healLate {
		g = await(granted)
	}
	if g.err != nil {
		return g.err
	}
	select {
	case <-h.ended():
	case <-time.After(patience):
		return errors.New("the work does not end")
	}
	l.judge(f, h, g, survived, faulted, healed)
	if err := h.verdict(survived); err != nil {
		l.r.Violation("round %d, %s: %v", i, f.name, err)
	}
	return nil
}

// await returns what the next one is granted.
func await(granted <-chan grant) grant {
	select {
	case g := <-granted:
		return g
	case <-time.After(patience):
		return grant{err: errors.New("the next one is not granted the lock")}
	}
}

// judge compares the end of the work with the grant of the next.
func (l *lane) judge(f fault, h holder, g grant, survived bool, faulted, healed time.Time) {
	margin := g.at.Sub(h.at())
	l.tally.mu.Lock()
	defer l.tally.mu.Unlock()
	if g.token <= h.token() {
		l.r.Violation("%s: token %d after %d", f.name, g.token, h.token())
	}
	switch {
	case survived:
		l.tally.kept++
	case f.stopsHolder && margin <= 0: // nothing runs that could have stopped it
		l.tally.lost++
		l.tally.stopped++
		if late := h.at().Sub(healed); late > time.Second {
			l.r.Violation("%s: the work ended %s after its holder went on", f.name, late)
		}
		return
	default:
		l.tally.lost++
	}
	if stall := l.tally.stalls.longestSince(faulted); margin <= -stall {
		l.r.Violation("%s: the work ended %s after the next was granted the lock; the machine has kept this process waiting for up to %s meanwhile", f.name, -margin, stall)
	} else if margin <= 0 {
		l.tally.starved++
	}
	if survived || !h.keeps() && (!f.healLate || f.reaches) { // released, perhaps: the margin says nothing
		return
	}
	l.tally.smallest = min(l.tally.smallest, margin)
	if smallest, ok := l.tally.margins[f.name]; !ok || margin < smallest {
		l.tally.margins[f.name] = margin
	}
}

// grant is what the next holder was given.
type grant struct {
	at    time.Time // by the store's clock, which is this machine's; rounded down to milliseconds
	token int64
	err   error
}

// succeed waits for the lock at the other gateway.
func (l *lane) succeed(ctx context.Context, name string) (g grant) {
	lease, err := l.next.Acquire(ctx, name, client.TTL(ttl))
	if err != nil {
		return grant{err: err}
	}
	defer lease.Release(ctx)
	past, err := l.next.History(ctx, name)
	if err != nil {
		return grant{err: err}
	}
	for _, p := range past {
		if p.Token == lease.Token() {
			return grant{at: p.AcquiredAt, token: p.Token}
		}
	}
	return grant{err: errors.New("the history has no lease with the token of the grant")}
}

// awaitWaiter waits until the next one is in the queue, unless the machine is so busy that
// the holder has lost its lease already.
func (l *lane) awaitWaiter(ctx context.Context, name string, h holder) error {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		select {
		case <-h.ended():
			return nil
		default:
		}
		if seen, err := l.next.Inspect(ctx, name); err == nil && seen.Waiting > 0 {
			return nil
		}
	}
	return errors.New("nobody waits for the lock")
}

// pause lets a random time pass, so that the fault comes at any moment.
func pause(random *rand.Rand, most time.Duration) {
	time.Sleep(time.Duration(random.Int64N(int64(most))))
}
