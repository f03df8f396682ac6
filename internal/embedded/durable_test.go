package embedded

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
	"fencepost/internal/wal/waltest"
)

// crashing is a store of which the test keeps what was durable at each flush.
type crashing struct {
	*Store
	dir   string
	files *waltest.Trace
	clock *testClock

	mu   sync.Mutex
	last map[string][]byte // the files as of the last flush, by path
	fail error
}

func openCrashing(t *testing.T) *crashing {
	c := &crashing{dir: t.TempDir(), files: waltest.New(nil), clock: newTestClock()}
	c.Store = open(t, Options{
		Dir: c.dir, Now: c.clock.read, files: c.files, segment: smallSegment, snapshotAt: smallSnapshot,
		beforeFlush: func() error { c.mu.Lock(); defer c.mu.Unlock(); return c.fail },
		afterFlush:  c.keep,
	})
	c.keep()
	return c
}

func (c *crashing) keep() {
	files := c.files.Content()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = files
}

func (c *crashing) failWith(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fail = err
}

// onLast returns how to open what was durable at the last flush: what was written later is
// dropped, which killing a process does not do.
func (c *crashing) onLast(t *testing.T) Options {
	t.Helper()
	dir := t.TempDir()
	c.mu.Lock()
	defer c.mu.Unlock()
	files := waltest.New(waltest.Moved(c.last, c.dir, dir))
	return Options{Dir: dir, Now: c.clock.read, files: files, segment: smallSegment, snapshotAt: smallSnapshot}
}

// afterCrash opens a store on that.
func (c *crashing) afterCrash(t *testing.T) *Store {
	t.Helper()
	return open(t, c.onLast(t))
}

func TestAGrantIsDurableBeforeItsAnswer(t *testing.T) {
	c := openCrashing(t)
	var highest fencing.Token
	for i := range 20 {
		request := acquire("orders/42", time.Minute)
		out, err := c.Do(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		after := c.afterCrash(t)
		again, err := after.Do(t.Context(), request)
		if err != nil || again.Holder.Token != out.Holder.Token {
			t.Fatalf("round %d: after a crash the lease is %+v, %v; want token %d", i, again.Holder, err, out.Holder.Token)
		}
		if out.Holder.Token <= highest {
			t.Fatalf("round %d: token %d after %d", i, out.Holder.Token, highest)
		}
		highest = out.Holder.Token
		if _, err := c.Do(t.Context(), fencing.ReleaseRequest{Name: request.Name, Lease: request.Lease}); err != nil {
			t.Fatal(err)
		}
	}
}

// An ending that was answered 412 must not come to life again.
func TestALostLeaseStaysLost(t *testing.T) {
	c := openCrashing(t)
	r := acquire("a", time.Second)
	if _, err := c.Do(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	c.clock.advance(2 * time.Second)
	_, err := c.Do(t.Context(), fencing.RenewRequest{Name: r.Name, Lease: r.Lease})
	if reason(err) != fencing.ReasonExpired {
		t.Fatalf("renewing an expired lease: %v", err)
	}
	_, err = c.afterCrash(t).Do(t.Context(), fencing.RenewRequest{Name: r.Name, Lease: r.Lease})
	if reason(err) != fencing.ReasonExpired {
		t.Errorf("after a crash: %v, want it expired as answered before", err)
	}
}

func TestABreakIsDurableBeforeItsAnswer(t *testing.T) {
	c := openCrashing(t)
	r := acquire("a", time.Minute)
	out, err := c.Do(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Do(t.Context(), fencing.BreakRequest{Name: "a", Token: out.Holder.Token}); err != nil {
		t.Fatal(err)
	}
	after := c.afterCrash(t)
	if _, err = after.Do(t.Context(), fencing.RenewRequest{Name: "a", Lease: r.Lease}); reason(err) != fencing.ReasonBroken {
		t.Errorf("after a crash: %v, want it broken", err)
	}
	if _, err := after.Do(t.Context(), fencing.BreakRequest{Name: "a", Token: out.Holder.Token}); err != nil {
		t.Errorf("retried break after a crash: %v", err)
	}
}

// An operator was told when the lease will be broken, and why: a crash changes nothing of it,
// nor does a wall clock that is set back meanwhile, by which the time of an outage is not known.
func TestANoticeIsDurableBeforeItsAnswer(t *testing.T) {
	for _, set := range []time.Duration{0, -time.Hour} {
		c := openCrashing(t)
		r := acquire("a", 10*time.Second)
		out, err := c.Do(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Do(t.Context(), fencing.BreakRequest{Name: "a", Token: out.Holder.Token, Notice: time.Minute, BreakReason: "first"}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Do(t.Context(), fencing.BreakRequest{Name: "a", Token: out.Holder.Token, Notice: 15 * time.Second, BreakReason: "deploy"}); err != nil {
			t.Fatal(err)
		}
		c.clock.advance(set)
		left := c.onLast(t)
		after := open(t, left)
		out, err = after.Do(t.Context(), r)
		if h := out.Holder; err != nil || h.BreakAt.Sub(out.Now) != 15*time.Second || h.BreakReason != "deploy" || h.ExpiresAt.Sub(out.Now) != 10*time.Second {
			t.Fatalf("after a crash: %+v at %d, %v", h, out.Now, err)
		}
		c.clock.advance(9 * time.Second)
		if out, err = after.Do(t.Context(), fencing.RenewRequest{Name: "a", Lease: r.Lease}); err != nil || out.Holder.ExpiresAt.Sub(out.Now) != 6*time.Second {
			t.Fatalf("renewed after a crash: %+v at %d, %v", out.Holder, out.Now, err)
		}
		if err := after.Close(); err != nil {
			t.Fatal(err)
		}
		c.clock.advance(5 * time.Second)
		again, rest := open(t, left), time.Second
		if set < 0 {
			rest = 6 * time.Second
		}
		if out, err = again.Do(t.Context(), r); err != nil || out.Holder.ExpiresAt.Sub(out.Now) != rest {
			t.Fatalf("near the end of the notice, after a restart: %+v at %d, %v", out.Holder, out.Now, err)
		}
		c.clock.advance(rest)
		if _, err = again.Do(t.Context(), fencing.RenewRequest{Name: "a", Lease: r.Lease}); reason(err) != fencing.ReasonBroken {
			t.Errorf("at the end of the notice: %v, want it broken", err)
		}
	}
}

// Permits that were given back are somebody else's also after a crash, and after a restart (P1).
func TestPermitsGivenBackStaySo(t *testing.T) {
	c := openCrashing(t)
	several := shared("permits", 4)
	several.Permits = 4
	mustAcquire(t, c.Store, several)
	for _, permits := range []int{3, 1} {
		if _, err := c.Do(t.Context(), fencing.RenewRequest{Name: "permits", Lease: several.Lease, Permits: permits}); err != nil {
			t.Fatal(err)
		}
	}
	others := shared("permits", 4)
	others.Permits = 3
	mustAcquire(t, c.Store, others)
	several.Permits = 0 // a retry that names what it had contradicts what is
	left := c.onLast(t)
	for range 2 {
		after := open(t, left)
		if h := mustAcquire(t, after, several); h.Permits != 1 || h.Slots != "" || h.Slot != 0 {
			t.Errorf("who gave some back has %+v", h)
		}
		if h := mustAcquire(t, after, others); h.Slots != "1-3" {
			t.Errorf("who got them has %+v", h)
		}
		if _, err := after.Do(t.Context(), shared("permits", 4)); code(err) != fencing.CodeLocked {
			t.Errorf("one more: %v", err)
		}
		if err := after.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A limit that was changed is the same after a crash: what was lowered keeps out who would be let in
// otherwise, and what was raised does not.
func TestALimitIsDurableBeforeItsAnswer(t *testing.T) {
	for _, limit := range []int{1, 3} {
		c := openCrashing(t)
		one := shared("permits", 2)
		mustAcquire(t, c.Store, one)
		if _, err := c.Do(t.Context(), fencing.RenewRequest{Name: "permits", Lease: one.Lease, Limit: limit}); err != nil {
			t.Fatal(err)
		}
		after := c.afterCrash(t)
		one.Limit = 0
		if h := mustAcquire(t, after, one); h.Limit != limit || h.Slot != 0 {
			t.Errorf("its holder has %+v, and was told of the limit %d", h, limit)
		}
		for beside := 1; beside <= limit; beside++ {
			_, err := after.Do(t.Context(), shared("permits", 3))
			if full := code(err) == fencing.CodeLocked; full != (beside == limit) {
				t.Errorf("limit %d, one more beside %d: %v", limit, beside, err)
			}
		}
	}
}

// One request that gives permits back and lowers the limit is durable as a whole.
func TestALimitAndPermitsAreDurableTogether(t *testing.T) {
	c := openCrashing(t)
	several := shared("permits", 4)
	several.Permits = 4
	mustAcquire(t, c.Store, several)
	if _, err := c.Do(t.Context(), fencing.RenewRequest{Name: "permits", Lease: several.Lease, Limit: 2, Permits: 1}); err != nil {
		t.Fatal(err)
	}
	after := c.afterCrash(t)
	several.Limit, several.Permits = 0, 0
	if h := mustAcquire(t, after, several); h.Limit != 2 || h.Permits != 1 || h.Slot != 0 || h.Slots != "" {
		t.Errorf("its holder has %+v", h)
	}
	if h := mustAcquire(t, after, shared("permits", 4)); h.Slot != 1 {
		t.Errorf("who got what was given back has %+v", h)
	}
	if _, err := after.Do(t.Context(), shared("permits", 4)); code(err) != fencing.CodeLocked {
		t.Errorf("one more than the lowered limit: %v", err)
	}
}

// What a break keeps out, a crash does not let in, nor does a wall clock that is set back
// meanwhile; and the time of the outage counts, if the clock was not set back.
func TestALockDelayIsDurableBeforeItsAnswer(t *testing.T) {
	for _, set := range []time.Duration{0, -time.Hour} {
		c := openCrashing(t)
		r := acquire("a", time.Minute)
		r.LockDelay = 10 * time.Second
		out, err := c.Do(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		held := c.afterCrash(t)
		if again, err := held.Do(t.Context(), r); err != nil || again.Holder.LockDelay != r.LockDelay {
			t.Fatalf("held, after a crash: %+v, %v", again.Holder, err)
		}
		if _, err := c.Do(t.Context(), fencing.BreakRequest{Name: "a", Token: out.Holder.Token}); err != nil {
			t.Fatal(err)
		}
		c.clock.advance(set)
		left := c.onLast(t)
		after := open(t, left)
		other := acquire("a", time.Minute)
		if _, err = after.Do(t.Context(), other); code(err) != fencing.CodeLocked || err.(*fencing.Error).RetryAfter != 10*time.Second {
			t.Fatalf("after a crash: %v, want it delayed by 10 s", err)
		}
		if err := after.Close(); err != nil {
			t.Fatal(err)
		}
		c.clock.advance(9 * time.Second)
		again, rest := open(t, left), time.Second
		if set < 0 {
			rest = 10 * time.Second
		}
		if _, err = again.Do(t.Context(), other); code(err) != fencing.CodeLocked || err.(*fencing.Error).RetryAfter != rest {
			t.Fatalf("after a restart: %v, want it delayed by %s", err, rest)
		}
		c.clock.advance(rest)
		mustAcquire(t, again, other)
	}
}

// Who was evicted is refused for good, also after a crash in which all places are lost.
func TestAnEvictionIsDurableBeforeItsAnswer(t *testing.T) {
	c := openCrashing(t)
	if _, err := c.Do(t.Context(), acquire("a", time.Minute)); err != nil {
		t.Fatal(err)
	}
	r := acquire("a", time.Minute)
	r.Wait = time.Minute
	if out, err := c.Do(t.Context(), r); err != nil || !out.Waits() {
		t.Fatal(out, err)
	}
	evict := fencing.EvictRequest{Name: "a", Waiter: r.Lease.Public(), BreakReason: "deploy"}
	if _, err := c.Do(t.Context(), evict); err != nil {
		t.Fatal(err)
	}
	after := c.afterCrash(t)
	var lost *fencing.Error
	if _, err := after.Do(t.Context(), r); !errors.As(err, &lost) || lost.Reason != fencing.ReasonEvicted || lost.BreakReason != "deploy" {
		t.Errorf("after a crash: %v, want it evicted", err)
	}
	if _, err := after.Do(t.Context(), evict); err != nil {
		t.Errorf("retried eviction after a crash: %v", err)
	}
}

func TestALengthenedTTLIsDurableBeforeItsAnswer(t *testing.T) {
	c := openCrashing(t)
	r := acquire("a", time.Second)
	if _, err := c.Do(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Do(t.Context(), fencing.RenewRequest{Name: "a", Lease: r.Lease, TTL: time.Hour}); err != nil {
		t.Fatal(err)
	}
	after := c.afterCrash(t)
	c.clock.advance(59 * time.Minute)
	if _, err := after.Do(t.Context(), fencing.RenewRequest{Name: "a", Lease: r.Lease}); err != nil {
		t.Errorf("after a crash, within the TTL that was answered: %v", err)
	}
}

func TestAFailedFlushIsFinal(t *testing.T) {
	c := openCrashing(t)
	held := acquire("held", time.Minute)
	if _, err := c.Do(t.Context(), held); err != nil {
		t.Fatal(err)
	}
	c.failWith(errors.New("no space left"))
	if _, err := c.Do(t.Context(), acquire("a", time.Minute)); code(err) != fencing.CodeUnavailable {
		t.Errorf("acquire with a failing flush: %v", err)
	}
	select {
	case <-c.Failed():
	case <-time.After(60 * time.Second):
		t.Fatal("Failed is not closed")
	}
	c.failWith(nil) // it does not recover by itself
	for what, err := range map[string]error{
		"acquire": second(c.Do(t.Context(), acquire("b", time.Minute))),
		"renew":   second(c.Do(t.Context(), fencing.RenewRequest{Name: "held", Lease: held.Lease})),
		"inspect": second(c.Do(t.Context(), fencing.InspectRequest{Name: "held"})),
		"list":    second(c.List(t.Context(), fencing.ListRequest{Limit: 1})),
		"check":   c.Check(t.Context()),
	} {
		if code(err) != fencing.CodeUnavailable {
			t.Errorf("%s after a failed flush: %v, want unavailable", what, err)
		}
	}
	if _, err := c.afterCrash(t).Do(t.Context(), fencing.RenewRequest{Name: "held", Lease: held.Lease}); err != nil {
		t.Errorf("after a restart the lease that was answered is gone: %v", err)
	}
}

func TestManyGrantsShareAFlush(t *testing.T) {
	c := openCrashing(t)
	flushing, proceed := make(chan struct{}), make(chan struct{})
	var flushes atomic.Int32
	c.hooks.beforeFlush = func() error {
		if flushes.Add(1) == 1 {
			close(flushing)
			<-proceed
		}
		return nil
	}
	var group sync.WaitGroup
	start := func(i int) {
		group.Go(func() {
			if _, err := c.Do(context.Background(), acquire(fencing.Name(fmt.Sprint("n", i)), time.Minute)); err != nil {
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
		if _, err := c.Do(t.Context(), free); err != nil {
			t.Fatal(err)
		}
		c.hooks.beforeFlush = hold
		var group sync.WaitGroup
		background := func(call func() error) chan error {
			answer := make(chan error, 1)
			group.Go(func() { answer <- call() })
			return answer
		}
		if gathering { // behind another flush
			background(func() error { return second(c.Do(context.Background(), acquire("other", time.Minute))) })
			<-flushing
		}
		r := acquire("a", time.Minute)
		granted := background(func() error { return second(c.Do(context.Background(), r)) })
		waitFor(t, "the grant to be decided", func() bool { return c.decided("a") != nil })
		if !gathering {
			<-flushing
		}
		c.clock.advance(time.Second)
		renewed := background(func() error {
			return second(c.Do(context.Background(), fencing.RenewRequest{Name: "a", Lease: r.Lease}))
		})
		waitFor(t, "the renewal to be decided", func() bool {
			return c.decided("a").Holders[0].ExpiresAt == c.clock.read().Add(r.TTL)
		})
		// A renewal that comes later and builds on nothing pending is not held up.
		if _, err := c.Do(t.Context(), fencing.RenewRequest{Name: free.Name, Lease: free.Lease}); err != nil {
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

// decided returns a name that is held, also by a grant that is not durable yet; nil: nobody holds it.
func (s *Store) decided(name string) *fencing.Lock {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if locks, _ := s.machine.Views(machine.View{Prefix: name, Limit: 1, Now: s.now()}, ""); len(locks) > 0 {
		return locks[0]
	}
	return nil
}

// A list shows a grant when that is on disk, and who asks for one while the disk hangs is told that nothing is known.
func TestAListShowsWhatIsDurable(t *testing.T) {
	for _, gathering := range []bool{false, true} { // or being flushed
		c := openCrashing(t)
		flushing, proceed := make(chan struct{}, 10), make(chan struct{})
		c.hooks.beforeFlush = func() error { flushing <- struct{}{}; <-proceed; return nil }
		var group sync.WaitGroup
		take := func(name fencing.Name) {
			group.Go(func() {
				if _, err := c.Do(context.Background(), acquire(name, time.Minute)); err != nil {
					t.Error(err)
				}
			})
		}
		if gathering { // behind another flush
			take("other")
			<-flushing
		}
		take("a")
		waitFor(t, "the grant to be decided", func() bool { return c.decided("a") != nil })
		search := fencing.ListRequest{Prefix: "a", Limit: 1, Count: true}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond) // long enough to see a wrong answer
		if page, err := c.List(ctx, search); code(err) != fencing.CodeUnavailable {
			t.Errorf("gathering=%v: %d locks of %d are shown, which are not on disk: %v", gathering, len(page.Locks), page.Total, err)
		}
		cancel()
		group.Go(func() {
			page, err := c.List(context.Background(), search)
			if err != nil || len(page.Locks) != 1 || page.Total != 1 {
				t.Errorf("gathering=%v: %d locks of %d are shown: %v", gathering, len(page.Locks), page.Total, err)
			} else if c.afterCrash(t).decided("a") == nil {
				t.Errorf("gathering=%v: what is shown is gone after a crash", gathering)
			}
		})
		close(proceed)
		group.Wait()
		if _, err := c.List(t.Context(), search); err != nil {
			t.Error(err)
		}
	}
}
