package embedded

import (
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// P1: a copy of an earlier time grants nothing new while leases that it knows nothing of may be in use. What it has can be
// renewed. P2: its tokens go on above all that were granted since.
func TestARestoredCopyIsCareful(t *testing.T) {
	c := openCrashing(t)
	c.clock.advance(24 * time.Hour)
	kept := acquire("kept", time.Minute)
	mustAcquire(t, c.Store, kept)
	o := c.onLast(t)
	c.clock.advance(time.Second)
	since := mustAcquire(t, c.Store, acquire("since", time.Minute))
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c.clock.advance(time.Second)
	c.clock.advance(-time.Hour) // only the next start begins it
	if lasts, err := Restored(o, time.Minute); err != nil || lasts != time.Minute {
		t.Fatal(lasts, err)
	}
	c.clock.advance(2 * time.Hour)
	for _, left := range []time.Duration{time.Minute, 31 * time.Second} { // a restart changes nothing of it
		s := open(t, o)
		if stats, err := s.Stats(t.Context()); err != nil || stats.Quarantine != left {
			t.Errorf("it says that the quarantine lasts for %s, %v, want %s", stats.Quarantine, err, left)
		}
		if _, err := s.Do(t.Context(), acquire("since", time.Minute)); code(err) != fencing.CodeQuarantined {
			t.Errorf("what may be held by somebody else is granted: %v", err)
		}
		if _, err := s.Do(t.Context(), fencing.RenewRequest{Name: "kept", Lease: kept.Lease}); err != nil {
			t.Errorf("what the copy has is not renewed: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		c.clock.advance(29 * time.Second)
	}
	c.clock.advance(2 * time.Second)
	s := open(t, o)
	if h := mustAcquire(t, s, acquire("since", time.Minute)); h.Token <= since.Token {
		t.Errorf("token %d after %d", h.Token, since.Token)
	}
	if stats, err := s.Stats(t.Context()); err != nil || stats.Quarantine != 0 {
		t.Errorf("it says that the quarantine lasts for %s, %v, and it is over", stats.Quarantine, err)
	}
	if _, err := Restored(Options{Dir: t.TempDir()}, time.Minute); err == nil {
		t.Error("an empty directory was restored")
	}
}
