package fencing

// The orders in which the holders of a name are kept: a tree of each.
const (
	byLease = iota
	byToken
	byEnd       // see compareDue
	byTolerance // how many holders it tolerates, the fewest first
	byStream    // the gateway; only those that hang on a stream there: see Holding.hangs
	orders
)

// compare has the comparison of each order. No two holders are equal in any.
var compare = [orders]func(a, b *packed) int{
	byLease:     (*packed).compareLease,
	byToken:     (*packed).compareToken,
	byEnd:       (*packed).compareDue,
	byTolerance: (*packed).compareTolerance,
	byStream:    (*packed).compareStream,
}

// in reports whether a holder is in the tree of an order.
func (p *packed) in(order int) bool { return order != byStream || p.hangs() }

// node is a holder in the trees of the orders that it is in. They are weight-balanced: of the two
// sides of a node none has more than balanceFactor times the weight of the other, which
// is its size and one.
type node struct {
	packed
	links *[orders]links // alone of an only holder
}

type links struct {
	left, right *node
	size        int32 // of the tree below and with this node
}

// alone is the links of a node that is the only one of its trees, as most are. It is never changed: see own.
var alone = func() (all [orders]links) {
	for order := range all {
		all[order].size = 1
	}
	return all
}()

// own gives a node that is not to be the only one any more links that can be changed.
func (n *node) own() {
	all := alone
	n.links = &all
}

// With these a rotation, single or double, always restores the balance: see Hirai and
// Yamamoto, "Balancing weight-balanced trees", 2011.
const (
	balanceFactor  = 3
	rotationFactor = 2
)

func (n *node) size(order int) int {
	if n == nil {
		return 0
	}
	return int(n.links[order].size)
}

// add returns the tree of n with a node that is not in it.
func (n *node) add(order int, added *node) *node {
	if n == nil {
		added.links[order] = links{size: 1}
		return added
	}
	l := &n.links[order]
	if compare[order](&added.packed, &n.packed) < 0 {
		l.left = l.left.add(order, added)
	} else {
		l.right = l.right.add(order, added)
	}
	return n.balance(order)
}

// without returns the tree of n without a node that is in it.
func (n *node) without(order int, gone *node) *node {
	l := &n.links[order]
	switch {
	case n == gone:
		return joined(order, l.left, l.right)
	case compare[order](&gone.packed, &n.packed) < 0:
		l.left = l.left.without(order, gone)
	default:
		l.right = l.right.without(order, gone)
	}
	return n.balance(order)
}

// joined returns the tree of two that stood on both sides of a node.
func joined(order int, left, right *node) *node {
	var top *node
	switch {
	case left == nil:
		return right
	case right == nil:
		return left
	case left.size(order) > right.size(order):
		top = left.at(order, left.size(order)-1)
		left = left.without(order, top)
	default:
		top = right.at(order, 0)
		right = right.without(order, top)
	}
	top.links[order].left, top.links[order].right = left, right
	return top.balance(order)
}

// balance returns the tree of n, of which one side has changed by one node.
func (n *node) balance(order int) *node {
	l := &n.links[order]
	left, right := l.left.size(order)+1, l.right.size(order)+1
	l.size = int32(left + right - 1)
	switch {
	case right > balanceFactor*left:
		if r := &l.right.links[order]; r.left.size(order)+1 >= rotationFactor*(r.right.size(order)+1) {
			l.right = l.right.rotateRight(order)
		}
		return n.rotateLeft(order)
	case left > balanceFactor*right:
		if r := &l.left.links[order]; r.right.size(order)+1 >= rotationFactor*(r.left.size(order)+1) {
			l.left = l.left.rotateLeft(order)
		}
		return n.rotateRight(order)
	}
	return n
}

func (n *node) rotateLeft(order int) *node {
	top := n.links[order].right
	n.links[order].right, top.links[order].left = top.links[order].left, n
	n.count(order)
	top.count(order)
	return top
}

func (n *node) rotateRight(order int) *node {
	top := n.links[order].left
	n.links[order].left, top.links[order].right = top.links[order].right, n
	n.count(order)
	top.count(order)
	return top
}

func (n *node) count(order int) {
	l := &n.links[order]
	l.size = int32(l.left.size(order) + l.right.size(order) + 1)
}

// at returns the node of the tree that has i before it; there is one.
func (n *node) at(order, i int) *node {
	for {
		l := &n.links[order]
		switch left := l.left.size(order); {
		case i < left:
			n = l.left
		case i == left:
			return n
		default:
			n, i = l.right, i-left-1
		}
	}
}

// rank returns how many nodes there are until the first of which before does not hold.
// It is given the node and how many stand before that, and holds of no later one then.
func (n *node) rank(order int, before func(n *node, at int) bool) int {
	rank := 0
	for n != nil {
		l := &n.links[order]
		at := rank + l.left.size(order)
		if before(n, at) {
			n, rank = l.right, at+1
		} else {
			n = l.left
		}
	}
	return rank
}

// each visits the nodes but the first skip in order, until visit returns false. It
// reports whether that was never.
func (n *node) each(order, skip int, visit func(*node) bool) bool {
	if n == nil {
		return true
	}
	l := &n.links[order]
	left := l.left.size(order)
	if skip < left && !l.left.each(order, skip, visit) {
		return false
	}
	if skip <= left && !visit(n) {
		return false
	}
	return l.right.each(order, max(0, skip-left-1), visit)
}
