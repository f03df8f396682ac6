package machine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

var guard = fencing.Guard{Gateway: "g"}

// What is found is what is there, whatever has happened to the state.
func TestIndex(t *testing.T) {
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 0))
		state := fencing.NewState()
		x := newNameIndex(state, namesOf(state))
		now := fencing.InstantOf(time.UnixMilli(1_700_000_000_000))
		leases := map[fencing.Name]fencing.LeaseID{}
		for range 400 {
			name := fencing.Name(fmt.Sprintf("%c/%d", 'a'+random.IntN(3), random.IntN(20)))
			now = now.Add(time.Duration(random.IntN(2000)) * time.Millisecond)
			var op fencing.Op = fencing.ReleaseRequest{Name: name, Lease: leases[name]}
			if leases[name].IsZero() || random.IntN(3) > 0 {
				leases[name] = fencing.NewLeaseID(now.Time())
				op = fencing.AcquireRequest{
					Name: name, Lease: leases[name], Stamp: fencing.NewStamp(), Mode: fencing.ModeExclusive, Hold: 1,
					TTL: time.Duration(1+random.IntN(60)) * time.Second,
				}
			}
			fencing.Step(state, now, guard, op)
			x.Update(name)
			if random.IntN(4) == 0 {
				attend(t, state, x, now, 1+random.IntN(8))
			}
			compare(t, state, x, now)
			if x = sometimesNew(random, state, x); t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
	}
}

func sometimesNew(random *rand.Rand, state *fencing.State, x *nameIndex) *nameIndex {
	if random.IntN(50) == 0 {
		return newNameIndex(state, namesOf(state))
	}
	return x
}

// attend does what is due on as many names as Due is asked for.
func attend(t *testing.T, state *fencing.State, x *nameIndex, now fencing.Instant, limit int) {
	t.Helper()
	due := x.Due(now, limit)
	if all := len(dueNames(state, now)); len(due) != min(all, limit) {
		t.Errorf("%d names are due, of up to %d %d are told", all, limit, len(due))
	}
	for _, name := range due {
		fencing.Step(state, now, guard, fencing.ExpireRequest{Name: name})
		x.Update(name)
	}
}

func dueNames(state *fencing.State, now fencing.Instant) (names []fencing.Name) {
	for name := range state.Records {
		if state.Due(name) <= now {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func compare(t *testing.T, state *fencing.State, x *nameIndex, now fencing.Instant) {
	t.Helper()
	due := x.Due(now, len(state.Records))
	slices.Sort(due)
	if want := dueNames(state, now); !slices.Equal(due, want) {
		t.Errorf("due are %v, told are %v", want, due)
	}
	if x.Queued() != len(state.Records) {
		t.Errorf("%d of %d names are due at some time", x.Queued(), len(state.Records))
	}
	first := fencing.Instant(fencing.MaxToken)
	for name := range state.Records {
		first = min(first, state.Due(name))
	}
	if next, ok := x.Next(); ok && next > first {
		t.Errorf("the next is due at %d, told is %d", first, next)
	}
	for _, prefix := range []string{"", "b/", "b/1", "d"} {
		var held []fencing.Name
		for name, r := range state.Records {
			if r.Holders.Len() > 0 && strings.HasPrefix(string(name), prefix) {
				held = append(held, name)
			}
		}
		slices.Sort(held)
		if n := x.HeldBelow(prefix); n != len(held) {
			t.Errorf("%d are held below %q, told are %d", len(held), prefix, n)
		}
		live := slices.DeleteFunc(held, func(name fencing.Name) bool { return !state.View(name, now, guard, false).Held() })
		if got := paged(t, state, x, now, prefix); !slices.Equal(got, live) {
			t.Errorf("below %q there are %v, shown are %v", prefix, live, got)
		}
	}
}

// paged reads all pages of live locks.
func paged(t *testing.T, state *fencing.State, x *nameIndex, now fencing.Instant, prefix string) (names []fencing.Name) {
	t.Helper()
	r := fencing.ListRequest{Prefix: prefix, Limit: 7}
	for {
		page := Page(r, func(v View, after fencing.Name) ([]*fencing.Lock, bool) {
			v.Now, v.Guard = now, guard
			return x.Views(v, after)
		})
		if len(page.Locks) > r.Limit {
			t.Errorf("a page of at most %d has %d locks", r.Limit, len(page.Locks))
		}
		for i := range page.Locks {
			names = append(names, page.Locks[i].Name)
		}
		if page.Next == "" || len(names) > len(state.Records) {
			return names
		}
		r.After = page.Next
	}
}
