package redis

import (
	"runtime"
	"strings"
	"testing"

	"fencepost/internal/fencing"
)

// An event that is kept does not keep the message that told of it, with its metadata.
func TestEventsAreKeptWithoutTheirMessages(t *testing.T) {
	const messages = 1000
	r := acquireRequest("orders/42")
	r.Metadata = map[string]string{"note": strings.Repeat("x", 4000)}
	end := codec{mode: writing, b: []byte("E")}
	end.ended(&fencing.Ended{Reason: fencing.ReasonReleased, At: epoch})
	over := placeOf(&r)
	end.over(&over)
	payload := wireEventsPrefix + wireNow() + wireName(r.Name) + wireItem("G", r, 1) + string(end.b)
	used := func() int64 { // what others have let go of meanwhile counts for less than nothing
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := used()
	var kept []fencing.Event
	for range messages {
		events, err := decodeEventsMessage(strings.Clone(payload))
		if err != nil || len(events) != 2 || events[1].Kind != fencing.EventReleased || events[1].Owner != r.Owner || events[1].Name != r.Name {
			t.Fatal(events, err)
		}
		kept = append(kept, events...)
	}
	if grown := (used() - before) / messages; grown > 2000 {
		t.Errorf("%d bytes are kept of a message of %d", grown, len(payload))
	}
	runtime.KeepAlive(kept)
}
