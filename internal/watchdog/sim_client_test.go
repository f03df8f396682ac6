package watchdog

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"fencepost/internal/fencing"
)

// simLease is what is true of a lease id, whatever gateways and store think.
type simLease struct {
	name fencing.Name
	mode fencing.Mode

	asking  int         // requests whose client is connected
	at      *simGateway // where the newest is; were: where all were
	since   time.Time   // when that reached it
	gone    time.Time   // when the client gave up; zero while it has not
	open    int         // requests of which nobody knows what they came to
	excused bool        // it may be left to its TTL: a gateway died on it, its client, or see crossed
	were    []*simGateway

	token fencing.Token // as the client was told; 0 before
	run   int           // who served then
	until time.Time     // the client believes in its lease before this instant
	given bool          // the client has given it back, or knows that it lost it
}

// believed reports whether the client believes to hold the lock at now.
func (l *simLease) believed(now time.Time) bool {
	return l.token != 0 && !l.given && now.Before(l.until)
}

// simClient comes, waits, holds, leaves and comes back.
type simClient struct {
	sim  *simulation
	n    int
	rand *rand.Rand
	made int
}

func (c *simClient) upTo(d time.Duration) time.Duration {
	return time.Duration(c.rand.Int64N(int64(d)))
}

func (c *simClient) oneIn(n int) bool { return c.rand.IntN(n) == 0 }

// lease makes up the next lease id of the client.
func (c *simClient) lease() fencing.LeaseID {
	c.made++
	id, err := fencing.ParseLeaseID(fmt.Sprintf("01KD%022d.%022d", c.n*1000+c.made, c.n))
	if err != nil {
		panic(err)
	}
	return id
}

func (c *simClient) live() {
	for !c.sim.ended() {
		advance(c.upTo(3 * time.Second))
		r := fencing.AcquireRequest{
			Name: simNames[c.rand.IntN(len(simNames))], Lease: c.lease(), Mode: fencing.ModeExclusive, Hold: 1,
			TTL: 2*time.Second + c.upTo(6*time.Second), Wait: time.Second + c.upTo(20*time.Second), Keep: c.oneIn(2),
		}
		if c.oneIn(40) {
			r.TTL = 15 * time.Second
		}
		if c.sim.strict {
			r.TTL = time.Hour
		}
		if c.oneIn(4) {
			r.Mode = fencing.ModeShared
		}
		if c.oneIn(8) {
			r.Wait = 0
		}
		c.want(r)
	}
}

// want asks until the client has the lock or gives up. Whoever asks again takes over
// from the request before, so that nobody but the client can give back what that was
// granted.
func (c *simClient) want(r fencing.AcquireRequest) {
	s := c.sim
	truth := s.open(&r)
	for asked := 1; ; asked++ {
		r.Stamp = fencing.Stamp(fmt.Sprintf("%d-%d-%d", c.n, c.made, asked))
		if c.ask(r, truth) {
			c.hold(r, truth)
			return
		}
		if !r.Keep || asked == 4 || s.ended() {
			if asked > 1 || r.Wait == 0 || s.isExcused(truth) {
				c.release(r, truth)
			}
			s.gone(truth)
			return
		}
		advance(c.upTo(time.Second))
	}
}

// ask makes one request. It reports whether the client was told of a lease.
func (c *simClient) ask(r fencing.AcquireRequest, truth *simLease) bool {
	s := c.sim
	g := s.anyGateway(c.rand)
	ctx, cancel := context.WithCancel(s.t.Context())
	sent := time.Now()
	advance(c.upTo(10 * time.Millisecond))
	arrived := time.Now()
	s.asks(truth, g)
	answers, left := make(chan time.Time), make(chan struct{})
	hang := g.hangUp()
	back := c.upTo(10 * time.Millisecond)
	var out fencing.Outcome
	var err error
	s.background(func() {
		defer cancel()
		out, err = g.dog.Do(ctx, r)
		until := time.Now().Add(leftOf(&out, err) - arrived.Sub(sent))
		if err != nil && fencing.Unsettled(err) && r.Wait == 0 { // as whoever answers requests does
			g.dog.TakeBackLater(takeBackOf(&r))
		}
		if err != nil && fencing.CodeOf(err) == fencing.CodeReplaced {
			s.crossed(truth)
		}
		g.stand()
		advance(back)
		select {
		case answers <- until:
		case <-left: // nobody reads the answer
			if err == nil {
				g.dog.TakeBackLater(takeBackOf(&r))
			}
		}
	})
	patience := time.Hour
	if c.oneIn(3) {
		patience = c.upTo(10 * time.Second)
	}
	select {
	case until := <-answers:
		if err == nil && !g.dead() {
			s.told(truth, &out, until)
			return true
		}
	case <-hang: // the gateway is dead
		close(left)
		cancel()
	case <-time.After(patience):
		close(left)
		delay := time.Duration(0)
		if c.oneIn(2) {
			delay = c.upTo(time.Second)
		}
		s.background(func() { advance(delay); cancel() }) // noticed late
	}
	s.hangs(truth)
	return false
}

func leftOf(out *fencing.Outcome, err error) time.Duration {
	if err != nil {
		return 0
	}
	return out.Remaining(time.Now())
}

// hold is what a client does that has the lock.
func (c *simClient) hold(r fencing.AcquireRequest, truth *simLease) {
	s := c.sim
	if c.oneIn(3) { // P7: the answer might have been lost
		c.again(r, truth)
	}
	for c.oneIn(2) {
		advance(c.upTo(min(r.TTL, 4*time.Second) / 2))
		if !c.renew(r, truth) {
			return
		}
	}
	advance(c.upTo(2 * time.Second))
	if !s.strict && c.oneIn(6) { // it never comes back
		s.abandons(truth)
		return
	}
	s.gives(truth)
	c.release(r, truth)
	s.gone(truth)
}

// again asks for what the client has.
func (c *simClient) again(r fencing.AcquireRequest, truth *simLease) {
	s := c.sim
	r.Wait, r.Stamp = 0, r.Stamp+"r"
	out, err := s.anyGateway(c.rand).dog.Do(s.t.Context(), r)
	switch {
	case err == nil && (out.Holder.Token != truth.token || out.Fresh):
		if s.sameServer(truth) {
			s.fault("P7: the client that has the token %d asked again, and was told %d, fresh %t", truth.token, out.Holder.Token, out.Fresh)
		} else if out.Holder.Token != truth.token { // another grant: the first was lost
			s.gives(truth)
		}
	case err != nil && !fencing.Uncertain(err):
		s.lost(truth, err)
	}
}

// renew reports whether the client still believes.
func (c *simClient) renew(r fencing.AcquireRequest, truth *simLease) bool {
	s := c.sim
	sent := time.Now()
	g := s.anyGateway(c.rand)
	out, err := g.dog.Do(s.t.Context(), fencing.RenewRequest{Name: r.Name, Lease: r.Lease})
	switch {
	case err == nil:
		s.renewed(truth, &out, sent)
		return true
	case fencing.Uncertain(err):
		return true
	}
	s.lost(truth, err)
	return false
}

// release tries until the store has answered.
func (c *simClient) release(r fencing.AcquireRequest, truth *simLease) {
	for {
		_, err := c.sim.anyGateway(c.rand).dog.Do(c.sim.t.Context(), fencing.ReleaseRequest{Name: r.Name, Lease: r.Lease})
		if err == nil || !fencing.Uncertain(err) {
			return
		}
		advance(50*time.Millisecond + c.upTo(300*time.Millisecond))
	}
}
