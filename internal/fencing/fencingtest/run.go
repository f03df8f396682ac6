package fencingtest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"strconv"
	"strings"
	"testing"
	"time"
)

// How many random histories Run plays unless FENCEPOST_HISTORIES says so: at
// least the first number, then more up to the second while the time lasts.
// FENCEPOST_LONG has at least longHistories, and longHistoryTime.
const (
	leastHistories  = 4
	longHistories   = 10
	mostHistories   = 200
	historyTime     = 300 * time.Millisecond
	longHistoryTime = time.Second
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
	seed, err := seedOf()
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range all {
		if !caps.offers(c) || !caps.samples(c, seed+uint64(i)) {
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
	t.Run("events", func(t *testing.T) { runEvents(t, open, caps) })
	t.Run("many callers", func(t *testing.T) { runManyCallers(t, open, caps) })
	t.Run("expired crowd", func(t *testing.T) { runExpiredCrowd(t, open, caps) })
	t.Run("context", func(t *testing.T) { runContext(t, open) })
}

func runHistories(t *testing.T, open Open, caps Capabilities) {
	seed, err := seedOf()
	if err != nil {
		t.Fatal(err)
	}
	exactly, err := fromEnvironment("FENCEPOST_HISTORIES", 0)
	if err != nil {
		t.Fatal(err)
	}
	start, played, least, enough := time.Now(), uint64(0), long(leastHistories, longHistories), time.Duration(long(uint64(historyTime), uint64(longHistoryTime)))
	for ; exactly == 0 && (played < least || played < mostHistories && time.Since(start) < enough) || played < exactly; played++ {
		commands, err := randomHistory(t, open, caps, seed+played)
		if err == nil {
			continue
		}
		commands = shrink(t, open, caps, commands)
		title := fmt.Sprintf("Found by a random history, FENCEPOST_SEED=%d.", seed+played)
		t.Fatalf("history with FENCEPOST_SEED=%d: %v\n\nshrunk to %d commands, with the outcomes of Step, which make it a case:\n\n%s\nwhere it comes to: %v",
			seed+played, err, len(commands), writeCase(t, caps, title, commands), replay(t, open, caps, commands))
	}
	t.Logf("%d histories of %d steps from FENCEPOST_SEED=%d on", played, historySteps, seed)
}

func seedOf() (uint64, error) { return fromEnvironment("FENCEPOST_SEED", rand.Uint64()) }

func fromEnvironment(key string, otherwise uint64) (uint64, error) {
	text := os.Getenv(key)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s is not a whole number: %w", key, err)
	}
	return n, nil
}
