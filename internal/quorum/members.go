package quorum

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"fencepost/internal/fencing"
)

// lookAfter takes blank nodes into service, until the store is closed.
func (s *Store) lookAfter() {
	for more := true; more; more = s.pause(s.options.tick) {
		s.admit()
	}
}

// admit takes blank nodes into service. A quorum is new only if all nodes are blank;
// one that is blank beside others has forgotten, or is new among them, and does not
// vote before what it may have forgotten is over. While none that remembers can be
// reached, a blank one has to wait: those out of reach may remember.
func (s *Store) admit() {
	blank := make([]bool, len(s.nodes))
	empty, keeping := 0, 0
	err := ask(context.Background(), s, func(ctx context.Context, node fencing.Node) (bool, error) {
		return node.Blank(ctx)
	}, func(a answer[bool]) bool {
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
		return
	}
	longest := time.Duration(s.longest.Load())
	for i, node := range s.nodes {
		if !blank[i] {
			continue
		}
		ctx, cancel := s.longCall()
		err := node.Admit(ctx, isNew, longest)
		cancel()
		switch {
		case err != nil:
			s.log.Warn("a node that remembers nothing can't be taken into service; trying again", "node", s.options.Names[i], "error", err)
		case isNew:
			s.log.Info("a node of a new quorum is in service", "node", s.options.Names[i])
		default:
			s.log.Warn("a node remembers nothing: it has forgotten, or is new; it does not vote for new leases until those it may have forgotten are over",
				"node", s.options.Names[i], "for", longest)
		}
	}
}

// Check implements fencing.Store: a majority has to answer.
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
	if err == nil && answered < majorityOf(len(s.nodes)) {
		err = commonest(votes)
	}
	if err != nil {
		return err
	}
	return nil
}

// Stats implements fencing.Store. Held is what a majority has at least. Quarantine is
// how long it takes until a majority votes again.
func (s *Store) Stats(ctx context.Context) (fencing.Stats, error) {
	var held []int
	var quarantines []time.Duration
	votes := make([]vote, len(s.nodes))
	err := askAll(ctx, s, func(ctx context.Context, node fencing.Node) (fencing.Stats, error) {
		return node.Stats(ctx)
	}, func(a answer[fencing.Stats]) bool {
		if a.err != nil {
			votes[a.node] = vote{standing: against, err: a.err}
			return false
		}
		held, quarantines = append(held, a.out.Held), append(quarantines, a.out.Quarantine)
		return false
	})
	majority := majorityOf(len(s.nodes))
	if err == nil && len(held) < majority {
		err = commonest(votes)
	}
	if err != nil {
		return fencing.Stats{}, err
	}
	slices.Sort(held)
	slices.Sort(quarantines)
	return fencing.Stats{Held: held[len(held)-majority], Quarantine: quarantines[majority-1]}, nil
}

// Heartbeat implements fencing.Store. No place is at the nodes, so there is nothing
// to keep alive.
func (s *Store) Heartbeat(ctx context.Context, _ []fencing.Name) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	return nil
}

// Expire implements fencing.Store: every node ends what is due there. A lease is told
// as ended when the last node that a majority needs has ended it in this call.
func (s *Store) Expire(ctx context.Context, limit int) (fencing.Expiry, error) {
	votes, answered := make([]vote, len(s.nodes)), 0
	result := fencing.Expiry{Next: time.Minute, Standby: true}
	times := map[leaseToken]int{}
	full := false
	err := askAll(ctx, s, func(ctx context.Context, node fencing.Node) (fencing.Expiry, error) {
		return node.Expire(ctx, limit)
	}, func(a answer[fencing.Expiry]) bool {
		if a.err != nil {
			votes[a.node] = vote{standing: against, err: a.err}
			return false
		}
		answered++
		result.Next = min(result.Next, a.out.Next)
		result.Standby = result.Standby && a.out.Standby
		full = full || limit > 0 && len(a.out.Ended) >= limit
		for i := range a.out.Ended {
			e := &a.out.Ended[i]
			k := leaseToken{e.Holder.Lease, e.Holder.Token}
			if times[k]++; e.Holder.Claimed && times[k] == majorityOf(len(s.nodes)) {
				e.Holder.Claimed = false
				result.Ended = append(result.Ended, *e)
			}
		}
		return false
	})
	if err == nil && answered < majorityOf(len(s.nodes)) {
		err = commonest(votes)
	}
	if err != nil {
		return fencing.Expiry{}, err
	}
	if full {
		result.Next = 0
	}
	result.Ended = result.Ended[:min(len(result.Ended), limit)]
	return result, nil
}

// Examine implements fencing.Store: what each node finds, and how the quorum stands.
func (s *Store) Examine(ctx context.Context) ([]fencing.Finding, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	type report struct {
		findings []fencing.Finding
		blank    bool
	}
	reports, down := make([]report, len(s.nodes)), make([]*fencing.Error, len(s.nodes))
	err := askAll(ctx, s, func(ctx context.Context, node fencing.Node) (r report, err error) {
		if r.findings, err = node.Examine(ctx); err == nil {
			r.blank, err = node.Blank(ctx)
		}
		return r, err
	}, func(a answer[report]) bool {
		reports[a.node], down[a.node] = a.out, a.err
		return false
	})
	if err != nil {
		return nil, err
	}
	var silent, blank []string
	var findings []fencing.Finding
	for i := range reports {
		switch {
		case down[i] != nil:
			silent = append(silent, s.options.Names[i])
		case reports[i].blank:
			blank = append(blank, s.options.Names[i])
		}
		for _, f := range reports[i].findings {
			f.Node = cmp.Or(f.Node, s.options.Names[i])
			findings = append(findings, f)
		}
	}
	return append(findings, s.stands(silent, blank)), nil
}

// stands says how many nodes vote, and what that means. A minority that does not
// endangers nothing.
func (s *Store) stands(silent, blank []string) fencing.Finding {
	n := len(s.nodes)
	voting := n - len(silent) - len(blank)
	f := fencing.Finding{Check: "quorum", OK: voting >= majorityOf(n), Detail: fmt.Sprintf("%d of %d nodes vote", voting, n)}
	if len(silent) > 0 {
		f.Detail += "; out of reach: " + strings.Join(silent, ", ")
	}
	if len(blank) > 0 {
		f.Detail += "; remembering nothing: " + strings.Join(blank, ", ")
	}
	if f.OK {
		f.Detail += fmt.Sprintf("; %d more may fail before nothing can be granted", voting-majorityOf(n))
		return f
	}
	f.Promise, f.Remedy = "P1, P2", "bring back nodes that remember, until they are a majority; empty ones wait for that"
	f.Detail += "; nothing is granted before a majority does, and leases can't be renewed"
	return f
}
