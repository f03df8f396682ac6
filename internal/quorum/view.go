package quorum

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"fencepost/internal/fencing"
)

// allHolders is more than a name can have: what nodes agree on is compared in full.
const allHolders = 1 << 20

// observation is a lease as the nodes show it that have it with the token, by the gateway's
// clock.
type observation []fencing.Holder

// shown returns the lease as one node has it: it ends when fewer than a majority still have
// it. A node to which it was given back has it since then only; where all have it as it was
// granted, the times are of that one node, which tells whether it was ever renewed.
func (o observation) shown(majority int) fencing.Holder {
	slices.SortFunc(o, func(a, b fencing.Holder) int { return cmp.Compare(a.ExpiresAt, b.ExpiresAt) })
	shown := o[max(0, len(o)-majority)]
	if slices.ContainsFunc(o, func(h fencing.Holder) bool { return h.RenewedAt() != h.AcquiredAt }) {
		for i := range o {
			shown.AcquiredAt = min(shown.AcquiredAt, o[i].AcquiredAt)
		}
	}
	shown.BreakAt, shown.BreakReason = o.notice(majority)
	if shown.BreakAt != 0 {
		shown.BreakAt = max(shown.BreakAt, shown.ExpiresAt)
	}
	return shown
}

// notice returns when the lease is broken by the notices that it was given, and why: fewer than
// a majority have it then. 0 if too few have given it any.
func (o observation) notice(majority int) (at fencing.Instant, reason string) {
	given := slices.DeleteFunc(slices.Clone(o), func(h fencing.Holder) bool { return h.BreakAt == 0 })
	last := max(0, len(o)-majority)
	if last >= len(given) {
		return 0, ""
	}
	slices.SortFunc(given, func(a, b fencing.Holder) int { return cmp.Compare(a.BreakAt, b.BreakAt) })
	return given[last].BreakAt, given[last].BreakReason
}

// merge makes one view of those of the nodes, nil where a node did not answer. A
// lease is shown if a majority has it with one claimed token, as far as can be
// known: nodes that are silent may have what others show.
func (s *Store) merge(name fencing.Name, views []*fencing.Lock, now time.Time) *fencing.Lock {
	lock := &fencing.Lock{Name: name, Now: fencing.InstantOf(now)}
	majority, silent := majorityOf(len(s.nodes)), 0
	seen, where := map[leaseToken]observation{}, whereabouts{}
	for node, view := range views {
		if view == nil {
			silent++
			continue
		}
		lock.LastToken = max(lock.LastToken, view.LastToken)
		lock.HighestAdmitted = max(lock.HighestAdmitted, view.HighestAdmitted)
		for i := range view.Holders {
			h := &view.Holders[i]
			if !h.Claimed {
				continue
			}
			k := leaseToken{h.Lease, h.Token}
			where[k] |= 1 << node
			seen[k] = append(seen[k], s.shown(view, h, now))
		}
	}
	for k, at := range seen {
		if len(at)+silent < majority || where.contradict(k) {
			continue
		}
		lock.Holders = append(lock.Holders, at.shown(majority))
	}
	slices.SortFunc(lock.Holders, func(a, b fencing.Holder) int { return cmp.Compare(a.Token, b.Token) })
	lock.HolderCount = max(len(lock.Holders), unseen(views, majority))
	return lock
}

// unseen returns how many holders a majority counts, where a node shows fewer than it
// counts; 0 where all show all.
func unseen(views []*fencing.Lock, majority int) int {
	var counts []int
	more := false
	for _, view := range views {
		if view != nil {
			counts = append(counts, view.HolderCount)
			more = more || view.HolderCount > len(view.Holders)
		}
	}
	if !more {
		return 0
	}
	slices.Sort(counts)
	return counts[max(0, len(counts)-majority)]
}

// shownOf returns a lock with as many holders as are shown.
func shownOf(lock *fencing.Lock) *fencing.Lock {
	shown := *lock
	shown.Holders = slices.Clone(lock.Holders)
	shown.Trim(fencing.MaxHoldersShown)
	return &shown
}

type leaseToken struct {
	lease fencing.LeasePublic
	token fencing.Token
}

// whereabouts tells which nodes show a lease with a token. A retry can leave a lease at
// a minority with another token than the one the majority has.
type whereabouts map[leaseToken]nodeSet

// contradict reports whether a lease rather has another token: one that more of the
// nodes show, and none of them both. Where that can't be told it is the first, which a
// retry found.
func (w whereabouts) contradict(k leaseToken) bool {
	for other, nodes := range w {
		if other.lease == k.lease && other.token != k.token && nodes&w[k] == 0 &&
			cmp.Or(cmp.Compare(nodes.count(), w[k].count()), cmp.Compare(k.token, other.token)) > 0 {
			return true
		}
	}
	return false
}

// shown returns a node's holder by the gateway's clock.
func (s *Store) shown(view *fencing.Lock, h *fencing.Holder, now time.Time) fencing.Holder {
	shown, at := *h, fencing.InstantOf(now)
	shown.Claimed = false
	shown.AcquiredAt = at.Add(-max(0, view.Now.Sub(h.AcquiredAt)))
	shown.ExpiresAt = at.Add(h.ExpiresAt.Sub(view.Now))
	if h.BreakAt != 0 {
		shown.BreakAt = at.Add(h.BreakAt.Sub(view.Now))
	}
	return shown
}

// views asks all nodes for what they say of a name, until a majority has answered
// and what they say agrees, on what is past as agree has it, or all have.
func (s *Store) views(ctx context.Context, name fencing.Name, agree func([]fencing.Outcome) bool) ([]fencing.Outcome, []*fencing.Lock, time.Time, *fencing.Error) {
	began := s.options.Clock()
	outs, views := make([]fencing.Outcome, len(s.nodes)), make([]*fencing.Lock, len(s.nodes))
	err := askMajority(ctx, s, s.call, func(ctx context.Context, node fencing.Node) (fencing.Outcome, error) {
		return node.Do(ctx, fencing.HistoryRequest{Name: name, Holders: allHolders})
	}, func(node int, out *fencing.Outcome, majority bool) bool {
		outs[node], views[node] = *out, out.Lock
		return majority && alike(views) && agree(outs)
	})
	return outs, views, began, err
}

// alike reports whether all who have answered show the same leases.
func alike(views []*fencing.Lock) bool {
	var first *fencing.Lock
	for _, v := range views {
		switch {
		case v == nil:
		case first == nil:
			first = v
		case !slices.EqualFunc(v.Holders, first.Holders, func(a, b fencing.Holder) bool {
			return a.Lease == b.Lease && a.Token == b.Token && a.Claimed && b.Claimed
		}):
			return false
		}
	}
	return true
}

// compatible reports whether those who have answered remember every lease with one
// token, and one end. Of a lease id that was used more than once the newest counts.
func (s *Store) compatible(outs []fencing.Outcome) bool {
	first := map[fencing.LeasePublic]fencing.Ended{}
	for i := range outs {
		newest := map[fencing.LeasePublic]bool{}
		for _, e := range outs[i].Past { // the newest first
			if !e.Holder.Claimed || newest[e.Holder.Lease] {
				continue
			}
			newest[e.Holder.Lease] = true
			was, is := first[e.Holder.Lease]
			if is && (was.Holder.Token != e.Holder.Token || was.At.Sub(e.At).Abs() > s.options.MaxSkew) {
				return false
			}
			first[e.Holder.Lease] = e
		}
	}
	return true
}

// majorityView returns the quorum's view of a name.
func (s *Store) majorityView(ctx context.Context, name fencing.Name) (*fencing.Lock, *fencing.Error) {
	_, views, began, err := s.views(ctx, name, func([]fencing.Outcome) bool { return true })
	if err != nil {
		return nil, err
	}
	return s.merge(name, views, began), nil
}

// inspect shows a name. Leases that only a minority has are not shown:
// they were left behind. What is past is not waited for as in history: of a lease that the
// nodes remember differently, those count that have answered.
func (s *Store) inspect(ctx context.Context, r fencing.InspectRequest) (fencing.Outcome, error) {
	return s.lookAt(ctx, r.Name, r.Holders, func([]fencing.Outcome) bool { return true })
}

// history shows who held a name: what a majority remembers, as far as it can be asked.
func (s *Store) history(ctx context.Context, r fencing.HistoryRequest) (fencing.Outcome, error) {
	return s.lookAt(ctx, r.Name, r.Holders, s.compatible)
}

// lookAt shows a name and who held it, as views does until agree agrees.
func (s *Store) lookAt(ctx context.Context, name fencing.Name, holders int, agree func([]fencing.Outcome) bool) (fencing.Outcome, error) {
	outs, views, began, err := s.views(ctx, name, agree)
	if err != nil {
		return fencing.Outcome{Err: err}, err
	}
	lock := s.merge(name, views, began)
	past := s.past(outs, views, lock)
	lock.Trim(cmp.Or(holders, fencing.MaxHoldersShown))
	return fencing.Outcome{Now: lock.Now, Lock: lock, Past: past, Asked: began}, nil
}

// past merges what the nodes remember of leases that ended.
func (s *Store) past(outs []fencing.Outcome, views []*fencing.Lock, lock *fencing.Lock) []fencing.Ended {
	type memory struct {
		ended fencing.Ended
		ends  []fencing.Instant // at the nodes that give that reason
		place int               // the foremost in the nodes' lists
	}
	silent := 0
	seen, where := map[leaseToken]*memory{}, whereabouts{}
	for i := range outs {
		if views[i] == nil {
			silent++
			continue
		}
		for j := range views[i].Holders {
			if h := &views[i].Holders[j]; h.Claimed {
				where[leaseToken{h.Lease, h.Token}] |= 1 << i
			}
		}
		for place, e := range outs[i].Past {
			k := leaseToken{e.Holder.Lease, e.Holder.Token}
			if !e.Holder.Claimed || slices.ContainsFunc(lock.Holders, func(h fencing.Holder) bool { return h.Lease == k.lease && h.Token == k.token }) {
				continue
			}
			e.At = lock.Now.Add(-max(0, views[i].Now.Sub(e.At)))
			e.Holder = s.shown(views[i], &e.Holder, lock.Now.Time())
			where[k] |= 1 << i
			m := seen[k]
			if m == nil {
				m = &memory{ended: e, place: place}
				seen[k] = m
			}
			m.place = min(m.place, place)
			switch d := weight(e.Reason) - weight(m.ended.Reason); {
			case d > 0:
				m.ended, m.ends = e, []fencing.Instant{e.At}
			case d == 0:
				m.ends = append(m.ends, e.At)
			}
		}
	}
	maps.DeleteFunc(seen, func(k leaseToken, _ *memory) bool {
		return where[k].count()+silent < majorityOf(len(s.nodes)) || where.contradict(k)
	})
	remembered := slices.Collect(maps.Values(seen))
	for _, m := range remembered { // a lease is over when a majority no longer has it
		slices.Sort(m.ends)
		m.ended.At = m.ends[max(0, len(m.ends)-majorityOf(len(s.nodes)))]
	}
	slices.SortFunc(remembered, func(a, b *memory) int {
		return cmp.Or(cmp.Compare(a.place, b.place), cmp.Compare(b.ended.At, a.ended.At), cmp.Compare(b.ended.Holder.Token, a.ended.Holder.Token))
	})
	var past []fencing.Ended
	for _, m := range remembered[:min(len(remembered), fencing.MaxHistory)] {
		past = append(past, m.ended)
	}
	return past
}

// commonEnds returns the leases that a majority of nodes has found to have ended while
// it dealt with the same request.
func (s *Store) commonEnds(of [][]fencing.Ended) []fencing.Ended {
	var list []fencing.Ended
	nodes := map[leaseToken]int{}
	for _, ended := range of {
		for i := range ended {
			e := ended[i]
			k := leaseToken{e.Holder.Lease, e.Holder.Token}
			if nodes[k]++; e.Holder.Claimed && nodes[k] == majorityOf(len(s.nodes)) {
				e.Holder.Claimed = false
				list = append(list, e)
			}
		}
	}
	return list
}

// endedOf is commonEnds of outcomes.
func (s *Store) endedOf(outs []fencing.Outcome) []fencing.Ended {
	of := make([][]fencing.Ended, len(outs))
	for i := range outs {
		of[i] = outs[i].Ended
	}
	return s.commonEnds(of)
}
