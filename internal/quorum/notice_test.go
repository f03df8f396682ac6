package quorum

import (
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
)

const noticedAt fencing.Instant = 1_767_225_600_000_000

// heldWith is a lease as a node has it that gave it so much notice, 0 for none, and lets it live
// for so long.
func heldWith(notice, left time.Duration) fencing.Outcome {
	h := fencing.Holder{Token: 7, Claimed: true, Hold: 1, TTL: 10 * time.Second, GrantTTL: 10 * time.Second, AcquiredAt: noticedAt, ExpiresAt: noticedAt.Add(left)}
	if notice > 0 {
		h.BreakAt, h.BreakReason = noticedAt.Add(notice), "deploy"
	}
	return fencing.Outcome{Now: noticedAt, Holder: h}
}

// A lease that is brought back to a node lives there no longer than its notice lets it.
func TestANoticeBoundsWhatIsBroughtBack(t *testing.T) {
	for _, tt := range []struct {
		notice, maxHold, want time.Duration
		ok                    bool
	}{
		{0, 0, 0, true},
		{5 * time.Second, 0, 5 * time.Second, true},
		{5 * time.Second, 3 * time.Second, 3 * time.Second, true},
		{5 * time.Second, time.Minute, 5 * time.Second, true},
		{-time.Second, 0, -time.Second, false},
	} {
		out := heldWith(0, time.Second)
		if out.Holder.MaxHold = tt.maxHold; tt.notice != 0 {
			out.Holder.BreakAt = noticedAt.Add(tt.notice)
		}
		ask, _, ok := returned(fencing.RenewRequest{Name: "a"}, 7, []fencing.Outcome{{}, out})
		if ok != tt.ok || ask.MaxHold != tt.want {
			t.Errorf("a notice of %s and a max_hold of %s come to %s, %t; want %s, %t", tt.notice, tt.maxHold, ask.MaxHold, ok, tt.want, tt.ok)
		}
	}
}

// A lease is broken when fewer than a majority still have it.
func TestTheNoticeOfAMajority(t *testing.T) {
	for _, tt := range []struct {
		notices []time.Duration // of the nodes that show the lease
		want    time.Duration
	}{
		{[]time.Duration{0, 0, 0}, 0},
		{[]time.Duration{0, 0, 5}, 0},
		{[]time.Duration{7, 0, 5}, 7},
		{[]time.Duration{7, 6, 5}, 6},
		{[]time.Duration{7, 0}, 7},
		{[]time.Duration{0, 0}, 0},
		{[]time.Duration{5}, 5}, // the others are silent
	} {
		var o observation
		for _, notice := range tt.notices {
			o = append(o, heldWith(notice*time.Second, time.Second).Holder)
		}
		h := o.shown(2)
		if got := h.BreakAt; tt.want == 0 && (got != 0 || h.BreakReason != "") || tt.want != 0 && (got != noticedAt.Add(tt.want*time.Second) || h.BreakReason != "deploy") {
			t.Errorf("notices of %v s are shown as %+v", tt.notices, h)
		}
	}
}

// What a quorum tells of a lease is never broken before it expires, for all the margin that
// it keeps; the earliest notice is told.
func TestTheHolderIsToldOfTheEarliestNotice(t *testing.T) {
	began := noticedAt.Time()
	late, soon, last := heldWith(20*time.Second, 10*time.Second), heldWith(12*time.Second, 10*time.Second), heldWith(9*time.Second, 9*time.Second)
	out := conservative(&late, 7, began, 8*time.Second)
	tellNotice(&out, &soon)
	if h := out.Holder; h.BreakAt != noticedAt.Add(12*time.Second) || h.BreaksAtEnd() {
		t.Errorf("%+v", h)
	}
	tellNotice(&out, &last)
	if h := out.Holder; h.BreakAt != h.ExpiresAt || h.ExpiresAt != noticedAt.Add(8*time.Second) || h.BreakReason != "deploy" {
		t.Errorf("a lease that a notice ends: %+v", h)
	}
	without := heldWith(0, 10*time.Second)
	if out = conservative(&without, 7, began, 8*time.Second); out.Holder.BreakAt != 0 {
		t.Errorf("%+v", out.Holder)
	}
}

// endsWithItsNotice renews a lease that was just given so much notice until that is over, and
// finds it broken then, whatever each does to the nodes before the renewal n.
func (s *scene) endsWithItsNotice(r fencing.AcquireRequest, notice time.Duration, each func(n int)) {
	s.t.Helper()
	const pause = 2 * time.Second
	for n := range int(notice / pause) {
		each(n)
		if out, err := s.Do(bg, fencing.RenewRequest{Name: r.Name, Lease: r.Lease}); err != nil || out.Holder.BreakAt == 0 {
			s.t.Errorf("renewal %d: %+v, %v", n, out.Holder, err)
		}
		synctest.Wait() // for what is brought back
		s.pass(pause)
	}
	_, err := s.Do(bg, fencing.RenewRequest{Name: r.Name, Lease: r.Lease})
	if e := s.refused(err, fencing.CodeLeaseLost); e.Reason != fencing.ReasonBroken {
		s.t.Errorf("after its notice: %v", err)
	}
}

// A node that was not given a notice does not bring the lease back, to one that has forgotten
// it, for longer than the notice lets it live.
func TestNobodyIsBroughtBackBeyondItsNotice(t *testing.T) {
	play(t, func(s *scene) {
		r := request("a")
		token := s.acquire(r).Holder.Token
		synctest.Wait()
		s.nodes[0].set(func(n *node) { n.cut = true })
		if _, err := s.Do(bg, fencing.BreakRequest{Name: "a", Token: token, Notice: time.Minute}); err != nil {
			t.Fatal(err)
		}
		s.nodes[0].set(func(n *node) { n.cut = false })
		s.endsWithItsNotice(r, time.Minute, func(n int) {
			if n == 0 {
				s.nodes[2].forget()
			}
		})
	})
}

// A notice that fewer than a majority were given is not promised: nodes without the lease may
// still get it, and with others that were not heard outvote those.
func TestANoticeIsAMajoritys(t *testing.T) {
	play(t, func(s *scene) {
		r := request("a")
		s.nodes[2].set(func(n *node) { n.cut = true })
		token := s.acquire(r).Holder.Token
		synctest.Wait()
		s.nodes[2].set(func(n *node) { n.cut = false })
		s.nodes[0].set(func(n *node) { n.cut = true })
		notice := fencing.BreakRequest{Name: "a", Token: token, Notice: time.Minute}
		_, err := s.Do(bg, notice)
		s.refused(err, fencing.CodeUnavailable)
		s.nodes[0].set(func(n *node) { n.cut = false })
		if out, err := s.Do(bg, notice); err != nil || out.Holder.Token != token || out.Holder.BreakAt == 0 {
			t.Errorf("at a majority: %+v, %v", out.Holder, err)
		}
		s.endsWithItsNotice(r, time.Minute, func(int) {})
	})
}
