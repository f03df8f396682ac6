package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"fencepost/internal/disk"
	"fencepost/internal/fencing"
	"fencepost/internal/seed"
	"fencepost/internal/wal"
	"fencepost/internal/wal/waltest"
)

// someSnapshots has a snapshot be taken of some operations of an exercise, not of each.
const someSnapshots = 20 << 10

// moment is the state after an operation of a run.
type moment struct {
	begun    int  // operations on files when it was submitted
	answered int  // and when it was answered
	durable  bool // it was answered with something that a power loss must not take back
	state    string
}

// chronicle is what happened to a store, one operation after the other.
type chronicle struct {
	moments []moment // the first is before any
}

// durableState describes all of a state that outlives the process.
func durableState(s *fencing.State) string {
	var b strings.Builder
	fmt.Fprintln(&b, s.Counter)
	for _, name := range slices.Sorted(maps.Keys(s.Records)) {
		r := s.Records[name]
		fmt.Fprint(&b, name, r.LastToken, r.Mark, r.HighestAdmitted, r.SlotMarks, r.Broken, r.DelayedUntil) // maps are printed in order
		for h := range r.Holders.All() {
			if !h.Provisional {
				fmt.Fprint(&b, " ", h.Lease, h.Secret, h.Owner, h.Mode, h.Limit, h.Slot, h.Slots, h.Permits, h.Hold, h.LockDelay, h.BreakAt, len(h.Metadata.Map()["padding"]), h.Token, h.TTL, h.GrantTTL, h.MaxHold)
			}
		}
		for i := range r.History {
			fmt.Fprint(&b, " ", r.History[i].Holder.Token, r.History[i].Reason, r.History[i].At)
		}
		fmt.Fprintln(&b)
	}
	keys := slices.SortedFunc(maps.Keys(s.Tombstones), func(k, other fencing.EndedLease) int {
		return cmp.Or(cmp.Compare(k.Name, other.Name), cmp.Compare(k.Lease, other.Lease))
	})
	for _, key := range keys {
		fmt.Fprintln(&b, key, s.Tombstones[key])
	}
	return b.String()
}

func (s *Store) durableState() string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return durableState(s.machine.State())
}

// exercise has a store grant, deepen, renew, release, break and expire leases, and
// ends with a grant, or when the store fails.
func (h *chronicle) exercise(s *Store, clock *testClock, files *waltest.Trace, random *rand.Rand, operations int) error {
	ctx := context.Background()
	h.moments = append(h.moments, moment{state: s.durableState()})
	held, tokens := map[fencing.Name]fencing.AcquireRequest{}, map[fencing.Name]fencing.Token{}
	for i := range operations {
		name := fencing.Name(fmt.Sprint("n", random.IntN(60)))
		r, isHeld := held[name]
		m := moment{begun: files.Count(), durable: true}
		var err error
		switch choice := random.IntN(12); {
		case !isHeld || i == operations-1:
			if isHeld {
				name = fencing.Name(fmt.Sprint("last", i))
			}
			r = acquire(name, time.Minute)
			if random.IntN(3) == 0 { // a permit, which has a slot and a mark of its own
				r.Mode, r.Limit = fencing.ModeShared, 1
			}
			r.Metadata = map[string]string{"padding": strings.Repeat("x", random.IntN(12000))}
			var out fencing.Outcome
			if out, err = s.Do(ctx, r); err == nil {
				held[name], tokens[name] = r, out.Holder.Token
			}
		case choice < 5:
			m.durable = false
			_, err = s.Do(ctx, fencing.ReleaseRequest{Name: name, Lease: r.Lease})
			delete(held, name)
		case choice < 6:
			_, err = s.Do(ctx, fencing.BreakRequest{Name: name, Token: tokens[name]})
			delete(held, name)
		case choice < 7:
			r.Hold++
			_, err = s.Do(ctx, r)
			held[name] = r
		case choice < 9:
			_, err = s.Do(ctx, fencing.RenewRequest{Name: name, Lease: r.Lease, TTL: time.Duration(1+random.IntN(600)) * time.Second})
			m.durable = false // unless it is longer, which the model does not follow
		case choice < 11:
			slot := fencing.NoSlot
			if r.Limit == 1 {
				slot = random.IntN(2) - 1
			}
			_, err = s.Do(ctx, fencing.AdmitRequest{Name: name, Token: tokens[name], Slot: slot})
			if code(err) == fencing.CodeStaleToken { // its lease lives on
				err = nil
			}
		default:
			clock.advance(time.Duration(random.IntN(30)) * time.Second)
			_, err = s.Expire(ctx, 100)
		}
		switch code(err) {
		case "", fencing.CodeLeaseLost, fencing.CodeStaleToken, fencing.CodeInvalidRequest: // it may have run out
		default: // what it has done may be on disk, or not
			m.durable, m.answered, m.state = false, files.Count(), s.durableState()
			h.moments = append(h.moments, m)
			return err
		}
		if err != nil {
			delete(held, name)
		}
		m.answered, m.state = files.Count(), s.durableState()
		h.moments = append(h.moments, m)
	}
	return nil
}

// check reports what is wrong with a state that was read after a power loss during
// operation cut: it has to be one that there was, not before what was answered.
func (h *chronicle) check(state string, cut int) error {
	least := 0
	for i, m := range h.moments {
		if m.durable && m.answered <= cut {
			least = i
		}
	}
	for i, m := range h.moments {
		if m.state == state && i >= least && m.begun <= cut {
			return nil
		}
	}
	for i, m := range h.moments {
		if m.state == state {
			return fmt.Errorf("it is as after operation %d, and operation %d had been answered", i, least)
		}
	}
	return fmt.Errorf("it is as it never was: %.2000s", state)
}

// open opens a store on files and returns its state. What panics is an error.
func stateOn(dir string, files wal.Files, now func() fencing.Instant) (state string, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	s, err := Open(Options{Dir: dir, Now: now, files: files, segment: smallSegment, snapshotAt: someSnapshots})
	if err != nil {
		return "", err
	}
	state = s.durableState()
	return state, s.Close()
}

func exercised(t *testing.T, dir string, files *waltest.Trace, random *rand.Rand, operations int) (*chronicle, *Store, *testClock) {
	t.Helper()
	clock, h := newTestClock(), &chronicle{}
	s := open(t, Options{Dir: dir, Now: clock.read, files: files, segment: smallSegment, snapshotAt: someSnapshots})
	if err := h.exercise(s, clock, files, random, operations); err != nil {
		t.Fatal(err)
	}
	return h, s, clock
}

// A sync of the log, or any write, that fails is the end: nothing is granted any more, and all
// that was answered is there after a restart. FENCEPOST_LONG makes it 50 of each.
func TestFailingDisk(t *testing.T) {
	for what, c := range map[string]struct {
		kinds []string
		err   error
		lasts bool // from then on all fail
	}{
		"failed fsync": {[]string{waltest.Sync, waltest.SyncDir}, syscall.EIO, false},
		"disk full":    {[]string{waltest.Write, waltest.Link}, syscall.ENOSPC, true},
	} {
		rounds, violations := times(8, 50), 0
		for round := range rounds {
			seed := seed.Of(t) + uint64(round)
			random := rand.New(rand.NewPCG(seed, 0))
			dir, files, clock, h := t.TempDir(), waltest.New(nil), newTestClock(), &chronicle{}
			failAt, seen := 1+random.IntN(3+round*4), 0
			files.Fault = func(op *waltest.Op) error {
				fails := slices.Contains(c.kinds, op.Kind) || !c.lasts && op.Synced
				fails = fails && (c.lasts || filepath.Base(filepath.Dir(op.Path)) == disk.LogName || filepath.Base(op.Path) == disk.LogName)
				if fails {
					seen++
				}
				if fails && (seen == failAt || c.lasts && seen > failAt) {
					return c.err
				}
				return nil
			}
			err := failing(h, dir, files, clock, random)
			if err == nil {
				cut := files.Count()
				files.Fault = nil
				var state string
				state, err = stateOn(dir, waltest.New(files.Image(cut, random)), clock.read)
				if err == nil && len(h.moments) > 0 {
					err = h.check(state, cut)
				}
				if len(h.moments) == 0 { // it was not opened
					err = nil
				}
			}
			if err != nil {
				violations++
				t.Errorf("%s number %d, seed %d: %v", what, failAt, seed, err)
			}
		}
		fmt.Printf("verified: %s %d, violations %d\n", what, rounds, violations)
	}
}

// failing runs a store into a fault, and says what it did not do then.
func failing(h *chronicle, dir string, files *waltest.Trace, clock *testClock, random *rand.Rand) error {
	s, err := Open(Options{Dir: dir, Now: clock.read, files: files, segment: smallSegment, snapshotAt: someSnapshots})
	if err != nil {
		return nil // said at the start
	}
	defer s.Close()
	err = h.exercise(s, clock, files, random, 3000)
	if code(err) != fencing.CodeUnavailable {
		return fmt.Errorf("the fault came to %v", err)
	}
	select {
	case <-s.Failed():
	case <-time.After(60 * time.Second):
		return errors.New("Failed is not closed")
	}
	if _, err := s.Do(context.Background(), acquire("after", time.Minute)); code(err) != fencing.CodeUnavailable {
		return fmt.Errorf("a grant after the fault: %v", err)
	}
	return nil
}
