package machine

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fxamacker/cbor/v2"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

// heavy returns a machine on which neighbouring names have many leases with much to say.
func heavy(t *testing.T, names, leases int) *Machine {
	m := testMachine(t)
	metadata := map[string]string{}
	for i := range 16 {
		metadata[fmt.Sprint(i)] = strings.Repeat("x", 250)
	}
	e := Entry{Term: 1, Now: int64(fencingtest.Epoch)}
	for name := range names {
		b := Batch{Gateway: "g"}
		for range leases {
			r := fencing.AcquireRequest{
				Name: fencing.Name(fmt.Sprintf("n%03d", name)), Lease: fencing.NewLeaseID(time.Now()), Stamp: fencing.NewStamp(), Hold: 1, TTL: time.Hour,
			}
			r.Mode, r.Metadata = fencing.ModeShared, metadata
			b.Ops = append(b.Ops, EncodeOp(r))
		}
		e.Batches = append(e.Batches, b)
	}
	logged{1, must(e.Encode())}.apply(t, m)
	return m
}

// Neighbours with many leases each do not make a part of a snapshot that is too large to be read.
func TestTheFramesOfASnapshotAreBounded(t *testing.T) {
	m := heavy(t, 30, 10) // of 40 kB each
	written := encoded(t, m)
	r := frameReader{from: bytes.NewReader(written)}
	for frames := 0; ; frames++ {
		kind, content, err := r.read()
		if err != nil {
			t.Fatal(err)
		}
		if len(content) > fullFrame+1000 {
			t.Errorf("part %d has %d bytes", frames, len(content))
		}
		if kind == frameEnd {
			break
		}
	}
	if !bytes.Equal(encoded(t, anew(t, bytes.NewReader(written))), written) {
		t.Error("it is another state")
	}
	s, err := m.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	s.most = 30 << 10 // less than a name has
	if err := s.Write(io.Discard, &sync.Mutex{}); err == nil {
		t.Error("a part was written that is too large to be read")
	}
}

// A state of another version is refused, by that name.
func TestAStateOfAnotherVersionIsRefused(t *testing.T) {
	var b bytes.Buffer
	w := frameWriter{to: bufio.NewWriter(&b), most: maxFrame}
	head := headOf(fencing.NewState(), 0, 0)
	head.Version++
	if err := errors.Join(w.write(frameHead, head), w.to.Flush()); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(&b); !errors.Is(err, ErrVersion) {
		t.Error(err)
	}
}

// What is known already is not read once more, and counts for that snapshot alone.
func TestASnapshotThatIsKnown(t *testing.T) {
	of := heavy(t, 1, 1)
	written := encoded(t, of)
	known, err := Read(bytes.NewReader(written))
	if err != nil {
		t.Fatal(err)
	}
	head := written[:frameHeader+len(must(Encoding.Marshal(known.head)))+1]
	if again, err := ReadUnless(known, bytes.NewReader(head)); again != known || err != nil {
		t.Error(again, err)
	}
	r := fencing.AcquireRequest{Name: "more", Lease: fencing.NewLeaseID(time.Now()), Stamp: fencing.NewStamp(), Hold: 1, TTL: time.Hour}
	e := Entry{Term: 1, Now: int64(fencingtest.Epoch), Batches: []Batch{{Gateway: "g", Ops: []cbor.RawMessage{EncodeOp(r)}}}}
	logged{2, must(e.Encode())}.apply(t, of)
	other, err := ReadUnless(known, bytes.NewReader(encoded(t, of)))
	if err != nil || other == known || len(other.state.Records) != 2 {
		t.Error(other, err)
	}
}

// Names that many hold are encoded one by one, so that nobody waits long.
func TestASnapshotTakesLittleAtOnce(t *testing.T) {
	m := heavy(t, 5, weightAtOnce/2+1)
	s, err := m.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	for i := range 5 {
		records, more := s.nextRecords(recordsAtOnce)
		if len(records) != 1 || more != (i < 4) {
			t.Fatalf("part %d has %d records, more follow: %t", i, len(records), more)
		}
	}
}
