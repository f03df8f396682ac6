package machine

import (
	"cmp"

	"github.com/tidwall/btree"

	"fencepost/internal/fencing"
)

// maxPast bounds how many ended leases are remembered for people in all: some 30 MB.
// Beyond it the name whose last lease ended longest ago loses its history.
const maxPast = 100_000

// past keeps the names with a history in order of when their last lease ended. That follows
// from the state alone, so that every node forgets the same.
type past struct {
	order *btree.BTreeG[pastOf]
	names map[fencing.Name]pastOf
	total int // ended leases
	most  int
}

type pastOf struct {
	last  fencing.Instant // when the last lease of the history ended
	name  fencing.Name
	count int
}

func (p pastOf) before(other pastOf) bool {
	return cmp.Or(cmp.Compare(p.last, other.last), cmp.Compare(p.name, other.name)) < 0
}

func newPast(state *fencing.State, most int) *past {
	p := &past{order: btree.NewBTreeGOptions(pastOf.before, btree.Options{NoLocks: true}), names: map[fencing.Name]pastOf{}, most: most}
	for name := range state.Records {
		p.update(state, name)
	}
	return p
}

// update follows a change of the record of name.
func (p *past) update(state *fencing.State, name fencing.Name) {
	is := pastOf{name: name}
	if r := state.Records[name]; r != nil && len(r.History) > 0 {
		is.count, is.last = len(r.History), r.History[len(r.History)-1].At
	}
	was := p.names[name]
	if was == is || was.count == 0 && is.count == 0 {
		return
	}
	p.total += is.count - was.count
	if was.count > 0 {
		p.order.Delete(was)
	}
	if is.count == 0 {
		delete(p.names, name)
		return
	}
	p.names[name] = is
	p.order.Set(is)
}

// oldest returns the name whose history is to go, if there is too much.
func (p *past) oldest() (fencing.Name, bool) {
	if p.total <= p.most {
		return "", false
	}
	first, ok := p.order.Min()
	return first.name, ok
}
