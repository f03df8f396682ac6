package fencing_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// TestEvents tells the events of a sequence of steps. A place that rests has left,
// and is queued again when its client is back.
func TestEvents(t *testing.T) {
	s, now := fencing.NewState(), epoch
	waits := func(n int, keep bool) fencing.AcquireRequest {
		r := acquire(t, "a", n)
		r.Owner, r.Wait, r.Keep, r.TTL = fmt.Sprint("w", n), time.Second, keep, 10*time.Second
		return r
	}
	own := func(n int) fencing.LeaseID { return leaseID(t, n, false) }
	for _, step := range []struct {
		after time.Duration
		op    fencing.Op
		want  []string // kind, owner and, of a lease, which token and how long it took
	}{
		{0, waits(1, false), []string{"granted w1 1 0s"}},
		{0, waits(1, false), nil},
		{0, waits(2, true), []string{"queued w2"}},
		{0, waits(2, true), nil},
		{0, waits(3, false), []string{"queued w3"}},
		{0, fencing.InspectRequest{Name: "a"}, nil},
		{0, fencing.LeaveRequest{Name: "a", Lease: own(2), Stamp: "r"}, []string{"left w2"}},
		{time.Second, waits(2, true), []string{"queued w2"}},
		{time.Second, fencing.ReleaseRequest{Name: "a", Lease: own(1)}, []string{"released w1 1 2s", "granted w2 2 2s"}},
		{0, fencing.RenewRequest{Name: "a", Lease: own(2)}, nil},
		{10 * time.Second, fencing.ExpireRequest{Name: "a"}, []string{"expired w2 2 10s", "granted w3 3 12s"}},
		{0, fencing.TakeBackRequest{Name: "a", Lease: own(3), Stamp: "r"}, []string{"left w3"}},
		{0, waits(4, false), []string{"granted w4 4 0s"}},
		{0, fencing.BreakRequest{Name: "a", Token: 7}, nil},
	} {
		now = now.Add(step.after)
		out := fencing.Step(s, now, fencing.Guard{}, step.op)
		var got []string
		for _, e := range out.Events("a") {
			text := fmt.Sprintf("%s %s", e.Kind, e.Owner)
			if e.Token != 0 {
				text += fmt.Sprintf(" %d %s", tokenNumber(s, e), e.Took)
			} else if e.Took != 0 {
				t.Errorf("%+v took a time", e)
			}
			got = append(got, text)
			if e.Name != "a" || e.Mode != fencing.ModeExclusive || e.At != now || e.Lease == "" || !slices.Contains(fencing.EventKinds(), e.Kind) {
				t.Errorf("%#v came to the event %+v", step.op, e)
			}
		}
		if !slices.Equal(got, step.want) {
			t.Errorf("%#v came to %q instead of %q", step.op, got, step.want)
		}
	}
}

// tokenNumber counts the tokens of the test: each is granted in another second, or
// is one above the last.
func tokenNumber(s *fencing.State, e fencing.Event) int {
	known := []fencing.Token{fencing.Token(epoch), fencing.Token(epoch.Add(2 * time.Second)), fencing.Token(epoch.Add(12 * time.Second))}
	if at := slices.Index(known, e.Token); at >= 0 {
		return at + 1
	}
	return len(known) + int(s.Counter-e.Token) + 1
}

// TestAnExpiryIsDatedToItsEnd: however late it is noticed.
func TestAnExpiryIsDatedToItsEnd(t *testing.T) {
	s := fencing.NewState()
	fencing.Step(s, epoch, fencing.Guard{}, acquire(t, "a", 1))
	out := fencing.Step(s, epoch.Add(time.Minute), fencing.Guard{}, fencing.ExpireRequest{Name: "a"})
	if events := out.Events("a"); len(events) != 1 || events[0].At != epoch.Add(30*time.Second) {
		t.Errorf("the events are %+v", events)
	}
}

// TestEventsOfABreak: a notice is told when it is given or brought forward, and a break with
// its reason, however it came about.
func TestEventsOfABreak(t *testing.T) {
	s := fencing.NewState()
	held := acquire(t, "a", 1)
	held.TTL = 10 * time.Second
	token := fencing.Step(s, epoch, fencing.Guard{}, held).Holder.Token
	breaks := func(notice time.Duration, why string) fencing.BreakRequest {
		return fencing.BreakRequest{Name: "a", Token: token, Notice: notice, BreakReason: why}
	}
	for _, step := range []struct {
		after time.Duration
		op    fencing.Op
		want  []fencing.Event
	}{
		{0, breaks(time.Minute, "first"), []fencing.Event{{Kind: fencing.EventNotice, BreakAt: epoch.Add(time.Minute), BreakReason: "first"}}},
		{0, breaks(time.Minute, "first"), nil},
		{0, breaks(time.Hour, "later"), nil},
		{0, breaks(15*time.Second, "sooner"), []fencing.Event{{Kind: fencing.EventNotice, BreakAt: epoch.Add(15 * time.Second), BreakReason: "sooner"}}},
		{9 * time.Second, fencing.RenewRequest{Name: "a", Lease: held.Lease}, nil},
		{15 * time.Second, fencing.ExpireRequest{Name: "a"}, []fencing.Event{{Kind: fencing.EventBroken, BreakReason: "sooner", Took: 15 * time.Second}}},
	} {
		now := epoch.Add(step.after)
		out := fencing.Step(s, now, fencing.Guard{}, step.op)
		for i := range step.want {
			e := &step.want[i]
			e.Name, e.Lease, e.Mode, e.Token, e.At, e.Owner = "a", held.Lease.Public(), fencing.ModeExclusive, token, now, held.Owner
		}
		if got := out.Events("a"); !slices.Equal(got, step.want) {
			t.Errorf("%#v came to %+v instead of %+v", step.op, got, step.want)
		}
	}
}
