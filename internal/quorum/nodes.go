package quorum

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"fencepost/internal/fencing"
)

// watchNodes takes blank nodes into service and tells of nodes that stop answering,
// until the store is closed.
func (s *Store) watchNodes() {
	away := make([]bool, len(s.nodes)) // nodes that were told to be
	blank := s.admit(away, nil)
	close(s.enrolled)
	for s.idle(s.options.tick) {
		blank = s.admit(away, blank)
		s.events.tellPossibleGap()
	}
}

// admit takes blank nodes into service. A quorum is new only if all nodes are blank;
// one that is blank beside others has forgotten, or is new among them, and does not
// vote before what it may have forgotten is over. While none that remembers can be
// reached, a blank one has to wait: those out of reach may remember. Beside others one
// is believed to be blank when it was so before: another gateway may be taking a new
// quorum into service, node by node. It returns which nodes are blank.
func (s *Store) admit(away, before []bool) (blank []bool) {
	blank = make([]bool, len(s.nodes))
	empty, keeping := 0, 0
	err := ask(context.Background(), s, func(ctx context.Context, node fencing.Node) (bool, error) {
		return node.Blank(ctx)
	}, func(a answer[bool]) bool {
		s.report(away, a.node, a.err)
		if a.err != nil {
			s.mark(a.node, a.err)
			return false
		}
		s.mark(a.node, nil)
		if a.out {
			blank[a.node] = true
			empty++
		} else {
			keeping++
		}
		return false
	})
	isNew := empty == len(s.nodes)
	if err != nil || empty == 0 || !isNew && keeping == 0 {
		return blank
	}
	var admitting sync.WaitGroup
	for i := range s.nodes {
		if blank[i] && (isNew || before != nil && before[i]) {
			admitting.Go(func() { s.admitNode(i, isNew) })
		}
	}
	admitting.Wait()
	return blank
}

// admitNode takes one blank node into service.
func (s *Store) admitNode(i int, isNew bool) {
	longest := time.Duration(s.longest.Load())
	ctx, cancel := s.longCall()
	defer cancel()
	switch err := s.nodes[i].Enroll(ctx, isNew, longest); {
	case err != nil:
		s.log.Warn("a node that remembers nothing can't be taken into service; trying again", "node", s.options.Names[i], "error", err)
	case isNew:
		s.log.Info("a node of a new quorum is in service", "node", s.options.Names[i])
	default:
		s.log.Warn("a node remembers nothing: it has forgotten, or is new; it does not vote for new leases until those it may have forgotten are over",
			"node", s.options.Names[i], "for", longest)
	}
}

// report logs that a node has stopped answering, or is back, once each. The check for
// blank nodes decides, not any request that came late.
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
		short.Detail += ": others were not taken into service yet"
	case fencing.CodeClockSkew:
		short.Detail += ": the clocks of others are too far from this gateway's"
	}
	return &short
}

// Stats implements fencing.Store. Held is what a majority has at least. Quarantine is
// how long it takes until every node votes again, of those that answer: above 0 a
// majority may still grant, but no other node should be taken down. What another
// gateway began is known a second later.
func (s *Store) Stats(ctx context.Context) (fencing.Stats, error) {
	var held []int
	var quarantine time.Duration
	blank := 0
	err := askMajority(ctx, s, s.longCall, standingOf, func(_ int, n *nodeStanding, _ bool) bool {
		held, quarantine = append(held, n.Held), max(quarantine, n.Quarantine)
		if n.blank {
			blank++
		}
		return false
	})
	if err != nil {
		return fencing.Stats{}, err
	}
	if blank > 0 && blank < len(s.nodes) { // its quarantine has yet to begin
		quarantine = max(quarantine, time.Duration(s.longest.Load()))
	}
	slices.Sort(held)
	return fencing.Stats{Held: held[len(held)-majorityOf(len(s.nodes))], Quarantine: quarantine}, nil
}

// nodeStanding is what a node says of itself. It votes if it is neither blank nor in
// quarantine.
type nodeStanding struct {
	fencing.Stats
	blank bool
}

func standingOf(ctx context.Context, node fencing.Node) (n nodeStanding, err error) {
	if n.blank, err = node.Blank(ctx); err == nil {
		n.Stats, err = node.Stats(ctx)
	}
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
