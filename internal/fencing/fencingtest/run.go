package fencingtest

import (
	"fmt"
	"os"
	"path"
	"strings"
	"testing"

	"fencepost/internal/seed"
)

// How many random histories Run plays unless FENCEPOST_HISTORIES says so: with
// FENCEPOST_LONG the second number. A store of which a sample of the cases is played has
// as small a part of the first.
const (
	usualHistories = 4
	longHistories  = 100
)

// long returns the second number if FENCEPOST_LONG is set.
func long(usually, long uint64) uint64 {
	if os.Getenv("FENCEPOST_LONG") != "" {
		return long
	}
	return usually
}

// Run checks a store: every case of testdata that it can do, random histories
// compared with fencing.Step, and many callers at once. The environment variables
// FENCEPOST_SEED and FENCEPOST_HISTORIES set the seed of the first history and
// how many there are; FENCEPOST_LONG has more of everything.
func Run(t *testing.T, open Open, caps Capabilities) {
	t.Helper()
	all, err := loadCases()
	if err != nil {
		t.Fatal(err)
	}
	first := seed.Of(t)
	for i, c := range all {
		if !caps.offers(c) || !caps.samples(c, first+uint64(i)) {
			continue
		}
		t.Run(strings.TrimSuffix(path.Base(c.file), ".txt"), func(t *testing.T) {
			if err := c.run(t, open, caps); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("histories", func(t *testing.T) { runHistories(t, open, caps) })
	if caps.special() {
		return
	}
	if !caps.OwnExpiry {
		t.Run("events", func(t *testing.T) { runEvents(t, open, caps) })
	}
	t.Run("many callers", func(t *testing.T) { runManyCallers(t, open, caps) })
	t.Run("expired crowd", func(t *testing.T) { runExpiredCrowd(t, open, caps) })
	t.Run("served", func(t *testing.T) { runServed(t, open, caps) })
	t.Run("context", func(t *testing.T) { runContext(t, open) })
}

func runHistories(t *testing.T, open Open, caps Capabilities) {
	usually := max(1, usualHistories/uint64(max(1, caps.Sample)), caps.Histories)
	first, histories := seed.Of(t), seed.Number(t, "FENCEPOST_HISTORIES", long(usually, longHistories))
	for seed := first; seed < first+histories; seed++ {
		commands, err := randomHistory(t, open, caps, seed)
		if err == nil {
			continue
		}
		commands = shrink(t, open, caps, commands)
		title := fmt.Sprintf("Found by a random history, FENCEPOST_SEED=%d.", seed)
		t.Fatalf("history with FENCEPOST_SEED=%d: %v\n\nshrunk to %d commands, with the outcomes of Step, which make it a case:\n\n%s\nwhere it comes to: %v",
			seed, err, len(commands), writeCase(t, caps, title, commands), replay(t, open, caps, commands))
	}
}
