package soak

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"fencepost/verify/check"
	"fencepost/verify/system"
)

// belief is the time in which a client could take a lease for its own, on the clock of
// this process.
type belief struct {
	name        string
	token       int64
	sent        time.Time // its request
	from, until time.Time
	told        bool // that it was lost
}

// ledger is what all clients believed, and how they were answered.
type ledger struct {
	mu      sync.Mutex
	beliefs []belief
	answers map[string]int
}

func (l *ledger) add(b belief) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.beliefs = append(l.beliefs, b)
}

func (l *ledger) answered(a system.Answer, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.answers == nil {
		l.answers = map[string]int{}
	}
	switch {
	case err != nil:
		l.answers["none"]++
	case a.Code != "":
		l.answers[a.Code]++
	default:
		l.answers[fmt.Sprint(a.Status)]++
	}
}

// judge checks that no two clients believed in a lease on the same name at the same
// time: a lease that was lost without a word, while its client still counts on it,
// shows as that. And tokens must grow with the grants.
func (l *ledger) judge(r *check.Result) {
	byName := map[string][]belief{}
	told := 0
	for _, b := range l.beliefs {
		byName[b.name] = append(byName[b.name], b)
		if b.told {
			told++
		}
	}
	for name, all := range byName {
		slices.SortFunc(all, func(a, b belief) int { return a.from.Compare(b.from) })
		last := belief{} // that ends last, of those before
		for _, b := range all {
			if b.from.Before(last.until) && b.until.After(b.from) {
				r.Violation("P1: %s was believed in by two, for %s: token %d until %s, token %d from %s", name, last.until.Sub(b.from),
					last.token, last.until.Format(time.StampMilli), b.token, b.from.Format(time.StampMilli))
			}
			if b.until.After(last.until) {
				last = b
			}
		}
		tokensGrow(r, name, all)
	}
	r.Count("leases", len(l.beliefs))
	r.Count("leases told lost", told)
	var kinds []string
	for kind, n := range l.answers {
		kinds = append(kinds, fmt.Sprintf("%s %d", kind, n))
	}
	slices.Sort(kinds)
	r.Note("answers: %v", kinds)
}

// tokensGrow checks P2: a grant that was asked for after another was answered has the
// higher token. all is sorted by the time of the answer.
func tokensGrow(r *check.Result, name string, all []belief) {
	bySent := slices.Clone(all)
	slices.SortFunc(bySent, func(a, b belief) int { return a.sent.Compare(b.sent) })
	highest, next := int64(0), 0
	for _, b := range bySent {
		for next < len(all) && all[next].from.Before(b.sent) {
			highest = max(highest, all[next].token)
			next++
		}
		if cmp.Compare(b.token, highest) <= 0 {
			r.Violation("P2: token %d of %s came after %d", b.token, name, highest)
		}
	}
}
