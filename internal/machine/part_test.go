package machine

import (
	"maps"
	"reflect"
	"slices"
	"testing"

	"fencepost/internal/fencing"
	"fencepost/internal/seed"
)

// decided returns what an entry decides, and the leases of which it says that they may have changed.
func decided(t *testing.T, m *Machine, l logged) ([][]Result, map[fencing.EndedLease]fencing.Token) {
	t.Helper()
	e, err := Decode(l.data)
	if err != nil {
		t.Fatal(err)
	}
	telling := &Telling{Leases: map[fencing.EndedLease]fencing.Token{}}
	results, err := m.Apply(l.index, e, telling, false)
	if err != nil {
		t.Fatal(err)
	}
	return results, telling.Leases
}

// opsOf returns fencing's operations of an entry.
func opsOf(t *testing.T, l logged) (ops []fencing.Op) {
	t.Helper()
	e, err := Decode(l.data)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range e.batches {
		for _, op := range b.ops {
			if op != nil {
				ops = append(ops, op)
			}
		}
	}
	return ops
}

// A copy of the names of an entry comes to what the machine comes to, and the machine stays as it is meanwhile.
func TestPart(t *testing.T) {
	first := seed.Of(t)
	for seed := first; seed < first+6; seed++ {
		m := testMachine(t)
		for _, l := range logOf(seed, 300) {
			ops := opsOf(t, l)
			before := encoded(t, m)
			part, ok := m.Part(ops)
			if !ok {
				t.Fatalf("seed %d, entry %d: too much to copy", seed, l.index)
			}
			results, leases := decided(t, part, l)
			if string(encoded(t, m)) != string(before) {
				t.Fatalf("seed %d, entry %d: the machine has changed", seed, l.index)
			}
			is, changed := decided(t, m, l)
			if !maps.Equal(leases, changed) || !reflect.DeepEqual(outcomes(results), outcomes(is)) {
				t.Fatalf("seed %d, entry %d: the copy comes to\n%+v %v\nand the machine to\n%+v %v", seed, l.index, results, leases, is, changed)
			}
			for key := range changed {
				if holderOn(part, key) != holderOn(m, key) {
					t.Fatalf("seed %d, entry %d: %v is %+v in the copy and %+v in the machine", seed, l.index, key, holderOn(part, key), holderOn(m, key))
				}
			}
		}
	}
}

type row struct {
	token fencing.Token
	ends  fencing.Instant
	mode  fencing.Mode
	slot  int
}

// rows returns the leases of a machine that are not provisional.
func rows(m *Machine) map[fencing.EndedLease]row {
	all := map[fencing.EndedLease]row{}
	for name, r := range m.state.Records {
		for h := range r.Holders.All() {
			if !h.Provisional {
				all[fencing.EndedLease{Name: name, Lease: h.Lease}] = row{h.Token, h.ExpiresAt, h.Mode, h.Slot}
			}
		}
	}
	return all
}

func holderOn(m *Machine, key fencing.EndedLease) row { return rows(m)[key] }

// outcomes returns what operations came to, without what heartbeats tell: a copy does not have all names.
func outcomes(all [][]Result) (flat []fencing.Outcome) {
	for _, results := range all {
		for i := range results {
			flat = append(flat, results[i].Out)
		}
	}
	return flat
}

// proposes reports whether a node of a quorum asks: two names may have a lease of the same token then.
func proposes(op fencing.Op) bool {
	_, claims := op.(fencing.ClaimRequest)
	a, _ := op.(fencing.AcquireRequest)
	return claims || a.Propose != 0
}

// Whoever changes only the rows of leases that Telling.Leases names has a table of all leases that are not provisional.
func TestLeasesFollow(t *testing.T) {
	first := seed.Of(t)
	for seed := first; seed < first+10; seed++ {
		m := testMachine(t)
		table := map[fencing.Token]row{}
		for _, l := range logOf(seed, 300) {
			if slices.ContainsFunc(opsOf(t, l), proposes) {
				continue
			}
			_, changed := decided(t, m, l)
			is := rows(m)
			for key, was := range changed {
				delete(table, was)
				if r, ok := is[key]; ok {
					table[r.token] = r
				}
			}
			want := map[fencing.Token]row{}
			for _, r := range is {
				want[r.token] = r
			}
			if !maps.Equal(table, want) {
				t.Fatalf("seed %d, entry %d: the table has\n%v\nand the leases are\n%v", seed, l.index, table, want)
			}
		}
	}
}
