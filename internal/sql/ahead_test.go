package sql

import (
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"testing"
)

// What is read ahead comes in order, up to the error, and when it is over nothing is being read.
func TestAhead(t *testing.T) {
	broken := errors.New("broken")
	reading, reads := false, 0
	numbers := func(yield func(int, error) bool) {
		reading = true
		defer func() { reading = false }()
		for reads = 1; reads < 5; reads++ {
			if !yield(reads, nil) {
				return
			}
		}
		yield(0, broken)
	}
	var got []int
	var failed error
	for n, err := range ahead(iter.Seq2[int, error](numbers)) {
		got, failed = append(got, n), err
	}
	if len(got) != 5 || got[0] != 1 || got[3] != 4 || failed != broken || reading {
		t.Errorf("%v, %v", got, failed)
	}
	for n := range ahead(iter.Seq2[int, error](numbers)) {
		if n == 2 {
			break
		}
	}
	if reading || reads > 4 {
		t.Errorf("it goes on: %d were read", reads)
	}
}

// pieces is a connection that has a snapshot and a log.
type pieces struct {
	connection
	chunks [][]byte
	log    []*begun
	asked  []uint64
}

func (p *pieces) chunk(_ context.Context, _ uint64, no int) ([]byte, error) {
	if no > len(p.chunks) {
		return nil, nil
	}
	return p.chunks[no-1], nil
}

func (p *pieces) read(_ context.Context, after uint64) (*begun, error) {
	p.asked = append(p.asked, after)
	return p.log[len(p.asked)-1], nil
}

// A snapshot is its chunks, and one that is gone is a gap: it was removed meanwhile. Who stops early has it closed.
func TestChunksAreRead(t *testing.T) {
	p := &pieces{chunks: [][]byte{[]byte("ab"), {}, []byte("cde")}}
	for missing := range 2 {
		var all []byte
		err := fromSnapshot(t.Context(), p, 1, 3+missing, func(from io.Reader) (err error) {
			all, err = io.ReadAll(from)
			return err
		})
		if string(all) != "abcde" || errors.Is(err, errGap) != (missing == 1) {
			t.Errorf("%q, %v", all, err)
		}
	}
	if err := fromSnapshot(t.Context(), p, 1, 3, func(from io.Reader) error {
		_, err := from.Read(bytes.Repeat([]byte{0}, 1))
		return err
	}); err != nil {
		t.Error(err)
	}
}

// The log is asked for from where the message before has ended, as often as there is more.
func TestTheLogIsReadInMessages(t *testing.T) {
	message := func(more bool, numbers ...uint64) *begun {
		b := &begun{more: more}
		for _, seq := range numbers {
			b.entries = append(b.entries, logged{seq: seq, data: []byte{0xf6}})
		}
		return b
	}
	p := &pieces{log: []*begun{message(true, 7, 8, 9), message(true, 9, 10), message(false, 10)}}
	for b, err := range ahead(logBehind(t.Context(), p, 7)) {
		if err != nil {
			t.Fatal(err)
		}
		if first := &b.entries[0]; first.unread != nil || first.decoded != nil {
			t.Error("the last entry that was carried out is decoded again")
		}
		for i := range b.entries[1:] {
			if e := &b.entries[1+i]; e.unread == nil && e.decoded == nil {
				t.Errorf("entry %d is not decoded", e.seq)
			}
		}
	}
	if len(p.asked) != 3 || p.asked[0] != 7 || p.asked[1] != 9 || p.asked[2] != 10 {
		t.Errorf("asked for what is behind %v", p.asked)
	}
}
