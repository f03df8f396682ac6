// Package seed says from where the random tests of this module draw: from the same
// number each time, so that no run is red by chance; from a new one in the long runs,
// which look for what nobody has seen.
package seed

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// fixed is the seed of an ordinary run.
const fixed = 1

// Of returns the seed of a test: FENCEPOST_SEED if that is set; with FENCEPOST_LONG a
// new one, below 2^48, so that a test may count on from it; 1 otherwise. The test logs
// it. A FENCEPOST_SEED that is not a whole number ends the test.
func Of(t testing.TB) uint64 {
	t.Helper()
	seed := Number(t, "FENCEPOST_SEED", fixed)
	if os.Getenv("FENCEPOST_SEED") == "" && os.Getenv("FENCEPOST_LONG") != "" {
		seed = rand.Uint64() >> 16
	}
	t.Logf("FENCEPOST_SEED=%d", seed)
	return seed
}

// Number returns the whole number that an environment variable has, or the other one if it
// is not set. Anything else ends the test.
func Number(t testing.TB, variable string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s is not a whole number: %v", variable, err)
	}
	return n
}
