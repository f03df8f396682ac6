package quorum

import (
	"context"
	"slices"

	"fencepost/internal/fencing"
)

// releaseAt has a node let go of a lease. It is CodeReplaced if a newer request has the lease there: a node passes
// over the end of a stream that it has replaced, and says nothing, but it says so of a renewal, which it refuses too.
func releaseAt(ctx context.Context, node fencing.Node, r fencing.ReleaseRequest) (fencing.Outcome, error) {
	out, err := node.Do(ctx, r)
	key := leaseKey{r.Name, r.Lease.Public()}
	if err != nil || r.Stamp == "" || out.Holder.Token != 0 ||
		slices.ContainsFunc(out.Ended, func(e fencing.Ended) bool { return e.Holder.Lease == key.lease }) {
		return out, err
	}
	switch err := renewReleased(ctx, node, r); {
	case err.Code == fencing.CodeLeaseLost: // that was said before
	case err.Code == fencing.CodeReplaced && r.Linger > 0 && lingersAt(ctx, node, key): // the same
	default:
		return out, err
	}
	return out, nil
}

// renewReleased returns how a node refuses to renew a lease for a stream that has let go of it: as lost, or as
// replaced where the lease lingers or hangs on another request.
func renewReleased(ctx context.Context, node fencing.Node, r fencing.ReleaseRequest) *fencing.Error {
	if _, err := node.Do(ctx, fencing.RenewRequest{Name: r.Name, Lease: r.Lease, Stamp: r.Stamp, Epoch: r.Epoch}); err != nil {
		return asError(err)
	}
	return unavailable("the node has the lease hang on the stream again")
}

// lingersAt reports whether a lease hangs on no stream at a node.
func lingersAt(ctx context.Context, node fencing.Node, key leaseKey) bool {
	out, err := node.Do(ctx, fencing.InspectRequest{Name: key.name})
	return err == nil && slices.ContainsFunc(out.Lock.Holders, func(h fencing.Holder) bool {
		return h.Lease == key.lease && h.Attached == ""
	})
}

// sweep ends a lease that a stream let go of also at the nodes that have it hang on a newer request, if it has
// ended at a majority. Those remember that, so that the request, which has come to nothing, gets it no more; but it
// would keep the name from others at these nodes until the lease runs out. Of one that lingers it looks when
// that is over, for until then the request may have it.
func (s *Store) sweep(r fencing.ReleaseRequest, t *tally, key leaseKey) {
	at := t.replaced()
	if !t.ok || at == 0 || r.Hold > 1 {
		return
	}
	over := t.over
	if r.Linger > 0 {
		if !s.idle(r.Linger + 2*s.options.MaxSkew + s.options.NodeTimeout) {
			return
		}
		over = s.lingered(r, key).over
	}
	if over() < t.majority {
		return
	}
	for i := range s.nodes {
		if at.has(i) {
			s.inTurn(key, i, telling(func() {
				call, cancel := s.call()
				defer cancel()
				_, _ = s.nodes[i].Do(call, fencing.ReleaseRequest{Name: r.Name, Lease: r.Lease}) // or it ends with its TTL
			}))
		}
	}
}

// over returns at how many nodes a lease has ended that was to be released, as they remember.
func (t *tally) over() int {
	n := 0
	for i := range t.votes {
		v := &t.votes[i]
		if v.standing == accepted || v.standing == against && v.err.Code == fencing.CodeLeaseLost && v.err.Reason != fencing.ReasonUnknown {
			n++
		}
	}
	return n
}

// lingered returns what each node has to say of a lease that was to linger, and no longer, as of a release.
func (s *Store) lingered(r fencing.ReleaseRequest, key leaseKey) *tally {
	t := newTally(len(s.nodes), 0, true)
	_ = askBy(context.Background(), s, func(node int, f func()) bool { return s.inTurn(key, node, telling(f)) }, s.call,
		func(ctx context.Context, node fencing.Node) (fencing.Outcome, error) {
			return fencing.Outcome{}, renewReleased(ctx, node, r)
		}, func(a answer[fencing.Outcome]) bool {
			t.notDone(a.node, a.err, false, 0)
			return false
		})
	return t
}
