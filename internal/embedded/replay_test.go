package embedded

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
	"fencepost/internal/seed"
	"fencepost/internal/wal/waltest"
)

// asked is what random operations know of those before them.
type asked struct {
	random *rand.Rand
	leases map[fencing.Name][]fencing.AcquireRequest
	tokens map[fencing.Name][]fencing.Token
}

// pick returns one of several, rather a late one.
func pick[T any](random *rand.Rand, from []T) (one T) {
	if len(from) > 0 {
		one = from[max(random.IntN(len(from)), random.IntN(len(from)))]
	}
	return one
}

// acquire makes up a request of a new lease, or repeats one.
func (a *asked) acquire(name fencing.Name) fencing.AcquireRequest {
	random := a.random
	if known := a.leases[name]; len(known) > 0 && random.IntN(4) == 0 {
		r := pick(random, known)
		r.Hold += random.IntN(2)
		r.Again = random.IntN(2) == 0
		return r
	}
	r := acquire(name, time.Duration(1+random.IntN(60))*time.Second)
	r.Metadata = map[string]string{"n": fmt.Sprint(random.IntN(9)), "m": "x"}
	if random.IntN(2) == 0 {
		r.Mode, r.Limit = fencing.ModeShared, random.IntN(5)
		r.Permits = random.IntN(1 + r.Limit)
	}
	if random.IntN(2) == 0 {
		r.Wait, r.Keep, r.MaxWaiters = time.Minute, random.IntN(2) == 0, random.IntN(5)
		r.Intent = time.Duration(random.IntN(3)) * time.Second
	}
	if random.IntN(4) == 0 {
		r.Attach, r.Epoch = true, int64(random.IntN(3))
	}
	if random.IntN(5) == 0 {
		r.Set = "a set"
	}
	if random.IntN(3) == 0 {
		r.MaxHold = time.Duration(1+random.IntN(300)) * time.Second
	}
	if random.IntN(3) == 0 {
		r.LockDelay = time.Duration(1+random.IntN(30)) * time.Second
	}
	a.leases[name] = append(a.leases[name], r)
	return r
}

// next makes up an operation of any verb.
func (a *asked) next(name fencing.Name) fencing.Op {
	random := a.random
	r, token := pick(random, a.leases[name]), pick(random, a.tokens[name])
	if r.Lease.IsZero() {
		return a.acquire(name)
	}
	switch random.IntN(18) {
	case 0, 1:
		op := fencing.RenewRequest{Name: name, Lease: r.Lease, TTL: time.Duration(random.IntN(90)) * time.Second, Permits: random.IntN(3)}
		if random.IntN(3) == 0 {
			op.Mode, op.Limit = fencing.ModeShared, random.IntN(6)
		}
		if random.IntN(3) == 0 {
			op.Owner, op.Metadata = "renamed", map[string]string{}
		}
		return op
	case 2, 3, 4:
		return fencing.ReleaseRequest{Name: name, Lease: r.Lease, Hold: random.IntN(3), Linger: time.Duration(random.IntN(2)) * time.Second}
	case 5:
		return fencing.ConfirmRequest{Name: name, Lease: r.Lease, Stamp: r.Stamp}
	case 6:
		return fencing.LeaveRequest{Name: name, Lease: r.Lease, Stamp: r.Stamp}
	case 7:
		return fencing.TakeBackRequest{Name: name, Lease: r.Lease, Stamp: r.Stamp, Left: random.IntN(2) == 0, Refused: random.IntN(4) == 0, Unknown: random.IntN(4) == 0}
	case 8:
		return fencing.BreakRequest{Name: name, Token: token, BreakReason: "stuck", Notice: time.Duration(random.IntN(2)*random.IntN(40)) * time.Second}
	case 9:
		return fencing.EvictRequest{Name: name, Waiter: r.Lease.Public(), BreakReason: "stuck"}
	case 10:
		return fencing.AdmitRequest{Name: name, Token: token + fencing.Token(random.IntN(2)), Slot: random.IntN(4) - 1}
	case 11:
		return []fencing.Op{fencing.JudgeRequest{Name: name, Token: token}, fencing.InspectRequest{Name: name}, fencing.HistoryRequest{Name: name}}[random.IntN(3)]
	}
	return a.acquire(name)
}

// ask has a store carry out so many random operations, while time goes on and the reaper comes.
func (a *asked) ask(s *Store, clock *testClock, operations int) error {
	ctx := context.Background()
	names := []fencing.Name{"a", "b", "c", "d/e", "d"}
	for range operations {
		var err error
		switch choice := a.random.IntN(12); choice {
		case 0:
			clock.advance(time.Duration(a.random.IntN(40_000)) * time.Millisecond)
		case 1:
			_, err = s.Expire(ctx, a.random.IntN(10))
		case 2:
			err = s.Heartbeat(ctx, names)
		case 3:
			if a.random.IntN(8) == 0 { // all may be forgotten
				clock.advance(pick(a.random, []time.Duration{fencing.TombstoneTTL, fencing.ForgetAfter, 3 * time.Hour}))
			}
		default:
			name := pick(a.random, names)
			op := a.next(name)
			var out fencing.Outcome
			out, err = s.Do(ctx, op)
			if out.Holder.Token != 0 {
				a.tokens[name] = append(a.tokens[name], out.Holder.Token)
			}
		}
		if c := code(err); c == fencing.CodeUnavailable || err != nil && c == "" {
			return fmt.Errorf("an operation: %w", err)
		}
	}
	return nil
}

// rest waits until nothing goes on in a store of which nobody asks anything.
func rest(t *testing.T, s *Store) {
	t.Helper()
	waitFor(t, "the store to rest", func() bool {
		if err := s.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.mu.RLock()
		defer s.mu.RUnlock()
		return !(s.saving != nil) && s.flushing == nil && s.next.empty() && !s.left()
	})
}

// bytesOf returns all of the state of a machine that nobody changes.
func bytesOf(t *testing.T, m *machine.Machine) []byte {
	t.Helper()
	snapshot, err := m.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer snapshot.Release()
	var b bytes.Buffer
	if err := snapshot.Write(&b, new(sync.Mutex)); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// replayed returns what files come to, which are below a directory, before a start writes anything.
func replayed(t *testing.T, files map[string][]byte, dir string) (state []byte, behind int) {
	t.Helper()
	copied := t.TempDir()
	d, err := openDisk(&Options{Dir: copied, Logger: slog.New(slog.DiscardHandler), files: waltest.New(waltest.Moved(files, dir, copied)), segment: smallSegment})
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	m := machine.New()
	if err := d.recover(m); err != nil {
		t.Fatal(err)
	}
	return bytesOf(t, m), d.behind
}

// Who carries out the log of a store has its state, to the byte: whatever was asked, whenever it is killed or ended, and
// whether snapshots have been taken meanwhile.
func TestReplay(t *testing.T) {
	seeds, behind := times(20, 500), 0
	for i := range seeds {
		number := seed.Of(t) + uint64(i)
		random := rand.New(rand.NewPCG(number, 0))
		o := Options{Dir: t.TempDir(), files: waltest.New(nil), segment: smallSegment, snapshotAt: []int{1, smallSnapshot, someSnapshots, 0}[random.IntN(4)]}
		o.stepLimit, o.MaxHolders = random.IntN(2)*2, random.IntN(2)*2
		clock := newTestClock()
		o.Now = clock.read
		all := make([]*asked, 1+random.IntN(2)*3) // several ask at once, and share flushes
		for i := range all {
			all[i] = &asked{rand.New(rand.NewPCG(number, uint64(i+1))), map[fencing.Name][]fencing.AcquireRequest{}, map[fencing.Name][]fencing.Token{}}
		}
		for life := range 3 {
			s := open(t, o)
			s.Listen(&listener{})
			var asking sync.WaitGroup
			for _, a := range all {
				asking.Go(func() {
					if err := a.ask(s, clock, 120); err != nil {
						t.Error(err)
					}
				})
			}
			asking.Wait()
			rest(t, s)
			if err := s.decide(t.Context(), func() (wait bool) { s.noteTime(); return true }); err != nil { // as the end would
				t.Fatal(err)
			}
			rest(t, s)
			s.mu.Lock()
			has := bytesOf(t, s.machine)
			s.mu.Unlock()
			killed := o.files.(*waltest.Trace).Content()
			is, entries := replayed(t, killed, o.Dir)
			if behind += entries; !bytes.Equal(is, has) {
				t.Fatalf("seed %d, life %d: a replay comes to\n%q\nand the store had\n%q", number, life, is, has)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			ended := o.files.(*waltest.Trace).Content()
			if is, entries := replayed(t, ended, o.Dir); !bytes.Equal(is, has) || entries > 0 {
				t.Fatalf("seed %d, life %d: after a clean end, with %d bytes of entries, it comes to\n%q\nand the store had\n%q", number, life, entries, is, has)
			}
			left := ended
			if random.IntN(2) == 0 {
				left = killed
			}
			next := t.TempDir()
			o.files, o.Dir = waltest.New(waltest.Moved(left, o.Dir, next)), next
			if random.IntN(3) == 0 {
				clock.advance(-time.Duration(random.IntN(3600)) * time.Second)
			}
		}
	}
	if behind == 0 {
		t.Error("no log had any entries: the test misses its aim")
	}
}
