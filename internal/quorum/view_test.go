package quorum

import (
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
)

// otherTokenAt2 returns a scene in which a majority has the lease with one token, and
// node 2 has it with a higher one, as a retry can leave it there.
func otherTokenAt2(t *testing.T) (*scene, fencing.AcquireRequest, fencing.Token) {
	t.Helper()
	s := newScene(t, 3)
	s.nodes[2].set(func(n *node) { n.cut = true })
	r := request("a")
	out := s.acquire(r)
	advance(time.Millisecond)
	left := r
	left.Propose = fencing.Token(fencing.InstantOf(time.Now()))
	if got, err := s.nodes[2].Model.Do(bg, left); err != nil || !got.Holder.Claimed || got.Holder.Token != left.Propose {
		t.Fatalf("%+v, %v", got, err)
	}
	s.nodes[2].set(func(n *node) { n.cut = false })
	return s, r, out.Holder.Token
}

// A lease that a node has with another token is one lease, wherever it is shown.
func TestLeaseIsShownWithOneToken(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(*node) // one of the majority
	}{
		{"slow", func(n *node) { n.before = func(string) { advance(50 * time.Millisecond) } }},
		{"cut off", func(n *node) { n.cut = true }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, r, token := otherTokenAt2(t)
				s.nodes[0].set(c.spoil)
				out, err := s.Do(bg, fencing.InspectRequest{Name: "a"})
				if err != nil || len(out.Lock.Holders) != 1 || out.Lock.Holders[0].Token != token {
					t.Errorf("held: %+v, %v; want one with %d", out.Lock, err, token)
				}
				s.nodes[0].set(func(n *node) { n.cut, n.before = false, nil })
				if _, err := s.Do(bg, fencing.ReleaseRequest{Name: "a", Lease: r.Lease}); err != nil {
					t.Fatal(err)
				}
				s.pass(time.Second)
				s.nodes[0].set(c.spoil)
				out, err = s.Do(bg, fencing.HistoryRequest{Name: "a"})
				if err != nil || len(out.Past) != 1 || out.Past[0].Holder.Token != token {
					t.Errorf("past: %+v, %v; want one with %d", out.Past, err, token)
				}
			})
		})
	}
}

// A lease id that was used twice is two leases.
func TestLeaseIDUsedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, 3)
		r := request("a")
		for range 2 {
			s.acquire(r)
			if _, err := s.Do(bg, fencing.ReleaseRequest{Name: "a", Lease: r.Lease}); err != nil {
				t.Fatal(err)
			}
			s.pass(time.Hour)
			r.Stamp = fencing.NewStamp()
		}
		out, err := s.Do(bg, fencing.HistoryRequest{Name: "a"})
		if err != nil || len(out.Past) != 2 {
			t.Errorf("%+v, %v", out.Past, err)
		}
	})
}

// A lease that some node has not renewed is over when the majority's end of it is.
func TestPastLeaseEndsWithTheMajority(t *testing.T) {
	for late := range 3 {
		synctest.Test(t, func(t *testing.T) {
			s := newScene(t, 3)
			r := request("a")
			s.acquire(r)
			s.pass(5 * time.Second)
			s.nodes[late].set(func(n *node) { n.cut = true })
			_, err := s.Do(bg, fencing.RenewRequest{Name: "a", Lease: r.Lease})
			if err != nil {
				t.Fatal(err)
			}
			s.nodes[late].set(func(n *node) { n.cut = false })
			end := fencing.InstantOf(time.Now()).Add(r.TTL)
			s.pass(time.Minute)
			if _, err := s.Expire(bg, 100); err != nil {
				t.Fatal(err)
			}
			out, err := s.Do(bg, fencing.HistoryRequest{Name: "a"})
			if err != nil || len(out.Past) != 1 || out.Past[0].Reason != fencing.ReasonExpired || out.Past[0].At.Sub(end).Abs() > time.Millisecond {
				t.Errorf("node %d was late: %+v, %v; want the end %d", late, out.Past, err, end)
			}
		})
	}
}

// A lease that is live is not past as well, for a node that has it with another token
// and has missed its renewals.
func TestLiveLeaseIsNotPast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r, token := otherTokenAt2(t)
		for range 3 {
			s.nodes[2].set(func(n *node) { n.cut = true })
			s.pass(5 * time.Second)
			if _, err := s.Do(bg, fencing.RenewRequest{Name: "a", Lease: r.Lease}); err != nil {
				t.Fatal(err)
			}
			s.nodes[2].set(func(n *node) { n.cut = false })
		}
		if _, err := s.nodes[2].Model.Expire(bg, 10); err != nil {
			t.Fatal(err)
		}
		s.nodes[0].set(func(n *node) { n.cut = true })
		out, err := s.Do(bg, fencing.HistoryRequest{Name: "a"})
		if err != nil || len(out.Past) != 0 || len(out.Lock.Holders) != 1 || out.Lock.Holders[0].Token != token {
			t.Errorf("%+v, past %+v, %v; want it live with %d", out.Lock, out.Past, err, token)
		}
	})
}
