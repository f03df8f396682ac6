package session

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
	"fencepost/internal/seed"
)

const (
	randomWorlds     = 150
	randomClients    = 24
	requestsOfClient = 3

	// randomTTL is longer than a world lasts: what is not given back stays.
	randomTTL = time.Hour
)

var randomNames = []fencing.Name{"a", "b", "c"}

// TestRandomSchedules lets many clients come, wait, leave and come back at two
// gateways whose calls are late, lost and answered to nobody, whose messages are
// lost, late and told twice, and which are taken for dead. A lease that was
// delivered stays its client's, the lock is never held by too many, and what was
// not delivered is taken back: at the end nothing is held and nobody waits.
func TestRandomSchedules(t *testing.T) {
	first := seed.Of(t)
	for i := range uint64(randomWorlds) {
		ok := t.Run(fmt.Sprintf("seed %d", first+i), func(t *testing.T) { randomSchedule(t, first+i) })
		if !ok {
			return
		}
	}
}

func randomSchedule(t *testing.T, seed uint64) {
	inWorld(t, func(w *world) {
		c := &chaos{world: w, rand: rand.New(rand.NewPCG(seed, 0)), inside: map[fencing.Name]map[fencing.LeasePublic]fencing.AcquireRequest{}}
		for _, name := range randomNames {
			c.inside[name] = map[fencing.LeasePublic]fencing.AcquireRequest{}
		}
		c.start()
		var clients sync.WaitGroup
		for range randomClients {
			clients.Go(c.client)
		}
		clients.Wait()
		c.stop()
		advance(fencing.RestTTL + 5*time.Second)
		synctest.Wait()
		w.wires[0].Expire(w.t.Context(), 100)
		for _, name := range randomNames {
			r := w.state(name)
			if r == nil {
				continue
			}
			for h := range r.Holders.All() {
				w.t.Errorf("%s is left held by %+v, stamp %q, set %q, keep %t", name, h.Holder, h.Stamp, h.Set, h.Keep)
			}
			if n := r.Queue.Len(); n > 0 {
				w.t.Errorf("%d places are left in the queue of %s", n, name)
			}
		}
	})
}

// chaos is a world in which things go wrong.
type chaos struct {
	*world
	mu     sync.Mutex
	rand   *rand.Rand
	over   bool
	faults sync.WaitGroup
	inside map[fencing.Name]map[fencing.LeasePublic]fencing.AcquireRequest // who believes to hold a lock
}

func (c *chaos) n(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rand.IntN(n)
}

// chance is true once in n times, and never at the end.
func (c *chaos) chance(n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rand.IntN(n) == 0 && !c.over
}

func (c *chaos) upTo(d time.Duration) time.Duration {
	return time.Duration(c.n(int(d/time.Microsecond))) * time.Microsecond
}

func (c *chaos) start() {
	for gateway, at := range c.wires {
		trouble := func(string) error {
			if c.chance(4) {
				advance(c.upTo(50 * time.Millisecond))
			}
			if c.chance(30) {
				return fencing.Unavailable(fencingtest.ErrCut)
			}
			return nil
		}
		at.Set(func(wire *fencingtest.Wire) {
			wire.Before, wire.After = trouble, trouble
			wire.Late = func(op string) time.Duration {
				if c.chance(20) {
					return c.upTo(900 * time.Millisecond)
				}
				return 0
			}
			wire.Message = func(g fencing.Grant, pass func()) { c.message(gateway, g, pass) }
		})
		c.faults.Go(func() { c.silence(at) })
	}
}

// message loses, delays and repeats what the store says.
func (c *chaos) message(gateway int, g fencing.Grant, pass func()) {
	late := func(most time.Duration, do func()) {
		d := c.upTo(most)
		c.faults.Go(func() { advance(d); do() })
	}
	switch {
	case c.chance(6):
		if !g.Holder.Provisional { // the store knows that it lost this one
			late(time.Second, func() { c.wires[gateway].Gap() })
		}
	case c.chance(6):
		late(300*time.Millisecond, pass)
	case c.chance(6):
		pass()
		late(3*time.Second, pass)
	default:
		pass()
	}
	if c.chance(10) {
		late(time.Second, func() { c.wires[gateway].Gap() })
	}
}

// silence has a gateway taken for dead now and then.
func (c *chaos) silence(of *fencingtest.Wire) {
	for {
		advance(c.upTo(20 * time.Second))
		if c.ended() {
			return
		}
		of.Set(func(w *fencingtest.Wire) { w.Mute = true })
		advance(c.upTo(6 * time.Second))
		of.Set(func(w *fencingtest.Wire) { w.Mute = false })
	}
}

func (c *chaos) ended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over
}

func (c *chaos) stop() {
	c.mu.Lock()
	c.over = true
	c.mu.Unlock()
	c.faults.Wait()
	for _, at := range c.wires {
		at.Set(func(w *fencingtest.Wire) { w.Before, w.After, w.Message, w.Late = nil, nil, nil, nil })
	}
}

func (c *chaos) client() {
	for range requestsOfClient {
		advance(c.upTo(3 * time.Second))
		names := []fencing.Name{randomNames[c.n(len(randomNames))]}
		if c.chance(4) {
			names = slices.Clone(randomNames[c.n(2):])
		}
		r := asks(names[0])
		r.TTL, r.Wait, r.Keep = randomTTL, time.Second+c.upTo(20*time.Second), c.chance(2)
		if c.chance(3) {
			r.Mode, r.Limit = fencing.ModeShared, c.n(3)
		}
		c.lives(r, names)
	}
}

// lives has a client ask until it has the lock or gives up; a request may be left
// hanging when the next one is made. Whoever asks again takes over from the request
// before, so that nobody but the client can give back what that was granted: when
// it gives up, it releases.
func (c *chaos) lives(r fencing.AcquireRequest, names []fencing.Name) {
	var hanging sync.WaitGroup
	asked := 0
	defer func() {
		hanging.Wait()
		if asked > 1 {
			for _, name := range names {
				c.wires[0].Model.Do(c.t.Context(), fencing.ReleaseRequest{Name: name, Lease: r.Lease})
			}
		}
	}()
	for range 4 {
		asked++
		r.Stamp = fencing.NewStamp()
		request := r
		ctx, cancel := context.WithCancel(c.t.Context())
		patience := randomTTL
		if c.chance(3) {
			patience = c.upTo(10 * time.Second)
		}
		answer := make(chan []fencing.Outcome)
		left := make(chan struct{})
		gateway := c.n(2)
		hanging.Go(func() {
			defer cancel()
			c.acquire(ctx, gateway, request, names, func(outs []fencing.Outcome) bool {
				select {
				case answer <- outs:
					return true
				case <-left: // nobody reads the answer
					return false
				}
			})
		})
		select {
		case outs := <-answer:
			if outs != nil {
				c.holds(request, names, outs)
				return
			}
		case <-time.After(patience):
			close(left)
			if delay := c.upTo(2 * time.Second); c.chance(2) { // noticed late
				hanging.Go(func() { advance(delay); cancel() })
			} else {
				cancel()
			}
		}
		if !r.Keep {
			return
		}
		advance(c.upTo(time.Second))
	}
}

// acquire is a request at a gateway, which is closed: told says whether its client was told of what it got.
func (c *chaos) acquire(ctx context.Context, gateway int, r fencing.AcquireRequest, names []fencing.Name, told func([]fencing.Outcome) bool) {
	ask := Request{AcquireRequest: r}
	if len(names) > 1 {
		ask.Names = names
	}
	s, err := c.all[gateway].Begin(&ask)
	if err != nil {
		c.t.Error(err)
		return
	}
	defer s.Close()
	outs, _ := s.Acquire(ctx, func(fencing.Name, fencing.Waiter, *fencing.Lock) context.Context { return ctx })
	if told(outs) {
		s.Told()
	}
}

// holds is what a client does that was told it has the lock.
func (c *chaos) holds(r fencing.AcquireRequest, names []fencing.Name, outs []fencing.Outcome) {
	c.mu.Lock()
	for i, name := range names {
		h := &outs[i].Holder
		if h.Provisional || h.Lease != r.Lease.Public() {
			c.t.Errorf("the client of %s was told of %+v", r.Lease.Public(), *h)
		}
		inside := c.inside[name]
		inside[r.Lease.Public()] = r
		for _, other := range inside {
			bears := 1
			if other.Mode == fencing.ModeShared {
				bears = other.Limit
			}
			if bears > 0 && len(inside) > bears {
				c.t.Errorf("P1: %d hold %s, and one of them bears %d", len(inside), name, bears)
			}
		}
	}
	c.mu.Unlock()
	advance(c.upTo(time.Second))
	c.mu.Lock()
	for _, name := range names {
		delete(c.inside[name], r.Lease.Public())
	}
	c.mu.Unlock()
	for i, name := range names {
		if _, err := c.wires[0].Model.Do(c.t.Context(), fencing.RenewRequest{Name: name, Lease: r.Lease}); err != nil {
			c.t.Errorf("%s with the token %d was taken from its holder: %v", name, outs[i].Holder.Token, err)
		}
		if _, err := c.wires[0].Model.Do(c.t.Context(), fencing.ReleaseRequest{Name: name, Lease: r.Lease}); err != nil {
			c.t.Errorf("%s could not be released: %v", name, err)
		}
	}
}
