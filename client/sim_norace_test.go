//go:build !race

package client

import (
	"testing"

	"fencepost/internal/seed"
)

const simSchedules = 300

// TestSystemSimulatedBeliefs is TestSimulatedBeliefs with more schedules.
func TestSystemSimulatedBeliefs(t *testing.T) {
	playMany(t, seed.Of(t), seed.Number(t, "FENCEPOST_SCHEDULES", 10_000))
}

// TestSystemSimulatedLosses is TestNothingLeaks with more leases: those of a day.
func TestSystemSimulatedLosses(t *testing.T) { nothingLeaks(t, 100_000/len(ways)) }
