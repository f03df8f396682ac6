package history

import (
	"fmt"
	"slices"
)

// known is what clients were told of one lease.
type known struct {
	owner   string
	granted []span
	ended   Time // told for certain
	touched Time // somebody began to do something that may end it, or have it end earlier
}

// span is a time in which a lease is there whatever else happens: from an answer to the deadline in it.
type span struct{ from, until Time }

// stale finds looks that are older than what was answered before they were asked for: they show a lease
// of which somebody was told that it has ended, or not show one that lives.
func (w *watch) stale() []Violation {
	if !w.r.CurrentReads {
		return nil
	}
	leases := w.known()
	tell := func(l *Look, token int64, is string) []Violation {
		return []Violation{{Promise: "order", Name: w.name, What: fmt.Sprintf("a look from %s to %s, which shows %v, %s the lease of %s, token %d:\n%s",
			at(l.Sent), at(l.Done), l.Holders, is, leases[token].owner, token, w.h.tell(w.name, l.Sent-longestTTL, l.Done))}}
	}
	for _, l := range w.looks {
		for token, k := range leases {
			shown := slices.ContainsFunc(l.Holders, func(s Shown) bool { return s.Token == token })
			live := slices.ContainsFunc(k.granted, func(s span) bool { return s.from < l.Sent && l.Done < s.until-w.r.Margin })
			switch {
			case shown && k.ended < l.Sent:
				return tell(l, token, "shows that which has ended,")
			case !shown && live && l.Done < k.touched:
				return tell(l, token, "does not show that which lives,")
			}
		}
	}
	return nil
}

// known returns what clients were told of the leases on the name, by token.
func (w *watch) known() map[int64]*known {
	leases, tokens := map[int64]*known{}, map[string]int64{}
	for i := range w.calls {
		c := &w.calls[i]
		g, granted := c.grant(w.name)
		if !granted || c.Verb != Acquire && c.Verb != Renew {
			continue
		}
		k := leases[g.Token]
		if k == nil {
			k = &known{owner: c.Owner, ended: forever, touched: forever}
			leases[g.Token], tokens[c.Lease] = k, g.Token
		}
		for i := range k.granted {
			if s := &k.granted[i]; g.Deadline < s.until { // shortened
				s.until = min(s.until, c.sent)
			}
		}
		k.granted = append(k.granted, span{c.Done, g.Deadline})
	}
	for i := range w.calls {
		c := &w.calls[i]
		k := leases[tokens[c.Lease]]
		if c.Verb == Break {
			k = leases[c.Token]
		}
		if k == nil {
			continue
		}
		if _, granted := c.grant(w.name); c.Verb == Break || c.Verb == Release || c.Verb == Renew && !granted {
			k.touched = min(k.touched, c.sent)
		}
		if c.Verdict == Ended {
			k.ended = min(k.ended, c.Done)
		}
	}
	return leases
}
