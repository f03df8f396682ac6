package raft

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

// shows fails the test unless people are shown a time, by a node, with less of an error than is promised.
func shows(t *testing.T, n *node, what string, at fencing.Instant, want time.Time) {
	t.Helper()
	if got := n.Capabilities().WallTime(at); got.Sub(want).Abs() > machine.LeastWallStep {
		t.Errorf("node %s shows %s as %s, by the wall clock it is %s", n.self.ID, what, got.Format(time.DateTime), want.UTC().Format(time.DateTime))
	}
}

// What people are shown is the wall clock's, also after hours without a leader, and when a clock is set back: at each
// node, from the first answer on, of the past as of what is to come.
func TestTimesShownAreTheWallClocks(t *testing.T) {
	clocks := make([]*testClock, 3)
	wall := newTestClock()
	edit := ownClocks(clocks)
	c := newCluster(t, 3, func(i int, o *Options) {
		edit(i, o)
		o.wall = func() time.Time { return wall.read().Time() }
	})
	pass := func(d time.Duration) {
		wall.advance(d)
		for _, clock := range clocks {
			clock.advance(d)
		}
	}
	newest := map[fencing.Name]fencing.Event{}
	events := make(chan fencing.Event, 100)
	defer c.nodes[1].Watch(sink(events))()

	type grant struct {
		fencing.AcquireRequest
		at time.Time
	}
	var granted []grant
	for round := range 5 {
		if round > 0 {
			c.elect(round % 3)
			leader := c.awaitLeader()
			wall.advance([]time.Duration{8 * time.Hour, 400 * time.Millisecond, -3 * time.Hour, 49 * time.Hour}[round-1])
			pass(time.Millisecond) // its first entry comes later than the last one of the leader before
			if round == 4 {        // only a snapshot has what was before
				compacted(t, leader)
			}
		}
		for i, n := range c.nodes {
			for _, g := range granted { // a read alone, by a leader that has written nothing yet
				out, err := n.Do(t.Context(), fencing.InspectRequest{Name: g.Name})
				if err != nil || !out.Lock.Held() {
					t.Fatal(out.Lock, err)
				}
				h := &out.Lock.Holders[0]
				shows(t, n, "the time of a read", out.Now, wall.read().Time())
				shows(t, n, "the time of a grant", h.AcquiredAt, g.at)
				shows(t, n, "the end of a lease", h.ExpiresAt, wall.read().Time().Add(h.ExpiresAt.Sub(out.Now)))
			}
			g := grant{acquire(fencing.Name(fmt.Sprintf("n%d-%d", round, i)), 1000*time.Hour), wall.read().Time()}
			out, err := n.Do(t.Context(), g.AcquireRequest)
			if err != nil {
				t.Fatal(err)
			}
			shows(t, n, "a grant", out.Holder.AcquiredAt, g.at)
			granted = append(granted, g)
			for newest[g.Name].Kind != fencing.EventGranted {
				e := <-events
				newest[e.Name] = e
			}
			shows(t, c.nodes[1], "the event of a grant", newest[g.Name].At, g.at)
			pass(time.Second)
		}
	}
	ended := wall.read().Time()
	if _, err := c.nodes[0].Do(t.Context(), fencing.ReleaseRequest{Name: "n0-0", Lease: granted[0].Lease}); err != nil {
		t.Fatal(err)
	}
	pass(time.Hour)
	for i := range c.nodes { // from the log and the snapshots
		c.nodes[i].Close()
	}
	wall.advance(100 * time.Hour)
	for i := range c.nodes {
		c.reopen(i)
	}
	c.elect(2)
	c.awaitLeader()
	pass(time.Millisecond)
	for _, n := range c.nodes {
		out, err := n.Do(t.Context(), fencing.HistoryRequest{Name: "n0-0"})
		if err != nil || len(out.Past) != 1 {
			t.Fatal(out.Past, err)
		}
		shows(t, n, "a grant that is past", out.Past[0].Holder.AcquiredAt, granted[0].at)
		shows(t, n, "the end of a lease that is past", out.Past[0].At, ended)
		shows(t, n, "the time of a read", out.Now, wall.read().Time())
	}
}

// sink hands events on.
type sink chan fencing.Event

func (s sink) Event(e fencing.Event) { s <- e }
func (s sink) Gap()                  {}

// A follower that has not carried out yet what its leader answers from shows the right time.
func TestTimesOfALeaderThatIsAhead(t *testing.T) {
	now := fencing.InstantOf(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	var leader, follower wallClock
	steps := machine.WallSteps{{From: int64(now)}, {From: int64(now.Add(time.Minute)), Ahead: (59 * time.Minute).Microseconds()}}
	steps = append(steps, machine.WallStep{From: int64(now.Add(2 * time.Minute)), Ahead: (9*time.Hour - 2*time.Minute).Microseconds()})
	follower.follow(steps[:1])
	leader.follow(steps)
	follower.hear(leader.steps().Since(follower.steps().Newest())[1:]) // with a message
	follower.hear(leader.steps().Since(follower.steps().Newest()))     // with an answer
	follower.hear(machine.WallSteps{{From: int64(now), Ahead: 1}})
	if n := len(loaded(&follower.shown)); n != 3 {
		t.Errorf("%d steps are shown by", n)
	}
	for at, want := range map[time.Duration]time.Duration{
		59 * time.Second: 59 * time.Second,
		time.Minute:      time.Hour,
		2 * time.Minute:  9 * time.Hour,
		time.Hour:        10*time.Hour - 2*time.Minute,
	} {
		if got := follower.time(now.Add(at)).Sub(now.Time()); got != want {
			t.Errorf("%s is shown as %s, want %s", at, got, want)
		}
	}
	follower.follow(steps[:2]) // it carries out the entries
	follower.follow(steps)
	if n := len(loaded(&follower.shown)); n != 3 {
		t.Errorf("%d steps are shown by in the end", n)
	}
}

// While nothing is written a read writes down the wall clock once, and not again.
func TestReadsWriteTheWallClockOnce(t *testing.T) {
	clock := newTestClock()
	var ahead atomic.Int64
	c := newCluster(t, 1, func(_ int, o *Options) {
		o.monotonic, o.wall = clock.since, func() time.Time { return clock.read().Time().Add(time.Duration(ahead.Load())) }
	})
	n := c.nodes[0]
	entries := func() uint64 {
		for range 3 {
			if _, err := n.Do(t.Context(), fencing.InspectRequest{Name: "a"}); err != nil {
				t.Fatal(err)
			}
		}
		return n.raft.LastIndex()
	}
	before := entries()
	for i, more := range []time.Duration{0, time.Hour, machine.LeastWallStep / 2, machine.LeastWallStep} {
		ahead.Add(int64(more))
		want := before
		if more == time.Hour || more == machine.LeastWallStep {
			want++
		}
		if before = entries(); before != want {
			t.Errorf("change %d: the log ends at %d, want %d", i, before, want)
		}
	}
}
