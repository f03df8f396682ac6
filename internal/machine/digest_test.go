package machine

import (
	"bytes"
	"errors"
	"testing"
)

// Who began with a snapshot has come to the same as who carried out all entries, and who has another state has not.
func TestDigestBehindASnapshot(t *testing.T) {
	log := logOf(3, 400)
	whole := testMachine(t)
	for _, l := range log[:200] {
		l.apply(t, whole)
	}
	snapshot := encoded(t, whole)
	from, odd := anew(t, bytes.NewReader(snapshot)), anew(t, bytes.NewReader(snapshot))
	odd.state.Counter += 1 << 40
	for _, l := range log[200:] {
		for _, m := range []*Machine{whole, from, odd} {
			l.apply(t, m)
		}
		want, ok := whole.DigestAt(l.index)
		if got, known := from.DigestAt(l.index); !ok || !known || got != want {
			t.Fatalf("entry %d computes other results behind a snapshot", l.index)
		}
		if got, known := odd.DigestAt(l.index); !known || got == want {
			t.Fatalf("entry %d comes to the same for another state", l.index)
		}
	}
	if _, known := from.DigestAt(198); known {
		t.Error("what an entry before the snapshot came to is known")
	}
	if _, known := from.DigestAt(401); known {
		t.Error("what an entry comes to that is not carried out is known")
	}
	if last, _ := whole.LastDigest(); last != 400 {
		t.Errorf("the last is of entry %d", last)
	}
}

// An entry that says that something else has come of those before it than has here is known as that, and only such a one.
func TestAnEntryThatDiffers(t *testing.T) {
	log := logOf(4, 300)
	writer, reader := testMachine(t), testMachine(t)
	for i, l := range log {
		e, err := Decode(l.data)
		if err != nil {
			t.Fatal(err)
		}
		e.Behind, e.Digest = writer.LastDigest()
		if i == 0 {
			e.Writer = "v9"
		}
		l.data = must(e.Encode())
		l.apply(t, writer)
		if e, err = Decode(l.data); err != nil {
			t.Fatal(err)
		}
		if i == 200 {
			reader.state.Counter++
		}
		_, err = reader.Apply(l.index, e, &Telling{}, false)
		if differs := errors.Is(err, ErrDiffers); differs != (i > 200) || differs != (err != nil) {
			t.Fatalf("entry %d: %v", l.index, err)
		}
	}
	if w := reader.Writer(); w != "v9" {
		t.Errorf("it was written by %q", w)
	}
}

// Entries that are none of ours may follow the last one that a snapshot has: what an entry says of that one is known to be right, and what another says is
// not. A snapshot of an earlier version does not say which one it is; what is not known finds no fault.
func TestASnapshotBehindOtherEntries(t *testing.T) {
	log := logOf(3, 40)
	m := testMachine(t)
	for _, l := range log {
		l.apply(t, m)
	}
	_, digest := m.LastDigest()
	m.Reached(43)
	written := encoded(t, m)
	for _, earlier := range []bool{false, true} {
		r, err := Read(bytes.NewReader(written))
		if err != nil {
			t.Fatal(err)
		}
		if r.head.Last != 40 {
			t.Errorf("the digest is of entry %d", r.head.Last)
		}
		if earlier {
			r.head.Last = 0
		}
		is := testMachine(t)
		if err := is.Restore(r); err != nil {
			t.Fatal(err)
		}
		for _, behind := range []uint64{40, 41, 42, 43} {
			e := Decoded{&Entry{Behind: behind, Digest: digest}, nil}
			if !is.Belongs(44, &e) {
				t.Errorf("earlier %v: entry %d is not known", earlier, behind)
			}
			if e.Digest++; is.Belongs(44, &e) != (earlier && behind < 43) {
				t.Errorf("earlier %v: what came of entry %d is another", earlier, behind)
			}
		}
	}
}
