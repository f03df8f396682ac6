package embedded

import (
	"errors"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// A disk that is full at a clean end, or at a start, says what has no room and how much it
// needs. It does not say that anything is wrong with the table, and leaves nothing half-written.
func TestTheDiskIsFullAtTheEnd(t *testing.T) {
	says := func(what string, err error) {
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
	dir, clock, files := t.TempDir(), newTestClock(), newTrace(nil)
	s, err := Open(Options{Dir: dir, Now: clock.read, files: files, segment: smallSegment})
	if err != nil {
		t.Fatal(err)
	}
	r := acquire("a", time.Minute)
	r.Metadata = map[string]string{"padding": strings.Repeat("x", 2*frameSize)} // a table of several frames
	mustAcquire(t, s, r)
	mustAcquire(t, s, acquire("b", time.Minute))
	written := 0
	full := func(op *fileOp) error {
		if op.kind != opWrite || op.synced {
			return nil
		}
		if written++; written == 1 { // the header goes in
			return nil
		}
		return syscall.ENOSPC
	}
	files.fault = full
	says("a clean end", s.Close())
	written = 0
	_, err = Open(Options{Dir: dir, Now: clock.read, files: files, segment: smallSegment})
	says("a start", err)
	files.fault = nil
	for path := range files.content() {
		if strings.HasSuffix(path, newSuffix) {
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

// What has no room while it is put into the table beside the flushes ends the store with the next flush, not
// when the other segment is full.
func TestATableThatHasNoRoomIsNoticedAtOnce(t *testing.T) {
	files := newTrace(nil)
	d, err := openDisk(Options{Dir: t.TempDir(), segment: smallSegment, files: files})
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	if err := d.begin(); err != nil {
		t.Fatal(err)
	}
	files.fault = func(op *fileOp) error {
		if op.kind == opWrite && !op.synced { // of a table; the journal's are synced
			return syscall.ENOSPC
		}
		return nil
	}
	w := writes{}
	w.put(locks, []byte("a"), diskRecord{LastToken: 1})
	for d.applying == nil { // until a segment is full
		if err := d.flush(&w); errors.Is(err, syscall.ENOSPC) {
			return // it was over before that flush looked
		} else if err != nil {
			t.Fatal(err)
		}
	}
	err = <-d.applying
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the table was written: %v", err)
	}
	d.applying <- err // it is over, and nobody has looked
	if err := d.flush(&w); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("the next flush: %v", err)
	}
}
