package raft

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/internal/fencing"
)

// shows fails the test unless people are shown a time, by a node, with less of an error than is promised.
func shows(t *testing.T, n *node, what string, at fencing.Instant, want time.Time) {
	t.Helper()
	if got := n.Capabilities().WallTime(at); got.Sub(want).Abs() > leastWallStep {
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
				out, err := n.Inspect(t.Context(), fencing.InspectRequest{Name: g.Name})
				if err != nil || !out.Lock.Held() {
					t.Fatal(out.Lock, err)
				}
				h := &out.Lock.Holders[0]
				shows(t, n, "the time of a read", out.Now, wall.read().Time())
				shows(t, n, "the time of a grant", h.AcquiredAt, g.at)
				shows(t, n, "the end of a lease", h.ExpiresAt, wall.read().Time().Add(h.ExpiresAt.Sub(out.Now)))
			}
			g := grant{acquire(fencing.Name(fmt.Sprintf("n%d-%d", round, i)), 1000*time.Hour), wall.read().Time()}
			out, err := n.Acquire(t.Context(), g.AcquireRequest)
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
	if _, err := c.nodes[0].Release(t.Context(), fencing.ReleaseRequest{Name: "n0-0", Lease: granted[0].Lease}); err != nil {
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
		out, err := n.History(t.Context(), fencing.HistoryRequest{Name: "n0-0"})
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
	var leader, follower wallSteps
	leader.note(now, now)
	follower.note(now, now)
	leader.note(now.Add(time.Minute), now.Add(time.Hour))
	leader.note(now.Add(2*time.Minute), now.Add(9*time.Hour))
	follower.hear(leader.since(follower.newest())[1:]) // with a message
	follower.hear(leader.since(follower.newest()))     // with an answer
	follower.hear([]wallStep{{From: int64(now), Ahead: 1}})
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
	follower.note(now.Add(time.Minute), now.Add(time.Hour)) // it carries out the entries
	follower.note(now.Add(2*time.Minute), now.Add(9*time.Hour))
	if n := len(loaded(&follower.shown)); n != 3 {
		t.Errorf("%d steps are shown by in the end", n)
	}
}

// Of more changes of the wall clock than are kept the smallest are forgotten.
func TestWallStepsAreBounded(t *testing.T) {
	var w wallSteps
	now := fencing.InstantOf(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	at := map[fencing.Instant]time.Time{}
	ahead := time.Duration(0)
	for i := range 4 * mostWallSteps {
		now = now.Add(time.Minute)
		if ahead += time.Second; i%8 == 0 {
			ahead += time.Hour
			at[now] = now.Add(ahead).Time()
		}
		if i%16 == 15 { // smaller than all that are kept
			ahead += leastWallStep - 2*time.Second
		}
		w.note(now, now.Add(ahead))
		if w.differs(now, now.Add(ahead)) || w.time(now) != now.Add(ahead).Time() {
			t.Fatalf("change %d: the time of now is shown as %s, want %s", i, w.time(now), now.Add(ahead).Time())
		}
		if n := len(w.load()); n > mostWallSteps {
			t.Fatalf("%d are kept", n)
		}
	}
	if !slices.IsSortedFunc(w.load(), func(a, b wallStep) int { return int(a.From - b.From) }) {
		t.Error("they are in no order")
	}
	for at, want := range at {
		if got := w.time(at); got.Sub(want).Abs() > time.Minute {
			t.Errorf("a time is shown %s late", want.Sub(got))
		}
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
			if _, err := n.Inspect(t.Context(), fencing.InspectRequest{Name: "a"}); err != nil {
				t.Fatal(err)
			}
		}
		return n.raft.LastIndex()
	}
	before := entries()
	for i, more := range []time.Duration{0, time.Hour, leastWallStep / 2, leastWallStep} {
		ahead.Add(int64(more))
		want := before
		if more == time.Hour || more == leastWallStep {
			want++
		}
		if before = entries(); before != want {
			t.Errorf("change %d: the log ends at %d, want %d", i, before, want)
		}
	}
}
