package session

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"fencepost/internal/fencing"
)

const (
	// longestReserve bounds by how much the end of a lease that could not be renewed
	// is told before it comes: its holder has to hear of it.
	longestReserve = 500 * time.Millisecond

	// maxAtOnce is how many of the names of a stream the store is asked about at once: a
	// stream of 64 names takes no more goroutines than that, and a process that renews
	// thousands of them no more than so many times as many, however slow its store is.
	maxAtOnce = 8

	minBackoff = 50 * time.Millisecond
	maxBackoff = time.Second
)

// keeping is what a Session has from Keep on. The goroutine that keeps the leases has it until updates is closed.
type keeping struct {
	client  context.Context // ends when the client leaves; nil before Keep
	stop    context.CancelFunc
	ready   func() bool
	leases  []*keptLease // those that were not released
	updates chan Update
	last    Update // with why leases are not kept any more
}

// Update is what became of leases that are kept: a renewal of all of them, or why there will be
// none. CodeReplaced: a newer request has them. CodeLeaseLost: one has definitely ended, or its MaxHold or notice is over.
// CodeUnavailable, CodeClockSkew and the like: one could not be renewed and is about
// to run out. CodeDraining: the gateway is shutting down; the leases stay.
type Update struct {
	Leases []Lease      // that are held: all that were not released meanwhile
	Name   fencing.Name // with Err, whose lease it is about; empty: all
	Err    error
}

// Keep notes that the client was told that it has the leases (Told), and renews them, all at once, when
// Holder.RenewIn of any of them says so until ctx ends, for the client has left, or one of them is lost.
// When the store tells of the end of one, or that it was given notice, or messages may have been
// lost, it is asked at once what came of it. One that was released leaves the others; the last
// one is lost by that.
// What is not read is overwritten by what comes next: the newest update, and the
// last one with its Err, can always be read. The channel is then closed. Keep is called once.
//
// ready false postpones a renewal: what was written to the holder before has not been
// acknowledged. nil is always.
func (s *Session) Keep(ctx context.Context, ready func() bool) <-chan Update {
	s.Told()
	s.client, s.ready, s.updates = ctx, ready, make(chan Update, 1)
	for _, l := range s.Leases() {
		k := &keptLease{Lease: l}
		k.take(l.Outcome)
		s.noteHas(l.Name, &l.Outcome)
		s.leases = append(s.leases, k)
	}
	ctx, s.stop = context.WithCancel(ctx)
	if !s.of.dog.Run(func() { s.run(ctx) }) {
		s.last = Update{Err: fencing.DrainingError()}
		s.publish(s.last)
		close(s.updates)
	}
	return s.updates
}

// Forsake has the leases not be kept any more, nor released when the client leaves: their holder may believe in
// them until their end.
func (s *Session) Forsake() {
	s.stop()
	s.client = nil
}

// keptLease is one lease of a stream.
type keptLease struct {
	Lease
	life   time.Duration // that the last grant or renewal gave it: the TTL, or less
	ttl    time.Duration // to renew it for; 0 is the TTL that it was granted with
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
	Code: fencing.CodeLeaseLost, Reason: fencing.ReasonExpired, Detail: "the lease has reached its max_hold_ms",
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

func (s *Session) run(ctx context.Context) {
	defer close(s.updates)
	for {
		name, err := s.renewal(ctx)
		if ctx.Err() != nil {
			return
		}
		s.last = Update{s.held(), name, err}
		s.publish(s.last)
		if err != nil {
			return
		}
	}
}

// held returns the leases that are kept.
func (s *Session) held() []Lease {
	held := make([]Lease, len(s.leases))
	for i, k := range s.leases {
		held[i] = k.Lease
	}
	return held
}

// publish replaces what has not been read: it never blocks.
func (s *Session) publish(u Update) {
	select {
	case <-s.updates:
	default:
	}
	s.updates <- u
}

// renewal returns when leases were renewed, or released, or the name whose lease is lost, and why.
func (s *Session) renewal(ctx context.Context) (fencing.Name, error) {
	var pending []*keptLease // that the store is to be asked about
	var last error           // why it has not said
	backoff, at := minBackoff, earliest(s.leases, (*keptLease).due)
	for {
		if err := s.until(ctx, at); err != nil {
			return "", err
		}
		now := time.Now()
		for _, k := range s.leases {
			if k.capped != nil && !now.Before(k.end) {
				return k.Name, k.capped
			}
		}
		var changed bool
		if pending, changed = s.toRenew(pending, now); changed && len(pending) == 0 {
			return "", nil
		}
		if len(pending) == 0 {
			at = earliest(s.leases, (*keptLease).due)
			continue
		}
		pending = slices.DeleteFunc(pending, func(k *keptLease) bool { return k.capped != nil && !now.Before(k.giveUpAt()) }) // it ends as was told
		if len(pending) == 0 {
			at = earliest(s.leases, (*keptLease).due)
			continue
		}
		giveUp := earliest(pending, (*keptLease).giveUpAt)
		if !now.Before(giveUp) {
			if last == nil {
				last = &fencing.Error{Code: fencing.CodeUnavailable, Detail: "the lease could not be renewed before it was about to end"}
			}
			return pending[0].Name, last
		}
		if s.ready != nil && !s.ready() {
			last = &fencing.Error{Code: fencing.CodeUnavailable, Detail: "the client has not acknowledged earlier events, so the lease was not renewed"}
		} else {
			name, err := s.renewOnce(ctx, &pending)
			if err != nil && !fencing.Uncertain(err) || len(pending) == 0 {
				return name, err
			}
			last = err
		}
		at = earlier(time.Now().Add(backoff), giveUp)
		backoff = min(2*backoff, maxBackoff, max(pending[0].life/10, minBackoff/5))
	}
}

// toRenew returns which leases are to be asked about: those that are already, those that there
// is news of, and all if another one is to be renewed. One whose end no renewal moves is left to it.
// It reports whether another request has renewed one.
func (s *Session) toRenew(pending []*keptLease, now time.Time) (asks []*keptLease, changed bool) {
	n := s.takeNews()
	for _, k := range s.leases {
		if out, is := n.renewed[k.Name]; is && out.Now > k.Outcome.Now {
			k.take(out)
			k.ttl, changed = out.Holder.TTL, true
		}
	}
	all := slices.ContainsFunc(s.leases, func(k *keptLease) bool {
		return k.capped == nil && !now.Before(k.renews) && !slices.Contains(pending, k)
	})
	for _, k := range s.leases {
		_, is := n.told[k.Name]
		is = is || slices.Contains(pending, k)
		if k.capped == nil && all || is && (k.capped == nil || now.Before(k.giveUpAt())) {
			asks = append(asks, k)
		}
	}
	return asks, changed
}

// renewOnce asks once for each lease, and leaves those of which the store has not said, and
// why. One that was released it forgets, unless it is the last.
func (s *Session) renewOnce(ctx context.Context, pending *[]*keptLease) (name fencing.Name, err error) {
	asked := *pending
	outs, errs := make([]fencing.Outcome, len(asked)), make([]error, len(asked))
	eachOf(len(asked), func(i int) { outs[i], errs[i] = s.renewKept(ctx, asked[i]) })
	rest := asked[:0]
	for i, k := range asked {
		switch e := fencing.AsError(errs[i]); {
		case e == nil:
			k.take(outs[i])
			s.noteHas(k.Name, &outs[i])
		case fencing.Uncertain(e):
			if rest = append(rest, k); err == nil {
				name, err = k.Name, e
			}
		case e.Code == fencing.CodeLeaseLost && e.Reason == fencing.ReasonReleased:
			s.forget(k)
			if len(s.leases) == 0 {
				name, err = k.Name, e
			}
		case err == nil || fencing.Uncertain(err):
			name, err = k.Name, e
		}
	}
	*pending = rest
	return name, err
}

// forget has a lease no more that was released.
func (s *Session) forget(k *keptLease) {
	s.of.forget(s, k.Name)
	s.leases = slices.DeleteFunc(s.leases, func(other *keptLease) bool { return other == k })
}

// renewKept renews a lease once, as long as it lives.
func (s *Session) renewKept(ctx context.Context, k *keptLease) (fencing.Outcome, error) {
	ctx, cancel := context.WithDeadline(ctx, k.giveUpAt())
	defer cancel()
	out, err := s.renew(ctx, k.Name, k.ttl, k.Outcome.Holder.Epoch)
	if err == nil && out.Remaining(time.Now()) <= 0 {
		return fencing.Outcome{}, &fencing.Error{Code: fencing.CodeUnavailable, Detail: "the renewed lease expired before the store answered"}
	}
	return out, err
}

// renew renews a lease for ttl, 0 being that of the grant, if it hangs on this request: by the epoch that the
// request was told of it last. CodeReplaced: it hangs on a newer one.
func (s *Session) renew(ctx context.Context, name fencing.Name, ttl time.Duration, epoch int64) (fencing.Outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return s.of.dog.Do(ctx, fencing.RenewRequest{Name: name, Lease: s.ask.Lease, TTL: ttl, Stamp: s.ask.Stamp, Epoch: epoch})
}

// until sleeps, less long if there is news, and returns why there is nothing to do any more.
func (s *Session) until(ctx context.Context, at time.Time) error {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	for {
		if s.hasNews() {
			return nil
		}
		select {
		case <-timer.C:
			return nil
		case <-s.wake:
		case <-ctx.Done():
			return fencing.Unavailable(ctx.Err())
		case <-s.of.dog.Drained():
			return fencing.DrainingError()
		}
	}
}

const (
	releaseTimeout    = 3 * time.Second // of one attempt
	minReleaseBackoff = 50 * time.Millisecond
)

// release lets go of the leases that are kept, or has them linger, trying again until their end, once the client has left: it
// may believe in them until then, also after it was told of a loss. It does nothing where a newer request has them.
func (s *Session) release() {
	if s.client == nil {
		return
	}
	s.stop()
	for range s.updates { // until nobody keeps them any more
	}
	rest := s.rest()
	if len(rest) == 0 || s.client.Err() == nil && !s.clientLeaves(rest) {
		return
	}
	end := latestEnd(rest)
	for backoff := minReleaseBackoff; ; backoff = min(2*backoff, maxBackoff) {
		var err error
		if rest, err = s.releaseOnce(rest); len(rest) == 0 {
			return
		}
		if time.Now().Add(backoff).After(end) {
			s.of.log.Warn("the attached lease of a client that left could not be released; it expires with its TTL",
				slog.String("request_id", string(s.ask.Stamp)), slog.String("lease", string(s.ask.Lease.Public())), slog.String("error", err.Error()))
			return
		}
		time.Sleep(backoff)
	}
}

// rest returns the leases that are to be released: all if the client has left. After a loss those that were not
// lost, and one of which nothing is known; that one not if it would linger, which may be longer than it has.
func (s *Session) rest() []*keptLease {
	lost := &s.last
	switch fencing.CodeOf(lost.Err) {
	case fencing.CodeDraining, fencing.CodeReplaced:
		return nil
	case fencing.CodeOK:
		return s.leases
	}
	return slices.DeleteFunc(s.leases, func(k *keptLease) bool {
		return k.Name == lost.Name && (fencing.CodeOf(lost.Err) == fencing.CodeLeaseLost || s.ask.Linger > 0)
	})
}

// clientLeaves waits until the client has left, which may believe in leases until then, or they end. It reports
// false if the gateway shuts down before.
func (s *Session) clientLeaves(leases []*keptLease) bool {
	timer := time.NewTimer(time.Until(latestEnd(leases)))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.of.dog.Drained():
		return s.client.Err() != nil
	case <-s.client.Done():
	}
	return true
}

// releaseOnce asks once for each lease, and returns those of which the store has not said, and why of the last.
func (s *Session) releaseOnce(leases []*keptLease) (rest []*keptLease, last error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.client), releaseTimeout)
	defer cancel()
	errs := make([]error, len(leases))
	eachOf(len(leases), func(i int) {
		_, errs[i] = s.of.dog.Do(ctx, fencing.ReleaseRequest{Name: leases[i].Name, Lease: s.ask.Lease, Stamp: s.ask.Stamp, Linger: s.ask.Linger, Epoch: leases[i].Outcome.Holder.Epoch})
	})
	for i, err := range errs {
		if err != nil && fencing.CodeOf(err) != fencing.CodeLeaseLost {
			rest, last = append(rest, leases[i]), err
		}
	}
	return rest, last
}

// latestEnd returns when the last of leases ends.
func latestEnd(leases []*keptLease) time.Time {
	var end time.Time
	for _, k := range leases {
		if k.end.After(end) {
			end = k.end
		}
	}
	return end
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
