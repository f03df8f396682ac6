package quorum

import (
	"context"

	"fencepost/internal/fencing"
)

// breakLease breaks the lease that a majority has with the token; it is broken at every node
// by the token that it has there, or is given notice there.
func (s *Store) breakLease(ctx context.Context, r fencing.BreakRequest) (fencing.Outcome, *fencing.Error) {
	views := make([]*fencing.Lock, len(s.nodes))
	began := s.options.Clock()
	err := ask(ctx, s, func(ctx context.Context, node fencing.Node) (fencing.Outcome, error) {
		return node.Do(ctx, fencing.InspectRequest{Name: r.Name, Holders: allHolders})
	}, func(a answer[fencing.Outcome]) bool {
		if a.err == nil {
			views[a.node] = a.out.Lock
		}
		return false // all that can answer: a lease is to be broken wherever it is
	})
	if err != nil {
		return fencing.Outcome{}, err
	}
	lock := s.merge(r.Name, views, began)
	var lease fencing.LeasePublic
	var holder fencing.Holder
	for i := range lock.Holders {
		if lock.Holders[i].Token == r.Token {
			holder = lock.Holders[i]
			lease = holder.Lease
		}
	}
	out := fencing.Outcome{Now: lock.Now, Asked: began}
	outs := make([]fencing.Outcome, len(s.nodes))
	done, stale, failed := 0, 0, make([]vote, len(s.nodes))
	key := leaseKey{r.Name, lease}
	s.ends(key)
	err = askBy(ctx, s, func(i int, f func()) bool { return s.inTurn(key, i, telling(f)) }, s.call, func(ctx context.Context, node fencing.Node) (fencing.Outcome, error) {
		return node.Do(ctx, fencing.BreakRequest{Name: r.Name, Token: s.tokenAt(node, views, lease, r.Token), BreakReason: r.BreakReason, Notice: r.Notice})
	}, func(a answer[fencing.Outcome]) bool {
		outs[a.node] = a.out
		switch {
		case a.err == nil:
			done++
		case a.err.Code == fencing.CodeStaleToken:
			stale++
		default:
			failed[a.node] = vote{standing: against, err: a.err}
		}
		return false
	})
	out.Ended = s.endedOf(outs)
	switch {
	case err != nil:
		return fencing.Outcome{}, err
	case done+stale < majorityOf(len(s.nodes)):
		return fencing.Outcome{}, commonest(failed)
	case done == 0 || lease == "" && done < majorityOf(len(s.nodes)), r.Notice > 0 && stale >= majorityOf(len(s.nodes)):
		return out, fencing.NoHolderError(r.Token, shownOf(lock))
	case r.Notice > 0 && done < majorityOf(len(s.nodes)): // the others may have it yet, by a retry or from one that was not heard
		return fencing.Outcome{}, unavailable("too few nodes have the lease to be given notice")
	}
	out.Holder = noticed(holder, lock.Now, outs)
	return out, nil
}

// noticed returns a lease as it is shown once nodes have given it notice; the zero one if
// none has, for it is broken.
func noticed(h fencing.Holder, now fencing.Instant, outs []fencing.Outcome) fencing.Holder {
	given := fencing.Outcome{Now: now, Holder: h}
	given.Holder.BreakAt, given.Holder.BreakReason = 0, ""
	for i := range outs {
		tellNotice(&given, &outs[i])
	}
	if given.Holder.BreakAt == 0 {
		return fencing.Holder{}
	}
	return given.Holder
}

// tokenAt returns the token that a lease has at a node, which is another one where
// it was never claimed; without a lease it is the one to break.
func (s *Store) tokenAt(node fencing.Node, views []*fencing.Lock, lease fencing.LeasePublic, token fencing.Token) fencing.Token {
	for i, view := range views {
		if s.nodes[i] != node || view == nil || lease == "" {
			continue
		}
		for j := range view.Holders {
			if view.Holders[j].Lease == lease {
				return view.Holders[j].Token
			}
		}
	}
	return token
}
