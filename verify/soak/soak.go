// Package soak runs gateways for long under mixed work while one thing after the other
// goes wrong, and looks for what grows, for leases that are lost without a word, and for
// faults that service does not recover from.
package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"fencepost/verify/check"
	"fencepost/verify/system"
)

const (
	// between two faults: from the begin of one to that of the next, at least.
	between = 5 * time.Second

	// recovery bounds how long after the end of a fault no lock can be had: a fail-over,
	// the quarantine after it, and the time that a gateway counts as alive.
	recovery = 20 * time.Second

	workers = 16
	streams = 4
	names   = 10

	ttl = 2 * time.Second
)

// Soak is how long a kind of store is worked on.
type Soak struct {
	Kind     system.Kind
	Duration time.Duration
}

// run is what the clients of a soak share.
type run struct {
	r      *check.Result
	s      *system.System
	client *system.Client
	ledger ledger
}

// Run starts everything, does a fault every 5 s until the time is over, and judges.
func (o Soak) Run(ctx context.Context, r *check.Result) error {
	options := system.Options{Store: o.Kind, Gateways: 2, Clocks: true, Env: []string{
		"FENCEPOST_DEFAULT_TTL=" + ttl.String(), "FENCEPOST_MAX_TTL=" + ttl.String(), "FENCEPOST_ADMIN_ADDR=127.0.0.1:0",
	}}
	switch o.Kind {
	case system.Embedded:
		options.Gateways = 1
	case system.Raft:
		options.Gateways = 3
	}
	s, err := system.Start(options)
	if err != nil {
		return err
	}
	err = o.on(ctx, s, r)
	if closeErr := s.Close(); closeErr != nil {
		r.Violation("%v", closeErr)
	}
	return err
}

func (o Soak) on(ctx context.Context, s *system.System, r *check.Result) error {
	u := &run{r: r, s: s, client: system.NewClient(workers + streams)}
	defer u.client.Close()
	working, stop := context.WithTimeout(ctx, o.Duration)
	defer stop()
	defer u.s.Watch(working)()
	var clients sync.WaitGroup
	for i := range workers {
		clients.Go(func() { u.work(working, r.Random(i)) })
	}
	for i := range streams {
		clients.Go(func() { u.stream(working, i/2, r.Random(workers+i)) })
	}
	var series series
	clients.Go(func() { series.collect(working, u.client, s.Gateways[0]) })
	err := u.harm(working, o.Duration, r.Random(-1))
	if err != nil {
		stop()
	}
	clients.Wait()
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return err
	}
	u.ledger.judge(r)
	series.judge(r)
	return nil
}

// harm does one fault after the other: all of them, in an order that is shuffled anew.
func (u *run) harm(ctx context.Context, duration time.Duration, random *rand.Rand) error {
	done, longest := 0, time.Duration(0)
	var worst string
	begun := time.Now()
	deadline := begun.Add(duration - between) // the last one has its time, too
	for {
		faults := u.faults()
		random.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
		for _, fault := range faults {
			if time.Now().After(deadline) || ctx.Err() != nil {
				u.r.Reach("seconds", int((time.Since(begun) + between).Seconds()), int(duration.Seconds()))
				u.r.Count("faults", done)
				u.r.Count("longest recovery", longest)
				u.r.Note("the longest recovery was from %s", worst)
				return nil
			}
			next := time.Now().Add(between)
			took, err := u.once(ctx, fault, random)
			if err != nil {
				return err
			}
			done++
			if took > longest {
				longest, worst = took, fault.Name
			}
			rest(ctx, time.Until(next))
		}
	}
}

// ends are the faults that end a gateway. It is not the first one, whose memory is looked at.
var ends = []string{"gateway-kill", "gateway-restart", "disk-full"}

// faults are those of the store, but for those that would end the only gateway, or whichever leads.
func (u *run) faults() []system.Fault {
	return slices.DeleteFunc(system.Faults(u.s.Kind), func(f system.Fault) bool {
		return f.Name == "leader-kill" || len(u.s.Gateways) == 1 && slices.Contains(ends, f.Name)
	})
}

// once does a fault and returns how long service took to recover after it.
func (u *run) once(ctx context.Context, fault system.Fault, random *rand.Rand) (time.Duration, error) {
	victims := *u.s
	if slices.Contains(ends, fault.Name) && len(victims.Gateways) > 1 {
		victims.Gateways = victims.Gateways[1:]
	}
	did, err := fault.Do(ctx, &victims, random, func() { rest(ctx, time.Duration(500+random.IntN(2000))*time.Millisecond) })
	if err != nil {
		return 0, err
	}
	if did.N > 0 || ctx.Err() == nil { // one that has done nothing when the clients end was none
		u.r.Harms.Add(fault.Name, did)
	}
	healed := time.Now()
	for _, g := range u.s.Gateways {
		for i := range names {
			if err := u.probe(g, i, healed.Add(recovery)); err != nil {
				u.r.Violation("%s after the end of %s: %v", time.Since(healed).Round(time.Millisecond), fault.Name, err)
				return time.Since(healed), nil
			}
		}
	}
	return time.Since(healed), nil
}

// probe waits until a lock of its own can be had through a gateway.
func (u *run) probe(g *system.Gateway, i int, deadline time.Time) error {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	name := fmt.Sprintf("probe/%d", i)
	for {
		a, err := u.client.Acquire(ctx, g, name, "", `{"ttl_ms":2000,"wait_ms":500}`)
		if err == nil && a.Status == http.StatusCreated {
			_, _ = u.client.Release(ctx, g, name, a.Lease.ID) // else it ends by itself
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("no lock can be had: %s, %w", a, err)
		}
		rest(ctx, 20*time.Millisecond)
	}
}

// rest waits for d, or until ctx ends.
func rest(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
