//go:build !race

package session

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
	"fencepost/internal/seed"
)

const (
	streamWorlds     = 300
	streamWorldsLong = 100000
	streamsOfWorld   = 14
	streamTTL        = 20 * time.Second
)

// TestSimulatedStreams has streams of a few lease ids come, take leases over from each other, leave at
// any moment and be left by their clients, at two gateways in trouble as in TestRandomSchedules. When
// the trouble is over, a lease that hangs on a stream hangs on one that lives, unless its client was
// told that nothing is known; no stream lives that has no lease; and when all have left nothing is
// held.
func TestSimulatedStreams(t *testing.T) {
	worlds := uint64(streamWorlds)
	if os.Getenv("FENCEPOST_LONG") != "" {
		worlds = streamWorldsLong
	}
	first := seed.Of(t)
	for i := range worlds {
		if !t.Run(fmt.Sprintf("seed %d", first+i), func(t *testing.T) { randomStreams(t, first+i) }) {
			return
		}
	}
}

func randomStreams(t *testing.T, seed uint64) {
	inWorld(t, func(w *world) {
		c := &streams{chaos: &chaos{world: w, rand: rand.New(rand.NewPCG(seed, 1))}, byStamp: map[fencing.Stamp]*oneStream{}}
		c.start()
		for gateway := range c.wires {
			c.faults.Go(func() { c.deafen(gateway) })
		}
		leases := []fencing.AcquireRequest{asks("a"), asks("b"), asks("c")}
		names := [][]fencing.Name{{"a"}, {"b"}, {"c", "d", "e"}}
		for range streamsOfWorld {
			advance(c.upTo(1500 * time.Millisecond))
			i := c.n(len(leases))
			r := leases[i]
			r.TTL, r.Stamp, r.Wait = streamTTL, fencing.NewStamp(), time.Duration(c.n(2))*time.Minute
			switch {
			case c.chance(6) && len(names[i]) == 1:
				c.plain.Go(func() { c.dogs[c.n(2)].Acquire(w.t.Context(), r) })
			case c.chance(8):
				c.plain.Go(func() {
					c.dogs[c.n(2)].Release(w.t.Context(), fencing.ReleaseRequest{Name: names[i][0], Lease: r.Lease})
				})
				leases[i].Lease = fencing.NewLeaseID(time.Now()) // what was released can't be had again
			default:
				c.open(r, names[i])
			}
			if c.chance(3) {
				c.leave(8)
			}
		}
		c.stop()
		c.plain.Wait()
		for _, wire := range c.wires {
			wire.Gap()
		}
		advance(8 * time.Second) // take-backs are repeated after the skew guard's span
		synctest.Wait()
		c.judge()
		c.leave(1)
		advance(TakeOverLinger + 3*time.Second)
		synctest.Wait()
		for _, h := range c.held(names) {
			if s := c.byStamp[h.Attached]; s != nil && !s.unknown {
				w.t.Errorf("all have left, and %s is held by %+v", h.Lease, h)
			}
		}
		c.running.Wait()
	})
}

// streams is a world of streams in which things go wrong.
type streams struct {
	*chaos
	running, plain sync.WaitGroup
	byStamp        map[fencing.Stamp]*oneStream // those that have begun; the chaos' mutex guards it, and what they have come to
}

// oneStream is a request for leases that are to hang on it, and its client.
type oneStream struct {
	fencing.AcquireRequest
	names   []fencing.Name
	leave   context.CancelFunc
	kept    bool // it was told that it has the leases, and nothing else yet
	lost    bool // it was told of a loss, and has not left
	unknown bool // it was told that it is not known whether it has them, or that a newer one has: they may last for their TTL
}

// open begins a stream at a gateway.
func (c *streams) open(r fencing.AcquireRequest, names []fencing.Name) {
	ctx, cancel := context.WithCancel(c.t.Context())
	r.Attach = true
	s := &oneStream{AcquireRequest: r, names: names, leave: cancel}
	c.mu.Lock()
	c.byStamp[r.Stamp] = s
	c.mu.Unlock()
	all := c.all[c.n(2)]
	c.running.Go(func() {
		err := c.run(ctx, all, s)
		c.mu.Lock()
		defer c.mu.Unlock()
		s.kept, s.lost = false, false
		s.unknown = err != nil && ctx.Err() == nil && fencing.Uncertain(err) || len(s.names) > 1 && err != nil && fencing.CodeOf(err) == fencing.CodeReplaced
	})
}

// leave has the client of each stream leave, once in n times.
func (c *streams) leave(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.byStamp {
		if c.rand.IntN(n) == 0 {
			s.leave()
		}
	}
}

// run does for a stream what internal/http does, and returns what its client is told at the end.
func (c *streams) run(ctx context.Context, all *Sessions, s *oneStream) error {
	ask := Request{AcquireRequest: s.AcquireRequest}
	if len(s.names) > 1 {
		ask.Names = s.names
	}
	stream, err := all.Begin(&ask)
	if err != nil {
		return err
	}
	defer stream.Close()
	_, err = stream.Acquire(ctx, func(fencing.Name, fencing.Waiter, *fencing.Lock) context.Context { return ctx })
	switch {
	case ctx.Err() != nil, err == nil && c.chance(10): // a write that fails
		return nil
	case err != nil:
		return err
	}
	c.mu.Lock()
	s.kept = true
	c.mu.Unlock()
	for u := range stream.Keep(ctx, nil) {
		if u.Err != nil {
			c.mu.Lock()
			s.kept, s.lost = false, true
			c.mu.Unlock()
			if fencing.CodeOf(u.Err) == fencing.CodeReplaced { // what the newer one does not name ends with its TTL
				return u.Err
			}
			<-ctx.Done() // it leaves in its time
		}
	}
	return nil
}

// deafen has a gateway miss that its streams are replaced, now and then, and know that it has
// missed something.
func (c *streams) deafen(gateway int) {
	for {
		advance(c.upTo(4 * time.Second))
		if c.ended() {
			return
		}
		c.wires[gateway].Set(func(w *fencingtest.Wire) { w.Unheard = true })
		advance(c.upTo(3 * time.Second))
		c.wires[gateway].Set(func(w *fencingtest.Wire) { w.Unheard = false })
		c.wires[gateway].Gap()
	}
}

// held returns what is held of names.
func (c *streams) held(names [][]fencing.Name) (all []fencing.Holding) {
	for _, of := range names {
		for _, name := range of {
			if h := c.holder(name); h != nil && h.Live(fencing.InstantOf(time.Now())) {
				all = append(all, *h)
			}
		}
	}
	return all
}

// judge holds the streams that live against what the store has.
func (c *streams) judge() {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for stamp, s := range c.byStamp {
		if !s.kept {
			continue
		}
		for _, name := range s.names {
			switch h := c.holder(name); {
			case len(s.names) > 1 && (h == nil || h.Lease != s.Lease.Public()): // it may have been released alone
			case h == nil || h.Attached != stamp:
				c.t.Errorf("a stream of %s lives, and %s is held by %+v", s.Lease.Public(), name, h)
			}
		}
	}
	for _, name := range []fencing.Name{"a", "b", "c", "d", "e"} {
		h := c.holder(name)
		if h == nil || h.Attached == "" {
			continue
		}
		if s := c.byStamp[h.Attached]; s == nil || !s.kept && !s.lost && !s.unknown {
			c.t.Errorf("%s hangs on a stream that has ended: %+v", name, h.Holder)
		}
	}
}
