package fencing_test

import (
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// granted returns a state in which lease 1 holds the name a.
func granted(t *testing.T) *fencing.State {
	t.Helper()
	s := fencing.NewState()
	if out := fencing.Step(s, epoch, fencing.Guard{}, acquire(t, "a", 1)); out.Err != nil {
		t.Fatal(out.Err)
	}
	return s
}

// TestClaimRaisesTheCounter: no gateway has to remember a claim as its floor.
func TestClaimRaisesTheCounter(t *testing.T) {
	s := granted(t)
	claimed := s.Counter + 1000
	if out := fencing.Step(s, epoch, fencing.Guard{}, fencing.ClaimRequest{Name: "a", Lease: leaseID(t, 1, false), Token: claimed}); out.Err != nil {
		t.Fatal(out.Err)
	}
	if s.Counter != claimed {
		t.Errorf("the counter is %d, and %d was claimed", s.Counter, claimed)
	}
	if out := fencing.Step(s, epoch, fencing.Guard{}, acquire(t, "b", 2)); out.Holder.Token != claimed+1 {
		t.Errorf("the next token is %d, and %d was claimed", out.Holder.Token, claimed)
	}
}

func TestClaimOfNoToken(t *testing.T) {
	s := granted(t)
	for token, want := range map[fencing.Token]fencing.Code{
		0: fencing.CodeStaleToken, -1: fencing.CodeStaleToken, fencing.MaxToken + 1: fencing.CodeClockSkew,
	} {
		if out := fencing.Step(s, epoch, fencing.Guard{}, fencing.ClaimRequest{Name: "a", Lease: leaseID(t, 1, false), Token: token}); out.Code() != want {
			t.Errorf("the token %d: %v", token, out.Err)
		}
	}
	s.Counter = fencing.MaxToken // a counter that was poisoned can't be raised
	if out := fencing.Step(s, epoch, fencing.Guard{}, fencing.ClaimRequest{Name: "a", Lease: leaseID(t, 1, false), Token: fencing.MaxToken + 1}); out.Code() != fencing.CodeClockSkew {
		t.Errorf("above the largest token: %v", out.Err)
	}
}

// TestArriveGoesOnFromTheFloor: the counter goes on from what a gateway was given,
// unless that came from a clock that was wrong.
func TestArriveGoesOnFromTheFloor(t *testing.T) {
	ahead := fencing.Token(epoch.Add(fencing.MaxFloorLead))
	for floor, want := range map[fencing.Token]fencing.Token{7: 7, ahead: ahead, ahead + 1: 0} {
		s := fencing.NewState()
		fencing.Arrive(s, epoch, fencing.Arrival{Server: "S", Floor: floor})
		if s.Counter != want {
			t.Errorf("from the floor %d the counter goes on at %d", floor, s.Counter)
		}
	}
	s := granted(t)
	counter := s.Counter
	if fencing.Arrive(s, epoch, fencing.Arrival{Server: "S", Floor: 7}); s.Counter != counter {
		t.Errorf("a low floor set the counter to %d", s.Counter)
	}
}

// TestDueInQuarantine: what waits for the end of a quarantine is due then.
func TestDueInQuarantine(t *testing.T) {
	s := fencing.NewState()
	until := fencing.Arrive(s, epoch, fencing.Arrival{Server: "S", Least: 2 * time.Second, Most: time.Minute}).Until
	ask := acquire(t, "a", 1)
	ask.Wait = time.Second
	guard := fencing.Guard{Gateway: "1"}
	if out := fencing.Step(s, epoch, guard, ask); !out.Waits() || !out.Joined {
		t.Fatalf("%+v", out)
	}
	if due := s.Due("a"); due != until {
		t.Errorf("due in %s, and the quarantine ends in %s", due.Sub(epoch), until.Sub(epoch))
	}
	if out := fencing.Step(s, until, guard, fencing.ExpireRequest{Name: "a"}); len(out.Granted) != 1 {
		t.Errorf("at its end: %+v", out)
	}
}

// TestHeededLossIsNoWait: before anybody has noted the loss, nobody is let into a
// queue, for nobody knows how long it would take.
func TestHeededLossIsNoWait(t *testing.T) {
	ask := acquire(t, "a", 1)
	ask.Wait = time.Second
	guard := fencing.Guard{Floor: fencing.Token(epoch) - 1, HeedLoss: true}
	s := fencing.NewState()
	if out := fencing.Step(s, epoch, guard, ask); out.Code() != fencing.CodeQuarantined || out.Err.RetryAfter != 0 || len(s.Records) != 0 {
		t.Errorf("%+v, and left %+v", out, s.Records)
	}
	s.Counter = guard.Floor
	if out := fencing.Step(s, epoch, guard, ask); out.Err != nil {
		t.Errorf("with a counter as high as the floor: %v", out.Err)
	}
}
