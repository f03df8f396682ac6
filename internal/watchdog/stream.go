package watchdog

import (
	"context"
	"maps"
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

	// gapRest is the least from one time to the next that all streams ask the store because
	// messages may have been lost. It doubles up to longestGapRest as long as that goes on: a
	// store that is slow loses answers, and is not to be asked the more for it.
	gapRest        = time.Second
	longestGapRest = 16 * time.Second
)

// Attached is a lease that is kept alive: what it was granted with or its last renewal came
// to, with Asked.
type Attached struct {
	Name    fencing.Name
	Outcome fencing.Outcome
}

// Stream is a request that leases are to hang on: those that a lease id has on one name, or on
// several. It is known from before the store is asked for the first of them (OpenStream) until
// Close, so that no message about it is early or late. A message only notes something in it and
// wakes it; who is woken looks at all that was noted, and what a renewal is answered decides.
type Stream struct {
	dog    *Watchdog
	lease  fencing.LeaseID
	stamp  fencing.Stamp // of the request: AcquireRequest.Stamp, with Attach
	linger time.Duration
	names  []fencing.Name
	wake   chan struct{} // holds one when news has become more

	news news // the registry's mutex guards it

	// Of the goroutine that keeps the leases.
	ready   func() bool
	leases  []*keptLease // those that were not released
	updates chan Update
}

// news is what a stream has heard of and not acted on.
type news struct {
	replaced map[fencing.Name]struct{} // of which a message said that a newer request has it
	missed   bool                      // messages may have been lost
	told     map[fencing.Name]struct{} // of which an event said that the lease has ended, or was given notice

	renewed map[fencing.Name]fencing.Outcome // by another request, at this gateway
}

// any reports whether there is anything to do before the store is asked again that has not
// answered.
func (n *news) any(unanswered bool) bool {
	return n.missed && !unanswered || len(n.told)+len(n.renewed) > 0
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

// OpenStream makes a request known that is to have the leases of a lease id on names, before it
// asks the store for them. linger is for how long they live on without it. CodeDraining: the
// gateway is shutting down. The Stream is to be closed.
func (w *Watchdog) OpenStream(lease fencing.LeaseID, stamp fencing.Stamp, linger time.Duration, names ...fencing.Name) (*Stream, error) {
	s := &Stream{dog: w, lease: lease, stamp: stamp, linger: linger, names: names, wake: make(chan struct{}, 1), updates: make(chan Update, 1)}
	w.listen()
	w.hub.enter()
	if !w.requests.open(s) {
		w.hub.leave()
		return nil, fencing.DrainingError()
	}
	return s, nil
}

// Close forgets the stream. It releases nothing.
func (s *Stream) Close() {
	l := &s.dog.requests
	l.mu.Lock()
	for _, name := range s.names {
		l.detach(s, name)
	}
	delete(l.streams, s)
	l.mu.Unlock()
	s.dog.hub.leave()
}

// Replaced reports whether a newer request is known to have a lease of the stream.
func (s *Stream) Replaced() bool {
	l := &s.dog.requests
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(s.news.replaced) > 0
}

// replacedOn reports whether a newer request is known to have a name.
func (s *Stream) replacedOn(name fencing.Name) bool {
	l := &s.dog.requests
	l.mu.Lock()
	defer l.mu.Unlock()
	_, is := s.news.replaced[name]
	return is
}

// takeReplaced returns the names that another request is known to have, and forgets it: they are
// taken back. If the first name is among them it reports that, and forgets nothing.
func (s *Stream) takeReplaced(first fencing.Name) (names []fencing.Name, lost bool) {
	l := &s.dog.requests
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, lost = s.news.replaced[first]; lost {
		return nil, true
	}
	names = slices.Sorted(maps.Keys(s.news.replaced))
	clear(s.news.replaced)
	return names, false
}

// Keep renews leases of the stream, all at once, when Holder.RenewIn of any of them says so
// until ctx ends or one of them is lost.
// When the store tells of the end of one, or that it was given notice, or messages may have been
// lost, it is asked at once what came of it. One that was released leaves the others; the last
// one is lost by that.
// What is not read is overwritten by what comes next: the newest update, and the
// last one with its Err, can always be read. The channel is then closed. Keep
// never releases, and is called once.
//
// ready false postpones a renewal: what was written to the holder before has not been
// acknowledged. nil is always.
func (s *Stream) Keep(ctx context.Context, leases []Attached, ready func() bool) <-chan Update {
	s.ready = ready
	for _, l := range leases {
		k := &keptLease{Attached: l}
		k.take(l.Outcome)
		s.leases = append(s.leases, k)
	}
	l := &s.dog.requests
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.draining { // Stop may be waiting for what runs
		s.updates <- Update{Err: fencing.DrainingError()}
		close(s.updates)
		return s.updates
	}
	s.dog.work.Go(func() { s.run(ctx) })
	return s.updates
}

// Release releases leases of the stream that no newer request has, or has them linger, and
// returns what came of each.
func (s *Stream) Release(ctx context.Context, names []fencing.Name) []error {
	errs := make([]error, len(names))
	eachOf(len(names), func(i int) {
		_, errs[i] = s.dog.Release(ctx, fencing.ReleaseRequest{Name: names[i], Lease: s.lease, Stamp: s.stamp, Linger: s.linger})
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

// open makes a stream known, unless the gateway is draining.
func (l *registry) open(s *Stream) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.draining {
		return false
	}
	l.streams[s] = struct{}{}
	for _, name := range s.names {
		l.attached[key{name, s.stamp}] = s
		on := leaseOn{name, s.lease.Public()}
		l.kept[on] = append(l.kept[on], s)
	}
	return true
}

// detach has a stream hear no more of a name. The caller holds mu.
func (l *registry) detach(s *Stream, name fencing.Name) {
	if k := (key{name, s.stamp}); l.attached[k] == s {
		delete(l.attached, k)
	}
	on := leaseOn{name, s.lease.Public()}
	rest := slices.DeleteFunc(l.kept[on], func(other *Stream) bool { return other == s })
	if l.kept[on] = rest; len(rest) == 0 {
		delete(l.kept, on)
	}
}

// changed has streams ask the store if an event says that a lease of theirs has ended, or was
// given notice.
func (l *registry) changed(e fencing.Event) {
	switch e.Kind {
	case fencing.EventBroken, fencing.EventReleased, fencing.EventExpired, fencing.EventNotice:
		l.mu.Lock()
		defer l.mu.Unlock()
		l.tell(leaseOn{e.Name, e.Lease})
	}
}

// tell has the streams ask the store that have a lease. The caller holds mu.
func (l *registry) tell(on leaseOn) {
	for _, s := range l.kept[on] {
		s.tell(on.name)
		s.signal()
	}
}

// tell has the stream ask the store about a lease. The caller holds the registry's mutex.
func (s *Stream) tell(name fencing.Name) {
	if s.news.told == nil {
		s.news.told = map[fencing.Name]struct{}{}
	}
	s.news.told[name] = struct{}{}
}

// renewed has the streams that have a lease go on from what another request has renewed it to. The
// caller holds mu.
func (l *registry) renewed(on leaseOn, out *fencing.Outcome) {
	for _, s := range l.kept[on] {
		if s.news.renewed == nil {
			s.news.renewed = map[fencing.Name]fencing.Outcome{}
		}
		if other, is := s.news.renewed[on.name]; !is || out.Now > other.Now {
			s.news.renewed[on.name] = *out
		}
		s.signal()
	}
}

// missed has all streams ask the store: messages may have been lost. It does so at once, or after
// the rest since the last time.
func (l *registry) missed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	g, now := &l.gaps, time.Now()
	switch {
	case g.due:
		return
	case now.Before(g.last.Add(g.rest)):
		g.due = true
		time.AfterFunc(g.rest-now.Sub(g.last), func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.askAll()
		})
		g.rest = min(2*g.rest, longestGapRest)
	default:
		g.rest = gapRest
		l.askAll()
	}
}

// gaps is when streams ask because messages may have been lost.
type gaps struct {
	last time.Time
	rest time.Duration // after last
	due  bool          // they will
}

// askAll has all streams ask the store. The caller holds mu.
func (l *registry) askAll() {
	l.gaps.last, l.gaps.due = time.Now(), false
	for s := range l.streams {
		s.news.missed = true
		s.signal()
	}
}

// signal has the stream look at its news. The caller holds the registry's mutex.
func (s *Stream) signal() {
	select {
	case s.wake <- struct{}{}:
	default: // it is to look already
	}
}

// keptLease is one lease of a stream.
type keptLease struct {
	Attached
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

func (s *Stream) run(ctx context.Context) {
	defer close(s.updates)
	for {
		name, err := s.next(ctx)
		if ctx.Err() != nil {
			return
		}
		held := make([]Attached, len(s.leases))
		for i, k := range s.leases {
			held[i] = k.Attached
		}
		s.publish(Update{held, name, err})
		if err != nil {
			return
		}
	}
}

// publish replaces what has not been read: it never blocks.
func (s *Stream) publish(u Update) {
	select {
	case <-s.updates:
	default:
	}
	s.updates <- u
}

// next returns when leases were renewed, or released, or the name whose lease is lost, and why.
func (s *Stream) next(ctx context.Context) (fencing.Name, error) {
	var pending []*keptLease // that the store is to be asked about
	var last error           // why it has not said
	backoff, at := minBackoff, earliest(s.leases, (*keptLease).due)
	for {
		if err := s.until(ctx, at, len(pending) > 0); err != nil {
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
		giveUp := earliest(pending, (*keptLease).giveUpAt)
		if !now.Before(giveUp) {
			if last == nil {
				last = &fencing.Error{Code: fencing.CodeUnavailable, Detail: "the lease was about to end before it could be renewed"}
			}
			return pending[0].Name, last
		}
		if s.ready != nil && !s.ready() {
			last = &fencing.Error{Code: fencing.CodeUnavailable, Detail: "the connection has not acknowledged what was sent before, so the lease was not renewed"}
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
func (s *Stream) toRenew(pending []*keptLease, now time.Time) (asks []*keptLease, changed bool) {
	l := &s.dog.requests
	l.mu.Lock()
	n := s.news
	s.news = news{replaced: n.replaced}
	l.mu.Unlock()
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
		is = is || n.missed || slices.Contains(pending, k)
		if k.capped == nil && all || is && (k.capped == nil || now.Before(k.giveUpAt())) {
			asks = append(asks, k)
		}
	}
	return asks, changed
}

// renewOnce asks once for each lease, and leaves those of which the store has not said, and
// why. One that was released it forgets, unless it is the last.
func (s *Stream) renewOnce(ctx context.Context, pending *[]*keptLease) (name fencing.Name, err error) {
	asked := *pending
	outs, errs := make([]fencing.Outcome, len(asked)), make([]error, len(asked))
	eachOf(len(asked), func(i int) { outs[i], errs[i] = s.renew(ctx, asked[i]) })
	rest := asked[:0]
	for i, k := range asked {
		switch e := fencing.AsError(errs[i]); {
		case e == nil:
			k.take(outs[i])
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
func (s *Stream) forget(k *keptLease) {
	l := &s.dog.requests
	l.mu.Lock()
	l.detach(s, k.Name)
	l.mu.Unlock()
	s.leases = slices.DeleteFunc(s.leases, func(other *keptLease) bool { return other == k })
}

// renew asks once, as long as the lease lives.
func (s *Stream) renew(ctx context.Context, k *keptLease) (fencing.Outcome, error) {
	ctx, cancel := context.WithDeadline(ctx, earlier(time.Now().Add(callTimeout), k.giveUpAt()))
	defer cancel()
	out, err := s.dog.Renew(ctx, fencing.RenewRequest{Name: k.Name, Lease: s.lease, TTL: k.ttl, Stamp: s.stamp, Epoch: k.Outcome.Holder.Epoch})
	if err == nil && out.Remaining(time.Now()) <= 0 {
		return fencing.Outcome{}, &fencing.Error{Code: fencing.CodeUnavailable, Detail: "the renewal had run out before it was answered"}
	}
	return out, err
}

// until sleeps, less long if there is news, and returns why there is nothing to do any more. That
// messages may have been lost is no news where the store has just not answered: it is asked again
// at that time.
func (s *Stream) until(ctx context.Context, at time.Time, unanswered bool) error {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	for {
		if s.hasNews(unanswered) {
			return nil
		}
		select {
		case <-timer.C:
			return nil
		case <-s.wake:
		case <-ctx.Done():
			return fencing.Unavailable(ctx.Err())
		case <-s.dog.drained:
			return fencing.DrainingError()
		}
	}
}

// hasNews reports whether there is anything to ask the store about. A message that a newer request
// has a lease may be late: this one may have taken it back since.
func (s *Stream) hasNews(unanswered bool) bool {
	l := &s.dog.requests
	l.mu.Lock()
	defer l.mu.Unlock()
	for name := range s.news.replaced {
		s.tell(name)
	}
	clear(s.news.replaced)
	return s.news.any(unanswered)
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
