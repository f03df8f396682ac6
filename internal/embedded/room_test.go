package embedded

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// onVolume is a store whose files have so much room together, and nobody else's.
type onVolume struct {
	dir   string
	clock *testClock
	files *trace
	held  map[fencing.Name]bool
	count int
}

func newVolume(t *testing.T, room int64) *onVolume {
	v := &onVolume{dir: t.TempDir(), clock: newTestClock(), files: newTrace(nil), held: map[fencing.Name]bool{}}
	v.files.room = room
	return v
}

func (v *onVolume) open() (*Store, error) {
	return Open(Options{Dir: v.dir, Now: v.clock.read, files: v.files, segment: smallSegment})
}

// use has a store flush, and what ended long ago forgotten, and checks that it has what it granted.
func (v *onVolume) use(t *testing.T, s *Store, flushes int) error {
	for name := range v.held {
		if out, err := s.Do(t.Context(), fencing.InspectRequest{Name: name}); err != nil || !out.Lock.Held() {
			return fmt.Errorf("%s was granted, and is %+v, %w", name, out.Lock, err)
		}
	}
	for range flushes {
		v.count++
		r := acquire(fencing.Name(fmt.Sprint("n", v.count%8)), 100*time.Hour)
		if v.held[r.Name] {
			out, err := s.Do(t.Context(), fencing.InspectRequest{Name: r.Name})
			if err == nil {
				_, err = s.Do(t.Context(), fencing.BreakRequest{Name: r.Name, Token: out.Lock.Holders[0].Token})
			}
			if err != nil {
				return err
			}
		}
		if _, err := s.Do(t.Context(), r); err != nil {
			return err
		}
		v.held[r.Name] = true
	}
	v.clock.advance(2 * fencing.TombstoneTTL)
	_, err := s.Expire(t.Context(), 1000)
	return err
}

// crash has the files be as they were before operation cut, as a killed process leaves them.
func (v *onVolume) crash(cut int) {
	room, quota := v.files.room, v.files.quota
	v.files = newTrace(v.files.asOf(cut))
	v.files.room, v.files.quota = room, quota
}

// rounds is a first start, and then crashes, clean ends and starts.
func (v *onVolume) rounds(t *testing.T) (refused, failed error) {
	s, err := v.open()
	if err != nil {
		return err, nil
	}
	for round := range 6 {
		used := v.use(t, s, 10*(round+1)) // of more than the journal takes
		cut := v.files.count()
		err := s.Close()
		if round%3 == 2 { // a clean end
			cut = v.files.count()
			used = errors.Join(used, err)
		}
		if used != nil {
			return nil, fmt.Errorf("round %d: %w", round, used)
		}
		v.crash(cut)
		if s, err = v.open(); err != nil {
			return nil, fmt.Errorf("round %d: a start: %w", round, err)
		}
	}
	return nil, s.Close()
}

// A disk is too small for a first start, which says so and makes nothing, or is large enough for all
// that follows while the table is small.
func TestADiskThatDoesForAFirstStartDoesForTheNext(t *testing.T) {
	const need = newStore * smallSegment
	for room := int64(8 * block); room <= 2*need; room += 4 * block {
		v := newVolume(t, room)
		refused, failed := v.rounds(t)
		if failed != nil {
			t.Errorf("%d blocks: it has started, and then: %v", room/block, failed)
		}
		if (refused != nil) != (room < need) {
			t.Errorf("%d blocks, and %d are needed: the first start is refused with %v", room/block, need/block, refused)
		}
		if refused == nil {
			continue
		}
		for _, text := range []string{v.dir, "a new store needs 0.2 MiB", fmt.Sprintf("has %.1f MiB free", math.Floor(10*float64(room)/(1<<20))/10), "FENCEPOST_DATA_DIR"} {
			if !strings.Contains(refused.Error(), text) {
				t.Errorf("%d blocks: no %q in: %v", room/block, text, refused)
			}
		}
		if left := v.files.content(); len(left) > 0 {
			t.Errorf("%d blocks: the refused start leaves %v", room/block, slices.Collect(maps.Keys(left)))
		}
	}
}

// Wherever a start is killed, the next one has room, also on a disk that is full of what the store
// itself has left there: it was first started by a version that did not ask how much there is.
func TestAStartThatWasKilledTakesNoRoom(t *testing.T) {
	v := newVolume(t, newStore*smallSegment)
	s, err := v.open()
	if err != nil {
		t.Fatal(err)
	}
	if err := v.use(t, s, 20); err != nil {
		t.Fatal(err)
	}
	cut := v.files.count()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	v.crash(cut)
	v.files.room = v.files.used() + 2*wholeBlocks(int64(len(v.files.content()[filepath.Join(v.dir, fileName)]))) + 4*block
	begun := v.files.count()
	again, err := v.open()
	if err != nil {
		t.Fatalf("after a crash on %d blocks: %v", v.files.room/block, err)
	}
	ended := v.files.count()
	if err := again.Close(); err != nil {
		t.Error(err)
	}
	started := v.files
	for cut := begun; cut <= ended; cut++ {
		files := started.asOf(cut)
		for _, name := range segmentNames { // as the version before would have left it, killed in the same place
			if cut%2 == 0 && files[filepath.Join(v.dir, name+newSuffix)] == nil {
				used := newTrace(files).used()
				files[filepath.Join(v.dir, name+newSuffix)] = make([]byte, max(started.room-used, 0))
			}
		}
		v.files = newTrace(files)
		v.files.room = started.room
		s, err := v.open()
		if err != nil {
			t.Fatalf("killed before operation %d of %d: %v", cut-begun, ended-begun, err)
		}
		held, count := maps.Clone(v.held), v.count
		if err := v.use(t, s, 5); err != nil {
			t.Errorf("killed before operation %d of %d: %v", cut-begun, ended-begun, err)
		}
		v.held, v.count = held, count
		if err := s.Close(); err != nil {
			t.Errorf("killed before operation %d of %d: %v", cut-begun, ended-begun, err)
		}
	}
}

// A table that has outgrown the segments of its journal needs room for itself and a new one. Where
// there is none for segments as large, the store goes on with smaller ones, and starts again.
func TestATableOutgrowsTheRoomForItsJournal(t *testing.T) {
	outgrows(t, false)
}

// So it is where the file system does not tell how little room there is, as of a quota.
func TestATableOutgrowsAQuota(t *testing.T) {
	outgrows(t, true)
}

func outgrows(t *testing.T, quota bool) {
	v := newVolume(t, 16*smallSegment)
	s, err := v.open()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 { // the table is more than twice a segment
		r := acquire(fencing.Name(fmt.Sprint("large", i)), 100*time.Hour)
		r.Metadata = map[string]string{"padding": strings.Repeat("x", smallSegment*3/4)}
		mustAcquire(t, s, r)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	table := int64(len(v.files.content()[filepath.Join(v.dir, fileName)]))
	if table <= growAt*smallSegment {
		t.Fatalf("the table has %d bytes: the test misses its aim", table)
	}
	v.files.room, v.files.quota = 2*smallSegment+2*wholeBlocks(table)+32*block, quota
	for round := range 3 {
		if s, err = v.open(); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if err := v.use(t, s, 40); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if size := s.disk.journal.segments[0].size; size < smallSegment || size > table/2 {
			t.Errorf("round %d: a segment has %d bytes beside a table of %d", round, size, table)
		}
		cut := v.files.count()
		if err := s.Close(); err != nil {
			t.Errorf("round %d: a clean end: %v", round, err)
		}
		if round == 1 {
			v.crash(cut)
		}
	}
}

func TestTheRoomForAFirstStartIsDocumented(t *testing.T) {
	said := fmt.Sprintf("With less than %d MiB free a first start is refused", newStore*leastSegment>>20)
	if !strings.Contains(string(mustRead(t, filepath.Join("..", "..", "docs", "limits.md"))), said) {
		t.Errorf("docs/limits.md does not say %q", said)
	}
}

func TestTheRoomForAFirstStart(t *testing.T) {
	v := newVolume(t, 4*leastSegment-block)
	where := directory{v.files, v.dir}
	if err := where.roomForNew(leastSegment); err == nil || !strings.Contains(err.Error(), "needs 32.0 MiB, and its file system has 31.9 MiB free") {
		t.Errorf("a block too few: %v", err)
	}
	v.files.room += block
	if err := where.roomForNew(leastSegment); err != nil {
		t.Errorf("as much as is needed: %v", err)
	}
	v.files.room = 0
	if err := where.roomForNew(leastSegment); err != nil {
		t.Errorf("a file system that does not tell: %v", err)
	}
}

// A start after a crash says how much the table needs.
func TestAFullDiskAfterACrashSaysHowMuchItNeeds(t *testing.T) {
	v := newVolume(t, 64<<20)
	s, err := v.open()
	if err != nil {
		t.Fatal(err)
	}
	r := acquire("large", time.Minute)
	r.Metadata = map[string]string{"padding": strings.Repeat("x", 5<<20/2)}
	mustAcquire(t, s, r)
	cut := v.files.count()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	v.crash(cut)
	v.files.room = v.files.used() + 4*block
	if _, err := v.open(); err == nil || !strings.Contains(err.Error(), "about 3 MiB") {
		t.Errorf("a table of 2.5 MiB finds no room: %v", err)
	}
}
