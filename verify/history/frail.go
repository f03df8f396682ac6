package history

import "slices"

// frail is a time in which what was answered may have been lost afterwards: a lease that
// was let go is there again then, and one that was shortened is as long as before.
type frail struct {
	from, until Time
	breaks      bool // that somebody broke a lease may be lost too
}

// fragile returns those times:
//
//   - while two masters stood side by side, of which the changes of one are dropped;
//   - before the embedded store was killed, where it answers what it has not flushed yet.
//     What is on disk is always a prefix of what happened, and a grant is told when it is
//     there. So who was told of a grant before the kill, and had asked for it after some other
//     answer, has shown that what was answered there is on disk.
func (h *History) fragile(r *Rules) (times []frail) {
	for _, t := range h.Troubles {
		switch {
		case t.Split:
			times = append(times, frail{t.From, t.Until, true})
		case t.Killed && r.AnswersUnflushed:
			times = append(times, frail{h.flushed(t.From), t.Until, false})
		}
	}
	return times
}

// flushed returns until when all that was answered is known to be on disk at a moment.
func (h *History) flushed(at Time) (until Time) {
	for i := range h.Ops {
		op := &h.Ops[i]
		durable := op.Verb == Acquire && op.Status == 201 && !op.Attached && !op.Set() || op.Verb == Break && op.Verdict == Ended
		if durable && op.Done <= at {
			until = max(until, op.Sent)
		}
	}
	return until
}

// mayBeUndone reports whether what a call was told to have done may have been lost.
func (c *call) mayBeUndone(times []frail) bool {
	return slices.ContainsFunc(times, func(f frail) bool {
		return f.from <= c.Done && c.Done <= f.until && (c.Verb != Break || f.breaks)
	})
}
