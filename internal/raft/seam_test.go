package raft

import (
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/internal/embedded"
	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
)

// twoClocks are those of a machine: the wall clock can be set, and goes on while the machine is suspended.
type twoClocks struct{ monotonic, wall atomic.Int64 }

func newTwoClocks(wall fencing.Instant) *twoClocks {
	c := &twoClocks{}
	c.monotonic.Store(int64(fencingtest.Epoch))
	c.wall.Store(int64(wall))
	return c
}

func (c *twoClocks) pass(d time.Duration) {
	c.monotonic.Add(d.Microseconds())
	c.set(d)
}
func (c *twoClocks) set(by time.Duration)      { c.wall.Add(by.Microseconds()) }
func (c *twoClocks) now() fencing.Instant      { return fencing.Instant(c.monotonic.Load()) }
func (c *twoClocks) wallNow() fencing.Instant  { return fencing.Instant(c.wall.Load()) }
func (c *twoClocks) since() time.Duration      { return c.now().Sub(fencingtest.Epoch) }
func (c *twoClocks) wallTime() time.Time       { return c.wallNow().Time() }
func (c *twoClocks) options() embedded.Options { return embedded.Options{Now: c.now, Wall: c.wallNow} }

// driver is one of those that keep a log in a directory: a store without peers, or a cluster of so many nodes, of which the first one
// has the directory.
type driver int

const withoutAny driver = 0

func (d driver) String() string {
	return []string{"embedded", "a cluster of one", "", "a cluster of three"}[d]
}

// open opens a store. Where it lags, its time has stood still for a day when it is returned. end leaves a directory that any driver may
// go on with.
func (d driver) open(t *testing.T, dir string, clocks *twoClocks, lags bool) (s fencing.Store, end func()) {
	t.Helper()
	if lags && d != 3 {
		s, end := d.open(t, dir, clocks, false)
		mustHold(t, s, acquire("long ago", time.Second))
		end()
		clocks.pass(26 * time.Hour)
	}
	if d == withoutAny {
		o := clocks.options()
		o.Dir = dir
		s, err := embedded.Open(o)
		if err != nil {
			t.Fatal(err)
		}
		return s, func() {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	c := newCluster(t, int(d), func(i int, o *Options) {
		if o.wall, o.monotonic = clocks.wallTime, clocks.since; i == 0 {
			o.Dir = dir
		}
	})
	first := c.nodes[0]
	for i := 1; lags && d == 3 && i >= 0; i-- { // the leader is killed, and the next one elected long after
		mustHold(t, first, acquire(fencing.Name(fmt.Sprint("long ago ", i)), time.Second))
		clocks.pass(13 * time.Hour)
		c.elect(i)
		c.awaitLeader()
	}
	return first, func() {
		for _, n := range c.nodes[1:] { // as gateway cluster remove
			if err := first.raft.RemoveServer(raft.ServerID(n.self.ID), 0, 0).Error(); err != nil {
				t.Fatal(err)
			}
		}
		c.close()
		for _, n := range c.nodes {
			n.Store = nil
		}
	}
}

// history is what clocks did before and while a store ran that another one goes on from.
type history struct {
	name   string
	first  fencing.Instant         // what the wall clock shows at the first start; 0: the time
	lags   bool                    // nobody has led or served for a day
	before func(clocks *twoClocks) // anything is promised
	during func(clocks *twoClocks) // when all is promised
	after  func(clocks *twoClocks) // while it is down
}

var histories = []history{
	{name: "nothing"},
	{name: "a day without anybody who serves", lags: true},
	{name: "set forward before", before: func(c *twoClocks) { c.set(time.Hour) }},
	{name: "set back before", before: func(c *twoClocks) { c.set(-time.Hour) }},
	{name: "set forward when all is promised, or suspended", during: func(c *twoClocks) { c.set(time.Hour) }},
	{name: "set back when all is promised", during: func(c *twoClocks) { c.set(-time.Hour) }},
	{name: "set back while down", after: func(c *twoClocks) { c.set(-time.Hour) }},
	{name: "first start in 2010, set right before", first: in2010, before: func(c *twoClocks) { c.set(fencingtest.Epoch.Sub(in2010)) }},
	{name: "first start in 2010, set right when all is promised", first: in2010, during: func(c *twoClocks) { c.set(fencingtest.Epoch.Sub(in2010)) }},
	{name: "first start in 2010, set right while down", first: in2010, after: func(c *twoClocks) { c.set(fencingtest.Epoch.Sub(in2010)) }},
}

var in2010 = fencing.InstantOf(time.Date(2010, 1, 1, 0, 0, 0, 0, time.UTC))

// P1, P2, P4, P9: whichever driver goes on with a directory, whichever had it before, and whatever the wall clock did but for being set
// forward while nobody ran: what was promised to a client for a time is kept for that time, and ends; tokens grow.
func TestPromisesOutliveWhoeverMadeThem(t *testing.T) {
	for _, before := range []driver{withoutAny, 1, 3} {
		for _, after := range []driver{withoutAny, 1} {
			for _, h := range histories {
				t.Run(fmt.Sprintf("%s, then %s: %s", before, after, h.name), func(t *testing.T) {
					t.Parallel()
					h.play(t, before, after)
				})
			}
		}
	}
}

// promise is that nobody else is granted a name for a while.
type promised struct {
	name fencing.Name
	r    fencing.AcquireRequest // of who holds it; none if nobody does
	for_ time.Duration
}

func (h history) play(t *testing.T, before, after driver) {
	dir := filepath.Join(t.TempDir(), "data")
	first := h.first
	if first == 0 {
		first = fencingtest.Epoch.Add(300 * 24 * time.Hour)
	}
	clocks := newTwoClocks(first)
	s, end := before.open(t, dir, clocks, h.lags)
	mustHold(t, s, acquire("earlier", time.Hour))
	if h.before != nil {
		h.before(clocks)
	}
	all, ended, highest := promise(t, s)
	if h.during != nil {
		clocks.pass(time.Millisecond)
		h.during(clocks)
	}
	clocks.pass(time.Second)
	end()
	clocks.pass(2 * time.Second)
	if h.after != nil {
		h.after(clocks)
	}
	s, end = after.open(t, dir, clocks, false)
	defer end()
	for _, passed := range []time.Duration{3 * time.Second, 49 * time.Second, 10 * time.Minute} {
		clocks.pass(passed - sinceAll(passed))
		for _, p := range all {
			out, err := s.Do(t.Context(), acquire(p.name, time.Second))
			if passed < p.for_ && err == nil {
				t.Errorf("%s is granted after %s, and was promised for %s", p.name, passed, p.for_)
			}
			if passed > 2*time.Minute && (err != nil || out.Holder.Token <= highest) {
				t.Errorf("%s is not free after %s, or its token %d is not above %d: %v", p.name, passed, out.Holder.Token, highest, err)
			}
		}
		if passed < fencing.TombstoneTTL {
			if _, err := s.Do(t.Context(), fencing.ReleaseRequest{Name: ended.Name, Lease: ended.Lease}); err != nil {
				t.Errorf("what was released can't be released again after %s: %v", passed, err)
			}
			if _, err := s.Do(t.Context(), ended); code(err) != fencing.CodeLeaseLost {
				t.Errorf("a lease id that was used is used again after %s: %v", passed, err)
			}
		}
	}
}

// sinceAll returns how much of it has passed at the check before.
func sinceAll(passed time.Duration) time.Duration {
	switch passed {
	case 3 * time.Second:
		return passed
	case 49 * time.Second:
		return 3 * time.Second
	}
	return 49 * time.Second
}

func mustHold(t *testing.T, s fencing.Store, r fencing.AcquireRequest) fencing.Holder {
	t.Helper()
	out, err := s.Do(t.Context(), r)
	if err != nil || out.Holder.Token == 0 {
		t.Fatal(out, err)
	}
	return out.Holder
}

// promise has a store promise all that it can, and returns a lease that has ended as well, and the highest token.
func promise(t *testing.T, s fencing.Store) (all []promised, ended fencing.AcquireRequest, highest fencing.Token) {
	do := func(op fencing.Op) {
		t.Helper()
		if _, err := s.Do(t.Context(), op); err != nil {
			t.Fatal(err)
		}
	}
	hold := func(r fencing.AcquireRequest) fencing.Token {
		t.Helper()
		highest = max(highest, mustHold(t, s, r).Token)
		return highest
	}
	ttl := acquire("ttl", time.Minute)
	hold(ttl)
	bound := acquire("max hold", time.Minute)
	bound.MaxHold = time.Minute
	hold(bound)
	delayed := acquire("lock delay", time.Minute)
	delayed.LockDelay = 50 * time.Second
	do(fencing.BreakRequest{Name: delayed.Name, Token: hold(delayed)})
	noticed := acquire("notice", time.Minute)
	do(fencing.BreakRequest{Name: noticed.Name, Token: hold(noticed), Notice: 50 * time.Second})
	told := acquire("notice of less than it was told", time.Minute)
	do(fencing.BreakRequest{Name: told.Name, Token: hold(told), Notice: time.Second})
	lingers := acquire("linger", time.Minute)
	lingers.Attach = true
	hold(lingers)
	do(fencing.ReleaseRequest{Name: lingers.Name, Lease: lingers.Lease, Stamp: lingers.Stamp, Linger: 50 * time.Second})
	ended = acquire("tombstone", time.Minute)
	hold(ended)
	do(fencing.ReleaseRequest{Name: ended.Name, Lease: ended.Lease})
	return []promised{
		{ttl.Name, ttl, time.Minute}, {bound.Name, bound, time.Minute}, {delayed.Name, fencing.AcquireRequest{}, 50 * time.Second},
		{noticed.Name, noticed, 50 * time.Second}, {told.Name, told, time.Minute}, {lingers.Name, lingers, 50 * time.Second},
	}, ended, highest
}
