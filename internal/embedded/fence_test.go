package embedded

import (
	"maps"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

func mustAdmit(t *testing.T, s *Store, name fencing.Name, token fencing.Token, slot int) {
	t.Helper()
	if _, err := s.Do(t.Context(), fencing.AdmitRequest{Name: name, Token: token, Slot: slot}); err != nil {
		t.Fatal(err)
	}
}

func wantStale(t *testing.T, s *Store, name fencing.Name, token fencing.Token, slot int) {
	t.Helper()
	if _, err := s.Do(t.Context(), fencing.AdmitRequest{Name: name, Token: token, Slot: slot}); code(err) != fencing.CodeStaleToken {
		t.Errorf("the token %d is admitted in slot %d of %s: %v", token, slot, name, err)
	}
}

// A mark is there again after a restart: of a name, and of its slots, whichever entry of
// the file they share.
func TestARestartKeepsFences(t *testing.T) {
	dir, clock := t.TempDir(), newTestClock()
	s := open(t, Options{Dir: dir, Now: clock.read})
	old := mustAcquire(t, s, acquire("a", time.Minute)).Token
	if _, err := s.Do(t.Context(), fencing.BreakRequest{Name: "a", Token: old}); err != nil {
		t.Fatal(err)
	}
	mustAdmit(t, s, "a", mustAcquire(t, s, acquire("a", time.Minute)).Token, fencing.NoSlot)
	var tokens []fencing.Token
	all := shared("permits", fencing.MaxLimit) // it has all slots, whichever entries these share
	all.Permits = fencing.MaxLimit
	for _, r := range []fencing.AcquireRequest{shared("permits", 4), shared("permits", 4), all} {
		tokens = append(tokens, mustAcquire(t, s, r).Token)
		if r.Permits > 0 {
			for _, slot := range []int{0, 63, 64, fencing.MaxLimit - 1} {
				mustAdmit(t, s, "permits", tokens[2], slot)
			}
		}
		if _, err := s.Do(t.Context(), fencing.ReleaseRequest{Name: r.Name, Lease: r.Lease}); err != nil {
			t.Fatal(err)
		}
	}
	mustAcquire(t, s, shared("permits", 4))
	tokens = append(tokens, mustAcquire(t, s, shared("permits", 4)).Token)
	first := mustAcquire(t, s, shared("readers", 0)).Token
	mustAdmit(t, s, "permits", tokens[3], 1)
	mustAdmit(t, s, "gone", mustAcquire(t, s, shared("gone", 2)).Token, 0)
	mustAdmit(t, s, "gone", mustAcquire(t, s, shared("gone", 2)).Token, fencing.NoSlot)
	before := s.machine.State().Clone()
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, Options{Dir: dir, Now: clock.read})
		wantStale(t, s, "a", old, fencing.NoSlot)
		for _, slot := range []int{0, 1, 63, 64, fencing.MaxLimit - 1} {
			wantStale(t, s, "permits", tokens[1], slot)
		}
		mustAdmit(t, s, "permits", tokens[1], 2)
		wantStale(t, s, "permits", tokens[2], fencing.NoSlot)
		for name, was := range before.Records {
			is := s.machine.State().Records[name]
			if is.Mark != was.Mark || is.HighestAdmitted != was.HighestAdmitted {
				t.Errorf("%s has the fence %d %d, and had %d %d", name, is.Mark, is.HighestAdmitted, was.Mark, was.HighestAdmitted)
			}
			if name != "permits" && !maps.Equal(is.SlotMarks, was.SlotMarks) {
				t.Errorf("%s has the marks %v, and had %v", name, is.SlotMarks, was.SlotMarks)
			}
		}
	}
	mustAdmit(t, s, "readers", first, fencing.NoSlot)
}

// The admission of a token that was admitted before changes nothing, so that no disk is
// waited for.
func TestAdmittedAgain(t *testing.T) {
	flushes := 0
	s := open(t, Options{Dir: t.TempDir(), Now: newTestClock().read, afterFlush: func() { flushes++ }})
	token := mustAcquire(t, s, acquire("a", time.Minute)).Token
	mustAcquire(t, s, shared("p", 2)) // its token is the mark of the name
	permit := mustAcquire(t, s, shared("p", 2)).Token
	mustAdmit(t, s, "a", token, fencing.NoSlot)
	mustAdmit(t, s, "p", permit, 1)
	if err := s.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := flushes
	for range 10 {
		mustAdmit(t, s, "a", token, fencing.NoSlot)
		mustAdmit(t, s, "p", permit, 1)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if flushes > before+1 { // the end may have one
		t.Errorf("20 admissions that changed nothing took %d flushes", flushes-before)
	}
}
