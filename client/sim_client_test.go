package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"time"
)

// simClient is a process with one Client: clocks of its own, a way to the gateways, and a script.
type simClient struct {
	sim *simulation
	n   int
	net *simNet
	c   *Client

	rate float64 // of its clocks, against the store's

	mu      sync.Mutex
	from    time.Time             // since when its clocks run without a break
	passed  time.Duration         // by its monotonic clock, from the beginning until then
	slept   time.Duration         // what its clock since boot is ahead of that
	still   chan struct{}         // closed when it goes on; nil: it runs
	goesOn  time.Time             // when it does
	froze   time.Time             // when it went on last after all its clocks had stood still, or it had slept with clocks of another rate
	streams map[string][]simAsked // that a lease was asked for with as a stream
}

// simAsked is a request for a stream.
type simAsked struct {
	conn  *simConn
	reads int // of the client from the connection before
}

// instant is the client's now. While it stands still so do its clocks, nearly: what runs in its process all the
// same, as its timers are the bubble's, must not turn in a circle.
func (c *simClient) instant() instant {
	c.mu.Lock()
	defer c.mu.Unlock()
	passed := c.passed
	if c.still != nil {
		c.passed += time.Microsecond
	} else {
		passed += c.ran(time.Now())
	}
	return instant{t: c.sim.began.Add(passed), boot: time.Hour + passed + c.slept}
}

// ran returns how long the clocks have run without a break, by themselves. It is called with the mutex held.
func (c *simClient) ran(now time.Time) time.Duration {
	return time.Duration(float64(now.Sub(c.from)) * c.rate)
}

// awake waits until the client does not stand still.
func (c *simClient) awake(ctx context.Context) error {
	for {
		c.mu.Lock()
		still := c.still
		c.mu.Unlock()
		if still == nil {
			return nil
		}
		select {
		case <-still:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// wakes returns an instant, or a later one if the client stands still until then.
func (c *simClient) wakes(at time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.still != nil && at.Before(c.goesOn) {
		return c.goesOn
	}
	return at
}

// stands reports whether the client stands still.
func (c *simClient) stands() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.still != nil
}

// standStill has the client do nothing for a while. frozen: all its clocks stand meanwhile, as of a virtual machine that is
// paused; else that since boot runs on.
func (c *simClient) standStill(d time.Duration, frozen bool) {
	c.mu.Lock()
	if c.still != nil {
		c.mu.Unlock()
		return
	}
	c.passed += c.ran(time.Now())
	c.still, c.goesOn = make(chan struct{}), time.Now().Add(d)
	c.mu.Unlock()
	advance(d)
	c.mu.Lock()
	c.from = time.Now()
	if !frozen {
		c.slept += time.Duration(float64(d) * c.rate)
	}
	if frozen || c.rate != 1 {
		c.froze = c.from
	}
	close(c.still)
	c.still = nil
	c.mu.Unlock()
}

// RoundTrip notes which connection the stream of a lease came to.
func (c *simClient) RoundTrip(r *http.Request, next http.RoundTripper) (*http.Response, error) {
	if r.Header.Get("Accept") == "text/event-stream" {
		lease := PublicPart(r.Header.Get("Lease-Id"))
		r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
			if end, ok := info.Conn.(*simEnd); ok {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.streams[lease] = append(c.streams[lease], simAsked{end.simConn, end.read()})
			}
		}}))
	}
	return next.RoundTrip(r)
}

type simTransport struct {
	*simClient
	next http.RoundTripper
}

func (t simTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	return t.simClient.RoundTrip(r, t.next)
}

// open makes the Client, which New would give a clock and connections of its own.
func (c *simClient) open() error {
	var addresses []string
	for _, g := range c.sim.gateways {
		addresses = append(addresses, fmt.Sprintf("http://gateway-%d.example", g.n))
	}
	transport := (&Options{}).transport()
	transport.Proxy = nil
	transport.DialContext = func(ctx context.Context, _, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, answerTimeout)
		defer cancel()
		for _, g := range c.sim.gateways {
			if strings.HasPrefix(addr, fmt.Sprintf("gateway-%d.", g.n)) {
				return c.net.dial(ctx, g)
			}
		}
		return nil, errors.New("no such gateway")
	}
	var err error
	if c.c, err = New(Options{Addresses: addresses, Owner: fmt.Sprint("client ", c.n), Transport: simTransport{c, transport}}); err != nil {
		return err
	}
	c.c.now = c.instant
	c.sim.atEnd = append(c.sim.atEnd, func() {
		c.c.Close()
		transport.CloseIdleConnections()
	})
	return nil
}

// play does what the script says.
func (c *simClient) play() {
	for i := range c.sim.plan.clients[c.n].holds {
		if !c.sim.goesOn() {
			return
		}
		c.hold(&c.sim.plan.clients[c.n].holds[i])
	}
}

// hold acquires a lease and has it for a while.
func (c *simClient) hold(h *simHold) {
	advance(h.after)
	c.awake(c.sim.ctx)
	var b *belief
	if h.again > 0 {
		b = c.acquireTwice(h)
	} else {
		b = c.acquire(h, newSimReleases(), Wait(h.wait))
	}
	if b == nil {
		return
	}
	for i := range h.calls {
		call := &h.calls[i]
		if !b.waits(call.after) {
			break
		}
		if call.beside {
			c.sim.running.Go(func() { b.call(call) })
		} else {
			b.call(call)
		}
	}
	b.ends()
}

// acquireTwice acquires, as a program does that ends, and acquires again by the lease id near the lease's end, as the next one does.
func (c *simClient) acquireTwice(h *simHold) *belief {
	first := *h
	first.attached, first.linger = false, 0
	b := c.acquire(&first, newSimReleases(), Wait(h.wait), NotRenewed())
	if b == nil {
		return nil
	}
	b.mayEnd()
	advance(max(0, b.l.Remaining()-h.again))
	c.awake(c.sim.ctx)
	left := b.l.Remaining()
	found := c.acquire(h, newSimReleases(), Wait(0), LeaseID(b.l.ID()))
	switch {
	case !c.sim.goesOn():
	case c.sim.plan.kind.name != "calm":
		if found != nil {
			c.sim.count("leases found near their end")
		}
	case found == nil:
		c.sim.fault("%s has %s left, and is not found", b, left)
	case found.l.Token() != b.l.Token():
		c.sim.fault("%s has %s left, and was granted anew", b, left)
	default:
		c.sim.count("leases found near their end")
	}
	return found
}

// acquire asks for a lease; nil: it was not granted.
func (c *simClient) acquire(h *simHold, releases *simReleases, further ...Option) *belief {
	options := append(further, TTL(h.ttl))
	if h.attached {
		options = append(options, Attached())
	}
	if h.linger > 0 {
		options = append(options, Linger(h.linger))
	}
	if len(h.names) > 1 {
		options = append(options, Also(h.names[1:]...))
	}
	if h.maxHold > 0 {
		options = append(options, MaxHold(h.maxHold))
	}
	if h.least > 0 && !h.attached {
		options = append(options, AtLeast(h.least))
	}
	asked := time.Now()
	l, err := c.c.Acquire(c.sim.ctx, h.names[0], options...)
	if err != nil {
		c.sim.note("client %d: %v is not granted: %v", c.n, h, err)
		return nil
	}
	c.sim.note("client %d has %s: %v", c.n, l.Public(), h)
	return c.sim.believes(c, h, l, asked, releases)
}

// ends has the lease for the rest of its time, and releases it.
func (b *belief) ends() {
	c, l := b.client, b.l
	if b.waits(b.hold.span) {
		b.stays()
	}
	c.awake(context.Background())
	c.sim.note("client %d releases %s, which is %v", c.n, l.Public(), l.Err())
	b.lets()
	b.isReleased(l.held()...)
	b.left(l.Release(c.sim.ctx))
}

// isReleased is called before a release of names with the lease id is asked for.
func (b *belief) isReleased(names ...string) {
	b.releases.turn <- struct{}{}
	b.releases.asked = true
	j := &b.sim.judge
	j.mu.Lock()
	b.releases.names = append(b.releases.names, names...)
	j.mu.Unlock()
	<-b.releases.turn
}

// waits has the lease for a while, and reports whether it may be counted on then.
func (b *belief) waits(d time.Duration) bool {
	select {
	case <-time.After(d):
	case <-b.l.Context().Done():
	case <-b.sim.ctx.Done():
	}
	b.client.awake(context.Background())
	return b.sim.goesOn() && b.l.Err() == nil
}

// call makes a call with the lease id, as other code of the program might.
func (b *belief) call(call *simCall) {
	c, l := b.client.c, b.l
	ctx, cancel := context.WithTimeout(b.sim.ctx, 4*time.Second)
	defer cancel()
	var names []string
	for _, g := range l.Grants() {
		names = append(names, g.Name)
	}
	b.sim.note("client %d: %v of %s", b.client.n, call, l.Public())
	switch call.what {
	case simRenew:
		left, err := c.Renew(ctx, l.ID(), call.ttl, names...)
		b.renewed(call.ttl, left, err)
	case simChange:
		left, err := c.Change(ctx, l.ID(), Change{TTL: call.ttl, Labels: Labels{Owner: "another"}}, names...)
		b.renewed(call.ttl, left, err)
	case simRelease:
		b.isReleased(names...)
		b.released(c.Release(ctx, l.ID(), names...))
	case simFind:
		if len(names) == len(call.found.names) { // else one is released already, and would be asked for anew
			b.finds(call.found)
		}
	case simReleaseOne:
		b.isReleased(names[0])
		if len(names) == 1 { // the others are released already
			b.released(c.Release(ctx, l.ID(), names[0]))
			return
		}
		c.Release(ctx, l.ID(), names[0])
	}
}

// finds acquires once more with the lease id. Of the two Leases that there are then each ends with the release of the other.
func (b *belief) finds(h *simHold) {
	j := &b.sim.judge
	j.mu.Lock()
	asks := *h
	asks.ttl = max(h.ttl, b.ttl) // it may have that by then
	j.mu.Unlock()
	b.releases.turn <- struct{}{}
	var other *belief
	if !b.releases.asked {
		other = b.client.acquire(&asks, b.releases, Wait(0), LeaseID(b.l.ID()))
	}
	<-b.releases.turn
	if other != nil {
		b.sim.count("leases with the id of another")
		other.ends()
	}
}
