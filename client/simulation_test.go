package client

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
	"fencepost/internal/seed"
	"fencepost/internal/watchdog"
)

// The simulation of what clients believe: two clients, two real gateways over one model of a store, and networks with a proxy
// in them, in a synctest bubble, where time is virtual. Clocks of clients run at other rates than the store's, or stand
// still; streams are cut at the gateway's end, the client's, or both; requests and answers are late or lost; gateways are
// killed, shut down and started again. Somebody else always waits for each name.
//
// It is judged by one sentence: there is no instant at which a lease's Err is nil and the store has granted the name to
// another. What is documented to be otherwise, and for how long, is in belief.allowed. In schedules without trouble no lease
// ends, and Renew, Change and Release with its id change at once what it believes. What was released with AtLeast nobody else
// gets before.
//
// FENCEPOST_SEED is the first seed, FENCEPOST_SCHEDULES how many schedules are played; a single one is told in full (-v).
type simulation struct {
	t     *testing.T
	plan  *simPlan
	trace bool
	began time.Time

	gateways []*simGateway
	clients  []*simClient
	judge    simJudge
	running  sync.WaitGroup // what ends after the schedule
	atEnd    []func()

	ctx   context.Context // ends with the schedule
	end   context.CancelFunc
	ended chan struct{} // closed when nobody believes in anything any more

	mu      sync.Mutex
	handles []*fencingtest.Model // for runs of gateways to come
	told    map[string]int
	faults  []string
}

// note logs what happens, if one schedule alone is played.
func (s *simulation) note(format string, args ...any) {
	if s.trace {
		s.t.Logf("%12s "+format, append([]any{time.Since(s.began)}, args...)...)
	}
}

func (s *simulation) fault(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, fmt.Sprintf("%s: "+format, append([]any{time.Since(s.began)}, args...)...))
	s.note(format, args...)
}

func (s *simulation) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told[what]++
}

func (s *simulation) goesOn() bool { return s.ctx.Err() == nil }

// dice returns random numbers for what is named.
func (s *simulation) dice(what ...any) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprint(h, what...)
	return rand.New(rand.NewPCG(s.plan.seed, h.Sum64()))
}

// handle returns the store as a new gateway has it.
func (s *simulation) handle() *fencingtest.Model {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.handles[0]
	s.handles = s.handles[1:]
	return m
}

// simulate plays a plan, and returns what went wrong and how often things came about.
func simulate(t *testing.T, plan *simPlan, trace bool) (faults []string, told map[string]int) {
	synctest.Test(t, func(t *testing.T) {
		s := &simulation{t: t, plan: plan, trace: trace, began: time.Now(), ended: make(chan struct{}), told: map[string]int{}}
		s.ctx, s.end = context.WithCancel(context.Background())
		s.judge = simJudge{sim: s, last: map[string]simGrant{}, kept: map[string]simKept{}, beliefs: map[*belief]bool{}, granted: make(chan struct{}, 1)}
		model := fencingtest.NewModel(func() fencing.Instant { return fencing.InstantOf(time.Now()) })
		for range simGateways + len(plan.troubles) {
			s.handles = append(s.handles, model.Second())
		}
		model.Watch(&s.judge)
		dog := watchdog.New(&fencingtest.Wire{Model: model}, watchdog.Options{})
		dog.Start()
		for n := range simGateways {
			g := &simGateway{sim: s, n: n}
			s.gateways = append(s.gateways, g)
			g.start()
		}
		for n, script := range plan.clients {
			c := &simClient{sim: s, n: n, rate: script.rate, from: s.began, streams: map[string][]simAsked{}}
			c.net = &simNet{sim: s, client: c, dice: s.dice("network", n), conns: map[*simConn]bool{}}
			s.clients = append(s.clients, c)
			if err := c.open(); err != nil {
				t.Fatal(err)
			}
		}
		s.play(dog)
		dog.Stop()
		faults, told = s.faults, s.told
	})
	return faults, told
}

// play has everybody do what the plan says, and returns when all has ended.
func (s *simulation) play(dog *watchdog.Watchdog) {
	var playing sync.WaitGroup
	for _, c := range s.clients {
		playing.Go(c.play)
	}
	for _, name := range []fencing.Name{"a", "b", "c"} {
		s.running.Go(func() { s.rival(dog, name) })
	}
	for _, trouble := range s.plan.troubles {
		playing.Go(func() { s.befall(trouble) })
	}
	s.running.Go(s.looks)
	advance(s.plan.length)
	s.end()
	playing.Wait()
	close(s.ended)
	for _, end := range s.atEnd {
		end()
	}
	for _, g := range s.gateways {
		if run := g.takeAway(simRefused); run != nil {
			run.stop(time.Second)
		}
	}
	s.running.Wait()
	advance(answerTimeout) // what was dialled last
}

// befall brings one trouble.
func (s *simulation) befall(t simTrouble) {
	select {
	case <-time.After(t.at):
	case <-s.ctx.Done():
		return
	}
	s.note("%v", t)
	s.count(t.what.String())
	client, gateway := s.clients[t.of], s.gateways[t.of]
	lasts := func() {
		select {
		case <-time.After(t.lasts):
		case <-s.ctx.Done():
		}
	}
	n := client.net
	switch t.what {
	case simFreeze, simStop:
		client.standStill(t.lasts, t.what == simFreeze)
		s.look()
	case simCut:
		n.set(func(n *simNet) { n.reach = t.reach })
		for _, c := range n.all(nil) {
			c.cut(t.ends[0], t.ends[1], errSimReset)
		}
		lasts()
		n.set(func(n *simNet) { n.reach = simReached })
	case simVanish:
		n.set(func(n *simNet) { n.reach = simUnheard })
		conns := n.all(nil)
		for _, c := range conns {
			c.cut(false, false, nil)
		}
		lasts()
		for _, c := range conns { // by its keep-alive, or the client does
			c.cut(true, !t.silent, errSimReset)
		}
		n.set(func(n *simNet) { n.reach = simReached })
	case simMute:
		way := toGateway
		if t.silent {
			way = toClient
		}
		n.silence(way)
		lasts()
		n.set(func(n *simNet) { n.mute[way] = false })
	case simSlow:
		n.set(func(n *simNet) { n.latency = t.lasts / 4 })
		lasts()
		n.set(func(n *simNet) { n.latency = 0 })
	case simDrop:
		n.set(func(n *simNet) { n.drops = true })
		lasts()
		n.set(func(n *simNet) { n.drops = false })
	case simLag:
		gateway.lag(s.dice("lag", t.at), t.lasts/8)
		lasts()
		gateway.lag(nil, 0)
	case simKill, simDrain:
		if t.what == simKill {
			gateway.kill(t.silent)
		} else {
			gateway.shutDown()
		}
		lasts()
		if _, state := gateway.listening(); state != simReached && s.goesOn() {
			gateway.start()
		}
	}
	s.note("over: %v", t)
}

// TestSimulatedBeliefs plays random schedules, as many at a time as there are processors.
func TestSimulatedBeliefs(t *testing.T) {
	playMany(t, seed.Of(t), seed.Number(t, "FENCEPOST_SCHEDULES", simSchedules))
}

// playMany plays the schedules of seeds. Of those that go wrong it tells some, and the first in full.
func playMany(t *testing.T, first, schedules uint64) {
	const tells = 20
	defer debug.SetGCPercent(debug.SetGCPercent(50)) // a gateway that has ended is freed by the second collection, for its pools: with GOGC=400 all memory is taken
	players := min(uint64(runtime.GOMAXPROCS(0)), schedules)
	all := map[string]int{}
	wrong := 0
	var mu sync.Mutex
	t.Run("players", func(t *testing.T) {
		for n := range players {
			t.Run(fmt.Sprint(n), func(t *testing.T) {
				t.Parallel()
				for seed := first + n; seed < first+schedules; seed += players {
					plan := planOf(seed)
					faults, told := simulate(t, plan, schedules == 1 && testing.Verbose())
					mu.Lock()
					for what, n := range told {
						all[what] += n
					}
					if len(faults) > 0 {
						wrong++
					}
					nth := wrong
					mu.Unlock()
					switch {
					case len(faults) == 0:
					case nth == 1:
						t.Errorf("FENCEPOST_SEED=%d FENCEPOST_SCHEDULES=1 (%s): %s\n%v", seed, plan.kind.name, faults[0], shrunk(t, plan))
					case nth <= tells:
						t.Errorf("FENCEPOST_SEED=%d (%s): %s", seed, plan.kind.name, faults[0])
					}
				}
			})
		}
	})
	t.Logf("%d schedules from FENCEPOST_SEED=%d on, %d went wrong:", schedules, first, wrong)
	for _, what := range slices.Sorted(maps.Keys(all)) {
		t.Logf("%8d %s", all[what], what)
	}
}
