package machine

import (
	"bytes"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

// Restarts and losses are in the log as all else: who replays it, or goes on from a snapshot, has the same state.
func TestRestartsAndLossesAreReplayed(t *testing.T) {
	log := logOf(5, 300)
	now := fencing.Instant(0)
	first, second := testMachine(t), testMachine(t)
	var snapshot []byte
	for i, l := range log {
		if i%60 == 30 {
			ops := []cbor.RawMessage{Restart(), Loss(time.Duration(i) * time.Second)}[i/60%2:]
			e := Entry{Now: int64(now), Batches: []Batch{{Gateway: "0000000000000001", Ops: ops}}}
			l.data = must(e.Encode())
		}
		l.apply(t, first)
		now = first.now
		log[i] = l
		if i == 150 {
			snapshot = encoded(t, first)
		}
	}
	third := anew(t, bytes.NewReader(snapshot))
	for i, l := range log {
		l.apply(t, second)
		if i > 150 {
			l.apply(t, third)
		}
	}
	for i, m := range []*Machine{second, third} {
		if !bytes.Equal(encoded(t, m), encoded(t, first)) || m.digest != first.digest {
			t.Errorf("replay %d computes other results", i)
		}
	}
	if first.state.Quarantine.Until <= fencingtest.Epoch {
		t.Error("no loss counted")
	}
}
