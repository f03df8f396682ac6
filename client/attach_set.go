package client

import (
	"context"
	"errors"
	"net"
	"slices"
)

// maxUnsettled is how many requests for another stream may be unanswered at a time. From
// then on the lease is only renewed.
const maxUnsettled = 8

// unsettled are requests for a stream that were not answered in time. Their gateways may come to
// them late: such a request then replaces the stream that was granted after it was sent.
type unsettled struct {
	open   int // under way, or streams themselves
	used   int // of those, which have replaced a stream
	closed int // given up, and not known to have replaced one
}

// doubt notes a request that has failed, if its gateway may still come to it, or the store that
// its gateway had no answer from. What any other refusal says is done, or is not.
func (u *unsettled) doubt(err error) {
	if err == nil || !unanswered(err) {
		return
	}
	var never *net.OpError
	notSent := errors.As(err, &never) && never.Op == "dial"
	e := refusal(err)
	if refused := e != nil && e.Code != "" && e.Code != CodeUnavailable; !notSent && !refused {
		u.closed = min(u.closed+1, maxUnsettled)
	}
}

// ownRequest reports whether what has replaced a stream may be an earlier request of this
// client's, which its gateway came to late. Each is so only once.
func (l *Lease) ownRequest() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch u := &l.unsettled; {
	case u.used < u.open:
		u.used++
	case u.closed > 0:
		u.closed--
	default:
		return false
	}
	return true
}

// gaveUp notes that a request for a stream is not waited for any more.
func (l *Lease) gaveUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unsettled.open++
}

// settled notes what has become of such a request, or nil if that was a stream, which is over.
func (l *Lease) settled(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unsettled.open--
	l.unsettled.used = max(0, l.unsettled.used-1)
	l.unsettled.doubt(err)
}

// tooMany reports whether there are as many such requests as may be.
func (l *Lease) tooMany() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unsettled.open >= maxUnsettled
}

// attachAgain has the names of the lease hang on another stream: only a stream can take them
// over from an older one. A request that is not answered within a time goes on until the lease is
// over: its gateway may carry it out all the same, and would take its end for a release.
func (l *Lease) attachAgain(within context.Context) error {
	if l.tooMany() {
		return nil
	}
	turn := l.c.current.Load()
	opened, failed, late := make(chan *stream), make(chan error), make(chan struct{})
	if !l.c.goes(func() {
		s, err := l.openAgain()
		if err != nil {
			select {
			case failed <- err:
			case <-late:
				l.settled(err)
			case <-l.kept.Done():
			}
			return
		}
		select {
		case opened <- s:
		case <-late:
			l.overhear(s)
			l.settled(nil)
		case <-l.kept.Done():
		}
	}) {
		return ErrClosed
	}
	select {
	case s := <-opened:
		l.next = s
		l.detached.Store(false)
		return nil
	case err := <-failed:
		l.mu.Lock()
		l.unsettled.doubt(err)
		l.mu.Unlock()
		return err
	case <-within.Done():
	}
	if l.kept.Err() != nil {
		return ErrClosed
	}
	l.gaveUp()
	close(late)
	l.c.judge(l.kept, turn, errSilent)
	return errSilent
}

// openAgain asks for another stream with what the lease has, which ends with the lease.
func (l *Lease) openAgain() (*stream, error) {
	r, names := l.claim, l.held()
	body := r.body.(acquireRequest)
	body.Names = names
	r.body = body
	s, err := l.c.open(l.kept, r, longestAttachedWait)
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
				return nil, &Error{Code: CodeLeaseLost, Reason: ReasonUnknown, Detail: "another lease was granted with the same lease id"}
			}
			l.renewed(g, s.sent)
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

// dropLost drops the name that a refused renewal of several found released, and reports whether
// others are left: of those that are lost the reason is of the first.
func (l *Lease) dropLost(err error) bool {
	e := refusal(err)
	return l.claim.stream && e.Reason == ReasonReleased && len(e.Lost) > 0 && l.drop(e.Lost[0])
}
