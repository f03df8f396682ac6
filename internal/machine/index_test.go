package machine

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/fxamacker/cbor/v2"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

// beatOf returns what there is to tell a gateway, of all names or of those in names.
func beatOf(t *testing.T, m *Machine, gateway fencing.Gateway, all bool) []fencing.Entry {
	t.Helper()
	among := m.index.among(gateway)
	if all {
		among = maps.Keys(m.state.Records)
	}
	entries, err := fencing.BeatAmong(m.state.Clone(), m.now, fencing.Guard{Gateway: gateway}, among)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(entries, func(a, b fencing.Entry) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Lease, b.Lease))
	})
	return entries
}

// The index has all names on which there is something to tell a gateway, also when it is made anew
// from a state, as from a snapshot.
func TestIndexOfWhatIsTold(t *testing.T) {
	told := map[string]int{}
	for seed := range uint64(4) {
		m := testMachine(t)
		for i, l := range logOf(seed, 200) {
			l.apply(t, m)
			for gateway := range 4 {
				gateway := fencing.Gateway(fmt.Sprintf("%016d", gateway))
				got, want := beatOf(t, m, gateway, false), beatOf(t, m, gateway, true)
				if !slices.Equal(got, want) {
					t.Fatalf("log %d, entry %d: the index finds %+v for %s, want %+v", seed, i, got, gateway, want)
				}
				for _, e := range got {
					told[fmt.Sprintf("provisional %t, attached %t", e.Provisional, e.Attached)]++
				}
			}
			if anew := newIndex(m.state); !reflect.DeepEqual(anew.streamsOf, m.index.streamsOf) || len(anew.streams) != len(m.index.streams) {
				t.Fatalf("log %d, entry %d: streams of %v, made anew of %v", seed, i, m.index.streamsOf, anew.streamsOf)
			}
		}
	}
	if len(told) != 3 {
		t.Errorf("told of %v, not of all kinds", told)
	}
}

// A heartbeat looks at no name on which only others have streams, nor at those that are held without.
func TestHeartbeatLooksAtItsOwnStreams(t *testing.T) {
	m := testMachine(t)
	const names = 2000
	for i := range names {
		r := fencing.AcquireRequest{
			Name: fencing.Name(fmt.Sprintf("n%d", i)), Lease: fencing.HashedLeaseID("lease", fencing.SecretHash{}), Stamp: "s",
			Mode: fencing.ModeExclusive, Hold: 1, TTL: fencing.MaxLockDelay, Attach: i%2 == 0,
		}
		gateway := "0000000000000002"
		if i%100 == 0 {
			gateway = "0000000000000003"
		}
		e := Entry{Term: 1, Now: int64(fencingtest.Epoch), Batches: []Batch{{Gateway: gateway, Ops: []cbor.RawMessage{EncodeOp(r)}}}}
		logged{uint64(i + 1), must(e.Encode())}.apply(t, m)
	}
	for gateway, want := range map[fencing.Gateway]int{"0000000000000002": names/2 - names/100, "0000000000000003": names / 100, "0000000000000004": 0} {
		looked := 0
		for range m.index.among(gateway) {
			looked++
		}
		if entries := len(beatOf(t, m, gateway, true)); looked != want || entries != want {
			t.Errorf("%s: looked at %d names and told of %d, want %d", gateway, looked, entries, want)
		}
	}
}
