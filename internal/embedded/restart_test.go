package embedded

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"reflect"
	"sync"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

func shared(name fencing.Name, limit int) fencing.AcquireRequest {
	r := acquire(name, time.Minute)
	r.Mode, r.Limit = fencing.ModeShared, limit
	return r
}

func TestARestartKeepsEveryHolder(t *testing.T) {
	dir, clock := t.TempDir(), newTestClock()
	s := open(t, Options{Dir: dir, Now: clock.read})
	var requests []fencing.AcquireRequest
	for i := range 5 {
		r := shared("permits", 5)
		r.Owner, r.Metadata = fmt.Sprint("worker-", i), map[string]string{"n": fmt.Sprint(i)}
		mustAcquire(t, s, r)
		requests = append(requests, r)
	}
	mustRelease(t, s, requests[1])
	for i, labels := range []fencing.RenewRequest{{Owner: "renamed"}, {Metadata: map[string]string{"n": "two"}}} {
		labels.Name, labels.Lease = "permits", requests[i*2].Lease
		if _, err := s.Do(t.Context(), labels); err != nil {
			t.Fatal(err)
		}
	}
	deeper := requests[3]
	deeper.Hold = 2
	mustAcquire(t, s, deeper)
	deeper.Hold = 3
	mustAcquire(t, s, deeper)
	if _, err := s.Do(t.Context(), fencing.ReleaseRequest{Name: "permits", Lease: deeper.Lease, Hold: 3}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		mustAcquire(t, s, shared("readers/of:all", 0))
	}
	mustAcquire(t, s, shared("readers", 0)) // a name that begins another
	view := func() (all []fencing.Holder) {
		for _, name := range []fencing.Name{"permits", "readers", "readers/of:all"} {
			out, err := s.Do(t.Context(), fencing.InspectRequest{Name: name})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, out.Lock.Holders...)
		}
		return all
	}
	before := view()
	s.Close()
	s = open(t, Options{Dir: dir, Now: clock.read})
	if after := view(); !reflect.DeepEqual(before, after) || len(after) != 8 {
		t.Errorf("before\n%+v\nafter\n%+v", before, after)
	}
	if again := mustAcquire(t, s, requests[4]); again.Slot != 4 {
		t.Errorf("a retry found %+v", again)
	}
	if newcomer := mustAcquire(t, s, shared("permits", 5)); newcomer.Slot != 1 {
		t.Errorf("the free slot is 1: %+v", newcomer)
	}
	if _, err := s.Do(t.Context(), shared("permits", 5)); code(err) != fencing.CodeLocked {
		t.Errorf("a sixth of five: %v", err)
	}
}

func TestARestartDropsPlacesAndProvisionalLeases(t *testing.T) {
	dir, clock := t.TempDir(), newTestClock()
	s := open(t, Options{Dir: dir, Now: clock.read})
	holder, waiter := acquire("a", time.Minute), waiting("a")
	waiter.Keep = true
	mustAcquire(t, s, holder)
	join(t, s, waiter)
	set := waiting("b")
	set.Set = "a b"
	provisional := mustAcquire(t, s, set)
	s.Close()

	clock.advance(-time.Hour)
	s = open(t, Options{Dir: dir, Now: clock.read})
	out, err := s.Do(t.Context(), fencing.InspectRequest{Name: "a"})
	if err != nil || out.Lock.Waiting != 0 || len(out.Lock.Holders) != 1 {
		t.Errorf("%+v, %v; want the holder alone", out.Lock, err)
	}
	join(t, s, waiter) // its client may come back
	if _, err := s.Do(t.Context(), fencing.ConfirmRequest{Name: "b", Lease: set.Lease, Stamp: set.Stamp}); reason(err) != fencing.ReasonUnknown {
		t.Errorf("confirming what was not firm: %v", err)
	}
	if again := mustAcquire(t, s, set); again.Token <= provisional.Token {
		t.Errorf("token %d after %d", again.Token, provisional.Token)
	}
}

// A record that had nothing but a provisional lease is forgotten in the end.
func TestARecordWithoutLeasesIsForgottenAfterARestart(t *testing.T) {
	dir, clock := t.TempDir(), newTestClock()
	s := open(t, Options{Dir: dir, Now: clock.read})
	set := waiting("b")
	set.Set = "a b"
	provisional := mustAcquire(t, s, set)
	s.Close()
	s = open(t, Options{Dir: dir, Now: clock.read})
	out, err := s.Do(t.Context(), fencing.InspectRequest{Name: "b"})
	if err != nil || out.Lock.LastToken != provisional.Token {
		t.Errorf("the last token is %d, %v; want %d", out.Lock.LastToken, err, provisional.Token)
	}
	clock.advance(fencing.ForgetAfter)
	if _, err := s.Expire(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	if n := len(s.machine.State().Records); n != 0 {
		t.Errorf("%d records are left", n)
	}
}

func past(t *testing.T, s *Store, name fencing.Name) []fencing.Ended {
	t.Helper()
	out, err := s.Do(t.Context(), fencing.HistoryRequest{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return out.Past
}

// remembered returns how many leases the histories have in all.
func remembered(s *Store) (total int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, r := range s.machine.State().Records {
		total += len(r.History)
	}
	return total
}

func TestHistorySurvivesARestart(t *testing.T) {
	dir, clock := t.TempDir(), newTestClock()
	s := open(t, Options{Dir: dir, Now: clock.read})
	turn := func(name fencing.Name) {
		r := shared(name, 3)
		mustAcquire(t, s, r)
		clock.advance(time.Second)
		mustRelease(t, s, r)
	}
	for range 3 {
		turn("a")
	}
	for range fencing.MaxHistory + 5 {
		turn("b")
	}
	out, err := s.Do(t.Context(), acquire("a", time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Do(t.Context(), fencing.BreakRequest{Name: "a", Token: out.Holder.Token}); err != nil {
		t.Fatal(err)
	}
	mustAcquire(t, s, acquire("a", time.Second))
	clock.advance(time.Minute)
	for range 2 {
		before := map[fencing.Name][]fencing.Ended{"a": past(t, s, "a"), "b": past(t, s, "b")}
		if len(before["a"]) != 5 || len(before["b"]) != fencing.MaxHistory || before["a"][0].Reason != fencing.ReasonExpired {
			t.Fatalf("before a restart: %+v", before)
		}
		if _, err := s.Expire(t.Context(), 10); err != nil {
			t.Fatal(err)
		}
		s.Close()
		s = open(t, Options{Dir: dir, Now: clock.read})
		for name, want := range before {
			if got := past(t, s, name); !reflect.DeepEqual(got, want) {
				t.Errorf("of %s after a restart\n%+v, want\n%+v", name, got, want)
			}
		}
		turn("b") // goes on where it was
	}
	for _, back := range []time.Duration{-time.Hour, 0} { // the history is not of what is to come
		s.Close()
		clock.advance(back)
		s = open(t, Options{Dir: dir, Now: clock.read})
		out, err := s.Do(t.Context(), fencing.HistoryRequest{Name: "b"})
		if err != nil || out.Past[0].At > out.Now {
			t.Errorf("ended at %d, and it is %d, %v", out.Past[0].At, out.Now, err)
		}
	}
}

func TestHistoryGoesWithItsRecord(t *testing.T) {
	dir, clock := t.TempDir(), newTestClock()
	s := open(t, Options{Dir: dir, Now: clock.read})
	for _, name := range []fencing.Name{"left", "again"} {
		r := acquire(name, time.Second)
		mustAcquire(t, s, r)
		mustRelease(t, s, r)
	}
	clock.advance(2 * fencing.ForgetAfter)
	r := acquire("again", time.Second) // begins a new record in the step that forgets the old one
	mustAcquire(t, s, r)
	if _, err := s.Expire(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	mustRelease(t, s, r)
	for range 2 {
		if n, total := len(past(t, s, "again")), remembered(s); n != 1 || total != 1 {
			t.Errorf("%d leases are remembered, of %d in all; want 1", n, total)
		}
		s.Close()
		s = open(t, Options{Dir: dir, Now: clock.read})
	}
}

const killedDir = "FENCEPOST_TEST_KILLED_DIR"

// grantTold is a grant that a process told of before it was killed.
type grantTold struct {
	name, lease string
	token       int64
}

// P1, P2, P4: a process that is killed while it hands locks on, again and again on the
// same files, leaves all that it told of: no token comes twice or goes back, no lease is
// forgotten, each ends. FENCEPOST_LONG makes it 300 times.
func TestAKilledProcess(t *testing.T) {
	if dir := os.Getenv(killedDir); dir != "" {
		beKilled(t, dir)
		return
	}
	dir, clock := t.TempDir(), newTestClock()
	kills, violations := times(5, 300), 0
	last := map[string]grantTold{}
	for range kills {
		violations += killed(t, dir, last)
		clock.set(fencing.InstantOf(time.Now()))
		s := open(t, Options{Dir: dir, Now: clock.read, segment: smallSegment, snapshotAt: smallSnapshot})
		violations += afterKill(t, s, last)
		clock.advance(2 * time.Minute) // all TTLs are one
		if _, err := s.Expire(t.Context(), 100); err != nil {
			t.Fatal(err)
		}
		if stats, err := s.Stats(t.Context()); err != nil || stats.Held != 0 {
			t.Errorf("after all TTLs %d names are held, %v", stats.Held, err)
			violations++
		}
		s.Close()
	}
	fmt.Printf("verified: kill -9 %d, violations %d\n", kills, violations)
}

// killed has a process serve, kills it after some turns, and notes in last what it told
// of. It returns how many tokens were not above those before.
func killed(t *testing.T, dir string, last map[string]grantTold) (violations int) {
	t.Helper()
	command := exec.Command(os.Args[0], "-test.run=^TestAKilledProcess$")
	command.Env = append(os.Environ(), killedDir+"="+dir)
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	turns, enough := 0, 20+rand.IntN(200)
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		var g grantTold
		if n, _ := fmt.Sscanf(lines.Text(), "granted %s %s %d", &g.name, &g.lease, &g.token); n != 3 {
			continue
		}
		if g.token <= last[g.name].token {
			t.Errorf("P2: %+v after %+v", g, last[g.name])
			violations++
		}
		last[g.name] = g
		if turns++; turns == enough {
			if err := command.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := command.Wait(); err == nil || turns < enough {
		t.Fatalf("it ended by itself (%v), after %d turns", err, turns)
	}
	return violations
}

// afterKill returns how much of what was told is not there.
func afterKill(t *testing.T, s *Store, last map[string]grantTold) (violations int) {
	t.Helper()
	for name, g := range last {
		out, err := s.Do(t.Context(), fencing.InspectRequest{Name: fencing.Name(name)})
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, h := range out.Lock.Holders {
			found = found || string(h.Lease) == g.lease && int64(h.Token) == g.token
		}
		// It may have ended meanwhile, untold, but not be unknown.
		for _, e := range past(t, s, fencing.Name(name)) {
			found = found || string(e.Holder.Lease) == g.lease && int64(e.Holder.Token) == g.token
		}
		if !found || int64(out.Lock.LastToken) < g.token || len(out.Lock.Holders) > 1 {
			t.Errorf("%+v was told, and after the crash there is %+v", g, out.Lock)
			violations++
		}
	}
	return violations
}

// beKilled hands locks from waiter to waiter, and says so, until it is killed.
func beKilled(t *testing.T, dir string) {
	s := open(t, Options{Dir: dir, segment: smallSegment, snapshotAt: smallSnapshot})
	listener := newParked()
	s.Listen(listener)
	var group sync.WaitGroup
	for i := range 12 {
		name := fencing.Name(fmt.Sprint("n", i%3))
		group.Go(func() {
			for range 10_000 {
				r := waiting(name)
				granted := listener.await(r.Stamp)
				out, err := s.Do(context.Background(), r)
				if err != nil {
					t.Error(err)
					return
				}
				h := out.Holder
				if out.Waits() {
					h = (<-granted).Holder
				}
				fmt.Printf("granted %s %s %d\n", name, h.Lease, h.Token)
				mustRelease(t, s, r)
			}
		})
	}
	group.Wait()
}
