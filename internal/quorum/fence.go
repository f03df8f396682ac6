package quorum

import (
	"context"

	"fencepost/internal/fencing"
)

// poll is what nodes have answered of the fence of a name.
type poll struct {
	yes, no int
	fence   fencing.Fence // the highest of what they know
	votes   []vote        // of those that have not said either
}

func newPoll(nodes int) *poll { return &poll{votes: make([]vote, nodes)} }

// hear counts an answer: yes, no, or neither, if there is no fence.
func (p *poll) hear(node int, yes bool, f *fencing.Fence, err *fencing.Error) {
	switch {
	case f == nil:
		p.votes[node] = vote{standing: against, err: err}
		return
	case yes:
		p.yes++
	default:
		p.no++
	}
	p.fence.HighestIssued = max(p.fence.HighestIssued, f.HighestIssued)
	p.fence.HighestAdmitted = max(p.fence.HighestAdmitted, f.HighestAdmitted)
}

// decided reports whether a majority has said yes, or none can any more.
func (p *poll) decided() bool {
	majority := majorityOf(len(p.votes))
	return p.yes >= majority || p.no > len(p.votes)-majority
}

// admitted returns why a token is not admitted, nil if it is: yes is an admission.
func (p *poll) admitted(token fencing.Token) *fencing.Error {
	switch {
	case !p.decided():
		return commonest(p.votes)
	case p.yes < majorityOf(len(p.votes)):
		return fencing.NotAdmittedError(token, &p.fence)
	}
	return nil
}

// admit lets a token pass the fence of a name. It passes once a majority of the nodes have let it
// pass: any other majority has one of them, which refuses what is lower. It is refused when
// so many nodes refuse that no majority is left, and all nodes are asked, also after that.
// Only what was claimed counts as issued.
func (s *Store) admit(ctx context.Context, r fencing.AdmitRequest) (fencing.Outcome, error) {
	if r.Slot != fencing.NoSlot {
		return fencing.Outcome{}, &fencing.Error{Code: fencing.CodeUnsupportedByStore, Field: "slot", Detail: "slot: not supported by a quorum, which has no permits"}
	}
	r.Claimed = true
	began, p, outs := s.options.Clock(), newPoll(len(s.nodes)), make([]fencing.Outcome, len(s.nodes))
	err := ask(ctx, s, func(ctx context.Context, node fencing.Node) (fencing.Outcome, error) {
		return node.Do(ctx, r)
	}, func(a answer[fencing.Outcome]) bool {
		outs[a.node] = a.out
		f := a.out.Fence
		if a.err != nil {
			f = a.err.Fence
		}
		p.hear(a.node, a.err == nil, f, a.err)
		return p.decided()
	})
	out := fencing.Outcome{Now: fencing.InstantOf(began), Asked: began, Ended: s.endedOf(outs), Fence: &p.fence}
	if out.Err = err; err == nil {
		out.Err = p.admitted(r.Token)
	}
	return out.Result()
}

// judge says what has become of a token: it is live if a majority has it, as far as can be
// known.
func (s *Store) judge(ctx context.Context, r fencing.JudgeRequest) (fencing.Outcome, error) {
	r.Claimed = true
	began, p := s.options.Clock(), newPoll(len(s.nodes))
	err := ask(ctx, s, func(ctx context.Context, node fencing.Node) (fencing.Outcome, error) {
		return node.Do(ctx, r)
	}, func(a answer[fencing.Outcome]) bool {
		p.hear(a.node, a.err == nil && a.out.Fence.Verdict == fencing.VerdictLive, a.out.Fence, a.err)
		return p.decided()
	})
	out := fencing.Outcome{Now: fencing.InstantOf(began), Asked: began}
	f, silent := &p.fence, len(s.nodes)-p.yes-p.no
	switch {
	case err != nil:
		out.Err = err
		return out.Result()
	case silent > len(s.nodes)-majorityOf(len(s.nodes)) && !p.decided():
		out.Err = commonest(p.votes)
		return out.Result()
	case p.yes > 0 && p.yes+silent >= majorityOf(len(s.nodes)):
		f.Verdict = fencing.VerdictLive
	default:
		f.Verdict = f.VerdictOf(r.Token)
	}
	out.Fence = f
	return out.Result()
}
