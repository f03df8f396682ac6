package session

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/fencing/fencingtest"
	"fencepost/internal/seed"
	"fencepost/internal/watchdog"
)

// The simulation of streams: two or three gateways with the real Sessions and Watchdog over one model, in a
// synctest bubble, where time is virtual. Clients send requests for leases, streams and others, several at once with
// one lease id, add names and drop them, renew for less, release, leave at any moment and are left by their
// connections. Commands, answers, messages and events are late, lost, repeated and out of order; gateways, clients and
// the store stand still. What is judged is in sim_judge_test.go.
//
// A seed settles all that befalls gateways, store and clients, by what it befalls and how often that came before, not by the
// order in which goroutines run. Goroutines that are woken at the same virtual instant are left to the scheduler, so that a
// seed repeats a schedule nearly always, not always. A gateway that stands still is one whose commands, messages and
// writes do; its timers run on. The store forgets nothing, and its clock is that of the gateways.
//
// FENCEPOST_SEED is the first seed, FENCEPOST_SCHEDULES how many schedules are played; a single one is told in full (-v).
const simLength = 18 * time.Second

var simNames = []fencing.Name{"a", "b", "c", "d", "e", "f"}

// simKind is what a schedule is about. Each seed has one.
type simKind struct {
	name   string
	leaves bool // clients leave, release and renew, connections break, and leases are broken; else streams only come
	silent bool // messages are lost, and nobody says so
	stalls bool // a request that attaches several names stands still between two of them
}

var simKinds = []simKind{
	{name: "everything", leaves: true},
	{name: "together"},
	{name: "between names", stalls: true},
	{name: "silent losses", leaves: true, silent: true},
}

// simulation is one schedule.
type simulation struct {
	t        *testing.T
	seed     uint64
	kind     simKind
	began    time.Time
	trace    bool // of a single schedule
	model    *fencingtest.Model
	gateways []*simGateway
	serving  sync.WaitGroup

	mu      sync.Mutex // guards what follows; not held across a call of the model, which calls the judge
	counts  map[string]uint64
	leases  map[fencing.LeasePublic]*simLease
	byStamp map[fencing.Stamp]*simRequest
	last    map[simLeaseOn]simTaken
	stall   time.Time // the store stands still until then
	storm   bool
	over    bool
	faults  []string
	told    simCounts
}

// simCounts is how often something came about that the simulation is about.
type simCounts struct{ granted, replaced, unknown, bursts, crossed int }

func (c *simCounts) add(o simCounts) {
	c.granted, c.replaced, c.unknown = c.granted+o.granted, c.replaced+o.replaced, c.unknown+o.unknown
	c.crossed += o.crossed
	c.bursts += o.bursts
}

// note logs what happens, if one schedule alone is played.
func (s *simulation) note(format string, args ...any) {
	if s.trace {
		s.t.Logf("%12s "+format, append([]any{time.Since(s.began)}, args...)...)
	}
}

// simulate plays a schedule and returns what went wrong.
func simulate(t *testing.T, seed uint64, trace bool) (faults []string, told simCounts) {
	synctest.Test(t, func(t *testing.T) {
		s := &simulation{
			t: t, seed: seed, kind: simKinds[seed%uint64(len(simKinds))], began: time.Now(), trace: trace,
			counts: map[string]uint64{}, leases: map[fencing.LeasePublic]*simLease{}, byStamp: map[fencing.Stamp]*simRequest{}, last: map[simLeaseOn]simTaken{},
		}
		s.model = fencingtest.NewModel(func() fencing.Instant { return fencing.InstantOf(time.Now()) })
		for n := range 2 + s.dice("gateways").IntN(2) {
			g := &simGateway{Model: s.model, sim: s, n: n}
			if n > 0 {
				g.Model = s.model.Second()
			}
			s.gateways = append(s.gateways, g)
		}
		s.model.Watch(simJudge{s})
		for _, g := range s.gateways {
			g.dog = watchdog.New(g, watchdog.Options{MaxSkew: simSkew})
			g.all = New(g.dog, Options{})
			g.dog.Start()
		}
		var clients sync.WaitGroup
		for n := range 3 {
			if n < 2 || s.kind.leaves {
				clients.Go(func() { s.client(n) })
			}
		}
		if s.kind.leaves {
			clients.Go(s.administrate)
		}
		s.weather()
		s.settle()
		clients.Wait()
		s.close()
		faults, told = s.faults, s.told
	})
	return faults, told
}

// dice returns random numbers for the next one of what is named.
func (s *simulation) dice(what ...any) *rand.Rand {
	key := fmt.Sprint(what...)
	s.mu.Lock()
	s.counts[key]++
	n := s.counts[key]
	s.mu.Unlock()
	h := fnv.New64a()
	h.Write([]byte(key))
	return rand.New(rand.NewPCG(s.seed, h.Sum64()+n*0x9e3779b97f4a7c15))
}

func (s *simulation) upTo(what string, d time.Duration) time.Duration {
	return time.Duration(s.dice(what).Int64N(int64(d)))
}

func (s *simulation) oneIn(what string, n int) bool { return s.dice(what).IntN(n) == 0 }

func (s *simulation) ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

func (s *simulation) storms() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.storm
}

func (s *simulation) setStorm(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.storm = on
}

// standsStill waits while the store stands still.
func (s *simulation) standsStill() {
	s.mu.Lock()
	wait := time.Until(s.stall)
	s.mu.Unlock()
	if wait > 0 {
		advance(wait + s.upTo("after a stall", 20*time.Millisecond))
	}
}

// betweenNames has a request stand still that attaches several names, before any but the first.
func (s *simulation) betweenNames(r *fencing.AcquireRequest) {
	if !s.kind.stalls || !r.Attach || r.Set == "" {
		return
	}
	s.mu.Lock()
	q := s.byStamp[r.Stamp]
	s.mu.Unlock()
	if dice := s.dice("between names", r.Name, r.Stamp); q != nil && r.Name != q.names[0] && dice.IntN(4) == 0 && !s.ended() {
		d := time.Duration(dice.Int64N(int64(2 * time.Second)))
		s.note("%v stands still for %s before %s", q, d, r.Name)
		advance(d)
	}
}

// together returns how many requests are sent with one lease id at a time.
func (s *simulation) together(r *rand.Rand) int {
	n := 1
	if !s.kind.leaves || r.IntN(3) == 0 {
		n = 2 + r.IntN(2)
		s.mu.Lock()
		s.told.bursts++
		s.mu.Unlock()
	}
	return n
}

// client has leases, one after the other.
func (s *simulation) client(n int) {
	r := s.dice("client", n)
	for i := 0; !s.ended(); i++ {
		advance(time.Duration(r.Int64N(int64(2 * time.Second))))
		if s.lease(r, 100*i+n).live(); !s.kind.leaves {
			return
		}
	}
}

// weather brings trouble until the time is over. At the end gateways miss what they are told.
func (s *simulation) weather() {
	r := s.dice("weather")
	span := func(least, most time.Duration) time.Duration {
		return least + time.Duration(r.Int64N(int64(most-least)))
	}
	var under sync.WaitGroup
	for time.Since(s.began) < simLength {
		advance(span(200*time.Millisecond, 3*time.Second))
		g := s.gateways[r.IntN(len(s.gateways))]
		switch n := r.IntN(10); {
		case n < 4:
			s.note("a storm begins")
			s.setStorm(true)
			advance(span(time.Second, 4*time.Second))
			s.setStorm(false)
			s.note("the storm is over")
		case n < 6:
			d := span(500*time.Millisecond, 5*time.Second)
			s.note("gateway %d stands still for %s", g.n, d)
			g.mu.Lock()
			g.paused = time.Now().Add(d)
			g.mu.Unlock()
			if d > 1500*time.Millisecond { // it drops the connection that it is told by
				under.Go(func() { g.misses(d) })
			}
		case n < 7:
			d := span(300*time.Millisecond, 5*time.Second)
			s.note("the store stands still for %s", d)
			s.mu.Lock()
			s.stall = time.Now().Add(d)
			s.mu.Unlock()
		default:
			d := span(300*time.Millisecond, 3*time.Second)
			s.note("gateway %d is told of nothing for %s", g.n, d)
			under.Go(func() { g.misses(d) })
		}
	}
	under.Wait()
	for _, g := range s.gateways {
		if d := span(200*time.Millisecond, 2*time.Second); r.IntN(2) == 0 {
			s.note("gateway %d is told of nothing for %s", g.n, d)
			under.Go(func() { g.misses(d) })
		}
	}
	under.Wait()
	s.mu.Lock()
	stall := s.stall
	s.over = true
	s.mu.Unlock()
	advance(time.Until(stall))
	for _, g := range s.gateways {
		g.stand()
	}
	s.note("the trouble is over")
}

// administrate breaks leases, with notice and without.
func (s *simulation) administrate() {
	r := s.dice("administrator")
	for {
		advance(time.Second + time.Duration(r.Int64N(int64(8*time.Second))))
		if s.ended() {
			return
		}
		name, notice := simNames[r.IntN(len(simNames))], time.Duration(r.IntN(2))*fencing.ShortestNotice
		if h := s.holder(name); h != nil {
			s.breaks(name, h, notice)
		}
	}
}

// breaks has the lease on a name broken.
func (s *simulation) breaks(name fencing.Name, h *fencing.Holding, notice time.Duration) {
	s.mu.Lock()
	if l := s.leases[h.Lease]; notice == 0 || h.Provisional {
		l.broken[name] = true
	}
	s.mu.Unlock()
	s.note("the lease %s on %s is broken, with a notice of %s", h.Lease, name, notice)
	s.model.Do(s.t.Context(), fencing.BreakRequest{Name: name, Token: h.Token, Notice: notice, BreakReason: "deploy"})
}

// holder returns who holds a name.
func (s *simulation) holder(name fencing.Name) *fencing.Holding {
	r := s.model.Snapshot().Records[name]
	if r == nil || r.Holders.Len() == 0 {
		return nil
	}
	if h := r.Holders.First(); h.Live(fencing.InstantOf(time.Now())) {
		return &h
	}
	return nil
}

// close stops the gateways, which have forgotten everybody by then.
func (s *simulation) close() {
	s.serving.Wait()
	for _, g := range s.gateways {
		g.dog.Stop()
	}
	synctest.Wait()
	for _, g := range s.gateways {
		if o := g.all; len(o.byRequest)+len(o.byName)+len(o.turns.of) != 0 {
			s.fault("gateway %d still knows of %d and %d names, and of %d turns", g.n, len(o.byRequest), len(o.byName), len(o.turns.of))
		}
	}
	s.model.Close()
}

// TestSimulatedStreams plays random schedules, as many at a time as there are processors.
func TestSimulatedStreams(t *testing.T) {
	first, schedules := seed.Of(t), seed.Number(t, "FENCEPOST_SCHEDULES", simSchedules)
	players := min(uint64(runtime.GOMAXPROCS(0)), schedules)
	told := make([]simCounts, players)
	t.Run("players", func(t *testing.T) {
		for n := range players {
			t.Run(fmt.Sprint(n), func(t *testing.T) {
				t.Parallel()
				for seed := first + n; seed < first+schedules && !t.Failed(); seed += players {
					faults, of := simulate(t, seed, schedules == 1 && testing.Verbose())
					told[n].add(of)
					for _, fault := range faults {
						t.Errorf("FENCEPOST_SEED=%d (%s): %s", seed, simKinds[seed%uint64(len(simKinds))].name, fault)
					}
				}
			})
		}
	})
	var all simCounts
	for _, of := range told {
		all.add(of)
	}
	t.Logf("%d schedules from FENCEPOST_SEED=%d on: %+v", schedules, first, all)
}
