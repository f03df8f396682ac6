package embedded

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

const testSegment = 11 * block

// newTestJournal makes a journal, and files that have it and tear nothing.
func newTestJournal(t *testing.T) (*journal, *trace) {
	t.Helper()
	files := newTrace(nil)
	j, err := createJournal(directory{files: files}, testSegment)
	if err != nil {
		t.Fatal(err)
	}
	return j, files
}

// readContent reads the journal with that id from files that were not written.
func readContent(content map[string][]byte, id, number uint64) ([]entry, error) {
	return readJournal(directory{files: newTrace(content)}, id, number)
}

// appendTo writes flush n: a few entries whose sizes differ.
func appendTo(t *testing.T, j *journal) {
	t.Helper()
	n := int(j.number) + 1
	j.encode([]entry{
		{locks, []byte(fmt.Sprint("flush ", n)), bytes.Repeat([]byte{byte(n)}, n%7)},
		{holders, []byte("gone"), nil},
	})
	if j.full() {
		j.switchSegment()
	}
	if err := j.write(); err != nil {
		t.Fatal(err)
	}
}

// flushes returns the numbers of the flushes that entries are of.
func flushes(t *testing.T, entries []entry) (numbers []int) {
	t.Helper()
	for i, e := range entries {
		var n int
		if i%2 == 1 {
			if e.bucket != holders || string(e.key) != "gone" || e.value != nil {
				t.Errorf("entry %d is %+v", i, e)
			}
			continue
		}
		if _, err := fmt.Sscanf(string(e.key), "flush %d", &n); err != nil || e.bucket != locks || len(e.value) != n%7 || e.value == nil {
			t.Errorf("entry %d is %+v", i, e)
		}
		numbers = append(numbers, n)
	}
	return numbers
}

func TestAJournalIsReadAsItWasWritten(t *testing.T) {
	j, files := newTestJournal(t)
	for n := 1; n <= 100; n++ {
		appendTo(t, j)
		for _, from := range []int{max(0, n-10), n - 1, n} {
			entries, err := readJournal(j.directory, j.id, uint64(from))
			if err != nil {
				t.Fatalf("from %d of %d: %v", from, n, err)
			}
			numbers := flushes(t, entries)
			if len(numbers) != n-from || len(numbers) > 0 && (numbers[0] != from+1 || numbers[len(numbers)-1] != n) {
				t.Fatalf("from %d of %d: %v", from, n, numbers)
			}
		}
	}
	n := 0
	for _, content := range files.content() {
		n += bytes.Count(content, []byte("flush "))
	}
	if n < 12 || n > 60 {
		t.Errorf("the segments hold %d flushes: the test misses its aim", n)
	}
}

func mustRead(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// Any bit that is wrong in the middle is found: nothing is read past it, and the
// flushes behind it are not forgotten in silence.
func TestADamagedMiddleIsRefused(t *testing.T) {
	j, files := newTestJournal(t)
	for j.number < 30 {
		appendTo(t, j)
	}
	good := files.content()
	with := func(i int, content []byte) map[string][]byte {
		return map[string][]byte{segmentNames[i]: content, segmentNames[1-i]: good[segmentNames[1-i]]}
	}
	last := int(j.at) - len(j.frame)
	refused := 0
	for i, name := range segmentNames {
		for at := range good[name] {
			if at%block > 100 { // nothing stands there
				continue
			}
			bad := bytes.Clone(good[name])
			bad[at] ^= 0x10
			entries, err := readContent(with(i, bad), j.id, 20)
			if err != nil {
				if !errors.Is(err, errJournal) || !strings.Contains(err.Error(), name) {
					t.Fatalf("%s, byte %d: %v", name, at, err)
				}
				refused++
				continue
			}
			switch n := len(flushes(t, entries)); {
			case n == 10:
			case n == 9 && i == j.current && at >= last && at < last+j.size: // it can't be told from one that was never done
			default:
				t.Fatalf("%s, byte %d: %d flushes are read", name, at, n)
			}
		}
	}
	if refused < 9*40 {
		t.Errorf("%d damaged bytes were found", refused)
	}
	for what, damage := range map[string]func([]byte) []byte{
		"empty":     func([]byte) []byte { return nil },
		"cut short": func(b []byte) []byte { return b[:len(b)-1] },
		"too long":  func(b []byte) []byte { return append(b, 0) },
		"of others": func(b []byte) []byte { return bytes.Replace(b, []byte("journal"), []byte("diaries"), 1) },
	} {
		for i, name := range segmentNames {
			_, err := readContent(with(i, damage(bytes.Clone(good[name]))), j.id, 20)
			if !errors.Is(err, errJournal) || !strings.Contains(err.Error(), name) {
				t.Errorf("a segment that is %s: %v", what, err)
			}
		}
	}
	for i, name := range segmentNames {
		if _, err := readContent(with(1-i, good[name]), j.id, 20); !errors.Is(err, errJournal) {
			t.Errorf("a segment twice: %v", err)
		}
		if _, err := readContent(map[string][]byte{name: good[name]}, j.id, 20); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("one segment alone: %v", err)
		}
	}
	if _, err := readContent(good, j.id+1, 20); !errors.Is(err, errJournal) {
		t.Errorf("a journal of another run: %v", err)
	}
	if _, err := readContent(good, j.id, 2); !errors.Is(err, errJournal) {
		t.Errorf("a file that lacks flushes: %v", err)
	}
}

// A store whose journal is cut anywhere comes back with what had happened up to
// some flush, and with all of it.
func TestACutJournalLeavesAPrefix(t *testing.T) { testACutJournal(t, 307) }

func TestSystemACutJournalLeavesAPrefix(t *testing.T) { testACutJournal(t, 61) }

// testACutJournal cuts it at every so many bytes.
func testACutJournal(t *testing.T, step int64) {
	dir, clock := t.TempDir(), newTestClock()
	s := open(t, Options{Dir: dir, Now: clock.read, segment: smallSegment})
	const names = 6
	for i := range names { // each flush has the release of one name and the grant of the next
		r := acquire(fencing.Name(fmt.Sprint("n", i)), time.Minute)
		mustAcquire(t, s, r)
		mustRelease(t, s, r)
	}
	if _, err := s.Do(t.Context(), fencing.InspectRequest{Name: "n0"}); err != nil {
		t.Fatal(err)
	}
	files, end, name := readFiles(t, dir), s.disk.journal.at, segmentNames[s.disk.journal.current]
	whole := files[name]
	seen := map[string]bool{}
	for cut := int64(block); cut <= end; cut += step {
		if cut%block > 2048 { // no flush is as long
			cut = wholeBlocks(cut)
		}
		torn := make([]byte, len(whole))
		copy(torn, whole[:cut])
		func() {
			cutFiles := maps.Clone(files)
			cutFiles[name] = torn
			after := open(t, Options{Dir: writeFiles(t, cutFiles), Now: clock.read, segment: smallSegment})
			defer after.Close()
			granted, released := 0, 0
			for i := range names {
				out, err := after.Do(t.Context(), fencing.InspectRequest{Name: fencing.Name(fmt.Sprint("n", i))})
				if err != nil {
					t.Fatal(err)
				}
				if out.Lock.LastToken != 0 {
					granted = i + 1
				}
				if out.Lock.LastToken != 0 && !out.Lock.Held() {
					released = i + 1
				}
				if (out.Lock.LastToken != 0) != (granted == i+1) || (released == i+1) != (out.Lock.LastToken != 0 && !out.Lock.Held()) {
					t.Fatalf("cut at %d: n%d is %+v after a gap", cut, i, out.Lock)
				}
			}
			if granted != released && granted != released+1 {
				t.Fatalf("cut at %d: %d grants and %d releases", cut, granted, released)
			}
			seen[fmt.Sprint(granted, released)] = true
		}()
	}
	if len(seen) < names {
		t.Errorf("the cuts led to %v", seen)
	}
}

func TestAMissingOrForeignJournalIsRefused(t *testing.T) {
	c := openCrashing(t)
	mustAcquire(t, c.Store, acquire("a", time.Minute))
	other := openCrashing(t)
	for _, name := range segmentNames {
		files := maps.Clone(c.last)
		delete(files, name)
		if _, err := Open(Options{Dir: writeFiles(t, files)}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
		files[name] = other.last[name]
		if _, err := Open(Options{Dir: writeFiles(t, files)}); !errors.Is(err, errJournal) || !strings.Contains(err.Error(), name) {
			t.Errorf("with %s of another: %v", name, err)
		}
	}
}

// After a clean end the one file has everything.
func TestACleanEndNeedsNoJournal(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Dir: dir})
	r := acquire("a", time.Minute)
	mustAcquire(t, s, r)
	s.Close()
	for _, name := range segmentNames {
		if _, err := os.Stat(filepath.Join(dir, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a journal is left: %v", err)
		}
	}
	s = open(t, Options{Dir: dir})
	if _, err := s.Do(t.Context(), fencing.RenewRequest{Name: "a", Lease: r.Lease}); err != nil {
		t.Error(err)
	}
}

// A flush that is larger than the journal goes into the file, with all before it.
func TestAFlushLargerThanTheJournal(t *testing.T) {
	c := openCrashing(t)
	var requests []fencing.AcquireRequest
	for i := range 6 {
		r := acquire(fencing.Name(fmt.Sprint("n", i)), time.Minute)
		if i%3 == 1 {
			r.Metadata = map[string]string{}
			for key := range smallSegment / 256 {
				r.Metadata[fmt.Sprint("k", key)] = strings.Repeat("v", 256)
			}
		}
		mustAcquire(t, c.Store, r)
		requests = append(requests, r)
		after := c.afterCrash(t)
		for _, r := range requests {
			if _, err := after.Do(t.Context(), fencing.RenewRequest{Name: r.Name, Lease: r.Lease}); err != nil {
				t.Errorf("after a crash behind grant %d, %s: %v", i, r.Name, err)
			}
		}
	}
}

// The file that can't take what is in the journal ends the store, as a failed
// flush does.
func TestAFileThatCannotBeWritten(t *testing.T) {
	c := openCrashing(t)
	r := acquire("first", time.Minute)
	mustAcquire(t, c.Store, r)
	if err := os.Mkdir(filepath.Join(c.dir, fileName+newSuffix), 0o700); err != nil { // in its way
		t.Fatal(err)
	}
	granted := 0
	for i := range 200 {
		_, err := c.Do(t.Context(), acquire(fencing.Name(fmt.Sprint("n", i)), time.Minute))
		if err != nil {
			break
		}
		granted++
	}
	<-c.Failed()
	if granted == 0 || granted == 200 {
		t.Errorf("%d were granted before it failed", granted)
	}
	after := c.afterCrash(t)
	for i := range granted {
		out, err := after.Do(t.Context(), fencing.InspectRequest{Name: fencing.Name(fmt.Sprint("n", i))})
		if err != nil || !out.Lock.Held() {
			t.Errorf("n%d was granted, and is %+v, %v", i, out.Lock, err)
		}
	}
}

// FuzzReadJournal: whatever stands in a journal, sealed or not, it is read or
// refused.
func FuzzReadJournal(f *testing.F) {
	var j journal
	j.encode([]entry{{locks, []byte("a"), []byte("b")}, {holders, []byte("c"), nil}})
	f.Add(bytes.Clone(j.frame[:j.size]), uint64(0))
	f.Add([]byte{}, uint64(7))
	f.Fuzz(func(t *testing.T, frame []byte, number uint64) {
		const id = 7
		size := block + wholeBlocks(int64(len(frame)+1))
		files := map[string][]byte{}
		for i, name := range segmentNames {
			files[name] = make([]byte, size)
			copy(files[name], segmentHeader(id, i, size))
		}
		if len(frame) >= frameHeader {
			seal(frame, id, number+1)
		}
		copy(files[segmentNames[0]][block:], frame)
		entries, err := readContent(files, id, number)
		if err != nil && !errors.Is(err, errJournal) {
			t.Error(err)
		}
		for _, e := range entries {
			if e.bucket >= buckets {
				t.Errorf("an entry of bucket %d", e.bucket)
			}
		}
	})
}
