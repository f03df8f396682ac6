package embedded

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"fencepost/internal/disk"
	"fencepost/internal/fencing"
	"fencepost/internal/wal"
	"fencepost/internal/wal/waltest"
)

// onVolume is a store whose files have so much room together, and nobody else's.
type onVolume struct {
	dir   string
	clock *testClock
	files *waltest.Trace
	room  int64
	warns atomic.Int64
	held  map[fencing.Name]fencing.AcquireRequest
	count int
}

func newVolume(t *testing.T, room int64) *onVolume {
	v := &onVolume{dir: t.TempDir(), clock: newTestClock(), files: waltest.New(nil), held: map[fencing.Name]fencing.AcquireRequest{}}
	v.has(room)
	return v
}

// has says how much room the files have from now on.
func (v *onVolume) has(room int64) {
	v.room = room
	v.files.SetRoom(room)
}

func (v *onVolume) open() (*Store, error) {
	return Open(Options{Dir: v.dir, Logger: slog.New(slog.NewTextHandler(v, nil)), Now: v.clock.read, files: v.files, free: v.files.Free, segment: smallSegment})
}

// Write counts the warnings of a store.
func (v *onVolume) Write(line []byte) (int, error) {
	if strings.Contains(string(line), "level=WARN") && strings.Contains(string(line), "a snapshot could not be taken") {
		v.warns.Add(1)
	}
	return len(line), nil
}

// use has a store flush, and checks that it has what it granted. A snapshot is written
// while a file of the log is filled.
func (v *onVolume) use(t *testing.T, s *Store, flushes int) error {
	for name := range v.held {
		if out, err := s.Do(t.Context(), fencing.InspectRequest{Name: name}); err != nil || !out.Lock.Held() {
			return fmt.Errorf("%s was granted, and is %+v, %w", name, out.Lock, err)
		}
	}
	for range flushes {
		v.count++
		r, ttl := acquire(fencing.Name(fmt.Sprint("n", v.count%8)), 100*time.Hour), 100*time.Hour+time.Duration(v.count)*time.Second
		if known, held := v.held[r.Name]; held { // there is no more to keep then
			if _, err := s.Do(t.Context(), fencing.RenewRequest{Name: r.Name, Lease: known.Lease, TTL: ttl}); err != nil {
				return err
			}
		} else if _, err := s.Do(t.Context(), r); err != nil {
			return err
		} else {
			v.held[r.Name] = r
		}
		waitFor(t, "the snapshot", func() bool {
			s.mu.RLock()
			defer s.mu.RUnlock()
			return !(s.saving != nil)
		})
	}
	return nil
}

// crash has the files be as a process leaves them that was killed during operation cut.
func (v *onVolume) crash(cut int) {
	quota := v.files.Quota
	v.files = waltest.New(v.files.Killed(cut).Content())
	v.files.Quota = quota
	v.files.SetRoom(v.room)
}

// rounds is a first start, and then crashes, clean ends and starts.
func (v *onVolume) rounds(t *testing.T) (refused, failed error) {
	s, err := v.open()
	if err != nil {
		return err, nil
	}
	for round := range 6 {
		used := v.use(t, s, 20*(round+1)) // of more than the files take
		cut := v.files.Count() - 1
		err := s.Close()
		if round%3 == 2 { // a clean end
			cut = v.files.Count()
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
// that follows while there is little to keep.
func TestADiskThatDoesForAFirstStartDoesForTheNext(t *testing.T) {
	const need = newStore * smallSegment
	for room := int64(need - 16*block); room <= need+24*block; room += 8 * block {
		v := newVolume(t, room)
		refused, failed := v.rounds(t)
		if failed != nil {
			t.Errorf("%d blocks: it has started, and then: %v", room/block, failed)
		}
		if v.warns.Load() > 0 {
			t.Errorf("%d blocks: %d snapshots had no room", room/block, v.warns.Load())
		}
		if (refused != nil) != (room < need) {
			t.Errorf("%d blocks, and %d are needed: the first start is refused with %v", room/block, need/block, refused)
		}
		if refused == nil {
			continue
		}
		for _, text := range []string{v.dir, "a new store needs 0.4 MiB", fmt.Sprintf("has %.1f MiB free", math.Floor(10*float64(room)/(1<<20))/10), "FENCEPOST_DATA_DIR"} {
			if !strings.Contains(refused.Error(), text) {
				t.Errorf("%d blocks: no %q in: %v", room/block, text, refused)
			}
		}
		if left := v.files.Content(); len(left) > 0 {
			t.Errorf("%d blocks: the refused start leaves %v", room/block, slices.Collect(maps.Keys(left)))
		}
	}
}

// Wherever a start is killed, the next one has room.
func TestAStartThatWasKilledTakesNoRoom(t *testing.T) {
	v := newVolume(t, newStore*smallSegment)
	s, err := v.open()
	if err != nil {
		t.Fatal(err)
	}
	if err := v.use(t, s, 50); err != nil {
		t.Fatal(err)
	}
	cut := v.files.Count() - 1
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	v.crash(cut)
	begun := v.files.Count()
	again, err := v.open()
	if err != nil {
		t.Fatalf("after a crash on %d blocks: %v", v.room/block, err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
	ended, started := v.files.Count(), v.files
	for cut := begun; cut <= ended; cut++ {
		v.files = started
		v.crash(cut)
		s, err := v.open()
		if err != nil {
			t.Fatalf("killed during operation %d of %d: %v", cut-begun, ended-begun, err)
		}
		held, count := maps.Clone(v.held), v.count
		if err := v.use(t, s, 5); err != nil {
			t.Errorf("killed during operation %d of %d: %v", cut-begun, ended-begun, err)
		}
		v.held, v.count = held, count
		if err := s.Close(); err != nil {
			t.Errorf("killed during operation %d of %d: %v", cut-begun, ended-begun, err)
		}
	}
}

// A snapshot that has no room is no end: the store says so once for each file that the log takes more, grants, and takes one when there is
// room, which makes the log small again.
func TestASnapshotThatHasNoRoom(t *testing.T) {
	for _, err := range []error{syscall.ENOSPC, syscall.EIO} {
		v := newVolume(t, 100*smallSegment)
		s, openErr := v.open()
		if openErr != nil {
			t.Fatal(openErr)
		}
		written := 0
		v.files.SetFault(func(op *waltest.Op) error {
			if op.Kind == waltest.Write && filepath.Base(filepath.Dir(op.Path)) == disk.SnapshotsName {
				if written++; written%2 == 0 { // the head goes in
					return err
				}
			}
			return nil
		})
		if err := v.use(t, s, 150); err != nil {
			t.Fatal(err)
		}
		files := s.disk.log.Bytes() / smallSegment
		if warns := v.warns.Load(); files < 8 || warns < 3 || warns > files {
			t.Errorf("the log has %d files, and %d warnings were given", files, warns)
		}
		for path := range v.files.Content() {
			if filepath.Base(filepath.Dir(path)) == disk.SnapshotsName {
				t.Errorf("%s is left", path)
			}
		}
		cut := v.files.Count() - 1
		ended := s.Close()
		if ended == nil || !errors.Is(ended, err) || !strings.Contains(ended.Error(), "nothing is lost") {
			t.Errorf("a clean end: %v", ended)
		}
		v.crash(cut)
		if s, openErr = v.open(); openErr != nil {
			t.Fatal(openErr)
		}
		if err := v.use(t, s, 40); err != nil {
			t.Fatal(err)
		}
		if files := s.disk.log.Bytes() / smallSegment; files > snapshotAfterFiles+1 {
			t.Errorf("the log has %d files still", files)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// says checks what is said of a full disk: what has no room, how much it needs, and what to do. It does not say that
// anything is wrong with the files.
func says(t *testing.T, what string, err error) {
	t.Helper()
	if err == nil {
		t.Fatalf("%s: no error", what)
	}
	for text, is := range map[string]bool{
		"no room": true, "MiB": true, "make room": true, "leave them": true,
		"can't be used": false, "move it away": false, "put back": false, "FENCEPOST_DATA_DIR": false,
	} {
		if strings.Contains(err.Error(), text) != is {
			t.Errorf("%s: %q is in it: %v, want %v: %v", what, text, !is, is, err)
		}
	}
}

// A disk that is full when the log needs another file ends the store, which says so. With some room the next start has
// all that was granted. So it is where the file system does not tell how little room there is, as of a quota.
func TestTheDiskIsFull(t *testing.T) {
	for _, quota := range []bool{false, true} {
		v := newVolume(t, newStore*smallSegment)
		v.files.Quota = quota
		s, err := v.open()
		if err != nil {
			t.Fatal(err)
		}
		v.has(3 * smallSegment)
		err = v.use(t, s, 100)
		if code(err) != fencing.CodeUnavailable {
			t.Fatalf("with no room: %v", err)
		}
		<-s.Failed()
		says(t, "a file of the log", s.Cause())
		if err := s.Close(); err != nil {
			t.Errorf("its end: %v", err)
		}
		if s, err := v.open(); err != nil {
			says(t, "a start", err)
		} else {
			s.Close() // it may have found room for its entry
		}
		v.has(newStore * smallSegment)
		if s, err = v.open(); err != nil {
			t.Fatal(err)
		}
		if err := v.use(t, s, 10); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A disk that is full at a clean end says what has no room, and leaves nothing half-written. Nothing is lost.
func TestTheDiskIsFullAtTheEnd(t *testing.T) {
	dir, clock, files := t.TempDir(), newTestClock(), waltest.New(nil)
	s, err := Open(Options{Dir: dir, Now: clock.read, files: files, segment: smallSegment})
	if err != nil {
		t.Fatal(err)
	}
	r := acquire("a", time.Minute)
	r.Metadata = map[string]string{"padding": strings.Repeat("x", 3<<20)} // a snapshot of several writes
	mustAcquire(t, s, r)
	mustAcquire(t, s, acquire("b", time.Minute))
	files.SetFault(func(op *waltest.Op) error {
		if op.Kind == waltest.Write && !op.Synced && len(op.Data) > block {
			return syscall.ENOSPC
		}
		return nil
	})
	says(t, "a clean end", s.Close())
	files.SetFault(nil)
	for path := range files.Content() {
		if strings.HasSuffix(path, ".new") {
			t.Errorf("%s is left", filepath.Base(path))
		}
	}
	s = open(t, Options{Dir: dir, Now: clock.read, files: files, segment: smallSegment})
	for _, name := range []fencing.Name{"a", "b"} {
		if out, err := s.Do(t.Context(), fencing.InspectRequest{Name: name}); err != nil || !out.Lock.Held() {
			t.Errorf("%s was granted, and is %+v, %v", name, out.Lock, err)
		}
	}
}

func TestTheRoomForAFirstStart(t *testing.T) {
	v := newVolume(t, newStore*wal.DefaultFileSize-block)
	d := &directory{dir: v.dir, free: v.files.Free}
	if err := d.roomForNew(wal.DefaultFileSize); err == nil || !strings.Contains(err.Error(), "needs 112.0 MiB, and its file system has 111.9 MiB free") {
		t.Errorf("a block too few: %v", err)
	}
	v.has(v.room + block)
	if err := d.roomForNew(wal.DefaultFileSize); err != nil {
		t.Errorf("as much as is needed: %v", err)
	}
	v.has(0)
	if err := d.roomForNew(wal.DefaultFileSize); err != nil {
		t.Errorf("a file system that does not tell: %v", err)
	}
}

func TestTheRoomIsDocumented(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference.md"))
	if err != nil {
		t.Fatal(err)
	}
	column := ""
	for _, row := range regexp.MustCompile(`(?m)^\| [^|]+ \| ([^|]+) \| [^|]+ \| [^|]*\|$`).FindAllStringSubmatch(string(page), -1) {
		column += row[1] + "\n"
	}
	for _, said := range []string{
		"embedded\n",
		fmt.Sprintf("\n%d MiB\n", fileSize>>20),
		fmt.Sprintf("\n%d MiB, or as much as a larger snapshot, and the next file\n", snapshotAfterFiles*fileSize>>20),
		fmt.Sprintf("\n%d MiB free\n", newStore*fileSize>>20),
	} {
		if !strings.Contains(column, said) {
			t.Errorf("docs/reference.md does not say %q of the embedded store:\n%s", said, column)
		}
	}
}
