package fencing

import (
	"cmp"
	"iter"
	"math"
	"slices"
)

// Holders is the holders of a name. What is asked of them or changed costs time in
// proportion to what is returned and to the logarithm of their number. The zero Holders
// is empty. They are given out as copies, and what is changed in a copy counts when it
// is Put back: so every order knows of every change.
type Holders struct {
	only *node  // the only one; nil where there is none, or were several
	many *trees // all, from the second one on until there is none
}

// trees has the holders of a name in each order.
type trees struct {
	roots   [orders]*node
	permits int     // that they have together
	delays  int     // how many have a LockDelay
	slots   slotSet // that they have
}

// root returns the tree of an order.
func (hs *Holders) root(order int) *node {
	switch {
	case hs.many != nil:
		return hs.many.roots[order]
	case hs.only != nil && hs.only.in(order):
		return hs.only
	}
	return nil
}

// Len returns how many there are, those included whose time has run out unnoticed.
func (hs *Holders) Len() int { return hs.root(byLease).size(byLease) }

// Permits returns how many permits they have together: a lease without a limit counts as one.
func (hs *Holders) Permits() int {
	switch {
	case hs.many != nil:
		return hs.many.permits
	case hs.only != nil:
		return hs.only.permits()
	}
	return 0
}

// delay reports whether any has a LockDelay.
func (hs *Holders) delay() bool {
	return hs.many != nil && hs.many.delays > 0 || hs.only != nil && hs.only.delays()
}

// slots returns the slots that they have, which is only to be looked at.
func (hs *Holders) slots() (taken slotSet) {
	if hs.many != nil {
		return hs.many.slots
	}
	if hs.only != nil {
		for n := range hs.only.slots() {
			taken.add(n)
		}
	}
	return taken
}

// All visits them in order of their tokens, which is that of their grants but where a
// claim has set another. They must not be changed meanwhile.
func (hs *Holders) All() iter.Seq[Holding] {
	return func(yield func(Holding) bool) {
		hs.root(byToken).each(byToken, 0, func(n *node) bool { return yield(n.holding()) })
	}
}

// Find returns the one with the public part of a lease id.
func (hs *Holders) Find(lease LeasePublic) (Holding, bool) {
	if n := hs.find(lease); n != nil {
		return n.holding(), true
	}
	return Holding{}, false
}

func (hs *Holders) find(lease LeasePublic) *node {
	n := hs.root(byLease)
	for n != nil && n.lease != lease {
		if l := &n.links[byLease]; lease < n.lease {
			n = l.left
		} else {
			n = l.right
		}
	}
	return n
}

// WithToken returns the one with a token.
func (hs *Holders) WithToken(token Token) (Holding, bool) {
	n := hs.root(byToken)
	for n != nil && n.token != token {
		if l := &n.links[byToken]; token < n.token {
			n = l.left
		} else {
			n = l.right
		}
	}
	if n == nil {
		return Holding{}, false
	}
	return n.holding(), true
}

// Put adds h, or puts it in the place of what its lease held before.
func (hs *Holders) Put(h Holding) {
	n := hs.find(h.Lease)
	switch {
	case n == nil && hs.Len() == 0:
		hs.only = &node{pack(&h), &alone}
	case n == hs.only && n != nil:
		n.packed = pack(&h)
	case n == nil:
		if hs.only != nil {
			hs.many = &trees{}
			hs.many.add(hs.only)
			hs.only = nil
		}
		hs.many.add(&node{packed: pack(&h)})
	default:
		hs.many.change(n, pack(&h))
	}
}

// Remove takes out the one with the public part of a lease id, if there is one.
func (hs *Holders) Remove(lease LeasePublic) {
	n := hs.find(lease)
	if n == nil {
		return
	}
	if n != hs.only {
		hs.many.remove(n)
	}
	if n == hs.only || hs.Len() == 0 {
		*hs = Holders{}
	}
}

// add adds a node that is in no other trees.
func (ts *trees) add(n *node) {
	n.own()
	ts.count(&n.packed)
	for order := range ts.roots {
		if n.in(order) {
			ts.roots[order] = ts.roots[order].add(order, n)
		}
	}
}

// change has a node be something else of the same lease.
func (ts *trees) change(n *node, is packed) {
	var moves [orders]bool
	for order := range ts.roots {
		before, after := n.in(order), is.in(order)
		if moves[order] = before != after || after && compare[order](&n.packed, &is) != 0; moves[order] && before {
			ts.roots[order] = ts.roots[order].without(order, n)
			n.links[order] = links{}
		}
	}
	ts.discount(&n.packed)
	ts.count(&is)
	n.packed = is
	for order := range ts.roots {
		if moves[order] && n.in(order) {
			ts.roots[order] = ts.roots[order].add(order, n)
		}
	}
}

func (ts *trees) remove(n *node) {
	ts.discount(&n.packed)
	for order := range ts.roots {
		if n.in(order) {
			ts.roots[order] = ts.roots[order].without(order, n)
		}
	}
}

// count takes the permits of a holder.
func (ts *trees) count(p *packed) {
	ts.permits += p.permits()
	if p.delays() {
		ts.delays++
	}
	for n := range p.slots() {
		ts.slots.add(n)
	}
}

// discount frees the permits of a holder.
func (ts *trees) discount(p *packed) {
	ts.permits -= p.permits()
	if p.delays() {
		ts.delays--
	}
	for n := range p.slots() {
		ts.slots.remove(n)
	}
}

// First returns the one with the lowest token. There must be one.
func (hs *Holders) First() Holding { return hs.root(byToken).at(byToken, 0).holding() }

// tolerate returns how many permits all of them tolerate, themselves included.
func (hs *Holders) tolerate() int {
	if hs.Len() == 0 {
		return AnyNumber
	}
	return hs.root(byTolerance).at(byTolerance, 0).tolerates()
}

// nextEnd returns when the first of those that are not provisional ends, or the last
// instant of all if there is none.
func (hs *Holders) nextEnd() Instant {
	if hs.firm() == 0 {
		return math.MaxInt64
	}
	return hs.root(byEnd).at(byEnd, 0).expiresAt
}

// lastEnd returns when the last of those that are not provisional ends, or the first
// instant of all if there is none.
func (hs *Holders) lastEnd() Instant {
	if hs.firm() == 0 {
		return math.MinInt64
	}
	return hs.root(byEnd).at(byEnd, hs.firm()-1).expiresAt
}

// firm returns how many are not provisional: in byEnd they stand before the others.
func (hs *Holders) firm() int {
	return hs.root(byEnd).rank(byEnd, func(n *node, _ int) bool { return !n.provisional })
}

// over returns how many are not provisional and not live at now: in byEnd they are the
// first.
func (hs *Holders) over(now Instant) int {
	return hs.root(byEnd).rank(byEnd, func(n *node, _ int) bool { return !n.provisional && !live(n.expiresAt, now) })
}

// Unconfirmed reports whether any is provisional.
func (hs *Holders) Unconfirmed() bool { return hs.firm() < hs.Len() }

// gateways visits the gateways with provisional leases, with where in byEnd theirs
// begin and end.
func (hs *Holders) gateways(visit func(gateway Gateway, from, to int)) {
	for from := hs.firm(); from < hs.Len(); {
		gateway := hs.root(byEnd).at(byEnd, from).gateway
		to := hs.root(byEnd).rank(byEnd, func(n *node, _ int) bool { return !n.provisional || n.gateway <= gateway })
		visit(gateway, from, to)
		from = to
	}
}

// Provisional returns the provisional ones of a gateway, in order of their tokens.
func (hs *Holders) Provisional(of Gateway) []Holding {
	var found []*node
	hs.gateways(func(gateway Gateway, from, to int) {
		if gateway == of {
			found = hs.appendRange(found, from, to)
		}
	})
	return byTokens(found)
}

// Hanging visits those that hang on a stream of a gateway, as heartbeats tell, with its stamp:
// see Entry.
func (hs *Holders) Hanging(of Gateway) iter.Seq2[LeasePublic, Stamp] {
	return func(yield func(LeasePublic, Stamp) bool) {
		root := hs.root(byStream)
		before := root.rank(byStream, func(n *node, _ int) bool { return n.gateway < of })
		root.each(byStream, before, func(n *node) bool { return n.gateway == of && yield(n.lease, n.few.attached) })
	}
}

// Streams visits the gateways whose streams any of them hangs on, each once, in order.
func (hs *Holders) Streams() iter.Seq[Gateway] {
	return func(yield func(Gateway) bool) {
		root := hs.root(byStream)
		for at := 0; at < root.size(byStream); {
			gateway := root.at(byStream, at).gateway
			if !yield(gateway) {
				return
			}
			at = root.rank(byStream, func(n *node, _ int) bool { return n.gateway <= gateway })
		}
	}
}

// due returns those whose time is over at now, or that are provisional and of a gateway
// that is not alive, in order of their tokens: the first most in order of compareDue.
// It reports whether there are more.
func (hs *Holders) due(now Instant, alive func(Gateway) bool, most int) (due []Holding, more bool) {
	all, first := 0, []*node(nil)
	add := func(from, to int) {
		all += to - from
		first = hs.appendRange(first, from, min(to, from+most-len(first)))
	}
	add(0, hs.over(now))
	hs.gateways(func(gateway Gateway, from, to int) {
		if !alive(gateway) {
			add(from, to)
		}
	})
	return byTokens(first), all > most
}

// Over returns those that are not provisional and not live at now.
func (hs *Holders) Over(now Instant) []Holding { return byTokens(hs.appendRange(nil, 0, hs.over(now))) }

// live returns how many are not due at now, and at most most of them in order of their
// tokens: those that expire first, and after them those that are provisional, as if they
// were confirmed now.
func (hs *Holders) live(now Instant, alive func(Gateway) bool, most int) (count int, shown []Holder) {
	var first []*node
	add := func(from, to int) {
		count += to - from
		first = hs.appendRange(first, from, min(to, from+most-len(first)))
	}
	add(hs.over(now), hs.firm())
	hs.gateways(func(gateway Gateway, from, to int) {
		if alive(gateway) {
			add(from, to)
		}
	})
	sortByToken(first)
	shown = slices.Grow(shown, len(first))
	for _, n := range first {
		shown = append(shown, n.holding().Holder)
		if h := &shown[len(shown)-1]; h.Provisional {
			h.ExpiresAt = now.Add(h.TTL)
		}
	}
	return count, shown
}

// expired returns those that are not provisional and not live at now, the newest token
// first: the last most in order of compareDue.
func (hs *Holders) expired(now Instant, most int) []Holding {
	over := hs.over(now)
	last := byTokens(hs.appendRange(nil, max(0, over-most), over))
	slices.Reverse(last)
	return last
}

// appendRange appends those of byEnd that have from before them to those that have to.
func (hs *Holders) appendRange(list []*node, from, to int) []*node {
	if from >= to {
		return list
	}
	list = slices.Grow(list, to-from)
	hs.root(byEnd).each(byEnd, from, func(n *node) bool {
		list = append(list, n)
		from++
		return from < to
	})
	return list
}

func sortByToken(list []*node) {
	slices.SortFunc(list, func(a, b *node) int { return a.compareToken(&b.packed) })
}

// byTokens returns copies in order of their tokens.
func byTokens(list []*node) []Holding {
	sortByToken(list)
	if len(list) == 0 {
		return nil
	}
	copies := make([]Holding, len(list))
	for i, n := range list {
		copies[i] = n.holding()
	}
	return copies
}

// clone returns a copy that shares nothing with hs.
func (hs *Holders) clone() (c Holders) {
	if hs.only != nil {
		copied := *hs.only
		c.only = &copied
	}
	if hs.many == nil {
		return c
	}
	copies := make(map[*node]*node, hs.Len())
	hs.root(byLease).each(byLease, 0, func(n *node) bool {
		copied, all := *n, *n.links
		copied.links = &all
		copies[n] = &copied
		return true
	})
	for _, n := range copies {
		for order := range n.links {
			l := &n.links[order]
			l.left, l.right = copies[l.left], copies[l.right]
		}
	}
	c.many = &trees{permits: hs.many.permits, delays: hs.many.delays, slots: slices.Clone(hs.many.slots)}
	for order, root := range hs.many.roots {
		c.many.roots[order] = copies[root]
	}
	return c
}

func (p *packed) compareLease(other *packed) int { return cmp.Compare(p.lease, other.lease) }

func (p *packed) compareToken(other *packed) int {
	return cmp.Or(cmp.Compare(p.token, other.token), p.compareLease(other))
}

func (p *packed) compareTolerance(other *packed) int {
	return cmp.Or(cmp.Compare(p.tolerates(), other.tolerates()), p.compareLease(other))
}

func (p *packed) compareStream(other *packed) int {
	return cmp.Or(cmp.Compare(p.gateway, other.gateway), p.compareLease(other))
}

// compareDue orders leases by when they are due: first those whose time runs out, by
// when, then the provisional ones, by gateway.
func (p *packed) compareDue(other *packed) int {
	if p.provisional != other.provisional {
		if other.provisional {
			return -1
		}
		return 1
	}
	if p.provisional {
		return cmp.Or(cmp.Compare(p.gateway, other.gateway), p.compareLease(other))
	}
	return cmp.Or(cmp.Compare(p.expiresAt, other.expiresAt), p.compareLease(other))
}
