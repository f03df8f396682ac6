package embedded

import (
	"container/list"
	"encoding/binary"
	"slices"

	"fencepost/internal/fencing"
)

// maxPast bounds how many ended leases are remembered for people in all: some
// 30 MB. Beyond it the name whose last lease ended longest ago loses its history.
const maxPast = 100_000

// histories keeps the histories in the file in step with those of the records,
// and bounds them.
type histories struct {
	order list.List // of *pastOf: the name whose lease ended longest ago comes first
	names map[fencing.Name]*list.Element
	total int // ended leases
	most  int
}

// pastOf is the history of a name. Its entries are numbered as they come.
type pastOf struct {
	name  fencing.Name
	last  uint64 // the newest
	count uint64
}

func newHistories() *histories {
	return &histories{names: map[fencing.Name]*list.Element{}, most: maxPast}
}

// follow notes that leases have ended on name, or that its record has been
// forgotten: r is the record as it is now, nil if there is none.
func (h *histories) follow(state *fencing.State, name fencing.Name, ended int, changed *changes) {
	p := &pastOf{name: name}
	at := h.names[name]
	if at != nil {
		p = at.Value.(*pastOf)
	}
	var kept []fencing.Ended
	if r := state.Records[name]; r != nil {
		kept = r.History
	}
	before := *p
	p.last, p.count = before.last+uint64(ended), uint64(len(kept))
	first := p.last - p.count + 1
	for n := before.last - before.count + 1; n <= before.last && n < first; n++ {
		changed.log.remove(history, pastKey(name, n))
	}
	for n := max(first, before.last+1); n <= p.last; n++ {
		changed.log.put(history, pastKey(name, n), endedOnDisk(&kept[n-first]))
	}
	h.total += int(p.count) - int(before.count)
	switch {
	case at == nil && p.count > 0:
		h.names[name] = h.order.PushBack(p)
	case at != nil && p.count == 0:
		delete(h.names, name)
		h.order.Remove(at)
	case at != nil:
		h.order.MoveToBack(at)
	}
	for h.total > h.most {
		oldest := h.order.Front().Value.(*pastOf).name
		state.Records[oldest].History = nil
		h.follow(state, oldest, 0, changed)
	}
}

// restore takes over the histories of a state as it was read, in which last has
// the number of each name's newest entry.
func (h *histories) restore(state *fencing.State, last map[fencing.Name]uint64) {
	all := make([]*pastOf, 0, len(last))
	for name, number := range last {
		p := &pastOf{name: name, last: number, count: uint64(len(state.Records[name].History))}
		all = append(all, p)
		h.total += int(p.count)
	}
	end := func(p *pastOf) fencing.Instant {
		past := state.Records[p.name].History
		return past[len(past)-1].At
	}
	slices.SortFunc(all, func(p, q *pastOf) int { return int(end(p) - end(q)) })
	for _, p := range all {
		h.names[p.name] = h.order.PushBack(p)
	}
}

// pastKey is the key of an entry of a history.
func pastKey(name fencing.Name, number uint64) []byte {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], number)
	return subKey(name, string(b[:]))
}
