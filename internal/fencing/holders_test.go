package fencing

import (
	"fmt"
	"maps"
	"math/bits"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"fencepost/internal/seed"
)

// TestHoldersAreAList does the same to Holders and to a plain list, and asks both the
// same.
func TestHoldersAreAList(t *testing.T) {
	r := rand.New(rand.NewPCG(seed.Of(t), 0))
	for round := range 100 {
		var hs Holders
		var list []Holding
		for n := range 200 {
			h := randomHolding(r, 1+round)
			at := slices.IndexFunc(list, func(other Holding) bool { return other.Lease == h.Lease })
			switch {
			case r.IntN(3) == 0 && n < 150: // most rounds end with more than they began with
				hs.Remove(h.Lease)
				if at >= 0 {
					list = slices.Delete(list, at, at+1)
				}
			default:
				if h.Slot = NoSlot; r.IntN(3) > 0 {
					h.Permits = 1 + r.IntN(3)*r.IntN(50)
					free := freeSlotsOf(list, h.Permits)
					h.Slot, h.Slots = free[0], slotsOf(free)
				}
				hs.Put(h)
				if at >= 0 {
					list[at] = h
				} else {
					list = append(list, h)
				}
			}
			slices.SortFunc(list, func(a, b Holding) int { return compareBy(byToken, &a, &b) })
			checkTrees(t, &hs)
			if r.IntN(10) == 0 {
				compareWithList(t, r, &hs, list)
			}
		}
		kept, before := hs.clone(), list
		for range 10 {
			hs.Put(randomHolding(r, 1+round))
			hs.Remove(randomHolding(r, 1+round).Lease)
		}
		checkTrees(t, &kept)
		compareWithList(t, r, &kept, before)
	}
}

// randomHolding returns a holding of one of so many leases, in few instants, gateways
// and limits.
func randomHolding(r *rand.Rand, leases int) Holding {
	h := Holding{Gateway: Gateway(fmt.Sprint(r.IntN(4)))}
	h.Permits = 1
	h.Lease, h.Token = LeasePublic(fmt.Sprint(r.IntN(leases))), Token(r.IntN(1<<30))
	h.ExpiresAt, h.Provisional = Instant(r.IntN(20)), r.IntN(4) == 0
	if h.Mode = ModeShared; r.IntN(20) == 0 {
		h.Mode = ModeExclusive
	}
	h.Limit, h.TTL = r.IntN(3)*r.IntN(100), time.Duration(r.IntN(9))*time.Microsecond
	if r.IntN(2) == 0 {
		h.Attached, h.BreakAt = Stamp(fmt.Sprint(r.IntN(3))), Instant(r.IntN(4)/3)
	}
	return h
}

// freeSlotsOf returns the lowest slots that nobody has.
func freeSlotsOf(list []Holding, count int) (free []int) {
	taken := map[int]bool{}
	for i := range list {
		for slot := range list[i].AllSlots() {
			taken[slot] = true
		}
	}
	for slot := 0; len(free) < count; slot++ {
		if !taken[slot] {
			free = append(free, slot)
		}
	}
	return free
}

func compareBy(order int, a, b *Holding) int {
	p, q := pack(a), pack(b)
	return compare[order](&p, &q)
}

func compareWithList(t *testing.T, r *rand.Rand, hs *Holders, list []Holding) {
	t.Helper()
	equal := func(what string, got, want any) {
		t.Helper()
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%s: %+v instead of %+v, of %+v", what, got, want, list)
		}
	}
	now, most := Instant(r.IntN(22)), r.IntN(12)
	alive := func(gateway Gateway) bool { return gateway > "1" }
	filter := func(keep func(h *Holding) bool) []Holding {
		var kept []Holding
		for i := range list {
			if keep(&list[i]) {
				kept = append(kept, list[i])
			}
		}
		return kept
	}
	byDue := func(kept []Holding) []Holding {
		slices.SortFunc(kept, func(a, b Holding) int { return compareBy(byEnd, &a, &b) })
		return kept
	}
	byToken := func(kept []Holding) []Holding {
		slices.SortFunc(kept, func(a, b Holding) int { return compareBy(byToken, &a, &b) })
		return kept
	}
	first := func(kept []Holding) []Holding {
		if len(kept) > most {
			kept = kept[:most]
		}
		return byToken(kept)
	}
	isDue := func(h *Holding) bool {
		return h.Provisional && !alive(h.Gateway) || !h.Provisional && !h.Live(now)
	}

	equal("all", append([]Holding{}, slices.Collect(hs.All())...), append([]Holding{}, list...))
	equal("length", hs.Len(), len(list))
	due, more := hs.due(now, alive, most)
	allDue := filter(isDue)
	equal("more are due", more, len(allDue) > most)
	equal("due", append([]Holding{}, due...), append([]Holding{}, first(byDue(allDue))...))
	count, live := hs.live(now, alive, most)
	allLive := filter(func(h *Holding) bool { return !isDue(h) })
	equal("how many live", count, len(allLive))
	shown := []Holder{}
	for _, h := range first(byDue(allLive)) {
		if h.Provisional {
			h.ExpiresAt = now.Add(h.TTL)
		}
		shown = append(shown, h.Holder)
	}
	equal("live", append([]Holder{}, live...), shown)
	over := byDue(filter(func(h *Holding) bool { return !h.Provisional && !h.Live(now) }))
	over = byToken(over[max(0, len(over)-most):])
	slices.Reverse(over)
	equal("expired", append([]Holding{}, hs.expired(now, most)...), append([]Holding{}, over...))

	bears, permits := AnyNumber, 0
	provisional, hanging := map[Gateway][]Holding{}, map[Gateway]map[LeasePublic]Stamp{}
	for i := range list {
		h := &list[i]
		found, ok := hs.Find(h.Lease)
		equal("found", ok, true)
		equal("what is found", found, *h)
		found, ok = hs.WithToken(h.Token)
		equal("with its token", ok && found.Token == h.Token, true)
		bears, permits = min(bears, tolerates(h.Mode, h.Limit)), permits+h.Permits
		if h.Provisional {
			provisional[h.Gateway] = append(provisional[h.Gateway], *h)
		}
		if p := pack(h); p.hangs() {
			if hanging[h.Gateway] == nil {
				hanging[h.Gateway] = map[LeasePublic]Stamp{}
			}
			hanging[h.Gateway][h.Lease] = h.Attached
		}
	}
	equal("tolerance", hs.tolerate(), bears)
	equal("permits", hs.Permits(), permits)
	equal("free slot", hs.slots().first(), freeSlotsOf(list, 1)[0])
	equal("free slots", hs.slots().free(1+most), freeSlotsOf(list, 1+most))
	equal("unconfirmed", hs.Unconfirmed(), len(provisional) > 0)
	gateways := 0
	hs.gateways(func(gateway Gateway, from, to int) {
		gateways++
		equal("of a gateway", to-from, len(provisional[gateway]))
	})
	equal("gateways", gateways, len(provisional))
	for _, gateway := range []Gateway{"0", "1", "2", "3"} {
		equal("provisional", hs.Provisional(gateway), provisional[gateway])
		if found := maps.Collect(hs.Hanging(gateway)); !maps.Equal(found, hanging[gateway]) {
			t.Fatalf("on streams of %s: %v instead of %v", gateway, found, hanging[gateway])
		}
	}
	equal("gateways of streams", slices.Collect(hs.Streams()), slices.Sorted(maps.Keys(hanging)))
	ends := filter(func(h *Holding) bool { return !h.Provisional })
	if byDue(ends); len(ends) > 0 {
		equal("first end", hs.nextEnd(), ends[0].ExpiresAt)
		equal("last end", hs.lastEnd(), ends[len(ends)-1].ExpiresAt)
	}
	for _, lease := range []LeasePublic{"none", "~"} {
		if _, ok := hs.Find(lease); ok {
			t.Fatalf("%s is found", lease)
		}
	}
}

// checkTrees checks that the trees have their order, sizes and balance.
func checkTrees(t *testing.T, hs *Holders) {
	t.Helper()
	for order := range orders {
		root := hs.root(order)
		var last *node
		root.each(order, 0, func(n *node) bool {
			if last != nil && compare[order](&last.packed, &n.packed) >= 0 {
				t.Fatalf("order %d: %+v before %+v", order, last.holding(), n.holding())
			}
			last = n
			l := &n.links[order]
			left, right := l.left.size(order)+1, l.right.size(order)+1
			if n.size(order) != left+right-1 {
				t.Fatalf("order %d: %d below and with a node, not %d", order, left+right-1, n.size(order))
			}
			if left > balanceFactor*right || right > balanceFactor*left {
				t.Fatalf("order %d: weights %d and %d", order, left, right)
			}
			return true
		})
		want := 0
		for h := range hs.All() {
			if p := pack(&h); p.in(order) {
				want++
			}
		}
		if root.size(order) != want {
			t.Fatalf("order %d has %d, not %d", order, root.size(order), want)
		}
	}
}

// TestHoldersCompareFew counts the comparisons of a change: of the weight-balanced trees
// none is deeper than 2.5 times the logarithm.
func TestHoldersCompareFew(t *testing.T) {
	compared := 0
	for order, original := range compare {
		compare[order] = func(a, b *packed) int {
			compared++
			return original(a, b)
		}
		defer func() { compare[order] = original }()
	}
	const holders = 20_000
	of := func(n int) Holding { // in the order that is worst for a tree without balance
		return Holding{Holder: Holder{Lease: LeasePublic(fmt.Sprintf("%08d", n)), Token: Token(n), ExpiresAt: Instant(n), Mode: ModeShared, Limit: holders, Slot: n}}
	}
	var hs Holders
	most := 0
	change := func(what func()) {
		compared = 0
		what()
		most = max(most, compared)
	}
	for n := range holders {
		change(func() { hs.Put(of(n)) })
	}
	for n := range holders {
		change(func() {
			h := of(n)
			h.ExpiresAt = h.ExpiresAt.Add(time.Second)
			hs.Put(h)
		})
	}
	for n := range holders {
		change(func() { hs.Remove(of(n).Lease) })
	}
	if bound := orders * 5 * bits.Len(holders) / 2; most > bound || most == 0 {
		t.Errorf("a change of one of %d holders compared %d times, more than %d", holders, most, bound)
	}
}
