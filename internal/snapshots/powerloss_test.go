package snapshots

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"fencepost/internal/seed"
	"fencepost/internal/wal/waltest"
)

// outlive takes snapshots until a power loss or a kill, and goes on with what is left, so many times. It returns what
// is wrong with that: one that was taken is there, whole, or a later one is, and there is nothing else.
func outlive(dir string, lives int, lies bool, random *rand.Rand) error {
	files := waltest.New(nil)
	files.Lies = lies
	contents := map[uint64]string{}
	least, index := uint64(0), uint64(0) // the snapshot that is to be there at least, and the last that was begun
	for life := range lives {
		s, err := Open(dir, files, nil)
		if err != nil {
			return fmt.Errorf("life %d: %w", life, err)
		}
		is := uint64(0)
		list, err := s.List()
		if err != nil {
			return fmt.Errorf("life %d: %w", life, err)
		}
		for i, meta := range list {
			if _, content, err := contentOf(s, meta.ID); err != nil || content != contents[meta.Index] {
				return fmt.Errorf("life %d: snapshot %d has %d bytes, %w", life, meta.Index, len(content), err)
			}
			if i == 0 {
				is = meta.Index
			}
		}
		if is < least {
			return fmt.Errorf("life %d: the newest is %d, and %d was taken", life, is, least)
		}
		for path := range files.Content() {
			if strings.HasSuffix(path, newSuffix) {
				return fmt.Errorf("life %d: %s is left", life, filepath.Base(path))
			}
		}
		begun := files.Count()
		answered := map[uint64]int{}
		for range 1 + random.IntN(4) {
			index++
			contents[index] = strings.Repeat(fmt.Sprint(index, " "), random.IntN(2000))
			if err := take(s, 1, index, contents[index]); err != nil {
				return fmt.Errorf("life %d: %w", life, err)
			}
			answered[index] = files.Count()
		}
		end := begun + random.IntN(files.Count()-begun+1)
		least = is
		for index, at := range answered {
			if at <= end {
				least = max(least, index)
			}
		}
		if random.IntN(3) == 0 {
			files = files.Killed(end)
			if random.IntN(2) == 0 { // and the power is lost before anything else is done
				files = waltest.New(files.Image(files.Count(), random))
			}
		} else {
			files = waltest.New(files.Image(end, random))
		}
		files.Lies = lies
	}
	return nil
}

func violations(t *testing.T, schedules int, lies bool) (count int, first error) {
	t.Helper()
	from := seed.Of(t)
	for i := range schedules {
		number := from + uint64(i)
		if err := outlive(t.TempDir(), 4, lies, rand.New(rand.NewPCG(number, 0))); err != nil {
			count++
			first = cmp.Or(first, fmt.Errorf("seed %d: %w", number, err))
		}
	}
	return count, first
}

// A power loss or a kill at any moment leaves the last snapshot that was taken, or a later one, whole. FENCEPOST_LONG makes it
// 5,000 schedules.
func TestPowerLoss(t *testing.T) {
	schedules := times(300, 5000)
	count, first := violations(t, schedules, false)
	if count > 0 {
		t.Errorf("%d violations, the first one: %v", count, first)
	}
	fmt.Printf("verified: power-loss schedules of snapshots %d, violations %d\n", schedules, count)
}

// The schedules would tell of a disk, or snapshots, that do not sync.
func TestPowerLossIsToldFromNoSync(t *testing.T) {
	if count, _ := violations(t, 100, true); count < 20 {
		t.Errorf("of 100 schedules on a disk that syncs nothing, %d are wrong", count)
	}
}
