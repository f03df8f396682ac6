package client

import (
	"encoding/json"
	"slices"
	"time"
)

// maxUnsettled is how many requests for another stream may be unanswered at a time. From
// then on the lease is only renewed.
const maxUnsettled = 8

// attachAgain has the names of the lease hang on another stream: only a stream can take them
// over from an older one. A request that is not answered in time goes on until the lease is
// over: its gateway may carry it out all the same, and would take its end for a release.
func (l *Lease) attachAgain(timeout time.Duration) error {
	if l.unsettled.Load() >= maxUnsettled {
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
				l.unsettled.Add(-1)
			case <-l.kept.Done():
			}
			return
		}
		select {
		case opened <- s:
		case <-late:
			l.overhear(s)
		case <-l.kept.Done():
		}
	}) {
		return ErrClosed
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case s := <-opened:
		l.next, l.detached = s, false
		return nil
	case err := <-failed:
		return err
	case <-timer.C:
		l.unsettled.Add(1)
		close(late)
		l.c.judge(l.kept, turn, errSilent)
		return errSilent
	case <-l.kept.Done():
		return ErrClosed
	}
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
			if err = json.Unmarshal(e.data, &g); err != nil {
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

// ownRequest reports whether what has replaced a stream may be an earlier request of this
// client's, which its gateway came to late.
func (l *Lease) ownRequest() bool {
	if l.unsettled.Load() == 0 {
		return false
	}
	l.unsettled.Add(-1)
	return true
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

// drop notes that a name was released, and reports false of the last one, which stays.
func (l *Lease) drop(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	names := slices.DeleteFunc(slices.Clone(l.names), func(n string) bool { return n == name })
	if len(names) == 0 {
		return false
	}
	l.names = names
	l.grants = slices.DeleteFunc(slices.Clone(l.grants), func(g Grant) bool { return g.Name == name })
	return true
}
