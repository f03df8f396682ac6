package embedded

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// After a clean end the journal goes with the size of the table: the first segment that
// is full is not made larger.
func TestTheJournalGoesWithTheTableAfterACleanEnd(t *testing.T) {
	dir := t.TempDir()
	begun := func() *disk {
		d, err := openDisk(Options{Dir: dir, segment: smallSegment})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.close() })
		if _, err := d.load(0); err != nil {
			t.Fatal(err)
		}
		if err := d.begin(); err != nil {
			t.Fatal(err)
		}
		return d
	}
	d := begun()
	large := writes{}
	for i := range 4 * growAt { // a record and its lease, half as large as a segment
		name := fencing.Name(fmt.Sprint("n", i))
		large.put(locks, []byte(name), diskRecord{LastToken: int64(i)})
		large.put(holders, subKey(name, "lease"), diskHolding{Owner: strings.Repeat("o", smallSegment/2)})
	}
	if err := d.finish(&large); err != nil {
		t.Fatal(err)
	}
	if err := d.close(); err != nil {
		t.Fatal(err)
	}
	size := int64(len(mustRead(t, filepath.Join(dir, fileName))))
	if size <= growAt*smallSegment {
		t.Fatalf("the table has %d bytes: the test misses its aim", size)
	}

	d = begun()
	first := d.journal
	for i, name := range segmentNames {
		if n := first.segments[i].size; n < size || int64(len(mustRead(t, filepath.Join(dir, name)))) != n {
			t.Fatalf("beside a table of %d bytes %s has %d", size, name, n)
		}
	}
	before := first.segments
	w := writes{}
	w.put(locks, []byte("another"), diskRecord{LastToken: 1})
	for range before[0].size / block { // one more than a segment takes
		if err := d.flush(&w); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.applied(); err != nil {
		t.Fatal(err)
	}
	if first.segments != before || first.current != 1 {
		t.Errorf("a segment was made anew when the first was full, or the one that is filled is %d", first.current)
	}
}

// While a segment is put into the table and made larger, flushes go on in the other.
func TestTheJournalGrowsBesideTheFlushes(t *testing.T) {
	growing, proceed := make(chan struct{}), make(chan struct{})
	files := newTrace(nil)
	d, err := openDisk(Options{Dir: t.TempDir(), segment: smallSegment, files: files})
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	if err := d.begin(); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	files.slow = func(path string) {
		if strings.HasSuffix(path, segmentNames[0]+newSuffix) {
			once.Do(func() { close(growing); <-proceed })
		}
	}
	count := 0
	flush := func() error {
		count++
		w := writes{}
		w.put(locks, []byte(fmt.Sprint("n", count)), diskRecord{Broken: make([]int64, 3000)})
		return d.flush(&w)
	}
	for grows := false; !grows; {
		if err := flush(); err != nil {
			t.Fatal(err)
		}
		if d.applying == nil {
			continue
		}
		select {
		case <-growing:
			grows = true
		case err := <-d.applying:
			d.applying <- err // it is over
		}
		if count > 1000 {
			t.Fatal("no segment is made larger")
		}
	}
	flushed := make(chan error)
	go func() {
		var err error
		for range 5 {
			err = errors.Join(err, flush())
		}
		flushed <- err
	}()
	select {
	case err := <-flushed:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("flushes wait until a segment is larger")
	}
	close(proceed)
	if err := d.applied(); err != nil {
		t.Fatal(err)
	}
	if size := d.journal.segments[0].size; size <= smallSegment {
		t.Errorf("beside a table of %d bytes a segment has %d", d.size, size)
	}
}

// A segment is written in pieces, whatever its size: what it takes of memory is theirs.
func TestAJournalIsMadeInPieces(t *testing.T) {
	const size = 2*zerosAtOnce + block // so that no number of pieces is just as large
	made := newTrace(nil)
	j, err := createJournal(directory{files: made}, size)
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range made.ops {
		if len(op.data) > zerosAtOnce {
			t.Errorf("%d bytes are written at once", len(op.data))
		}
	}
	for i, name := range segmentNames {
		want := make([]byte, size)
		copy(want, segmentHeader(j.id, i, size))
		if !bytes.Equal(made.content()[name], want) {
			t.Errorf("%s is not a header and nothing", name)
		}
	}
}
