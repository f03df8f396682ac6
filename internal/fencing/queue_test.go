//go:build !race

package fencing

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"fencepost/internal/seed"
)

func placeOf(lease string, seq Instant, gateway Gateway) *Place {
	return &Place{Ask: AcquireRequest{Lease: LeaseID{public: LeasePublic(lease)}}, Seq: seq, Gateway: gateway}
}

func leases(places []Place) []LeasePublic {
	all := make([]LeasePublic, len(places))
	for i := range places {
		all[i] = places[i].lease()
	}
	return all
}

// TestQueueIsAList does the same to a queue and to plain lists.
func TestQueueIsAList(t *testing.T) {
	r := rand.New(rand.NewPCG(seed.Of(t), 0))
	var (
		q       Queue
		waiting []*Place
		resting []*Place
		now     = Instant(1000)
	)
	byArrival := func(p *Place) int {
		at := slices.IndexFunc(waiting, func(w *Place) bool { return p.compare(w) < 0 })
		if at < 0 {
			return len(waiting)
		}
		return at
	}
	without := func(places []*Place, p *Place) []*Place {
		return slices.DeleteFunc(places, func(o *Place) bool { return o == p })
	}
	for step := range 20_000 {
		now = now.Add(time.Duration(r.IntN(3)) * time.Second)
		switch r.IntN(7) {
		case 0, 1:
			p := placeOf(string(rune('A'+r.IntN(26)))+string(rune('A'+step%26)), q.next(now), Gateway(string(rune('1'+r.IntN(3)))))
			if q.find(p.lease()) == nil {
				q.enter(p)
				waiting = append(waiting, p)
			}
		case 2:
			if len(waiting) > 0 {
				p := waiting[r.IntN(len(waiting))]
				if q.position(p) != slices.Index(waiting, p)+1 {
					t.Fatalf("step %d: the position is %d", step, q.position(p))
				}
				q.remove(p)
				waiting = without(waiting, p)
				if r.IntN(2) == 0 {
					p.RestTill = now.Add(RestTTL)
					q.addResting(p)
					resting = append(resting, p)
				}
			}
		case 3:
			if len(resting) > 0 {
				p := resting[r.IntN(len(resting))]
				q.remove(p)
				resting = without(resting, p)
				q.enter(p)
				waiting = slices.Insert(waiting, byArrival(p), p)
			}
		case 4:
			over := func(p *Place) bool { return p.RestTill <= now }
			most := r.IntN(4)
			dropped, more := q.wake(now, most)
			left := slices.DeleteFunc(slices.Clone(resting), over)
			if due := len(resting) - len(left); dropped != min(due, most) || more != (due > most) {
				t.Fatalf("step %d: %d of %d places whose rest was over were dropped, at most %d were to be (more: %v)", step, dropped, due, most, more)
			}
			for _, p := range slices.SortedFunc(slices.Values(resting), func(a, b *Place) int {
				return cmp.Or(cmp.Compare(a.RestTill, b.RestTill), cmp.Compare(a.lease(), b.lease()))
			})[:dropped] {
				resting = without(resting, p)
			}
		case 5:
			if len(waiting) > 0 && r.IntN(10) == 0 {
				dead := map[Gateway]bool{waiting[0].Gateway: true}
				most, n := r.IntN(20), 0
				removed, more := q.removeAll(dead, most)
				kept := slices.DeleteFunc(slices.Clone(waiting), func(p *Place) bool {
					n += map[bool]int{true: 1}[dead[p.Gateway]]
					return dead[p.Gateway] && n <= most
				})
				if len(removed)+len(kept) != len(waiting) || !slices.IsSortedFunc(removed, (*Place).compare) || more != (n > most) {
					t.Fatalf("step %d: %d of %d were removed, %d kept, more: %v", step, len(removed), len(waiting), len(kept), more)
				}
				waiting = kept
			}
		case 6:
			copied := q.clone()
			if len(waiting) > 0 {
				copied.remove(copied.order[0])
			}
		}
		if q.places == nil {
			continue
		}
		checkQueue(t, &q, waiting, resting)
	}
}

func checkQueue(t *testing.T, q *Queue, waiting, resting []*Place) {
	t.Helper()
	slices.SortFunc(resting, (*Place).compare)
	want := make([]Place, len(waiting))
	gateways := map[Gateway]int{}
	for i, p := range waiting {
		want[i] = *p
		gateways[p.Gateway]++
	}
	if !slices.Equal(leases(q.Waiting()), leases(want)) || q.Len() != len(waiting) {
		t.Fatalf("the queue is %v instead of %v", leases(q.Waiting()), leases(want))
	}
	want = make([]Place, len(resting))
	for i, p := range resting {
		want[i] = *p
		if p.RestTill < q.restTill {
			t.Fatalf("a rest ends at %d, before %d", p.RestTill, q.restTill)
		}
	}
	if !slices.Equal(leases(q.Resting()), leases(want)) {
		t.Fatalf("resting are %v instead of %v", leases(q.Resting()), leases(want))
	}
	if q.Empty() != (len(waiting)+len(resting) == 0) || len(q.byLease) != len(waiting)+len(resting) {
		t.Fatalf("%d places are known of %d and %d", len(q.byLease), len(waiting), len(resting))
	}
	if len(gateways) != len(q.gateways) {
		t.Fatalf("the gateways are %v instead of %v", q.gateways, gateways)
	}
	for gateway, n := range gateways {
		if q.gateways[gateway] != n {
			t.Fatalf("the gateways are %v instead of %v", q.gateways, gateways)
		}
	}
}

func TestArrivalsWithinAnInstant(t *testing.T) {
	var q Queue
	for _, lease := range []string{"C", "A", "B"} {
		q.enter(placeOf(lease, q.next(1000), "1"))
	}
	if got := leases(q.Waiting()); !slices.Equal(got, []LeasePublic{"C", "A", "B"}) {
		t.Errorf("the order is %v", got)
	}
	if q.next(500) <= q.Waiting()[2].Seq {
		t.Error("a clock that was set back lets a newcomer overtake")
	}
}
