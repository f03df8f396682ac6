package quorum

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"fencepost/internal/fencing"
)

// watchNodes takes nodes into service and tells of nodes that stop answering, until the
// store is closed.
func (s *Store) watchNodes() {
	r := roster{patience: fencing.LongestQuarantine}
	away := make([]bool, len(s.nodes)) // nodes that were told to be
	s.enroll(&r, away)
	close(s.enrolled)
	for s.idle(s.options.tick) {
		s.enroll(&r, away)
		s.events.tellPossibleGap()
	}
}

// enroll looks at what the nodes remember, and takes into service those whose time has come.
func (s *Store) enroll(r *roster, away []bool) {
	found := make([]*fencing.Memory, len(s.nodes))
	err := ask(context.Background(), s, func(ctx context.Context, node fencing.Node) (fencing.Memory, error) {
		return node.Memory(ctx)
	}, func(a answer[fencing.Memory]) bool {
		s.report(away, a.node, a.err)
		if a.err != nil {
			s.mark(a.node, a.err)
			return false
		}
		s.mark(a.node, nil)
		found[a.node] = &a.out
		return false
	})
	if err != nil {
		return
	}
	e := r.look(found, s.options.Clock())
	e.longest = max(e.longest, s.options.LongestTTL)
	var enrolling sync.WaitGroup
	for i := range s.nodes {
		if e.nodes.has(i) {
			enrolling.Go(func() { s.enrollNode(i, found[i], &e) })
		}
	}
	enrolling.Wait()
}

// enrollNode takes one node into service.
func (s *Store) enrollNode(i int, m *fencing.Memory, e *enrolment) {
	ctx, cancel := s.longCall()
	defer cancel()
	left, err := s.nodes[i].Enroll(ctx, m.Server, e.isNew, e.longest)
	name, length := s.options.Names[i], ceil(left, time.Second).String()
	switch {
	case err != nil:
		s.log.Warn("a node can't be brought into service; retrying", "node", name, "error", err)
	case m.InService: // so it is told already, for less
	case e.isNew && left == 0:
		s.log.Info("a node of a new quorum is in service", "node", name)
	case m.Blank:
		s.log.Warn("a node is empty: it lost its data or is new; it does not vote for new leases until those it may have lost have expired",
			"node", name, "for", length)
	default:
		s.log.Warn("a node was restarted or replaced; it does not vote for new leases until those it may have lost have expired",
			"node", name, "for", length)
	}
}

// report logs that a node has stopped answering, or is back, once each. The look at
// what they remember decides, not any request that came late.
func (s *Store) report(away []bool, node int, err *fencing.Error) {
	was := away[node]
	switch away[node] = err != nil; {
	case err != nil && !was:
		s.log.Warn("a node of the quorum does not answer", "node", s.options.Names[node], "error", because(err))
	case err == nil && was:
		s.log.Info("a node of the quorum answers again", "node", s.options.Names[node])
	}
}

// Check implements fencing.Store: a majority has to answer, and to be in service.
func (s *Store) Check(ctx context.Context) error {
	votes, answered := make([]vote, len(s.nodes)), 0
	err := ask(ctx, s, func(ctx context.Context, node fencing.Node) (struct{}, error) {
		return struct{}{}, node.Check(ctx)
	}, func(a answer[struct{}]) bool {
		if a.err != nil {
			votes[a.node] = vote{standing: against, err: a.err}
			return false
		}
		answered++
		return answered >= majorityOf(len(s.nodes))
	})
	if err != nil {
		return err
	}
	if answered < majorityOf(len(s.nodes)) {
		return s.shortOf(answered, votes)
	}
	return nil
}

// shortOf says that too few nodes serve, and why.
func (s *Store) shortOf(serving int, votes []vote) error {
	short := *commonest(votes)
	short.Detail = fmt.Sprintf("%d of %d nodes of the quorum can serve, and %d are needed", serving, len(s.nodes), majorityOf(len(s.nodes)))
	switch short.Code {
	case fencing.CodeQuarantined:
		short.Detail += ": others are not in service yet"
	case fencing.CodeClockSkew:
		short.Detail += ": the clocks of others are too far from this gateway's"
	}
	return &short
}

// Stats implements fencing.Store. Held is what a majority has at least. Quarantine is
// how long it takes until every node votes again, of those that answer: above 0 a
// majority may still grant, but no other node should be taken down.
func (s *Store) Stats(ctx context.Context) (fencing.Stats, error) {
	var held []int
	var quarantine time.Duration
	blank := 0
	err := askMajority(ctx, s, s.longCall, standingOf, func(_ int, n *nodeStanding, _ bool) bool {
		held, quarantine = append(held, n.Held), max(quarantine, n.Quarantine)
		if n.Blank {
			blank++
		}
		return false
	})
	if err != nil {
		return fencing.Stats{}, err
	}
	if blank == len(s.nodes) { // a new quorum
		quarantine = 0
	}
	slices.Sort(held)
	return fencing.Stats{Held: held[len(held)-majorityOf(len(s.nodes))], Quarantine: quarantine}, nil
}

// nodeStanding is what a node has and remembers.
type nodeStanding struct {
	fencing.Memory
	Held int
}

// votes reports whether the node counts.
func (n *nodeStanding) votes() bool { return n.InService && n.Quarantine <= 0 }

func standingOf(ctx context.Context, node fencing.Node) (n nodeStanding, err error) {
	if n.Memory, err = node.Memory(ctx); err != nil {
		return n, err
	}
	stats, err := node.Stats(ctx)
	n.Held = stats.Held
	return n, err
}

// Expire implements fencing.Store: every node ends what is due there. A lease is told
// as ended when the last node that a majority needs has ended it in this call.
func (s *Store) Expire(ctx context.Context, limit int) (fencing.Expiry, error) {
	result := fencing.Expiry{Next: time.Minute, Standby: true}
	times := map[leaseToken]int{}
	err := askMajority(ctx, s, s.longCall, func(ctx context.Context, node fencing.Node) (fencing.Expiry, error) {
		return node.Expire(ctx, limit)
	}, func(_ int, there *fencing.Expiry, _ bool) bool {
		result.Next = min(result.Next, there.Next)
		result.Standby = result.Standby && there.Standby
		for i := range there.Ended {
			e := &there.Ended[i]
			k := leaseToken{e.Holder.Lease, e.Holder.Token}
			if times[k]++; e.Holder.Claimed && times[k] == majorityOf(len(s.nodes)) {
				e.Holder.Claimed = false
				result.Ended = append(result.Ended, *e)
			}
		}
		return false
	})
	if err != nil {
		return fencing.Expiry{}, err
	}
	return result, nil
}
