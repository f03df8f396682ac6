package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Liveness is what the search for an order can't see. It is judged by time, from what
// clients were told and from what a lock shows to somebody who looks at it all the time
// (Look), and only outside of Troubles.
func liveness(h *History, r *Rules) []Violation {
	var found []Violation
	for _, name := range h.names() {
		w := watch{h: h, r: r, name: name, calls: h.calls(name), byOwner: map[string]*call{}}
		for i := range w.calls {
			if c := &w.calls[i]; c.Verb == Acquire && (w.byOwner[c.Owner] == nil || !w.byOwner[c.Owner].certain()) {
				w.byOwner[c.Owner] = c
			}
		}
		for i := range h.Looks {
			if h.Looks[i].Name == name {
				w.looks = append(w.looks, &h.Looks[i])
			}
		}
		w.terms()
		found = append(found, w.idle()...)
		found = append(found, w.late()...)
		found = append(found, w.overtaken()...)
		found = append(found, w.outlived()...)
		found = append(found, w.leaked()...)
	}
	return append(found, phantoms(h, r)...)
}

// watch is one name.
type watch struct {
	h       *History
	r       *Rules
	name    string
	calls   []call
	byOwner map[string]*call // of Acquire: the first one that is certain, if any
	looks   []*Look
	held    []held
}

// held is a lease of which somebody knows.
type held struct {
	owner           string
	from, let, over Time // told; let go, or its deadline; over for certain
	attached        bool
}

// terms finds out from when to when clients knew that they held the name.
func (w *watch) terms() {
	index := map[string]int{}
	for i := range w.calls {
		c := &w.calls[i]
		g, granted := c.grant(w.name)
		j, known := index[c.Lease]
		switch {
		case c.Verb == Break && c.Verdict == Ended:
			for j := range w.held {
				if o := w.byOwner[w.held[j].owner]; o != nil {
					if was, _ := o.grant(w.name); was.Token == c.Token {
						w.held[j].let, w.held[j].over = min(w.held[j].let, c.Done), min(w.held[j].over, c.Done+w.r.Slack)
					}
				}
			}
		case c.Verb == Acquire && granted && !known:
			index[c.Lease] = len(w.held)
			w.held = append(w.held, held{
				owner: c.Owner, from: c.Done, let: g.Deadline, over: w.h.latest(c.Done, c.TTL, w.r), attached: c.Attached,
			})
		case !known:
		case c.Verb != Release && granted:
			w.held[j].let, w.held[j].over = max(g.Deadline, w.held[j].let), w.h.latest(c.Done, c.TTL, w.r)
			if c.TTL > 0 && g.Deadline < w.held[j].let && c.Verb == Renew { // shortened
				w.held[j].let = g.Deadline
			}
		case !c.certain() && c.Verb == Release && c.Hold < 2:
			w.held[j].let = min(w.held[j].let, c.Done)
		case !c.certain(): // a renewal, perhaps
			w.held[j].over = max(w.held[j].over, w.h.latest(c.Done+5*time.Second, c.TTL, w.r))
		case c.Verdict == Ended, c.Verdict == Lost && c.Verb != Acquire && (len(c.Missing) == 0 || slices.Contains(c.Missing, w.name)):
			w.held[j].let, w.held[j].over = min(w.held[j].let, c.Done), c.Done+w.r.Slack
		}
	}
}

// span is a time.
type span struct{ from, until Time }

// idle finds times in which somebody waited for a lock that was with nobody (P5).
func (w *watch) idle() (found []Violation) {
	var busy []span
	for _, held := range w.held {
		busy = append(busy, span{held.from, held.let})
	}
	for _, t := range w.h.Troubles {
		busy = append(busy, span{t.From, t.Calm})
	}
	// A set that is incomplete holds what it has, and who has left has a second.
	for i, l := range w.looks {
		for _, holder := range l.Holders {
			c := w.byOwner[holder.Owner]
			if c == nil || c.Set() && !(c.Verdict == Granted && c.Done < l.Sent) || c.Verdict == Left && l.Sent < c.Done+w.r.Phantom+w.r.Slack {
				before, after := l.Sent, l.Done
				if i > 0 {
					before = w.looks[i-1].Done
				}
				if i+1 < len(w.looks) {
					after = w.looks[i+1].Sent
				}
				busy = append(busy, span{before, after})
			}
		}
	}
	slices.SortFunc(busy, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	var free []span
	end := Time(0)
	for _, s := range append(busy, span{w.h.End, w.h.End}) {
		if s.from > end+w.r.Idle {
			free = append(free, span{end, s.from})
		}
		end = max(end, s.until)
	}
	bound := w.r.Idle + w.r.Slack
	for _, gap := range free {
		for i := range w.calls {
			c := &w.calls[i]
			if c.Verb != Acquire || c.Wait == 0 || c.Set() || c.attempts > 1 {
				continue
			}
			until := c.Done
			if c.Verdict == Granted && c.Done == gap.until { // it was let wait all that time
				until = gap.until
			}
			if from := max(gap.from, c.sent); min(until, gap.until)-from > bound {
				found = append(found, Violation{Promise: "P5", Name: w.name, What: fmt.Sprintf(
					"from %s to %s nobody had the lock, and this one waited:\n%s\n%s", at(from), at(min(until, gap.until)), c.Op, w.h.tell(w.name, from, gap.until))})
				break
			}
		}
	}
	return found
}

// late finds requests that were answered long after their patience had ended.
func (w *watch) late() (found []Violation) {
	for i := range w.calls {
		c := &w.calls[i]
		bound := c.Wait + w.r.Idle + w.r.Slack
		if c.certain() && c.Verb == Acquire && !c.Attached && c.Done-c.Sent > bound && !w.h.troubled(c.Sent, c.Done) {
			found = append(found, Violation{Promise: "P5", Name: w.name, What: fmt.Sprintf("this answer took %s:\n%s", c.Done-c.Sent, c.Op)})
		}
	}
	return found
}

// overtaken finds requests that were granted before somebody who had been seen in the
// queue when they were sent (P5).
func (w *watch) overtaken() (found []Violation) {
	if w.r.NoQueue {
		return nil
	}
	seen := map[string]Time{} // in the queue, for the first time
	for _, l := range w.looks {
		for _, waiter := range l.Waiters {
			if _, known := seen[waiter.Owner]; !known {
				seen[waiter.Owner] = l.Done
			}
		}
	}
	for owner, since := range seen {
		a := w.byOwner[owner]
		if a == nil || a.attempts > 1 || w.h.troubled(a.sent, a.Done) {
			continue
		}
		mine, granted := a.grant(w.name)
		if !granted && (a.Verdict != Refused || a.Set() || slices.ContainsFunc(w.looks, func(l *Look) bool { return l.holds(owner) })) {
			continue // it may have had its turn, and lost it
		}
		for i := range w.calls {
			b := &w.calls[i]
			theirs, ok := b.grant(w.name)
			if b.Verb != Acquire || !ok || b.attempts > 1 || b.sent < since || w.byOwner[b.Owner].ID != b.ID || b.Owner == owner {
				continue
			}
			if granted && theirs.Token < mine.Token || !granted && b.Done+w.r.Slack/4 < a.Done {
				found = append(found, Violation{Promise: "P5", Name: w.name, What: fmt.Sprintf(
					"this one was overtaken, which had been in the queue at %s:\n%s\nby\n%s", at(since), a.Op, b.Op)})
				return found
			}
		}
	}
	return found
}

// outlived finds leases that are shown long after their TTL (P4).
func (w *watch) outlived() (found []Violation) {
	for _, held := range w.held {
		if held.attached {
			continue
		}
		for _, l := range w.looks {
			if l.Sent > held.over && l.holds(held.owner) && !w.h.troubled(held.from, l.Done) {
				found = append(found, Violation{Promise: "P4", Name: w.name, What: fmt.Sprintf(
					"at %s the lease of %s is shown, which was over by %s:\n%s", at(l.Sent), held.owner, at(held.over), w.h.tell(w.name, held.from, l.Sent))})
				break
			}
		}
	}
	return found
}

// leaked finds places in the queue whose client has left (P5): nobody waits there.
func (w *watch) leaked() (found []Violation) {
	for _, l := range w.looks {
		for _, waiter := range l.Waiters {
			c := w.byOwner[waiter.Owner]
			if c == nil || c.Verdict != Left || l.Sent <= c.Done+w.r.Phantom+w.r.Slack || w.h.troubled(c.sent, l.Done) {
				continue
			}
			return []Violation{{Promise: "P5", Name: w.name, What: fmt.Sprintf("at %s there is a place in the queue for a client that left:\n%s", at(l.Sent), c.Op)}}
		}
	}
	return nil
}

// phantoms finds leases that live on although their client left before it was told, or
// closed the stream that they were attached to (P6).
func phantoms(h *History, r *Rules) []Violation {
	left := map[string]*Op{} // by owner, the last attempt
	returned := map[string]bool{}
	leavers := 0
	for i := range h.Ops {
		op := &h.Ops[i]
		switch {
		case op.Verb == Acquire && op.Verdict == Left, op.Verb == Release && op.Attached && op.Verdict == Left:
			left[op.Owner] = op
			leavers++
		case left[op.Owner] != nil && op.Owner != "":
			returned[op.Owner] = true
		}
	}
	kept := map[string]bool{}
	var first *Violation
	for i := range h.Looks {
		l := &h.Looks[i]
		for _, holder := range l.Holders {
			op := left[holder.Owner]
			if op == nil || returned[holder.Owner] || kept[holder.Owner] || l.Sent <= op.Done+r.Phantom+r.Slack || h.troubled(op.Sent, l.Done) {
				continue
			}
			kept[holder.Owner] = true
			if first == nil {
				first = &Violation{Promise: "P6", Name: l.Name, What: fmt.Sprintf("at %s it is held for a client that left at %s:\n%s\nup to then:\n%s", at(l.Sent), at(op.Done), op, h.tell(l.Name, op.Sent, l.Sent))}
			}
		}
	}
	if allowed := (leavers + r.PhantomsPer - 1) / max(r.PhantomsPer, 1); first == nil || r.PhantomsPer > 0 && len(kept) <= allowed {
		return nil
	}
	first.What = fmt.Sprintf("%d of %d who left keep their lease; the first: %s", len(kept), leavers, first.What)
	return []Violation{*first}
}
