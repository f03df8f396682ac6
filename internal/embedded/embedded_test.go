package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"fencepost/internal/disk"
	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	// block is what frames of the log are multiples of.
	block = 4096

	// smallSegment makes the files of a log change after some ten flushes.
	smallSegment = 16 * block

	// smallSnapshot has a snapshot be taken after some ten flushes.
	smallSnapshot = 2 << 10
)

// testClock is a clock that a test moves.
type testClock struct{ now atomic.Int64 }

func newTestClock() *testClock {
	c := &testClock{}
	c.now.Store(int64(fencingtest.Epoch))
	return c
}

func (c *testClock) read() fencing.Instant  { return fencing.Instant(c.now.Load()) }
func (c *testClock) set(to fencing.Instant) { c.now.Store(int64(to)) }
func (c *testClock) advance(d time.Duration) {
	c.now.Add(int64(d / time.Microsecond))
}

func open(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

type backend struct {
	store *Store
	clock *testClock
}

func (b backend) Store(int) fencing.Store     { return b.store }
func (b backend) SetTime(now fencing.Instant) { b.clock.set(now) }
func (b backend) SetSkew(int, time.Duration)  { panic("embedded: one clock") }
func (b backend) String() string              { return "embedded" }
func openBackend(t testing.TB) fencingtest.Backend {
	clock := newTestClock()
	return backend{open(t, Options{Dir: t.TempDir(), Now: clock.read, segment: smallSegment, snapshotAt: smallSnapshot}), clock}
}

func TestConformance(t *testing.T) { conforms(t, 3) }

func TestSystemConformance(t *testing.T) { conforms(t, 0) }

// conforms plays all of the cases, and where bounds are low one in so many, beside all those that are about the bounds.
func conforms(t *testing.T, sample int) {
	fencingtest.Run(t, openBackend, fencingtest.Capabilities{})
	t.Run("small steps", func(t *testing.T) {
		fencingtest.Run(t, func(t testing.TB) fencingtest.Backend {
			clock := newTestClock()
			return backend{open(t, Options{Dir: t.TempDir(), Now: clock.read, segment: smallSegment, snapshotAt: smallSnapshot, stepLimit: 2}), clock}
		}, fencingtest.Capabilities{StepLimit: 2, Sample: sample})
	})
	t.Run("few holders", func(t *testing.T) {
		fencingtest.Run(t, func(t testing.TB) fencingtest.Backend {
			clock := newTestClock()
			return backend{open(t, Options{Dir: t.TempDir(), Now: clock.read, segment: smallSegment, snapshotAt: smallSnapshot, MaxHolders: 2}), clock}
		}, fencingtest.Capabilities{MaxHolders: 2, Sample: sample})
	})
}

func acquire(name fencing.Name, ttl time.Duration) fencing.AcquireRequest {
	return fencing.AcquireRequest{
		Name: name, Lease: fencing.NewLeaseID(time.Now()), Stamp: fencing.NewStamp(),
		Owner: "worker", Mode: fencing.ModeExclusive, Hold: 1, TTL: ttl,
	}
}

// P2: also with the clock set back, and the name's record forgotten.
func TestTokensGrowAcrossRestartWithTheClockSetBack(t *testing.T) {
	dir, clock := t.TempDir(), newTestClock()
	s := open(t, Options{Dir: dir, Now: clock.read})
	first, err := s.Do(t.Context(), acquire("a", time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	clock.advance(-48 * time.Hour)
	s = open(t, Options{Dir: dir, Now: clock.read})
	second, err := s.Do(t.Context(), acquire("b", time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if second.Holder.Token <= first.Holder.Token {
		t.Errorf("token %d after %d", second.Holder.Token, first.Holder.Token)
	}
}

func TestRestartBeginsTheTTLAnew(t *testing.T) {
	dir, clock := t.TempDir(), newTestClock()
	s := open(t, Options{Dir: dir, Now: clock.read})
	plain, bounded := acquire("plain", 30*time.Second), acquire("bounded", 30*time.Second)
	bounded.MaxHold = time.Minute
	bounded.Metadata = map[string]string{"build": "42"}
	for _, r := range []fencing.AcquireRequest{plain, bounded} {
		if _, err := s.Do(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	clock.advance(20 * time.Second)
	if _, err := s.Do(t.Context(), fencing.RenewRequest{Name: plain.Name, Lease: plain.Lease, TTL: time.Hour}); err != nil {
		t.Fatal(err)
	}
	clock.advance(20 * time.Second)
	s.Close()

	for _, set := range []time.Duration{0, -time.Hour} { // the wall clock may have been set back
		clock.advance(set)
		s = open(t, Options{Dir: dir, Now: clock.read})
		for name, want := range map[fencing.Name]time.Duration{"plain": time.Hour, "bounded": 20 * time.Second} {
			out, err := s.Do(t.Context(), fencing.InspectRequest{Name: name})
			if err != nil || len(out.Lock.Holders) != 1 {
				t.Fatalf("%s after a restart: %+v, %v", name, out.Lock, err)
			}
			h := out.Lock.Holders[0]
			if left := h.ExpiresAt.Sub(out.Now); left != want {
				t.Errorf("%s after a restart has %s to live, want %s", name, left, want)
			}
			if name == "bounded" && h.Metadata.Map()["build"] != "42" {
				t.Errorf("metadata after a restart: %v", h.Metadata)
			}
		}
		s.Close()
	}
}

// One busy name must not leave more behind than a record and its tombstones.
func TestNothingPilesUp(t *testing.T) {
	clock := newTestClock()
	s := open(t, Options{Dir: t.TempDir(), Now: clock.read})
	reap := time.Duration(0) // until the reaper looks again
	for range 3000 {
		r := acquire("busy", 30*time.Second)
		if _, err := s.Do(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Do(t.Context(), fencing.ReleaseRequest{Name: r.Name, Lease: r.Lease}); err != nil {
			t.Fatal(err)
		}
		clock.advance(time.Second)
		for reap -= time.Second; reap <= 0; {
			expiry, err := s.Expire(t.Context(), 256)
			if err != nil {
				t.Fatal(err)
			}
			reap += expiry.Next
		}
	}
	// Those that are remembered still, and what the reaper lets gather.
	if n := len(s.machine.State().Tombstones); n > int((fencing.TombstoneTTL+idlePause)/time.Second) {
		t.Errorf("%d tombstones after 3000 leases, one a second", n)
	}
}

func TestACallerThatHasGoneIsGrantedNothing(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir()})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Do(ctx, acquire("a", time.Minute)); code(err) != fencing.CodeUnavailable {
		t.Errorf("acquire with a cancelled context: %v", err)
	}
	out, err := s.Do(t.Context(), fencing.InspectRequest{Name: "a"})
	if err != nil || out.Lock.Held() {
		t.Errorf("the name is %+v, %v; want it free", out.Lock, err)
	}
}

func TestTombstonesGoFromFileAndMemory(t *testing.T) {
	dir, clock := t.TempDir(), newTestClock()
	s := open(t, Options{Dir: dir, Now: clock.read})
	for i := range 10 {
		r := acquire(fencing.Name(fmt.Sprint("n", i)), time.Minute)
		if _, err := s.Do(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Do(t.Context(), fencing.ReleaseRequest{Name: r.Name, Lease: r.Lease}); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	clock.advance(-time.Hour) // their keys in the file move along
	s = open(t, Options{Dir: dir, Now: clock.read})
	if n := len(s.machine.State().Tombstones); n != 10 {
		t.Fatalf("%d tombstones after a restart, want 10", n)
	}
	clock.advance(fencing.TombstoneTTL)
	if _, err := s.Expire(t.Context(), 100); err != nil {
		t.Fatal(err)
	}
	clock.advance(fencing.ForgetAfter)
	if _, err := s.Expire(t.Context(), 100); err != nil {
		t.Fatal(err)
	}
	s.Close()
	s = open(t, Options{Dir: dir, Now: clock.read})
	if n := len(s.machine.State().Tombstones); n != 0 {
		t.Errorf("%d tombstones are left", n)
	}
	if n := len(s.machine.State().Records); n != 0 {
		t.Errorf("%d records are left", n)
	}
	if s.machine.State().Counter == 0 {
		t.Error("the counter was forgotten")
	}
}

func TestASecondProcessIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open(t, Options{Dir: dir})
	_, err := Open(Options{Dir: dir})
	if err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("opening a directory twice: %v", err)
	}
}

// What an earlier version kept is not passed over for an empty store.
func TestTheFileOfAnEarlierVersionIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, earlierFile), []byte("anything"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := Open(Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), earlierFile+" is of an earlier version") {
			t.Errorf("it is opened: %v", err)
		}
	}
	if _, err := Examine(dir); err == nil {
		t.Error("doctor finds nothing")
	}
}

func TestFilesAreForTheirOwnerOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "here")
	open(t, Options{Dir: dir})
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, disk.LogName, "0000000001.log"): 0o600} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want %v", path, info.Mode(), err, want)
		}
	}
}

func TestCloseAnswersWhatIsUnderWay(t *testing.T) {
	s, err := Open(Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for i := range 200 {
		group.Go(func() {
			_, err := s.Do(context.Background(), acquire(fencing.Name(fmt.Sprint("n", i)), time.Minute))
			if err != nil && code(err) != fencing.CodeUnavailable {
				t.Error(err)
			}
		})
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Error(err)
	}
	group.Wait()
	if _, err := s.Do(t.Context(), acquire("late", time.Minute)); code(err) != fencing.CodeUnavailable {
		t.Errorf("acquire after Close: %v", err)
	}
}

// times returns how often something is done: often with FENCEPOST_LONG.
func times(usually, long int) int {
	if os.Getenv("FENCEPOST_LONG") != "" {
		return long
	}
	return usually
}

// waitFor polls a condition.
func waitFor(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !holds(); <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func code(err error) fencing.Code {
	var refusal *fencing.Error
	if errors.As(err, &refusal) {
		return refusal.Code
	}
	return ""
}

func reason(err error) fencing.Reason {
	var refusal *fencing.Error
	if errors.As(err, &refusal) {
		return refusal.Reason
	}
	return ""
}

// A tombstone that was due, and whose lease id has ended once more before it went, goes from the
// file when its own time comes.
func TestATombstoneThatIsReplacedGoesToo(t *testing.T) {
	dir, clock := t.TempDir(), newTestClock()
	s := open(t, Options{Dir: dir, Now: clock.read})
	r := acquire("a", time.Minute)
	for range 2 {
		if _, err := s.Do(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Do(t.Context(), fencing.ReleaseRequest{Name: r.Name, Lease: r.Lease}); err != nil {
			t.Fatal(err)
		}
		clock.advance(fencing.TombstoneTTL)
	}
	if _, err := s.Expire(t.Context(), 100); err != nil {
		t.Fatal(err)
	}
	s.Close()
	s = open(t, Options{Dir: dir, Now: clock.read})
	if n := len(s.machine.State().Tombstones); n != 0 {
		t.Errorf("%d tombstones are left", n)
	}
}
