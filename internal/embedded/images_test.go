//go:build !race

// One goroutine reads hundreds of images of files, which the race detector makes slow:
// make test runs it without. The store's goroutines meet disks that fail in
// TestFailingDisk, with it.

package embedded

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"testing"

	"fencepost/internal/seed"
	"fencepost/internal/wal/waltest"
)

// loseCounting makes power-loss images of a run and returns how many of them violate
// it, with the first violation.
func loseCounting(t *testing.T, images int, lies bool) (violations int, first error) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed.Of(t), 0))
	const perRun = 100
	for left := images; left > 0; left -= perRun {
		dir, files := t.TempDir(), waltest.New(nil)
		files.Lies = lies
		h, s, clock := exercised(t, dir, files, random, 150)
		s.Close()
		checked := t.TempDir()
		for range min(left, perRun) {
			cut := files.Begun + random.IntN(files.Count()-files.Begun)
			image := waltest.Moved(files.Image(cut, random), dir, checked)
			err := lose(h, image, checked, clock, cut, random)
			if err != nil {
				violations++
				first = cmp.Or(first, fmt.Errorf("power lost during operation %d of %d on files: %w", cut, files.Count(), err))
			}
		}
	}
	return violations, first
}

// lose checks an image, and one of a second power loss while the first is mended.
func lose(h *chronicle, image map[string][]byte, dir string, clock *testClock, cut int, random *rand.Rand) error {
	files := waltest.New(image)
	state, err := stateOn(dir, files, clock.read)
	if err == nil {
		err = h.check(state, cut)
	}
	if err != nil {
		return err
	}
	again := waltest.New(files.Image(files.Begun+random.IntN(files.Count()-files.Begun), random))
	if after, err := stateOn(dir, again, clock.read); err != nil || after != state {
		return fmt.Errorf("after a second power loss: %v, %.1000s, before it %.1000s", err, after, state)
	}
	return nil
}

// P1, P2: a power loss at any moment, with any part of what was not synced gone or
// torn, leaves a state that there was, not before what was answered. FENCEPOST_LONG
// makes it 5,000 images.
func TestPowerLoss(t *testing.T) {
	images := times(200, 5000)
	violations, first := loseCounting(t, images, false)
	if violations > 0 {
		t.Error(first)
	}
	fmt.Printf("verified: power-loss images %d, violations %d\n", images, violations)
}

// A process is killed while it ends, another one is started, and the power is lost while that starts or
// serves: what the first had not on disk yet the second must not count on.
func TestPowerLossAfterAKill(t *testing.T) {
	random := rand.New(rand.NewPCG(seed.Of(t), 0))
	dir, files := t.TempDir(), waltest.New(nil)
	h, s, clock := exercised(t, dir, files, random, 60)
	ends := files.Count()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for cut := ends; cut <= files.Count(); cut++ {
		second := files.Killed(cut)
		if _, err := stateOn(dir, second, clock.read); err != nil {
			t.Fatalf("a start after a kill before operation %d of %d: %v", cut-ends, files.Count()-ends, err)
		}
		for lost := cut; lost <= second.Count(); lost++ {
			state, err := stateOn(dir, waltest.New(second.Image(lost, random)), clock.read)
			if err == nil {
				err = h.check(state, cut)
			}
			if err != nil {
				t.Errorf("killed before operation %d of %d, and the power lost during %d of %d, seed %d: %v", cut-ends, files.Count()-ends, lost-cut, second.Count()-cut, seed.Of(t), err)
				break
			}
		}
	}
}

// The images would tell of a disk, or a store, that does not sync.
func TestPowerLossIsToldFromNoSync(t *testing.T) {
	if violations, _ := loseCounting(t, 100, true); violations < 10 {
		t.Errorf("of 100 images of a disk that syncs nothing, %d are wrong", violations)
	}
}
