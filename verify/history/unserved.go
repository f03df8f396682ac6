package history

import (
	"fmt"
	"slices"
)

// waitersShown is how many waiters a look shows at most (api/openapi.yaml).
const waitersShown = 100

// blind is how long after a look something else may have been so that nobody saw.
const blind = 10 * lookEvery

// unserved finds requests that wait although nothing is in their way (P5): as all looks
// have it for longer than Idle, the holders leave room for them and nobody who waits is
// before them, or they have been granted the lock and are not told, or they are nowhere.
func (w *watch) unserved() (found []Violation) {
	for i := range w.calls {
		c := &w.calls[i]
		if c.Verb != Acquire || c.Wait == 0 || c.attempts > 1 {
			continue
		}
		first := (*Look)(nil) // of those that show no reason, one after the other
		last := first
		for _, l := range w.looks {
			if l.Done <= c.sent || l.Sent >= c.Done {
				continue
			}
			if w.blocked(l, c) || w.h.troubled(l.Sent, l.Done) || last != nil && l.Sent-last.Done > blind {
				first = nil
				continue
			}
			if last = l; first == nil {
				first = l
			}
			if l.Sent-first.Done > w.r.Idle+w.r.Slack {
				found = append(found, Violation{Promise: "P5", Name: w.name, What: fmt.Sprintf(
					"from %s to %s nothing was in the way of this one, which waited:\n%s\nseen at last: holders %v, waiters %v\n%s",
					at(first.Done), at(l.Sent), c.Op, l.Holders, l.Waiters, w.h.tell(w.name, first.Sent, l.Sent))})
				return found
			}
		}
	}
	return found
}

// blocked reports whether a look shows why a call that waits is not served.
func (w *watch) blocked(l *Look, c *call) bool {
	if l.holds(c.Owner) {
		return c.Set() // it has a part of it
	}
	if l.Delayed {
		return true
	}
	// Who has gone does not count, and where there is no queue nobody is before others.
	i := slices.IndexFunc(l.Waiters, func(s Shown) bool {
		o := w.byOwner[s.Owner]
		return s.Owner == c.Owner || !w.r.NoQueue && (o == nil || o.Done > l.Sent)
	})
	switch {
	case i >= 0 && l.Waiters[i].Owner != c.Owner:
		return true
	case !slices.ContainsFunc(l.Waiters, func(s Shown) bool { return s.Owner == c.Owner }) && !w.r.NoQueue:
		return c.Set() || len(l.Waiters) >= waitersShown // it waits for another name, or behind them
	}
	bears := tolerance(c.Mode, c.Limit)
	permits := max(1, c.Permits)
	for _, holder := range l.Holders {
		bears, permits = min(bears, tolerance(holder.Mode, holder.Limit)), permits+max(1, holder.Permits)
	}
	return permits > bears
}
