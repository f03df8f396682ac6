package quorum

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"fencepost/internal/fencing"
)

const (
	// admissionTime is how long an examination waits for the first look at what
	// the nodes remember: before that, those of a new quorum don't vote.
	admissionTime = 2 * time.Second

	// examineTimeout is for all that one node is asked. It is longer than what a node
	// takes for one thing, so that a node that fails can say why.
	examineTimeout = longTimeout + longTimeout/4
)

// report is what is known of a node after it was examined.
type report struct {
	nodeStanding
	findings []fencing.Finding
	fault    *fencing.Error // why it can't vote
}

// votes reports whether a node counts.
func (r *report) votes() bool { return r.fault == nil && r.nodeStanding.votes() }

// Examine implements fencing.Store: what each node finds, and how the quorum stands.
func (s *Store) Examine(ctx context.Context) ([]fencing.Finding, error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	first := time.NewTimer(admissionTime)
	defer first.Stop()
	select {
	case <-s.enrolled:
	case <-first.C:
	case <-s.closing:
	case <-ctx.Done():
		return nil, fencing.Unavailable(context.Cause(ctx))
	}
	reports := make([]report, len(s.nodes))
	err := askWithin(ctx, s, func() (context.Context, context.CancelFunc) {
		return context.WithTimeout(context.Background(), max(s.options.NodeTimeout, examineTimeout))
	}, examineNode, func(a answer[report]) bool {
		reports[a.node] = a.out
		return false
	})
	if err != nil {
		return nil, err
	}
	var findings []fencing.Finding
	for i := range reports {
		for _, f := range reports[i].findings {
			f.Node = cmp.Or(f.Node, s.options.Names[i])
			findings = append(findings, f)
		}
		if fault := reports[i].fault; fault != nil {
			f := fencing.Finding{
				Node: s.options.Names[i], Check: "access", Detail: "it can't be used: " + because(fault).Error(),
				Remedy: "bring it back as a master that the gateway can use",
			}
			if known := fencing.FaultOf(fault); known != nil {
				f.Detail, f.Remedy = "it can't be used: "+known.Detail+" ("+known.Err.Error()+")", known.Remedy
			}
			findings = append(findings, f)
		}
	}
	return append(findings, s.stands(reports)), nil
}

// examineNode asks a node for all that counts. A fault is no error: what was found
// until then is kept.
func examineNode(ctx context.Context, node fencing.Node) (r report, _ error) {
	findings, err := node.Examine(ctx)
	r.findings = findings
	if err == nil {
		err = node.Check(ctx) // before the rest: it says best what is wrong
	}
	if err == nil || asError(err).Code == fencing.CodeQuarantined {
		r.nodeStanding, err = standingOf(ctx, node)
	}
	r.fault = asError(err)
	return r, nil
}

// because returns what is behind a node's error, if anything is.
func because(err *fencing.Error) error {
	switch {
	case errors.Is(err.Err, context.DeadlineExceeded):
		return fmt.Errorf("it does not answer in time (%w)", err.Err)
	case err.Err != nil:
		return err.Err
	}
	return err
}

// stands says how many nodes vote, and what that means. A node that does not vote
// grants nothing, so no promise is in danger by that, however many they are.
func (s *Store) stands(reports []report) fencing.Finding {
	n := len(s.nodes)
	var silent, refusing, blank, idle, waiting []string
	voting := 0
	for i := range reports {
		name := s.options.Names[i]
		switch r := &reports[i]; {
		case r.votes():
			voting++
		case r.fault != nil && (r.fault.Code != fencing.CodeUnavailable || fencing.FaultOf(r.fault) != nil):
			refusing = append(refusing, name)
		case r.fault != nil:
			silent = append(silent, name)
		case r.Blank:
			blank = append(blank, name)
		case !r.InService:
			idle = append(idle, name)
		default:
			waiting = append(waiting, fmt.Sprintf("%s for %s", name, ceil(r.Quarantine, time.Second)))
		}
	}
	f := fencing.Finding{Check: "quorum", OK: voting == n}
	if len(blank) == n && s.options.Passive {
		f.OK, f.Detail = true, "a new quorum: all nodes are empty; the first gateway brings them into service"
		return f
	}
	var detail strings.Builder
	fmt.Fprintf(&detail, "%d of %d nodes vote", voting, n)
	for _, of := range []struct {
		how   string
		nodes []string
	}{{"out of reach", silent}, {"refusing", refusing}, {"empty", blank}, {"restarted and not in service yet", idle}, {"in quarantine", waiting}} {
		if len(of.nodes) > 0 {
			detail.WriteString("; " + of.how + ": " + strings.Join(of.nodes, ", "))
		}
	}
	switch more := voting - majorityOf(n); {
	case more > 0:
		fmt.Fprintf(&detail, "; %d more may fail before nothing can be granted", more)
	case more == 0:
		detail.WriteString("; no more may fail")
	case voting+len(idle)+len(waiting) >= majorityOf(n):
		detail.WriteString("; no new leases are granted until a majority does")
	default:
		detail.WriteString("; nothing is granted until a majority does, and leases can't be renewed")
	}
	f.Detail = detail.String()
	switch {
	case f.OK:
	case len(refusing) > 0 && len(silent) == 0:
		f.Remedy = "see the findings about the nodes that refuse"
	case len(silent) == 0:
		f.Remedy = "wait: nodes vote again by themselves; don't take down another one before that"
	case len(silent)+len(blank) == n && len(blank) > 0:
		f.Remedy = "bring back a node that still has its data; empty nodes wait for it"
	case len(silent) == 1:
		f.Remedy = "bring it back"
	default:
		f.Remedy = "bring them back"
	}
	return f
}

// ceil rounds up.
func ceil(d, unit time.Duration) time.Duration { return (d + unit - 1).Truncate(unit) }
