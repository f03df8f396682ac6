package watchdog

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"fencepost/internal/fencing"
)

const (
	// minReadyPoll is how often a connection that is not ready is looked at, at most.
	minReadyPoll = 50 * time.Millisecond

	// longestReserve bounds by how much the end of a lease that could not be renewed
	// is told before it comes: its holder has to hear of it.
	longestReserve = 500 * time.Millisecond

	// maxAtOnce is how many of the names of a stream the store is asked about at once: a
	// stream of 64 names takes no more goroutines than that, and a process that renews
	// thousands of them no more than so many times as many, however slow its store is.
	maxAtOnce = 8
)

// Attached is a lease that is kept alive: what it was granted with or its last renewal came
// to, with Asked.
type Attached struct {
	Name    fencing.Name
	Outcome fencing.Outcome
}

// AttachRequest says which leases to keep alive: those that a lease id has on one name, or
// on several.
type AttachRequest struct {
	Lease  fencing.LeaseID
	Stamp  fencing.Stamp // of the request that acquired them, with AcquireRequest.Attach
	Leases []Attached

	// Ready false postpones a renewal: what was written to the holder before has not
	// been acknowledged. nil is always.
	Ready func() bool
}

// Update is what became of attached leases: a renewal of all of them, or why there will be
// none. CodeReplaced: a newer request has them. CodeLeaseLost: one has definitely ended, or its MaxHold or notice is over.
// CodeUnavailable, CodeClockSkew and the like: one could not be renewed and is about
// to run out. CodeDraining: the gateway is shutting down; the leases stay.
type Update struct {
	Leases []Attached   // that are held: of those attached all that were not released meanwhile
	Name   fencing.Name // with Err, whose lease it is about; empty: all
	Err    error
}

// Attach renews leases, all at once, when Holder.RenewIn of any of them says so until ctx ends or one of them is lost.
// When the store tells of the end of one, or that it was given notice, it is asked at
// once what came of it. One that was released leaves the others; the last one is lost by that.
// What is not read is overwritten by what comes next: the newest update, and the
// last one with its Err, can always be read. The channel is then closed. Attach
// never releases.
func (w *Watchdog) Attach(ctx context.Context, r AttachRequest) <-chan Update {
	a := &attachment{dog: w, lease: r.Lease, stamp: r.Stamp, ready: r.Ready, updates: make(chan Update, 1), replaced: make(chan struct{}, 1), changed: make(chan struct{}, 1)}
	for _, l := range r.Leases {
		k := &keptLease{Attached: l}
		k.take(l.Outcome)
		a.leases = append(a.leases, k)
	}
	w.listen()
	w.hub.enter()
	if !w.requests.attach(a) {
		w.hub.leave()
		a.updates <- Update{Err: errDraining()}
		close(a.updates)
		return a.updates
	}
	w.work.Go(func() { a.run(ctx) })
	return a.updates
}

// ReleaseAll releases the leases of a lease id on several names, and returns what came of
// each.
func (w *Watchdog) ReleaseAll(ctx context.Context, names []fencing.Name, r fencing.ReleaseRequest) []error {
	errs := make([]error, len(names))
	eachOf(len(names), func(i int) {
		of := r
		of.Name = names[i]
		_, errs[i] = w.Release(ctx, of)
	})
	return errs
}

// eachOf calls do for all numbers below n, maxAtOnce at a time.
func eachOf(n int, do func(i int)) {
	if n == 1 {
		do(0)
		return
	}
	var next atomic.Int64
	var calls sync.WaitGroup
	for range min(n, maxAtOnce) {
		calls.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				do(i)
			}
		})
	}
	calls.Wait()
}

// attach makes an attachment known, unless the gateway is draining.
func (l *registry) attach(a *attachment) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.draining {
		return false
	}
	for _, k := range a.leases {
		l.attached[key{k.Name, a.stamp}] = a
		on := leaseOn{k.Name, a.lease.Public()}
		l.kept[on] = append(l.kept[on], a)
	}
	return true
}

// detach forgets an attachment of a name.
func (l *registry) detach(a *attachment, name fencing.Name) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := (key{name, a.stamp}); l.attached[k] == a {
		delete(l.attached, k)
	}
	on := leaseOn{name, a.lease.Public()}
	rest := slices.DeleteFunc(l.kept[on], func(other *attachment) bool { return other == a })
	if l.kept[on] = rest; len(rest) == 0 {
		delete(l.kept, on)
	}
}

// changed has an attachment ask the store if an event says that its lease has ended, or was
// given notice.
func (l *registry) changed(e fencing.Event) {
	switch e.Kind {
	case fencing.EventBroken, fencing.EventReleased, fencing.EventExpired, fencing.EventNotice:
	default:
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.kept[leaseOn{e.Name, e.Lease}] {
		if a.told == nil {
			a.told = map[fencing.Name]struct{}{}
		}
		a.told[e.Name] = struct{}{}
		select {
		case a.changed <- struct{}{}:
		default: // told already
		}
	}
}

// attachment is leases that are kept alive together.
type attachment struct {
	dog     *Watchdog
	lease   fencing.LeaseID
	stamp   fencing.Stamp
	ready   func() bool
	leases  []*keptLease // those that were not released
	updates chan Update

	replaced chan struct{}             // holds one when a newer request has a lease
	changed  chan struct{}             // holds one when told has become more
	told     map[fencing.Name]struct{} // of which an event said that the lease has ended, or was given notice; the registry's mutex guards it
}

// keptLease is one lease of an attachment.
type keptLease struct {
	Attached
	life   time.Duration // that the last grant or renewal gave it: the TTL, or less
	renews time.Time     // when it is to be renewed
	end    time.Time     // when the lease ends, or a little before (P9)
	capped error         // how it ends if no renewal moves the end, by MaxHold or a notice; else nil
}

// take notes what a grant or renewal came to.
func (k *keptLease) take(out fencing.Outcome) {
	h := &out.Holder
	k.Outcome, k.life = out, h.ExpiresAt.Sub(out.Now)
	k.renews, k.end = out.Asked.Add(h.RenewIn(k.life)), out.Asked.Add(k.life)
	switch {
	case h.BreaksAtEnd():
		broken := fencing.LostError(fencing.ReasonBroken)
		broken.BreakReason = h.BreakReason
		k.capped = broken
	case h.MaxHold > 0 && h.ExpiresAt >= h.AcquiredAt.Add(h.MaxHold):
		k.capped = errMaxHold
	default:
		k.capped = nil
	}
}

var errMaxHold = &fencing.Error{
	Code: fencing.CodeLeaseLost, Reason: fencing.ReasonExpired, Detail: "the lease has been held for as long as its max_hold_ms allows",
}

// due is when there is something to do about the lease.
func (k *keptLease) due() time.Time {
	if k.capped != nil {
		return k.end
	}
	return k.renews
}

// giveUpAt is when to give up on a lease that could not be renewed.
func (k *keptLease) giveUpAt() time.Time {
	return k.end.Add(-min(k.life/20, longestReserve))
}

func (a *attachment) run(ctx context.Context) {
	defer close(a.updates)
	defer a.forget()
	for {
		name, err := a.next(ctx)
		if ctx.Err() != nil {
			return
		}
		held := make([]Attached, len(a.leases))
		for i, k := range a.leases {
			held[i] = k.Attached
		}
		a.publish(Update{held, name, err})
		if err != nil {
			return
		}
	}
}

func (a *attachment) forget() {
	defer a.dog.hub.leave()
	for _, k := range a.leases {
		a.dog.requests.detach(a, k.Name)
	}
}

// publish replaces what has not been read: it never blocks.
func (a *attachment) publish(u Update) {
	select {
	case <-a.updates:
	default:
	}
	a.updates <- u
}

// next returns when leases were renewed, or released, or the name whose lease is lost, and why.
func (a *attachment) next(ctx context.Context) (fencing.Name, error) {
	var pending []*keptLease
	for len(pending) == 0 {
		if err := a.until(ctx, earliest(a.leases, (*keptLease).due)); err != nil {
			return "", err
		}
		now := time.Now()
		for _, k := range a.leases {
			if k.capped != nil && !now.Before(k.end) {
				return k.Name, k.capped
			}
		}
		pending = a.toRenew(now)
	}
	return a.renewAll(ctx, pending)
}

// toRenew returns which leases are to be asked about: those that an event was about, and
// all if one is to be renewed. One whose end no renewal moves is left to it.
func (a *attachment) toRenew(now time.Time) []*keptLease {
	l := &a.dog.requests
	l.mu.Lock()
	told := a.told
	a.told = nil
	l.mu.Unlock()
	all := slices.ContainsFunc(a.leases, func(k *keptLease) bool { return k.capped == nil && !now.Before(k.renews) })
	var asks []*keptLease
	for _, k := range a.leases {
		_, is := told[k.Name]
		if k.capped == nil && all || is && (k.capped == nil || now.Before(k.giveUpAt())) {
			asks = append(asks, k)
		}
	}
	return asks
}

// renewAll renews leases, and asks again for those of which the store has not said.
func (a *attachment) renewAll(ctx context.Context, pending []*keptLease) (fencing.Name, error) {
	var last error
	for backoff := minBackoff; ; {
		giveUp := earliest(pending, (*keptLease).giveUpAt)
		if !time.Now().Before(giveUp) {
			break
		}
		wait := backoff
		if a.ready != nil && !a.ready() {
			wait = max(pending[0].life/20, minReadyPoll)
			last = &fencing.Error{Code: fencing.CodeUnavailable, Detail: "the connection has not acknowledged what was sent before, so the lease was not renewed"}
		} else {
			name, err := a.renewOnce(ctx, &pending)
			if err != nil && !uncertain(err) || len(pending) == 0 {
				return name, err
			}
			last, backoff = err, min(2*backoff, maxBackoff, max(pending[0].life/10, minBackoff/5))
		}
		if err := a.until(ctx, earlier(time.Now().Add(wait), giveUp)); err != nil {
			return "", err
		}
	}
	if last == nil {
		last = &fencing.Error{Code: fencing.CodeUnavailable, Detail: "the lease was about to end before it could be renewed"}
	}
	return pending[0].Name, last
}

// renewOnce asks once for each lease, and leaves those of which the store has not said, and
// why. One that was released it forgets, unless it is the last.
func (a *attachment) renewOnce(ctx context.Context, pending *[]*keptLease) (name fencing.Name, err error) {
	asked := *pending
	outs, errs := make([]fencing.Outcome, len(asked)), make([]error, len(asked))
	eachOf(len(asked), func(i int) { outs[i], errs[i] = a.renew(ctx, asked[i]) })
	rest := asked[:0]
	for i, k := range asked {
		switch e := asError(errs[i]); {
		case e == nil:
			k.take(outs[i])
		case uncertain(e):
			if rest = append(rest, k); err == nil {
				name, err = k.Name, e
			}
		case e.Code == fencing.CodeLeaseLost && e.Reason == fencing.ReasonReleased:
			a.dog.requests.detach(a, k.Name)
			a.leases = slices.DeleteFunc(a.leases, func(other *keptLease) bool { return other == k })
			if len(a.leases) == 0 {
				name, err = k.Name, e
			}
		case err == nil || uncertain(err):
			name, err = k.Name, e
		}
	}
	*pending = rest
	return name, err
}

// renew asks once, as long as the lease lives.
func (a *attachment) renew(ctx context.Context, k *keptLease) (fencing.Outcome, error) {
	ctx, cancel := context.WithDeadline(ctx, earlier(time.Now().Add(callTimeout), k.giveUpAt()))
	defer cancel()
	out, err := a.dog.Renew(ctx, fencing.RenewRequest{Name: k.Name, Lease: a.lease, Stamp: a.stamp})
	if err == nil && left(&out) <= 0 {
		return fencing.Outcome{}, &fencing.Error{Code: fencing.CodeUnavailable, Detail: "the renewal had run out before it was answered"}
	}
	return out, err
}

// until sleeps, less long if the store tells of a lease, and returns why there
// is nothing to do any more.
func (a *attachment) until(ctx context.Context, at time.Time) error {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-a.changed:
		return nil
	case <-ctx.Done():
		return fencing.Unavailable(ctx.Err())
	case <-a.replaced:
		return fencing.ReplacedError()
	case <-a.dog.drained:
		return errDraining()
	}
}

// earliest returns the first of the times of leases, of which there is one at least.
func earliest(leases []*keptLease, of func(*keptLease) time.Time) time.Time {
	first := of(leases[0])
	for _, k := range leases[1:] {
		first = earlier(first, of(k))
	}
	return first
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
