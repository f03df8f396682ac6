package embedded

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// listener is a fencing.Listener that keeps what it hears and hands it to a test.
type listener struct {
	mu      sync.Mutex
	grants  []fencing.Grant
	granted func(fencing.Grant) // may be nil
}

func (e *listener) Granted(g fencing.Grant, _ fencing.Instant, asked time.Time) {
	if asked.IsZero() {
		panic("a grant without the time it was asked for")
	}
	e.mu.Lock()
	e.grants = append(e.grants, g)
	e.mu.Unlock()
	if e.granted != nil {
		e.granted(g)
	}
}

func (e *listener) Replaced(fencing.Name, fencing.Stamp)           {}
func (e *listener) Ask(fencing.Name, fencing.Stamp)                {}
func (e *listener) Has([]fencing.Name, time.Time, []fencing.Entry) {}
func (e *listener) Gap()                                           {}

func (e *listener) heard() []fencing.Grant {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.grants)
}

func waiting(name fencing.Name) fencing.AcquireRequest {
	r := acquire(name, time.Minute)
	r.Wait = time.Minute
	return r
}

// join has a request wait.
func join(t testing.TB, s *Store, r fencing.AcquireRequest) {
	t.Helper()
	out, err := s.Do(context.Background(), r)
	if err != nil || !out.Waits() {
		t.Fatalf("a request that is to wait: %+v, %v", out, err)
	}
}

func mustAcquire(t testing.TB, s *Store, r fencing.AcquireRequest) fencing.Holder {
	t.Helper()
	out, err := s.Do(context.Background(), r)
	if err != nil || out.Holder.Token == 0 {
		t.Fatalf("acquire of %s: %+v, %v", r.Name, out, err)
	}
	return out.Holder
}

func mustRelease(t testing.TB, s *Store, r fencing.AcquireRequest) {
	t.Helper()
	if _, err := s.Do(context.Background(), fencing.ReleaseRequest{Name: r.Name, Lease: r.Lease}); err != nil {
		t.Error(err)
	}
}

func TestAHandOffIsDurableBeforeItIsTold(t *testing.T) {
	c := openCrashing(t)
	requests := map[fencing.LeasePublic]fencing.AcquireRequest{}
	done := make(chan struct{})
	c.Listen(&listener{granted: func(g fencing.Grant) {
		r := requests[g.Holder.Lease]
		after := c.afterCrash(t)
		out, err := after.Do(context.Background(), fencing.RenewRequest{Name: r.Name, Lease: r.Lease})
		if err != nil || out.Holder.Token != g.Holder.Token {
			t.Errorf("after a crash the lease that was handed on is %+v, %v; want token %d", out.Holder, err, g.Holder.Token)
		}
		if len(requests) == 1 {
			close(done)
			return
		}
		delete(requests, g.Holder.Lease)
		go mustRelease(t, c.Store, r)
	}})
	first := acquire("a", time.Minute)
	mustAcquire(t, c.Store, first)
	for range 20 {
		r := waiting("a")
		requests[r.Lease.Public()] = r
		join(t, c.Store, r)
	}
	mustRelease(t, c.Store, first)
	<-done
}

// blocking is a store whose flushes wait for the test.
type blocking struct {
	*Store
	begun   chan struct{} // a flush begins
	proceed chan error    // what comes of it
	pass    func()        // lets all flushes take place from here on
}

func openBlocking(t *testing.T) *blocking {
	b := &blocking{begun: make(chan struct{}, 100), proceed: make(chan error)}
	ended := make(chan struct{})
	b.Store = open(t, Options{Dir: t.TempDir(), segment: smallSegment, snapshotAt: smallSnapshot, beforeFlush: func() error {
		b.begun <- struct{}{}
		select {
		case err := <-b.proceed:
			return err
		case <-ended:
			return nil
		}
	}})
	b.pass = sync.OnceFunc(func() { close(ended) })
	t.Cleanup(b.pass)
	return b
}

// flush lets a flush take place.
func (b *blocking) flush(err error) {
	<-b.begun
	b.proceed <- err
}

// A release is answered at once. Its flush is that of the grant, and only then the
// waiter is told.
func TestAReleaseDoesNotWaitAndItsWaiterDoes(t *testing.T) {
	for _, failure := range []error{nil, errors.New("no space left")} {
		b := openBlocking(t)
		hears, events := &listener{}, &sink{}
		b.Listen(hears)
		b.Watch(events)
		first, next := acquire("a", time.Minute), waiting("a")
		go b.flush(nil)
		mustAcquire(t, b.Store, first)
		join(t, b.Store, next)
		mustRelease(t, b.Store, first)
		<-b.begun
		if heard := hears.heard(); len(heard) > 0 {
			t.Fatalf("told before the flush: %+v", heard)
		}
		b.proceed <- failure
		if failure == nil {
			waitFor(t, "the waiter to be told", func() bool { return len(hears.heard()) == 1 })
			continue
		}
		<-b.Failed()
		if _, err := b.Do(t.Context(), fencing.ConfirmRequest{Name: "a", Lease: next.Lease, Stamp: next.Stamp}); code(err) != fencing.CodeUnavailable {
			t.Errorf("confirm after a failed flush: %v", err)
		}
		if heard := hears.heard(); len(heard) > 0 {
			t.Errorf("told after a failed flush: %+v", heard)
		}
		for _, e := range events.heard() {
			if e.Kind == fencing.EventReleased || e.Lease == next.Lease.Public() && e.Kind == fencing.EventGranted {
				t.Errorf("event of a failed flush: %+v", e)
			}
		}
	}
}

// What nobody waits for goes to the disk all the same.
func TestALoneReleaseIsFlushed(t *testing.T) {
	c := openCrashing(t)
	r := acquire("a", time.Minute)
	mustAcquire(t, c.Store, r)
	mustRelease(t, c.Store, r)
	waitFor(t, "the release to be durable", func() bool {
		after := c.afterCrash(t)
		defer after.Close()
		_, err := after.Do(t.Context(), fencing.RenewRequest{Name: "a", Lease: r.Lease})
		return reason(err) == fencing.ReasonReleased
	})
}

// Places, and what is not yet a firm lease, are answered without a flush, though one has them later.
func TestPlacesAreNotFlushed(t *testing.T) {
	b := openBlocking(t)
	b.Listen(&listener{})
	first := acquire("a", time.Minute)
	go b.flush(nil)
	mustAcquire(t, b.Store, first)
	other := make(chan error, 1)
	go func() { other <- second(b.Do(context.Background(), acquire("other", time.Minute))) }()
	<-b.begun // and while a flush hangs
	r, kept := waiting("a"), waiting("a")
	kept.Keep = true
	for _, r := range []fencing.AcquireRequest{r, kept} {
		join(t, b.Store, r)
		join(t, b.Store, r) // again
	}
	out, err := b.Do(t.Context(), fencing.LeaveRequest{Name: "a", Lease: r.Lease, Stamp: r.Stamp})
	if err != nil || out.Place == nil {
		t.Errorf("leave: %+v, %v", out, err)
	}
	if _, err := b.Do(t.Context(), fencing.TakeBackRequest{Name: "a", Lease: kept.Lease, Stamp: kept.Stamp}); err != nil {
		t.Error(err)
	}
	if _, err := b.Do(t.Context(), acquire("a", time.Minute)); code(err) != fencing.CodeLocked {
		t.Errorf("acquire of a held lock: %v", err)
	}
	if err := b.Heartbeat(t.Context(), []fencing.Name{"a", "b"}); err != nil {
		t.Error(err)
	}
	brief, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := b.Check(brief); code(err) != fencing.CodeUnavailable {
		t.Errorf("check while a flush hangs: %v", err)
	}
	b.proceed <- nil
	if err := <-other; err != nil {
		t.Error(err)
	}
	go b.flush(nil) // nobody waits for that
	if err := b.Check(t.Context()); err != nil {
		t.Error(err)
	}
	set := waiting("b")
	set.Set = "b c"
	if h := mustAcquire(t, b.Store, set); !h.Provisional {
		t.Errorf("of an incomplete set: %+v", h)
	}
	b.pass()
	out, err = b.Do(t.Context(), fencing.ConfirmRequest{Name: "b", Lease: set.Lease, Stamp: set.Stamp})
	if err != nil || out.Holder.Provisional {
		t.Errorf("confirm: %+v, %v", out, err)
	}
}

// What a client is told of its lease beyond the grant has to outlive a crash.
func TestWhatIsPromisedIsDurableBeforeItsAnswer(t *testing.T) {
	c := openCrashing(t)
	r := acquire("a", time.Minute)
	mustAcquire(t, c.Store, r)
	held := func(what string, want func(fencing.Holder) bool) {
		t.Helper()
		out, err := c.afterCrash(t).Do(t.Context(), fencing.InspectRequest{Name: "a"})
		if err != nil || len(out.Lock.Holders) != 1 || !want(out.Lock.Holders[0]) {
			t.Errorf("after a crash behind a %s: %+v, %v", what, out.Lock, err)
		}
	}
	deeper := r
	deeper.Hold, deeper.TTL = 2, time.Hour
	mustAcquire(t, c.Store, deeper)
	held("deepened hold", func(h fencing.Holder) bool { return h.Hold == 2 && h.TTL == time.Hour })
	_, err := c.Do(t.Context(), fencing.RenewRequest{Name: "a", Lease: r.Lease, Mode: fencing.ModeShared, Limit: 5, TTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	held("downgrade", func(h fencing.Holder) bool { return h.Mode == fencing.ModeShared && h.Limit == 5 && h.Slot == 0 })

	set := waiting("b")
	set.Set = "b c"
	mustAcquire(t, c.Store, set)
	out, err := c.Do(t.Context(), fencing.ConfirmRequest{Name: "b", Lease: set.Lease, Stamp: set.Stamp})
	if err != nil {
		t.Fatal(err)
	}
	again, err := c.afterCrash(t).Do(t.Context(), set)
	if err != nil || again.Holder.Token != out.Holder.Token || again.Holder.Provisional {
		t.Errorf("after a crash behind a confirmation: %+v, %v; want token %d", again.Holder, err, out.Holder.Token)
	}
}

// An unwound hold is answered at once. If a crash loses that, the next request
// still names the depth it means.
func TestAnUnwoundHoldMayBeLost(t *testing.T) {
	b := openBlocking(t)
	r := acquire("a", time.Minute)
	go func() { b.flush(nil); b.flush(nil) }()
	mustAcquire(t, b.Store, r)
	r.Hold = 2
	mustAcquire(t, b.Store, r)
	waitFor(t, "the end of the flush to be noticed", func() bool { // before that, what follows waits for the next
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.flushing == nil
	})
	out, err := b.Do(t.Context(), fencing.ReleaseRequest{Name: "a", Lease: r.Lease, Hold: 2})
	if err != nil || out.Holder.Hold != 1 {
		t.Errorf("unwinding: %+v, %v", out.Holder, err)
	}
}

func TestTenThousandWaiters(t *testing.T) {
	const waiters = 10_000
	s := open(t, Options{Dir: t.TempDir()})
	all := make([]fencing.AcquireRequest, waiters)
	heard := make(chan fencing.Grant, waiters)
	s.Listen(&listener{granted: func(g fencing.Grant) { heard <- g }})
	first := acquire("a", time.Minute)
	mustAcquire(t, s, first)
	for i := range all {
		all[i] = waiting("a")
		join(t, s, all[i])
	}
	for i := range all {
		if i%10 == 0 || i%2 == 0 && i > 500 {
			continue
		}
		if _, err := s.Do(t.Context(), fencing.LeaveRequest{Name: "a", Lease: all[i].Lease, Stamp: all[i].Stamp}); err != nil {
			t.Fatal(err)
		}
	}
	holder, turns := first, 0
	for i := range all {
		if i%10 != 0 && (i%2 != 0 || i <= 500) {
			continue
		}
		mustRelease(t, s, holder)
		if g := <-heard; g.Stamp != all[i].Stamp || g.Holder.Provisional {
			t.Fatalf("turn %d was handed to %+v, want %s", turns, g, all[i].Lease.Public())
		}
		holder = all[i]
		turns++
		if turns == 500 {
			break
		}
	}
	out, err := s.Do(t.Context(), fencing.InspectRequest{Name: "a"})
	if err != nil || out.Lock.Waiting < waiters/3 || len(out.Lock.Waiters) != fencing.MaxWaitersShown {
		t.Errorf("waiting: %d, shown: %d, %v", out.Lock.Waiting, len(out.Lock.Waiters), err)
	}
}

// A waiter lives as long as the store: it brings nobody back before its lock is due.
func TestAWaiterIsNeverDue(t *testing.T) {
	clock := newTestClock()
	s := open(t, Options{Dir: t.TempDir(), Now: clock.read})
	mustAcquire(t, s, acquire("a", time.Minute))
	join(t, s, waiting("a"))
	expiry, err := s.Expire(t.Context(), 10)
	if err != nil || expiry.Next != time.Minute {
		t.Errorf("the next call is in %s, %v", expiry.Next, err)
	}
	clock.advance(time.Minute)
	expiry, err = s.Expire(t.Context(), 10)
	if err != nil || len(expiry.Ended) != 1 || expiry.Next != time.Minute {
		t.Errorf("when the lease runs out: %+v, %v", expiry, err)
	}
}

func TestCloseWithWaiters(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Dir: dir})
	listener := &listener{}
	s.Listen(listener)
	first := acquire("a", time.Minute)
	mustAcquire(t, s, first)
	for range 100 {
		join(t, s, waiting("a"))
	}
	mustRelease(t, s, first) // the next is told, whenever the end comes
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if heard := listener.heard(); len(heard) != 1 {
		t.Errorf("heard of %d grants", len(heard))
	}
	if _, err := s.Do(t.Context(), waiting("a")); code(err) != fencing.CodeUnavailable {
		t.Errorf("joining after Close: %v", err)
	}
	s = open(t, Options{Dir: dir})
	out, err := s.Do(t.Context(), fencing.InspectRequest{Name: "a"})
	if err != nil || out.Lock.Waiting != 0 || len(out.Lock.Holders) != 1 || out.Lock.Holders[0].Lease != listener.heard()[0].Holder.Lease {
		t.Errorf("after a restart: %+v, %v", out.Lock, err)
	}
}

// A release hands on in steps that others come between, to all who wait and in order,
// without anybody asking again.
func TestHandOffGoesOn(t *testing.T) {
	const readers = 50*fencing.StepLimit + 7
	s := open(t, Options{Dir: t.TempDir()})
	all := make(chan struct{})
	heard := &listener{}
	var granted atomic.Int32
	heard.granted = func(fencing.Grant) {
		if granted.Add(1) == readers {
			close(all)
		}
	}
	s.Listen(heard)
	first := acquire("a", time.Hour)
	mustAcquire(t, s, first)
	leases := make([]fencing.LeasePublic, readers)
	for i := range leases {
		r := waiting("a")
		r.Mode = fencing.ModeShared
		join(t, s, r)
		leases[i] = r.Lease.Public()
	}
	var looking sync.WaitGroup
	defer looking.Wait()
	looks, stop := context.WithCancel(t.Context()) // as a page does
	defer stop()
	for range 4 {
		looking.Go(func() {
			for looks.Err() == nil {
				s.Do(looks, fencing.InspectRequest{Name: "a"})
				s.Do(looks, fencing.HistoryRequest{Name: "a"})
			}
		})
	}
	out, err := s.Do(t.Context(), fencing.ReleaseRequest{Name: "a", Lease: first.Lease})
	if err != nil || len(out.Granted) != fencing.StepLimit || !out.More {
		t.Fatalf("the first step grants to %d, more: %v, %v", len(out.Granted), out.More, err)
	}
	select {
	case <-all:
	case <-time.After(time.Minute):
		t.Fatalf("%d of %d were granted", granted.Load(), readers)
	}
	for i, g := range heard.heard() {
		if g.Holder.Lease != leases[i] {
			t.Fatalf("grant %d is not that of waiter %d", i, i)
		}
	}
}
