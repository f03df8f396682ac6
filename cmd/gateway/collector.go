package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	// spareHeap is how much garbage may gather while little is alive.
	spareHeap = 64 << 20

	// The percentages of garbage between which the collector is kept.
	leastGarbage, mostGarbage = 50, 400
)

// tuneCollector trades memory for CPU unless the operator has set GOGC or a
// limit: a busy gateway's live heap is a few megabytes, and at the default it would
// be collected many times a second. With many waiters it is large, and memory is
// what counts: so the percentage follows what is alive. Collecting a quarter as often
// as that would save 4 % of the CPU for 60 MB.
func tuneCollector() {
	if os.Getenv("GOGC") == "" && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetGCPercent(mostGarbage)
		runtime.SetFinalizer(&collection{percent: mostGarbage}, (*collection).over)
	}
}

// collection is garbage at all times, so that its finalizer runs after every
// collection.
type collection struct {
	percent int
	_       [16]byte // tiny objects share a block, and live as long as one of them
}

// over adjusts the percentage to what the collection has left alive.
func (c *collection) over() {
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}}
	metrics.Read(samples)
	alive := samples[0].Value.Uint64() + samples[1].Value.Uint64()
	percent := garbageFor(alive)
	if diff := percent - c.percent; diff > c.percent/8 || -diff > c.percent/8 { // a change stops the world for a moment
		debug.SetGCPercent(percent)
		c.percent = percent
	}
	runtime.SetFinalizer(c, (*collection).over)
}

// garbageFor returns how much garbage may gather, in percent of what is alive.
func garbageFor(alive uint64) int {
	return int(min(max(spareHeap*100/max(alive, 1), leastGarbage), mostGarbage))
}
