//go:build !race

// One goroutine reads thousands of images of files, which the race detector makes slow: make test runs it without.

package wal

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"fencepost/internal/seed"
	"fencepost/internal/wal/waltest"
)

// moment is what a log comes to after a step.
type moment struct {
	begun    int // operations on files when the step began
	answered int // and when it was answered
	model    *model
	is       string
}

func momentOf(begun, answered int, m *model) moment {
	return moment{begun, answered, m.clone(), m.String()}
}

// outlive does steps on a log until it is ended in the middle of something, by a power loss or by a kill, and goes on
// with what is left, so many times. It returns what is wrong with that.
func outlive(dir string, lives int, lies bool, random *rand.Rand) error {
	files := waltest.New(nil)
	files.Lies = lies
	may := []moment{momentOf(0, 0, &model{values: map[string]string{}})} // what the log may have at the start of a life
	for life := 0; ; life++ {
		l, is, err := opened(dir, files)
		if err != nil {
			return fmt.Errorf("life %d: %w", life, err)
		}
		at := slices.IndexFunc(may, func(m moment) bool { return m.is == is })
		if at < 0 {
			return fmt.Errorf("life %d: the log has what it had at none of the %d steps that count: %.300s", life, len(may), is)
		}
		if life == lives {
			return l.Close()
		}
		begun, m := files.Count(), may[at].model.clone()
		moments := []moment{momentOf(begun, begun, m)}
		for range random.IntN(30) {
			do, then := m.step(l, random)
			began := files.Count()
			if err := do(); err != nil {
				return fmt.Errorf("life %d: %w", life, err)
			}
			then()
			moments = append(moments, momentOf(began, files.Count(), m))
			if random.IntN(2) == 0 {
				if err := l.next(); err != nil {
					return err
				}
			}
		}
		if err := l.Close(); err != nil {
			return err
		}
		end := files.Begun + random.IntN(files.Count()-files.Begun+1)
		if random.IntN(3) > 0 && end < begun { // rather behind the start
			end = begun + random.IntN(files.Count()-begun+1)
		}
		if random.IntN(3) == 0 {
			files = files.Killed(end)
		} else {
			files = waltest.New(files.Image(end, random))
		}
		files.Lies = lies
		if end < begun { // in the start: what it has read may not be on disk
			continue
		}
		may = slices.DeleteFunc(moments, func(m moment) bool { return m.begun > end })
		for i := len(may) - 1; i > 0; i-- {
			if may[i].answered <= end {
				may = may[i:]
				break
			}
		}
	}
}

// violations returns how many of so many schedules are wrong, and the first error.
func violations(t *testing.T, schedules int, lies bool) (count int, first error) {
	t.Helper()
	from := seed.Of(t)
	for i := range schedules {
		number := from + uint64(i)
		if err := outlive(t.TempDir(), 3, lies, rand.New(rand.NewPCG(number, 0))); err != nil {
			count++
			first = cmp.Or(first, fmt.Errorf("seed %d: %w", number, err))
		}
	}
	return count, first
}

// Whatever a power loss at any moment leaves of what was not synced, torn or whole, and whatever a killed process had
// not on disk yet: all that was acknowledged is there, and nothing that was not asked for. FENCEPOST_LONG makes it
// 20,000 schedules.
func TestPowerLoss(t *testing.T) {
	schedules := times(1000, 20000)
	count, first := violations(t, schedules, false)
	if count > 0 {
		t.Errorf("%d violations, the first one: %v", count, first)
	}
	fmt.Printf("verified: power-loss schedules of a log %d, violations %d\n", schedules, count)
}

// The schedules would tell of a disk, or a log, that does not sync.
func TestPowerLossIsToldFromNoSync(t *testing.T) {
	if count, _ := violations(t, 100, true); count < 20 {
		t.Errorf("of 100 schedules on a disk that syncs nothing, %d are wrong", count)
	}
}
