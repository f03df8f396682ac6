package redis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// span is when a caller could rely on a lease.
type span struct{ from, to time.Time }

// told is what a caller knows of a lease that it was given.
type told struct {
	name            fencing.Name
	partition       int
	token           fencing.Token
	asked, answered time.Time // for the first time; when the grant was told
	beliefs         []span    // by P9: until what it sent, and the time that was left by the answer
}

// deadline is until when the lease is believed in.
func (g *told) deadline() time.Time { return g.beliefs[len(g.beliefs)-1].to }

// ends has the caller believe in the lease no longer than at.
func (g *told) ends(at time.Time) {
	for i := range g.beliefs {
		if g.beliefs[i].to.After(at) {
			g.beliefs[i].to = at
		}
	}
}

// ledger is what callers at all gateways were told, to be held against P1 and P2.
type ledger struct {
	t    *testing.T
	ttls []time.Duration // that are asked for

	mu     sync.Mutex
	grants []*told
	naive  []*told // tokens by INCR: what a gateway without fencing would do
	counts map[string]int
	early  int // leases that were lost before their deadline

	shut                        span          // first and last answer that told of a quarantine
	reopened                    time.Time     // the first grant after that
	served, granted             time.Time     // last
	longestOutage, longestPause time.Duration // between answers that count, between grants
}

func newLedger(t *testing.T, ttls ...time.Duration) *ledger {
	return &ledger{t: t, ttls: ttls, counts: map[string]int{}}
}

// note counts the answer to a verb, and finds fault with one that may never come.
func (l *ledger) note(verb string, err error) fencing.Code {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := code(err)
	l.counts[verb+" "+string(c)]++
	switch c {
	case fencing.CodeOK, fencing.CodeUnavailable:
	case fencing.CodeLeaseLost:
		var e *fencing.Error
		if errors.As(err, &e) {
			l.counts[verb+" lost: "+string(e.Reason)]++
		}
	case fencing.CodeLocked, fencing.CodeQuarantined, fencing.CodeNotReplicated:
		if verb != "acquire" {
			l.t.Errorf("%s was answered %v", verb, err)
		}
	case fencing.CodeClockSkew:
		if l.counts["clocks are moved"] == 0 {
			l.t.Errorf("%s was answered %v", verb, err)
		}
	default:
		l.t.Errorf("%s was answered %v", verb, err)
	}
	now := time.Now()
	if c != fencing.CodeUnavailable && c != fencing.CodeNotReplicated {
		if !l.served.IsZero() {
			l.longestOutage = max(l.longestOutage, now.Sub(l.served))
		}
		l.served = now
	}
	if c == fencing.CodeQuarantined {
		if l.shut.from.IsZero() {
			l.shut.from = now
		}
		l.shut.to, l.reopened = now, time.Time{}
	}
	if verb == "acquire" && c == fencing.CodeOK {
		if !l.granted.IsZero() {
			l.longestPause = max(l.longestPause, now.Sub(l.granted))
		}
		l.granted = now
		if l.reopened.IsZero() && !l.shut.to.IsZero() {
			l.reopened = now
		}
	}
	return c
}

// isOpen reports whether leases are granted, as far as was told.
func (l *ledger) isOpen() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.shut.to.IsZero() || !l.reopened.IsZero()
}

// sum returns how many grants were told.
func (l *ledger) sum() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.grants)
}

// run has a caller take leases on names until ctx ends. What it has begun it ends.
func (l *ledger) run(ctx context.Context, s *Store, seed uint64, names ...fencing.Name) {
	random := rand.New(rand.NewPCG(seed, 1))
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			l.turn(ctx, s, names[random.IntN(len(names))], random)
		}
	}
}

// turn takes a lease, renews it a few times, and releases it or leaves it alone.
func (l *ledger) turn(ctx context.Context, s *Store, name fencing.Name, random *rand.Rand) {
	g, r := l.acquire(s, name, l.ttls[random.IntN(len(l.ttls))], random.IntN(2) == 0)
	if g == nil {
		return
	}
	for range random.IntN(4) {
		hold := time.NewTimer(rand.N(r.TTL / 3))
		select {
		case <-hold.C:
		case <-ctx.Done():
		}
		if !l.renew(s, g, r) {
			return
		}
	}
	if random.IntN(8) != 0 {
		l.release(s, g, r)
	}
}

// acquire asks for a lease; with again it asks until the answer counts. It
// returns nil if it has none.
func (l *ledger) acquire(s *Store, name fencing.Name, ttl time.Duration, again bool) (*told, fencing.AcquireRequest) {
	r := acquireRequest(name)
	r.TTL = ttl
	for first, attempt := time.Now(), 0; ; attempt++ {
		asked := time.Now()
		out, err := s.Do(l.t.Context(), r)
		answered := time.Now()
		switch c := l.note("acquire", err); {
		case c == fencing.CodeOK:
			g := &told{name: name, partition: s.partitionOf(name), token: out.Holder.Token, asked: first, answered: answered}
			g.beliefs = []span{{answered, asked.Add(out.Holder.ExpiresAt.Sub(out.Now))}}
			l.mu.Lock()
			l.grants = append(l.grants, g)
			l.mu.Unlock()
			return g, r
		case c == fencing.CodeUnavailable && again && !l.tired(first, err):
			continue
		case c == fencing.CodeLeaseLost && attempt == 0:
			l.t.Errorf("a new lease was answered %v", err)
		case c == fencing.CodeNotReplicated:
			_, err := s.Do(l.t.Context(), fencing.TakeBackRequest{Name: name, Lease: r.Lease, Stamp: r.Stamp})
			l.note("take back", err)
		}
		return nil, r
	}
}

// renew renews a lease until the answer counts, and reports whether it is still
// there.
func (l *ledger) renew(s *Store, g *told, r fencing.AcquireRequest) bool {
	for first := time.Now(); ; {
		sent := time.Now()
		out, err := s.Do(l.t.Context(), fencing.RenewRequest{Name: g.name, Lease: r.Lease})
		answered := time.Now()
		switch c := l.note("renew", err); {
		case c == fencing.CodeOK && out.Holder.Token != g.token:
			l.t.Errorf("%s: token %d was renewed, and is %d", g.name, g.token, out.Holder.Token)
			return false
		case c == fencing.CodeOK:
			l.mu.Lock()
			g.beliefs = append(g.beliefs, span{answered, sent.Add(out.Holder.ExpiresAt.Sub(out.Now))})
			l.mu.Unlock()
			return true
		case c == fencing.CodeLeaseLost:
			l.lost(g, answered, g.deadline())
			return false
		case l.tired(first, err):
			return false
		}
	}
}

// release ends a lease.
func (l *ledger) release(s *Store, g *told, r fencing.AcquireRequest) {
	first := time.Now()
	l.mu.Lock()
	deadline := g.deadline()
	g.ends(first)
	l.mu.Unlock()
	for {
		_, err := s.Do(l.t.Context(), fencing.ReleaseRequest{Name: g.name, Lease: r.Lease})
		answered := time.Now()
		switch c := l.note("release", err); {
		case c == fencing.CodeLeaseLost && answered.Before(deadline):
			l.lost(g, answered, deadline)
			return
		case c == fencing.CodeLeaseLost, c == fencing.CodeOK:
			return
		case l.tired(first, err):
			return
		}
	}
}

// tired reports whether a caller that has asked since first gives up: that is an
// error, unless the test has ended.
func (l *ledger) tired(first time.Time, err error) bool {
	if l.t.Context().Err() != nil {
		return true
	}
	if time.Since(first) < 2*time.Minute {
		return false
	}
	l.t.Errorf("for %s nothing is known of a lease: %v", time.Since(first), err)
	return true
}

// lost notes that a lease was told to be lost.
func (l *ledger) lost(g *told, at, deadline time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at.Before(deadline) {
		l.early++
	}
	g.ends(at)
}

// count takes a token by INCR at the master of a name, as one does who trusts
// the replication.
func (l *ledger) count(ctx context.Context, s *Store, name fencing.Name) {
	n := s.topology.node(s.partitionOf(name))
	if n.client == nil {
		return
	}
	asked := time.Now()
	token, err := n.client.Incr(ctx, "naive").Result()
	if err != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.naive = append(l.naive, &told{token: fencing.Token(token), asked: asked, answered: time.Now()})
}

// check holds everything that was told against P2, and against P1 if careful.
// What it does not fail for it returns: how often P1 did not hold.
func (l *ledger) check(careful bool) (overlaps int) {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, fault := range regressions(l.grants) {
		if i < 5 {
			l.t.Errorf("P2: %s", fault)
		}
	}
	faults := overlapping(l.grants)
	for i, fault := range faults {
		if careful && i < 5 {
			l.t.Errorf("P1: %s", fault)
		}
	}
	return len(faults)
}

// regressions finds tokens of a partition that were given twice, and those that
// are not above one that was told before they were asked for.
func regressions(grants []*told) []string {
	var faults []string
	byPartition := map[int][]*told{}
	for _, g := range grants {
		byPartition[g.partition] = append(byPartition[g.partition], g)
	}
	for _, all := range byPartition {
		given := map[fencing.Token]*told{}
		answers := slices.Clone(all)
		slices.SortFunc(all, func(a, b *told) int { return a.asked.Compare(b.asked) })
		slices.SortFunc(answers, func(a, b *told) int { return a.answered.Compare(b.answered) })
		var highest *told
		for _, g := range all {
			for len(answers) > 0 && answers[0].answered.Before(g.asked) {
				if highest == nil || answers[0].token > highest.token {
					highest = answers[0]
				}
				answers = answers[1:]
			}
			switch other := given[g.token]; {
			case other != nil:
				faults = append(faults, fmt.Sprintf("token %d was given twice, for %s and %s later for %s", g.token, other.name, g.asked.Sub(other.asked), g.name))
			case highest != nil && g.token <= highest.token:
				faults = append(faults, fmt.Sprintf("%s: token %d, though %d was told %s before", g.name, g.token, highest.token, g.asked.Sub(highest.answered)))
			}
			given[g.token] = g
		}
	}
	return faults
}

// overlapping finds leases on one name that were believed in at once.
func overlapping(grants []*told) []string {
	type belief struct {
		span
		of *told
	}
	byName := map[fencing.Name][]belief{}
	for _, g := range grants {
		for _, b := range g.beliefs {
			if b.from.Before(b.to) {
				byName[g.name] = append(byName[g.name], belief{b, g})
			}
		}
	}
	var faults []string
	for name, all := range byName {
		slices.SortFunc(all, func(a, b belief) int { return a.from.Compare(b.from) })
		var latest belief // whose end is the last so far
		for i, b := range all {
			if i > 0 && b.of != latest.of && b.from.Before(latest.to) {
				faults = append(faults, fmt.Sprintf("%s: token %d was told while %d was good for another %s", name, b.of.token, latest.of.token, latest.to.Sub(b.from)))
			}
			if i == 0 || b.to.After(latest.to) {
				latest = b
			}
		}
	}
	return faults
}

// The ledger finds what it is there to find.
func TestLedgerFindsPlantedBugs(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	after := func(ms int) time.Time { return at.Add(time.Duration(ms) * time.Millisecond) }
	for _, tt := range []struct {
		what           string
		plant          func(g []*told)
		tokens, leases int
	}{
		{"nothing", func([]*told) {}, 0, 0},
		{"a token twice", func(g []*told) { g[1].token = 1 }, 1, 0},
		{"a token goes back", func(g []*told) { g[2].token = 2; g[1].token = 5 }, 1, 0},
		{"a token goes back among requests at the same time", func(g []*told) { g[1].token = 7; g[2].asked = after(11) }, 0, 0},
		{"both believe", func(g []*told) { g[0].beliefs[0].to = after(14) }, 0, 1},
		{"a renewal of what was lost", func(g []*told) { g[0].beliefs = append(g[0].beliefs, span{after(50), after(150)}) }, 0, 2},
	} {
		grants := []*told{
			{name: "a", token: 1, asked: after(0), answered: after(1), beliefs: []span{{after(1), after(10)}}},
			{name: "a", token: 3, asked: after(5), answered: after(13), beliefs: []span{{after(13), after(100)}}},
			{name: "a", token: 6, asked: after(101), answered: after(102), beliefs: []span{{after(102), after(120)}}},
		}
		tt.plant(grants)
		if got := len(regressions(grants)); got != tt.tokens {
			t.Errorf("%s: %d tokens are wrong, want %d", tt.what, got, tt.tokens)
		}
		if got := len(overlapping(grants)); got != tt.leases {
			t.Errorf("%s: %d leases overlap, want %d", tt.what, got, tt.leases)
		}
	}
}
