package client

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"fencepost/internal/fencing"
)

const (
	// simSlack is what the bubble's network and the judge's looks take.
	simSlack = 30 * time.Millisecond

	// simSettles is how long a renewal takes in a network without trouble, and some more.
	simSettles = 100 * time.Millisecond

	// simLook is how often a belief is looked at that the store contradicts.
	simLook = 10 * time.Millisecond
)

// simJudge holds what clients believe against what the store has granted.
type simJudge struct {
	sim *simulation

	mu      sync.Mutex
	last    map[string]simGrant // by name
	kept    map[string]simKept  // by name, for AtLeast
	beliefs map[*belief]bool
	granted chan struct{} // has a value when the store has granted something
}

// simGrant is the newest grant of a name.
type simGrant struct {
	token int64
	lease string
	at    time.Time
}

// simKept is until when nobody else gets a name that was released.
type simKept struct {
	lease string
	until time.Time
}

// Event implements fencing.EventSink.
func (j *simJudge) Event(e fencing.Event) {
	if e.Kind != fencing.EventGranted {
		return
	}
	j.mu.Lock()
	j.last[string(e.Name)] = simGrant{int64(e.Token), string(e.Lease), time.Now()}
	kept := j.kept[string(e.Name)]
	j.mu.Unlock()
	if early := time.Until(kept.until); early > 0 && kept.lease != string(e.Lease) {
		j.sim.fault("%s was to be kept, and is granted to %s %s too soon", e.Name, e.Lease, early)
	}
	j.sim.note("the store grants %s to %s (%s)", e.Name, e.Lease, e.Owner)
	select {
	case j.granted <- struct{}{}:
	default:
	}
}

// Gap implements fencing.EventSink.
func (j *simJudge) Gap() {}

// belief is a lease that a client has, until it lets go of it.
type belief struct {
	sim    *simulation
	client *simClient
	hold   *simHold
	l      *Lease
	grants []Grant // at first
	asked  time.Time
	ttl    time.Duration // the longest that it was asked for
	latest time.Duration // that it was asked for last
	called time.Time     // when that was
	guilty map[string]bool
	judged bool // that it has ended in a calm schedule

	releases *simReleases // of all Leases with its id
}

// simReleases has nobody acquire with a lease id beside a release, nor after one: what is carried out late ends what was found.
type simReleases struct {
	turn  chan struct{} // of one at a time
	asked bool
	names []string // of which one is asked for; the mutex of the judge guards it
}

func newSimReleases() *simReleases { return &simReleases{turn: make(chan struct{}, 1)} }

// believes has the judge look at a lease.
func (s *simulation) believes(c *simClient, h *simHold, l *Lease, asked time.Time, releases *simReleases) *belief {
	b := &belief{sim: s, client: c, hold: h, l: l, grants: l.Grants(), asked: asked, ttl: h.ttl, latest: h.ttl, called: time.Now(), guilty: map[string]bool{}, releases: releases}
	j := &s.judge
	j.mu.Lock()
	j.beliefs[b] = true
	j.mayLast(l.ID(), h.ttl)
	j.mu.Unlock()
	s.count("leases")
	s.look()
	return b
}

// mayLast notes for how long a lease was asked for, of all Leases with its id. The caller holds mu.
func (j *simJudge) mayLast(id string, ttl time.Duration) {
	longest := ttl
	for b := range j.beliefs {
		if b.l.ID() == id {
			longest = max(longest, b.ttl)
		}
	}
	for b := range j.beliefs {
		if b.l.ID() == id {
			b.ttl = longest
		}
	}
}

// lets ends the belief: the client releases it.
func (b *belief) lets() {
	b.sim.look()
	j := &b.sim.judge
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.beliefs, b)
	if err := b.l.Err(); err != nil && b.sim.plan.kind.name == "calm" && !b.judged && b.hold.maxHold == 0 {
		b.sim.fault("%s ends, and nothing has happened: %v", b, err)
	}
}

func (b *belief) String() string {
	return fmt.Sprintf("%s of client %d, %v", b.l.Public(), b.client.n, b.hold)
}

// looks judges whenever the store grants something, and goes on as long as anybody believes in what others have.
func (s *simulation) looks() {
	for {
		select {
		case <-s.judge.granted:
		case <-s.ended:
			return
		}
		for s.look() {
			advance(simLook)
		}
	}
}

// look judges all beliefs now, and reports whether any of them is contradicted.
func (s *simulation) look() (contradicted bool) {
	j := &s.judge
	j.mu.Lock()
	defer j.mu.Unlock()
	for b := range j.beliefs {
		has := b.l.held()
		for _, g := range b.grants {
			last := j.last[g.Name]
			if slices.Contains(b.releases.names, g.Name) && !slices.Contains(has, g.Name) || last.token <= g.Token || b.l.Context().Err() != nil {
				continue
			}
			contradicted = true
			if b.client.stands() || b.l.Err() != nil { // it asks nothing, or does not know for the moment
				continue
			}
			now := time.Now()
			allowed, why := b.allowed()
			if !now.After(allowed) {
				s.count("allowed: " + why)
				continue
			}
			if !b.guilty[g.Name] {
				b.guilty[g.Name] = true
				s.fault("%s is believed in, and %s was granted to %s %s ago (remaining %s, allowed until %s %s)", b, g.Name, last.lease, now.Sub(last.at), b.l.Remaining(), allowed.Sub(s.began), why)
			}
		}
	}
	return contradicted
}

// allowed returns until when a lease may be believed in that has ended, as documented, and why. Only these are allowed:
//
// All clocks of the client stood still: nothing tells it so. What it counted across that may be wrong by so much, and a TTL later
// nothing is left of it. So it is where its clocks run at another rate and it stood still, for an event that lay in its socket may be
// as old as that.
//
// A request for a stream that was never answered is carried out late, after the lease was taken over from the stream that was granted: its
// end releases the lease, and until its next renewal the client does not know. Where the stream lives that was granted, it says so.
//
// Of an attached lease, the gateway has seen the end of a stream that the client has not: the lease is released, or
// lingers, and the client's deadline is that of the last event or answer that it read.
func (b *belief) allowed() (until time.Time, why string) {
	c := b.client
	c.mu.Lock()
	froze, streams := c.froze, c.streams[b.l.Public()]
	heard := c.net.heard() // also the answer to a renewal beside the stream
	c.mu.Unlock()
	now, life := time.Now(), time.Duration(float64(b.ttl)/min(c.rate, 1))+simSlack
	allow := func(t time.Time, reason string) {
		if t.After(until) {
			until, why = t, reason
		}
	}
	if froze.After(b.asked) {
		allow(froze.Add(life), "it stood still")
	}
	told := func(since time.Time) bool { // that a request which was carried out then, or later, had replaced a stream
		return slices.ContainsFunc(streams, func(asked simAsked) bool {
			said, read := asked.conn.isReplaced()
			return !said.Before(since) && !read.IsZero() && read.Before(now)
		})
	}
	for _, asked := range streams {
		conn := asked.conn
		end := conn.seen(toClient)
		if conn.isClosed() && told(conn.carriedOut()) {
			continue
		}
		if late := conn.seen(toGateway); !late.IsZero() && conn.read() == asked.reads {
			allow(late.Add(life), "a request for a stream was carried out late")
		}
		if !conn.seen(toGateway).IsZero() && (end.IsZero() || !end.Before(now)) { // at the same instant one comes to know it after the other
			allow(heard.Add(life), "only the gateway has seen the end")
		}
	}
	return until, why
}

// renewed judges what a lease believes after a call of the same client has renewed it.
func (b *belief) renewed(ttl, left time.Duration, err error) {
	j := &b.sim.judge
	j.mu.Lock()
	j.mayLast(b.l.ID(), ttl)
	j.mu.Unlock()
	if err != nil || b.sim.plan.kind.name != "calm" || b.hold.maxHold > 0 {
		return
	}
	if b.hold.attached && len(b.hold.names) > 1 {
		ttl = min(ttl, b.hold.ttl) // its gateway may renew it with that meanwhile
	}
	b.latest, b.called = ttl, time.Now()
	if remains, err := b.l.Remaining(), b.l.Err(); remains > left+simSlack {
		b.sim.fault("%s is renewed for %s, and %s remains", b, left, remains)
	} else if err != nil {
		b.sim.fault("%s is renewed for %s, and %s remains (%v)", b, left, remains, err)
	}
	advance(simSettles) // it may have been renewed with what was asked for before at the same time
	if remains := b.l.Remaining(); remains < min(left, ttl)*3/4-simSettles-simSlack {
		b.sim.fault("%s was renewed for %s, and %s remains %s later", b, left, remains, simSettles)
	}
}

// left has the judge see that nobody gets what was released, with AtLeast, before that time is over by the client's clocks.
func (b *belief) left(err error) {
	if b.hold.least == 0 || b.hold.attached || err != nil {
		return
	}
	j := &b.sim.judge
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, g := range b.l.Grants() {
		if j.last[g.Name].token == g.Token {
			j.kept[g.Name] = simKept{b.l.Public(), b.asked.Add(time.Duration(float64(b.hold.least) / max(b.client.rate, 1)))}
		}
	}
}

// mayEnd has nobody wonder that the lease ends in a calm schedule.
func (b *belief) mayEnd() {
	j := &b.sim.judge
	j.mu.Lock()
	defer j.mu.Unlock()
	b.judged = true
}

// released judges it after one has let go of it.
func (b *belief) released(err error) {
	b.mayEnd()
	if err == nil && b.l.Err() == nil {
		b.sim.fault("%s is released, and believed in", b)
	}
}

// stays judges a lease in a calm schedule, some time after the last call: it is renewed with what that asked for.
func (b *belief) stays() {
	if b.sim.plan.kind.name != "calm" || b.judged || b.hold.maxHold > 0 || time.Since(b.called) < b.latest {
		return
	}
	if remains := b.l.Remaining(); remains < b.latest/2 {
		b.sim.fault("%s was renewed for %s, and %s remains", b, b.latest, remains)
	}
}
