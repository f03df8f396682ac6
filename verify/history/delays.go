package history

import (
	"fmt"
	"time"
)

// delays finds grants that came before the lock delay was over of a lease that nobody let go:
// it ended no sooner than its holder was told, or when somebody began to break it. Leases are
// left out of which it is not known how they ended, and times in which something was made to fail.
func delays(h *History, name string, r *Rules) (found []Violation) {
	calls := h.calls(name)
	for i := range calls {
		a := &calls[i]
		mine, granted := a.grant(name)
		if !granted || a.Verb != Acquire || a.LockDelay == 0 {
			continue
		}
		end, shares, known := endOf(calls, a, name)
		if !known {
			continue
		}
		over := end + a.LockDelay - r.Margin
		for j := range calls {
			b := &calls[j]
			theirs, granted := b.grant(name)
			switch {
			case !granted || b.Verb != Acquire || b.Lease == a.Lease || theirs.Token <= mine.Token || b.Done >= over:
			case shares && b.Mode == "shared": // perhaps beside it
			case h.troubled(a.sent, b.Done):
			default:
				return []Violation{{Promise: "delay", Name: name, What: fmt.Sprintf(
					"the lease %s ended at %s at the earliest, and nobody may be granted the lock before %s:\n%s\n%s", a.Owner, at(end), at(over), a.Op, b.Op)}}
			}
		}
	}
	return found
}

// endOf returns when the lease of an acquire ended at the earliest, and whether it may have been
// shared; known is false where it may have been let go, or its end have been moved without a word.
func endOf(calls []call, a *call, name string) (end time.Duration, shares, known bool) {
	mine, _ := a.grant(name)
	end, shares = mine.Deadline, a.Mode == "shared"
	last, broken := a.sent, forever
	for i := range calls {
		c := &calls[i]
		if c.Verb == Break && c.Token == mine.Token && c.Verdict != Lost {
			broken = min(broken, c.sent)
		}
		if c.Lease != a.Lease {
			continue
		}
		g, granted := c.grant(name)
		switch {
		case c.Attached, !c.certain(), c.Verb == Release && !c.lost(name):
			return 0, false, false
		case granted && c.sent > last:
			end, last = g.Deadline, c.sent
		}
		shares = shares || c.Mode == "shared"
	}
	return min(end, broken), shares, true
}
