package fencing_test

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/seed"
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
	lease := leaseID(t, pickLease(t, r, s.Records[name]), r.IntN(8) == 0)
	stamp := fencing.Stamp(string("rs"[r.IntN(2)]))
	var tokens []fencing.Token
	if record := s.Records[name]; record != nil {
		tokens = append([]fencing.Token{record.LastToken}, record.Broken...)
	}
	switch r.IntN(19) {
	case 0, 1, 2, 3:
		op := valid()
		op.Name, op.Lease, op.Stamp, op.TTL = name, lease, stamp, time.Duration(1+r.IntN(20))*time.Second
		op.Metadata = map[string]string{"k": "v"}
		if r.IntN(2) == 0 {
			op.Mode, op.Limit = fencing.ModeShared, r.IntN(6)
			op.Permits = r.IntN(1 + op.Limit)
		}
		if op.Keep = r.IntN(2) == 0; r.IntN(3) > 0 {
			op.Wait = time.Second
		}
		op.Hold, op.MaxWaiters = 1+r.IntN(3)/2*r.IntN(3), r.IntN(2)*(1+r.IntN(2))
		op.Set = []string{"", "", "", "s"}[r.IntN(4)]
		op.Intent = time.Duration(r.IntN(3)) * time.Second
		op.Attach, op.Epoch = r.IntN(3) == 0, int64(r.IntN(4))
		return op
	case 4:
		op := fencing.RenewRequest{Name: name, Lease: lease, TTL: time.Duration(r.IntN(20)) * time.Second}
		switch r.IntN(6) {
		case 0:
			op.Mode = fencing.ModeExclusive
		case 1:
			op.Mode, op.Limit = fencing.ModeShared, r.IntN(6)
		case 2:
			op.Permits, op.Limit = 1+r.IntN(3), r.IntN(6)
		case 3:
			op.Permits = 1 + r.IntN(3)
		case 4:
			op.Owner, op.Metadata = "renamed", map[string]string{"k": "w"}
		case 5:
			op.Metadata = map[string]string{}
		}
		if r.IntN(3) == 0 {
			op.Stamp, op.Epoch = stamp, int64(r.IntN(3))
		}
		return op
	case 5:
		if r.IntN(4) == 0 {
			return fencing.ReleaseRequest{Name: name, Lease: lease, Stamp: stamp, Linger: time.Duration(r.IntN(5)) * time.Second, Epoch: int64(r.IntN(3))}
		}
		return fencing.ReleaseRequest{Name: name, Lease: lease, Hold: r.IntN(4)}
	case 6:
		return fencing.TakeBackRequest{Name: name, Lease: lease, Stamp: stamp, Left: r.IntN(2) == 0, Linger: time.Duration(r.IntN(3)) * time.Second, Epoch: int64(r.IntN(3))}
	case 7:
		return fencing.BreakRequest{
			Name: name, Token: append(tokens, 7)[r.IntN(len(tokens)+1)], BreakReason: []string{"", "stuck"}[r.IntN(2)],
			Notice: time.Duration(r.IntN(3)*r.IntN(20)) * time.Second,
		}
	case 8:
		return fencing.ConfirmRequest{Name: name, Lease: lease, Stamp: stamp}
	case 9:
		return fencing.LeaveRequest{Name: name, Lease: lease, Stamp: stamp}
	case 10:
		return fencing.ExpireRequest{Name: name}
	case 11:
		return fencing.HistoryRequest{Name: name}
	case 12, 13:
		near := append(tokens, s.Counter)
		return fencing.ClaimRequest{Name: name, Lease: lease, Token: near[r.IntN(len(near))] + fencing.Token(r.IntN(4)-1)}
	case 15, 16:
		near := append(tokens, s.Counter)
		return fencing.AdmitRequest{
			Name: name, Token: near[r.IntN(len(near))] + fencing.Token(r.IntN(3)-1), Slot: r.IntN(3) - 1, Claimed: r.IntN(4) == 0,
		}
	case 18:
		return fencing.EvictRequest{Name: name, Waiter: lease.Public(), BreakReason: []string{"", "stuck"}[r.IntN(2)]}
	case 17:
		return fencing.JudgeRequest{Name: name, Token: append(tokens, 7)[r.IntN(len(tokens)+1)], Claimed: r.IntN(4) == 0}
	default:
		return fencing.InspectRequest{Name: name}
	}
}

const leases = 40

// pickLease picks one that is known of the name as often as not.
func pickLease(t testing.TB, r *rand.Rand, record *fencing.Record) int {
	var known []fencing.LeasePublic
	if record != nil {
		for h := range record.Holders.All() {
			known = append(known, h.Lease)
		}
		for _, p := range append(record.Queue.Waiting(), record.Queue.Resting()...) {
			known = append(known, p.Ask.Lease.Public())
		}
	}
	if len(known) > 0 && r.IntN(2) == 0 {
		public := known[r.IntN(len(known))]
		for n := range leases {
			if leaseID(t, n, false).Public() == public {
				return n
			}
		}
	}
	return r.IntN(leases)
}

// essence is all of a state that counts: two queues may hold the same in other ways.
type essence struct {
	Counter    fencing.Token
	Records    map[fencing.Name]recordEssence
	Tombstones map[fencing.EndedLease]fencing.Tombstone
	Gateways   fencing.Gateways
	Quarantine fencing.Quarantine
}

// recordEssence leaves out the Intent: a refused writer leaves one.
type recordEssence struct {
	LastToken, Ended  fencing.Token
	Holders           []fencing.Holding
	Waiting, Resting  []fencing.Place
	RetryAt, ForgetAt fencing.Instant
	Broken            []fencing.Token
	History           []fencing.Ended
	Marks             [3]fencing.Token
	SlotMarks         map[int]fencing.Token
}

func essenceOf(s *fencing.State) essence {
	e := essence{s.Counter, map[fencing.Name]recordEssence{}, s.Tombstones, s.Gateways, s.Quarantine}
	for name, r := range s.Records {
		e.Records[name] = recordEssence{r.LastToken, r.EndedToken, slices.Collect(r.Holders.All()), r.Queue.Waiting(), r.Queue.Resting(), r.RetryAt, r.ForgetAt, r.Broken, r.History,
			[3]fencing.Token{r.LastClaimed, r.Mark, r.HighestAdmitted}, maps.Clone(r.SlotMarks)}
	}
	return e
}

// mostHolders is how many holders a name may have in random steps.
const mostHolders = 2

// randomSteps does random operations, by two gateways and sometimes while the clocks differ,
// and calls check with the state before each. Now and then a server that has
// forgotten something is found in charge.
func randomSteps(t *testing.T, steps int, check func(r *rand.Rand, s *fencing.State, now fencing.Instant, guard fencing.Guard, op fencing.Op)) {
	r := rand.New(rand.NewPCG(seed.Of(t), 0))
	s, now := fencing.NewState(), epoch
	for range steps {
		now = now.Add(time.Duration(r.IntN(4)) * time.Second)
		if r.IntN(500) == 0 {
			now = now.Add(fencing.ForgetAfter)
		}
		guard := fencing.Guard{Sent: now, MaxSkew: time.Second, Gateway: "1", MaxHolders: mostHolders}
		if r.IntN(3) == 0 {
			guard.Gateway = "2"
		}
		if r.IntN(5) == 0 {
			guard.Sent = now.Add(-time.Minute)
		}
		if r.IntN(100) == 0 {
			fencing.Arrive(s, now, fencing.Arrival{Server: "S", Lost: true, Least: time.Second, Most: 10 * time.Second})
		}
		s.PruneTombstones(now)
		check(r, s, now, guard, randomOp(t, r, s))
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
		s.Records["a"].Holders.Put(alone.Records["a"].Holders.First())
		s.Counter = alone.Counter
	}
	if due := s.Due("a"); due != epoch.Add(10*time.Second) {
		t.Errorf("due after %s", due.Sub(epoch))
	}
	view := s.View("a", epoch, fencing.Guard{}, false)
	if len(view.Holders) != 3 || view.NextExpiry() != 10*time.Second {
		t.Errorf("%d holders, the next expiry in %s", len(view.Holders), view.NextExpiry())
	}
	out := fencing.Step(s, epoch, fencing.Guard{}, fencing.ReleaseRequest{Name: "a", Lease: leaseID(t, 1, false)})
	if out.Err != nil || len(out.Ended) != 1 || s.Records["a"].Holders.Len() != 2 {
		t.Fatalf("release of the second holder: %+v", out)
	}
	out = fencing.Step(s, epoch.Add(10*time.Second), fencing.Guard{}, fencing.ExpireRequest{Name: "a"})
	if len(out.Ended) != 1 || out.Ended[0].Holder.Lease != leaseID(t, 2, false).Public() {
		t.Fatalf("expiry of the third holder: %+v", out)
	}
	if h := slices.Collect(s.Records["a"].Holders.All()); len(h) != 1 || h[0].Lease != leaseID(t, 0, false).Public() {
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

// A clock that was set back does not have a lease end in the future.
func TestLateIsNotNegative(t *testing.T) {
	state, held := fencing.NewState(), acquire(t, "a", 1)
	if out := fencing.Step(state, epoch, fencing.Guard{}, held); out.Err != nil {
		t.Fatal(out.Err)
	}
	end := epoch.Add(held.TTL)
	fencing.Step(state, end, fencing.Guard{}, fencing.ExpireRequest{Name: "a"})
	out := fencing.Step(state, end.Add(-time.Second/2), fencing.Guard{}, fencing.RenewRequest{Name: "a", Lease: held.Lease})
	if out.Err == nil || out.Err.Reason != fencing.ReasonExpired || out.Err.Late != 0 {
		t.Errorf("%+v, want a lease that ended 0 s ago", out.Err)
	}
}

// TestRandomOpsAreAll: the random operations of this package have every request type that
// is an Op, and each has a verb of its own.
func TestRandomOpsAreAll(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "op.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	r, s, made := rand.New(rand.NewPCG(1, 1)), fencing.NewState(), map[string]bool{}
	verbs := map[string]string{} // and which request has them
	for range 1000 {
		op := randomOp(t, r, s)
		of := reflect.TypeOf(op).Name()
		made[of] = true
		if verb := fencing.Verb(op); verb == "" || cmp.Or(verbs[verb], of) != of {
			t.Fatalf("the verb of %s is %q, which is that of %s", of, verb, verbs[verb])
		}
		verbs[fencing.Verb(op)] = of
	}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Name.Name == "LockName" {
			if name := f.Recv.List[0].Type.(*ast.Ident).Name; !made[name] {
				t.Errorf("randomOp makes no %s", name)
			}
		}
	}
}
