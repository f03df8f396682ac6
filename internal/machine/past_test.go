package machine

import (
	"fmt"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

// Beyond what is remembered in all, the names whose last lease ended longest ago lose their histories, whole.
func TestHistoryIsBoundedInAll(t *testing.T) {
	m := testMachine(t)
	now := fencingtest.Epoch
	for i := range uint64(3 * m.mostPast) {
		now = now.Add(time.Second)
		r := fencing.AcquireRequest{
			Name: fencing.Name(fmt.Sprintf("n%02d", i/2)), Lease: fencing.NewLeaseID(now.Time()), Stamp: fencing.NewStamp(), Hold: 1, TTL: time.Hour,
		}
		e := Entry{Now: int64(now), Batches: []Batch{{Gateway: "g", Ops: []cbor.RawMessage{
			EncodeOp(r), EncodeOp(fencing.ReleaseRequest{Name: r.Name, Lease: r.Lease}),
		}}}}
		logged{i + 1, must(e.Encode())}.apply(t, m)
		if m.past.total > m.mostPast {
			t.Fatalf("%d ended leases are remembered", m.past.total)
		}
	}
	for i := range 3 * m.mostPast / 2 {
		name := fencing.Name(fmt.Sprintf("n%02d", i))
		want := 0
		if i >= m.mostPast { // the last ones, of two each
			want = 2
		}
		if got := len(m.state.Records[name].History); got != want {
			t.Errorf("%s has %d ended leases, want %d", name, got, want)
		}
	}
}
