package embedded

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"fencepost/internal/fencing"
)

// After a clean end the journal goes with the size of the table: the first fill of a
// half does not make a larger one, for which all that come meanwhile would wait.
func TestTheJournalGoesWithTheTableAfterACleanEnd(t *testing.T) {
	dir := t.TempDir()
	begun := func() *disk {
		d, err := openDisk(Options{Dir: dir, journalHalf: smallHalf})
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
	for i := range 4 * growAt { // a record and its lease, as large as half of one half
		name := fencing.Name(fmt.Sprint("n", i))
		large.put(locks, []byte(name), diskRecord{LastToken: int64(i)})
		large.put(holders, subKey(name, "lease"), diskHolding{Owner: strings.Repeat("o", smallHalf/2)})
	}
	if err := d.finish(&large); err != nil {
		t.Fatal(err)
	}
	if err := d.close(); err != nil {
		t.Fatal(err)
	}
	size := int64(len(mustRead(t, filepath.Join(dir, fileName))))
	if size <= growAt*smallHalf {
		t.Fatalf("the table has %d bytes: the test misses its aim", size)
	}

	d = begun()
	first := d.journal
	if first.half < size || int64(len(mustRead(t, filepath.Join(dir, journalName)))) != block+2*first.half {
		t.Fatalf("beside a table of %d bytes a half has %d", size, first.half)
	}
	w := writes{}
	w.put(locks, []byte("another"), diskRecord{LastToken: 1})
	for range first.half/block + 1 { // one more than a half takes
		if err := d.flush(&w); err != nil {
			t.Fatal(err)
		}
	}
	if d.journal != first || first.start == block {
		t.Errorf("the journal was made anew with the first fill, or the half at %d is not filled", first.start)
	}
}

// A journal is written in pieces, whatever its size: what it takes of memory is theirs.
func TestAJournalIsMadeInPieces(t *testing.T) {
	const half = zerosAtOnce + block // so that no number of pieces is just as large
	made := newTrace(nil)
	j, err := createJournal(made, journalName, half)
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range made.ops {
		if len(op.data) > zerosAtOnce {
			t.Errorf("%d bytes are written at once", len(op.data))
		}
	}
	want := append(j.header(), make([]byte, 2*half)...)
	if !bytes.Equal(made.content()[journalName], want) {
		t.Error("it is not a header and two empty halves")
	}
}
