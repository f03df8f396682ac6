package fencing_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

const epoch fencing.Instant = 1_767_225_600_000_000

// leaseID returns the lease id number n, with one of two secrets.
func leaseID(t testing.TB, n int, otherSecret bool) fencing.LeaseID {
	secret := strings.Repeat("s", 22)
	if otherSecret {
		secret = strings.Repeat("o", 22)
	}
	id, err := fencing.ParseLeaseID(fmt.Sprintf("01KD%022d.%s", n, secret))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func acquire(t testing.TB, name fencing.Name, n int) fencing.AcquireRequest {
	r := valid()
	r.Name, r.Lease, r.Stamp = name, leaseID(t, n, false), "r"
	return r
}

// randomOp makes up an operation on few names by few leases.
func randomOp(t testing.TB, r *rand.Rand, s *fencing.State) fencing.Op {
	name := fencing.Name(string("ab"[r.IntN(2)]))
	lease := leaseID(t, r.IntN(6), r.IntN(8) == 0)
	var tokens []fencing.Token
	if record := s.Records[name]; record != nil {
		tokens = append([]fencing.Token{record.LastToken}, record.Broken...)
	}
	switch r.IntN(7) {
	case 0, 1:
		op := valid()
		op.Name, op.Lease, op.Stamp, op.TTL = name, lease, fencing.Stamp(string("rs"[r.IntN(2)])), time.Duration(1+r.IntN(20))*time.Second
		op.Metadata = map[string]string{"k": "v"}
		return op
	case 2:
		return fencing.RenewRequest{Name: name, Lease: lease, TTL: time.Duration(r.IntN(20)) * time.Second}
	case 3:
		return fencing.ReleaseRequest{Name: name, Lease: lease}
	case 4:
		return fencing.TakeBackRequest{Name: name, Lease: lease, Stamp: fencing.Stamp(string("rs"[r.IntN(2)]))}
	case 5:
		return fencing.BreakRequest{Name: name, Token: append(tokens, 7)[r.IntN(len(tokens)+1)]}
	default:
		return fencing.InspectRequest{Name: name}
	}
}

// TestRefusedOperationChangesNothing: a refused operation leaves behind what an
// Expire at the same instant leaves, and when the clocks differ nothing changes
// at all. An operation that only looks never changes anything.
func TestRefusedOperationChangesNothing(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	s, now := fencing.NewState(), epoch
	refused := map[fencing.Code]int{}
	for range 20_000 {
		now = now.Add(time.Duration(r.IntN(4)) * time.Second)
		if r.IntN(500) == 0 {
			now = now.Add(fencing.ForgetAfter)
		}
		guard := fencing.Guard{Sent: now, MaxSkew: time.Second}
		skewed := r.IntN(5) == 0
		if skewed {
			guard.Sent = now.Add(-time.Minute)
		}
		if r.IntN(20) == 0 {
			guard.Floor = fencing.MaxToken
		}
		op := randomOp(t, r, s)
		_, looks := op.(fencing.InspectRequest)
		before := s.Clone()
		if !skewed && !looks {
			fencing.Step(before, now, fencing.Guard{}, fencing.ExpireRequest{Name: op.LockName()})
		}
		out := fencing.Step(s, now, guard, op)
		if !looks && out.Err == nil {
			continue
		}
		if out.Err != nil {
			refused[out.Err.Code]++
		}
		if !reflect.DeepEqual(s, before) {
			t.Fatalf("%#v at %d (skewed: %t) came to %v and left\n%+v\ninstead of\n%+v", op, now, skewed, out.Err, s, before)
		}
	}
	for _, code := range []fencing.Code{fencing.CodeLocked, fencing.CodeLeaseLost, fencing.CodeStaleToken, fencing.CodeClockSkew} {
		if refused[code] < 100 {
			t.Errorf("only %d refusals were %s: the operations miss their aim", refused[code], code)
		}
	}
}

// TestStepDependsOnItsArgumentsAlone repeats operations on a copy of the state.
func TestStepDependsOnItsArgumentsAlone(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 0))
	s, now := fencing.NewState(), epoch
	for range 2000 {
		now = now.Add(time.Duration(r.IntN(4)) * time.Second)
		op, copied := randomOp(t, r, s), s.Clone()
		first, second := fencing.Step(s, now, fencing.Guard{}, op), fencing.Step(copied, now, fencing.Guard{}, op)
		if !reflect.DeepEqual(first, second) || !reflect.DeepEqual(s, copied) {
			t.Fatalf("%#v came to\n%+v and to\n%+v", op, first, second)
		}
	}
}

// TestCloneIsIndependent keeps a copy of each state: what comes later leaves it
// as it was.
func TestCloneIsIndependent(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 0))
	s, now := fencing.NewState(), epoch
	for range 2000 {
		now = now.Add(time.Duration(r.IntN(4)) * time.Second)
		kept, same := s.Clone(), s.Clone()
		if !reflect.DeepEqual(kept, s) {
			t.Fatal("a copy differs")
		}
		for range 3 {
			fencing.Step(s, now, fencing.Guard{}, randomOp(t, r, s))
		}
		s.PruneTombstones(now)
		if !reflect.DeepEqual(kept, same) {
			t.Fatal("a copy changed with the original")
		}
	}
}

// TestViewIsIndependent: a view that was given out stays as it was.
func TestViewIsIndependent(t *testing.T) {
	s := fencing.NewState()
	fencing.Step(s, epoch, fencing.Guard{}, acquire(t, "a", 1))
	view := fencing.Step(s, epoch, fencing.Guard{}, fencing.InspectRequest{Name: "a"}).Lock
	ends := view.Holders[0].ExpiresAt
	fencing.Step(s, epoch+1, fencing.Guard{}, fencing.RenewRequest{Name: "a", Lease: leaseID(t, 1, false), TTL: time.Hour})
	if view.Holders[0].ExpiresAt != ends {
		t.Error("a renewal changed a view")
	}
}

func TestFloorOfAGuard(t *testing.T) {
	floor := fencing.Token(epoch.Add(fencing.MaxFloorLead))
	s := fencing.NewState()
	out := fencing.Step(s, epoch, fencing.Guard{Floor: floor + 1}, acquire(t, "a", 1))
	if out.Code() != fencing.CodeClockSkew || !reflect.DeepEqual(s, fencing.NewState()) {
		t.Errorf("a floor too far ahead: %v, and the state %+v", out.Err, s)
	}
	out = fencing.Step(s, epoch, fencing.Guard{Floor: floor}, acquire(t, "a", 1))
	if out.Err != nil || out.Holder.Token != floor+1 || s.Counter != floor+1 {
		t.Fatalf("a floor an hour ahead: %v, token %d, counter %d", out.Err, out.Holder.Token, s.Counter)
	}
	// The counter is beyond it now, so that a floor as high is obeyed.
	out = fencing.Step(s, epoch, fencing.Guard{Floor: floor + 1}, acquire(t, "b", 2))
	if out.Err != nil || out.Holder.Token != floor+2 {
		t.Errorf("a floor that the counter has reached: %v, token %d", out.Err, out.Holder.Token)
	}
}

func TestSkewErrorIsAboutTheDifference(t *testing.T) {
	err := fencing.SkewError(fencing.Guard{Sent: epoch, MaxSkew: time.Second}, epoch.Add(1500*time.Millisecond))
	if err.Code != fencing.CodeClockSkew || !strings.Contains(err.Detail, "1.5s") || !strings.Contains(err.Detail, " 1s") {
		t.Errorf("%v", err)
	}
}

// TestSeveralHolders: what the rules for shared leases will stand on works with
// several holders already.
func TestSeveralHolders(t *testing.T) {
	s := fencing.NewState()
	for n := range 3 {
		// An exclusive lease lets nobody in, so each holder comes from a state of its own.
		alone := fencing.NewState()
		r := acquire(t, "a", n)
		r.TTL = time.Duration(30-10*n) * time.Second
		if out := fencing.Step(alone, epoch, fencing.Guard{Floor: s.Counter}, r); out.Err != nil {
			t.Fatal(out.Err)
		}
		if n == 0 {
			s = alone
			continue
		}
		s.Records["a"].Holders = append(s.Records["a"].Holders, alone.Records["a"].Holders...)
		s.Counter = alone.Counter
	}
	if due := s.Records["a"].Due(); due != epoch.Add(10*time.Second) {
		t.Errorf("due after %s", due.Sub(epoch))
	}
	view := s.Records["a"].View("a", epoch)
	if len(view.Holders) != 3 || view.NextExpiry() != 10*time.Second {
		t.Errorf("%d holders, the next expiry in %s", len(view.Holders), view.NextExpiry())
	}
	out := fencing.Step(s, epoch, fencing.Guard{}, fencing.ReleaseRequest{Name: "a", Lease: leaseID(t, 1, false)})
	if out.Err != nil || len(out.Ended) != 1 || len(s.Records["a"].Holders) != 2 {
		t.Fatalf("release of the second holder: %+v", out)
	}
	out = fencing.Step(s, epoch.Add(10*time.Second), fencing.Guard{}, fencing.ExpireRequest{Name: "a"})
	if len(out.Ended) != 1 || out.Ended[0].Holder.Lease != leaseID(t, 2, false).Public() {
		t.Fatalf("expiry of the third holder: %+v", out)
	}
	if h := s.Records["a"].Holders; len(h) != 1 || h[0].Lease != leaseID(t, 0, false).Public() {
		t.Errorf("left are %+v", h)
	}
}

type otherOp struct{ fencing.InspectRequest }

func TestUnknownOperationPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("an operation without a rule was decided")
		}
	}()
	fencing.Step(fencing.NewState(), epoch, fencing.Guard{}, otherOp{})
}

func TestPruneTombstones(t *testing.T) {
	s := fencing.NewState()
	for n := range 2 {
		name := fencing.Name(fmt.Sprint("n", n))
		now := epoch.Add(time.Duration(n) * time.Second)
		fencing.Step(s, now, fencing.Guard{}, acquire(t, name, n))
		fencing.Step(s, now, fencing.Guard{}, fencing.ReleaseRequest{Name: name, Lease: leaseID(t, n, false)})
	}
	end := epoch.Add(fencing.TombstoneTTL)
	for at, want := range map[fencing.Instant]int{end - 1: 2, end: 1, end.Add(time.Second) - 1: 1, end.Add(time.Second): 0} {
		c := s.Clone()
		if c.PruneTombstones(at); len(c.Tombstones) != want {
			t.Errorf("%s after the first release, %d tombstones are left instead of %d", at.Sub(epoch), len(c.Tombstones), want)
		}
	}
}
