package history

import (
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
		found = append(found, w.unserved()...)
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
						w.held[j].ended(c.Done, w.r)
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
			latest := w.h.latest(c.Done, c.TTL, w.r)
			if w.r.LeftBehind { // a node may have missed that it is shorter now
				latest = max(latest, w.held[j].over)
			}
			w.held[j].let, w.held[j].over = max(g.Deadline, w.held[j].let), latest
			if c.TTL > 0 && g.Deadline < w.held[j].let && c.Verb == Renew { // shortened
				w.held[j].let = g.Deadline
			}
		case !c.certain() && c.Verb == Release && c.Hold < 2:
			w.held[j].let = min(w.held[j].let, c.Done)
		case !c.certain(): // a renewal, perhaps
			w.held[j].over = max(w.held[j].over, w.h.latest(c.Done+5*time.Second, c.TTL, w.r))
		case c.Verdict == Ended, c.lost(w.name) && c.Verb != Acquire:
			w.held[j].ended(c.Done, w.r)
		}
	}
}

// ended notes that somebody was told at that time that the lease has ended.
func (l *held) ended(at Time, r *Rules) {
	l.let = min(l.let, at)
	if !r.LeftBehind {
		l.over = at + r.Slack
	}
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
			// whoever was refused may have left the queue when its wait was over, and have been told later
			if granted && theirs.Token < mine.Token || !granted && b.Done+w.r.Slack/4 < min(a.Done, a.sent+a.Wait) {
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
			if l.Sent > held.over && l.holds(held.owner) && (w.r.TimeStops || !w.h.troubled(held.from, l.Done)) {
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

// keeps counts the clients that left before they were told, or closed the stream that
// their lease was attached to, and those of them whose lease lives on (P6). first tells
// of one.
func (h *History) keeps(r *Rules) (leavers, kept int, first Violation) {
	left := map[string]*Op{} // by owner, the last attempt
	returned := map[string]bool{}
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
	seen := map[string]bool{}
	for i := range h.Looks {
		l := &h.Looks[i]
		for _, holder := range l.Holders {
			op := left[holder.Owner]
			if op == nil || returned[holder.Owner] || seen[holder.Owner] || l.Sent <= op.Done+r.Phantom+r.Slack || h.troubled(op.Sent, l.Done) {
				continue
			}
			seen[holder.Owner] = true
			if kept++; kept == 1 {
				first = Violation{Promise: "P6", Name: l.Name, What: fmt.Sprintf("at %s it is held for a client that left at %s:\n%s\nup to then:\n%s", at(l.Sent), at(op.Done), op, h.tell(l.Name, op.Sent, l.Sent))}
			}
		}
	}
	return leavers, kept, first
}

// phantoms finds that more leases live on whose client has left than one history may
// have. A series of them is held to less: see TooManyKept.
func phantoms(h *History, r *Rules) []Violation {
	leavers, kept, first := h.keeps(r)
	if kept == 0 || kept <= max(r.Kept, leavers*r.Kept/keptOf) {
		return nil
	}
	first.What = fmt.Sprintf("%d of %d who left keep their lease; the first: %s", kept, leavers, first.What)
	return []Violation{first}
}

// keptOf is of how many clients that left Rules.Kept may keep their lease in one
// history, and keptOfAll of how many one may, in many histories together.
const (
	keptOf    = 200
	keptOfAll = 1000
)

// TooManyKept reports whether so many of those who left in a series of histories is more
// than a gateway can fail to see: a close that reaches it after it has looked. Two may,
// however few have left.
func TooManyKept(leavers, kept int) bool { return kept > max(2, leavers/keptOfAll) }
