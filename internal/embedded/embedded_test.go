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

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
	return backend{open(t, Options{Dir: t.TempDir(), Now: clock.read}), clock}
}

func TestConformance(t *testing.T) {
	fencingtest.Run(t, openBackend, fencingtest.Capabilities{})
}

func acquire(name fencing.Name, ttl time.Duration) fencing.AcquireRequest {
	return fencing.AcquireRequest{
		Name: name, Lease: fencing.NewLeaseID(time.Now()), Stamp: fencing.NewStamp(),
		Owner: "worker", Mode: fencing.ModeExclusive, Hold: 1, TTL: ttl,
	}
}

// crashing is a store of which the test keeps what was durable at each flush.
type crashing struct {
	*Store
	dir   string // where the file is
	clock *testClock

	mu   sync.Mutex
	last []byte // the file as of the last flush
	fail error
}

func openCrashing(t *testing.T) *crashing {
	c := &crashing{dir: t.TempDir(), clock: newTestClock()}
	c.Store = open(t, Options{
		Dir: c.dir, Now: c.clock.read,
		beforeCommit: func() error { c.mu.Lock(); defer c.mu.Unlock(); return c.fail },
		afterCommit: func() {
			content, err := os.ReadFile(filepath.Join(c.dir, fileName))
			if err != nil {
				t.Error(err)
			}
			c.mu.Lock()
			c.last = content
			c.mu.Unlock()
		},
	})
	return c
}

func (c *crashing) failWith(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fail = err
}

// afterCrash opens a store on what was durable at the last flush: writes that
// were not flushed are dropped, which killing a process does not do.
func (c *crashing) afterCrash(t *testing.T) *Store {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	dir := t.TempDir()
	if c.last != nil {
		if err := os.WriteFile(filepath.Join(dir, fileName), c.last, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return open(t, Options{Dir: dir, Now: c.clock.read})
}

func TestAGrantIsDurableBeforeItsAnswer(t *testing.T) {
	c := openCrashing(t)
	var highest fencing.Token
	for i := range 20 {
		request := acquire("orders/42", time.Minute)
		out, err := c.Acquire(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		after := c.afterCrash(t)
		again, err := after.Acquire(t.Context(), request)
		if err != nil || again.Holder.Token != out.Holder.Token {
			t.Fatalf("round %d: after a crash the lease is %+v, %v; want token %d", i, again.Holder, err, out.Holder.Token)
		}
		if out.Holder.Token <= highest {
			t.Fatalf("round %d: token %d after %d", i, out.Holder.Token, highest)
		}
		highest = out.Holder.Token
		if _, err := c.Release(t.Context(), fencing.ReleaseRequest{Name: request.Name, Lease: request.Lease}); err != nil {
			t.Fatal(err)
		}
	}
}

// P2: also with the clock set back, and the name's record forgotten.
func TestTokensGrowAcrossRestartWithTheClockSetBack(t *testing.T) {
	dir, clock := t.TempDir(), newTestClock()
	s := open(t, Options{Dir: dir, Now: clock.read})
	first, err := s.Acquire(t.Context(), acquire("a", time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	clock.advance(-48 * time.Hour)
	s = open(t, Options{Dir: dir, Now: clock.read})
	second, err := s.Acquire(t.Context(), acquire("b", time.Minute))
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
		if _, err := s.Acquire(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	clock.advance(20 * time.Second)
	if _, err := s.Renew(t.Context(), fencing.RenewRequest{Name: plain.Name, Lease: plain.Lease, TTL: time.Hour}); err != nil {
		t.Fatal(err)
	}
	clock.advance(20 * time.Second)
	s.Close()

	for _, set := range []time.Duration{0, -time.Hour} { // the wall clock may have been set back
		clock.advance(set)
		s = open(t, Options{Dir: dir, Now: clock.read})
		for name, want := range map[fencing.Name]time.Duration{"plain": time.Hour, "bounded": 20 * time.Second} {
			out, err := s.Inspect(t.Context(), fencing.InspectRequest{Name: name})
			if err != nil || len(out.Lock.Holders) != 1 {
				t.Fatalf("%s after a restart: %+v, %v", name, out.Lock, err)
			}
			h := out.Lock.Holders[0]
			if left := h.ExpiresAt.Sub(out.Now); left != want {
				t.Errorf("%s after a restart has %s to live, want %s", name, left, want)
			}
			if name == "bounded" && h.Metadata["build"] != "42" {
				t.Errorf("metadata after a restart: %v", h.Metadata)
			}
		}
		s.Close()
	}
}

// An ending that was answered 412 must not come to life again.
func TestALostLeaseStaysLost(t *testing.T) {
	c := openCrashing(t)
	r := acquire("a", time.Second)
	if _, err := c.Acquire(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	c.clock.advance(2 * time.Second)
	_, err := c.Renew(t.Context(), fencing.RenewRequest{Name: r.Name, Lease: r.Lease})
	if reason(err) != fencing.ReasonExpired {
		t.Fatalf("renewing an expired lease: %v", err)
	}
	_, err = c.afterCrash(t).Renew(t.Context(), fencing.RenewRequest{Name: r.Name, Lease: r.Lease})
	if reason(err) != fencing.ReasonExpired {
		t.Errorf("after a crash: %v, want it expired as answered before", err)
	}
}

func TestABreakIsDurableBeforeItsAnswer(t *testing.T) {
	c := openCrashing(t)
	r := acquire("a", time.Minute)
	out, err := c.Acquire(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Break(t.Context(), fencing.BreakRequest{Name: "a", Token: out.Holder.Token}); err != nil {
		t.Fatal(err)
	}
	after := c.afterCrash(t)
	if _, err = after.Renew(t.Context(), fencing.RenewRequest{Name: "a", Lease: r.Lease}); reason(err) != fencing.ReasonBroken {
		t.Errorf("after a crash: %v, want it broken", err)
	}
	if _, err := after.Break(t.Context(), fencing.BreakRequest{Name: "a", Token: out.Holder.Token}); err != nil {
		t.Errorf("retried break after a crash: %v", err)
	}
}

func TestALengthenedTTLIsDurableBeforeItsAnswer(t *testing.T) {
	c := openCrashing(t)
	r := acquire("a", time.Second)
	if _, err := c.Acquire(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Renew(t.Context(), fencing.RenewRequest{Name: "a", Lease: r.Lease, TTL: time.Hour}); err != nil {
		t.Fatal(err)
	}
	after := c.afterCrash(t)
	c.clock.advance(59 * time.Minute)
	if _, err := after.Renew(t.Context(), fencing.RenewRequest{Name: "a", Lease: r.Lease}); err != nil {
		t.Errorf("after a crash, within the TTL that was answered: %v", err)
	}
}

func TestAFailedFlushIsFinal(t *testing.T) {
	c := openCrashing(t)
	held := acquire("held", time.Minute)
	if _, err := c.Acquire(t.Context(), held); err != nil {
		t.Fatal(err)
	}
	c.failWith(errors.New("no space left"))
	if _, err := c.Acquire(t.Context(), acquire("a", time.Minute)); code(err) != fencing.CodeUnavailable {
		t.Errorf("acquire with a failing flush: %v", err)
	}
	select {
	case <-c.Failed():
	case <-time.After(10 * time.Second):
		t.Fatal("Failed is not closed")
	}
	c.failWith(nil) // it does not recover by itself
	for what, err := range map[string]error{
		"acquire": second(c.Acquire(t.Context(), acquire("b", time.Minute))),
		"renew":   second(c.Renew(t.Context(), fencing.RenewRequest{Name: "held", Lease: held.Lease})),
		"inspect": second(c.Inspect(t.Context(), fencing.InspectRequest{Name: "held"})),
		"list":    second(c.List(t.Context(), fencing.ListRequest{Limit: 1})),
		"check":   c.Check(t.Context()),
	} {
		if code(err) != fencing.CodeUnavailable {
			t.Errorf("%s after a failed flush: %v, want unavailable", what, err)
		}
	}
	if _, err := c.afterCrash(t).Renew(t.Context(), fencing.RenewRequest{Name: "held", Lease: held.Lease}); err != nil {
		t.Errorf("after a restart the lease that was answered is gone: %v", err)
	}
}

func TestManyGrantsShareAFlush(t *testing.T) {
	c := openCrashing(t)
	flushing, proceed := make(chan struct{}), make(chan struct{})
	var flushes atomic.Int32
	c.disk.beforeCommit = func() error {
		if flushes.Add(1) == 1 {
			close(flushing)
			<-proceed
		}
		return nil
	}
	var group sync.WaitGroup
	start := func(i int) {
		group.Go(func() {
			if _, err := c.Acquire(context.Background(), acquire(fencing.Name(fmt.Sprint("n", i)), time.Minute)); err != nil {
				t.Error(err)
			}
		})
	}
	start(0)
	<-flushing
	for i := range 100 {
		start(1 + i)
	}
	waitFor(t, "the grants to gather behind the flush under way", func() bool {
		stats, _ := c.Stats(t.Context())
		return stats.Held == 101
	})
	close(proceed)
	group.Wait()
	if n := flushes.Load(); n != 2 {
		t.Errorf("101 grants took %d flushes, want 2", n)
	}
}

// A renewal that lengthens nothing is answered at once, but not before the grant
// or the longer TTL that it builds on is durable.
func TestARenewalWaitsForWhatItBuildsOn(t *testing.T) {
	for _, gathering := range []bool{false, true} { // or being flushed
		c := openCrashing(t)
		flushing, proceed := make(chan struct{}, 10), make(chan struct{})
		hold := func() error { flushing <- struct{}{}; <-proceed; return nil }
		free := acquire("free", time.Minute)
		if _, err := c.Acquire(t.Context(), free); err != nil {
			t.Fatal(err)
		}
		c.disk.beforeCommit = hold
		var group sync.WaitGroup
		background := func(call func() error) chan error {
			answer := make(chan error, 1)
			group.Go(func() { answer <- call() })
			return answer
		}
		if gathering { // behind another flush
			background(func() error { return second(c.Acquire(context.Background(), acquire("other", time.Minute))) })
			<-flushing
		}
		r := acquire("a", time.Minute)
		granted := background(func() error { return second(c.Acquire(context.Background(), r)) })
		waitFor(t, "the grant to be decided", func() bool {
			page, _ := c.List(t.Context(), fencing.ListRequest{Prefix: "a", Limit: 1})
			return len(page.Locks) == 1
		})
		if !gathering {
			<-flushing
		}
		c.clock.advance(time.Second)
		renewed := background(func() error {
			return second(c.Renew(context.Background(), fencing.RenewRequest{Name: "a", Lease: r.Lease}))
		})
		waitFor(t, "the renewal to be decided", func() bool {
			page, _ := c.List(t.Context(), fencing.ListRequest{Prefix: "a", Limit: 1})
			return page.Locks[0].Holders[0].ExpiresAt == c.clock.read().Add(r.TTL)
		})
		// A renewal that comes later and builds on nothing pending is not held up.
		if _, err := c.Renew(t.Context(), fencing.RenewRequest{Name: free.Name, Lease: free.Lease}); err != nil {
			t.Error(err)
		}
		select {
		case err := <-renewed:
			t.Errorf("gathering=%v: the renewal was answered (%v) before its grant was durable", gathering, err)
			renewed <- err
		case <-time.After(20 * time.Millisecond): // long enough to see a wrong answer, which would be there already
		}
		close(proceed)
		for _, answer := range []chan error{granted, renewed} {
			if err := <-answer; err != nil {
				t.Error(err)
			}
		}
		group.Wait()
	}
}

// One busy name must not leave more behind than a record and its tombstones.
func TestNothingPilesUp(t *testing.T) {
	clock := newTestClock()
	s := open(t, Options{Dir: t.TempDir(), Now: clock.read})
	reap := time.Duration(0) // until the reaper looks again
	for range 3000 {
		r := acquire("busy", 30*time.Second)
		if _, err := s.Acquire(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Release(t.Context(), fencing.ReleaseRequest{Name: r.Name, Lease: r.Lease}); err != nil {
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
	// The tombstones of five minutes, and of what the reaper lets gather.
	if n := len(s.state.Tombstones); n > 300+int(idlePause/time.Second) {
		t.Errorf("%d tombstones after 3000 leases, one a second", n)
	}
	if n := s.index.due.Len(); n != 1 {
		t.Errorf("%d entries are due for one name", n)
	}
	if n := len(s.index.tombstones); n != len(s.state.Tombstones) {
		t.Errorf("%d tombstones are queued, %d remembered", n, len(s.state.Tombstones))
	}
}

func TestACallerThatHasGoneIsGrantedNothing(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir()})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Acquire(ctx, acquire("a", time.Minute)); code(err) != fencing.CodeUnavailable {
		t.Errorf("acquire with a cancelled context: %v", err)
	}
	out, err := s.Inspect(t.Context(), fencing.InspectRequest{Name: "a"})
	if err != nil || out.Lock.Held() {
		t.Errorf("the name is %+v, %v; want it free", out.Lock, err)
	}
}

func TestTombstonesGoFromFileAndMemory(t *testing.T) {
	dir, clock := t.TempDir(), newTestClock()
	s := open(t, Options{Dir: dir, Now: clock.read})
	for i := range 10 {
		r := acquire(fencing.Name(fmt.Sprint("n", i)), time.Minute)
		if _, err := s.Acquire(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Release(t.Context(), fencing.ReleaseRequest{Name: r.Name, Lease: r.Lease}); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	clock.advance(-time.Hour) // their keys in the file move along
	s = open(t, Options{Dir: dir, Now: clock.read})
	if n := len(s.state.Tombstones); n != 10 {
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
	if n := len(s.state.Tombstones); n != 0 {
		t.Errorf("%d tombstones are left", n)
	}
	if n := len(s.state.Records); n != 0 {
		t.Errorf("%d records are left", n)
	}
	if s.state.Counter == 0 {
		t.Error("the counter was forgotten")
	}
}

func TestASecondProcessIsRefused(t *testing.T) {
	dir := t.TempDir()
	open(t, Options{Dir: dir})
	_, err := Open(Options{Dir: dir})
	if err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("opening a directory twice: %v", err)
	}
}

func TestADamagedFileIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, fileName), []byte(strings.Repeat("not a database ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Options{Dir: dir}); err == nil {
		t.Error("a damaged file was opened")
	}
}

func TestFilesAreForTheirOwnerOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "here")
	open(t, Options{Dir: dir})
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, fileName): 0o600} {
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
			_, err := s.Acquire(context.Background(), acquire(fencing.Name(fmt.Sprint("n", i)), time.Minute))
			if err != nil && code(err) != fencing.CodeUnavailable {
				t.Error(err)
			}
		})
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Error(err)
	}
	group.Wait()
	if _, err := s.Acquire(t.Context(), acquire("late", time.Minute)); code(err) != fencing.CodeUnavailable {
		t.Errorf("acquire after Close: %v", err)
	}
}

// waitFor polls a condition.
func waitFor(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !holds(); <-time.After(time.Millisecond) {
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
