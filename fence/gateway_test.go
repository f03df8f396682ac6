package fence_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"fencepost/fence"
	"fencepost/internal/fencing"
	"fencepost/internal/seed"
)

// lease is a lease that the gateway has granted, live or over.
type lease struct {
	id     fencing.LeaseID
	token  int64
	slot   int
	reader bool // shared without limit: it has no order among its like
	end    fencing.Instant
}

// play is a lock of the gateway and a Mark that is to agree with its fence.
type play struct {
	t      *testing.T
	seed   uint64
	random *rand.Rand
	state  *fencing.State
	now    fencing.Instant
	leases []lease
	mark   fence.Mark
	seen   map[string]int // kinds of admissions that were compared
}

const lockName fencing.Name = "orders/42"

func (p *play) step(op fencing.Op) fencing.Outcome {
	return fencing.Step(p.state, p.now, fencing.Guard{Sent: p.now, MaxSkew: time.Second}, op)
}

// acquire asks for one of the kinds of leases; a refusal is no matter.
func (p *play) acquire() {
	n := len(p.leases)
	id := fencing.HashedLeaseID(fencing.LeasePublic(fmt.Sprintf("L%d", n)), fencing.SecretHash{1, byte(n), byte(n >> 8)})
	r := fencing.AcquireRequest{Name: lockName, Lease: id, Stamp: "r", Mode: fencing.ModeExclusive, Hold: 1, TTL: time.Duration(1+p.random.IntN(9)) * time.Second}
	switch p.random.IntN(6) {
	case 0:
	case 1, 2:
		r.Mode = fencing.ModeShared
	default:
		r.Mode, r.Limit = fencing.ModeShared, 1+p.random.IntN(4)
	}
	if out := p.step(r); out.Err == nil {
		p.leases = append(p.leases, lease{
			id: id, token: int64(out.Holder.Token), slot: out.Holder.Slot, end: out.Holder.ExpiresAt, reader: r.Mode == fencing.ModeShared && r.Limit == 0,
		})
	}
}

// end releases a lease, or turns it into a reader's.
func (p *play) end() {
	if len(p.leases) == 0 {
		return
	}
	l := &p.leases[p.random.IntN(len(p.leases))]
	if p.random.IntN(3) == 0 {
		if out := p.step(fencing.RenewRequest{Name: lockName, Lease: l.id, Mode: fencing.ModeShared}); out.Err == nil {
			l.end, l.slot, l.reader = out.Holder.ExpiresAt, out.Holder.Slot, out.Holder.Limit == 0
		}
		return
	}
	if out := p.step(fencing.ReleaseRequest{Name: lockName, Lease: l.id}); out.Err == nil {
		l.end = p.now
	}
}

// lowest returns the lowest token that is held, and whether any is.
func (p *play) lowest() (token int64, held bool) {
	for _, l := range p.leases { // in the order of their tokens
		if l.end > p.now {
			return l.token, true
		}
	}
	return 0, false
}

// pick returns a lease to admit the token of, and a slot: mostly its own.
func (p *play) pick() (l lease, slot int) {
	l = p.leases[p.random.IntN(len(p.leases))]
	if p.random.IntN(2) == 0 { // one of the last, so that there are tokens that are not stale
		l = p.leases[len(p.leases)-1-p.random.IntN(min(3, len(p.leases)))]
	}
	if slot = l.slot; p.random.IntN(4) == 0 {
		slot = p.random.IntN(6) - 1
	}
	return l, slot
}

// admit asks both, and says what the gateway adds to the rule of Mark: it knows which
// tokens are held, and which were issued.
func (p *play) admit() {
	if len(p.leases) == 0 {
		return
	}
	l, slot := p.pick()
	if p.random.IntN(12) == 0 {
		l = lease{token: p.leases[len(p.leases)-1].token + 1 + p.random.Int64N(5)}
		p.compare("unissued", l, slot, false, 0)
		return
	}
	live := l.end > p.now
	if live && slot >= 0 {
		slot = l.slot // of a live lease the gateway refuses any other as a mistake
	}
	raised := max(p.mark.Token, p.mark.Slots[slot]) // that of other slots is none of the name
	lowest, held := p.lowest()
	older := held && lowest < l.token // somebody holds an older token
	switch {
	case copyOf(p.mark).Admit(l.token, slot) != nil:
		p.compare("stale", l, slot, false, 0)
	case live && l.reader:
		p.compare("reader's", l, slot, true, min(l.token, lowest))
	case live:
		p.compare("live", l, slot, true, l.token)
	case l.token == raised && older:
		p.compare("equal", l, slot, true, 0)
	case older:
		p.compare("over, beside an older holder", l, slot, false, 0)
	default:
		p.compare("over", l, slot, true, l.token)
	}
}

// highestOf returns what a token must not be below, by what Mark itself says.
func highestOf(m fence.Mark, slot int) int64 {
	var stale *fence.StaleError
	if errors.As(copyOf(m).Admit(1, slot), &stale) {
		return stale.Highest
	}
	return 0
}

func copyOf(m fence.Mark) *fence.Mark {
	return &fence.Mark{Token: m.Token, Slots: maps.Clone(m.Slots)}
}

// compare has the gateway decide. What passes there raises the Mark, to a token that is 0
// if it does not.
func (p *play) compare(kind string, l lease, slot int, pass bool, to int64) {
	p.t.Helper()
	p.seen[kind]++
	out := p.step(fencing.AdmitRequest{Name: lockName, Token: fencing.Token(l.token), Slot: slot})
	if (out.Err == nil) != pass || out.Err != nil && out.Err.Code != fencing.CodeStaleToken {
		p.t.Fatalf("seed %d: %s token %d, slot %d: the gateway answers %v, and the mark is %v", p.seed, kind, l.token, slot, out.Err, p.mark)
	}
	if to > 0 {
		_ = p.mark.Admit(to, slot) // one that is below raises nothing
	}
	if f := out.Fence; out.Err == nil && int64(f.HighestAdmitted) != highestOf(p.mark, no) {
		p.t.Fatalf("seed %d: after %s token %d, slot %d the gateway has admitted up to %d, and the mark is %v", p.seed, kind, l.token, slot, f.HighestAdmitted, p.mark)
	}
}

// The rule of Mark and that of the gateway's fence (POST /fences/{name}) are one: on random
// leases and admissions they agree, but for what only the gateway can know. It refuses
// tokens that were not issued, and a new one whose lease is over beside the holder of an older one; a
// reader's token counts as the oldest that is held.
func TestMarkAgreesWithTheGateway(t *testing.T) {
	seed, seen := seed.Of(t), map[string]int{}
	for i := range uint64(500) {
		p := &play{t: t, seed: seed + i, random: rand.New(rand.NewPCG(seed+i, 0)), state: fencing.NewState(), now: 1_767_225_600_000_000, seen: seen}
		for range 80 {
			switch n := p.random.IntN(10); {
			case n < 3:
				p.acquire()
			case n < 4:
				p.end()
			case n < 5:
				p.now = p.now.Add(time.Duration(p.random.IntN(3000)) * time.Millisecond)
			default:
				p.admit()
			}
		}
	}
	t.Log(seen)
	for _, kind := range []string{"stale", "equal", "live", "over", "reader's", "over, beside an older holder", "unissued"} {
		if seen[kind] < 100 {
			t.Errorf("of %q there were only %d", kind, seen[kind])
		}
	}
}
