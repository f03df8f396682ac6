package client

import (
	"errors"
	"net"
	"slices"
	"time"
)

// doubtful reports whether a gateway may still come to a request for a stream that has failed, or the store
// that its gateway had no answer from. It then replaces the stream that was granted after it was sent.
// What any other refusal says is done, or is not.
func doubtful(err error) bool {
	if !untold(err) {
		return false
	}
	var never *net.OpError
	notSent := errors.As(err, &never) && never.Op == "dial" || errors.As(err, new(*untrusted)) || errors.As(err, new(*unsent))
	e := refusal(err)
	return !notSent && (e == nil || e.Code == "" || e.Code == CodeUnavailable)
}

// longestLate is how late a gateway may come to a request that came to nothing, as far as it is not known to have
// waited for others until now. What replaces a stream after that is another client's.
const longestLate = time.Minute

// ownRequest reports whether what has replaced a stream may be another request of this client's, which
// its gateway came to late. Each is so only once.
func (l *Lease) ownRequest(replaced *stream) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hangs != nil && l.hangs != replaced { // since a moment ago
		return true
	}
	l.settle(func(one *attempt) bool { return one.stream != nil && one.stream.ended.Load() })
	unseen := l.takenUnseen(replaced)
	if unseen != nil {
		replaced.cut.CompareAndSwap(nil, unseen)
	}
	switch {
	case l.used < len(l.asked):
		l.used++
	case unseen != nil:
		l.doubted--
	default:
		return false
	}
	return true
}

// takenUnseen returns when it was read that a stream was replaced, if a request that came to nothing may have done so:
// of that one this client sees no end. The caller holds mu.
func (l *Lease) takenUnseen(s *stream) *instant {
	if taken := s.taken.Load(); taken != nil && l.mayBeLate(*taken) {
		return taken
	}
	return nil
}

// mayBeLate reports whether a request that came to nothing may have been carried out by then. The caller holds mu.
func (l *Lease) mayBeLate(then instant) bool {
	return l.doubted > 0 && then.since(l.doubtedAt) <= longestLate
}

// mayReplace returns how many requests of the lease a gateway may come to after a newer one has the lease, and for how
// long one is kept at least after their end.
func (l *Lease) mayReplace() (n int, linger time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, linger = len(l.asked)-l.used, l.lingerLate
	if l.mayBeLate(l.c.now()) {
		n += l.doubted
	}
	if l.attached && l.detached.Load() && !l.claim.stream { // each takes it over before it renews it
		if n == 0 {
			linger = longestAttachedWait // their end releases nothing
		}
		n += len(l.open)
	}
	return n, linger
}

// expects notes that so many more requests of this client's may replace the lease's stream, which is no loss: see
// ownRequest. After their end it is kept for linger at least.
func (l *Lease) expects(n int, linger time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n > 0 {
		l.doubts(n)
		l.lingerLate = min(l.lingerLate, linger)
	}
}

// doubts notes that so many more requests for a stream have come to nothing. The caller holds mu.
func (l *Lease) doubts(n int) {
	now := l.c.now()
	if end := l.cut(); !l.mayBeLate(now) {
		if end == nil || !l.mayBeLate(*end) {
			l.lingerLate = l.linger
		}
		l.doubted = 0
	}
	l.doubted, l.doubtedAt = min(l.doubted+n, maxAttempts), now
}

// settle takes attempts out of those that may replace a stream, and may have replaced one. The caller
// holds mu.
func (l *Lease) settle(which func(*attempt) bool) {
	before := len(l.asked)
	l.asked = slices.DeleteFunc(l.asked, which)
	l.used = max(0, l.used-(before-len(l.asked)))
}

// asks notes that an attempt asks for a stream, unless there are as many as may be. Those that were
// granted one before can't replace it.
func (l *Lease) asks(one *attempt) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settle(func(o *attempt) bool { return o.stream != nil })
	if len(l.asked) >= maxAttempts {
		return false
	}
	l.asked = append(l.asked, one)
	return true
}

// attachAgain has the names of the lease hang on another stream: only a stream can take them over from
// an older one. The request goes on until the lease is over, answered in time or not: its gateway may carry
// it out all the same, and would take its end for a release. As long as there are many of them the
// lease is only renewed.
func (l *Lease) attachAgain(one *attempt) error {
	if !l.asks(one) {
		return nil
	}
	s, err := l.openAgain()
	l.mu.Lock()
	defer l.mu.Unlock()
	if one.stream = s; err == nil {
		l.beside = append(slices.DeleteFunc(l.beside, func(o *stream) bool { return o.ended.Load() && l.endOf(o) == nil }), s)
	} else {
		l.settle(func(o *attempt) bool { return o == one })
		if doubtful(err) {
			l.doubts(1)
			if end := l.c.now(); l.hangs != nil { // they may have hung on this one, and its end has released them
				l.hangs.cut.CompareAndSwap(nil, &end)
				l.detach()
			}
		}
	}
	return err
}

// adopt has the lease hang on the stream that an attempt was granted.
func (l *Lease) adopt(one *attempt) {
	l.mu.Lock()
	l.settle(func(o *attempt) bool { return o == one })
	l.hangsOn(one.stream)
	l.detached.Store(false)
	l.mu.Unlock()
	l.next = one.stream
}

// openAgain asks for another stream with what the lease has, which ends with the lease.
func (l *Lease) openAgain() (*stream, error) {
	r, names := l.claim, l.held()
	body := r.body.(acquireRequest)
	body.Names = names
	r.body = body
	s, err := l.c.open(l.kept, l.c.current.Load(), r, longestAttachedWait)
	for err == nil {
		var e event
		if e, err = s.next(l.kept, silence); err != nil {
			break
		}
		switch e.name {
		case "refused", "lost", "draining":
			err = e.problem()
		case "granted":
			var g granted
			if err = g.readLease(e.data, names); err != nil {
				break
			}
			if !l.has(g.grants()) { // the store had forgotten it
				l.c.undo(l.kept, l.id, names)
				return nil, forgotten()
			}
			l.renewed(g, s.told(g, e.read))
			s.granted = e.read
			return s, nil
		}
	}
	return nil, err
}

// held returns the names that the lease has.
func (l *Lease) held() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.names
}

// has reports whether grants are all that the lease has, with the same tokens.
func (l *Lease) has(grants []Grant) bool {
	return !slices.ContainsFunc(l.Grants(), func(is Grant) bool {
		return !slices.ContainsFunc(grants, func(g Grant) bool { return g.Name == is.Name && g.Token == is.Token })
	})
}

// isBefore reports whether other has a newer token of one of its names: the store had forgotten this one.
func (l *Lease) isBefore(other *Lease) bool {
	newer := other.Grants()
	return slices.ContainsFunc(l.Grants(), func(is Grant) bool {
		return slices.ContainsFunc(newer, func(g Grant) bool { return g.Name == is.Name && g.Token > is.Token })
	})
}

// drop notes that a name was released, and reports whether that has changed anything: not of one
// that the lease does not have, nor of the last one, which stays.
func (l *Lease) drop(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	names := slices.DeleteFunc(slices.Clone(l.names), func(n string) bool { return n == name })
	if len(names) == 0 || len(names) == len(l.names) {
		return false
	}
	l.names = names
	l.grants = slices.DeleteFunc(slices.Clone(l.grants), func(g Grant) bool { return g.Name == name })
	return true
}

// fewerThan reports whether a request that began with so many names may have been refused only for
// one that this client has released meanwhile. The next one leaves it out.
func (l *Lease) fewerThan(names int, err error) bool {
	return refusal(err).Reason == ReasonReleased && len(l.held()) < names
}

// dropReleased drops a name that was released, but not by this client: it drops what it releases before it asks. It
// reports whether others are left, and no end of a stream may have released this one: that would be a loss, of all.
func (l *Lease) dropReleased(name string) bool {
	l.mu.Lock()
	ended := l.mayBeReleased()
	l.mu.Unlock()
	return !ended && l.drop(name)
}

// mayBeReleased reports whether a stream of the lease may have ended whose gateway keeps nothing after that. Gateways
// release one name after the other then. The caller holds mu.
func (l *Lease) mayBeReleased() bool {
	if l.hangs == nil {
		return false
	}
	now := l.c.now()
	if end := l.cut(); end != nil {
		return l.keptAfter(*end) == 0
	}
	doubtful := l.hangs.mute.Load() || l.hangs.taken.Load() != nil || len(l.asked) > l.used || l.mayBeLate(now)
	return doubtful && l.keptAfter(now) == 0
}

// dropLost drops the name that a refused renewal of several found released, as dropReleased does: of those that are
// lost the reason is of the first.
func (l *Lease) dropLost(err error) bool {
	e := refusal(err)
	return l.claim.stream && e.Reason == ReasonReleased && len(e.Lost) > 0 && l.dropReleased(e.Lost[0])
}
