package raft

import (
	"context"
	"sync"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

// ownClocks gives each node a monotonic clock and a wall clock of its own, which have
// nothing to do with each other.
func ownClocks(clocks []*testClock) func(int, *Options) {
	return func(i int, o *Options) {
		clock, wall := newTestClock(), fencingtest.Epoch.Time().Add(time.Duration(2*(i%2)-1)*time.Duration(i)*time.Hour)
		clock.advance(time.Duration(i) * 1000 * time.Hour)
		clocks[i] = clock
		o.monotonic, o.wall = clock.since, func() time.Time { return wall }
	}
}

// left returns what a lease has left by the leader's clock, and the instant.
func left(t testing.TB, s fencing.Store, name fencing.Name) (time.Duration, fencing.Instant) {
	t.Helper()
	out, err := s.Do(t.Context(), fencing.InspectRequest{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Lock.Holders) != 1 {
		t.Fatalf("%s is not held at %d", name, out.Now)
	}
	return out.Lock.Holders[0].ExpiresAt.Sub(out.Now), out.Now
}

// A new leader goes on with the time where the log ends: what its own clocks say, and how
// long nobody led, counts for nothing.
func TestTimeGoesOnWithANewLeader(t *testing.T) {
	clocks := make([]*testClock, 3)
	c := newCluster(t, 3, ownClocks(clocks))
	r := acquire("a", 30*time.Second)
	first, err := c.nodes[0].Do(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if first.Now != fencingtest.Epoch {
		t.Errorf("a new cluster is formed at %d instead of the wall clock's %d", first.Now, fencingtest.Epoch)
	}
	want := 30 * time.Second
	check := func(when string, by *node) {
		t.Helper()
		if got, _ := left(t, by, "a"); got != want {
			t.Errorf("%s the lease has %s left, want %s", when, got, want)
		}
	}
	for i := range 3 {
		if i > 0 {
			clocks[i].advance(time.Hour) // nobody reads it yet
			c.elect(i)
			if c.awaitLeader() != c.nodes[i] {
				t.Fatalf("node %d does not lead", i)
			}
			check("after a change of leaders", c.nodes[0])
		}
		clocks[i].advance(5 * time.Second)
		want -= 5 * time.Second
		if _, err := c.nodes[i].Expire(t.Context(), 1); err != nil { // writes the time down
			t.Fatal(err)
		}
		check("five seconds later", c.nodes[(i+1)%3])
	}
	out, err := c.nodes[0].Do(t.Context(), acquire("a2", time.Minute))
	if err != nil || out.Holder.Token <= first.Holder.Token {
		t.Errorf("the token %d, %v came after %d", out.Holder.Token, err, first.Holder.Token)
	}
}

// What was shown as over stays so: a read that sees an expiry writes the time down first.
func TestWhatWasSeenAsOverStaysSo(t *testing.T) {
	clocks := make([]*testClock, 3)
	c := newCluster(t, 3, ownClocks(clocks))
	if _, err := c.nodes[0].Do(t.Context(), acquire("a", 30*time.Second)); err != nil {
		t.Fatal(err)
	}
	clocks[0].advance(30 * time.Second)
	for i := range 2 {
		out, err := c.nodes[2].Do(t.Context(), fencing.InspectRequest{Name: "a"})
		if err != nil || out.Lock.Held() {
			t.Fatalf("leader %d shows %+v, %v; the lease is over", i, out.Lock, err)
		}
		c.elect(i + 1)
		c.awaitLeader()
	}
}

// A whole cluster that stands still loses no lease, and its time goes on.
func TestARestartOfAllNodes(t *testing.T) {
	for _, size := range []int{1, 3} {
		clocks := make([]*testClock, size)
		c := newCluster(t, size, ownClocks(clocks))
		r := acquire("a", 30*time.Second)
		first, err := c.nodes[0].Do(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		for i, n := range c.nodes {
			n.Close()
			clocks[i].advance(time.Hour)
		}
		for i := range c.nodes {
			c.reopen(i)
		}
		if size > 1 {
			c.elect(1)
		}
		c.awaitLeader()
		if got, now := left(t, c.nodes[size-1], "a"); got != 30*time.Second || now != first.Now {
			t.Errorf("after a restart the lease has %s left at %d, want all of it at %d", got, now, first.Now)
		}
		again, err := c.nodes[0].Do(t.Context(), r)
		if err != nil || again.Holder.Token != first.Holder.Token {
			t.Errorf("a retry after a restart is answered %d, %v instead of %d", again.Holder.Token, err, first.Holder.Token)
		}
	}
}

// P8: a leader that has lost its followers knows nothing any more; the others go on.
func TestALeaderThatIsCutOff(t *testing.T) {
	c := newCluster(t, 3, func(_ int, o *Options) { o.Election = 200 * time.Millisecond })
	old := c.awaitLeader()
	r := acquire("a", time.Minute)
	if _, err := old.Do(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	c.hub.setCut(old.self.Address, true)
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	var asking sync.WaitGroup
	for what, ask := range map[string]func() error{
		"Acquire": func() error { _, err := old.Do(ctx, acquire("b", time.Minute)); return err },
		"Renew":   func() error { _, err := old.Do(ctx, fencing.RenewRequest{Name: "a", Lease: r.Lease}); return err },
		"Inspect": func() error { _, err := old.Do(ctx, fencing.InspectRequest{Name: "a"}); return err },
		"Judge":   func() error { _, err := old.Do(ctx, fencing.JudgeRequest{Name: "a", Token: 1}); return err },
		"List":    func() error { _, err := old.List(ctx, fencing.ListRequest{Limit: 1}); return err },
		"Stats":   func() error { _, err := old.Stats(ctx); return err },
		"Check":   func() error { return old.Check(ctx) },
	} {
		asking.Go(func() {
			if err := ask(); code(err) != fencing.CodeUnavailable {
				t.Errorf("%s at a leader that is cut off: %v", what, err)
			}
		})
	}
	led := c.awaitLeader()
	if led == old {
		t.Fatal("the one that is cut off leads")
	}
	if _, err := led.Do(t.Context(), fencing.ReleaseRequest{Name: "a", Lease: r.Lease}); err != nil {
		t.Errorf("a release at the others: %v", err)
	}
	asking.Wait()
	c.hub.setCut(old.self.Address, false)
	c.awaitLeader()
	out, err := old.Do(t.Context(), fencing.InspectRequest{Name: "a"})
	if err != nil || out.Lock.Held() {
		t.Errorf("the one that was cut off shows %+v, %v; the lease was released", out.Lock, err)
	}
}
