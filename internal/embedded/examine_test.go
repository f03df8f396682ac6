package embedded

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fencepost/internal/datadir"
	"fencepost/internal/disk"
	"fencepost/internal/fencing"
	"fencepost/internal/wal/waltest"
)

// looked returns what Examine says of a check.
func looked(t *testing.T, dir, check string) string {
	t.Helper()
	findings, err := Examine(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range findings {
		if f.Check == check {
			return f.Detail
		}
	}
	t.Fatalf("nothing about the %s in %+v", check, findings)
	return ""
}

func TestLookChangesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	if got := looked(t, dir, "directory"); !strings.Contains(got, "does not exist yet") {
		t.Errorf("%q", got)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Fatalf("the directory was made: %v", err)
	}
	s, err := Open(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"another process has it open", "another process has it open"} { // and it let go
		if got := looked(t, dir, "file"); !strings.Contains(got, want) {
			t.Errorf("while it is open: %q", got)
		}
	}
	_, err = s.Do(t.Context(), fencing.AcquireRequest{
		Name: "a", Lease: fencing.NewLeaseID(time.Now()), Stamp: fencing.NewStamp(), Mode: fencing.ModeExclusive, Hold: 1, TTL: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	before := contentOf(t, dir)
	if got := looked(t, dir, "file"); !strings.Contains(got, "no gateway has it open") {
		t.Errorf("%q", got)
	}
	if after := contentOf(t, dir); !reflect.DeepEqual(after, before) {
		t.Error("looking has changed the files")
	}
	if s, err = Open(Options{Dir: dir}); err != nil {
		t.Fatalf("after looking: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// A gateway may start while a look goes on, and even end. What it writes is not taken for damage.
func TestAStartDuringALook(t *testing.T) {
	for _, clean := range []bool{true, false} {
		for _, ends := range []bool{true, false} {
			c := openCrashing(t)
			mustAcquire(t, c.Store, acquire("a", time.Hour))
			left := c.last
			if clean {
				if err := c.Close(); err != nil {
					t.Fatal(err)
				}
				left = c.files.Content()
			}
			dir := t.TempDir()
			writeFiles(t, dir, waltest.Moved(left, c.dir+"/", ""))
			_, _, err := examineFiles(dir, sync.OnceFunc(func() {
				s := open(t, Options{Dir: dir, Now: c.clock.read, segment: smallSegment, snapshotAt: smallSnapshot})
				for i := range 40 { // the log goes on in other files, and snapshots take the place of what there was
					mustAcquire(t, s, acquire(fencing.Name(fmt.Sprint("n", i)), time.Hour))
				}
				if ends {
					if err := s.Close(); err != nil {
						t.Error(err)
					}
				}
			}))
			if err != nil {
				t.Errorf("clean %v, ends %v: %v", clean, ends, err)
			}
		}
	}
}

// A look tells whether there was a clean end.
func TestLookAfterACrash(t *testing.T) {
	c := openCrashing(t)
	mustAcquire(t, c.Store, acquire("a", time.Hour))
	dir := t.TempDir()
	writeFiles(t, dir, waltest.Moved(c.last, c.dir+"/", ""))
	if got := looked(t, dir, "file"); !strings.Contains(got, "did not stop cleanly: the next start replays its log") {
		t.Errorf("%q", got)
	}
}

// A look that finds no store says whether there is none to be expected.
func TestLookWhereThereIsNoStore(t *testing.T) {
	empty, volume, other := t.TempDir(), t.TempDir(), t.TempDir()
	for _, path := range []string{filepath.Join(volume, "lost+found"), filepath.Join(other, "spool")} {
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for dir, unknown := range map[string]bool{empty: false, volume: false, other: true, filepath.Join(empty, "data"): true} {
		findings, err := Examine(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range findings {
			if f.Check == "file" && (f.Unknown != unknown || f.OK == unknown || (f.Remedy != "") != unknown) {
				t.Errorf("%s: %+v", dir, f)
			}
		}
	}
}

func TestLookAtWhatNoGatewayCouldOpen(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, disk.LogName, "0000000001.log")
	writeFiles(t, dir, map[string][]byte{filepath.Join(disk.LogName, "0000000001.log"): []byte(strings.Repeat("not a log", 5000))})
	if found, err := Examine(dir); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a damaged file: %+v, %v", found, err)
	}
	if found, err := Examine(file); err == nil {
		t.Errorf("a file in the place of the directory: %+v", found)
	}
}

func TestTheRoomIsExamined(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir()})
	found, err := s.Examine(t.Context())
	if _, known := datadir.Free(s.disk.dir); err != nil || slices.ContainsFunc(found, func(f fencing.Finding) bool { return f.Check == "space" }) != known {
		t.Errorf("of room is said, in %+v, %v; and it is known: %v", found, err, known)
	}
}
