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
	roots   [orders]*node
	permits int     // that they have together
	delays  int     // how many have a LockDelay
	slots   slotSet // that they have
}

// Len returns how many there are, those included whose time has run out unnoticed.
func (hs *Holders) Len() int { return hs.roots[byLease].size(byLease) }

// Permits returns how many permits they have together: a lease without a limit counts as one.
func (hs *Holders) Permits() int { return hs.permits }

// All visits them in order of their tokens, which is that of their grants but where a
// claim has set another. They must not be changed meanwhile.
func (hs *Holders) All() iter.Seq[Holding] {
	return func(yield func(Holding) bool) {
		hs.roots[byToken].each(byToken, 0, func(n *node) bool { return yield(n.Holding) })
	}
}

// Find returns the one with the public part of a lease id.
func (hs *Holders) Find(lease LeasePublic) (Holding, bool) {
	if n := hs.find(lease); n != nil {
		return n.Holding, true
	}
	return Holding{}, false
}

func (hs *Holders) find(lease LeasePublic) *node {
	n := hs.roots[byLease]
	for n != nil && n.Lease != lease {
		if l := &n.links[byLease]; lease < n.Lease {
			n = l.left
		} else {
			n = l.right
		}
	}
	return n
}

// WithToken returns the one with a token.
func (hs *Holders) WithToken(token Token) (Holding, bool) {
	n := hs.roots[byToken]
	for n != nil && n.Token != token {
		if l := &n.links[byToken]; token < n.Token {
			n = l.left
		} else {
			n = l.right
		}
	}
	if n == nil {
		return Holding{}, false
	}
	return n.Holding, true
}

// Put adds h, or puts it in the place of what its lease held before.
func (hs *Holders) Put(h Holding) {
	n := hs.find(h.Lease)
	if n == nil {
		n = &node{Holding: h, links: &alone}
		hs.count(&h)
		if only := hs.roots[byLease]; only != nil {
			only.own()
			n.own()
		}
		for order := range hs.roots {
			if h.in(order) {
				hs.roots[order] = hs.roots[order].add(order, n)
			}
		}
		return
	}
	var moves [orders]bool
	for order := range hs.roots {
		was, is := n.in(order), h.in(order)
		if moves[order] = was != is || is && compare[order](&n.Holding, &h) != 0; moves[order] && was {
			hs.roots[order] = hs.roots[order].without(order, n)
			n.unlink(order)
		}
	}
	hs.discount(&n.Holding)
	hs.count(&h)
	n.Holding = h
	for order := range hs.roots {
		if moves[order] && n.in(order) {
			hs.roots[order] = hs.roots[order].add(order, n)
		}
	}
}

// Remove takes out the one with the public part of a lease id, if there is one.
func (hs *Holders) Remove(lease LeasePublic) {
	n := hs.find(lease)
	if n == nil {
		return
	}
	hs.discount(&n.Holding)
	for order := range hs.roots {
		if n.in(order) {
			hs.roots[order] = hs.roots[order].without(order, n)
		}
	}
}

// count takes the permits of a holder.
func (hs *Holders) count(h *Holding) {
	hs.permits += h.Permits
	if h.LockDelay > 0 {
		hs.delays++
	}
	for n := range h.AllSlots() {
		hs.slots.add(n)
	}
}

// discount frees the permits of a holder.
func (hs *Holders) discount(h *Holding) {
	hs.permits -= h.Permits
	if h.LockDelay > 0 {
		hs.delays--
	}
	for n := range h.AllSlots() {
		hs.slots.remove(n)
	}
}

// First returns the one with the lowest token. There must be one.
func (hs *Holders) First() Holding { return hs.roots[byToken].at(byToken, 0).Holding }

// tolerate returns how many permits all of them tolerate, themselves included.
func (hs *Holders) tolerate() int {
	if hs.Len() == 0 {
		return AnyNumber
	}
	h := hs.roots[byTolerance].at(byTolerance, 0)
	return tolerates(h.Mode, h.Limit)
}

// nextEnd returns when the first of those that are not provisional ends, or the last
// instant of all if there is none.
func (hs *Holders) nextEnd() Instant {
	if hs.firm() == 0 {
		return math.MaxInt64
	}
	return hs.roots[byEnd].at(byEnd, 0).ExpiresAt
}

// lastEnd returns when the last of those that are not provisional ends, or the first
// instant of all if there is none.
func (hs *Holders) lastEnd() Instant {
	if hs.firm() == 0 {
		return math.MinInt64
	}
	return hs.roots[byEnd].at(byEnd, hs.firm()-1).ExpiresAt
}

// firm returns how many are not provisional: in byEnd they stand before the others.
func (hs *Holders) firm() int {
	return hs.roots[byEnd].rank(byEnd, func(n *node, _ int) bool { return !n.Provisional })
}

// over returns how many are not provisional and not live at now: in byEnd they are the
// first.
func (hs *Holders) over(now Instant) int {
	return hs.roots[byEnd].rank(byEnd, func(n *node, _ int) bool { return !n.Provisional && !n.Live(now) })
}

// Unconfirmed reports whether any is provisional.
func (hs *Holders) Unconfirmed() bool { return hs.firm() < hs.Len() }

// gateways visits the gateways with provisional leases, with where in byEnd theirs
// begin and end.
func (hs *Holders) gateways(visit func(gateway Gateway, from, to int)) {
	for from := hs.firm(); from < hs.Len(); {
		gateway := hs.roots[byEnd].at(byEnd, from).Gateway
		to := hs.roots[byEnd].rank(byEnd, func(n *node, _ int) bool { return !n.Provisional || n.Gateway <= gateway })
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
		root := hs.roots[byStream]
		before := root.rank(byStream, func(n *node, _ int) bool { return n.Gateway < of })
		root.each(byStream, before, func(n *node) bool { return n.Gateway == of && yield(n.Lease, n.Attached) })
	}
}

// Streams visits the gateways whose streams any of them hangs on, each once, in order.
func (hs *Holders) Streams() iter.Seq[Gateway] {
	return func(yield func(Gateway) bool) {
		root := hs.roots[byStream]
		for at := 0; at < root.size(byStream); {
			gateway := root.at(byStream, at).Gateway
			if !yield(gateway) {
				return
			}
			at = root.rank(byStream, func(n *node, _ int) bool { return n.Gateway <= gateway })
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
		shown = append(shown, n.Holder)
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
	hs.roots[byEnd].each(byEnd, from, func(n *node) bool {
		list = append(list, n)
		from++
		return from < to
	})
	return list
}

func sortByToken(list []*node) {
	slices.SortFunc(list, func(a, b *node) int { return a.compareToken(&b.Holding) })
}

// byTokens returns copies in order of their tokens.
func byTokens(list []*node) []Holding {
	sortByToken(list)
	if len(list) == 0 {
		return nil
	}
	copies := make([]Holding, len(list))
	for i, n := range list {
		copies[i] = n.Holding
	}
	return copies
}

// clone returns a copy that shares nothing with hs.
func (hs *Holders) clone() Holders {
	copies := make(map[*node]*node, hs.Len())
	hs.roots[byLease].each(byLease, 0, func(n *node) bool {
		copied := *n
		if n.links != &alone {
			all := *n.links
			copied.links = &all
		}
		copies[n] = &copied
		return true
	})
	for _, n := range copies {
		for order := 0; order < orders && n.links != &alone; order++ {
			l := &n.links[order]
			l.left, l.right = copies[l.left], copies[l.right]
		}
	}
	c := Holders{permits: hs.permits, delays: hs.delays, slots: slices.Clone(hs.slots)}
	for order, root := range hs.roots {
		c.roots[order] = copies[root]
	}
	return c
}

func (h *Holding) compareLease(other *Holding) int { return cmp.Compare(h.Lease, other.Lease) }

func (h *Holding) compareToken(other *Holding) int {
	return cmp.Or(cmp.Compare(h.Token, other.Token), h.compareLease(other))
}

func (h *Holding) compareTolerance(other *Holding) int {
	return cmp.Or(cmp.Compare(tolerates(h.Mode, h.Limit), tolerates(other.Mode, other.Limit)), h.compareLease(other))
}

func (h *Holding) compareStream(other *Holding) int {
	return cmp.Or(cmp.Compare(h.Gateway, other.Gateway), h.compareLease(other))
}

// compareDue orders leases by when they are due: first those whose time runs out, by
// when, then the provisional ones, by gateway.
func (h *Holding) compareDue(other *Holding) int {
	if h.Provisional != other.Provisional {
		if other.Provisional {
			return -1
		}
		return 1
	}
	if h.Provisional {
		return cmp.Or(cmp.Compare(h.Gateway, other.Gateway), h.compareLease(other))
	}
	return cmp.Or(cmp.Compare(h.ExpiresAt, other.ExpiresAt), h.compareLease(other))
}
