package embedded

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"fencepost/internal/machine"
	"fencepost/internal/wal/waltest"
)

// A snapshot that is given up, wherever it is, leaves nothing, and the next one takes the place of the log.
func TestASnapshotIsGivenUp(t *testing.T) {
	files := waltest.New(nil)
	o := Options{Dir: t.TempDir(), files: files, segment: smallSegment}
	s := open(t, o)
	mustAcquire(t, s, acquire("a", time.Hour))
	rest(t, s)
	waitFor(t, "the next file of the log, which is made beside the first", func() bool {
		logs := slices.DeleteFunc(slices.Collect(maps.Keys(files.Content())), func(path string) bool { return !strings.HasSuffix(path, ".log") })
		return len(logs) == 2
	})
	before := files.Content()
	for steps := 0; ; steps++ {
		snapshot, err := s.beginSnapshot()
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		err = s.disk.save(snapshot, &s.mu, machine.Check, func() error {
			if n++; n > steps {
				return errCloses
			}
			return nil
		})
		s.mu.Lock()
		snapshot.Release()
		s.mu.Unlock()
		if err == nil {
			if steps < 2 {
				t.Errorf("it is asked %d times only whether it goes on", steps)
			}
			break
		}
		if is := files.Content(); !errors.Is(err, errCloses) || !maps.EqualFunc(is, before, bytes.Equal) {
			t.Fatalf("given up behind step %d: %v; there is %d, and was %d", steps, err, len(is), len(before))
		}
	}
	if s.disk.covered != s.machine.Applied() {
		t.Errorf("a snapshot has all up to %d, not %d", s.disk.covered, s.machine.Applied())
	}
}
