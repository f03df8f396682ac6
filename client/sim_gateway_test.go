package client

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
	api "fencepost/internal/http"
	"fencepost/internal/watchdog"
)

// simGateway is a gateway, which can be killed, shut down and started again. The store outlives it.
type simGateway struct {
	sim *simulation
	n   int

	mu   sync.Mutex
	run  *simRun // nil while it does not run
	off  simReach
	lags time.Duration // the longest that the store took for anything
}

// simRun is one run of a gateway: the real handler, sessions and watchdog, on the model.
type simRun struct {
	wire     *fencingtest.Wire
	dog      *watchdog.Watchdog
	api      *api.Server
	server   *http.Server
	listener *simListener
}

// start starts a gateway. Each run is another one to the store.
func (g *simGateway) start() {
	s := g.sim
	run := &simRun{wire: &fencingtest.Wire{Model: s.handle()}, listener: newSimListener()}
	run.dog = watchdog.New(run.wire, watchdog.Options{})
	run.dog.Start()
	run.api = api.New(api.Options{Watchdog: run.dog, Bounds: fencing.DefaultBounds(), AllowedHosts: []string{"*"}, StoreKind: "model"})
	run.server = api.NewHTTPServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.running.Add(1) // one that has a lease to release may outlive its connection
		defer s.running.Done()
		run.api.Handler().ServeHTTP(w, r)
	}), slog.New(slog.DiscardHandler))
	s.running.Go(func() { run.server.Serve(run.listener) })
	g.mu.Lock()
	defer g.mu.Unlock()
	g.run, g.off = run, simReached
}

// listening returns where a run takes connections, and what comes of one.
func (g *simGateway) listening() (*simListener, simReach) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.run == nil {
		return nil, g.off
	}
	return g.run.listener, simReached
}

// takeAway returns the run of a gateway that does not run from now on.
func (g *simGateway) takeAway(off simReach) *simRun {
	g.mu.Lock()
	defer g.mu.Unlock()
	run := g.run
	g.run, g.off = nil, off
	return run
}

// kill ends the process at once or, if silent, its machine. Of a process its system tells who is connected.
func (g *simGateway) kill(silent bool) {
	off := simRefused
	if silent {
		off = simUnheard
	}
	run := g.takeAway(off)
	if run == nil {
		return
	}
	run.wire.Set(func(w *fencingtest.Wire) {
		w.Before = func(string) error { return fencing.Unavailable(fencingtest.ErrCut) }
		w.Message = func(fencing.Grant, func()) {}
		w.Unasked, w.Unheard = true, true
	})
	for _, c := range g.sim.clients {
		for _, conn := range c.net.all(g) {
			conn.cut(false, !silent, errSimReset)
		}
	}
	g.sim.running.Go(func() {
		run.listener.Close()
		run.server.Close()
		run.dog.Stop()
	})
}

// lag has what the gateway asks of the store take so long at most; 0: no time.
func (g *simGateway) lag(dice *rand.Rand, most time.Duration) {
	g.mu.Lock()
	run := g.run
	g.lags = max(g.lags, most)
	g.mu.Unlock()
	if run == nil {
		return
	}
	var mu sync.Mutex
	run.wire.Set(func(w *fencingtest.Wire) {
		if w.Late = nil; most > 0 {
			w.Late = func(string) time.Duration {
				mu.Lock()
				defer mu.Unlock()
				return time.Duration(dice.Int64N(int64(most)))
			}
		}
	})
}

// shutDown ends the process as SIGTERM does.
func (g *simGateway) shutDown() {
	run := g.takeAway(simRefused)
	if run == nil {
		return
	}
	g.sim.running.Go(func() { run.stop(time.Second) })
}

// stop is what cmd/gateway does at its end.
func (r *simRun) stop(within time.Duration) {
	r.api.Drain()
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	r.server.Shutdown(ctx)
	r.server.Close()
	r.dog.Stop()
}

// rival always wants a name, and lets go of it soon. It has a gateway and a way to it that never fail, so that
// whoever believes in a lease that has ended believes beside another one.
func (s *simulation) rival(dog *watchdog.Watchdog, name fencing.Name) {
	dice := s.dice("rival", name)
	for s.goesOn() {
		id := fencing.NewLeaseID(time.Now())
		_, err := dog.Do(s.ctx, fencing.AcquireRequest{
			Name: name, Lease: id, Stamp: fencing.NewStamp(), Mode: fencing.ModeExclusive, Hold: 1, TTL: 5 * time.Second, Wait: time.Minute, Owner: "rival",
		})
		if err == nil {
			advance(time.Duration(20+dice.IntN(60)) * time.Millisecond)
			dog.Do(context.Background(), fencing.ReleaseRequest{Name: name, Lease: id})
		}
		advance(time.Duration(20+dice.IntN(200)) * time.Millisecond)
	}
}

// advance moves the clock of the bubble.
func advance(d time.Duration) { <-time.After(d) }
