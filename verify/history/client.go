package history

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// live takes turns until there are enough operations.
func (c *client) live(ctx context.Context) {
	defer c.close()
	for ctx.Err() == nil && int(c.run.sent.Load()) < c.run.cfg.Operations {
		c.turn(ctx)
	}
}

// turn is one thing that a client does, from the acquire to the release.
func (c *client) turn(ctx context.Context) {
	mix := c.run.cfg.Mix
	weights := mix.weights()
	total := 0
	for _, w := range weights {
		total += w
	}
	at := c.random.IntN(total)
	kind := 0
	for at >= weights[kind] {
		at -= weights[kind]
		kind++
	}
	op := Op{Verb: Acquire, Names: []string{c.name()}, Mode: "exclusive", Hold: 1, TTL: c.ttl(), Gateway: c.gateway()}
	op.Owner = fmt.Sprintf("c%d-%d", c.n, c.run.sent.Load())
	if c.random.IntN(5) > 0 {
		op.Lease = c.newLease()
	}
	if !c.run.cfg.Rules.NoQueue && (kind == 9 || c.random.IntN(8) == 0) { // a quorum has no delays
		op.LockDelay = time.Duration(50+c.random.IntN(200)) * time.Millisecond
	}
	switch kind {
	case 0:
	case 1:
		if op.Wait = c.upTo(3 * time.Second); c.random.IntN(2) == 0 { // patience enough to see a lock that is with nobody
			op.Wait, op.TTL = op.Wait+longestTTL, longestTTL
		}
	case 2, 3, 10:
		op.Mode = "shared"
		if kind != 2 {
			if op.Limit = 2 + c.random.IntN(2); c.random.IntN(2) == 0 {
				op.Permits = 1 + c.random.IntN(op.Limit)
			}
		}
		switch {
		case kind == 10:
			op.Wait, op.TTL = lingering+longestTTL, longestTTL
		case c.random.IntN(3) > 0:
			op.Wait = c.upTo(2 * time.Second)
		}
	case 4:
		op.Names, op.Wait = c.several(), c.upTo(2*time.Second)
	case 5:
		op.Wait, op.TTL = c.upTo(2*time.Second), c.run.cfg.Rules.MinTTL
		c.attach(ctx, op, c.upTo(op.Wait/4+2*op.TTL))
		return
	case 6:
		c.leaves(ctx, op)
		return
	case 7:
		c.breaks(ctx, op)
		return
	}
	if !c.acquire(ctx, &op) {
		c.pause(ctx, 3*time.Millisecond)
		return
	}
	switch kind {
	case 8:
		c.strange(ctx, op)
	case 9:
		c.late(ctx, op)
		return
	case 10:
		if !c.linger(ctx, &op) {
			return
		}
	default:
		c.use(ctx, &op)
	}
	c.release(ctx, op)
}

func (c *client) name() string { return c.run.names[c.random.IntN(len(c.run.names))] }

func (c *client) gateway() int { return c.random.IntN(len(c.run.cfg.System.Gateways)) }

func (c *client) several() []string {
	names := slices.Clone(c.run.names)
	c.random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	names = names[:min(len(names), 2+c.random.IntN(2))]
	slices.Sort(names)
	return names
}

func (c *client) upTo(d time.Duration) time.Duration {
	return time.Millisecond + time.Duration(c.random.Int64N(int64(d)))
}

// ttl is mostly long enough to be let go, and short enough to run out within the run.
func (c *client) ttl() time.Duration {
	return (c.run.cfg.Rules.MinTTL + time.Duration(100+c.random.IntN(900))*time.Millisecond).Truncate(time.Millisecond)
}

func (c *client) pause(ctx context.Context, most time.Duration) {
	select {
	case <-time.After(c.upTo(most)):
	case <-ctx.Done():
	}
}

// acquire asks for a lease, again where no answer came, and reports whether it has it.
func (c *client) acquire(ctx context.Context, op *Op) bool {
	for range 3 {
		c.send(ctx, op)
		switch {
		case op.Verdict == Granted:
			return true
		case op.certain() || op.Lease == "" || ctx.Err() != nil:
			return false
		case c.random.IntN(3) == 0:
			c.release(ctx, *op) // to be sure
			return false
		}
		c.pause(ctx, 50*time.Millisecond)
		*op = Op{
			Call: op.Call, Verb: Acquire, Names: op.Names, Lease: op.Lease, Owner: op.Owner, Mode: op.Mode, Limit: op.Limit, Permits: op.Permits, Hold: op.Hold,
			TTL: op.TTL, Wait: op.Wait, LockDelay: op.LockDelay, Gateway: c.gateway(),
		}
	}
	return false
}

func (op *Op) certain() bool { return op.Verdict != Unknown && op.Verdict != Left }

// follows returns a further request about a lease.
func (op *Op) follows(verb Verb, gateway int) Op {
	return Op{Verb: verb, Names: op.Names, Lease: op.Lease, Owner: op.Owner, TTL: op.TTL, Gateway: gateway}
}

// use works with a lease for a moment.
func (c *client) use(ctx context.Context, op *Op) {
	for range c.random.IntN(3) {
		c.pause(ctx, 5*time.Millisecond)
		next := op.follows(Renew, c.gateway())
		switch c.random.IntN(6) {
		case 0: // deeper, and back
			next.Verb, next.Mode, next.Limit, next.Hold = Acquire, op.Mode, op.Limit, 2
			if c.send(ctx, &next); next.Verdict != Granted {
				return
			}
			up := op.follows(Release, c.gateway())
			up.Hold = 2
			c.send(ctx, &up)
			continue
		case 1: // once more
			next.Verb, next.Mode, next.Limit, next.Hold = Acquire, op.Mode, op.Limit, 1
		case 2: // step down
			if op.Mode == "exclusive" {
				next.Mode, op.Mode = "shared", "shared"
			}
		case 3: // shorter
			next.TTL = c.run.cfg.Rules.MinTTL
		}
		if c.send(ctx, &next); next.Verdict != Granted {
			return
		}
	}
	c.pause(ctx, 10*time.Millisecond)
}

// lingering is how long a lease is kept by who lingers: longer than anybody who could be
// served beside it may wait.
const lingering = 4500 * time.Millisecond

// linger keeps a lease, and reports whether it has it still.
func (c *client) linger(ctx context.Context, op *Op) bool {
	for end := c.run.now() + lingering; ; {
		select {
		case <-time.After(min(end-c.run.now(), longestTTL/4)):
		case <-ctx.Done():
			return false
		}
		if c.run.now() >= end {
			return true
		}
		next := op.follows(Renew, c.gateway())
		if c.send(ctx, &next); next.Verdict != Granted {
			return false
		}
	}
}

// release lets go, again where no answer came, and now and then once more than needed.
func (c *client) release(ctx context.Context, op Op) {
	next := op.follows(Release, c.gateway())
	again := c.random.IntN(10) == 0
	for range 3 {
		c.send(ctx, &next)
		if ctx.Err() != nil || next.certain() && !(again && next.Verdict == Ended) {
			return
		}
		again = false
		call := next.Call
		next = op.follows(Release, c.gateway())
		next.Call = call
		c.pause(ctx, 20*time.Millisecond)
	}
}

// leaves closes the connection at a random moment of an acquire. What it may have got
// lives for long enough to be seen.
func (c *client) leaves(ctx context.Context, op Op) {
	op.TTL = longestTTL
	within := 3 * time.Millisecond
	if c.random.IntN(2) == 0 {
		op.Wait, within = 2*time.Second, 100*time.Millisecond
	}
	if c.sendAndLeave(ctx, &op, c.upTo(within)); op.Verdict == Granted || op.Verdict == Unknown && op.Lease != "" {
		c.release(ctx, op)
	}
}

// breaks ends the lease of whoever holds.
func (c *client) breaks(ctx context.Context, op Op) {
	look, ok := c.inspect(ctx, op.Gateway, op.Names[0])
	if !ok || len(look.Holders) == 0 {
		c.pause(ctx, 5*time.Millisecond)
		return
	}
	c.send(ctx, &Op{Verb: Break, Names: op.Names, Token: look.Holders[0].Token, Gateway: op.Gateway})
}

// strange asks with a wrong secret about a lease that lives.
func (c *client) strange(ctx context.Context, op Op) {
	before, secret, _ := strings.Cut(op.Lease, ".")
	wrong := []byte(secret)
	wrong[0] = alphabet[(strings.IndexByte(alphabet, wrong[0])+1)%len(alphabet)]
	stranger := op
	stranger.Lease = before + "." + string(wrong)
	for _, verb := range []Verb{Renew, Release} {
		next := stranger.follows(verb, c.gateway())
		c.send(ctx, &next)
	}
}

// late lets a lease run out, and tries to use it and its lease id again; or does nothing, as who has died.
func (c *client) late(ctx context.Context, op Op) {
	switch c.random.IntN(3) {
	case 0:
		return
	case 1:
		select {
		case <-time.After(time.Until(c.run.began.Add(op.Grants[0].Deadline)) + c.upTo(100*time.Millisecond)):
		case <-ctx.Done():
			return
		}
		next := op.follows(Renew, c.gateway())
		c.send(ctx, &next)
		if c.random.IntN(2) == 0 {
			c.release(ctx, op)
		}
	default:
		c.release(ctx, op)
	}
	next := op.follows(Acquire, c.gateway())
	next.Mode, next.Limit, next.Hold = op.Mode, op.Limit, 1
	if c.send(ctx, &next); next.Verdict == Granted {
		c.release(ctx, next)
	}
}
