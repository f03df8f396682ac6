package sessions

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"fencepost/verify/check"
	"fencepost/verify/system"
)

const (
	// bound is how long after a loss of messages a stream hears at the latest that it was replaced.
	bound = 2 * time.Second

	long  = time.Minute            // a TTL that nothing here waits for
	batch = 200                    // groups, or clients that leave, at once
	side  = 8                      // what is asked for side by side
	most  = 6 * time.Millisecond   // from a POST until its client leaves
	late  = 120 * time.Millisecond // what a slow store takes for an answer
)

// Streams says how much is done to streams with one lease id.
type Streams struct {
	Groups  int // pairs and triples of POSTs that are sent together
	Leavers int // clients that close or reset on the way
	Broken  int // sessions that gain a name while one they have is broken
	Losses  int // times that messages are lost, and that a gateway stands still; with two gateways at least
}

// load is what all of it shares.
type load struct {
	s      *system.System
	r      *check.Result
	client *system.Client

	most   int          // names of a session
	untold atomic.Int64 // clients that left before they were told anything

	mu     sync.Mutex
	order  []string
	counts map[string][2]int // cases, and those that went wrong
	told   time.Duration     // the longest until a stream was told that it is replaced
}

// Run has everything happen, with sessions that gain and release names beside what leaves gateways alone.
func (n Streams) Run(ctx context.Context, s *system.System, r *check.Result) error {
	l := &load{s: s, r: r, client: system.NewClient(2 * side), most: 2, counts: map[string][2]int{}}
	defer l.client.Close()
	if s.Kind == system.Quorum {
		l.most, n.Broken = 1, 0
	}
	var beside sync.WaitGroup
	var over atomic.Bool
	for who := range 4 * (l.most - 1) {
		beside.Go(func() {
			random := r.Random(2_000_000 + who)
			for round := 0; !over.Load() && ctx.Err() == nil; round++ {
				l.note("sessions that did not gain a name and release one", l.gain(ctx, random, fmt.Sprintf("streams/gain/%d/%d/", who, round)))
			}
		})
	}
	err := l.together(ctx, n.Groups)
	if err == nil {
		err = l.leave(ctx, n.Leavers)
	}
	over.Store(true)
	beside.Wait()
	if err == nil {
		err = l.breaks(ctx, n.Broken)
	}
	for i := range n.Losses * min(len(s.Gateways)-1, 1) {
		if err == nil && len(s.Servers) > 0 {
			err = l.lose(ctx, i, "pub/sub cut")
		}
		if err == nil {
			err = l.lose(ctx, i, "gateway stopped")
		}
	}
	for _, what := range l.order {
		r.Count(what, fmt.Sprintf("%d of %d", l.counts[what][1], l.counts[what][0]))
	}
	r.Count("longest until a stream was told replaced", l.told)
	return err
}

// note counts a case, and what was wrong with it, if anything.
func (l *load) note(what string, wrong error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, known := l.counts[what]
	if !known {
		l.order = append(l.order, what)
	}
	n[0]++
	if wrong != nil {
		n[1]++
		l.r.Violation("%s: %v", what, wrong)
	}
	l.counts[what] = n
}

// group is streams with one lease id, and what is asked for.
type group struct {
	prefix    string // of the names, which are a, b and so on below it
	leaseID   string
	names     []string
	ttl, wait time.Duration
	streams   []*conn
	since     time.Time // all requests have been answered, and nothing is lost any more
}

func newGroup(random *rand.Rand, prefix string, names int, ttl time.Duration) *group {
	g := &group{prefix: prefix, leaseID: fmt.Sprintf("01%08X%016X.%016x%016x", random.Uint32(), random.Uint64(), random.Uint64(), random.Uint64()), ttl: ttl}
	for i := range names {
		g.names = append(g.names, prefix+string(rune('a'+i)))
	}
	return g
}

// send asks for a stream with so many of the names.
func (g *group) send(at *system.Gateway, names int) (*conn, error) {
	path, body := "/locks", map[string]any{"ttl_ms": g.ttl.Milliseconds()}
	if len(g.names) == 1 {
		path += "/" + g.names[0]
	} else {
		body["names"] = g.names[:names]
	}
	if g.wait > 0 {
		body["wait_ms"] = g.wait.Milliseconds()
	}
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	return post(at.URL()+path, g.leaseID, string(text))
}

// open sends it until it is granted: a gateway that has just lost its leader refuses for a while.
func (g *group) open(at *system.Gateway, names int) error {
	for deadline := time.Now().Add(patience); ; <-time.After(10 * look) {
		c, err := g.send(at, names)
		if err == nil {
			if err = c.await(); err == nil {
				g.streams = append(g.streams, c)
				return nil
			}
			c.kill()
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%v: %w", g.names, err)
		}
	}
}

// mark is when all streams but one must have ended. No renewal of a long TTL is due before.
func (g *group) mark() time.Time {
	if g.ttl == long {
		return g.since.Add(bound + slack)
	}
	return g.since.Add(max(2*g.ttl, bound+slack))
}

func (g *group) said() (all [][]event) {
	for _, c := range g.streams {
		all = append(all, c.said())
	}
	return all
}

func (g *group) close() {
	for _, c := range g.streams {
		c.kill()
	}
}

// ended returns the event that ended a stream, if it has ended.
func ended(events []event) (last event, yes bool) {
	for _, e := range events {
		switch e.kind {
		case "refused", "lost", "draining", "closed":
			return e, true
		}
	}
	return last, false
}

// await waits until something holds, for so long.
func await(within time.Duration, holds func() bool) bool {
	for deadline := time.Now().Add(within); !holds(); <-time.After(look) {
		if time.Now().After(deadline) {
			return holds()
		}
	}
	return true
}

// each does something n times, so many at once.
func each(n, parallel int, do func(i int) error) error {
	errs := make([]error, n)
	slots := make(chan struct{}, parallel)
	var work sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		work.Go(func() {
			errs[i] = do(i)
			<-slots
		})
	}
	work.Wait()
	return errors.Join(errs...)
}

var errNone = errors.New("all streams were told that they are replaced")

// judge says what is wrong with the streams of one lease after the mark: one goes on, and says
// renewed if it is long enough that it has to; each other one was told that it is replaced.
func judge(streams [][]event, mark time.Time, renewals bool) error {
	left, renewing := 0, 0
	for _, events := range streams {
		if last, over := ended(events); over && last.Code != "replaced" {
			return fmt.Errorf("a stream ended with %s %s", last.kind, last.Code)
		} else if !over {
			left++
			if slices.ContainsFunc(events, func(e event) bool { return e.kind == "renewed" && !e.at.Before(mark) }) {
				renewing++
			}
		}
	}
	if left == 0 {
		return errNone
	}
	if left != 1 || renewals && renewing == 0 {
		return fmt.Errorf("%d of %d streams are left, %d of them say renewed", left, len(streams), renewing)
	}
	return nil
}

// settle waits until a group can be judged, and judges it.
func (l *load) settle(g *group) error {
	<-time.After(time.Until(g.mark()))
	verdict := func() error { return judge(g.said(), g.mark(), g.ttl != long) }
	await(slack, func() bool { return verdict() == nil }) // who is left says so within a third of its TTL
	for _, events := range g.said() {
		if last, over := ended(events); over && last.Code == "replaced" {
			l.mu.Lock()
			l.told = max(l.told, last.at.Sub(g.since))
			l.mu.Unlock()
		}
	}
	return verdict()
}
