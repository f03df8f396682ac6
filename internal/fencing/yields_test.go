//go:build !race

package fencing_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/seed"
)

// TestYields holds State.Yields and MayYield to Step, by what a transaction that guards a lease is promised: nobody else is granted what the
// lease had when guard was called. Operations that Yields names it for are left out, and it is kept where MayYield has named it; then it
// does not end, and who is granted the name, by the operations or as a newcomer behind them, would be so beside the lease as it was.
// A renewal that is left out would have had it yield something. Operations come several at an instant, judged before the first.
func TestYields(t *testing.T) {
	g := &guarding{t: t, r: rand.New(rand.NewPCG(seed.Of(t), 0)), seen: map[string]int{}}
	for range 4000 {
		g.s, g.now, g.off, g.had = fencing.NewState(), epoch, 0, fencing.Holding{}
		for range g.r.IntN(40) {
			g.advance()
			fencing.Step(g.s, g.now, g.guard(), g.op())
		}
		if g.begin() {
			for range 10 {
				g.turn()
			}
		}
	}
	for _, what := range []string{
		"renew", "release", "break", "take_back", "claim", "acquire", "confirm", "leave", // left out
		"downgrade", "permits", "limit", "over", "doubtful", "skewed", "forgotten", "newcomer",
	} {
		if g.seen[what] < 10 {
			t.Errorf("%s: only %d times", what, g.seen[what])
		}
	}
	t.Log(g.seen)
}

// guarding is a lease that a transaction guards.
type guarding struct {
	t    *testing.T
	r    *rand.Rand
	s    *fencing.State
	now  fencing.Instant
	off  time.Duration // by which the gateways' clock is ahead of the store's
	name fencing.Name
	had  fencing.Holding // as it was when guard was called
	seen map[string]int
}

// advance lets time go by. At times the clocks begin to differ, or one of them is put right.
func (g *guarding) advance() {
	g.now = g.now.Add(time.Duration(g.r.IntN(4)) * time.Second)
	switch g.r.IntN(100) {
	case 0:
		g.now = g.now.Add(fencing.ForgetAfter + time.Minute)
	case 1, 2, 3, 4:
		if by := []time.Duration{5 * time.Second, -5 * time.Second, time.Hour, -time.Hour}[g.r.IntN(4)]; g.off == 0 {
			g.off = by
			if g.r.IntN(2) == 0 { // it is the store's that is wrong
				g.now = g.now.Add(-by)
			}
			return
		}
		if g.r.IntN(2) == 0 {
			g.now = g.now.Add(g.off)
		}
		g.off = 0
	}
}

func (g *guarding) guard() fencing.Guard {
	guard := fencing.Guard{MaxSkew: time.Second, Gateway: fencing.Gateway("12"[g.r.IntN(2):][:1]), MaxHolders: g.r.IntN(2) * 4}
	if g.off != 0 {
		guard.Sent = g.now.Add(g.off)
	}
	if g.r.IntN(4) == 0 {
		guard.StepLimit = 1 + g.r.IntN(2)
	}
	return guard
}

// idOf returns a lease id by its public part.
func (g *guarding) idOf(lease fencing.LeasePublic) (id fencing.LeaseID) {
	for n := 0; id.Public() != lease; n++ {
		id = leaseID(g.t, n, false)
	}
	return id
}

// op makes up an operation. Of those beside a guard many are renewals of the lease, or have another holder of the name make room.
func (g *guarding) op() fencing.Op {
	if r := g.s.Records[g.name]; g.had.Lease != "" && r != nil && g.r.IntN(8) == 0 {
		for h := range r.Holders.All() {
			if h.Lease != g.had.Lease {
				return fencing.ReleaseRequest{Name: g.name, Lease: g.idOf(h.Lease)}
			}
		}
	}
	if g.had.Lease != "" && g.r.IntN(3) == 0 {
		op := fencing.RenewRequest{Name: g.name, Lease: g.idOf(g.had.Lease), TTL: time.Duration(1+g.r.IntN(20)) * time.Second}
		if g.r.IntN(2) == 0 {
			op.Mode = fencing.ModeShared
		}
		op.Limit, op.Permits = g.r.IntN(2)*g.r.IntN(6), g.r.IntN(2)*g.r.IntN(4)
		return op
	}
	op := randomOp(g.t, g.r, g.s)
	if a, acquires := op.(fencing.AcquireRequest); acquires {
		if a.Mode == fencing.ModeShared && g.r.IntN(2) == 0 {
			a.Hold, a.Set, a.Limit, a.Permits, a.Wait, a.MaxWaiters = 1, "", g.r.IntN(2)*4, 1, time.Minute, 0
		}
		a.MaxHold = time.Duration(g.r.IntN(2)*g.r.IntN(60)) * time.Second
		a.LockDelay = time.Duration(g.r.IntN(2)*g.r.IntN(10)) * time.Second
		return a
	}
	return op
}

// begin has a transaction guard one of the leases that pass.
func (g *guarding) begin() bool {
	passing := 0
	for _, name := range []fencing.Name{"a", "b"} {
		r := g.s.Records[name]
		if r == nil {
			continue
		}
		for h := range r.Holders.All() {
			if !h.Provisional && h.Live(g.now) {
				if passing++; g.r.IntN(passing) == 0 {
					g.name, g.had = name, h
				}
			}
		}
	}
	return passing > 0
}

// of returns the lease as it is.
func (g *guarding) of(s *fencing.State) (h fencing.Holding, there bool) {
	if r := s.Records[g.name]; r != nil {
		h, there = r.Holders.Find(g.had.Lease)
	}
	return h, there && h.Token == g.had.Token && !h.Provisional
}

// turn carries out some operations as a store does that does not have the lease yield anything.
func (g *guarding) turn() {
	g.advance()
	guard, skewed := g.guard(), g.off != 0
	lease, _ := g.of(g.s)
	var ops []fencing.Op
	for range 1 + g.r.IntN(3) {
		op := g.op()
		if slices.Contains(g.s.MayYield(g.now, op), g.had.Token) {
			guard.Kept = map[fencing.Token]bool{g.had.Token: true}
		}
		if slices.Contains(g.s.Yields(g.now, skewed, op), g.had.Token) {
			g.leftOut(op, guard, &lease)
			continue
		}
		ops = append(ops, op)
	}
	for what, is := range map[string]bool{"over": guard.Kept != nil && !lease.Live(g.now), "doubtful": lease.SentAt != 0, "skewed": skewed,
		"forgotten": g.now > lease.ExpiresAt.Add(fencing.ForgetAfter)} {
		if is {
			g.seen[what]++
		}
	}
	for _, op := range ops {
		out := fencing.Step(g.s, g.now, guard, op)
		g.judge(g.s, op, &out)
	}
	for i := range 4 {
		g.probe(i)
	}
}

// leftOut says of an operation that it is left out.
func (g *guarding) leftOut(op fencing.Op, guard fencing.Guard, lease *fencing.Holding) {
	g.seen[fencing.Verb(op)]++
	if guard.Kept == nil {
		g.t.Fatalf("%#v has the lease %d yield something, and may not", op, g.had.Token)
	}
	renew, renews := op.(fencing.RenewRequest)
	if !renews || g.off == 0 && (!lease.Live(g.now) || lease.SentAt != 0) {
		return
	}
	s := g.s.Clone()
	out := fencing.Step(s, g.now, guard, op)
	h, there := g.of(s)
	less, more := h.Permits < lease.Permits, tolerates(h.Mode, h.Limit) > tolerates(lease.Mode, lease.Limit)
	if out.Err == nil && there && !less && !more {
		g.t.Fatalf("%#v is left out, and lets nobody in beside\n%+v", op, *lease)
	}
	for what, is := range map[string]bool{"downgrade": renew.Mode == fencing.ModeShared && more, "permits": less, "limit": renew.Mode == "" && more} {
		if is {
			g.seen[what]++
		}
	}
}

// judge fails the test if an operation has ended the lease, or if somebody was granted the name who would not have been beside it as it was.
func (g *guarding) judge(s *fencing.State, op fencing.Op, out *fencing.Outcome) {
	h, there := g.of(s)
	if !there {
		g.t.Fatalf("%#v at %d has ended the lease\n%+v", op, g.now, g.had)
	}
	permits := s.Records[g.name].Holders.Permits() - h.Permits + g.had.Permits
	for i := range out.Granted {
		by := &out.Granted[i].Holder
		if out.Granted[i].Name != g.name {
			continue
		}
		shares := slices.ContainsFunc(slices.Collect(by.AllSlots()), func(n int) bool { return n != fencing.NoSlot && slices.Contains(slices.Collect(g.had.AllSlots()), n) })
		if permits > min(tolerates(g.had.Mode, g.had.Limit), tolerates(by.Mode, by.Limit)) || shares {
			g.t.Fatalf("%#v at %d: granted is\n%+v\nbeside\n%+v, which a transaction guards as\n%+v", op, g.now, *by, h.Holder, g.had)
		}
		if by.Lease == op.LockLease().Public() {
			g.seen["newcomer"]++
		} else {
			g.seen["waiter"]++
		}
	}
}

// probe has a newcomer ask on a copy, once the clocks agree.
func (g *guarding) probe(n int) {
	op := acquire(g.t, g.name, leases+n)
	if limit := g.r.IntN(8); limit < 7 {
		op.Mode, op.Limit = fencing.ModeShared, limit
		op.Permits = g.r.IntN(limit + 1)
	}
	guard := fencing.Guard{Gateway: "1"}
	if slices.Contains(g.s.MayYield(g.now, op), g.had.Token) {
		guard.Kept = map[fencing.Token]bool{g.had.Token: true}
	}
	if slices.Contains(g.s.Yields(g.now, false, op), g.had.Token) {
		g.leftOut(op, guard, nil)
		return
	}
	s := g.s.Clone()
	out := fencing.Step(s, g.now, guard, op)
	g.judge(s, op, &out)
}
