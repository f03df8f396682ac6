package history

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// projection makes of what clients saw of one name the moves that the search puts into
// order.
type projection struct {
	name  string
	rules *Rules
	all   *History
	calls []call

	granted map[string]bool  // public parts of leases whose grant somebody was told of
	tokens  map[int64]Time   // of those: when somebody was told of the grant for the first time
	issued  map[string]int64 // by lease id
	seen    map[int64]Time   // by token: when somebody was told for the last time that the lease was there
	breaks  map[int64]int    // how many calls break a token
	depths  map[string]bool  // leases of which the depth is not known
	frail   []frail
	moves   []porcupine.Operation
}

// project returns the moves of a name, and is to be called for one name at a time.
func project(h *History, name string, r *Rules) []porcupine.Operation {
	p := &projection{
		name: name, rules: r, all: h, calls: h.calls(name),
		granted: map[string]bool{}, tokens: map[int64]Time{}, issued: map[string]int64{}, seen: map[int64]Time{}, breaks: map[int64]int{}, depths: map[string]bool{}, frail: h.fragile(r),
	}
	for i := range p.calls {
		c := &p.calls[i]
		g, ok := c.grant(name)
		switch {
		case c.Verb == Acquire && ok:
			p.granted[public(c.Lease)], p.issued[c.Lease] = true, g.Token
			if told, ok := p.tokens[g.Token]; !ok || c.Done < told {
				p.tokens[g.Token] = c.Done
			}
		case c.Verb == Break:
			p.breaks[c.Token]++
		}
		unknown := !c.certain() || c.Verdict == Lost && h.forgotEnds(c.sent, c.Done) // of it an attempt before may have been carried out, and forgotten
		if unknown && (c.Verb == Acquire || c.Verb == Release && c.Hold > 1) {
			p.depths[c.Lease] = true
		}
	}
	for i := range p.calls {
		if c := &p.calls[i]; c.Verdict == Granted || c.Verdict == Ended {
			token := p.tokenOf(c)
			p.seen[token] = max(p.seen[token], c.Done)
		}
	}
	for i := range h.Looks {
		if l := &h.Looks[i]; l.Name == name && r.CurrentReads {
			for _, s := range l.Holders {
				p.seen[s.Token] = max(p.seen[s.Token], l.Done)
			}
		}
	}
	for i := range p.calls {
		p.call(&p.calls[i])
	}
	p.ends()
	if r.CurrentReads {
		p.reads()
	}
	for _, t := range h.Troubles {
		if t.Forgets {
			p.add(0, t.From, t.Until, move{what: moveMayBeForgotten, gone: r.NoQuarantine})
		}
		if t.Split {
			p.add(0, t.Until, t.Until, move{what: moveMayBeForgotten, gone: r.NoQuarantine})
		}
	}
	slices.SortStableFunc(p.moves, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	return p.moves
}

func public(lease string) string { before, _, _ := strings.Cut(lease, "."); return before }

func (p *projection) add(client int, from, until Time, m move) {
	p.moves = append(p.moves, porcupine.Operation{ClientId: client, Input: &m, Call: int64(from), Return: int64(until)})
}

// call adds what a call is, but not the end of leases by time.
func (p *projection) call(c *call) {
	m := move{lease: c.Lease, owner: c.Owner, token: c.Token, bears: tolerance(c.Mode, c.Limit), permits: max(1, c.Permits), hold: c.Hold, term: c.ID}
	g, granted := c.grant(p.name)
	if granted {
		m.token, m.slots = g.Token, maskOf(g.Slots)
	}
	known := p.granted[public(c.Lease)]
	until := c.Done
	m.frail = p.undone(c)
	switch {
	case c.Verb == Break:
		if _, told := p.tokens[c.Token]; !told {
			return // of a lease that nobody was told of
		}
		m.lease, m.owner = "", ""
		switch {
		case c.Verdict == Lost && p.rules.EndsCross && p.broken(c):
			m.what = moveMayBreak // at some of the nodes it was first, and at most of them not
		case c.Verdict == Lost:
			m.what = moveNoToken
		case c.Verdict == Ended && p.breaks[c.Token] == 1 && !p.rules.EndsCross && !p.all.forgot(c.sent-longestTTL, c.Done):
			m.what = moveBreak
		case c.Verdict == Ended: // a second break is told the same as the first, and so is one of a lease whose end was forgotten
			m.what = moveMayBreak
		case !c.certain():
			m.what, until = moveMayBreak, forever
		}
	case c.Verb == Acquire && granted:
		m.what, m.hold, m.known = moveGrant, g.Hold, p.tokens[g.Token]
		if p.depths[c.Lease] && g.Hold > 1 {
			m.what = moveRenew // how deep it is held can't be judged
		}
	case c.Verb == Acquire && c.Verdict == Refused && p.strict(c):
		m.what, m.lease = moveHeld, ""
	case !known: // of a lease that nobody was told of
	case c.lost(p.name):
		if c.Verb == Release && c.Hold < 2 && p.all.forgotEnds(c.sent, c.Done) { // its first attempt may have been carried out, and forgotten
			may := m
			may.what = moveMayRelease
			p.add(c.Client, c.sent, p.merged(c), may)
		}
		if c.Verb == Renew && c.Mode == "shared" && p.all.troubled(c.sent, c.Done) { // likewise, and the time be over since
			may := m
			may.what = moveMayDowngrade
			p.add(c.Client, c.sent, c.Done, may)
		}
		m.ended = c.Reason == "released" || c.Reason == "broken"
		if m.ended || !p.split(c) {
			m.what = moveNotHeld
		}
	case c.Verb == Renew && granted:
		m.what = moveRenew
		if c.Mode == "shared" {
			m.what = moveDowngrade
		}
	case c.Verb == Renew && !c.certain() && c.Mode == "shared":
		m.what, until = moveMayDowngrade, forever
	case c.Verb == Release && (c.Verdict == Ended || c.Verdict == Granted || c.Verdict == Lost):
		m.what = moveRelease
	case c.Verb == Release && !c.certain() && c.Hold < 2:
		m.what, until = moveMayRelease, p.replaced(c.Lease, c.sent)
	}
	if m.what != "" {
		p.add(c.Client, c.sent, until, m)
	}
}

// tokenOf returns the token of the lease that a call is about; 0 if nobody was told of it.
func (p *projection) tokenOf(c *call) int64 {
	if c.Verb == Break {
		return c.Token
	}
	return p.issued[c.Lease]
}

// broken reports whether somebody was told, beside a break, that the lease it is about was
// broken.
func (p *projection) broken(c *call) bool {
	return slices.ContainsFunc(p.calls, func(o call) bool {
		return o.Verb != Break && o.Reason == "broken" && p.tokenOf(&o) == c.Token && o.Done >= c.sent
	})
}

// undone reports whether a call was told that it ended a lease, and that may have been lost.
// If nobody has seen the lease since, it makes no difference.
func (p *projection) undone(c *call) bool {
	return c.Verdict == Ended && c.mayBeUndone(p.frail) && p.seen[p.tokenOf(c)] > c.Done
}

// split reports whether a call may have been told that a lease is lost by a master that
// another one stood beside: it has not heard of the grant, or of the last renewal.
func (p *projection) split(c *call) bool {
	return slices.ContainsFunc(p.all.Troubles, func(t Trouble) bool { return t.Split && t.From <= c.Done && t.Until >= c.sent })
}

// merged returns by when a release that was told that the lease is lost has been carried out, if
// it has: where somebody was told otherwise afterwards, when one master alone answers.
func (p *projection) merged(c *call) Time {
	until := c.Done
	if p.seen[p.tokenOf(c)] <= c.Done {
		return until
	}
	for _, t := range p.all.Troubles {
		if t.Split && t.From <= c.Done && t.Until >= c.sent {
			until = max(until, t.Until)
		}
	}
	return until
}

// strict reports whether a refusal is judged: nobody may have been in the queue, or have
// held the lock without being told.
func (p *projection) strict(c *call) bool {
	if p.rules.NoQueue || c.Status != 423 || c.Delayed || c.Wait > 0 || c.Set() || c.Attached || c.attempts > 1 || p.all.troubled(c.sent, c.Done) {
		return false
	}
	return !slices.ContainsFunc(p.calls, func(o call) bool {
		if o.ID == c.ID || o.Verb != Acquire || o.Wait == 0 && !o.Set() && !o.Attached && o.certain() && o.attempts == 1 {
			return false
		}
		until := o.Done
		if !o.certain() || o.attempts > 1 || o.Set() {
			until += o.TTL + 5*time.Second
		}
		return o.sent <= c.Done && until >= c.sent
	})
}

// replaced returns by when a lease must be over, by what others were granted since, or
// forever.
func (p *projection) replaced(lease string, after Time) Time {
	var token int64
	for i := range p.calls {
		if c := &p.calls[i]; c.Verb == Acquire && c.Lease == lease {
			if g, ok := c.grant(p.name); ok {
				token = g.Token
			}
		}
	}
	by := forever
	for i := range p.calls {
		c := &p.calls[i]
		if g, ok := c.grant(p.name); ok && c.Verb == Acquire && c.Mode != "shared" && g.Token > token && c.Done >= after {
			by = min(by, c.Done)
		}
	}
	return by
}

// term is what one answer said about the end of a lease.
type term struct {
	*call
	deadline Time
	ttl      time.Duration // it lives for that at most
	attached bool
}

// ends adds for every answer about a lease that it may end once its deadline has come,
// and must have when its TTL is over, unless a later answer says otherwise.
func (p *projection) ends() {
	byLease := map[string][]*call{}
	var leases []string
	for i := range p.calls {
		c := &p.calls[i]
		if c.Lease != "" && p.granted[public(c.Lease)] {
			if byLease[c.Lease] == nil {
				leases = append(leases, c.Lease)
			}
			byLease[c.Lease] = append(byLease[c.Lease], c)
		}
	}
	for _, lease := range leases {
		calls := byLease[lease]
		attached := slices.ContainsFunc(calls, func(c *call) bool { return c.Attached })
		longest := time.Duration(0)
		for i, c := range calls {
			g, ok := c.grant(p.name)
			if !ok || c.Verb == Release {
				continue
			}
			t := term{call: c, deadline: g.Deadline, ttl: c.TTL, attached: attached}
			if c.mayBeUndone(p.frail) { // where it shortens the lease, that may be lost
				t.ttl = max(t.ttl, longest)
			}
			longest = max(longest, c.TTL)
			p.end(t, calls[i+1:])
		}
	}
}

func (p *projection) end(t term, later []*call) {
	from, until := t.deadline-p.rules.Margin, forever
	m := move{what: moveExpire, lease: t.Lease, owner: t.Owner, term: t.ID}
	renewed := t.attached // perhaps, and nobody was told
	for _, c := range later {
		_, granted := c.grant(p.name)
		if c.Verb == Renew && !granted { // a first attempt of it may have shortened the lease
			from = min(from, c.sent+c.TTL-p.rules.Margin)
		}
		lost := c.lost(p.name)
		if lost && c.Done < from {
			continue // forgotten: it may still be kept free for its holder
		}
		if p.undone(c) {
			continue // it may be there again
		}
		if c.Verb != Release && granted || c.Verdict == Ended || lost {
			until = c.Done
			renewed = renewed || lost && c.Verb == Renew && p.all.troubled(c.sent, c.Done) // by a first attempt
			break
		}
		if !c.certain() && c.Verb != Release {
			renewed = true
		}
	}
	if from > until {
		return // it must have lived until then
	}
	if by := p.replaced(t.Lease, from); by >= from {
		until = min(until, by)
	}
	if !renewed {
		if latest := p.all.latest(t.Done, t.ttl, p.rules); latest >= from {
			until = min(until, latest)
		}
	}
	p.add(t.Client, from, until, m)
}

// latest returns by when a lease that lives for ttl from done at most is over (P4). Troubles
// are in order of From.
func (h *History) latest(done Time, ttl time.Duration, r *Rules) Time {
	latest, stopped := done+ttl+r.Slack, Time(0)
	for _, t := range h.Troubles {
		if r.RestartRenews && t.Restart && t.From <= latest {
			latest = max(latest, t.Until+ttl+r.Slack)
		}
		if r.TimeStops && t.Stopped && t.From <= latest {
			latest += max(0, t.Until-max(t.From, done, stopped))
			stopped = max(stopped, t.Until)
		}
	}
	return latest
}
