package embedded

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fencepost/internal/datadir"
	"fencepost/internal/fencing"
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
	if got := looked(t, dir, "directory"); !strings.Contains(got, "not there yet") {
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
	before, err := os.ReadFile(filepath.Join(dir, fileName))
	if err != nil {
		t.Fatal(err)
	}
	if got := looked(t, dir, "file"); !strings.Contains(got, "no gateway has it open") {
		t.Errorf("%q", got)
	}
	if after, err := os.ReadFile(filepath.Join(dir, fileName)); err != nil || string(after) != string(before) {
		t.Errorf("looking has changed the file (%v)", err)
	}
	if s, err = Open(Options{Dir: dir}); err != nil {
		t.Fatalf("after looking: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// A gateway may start while a look goes on, which sees what was there before.
func TestAStartDuringALook(t *testing.T) {
	for what, prepare := range map[string]func(c *crashing) string{
		"no gateway has it open": func(c *crashing) string {
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			return c.dir
		},
		"has not ended cleanly": func(c *crashing) string { return writeFiles(t, c.lastFiles()) },
	} {
		t.Run(what, func(t *testing.T) {
			c := openCrashing(t)
			mustAcquire(t, c.Store, acquire("a", time.Hour))
			dir := prepare(c)
			files, err := openAll(dir)
			if err != nil {
				t.Fatal(err)
			}
			s := open(t, Options{Dir: dir, Now: c.clock.read, segment: smallSegment})
			for i := range 40 { // the segments change
				mustAcquire(t, s, acquire(fencing.Name(fmt.Sprint("n", i)), time.Hour))
			}
			detail, err := (&disk{directory: directory{files, dir}}).examine()
			if err = errors.Join(err, files.close()); err != nil || !strings.Contains(detail, what) {
				t.Errorf("%q, %v", detail, err)
			}
		})
	}
}

func TestLookAtWhatNoGatewayCouldOpen(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, fileName)
	if err := os.WriteFile(file, []byte(strings.Repeat("not a database", 5000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if found, err := Examine(dir); err == nil {
		t.Errorf("a damaged file: %+v", found)
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
