package quorum

import (
	"context"

	"fencepost/internal/fencing"
)

// level has the nodes that a granted stream leans on see as many takeovers as the one of them that has seen
// most, before the stream is told how many. One that was out of reach for some would otherwise count as if it
// had forgotten that the newest stream has the lease: an older one, told of more, would take it back there. What has
// no answer counts as not done; the stream is told of fewer then. In most cases there is nothing to do.
func (t *try) level(ctx context.Context) {
	t.mu.Lock()
	behind, most := t.behind()
	t.mu.Unlock()
	answers := make(chan answer[fencing.Outcome], len(t.store.nodes))
	asked := 0
	for i := range t.store.nodes {
		if behind.has(i) && t.store.inTurn(t.key, i, func() func() {
			out, err := t.raise(i, most)
			return func() { answers <- answer[fencing.Outcome]{i, out, asError(err)} }
		}) {
			asked++
		}
	}
	for ; asked > 0; asked-- {
		select {
		case a := <-answers:
			if a.err == nil {
				t.mu.Lock()
				t.outs[a.node].Holder.Epoch = a.out.Holder.Epoch
				t.mu.Unlock()
			}
		case <-ctx.Done():
			return
		}
	}
}

// behind returns the nodes that have granted the lease to the stream, and have seen fewer takeovers of it than
// others that did, and how many those have seen. The caller holds mu.
func (t *try) behind() (set nodeSet, most int64) {
	if t.attempt.phase != granted || !t.ask.Attach {
		return 0, 0
	}
	has := func(i int) bool {
		return t.attempt.votes[i].standing == accepted && t.outs[i].Holder.Attached == t.ask.Stamp
	}
	for i := range t.attempt.votes {
		if has(i) {
			most = max(most, t.outs[i].Holder.Epoch)
		}
	}
	for i := range t.attempt.votes {
		if has(i) && t.outs[i].Holder.Epoch < most {
			set |= 1 << i
		}
	}
	return set, most
}

// raise has a node, at which the lease hangs on the stream of the try, see so many takeovers.
func (t *try) raise(node int, epoch int64) (fencing.Outcome, error) {
	t.mu.Lock()
	ttl := t.outs[node].Holder.TTL
	t.mu.Unlock()
	ctx, cancel := t.store.call()
	defer cancel()
	return t.store.nodes[node].Do(ctx, fencing.RenewRequest{Name: t.ask.Name, Lease: t.ask.Lease, Stamp: t.ask.Stamp, Epoch: epoch, TTL: ttl})
}
