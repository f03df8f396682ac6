package watchdog

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/seed"
)

// The simulation of the queue: gateways with the real Watchdog over one fencing.State
// that the real Step, Beat and Arrive change, in a synctest bubble, where time is
// virtual. Messages are lost, late and told twice; commands are late, lost, answered
// to nobody and sent again; gateways stand still, die and are replaced; the store
// stands still and fails over to a replica that is behind and has another clock;
// clients leave, come back with their lease id, renew, release and vanish.
//
// A seed settles all that befalls gateways, store and clients, by what it befalls and
// how often that came before, not by the order in which goroutines run. Goroutines
// that are woken at the same virtual instant are left to the scheduler, so that a
// seed repeats a schedule nearly always, not always. A gateway that stands still is
// one whose commands and messages do; its timers run on. A server that was replaced
// is gone: two masters at a time are not simulated.
//
// FENCEPOST_SEED is the first seed, FENCEPOST_SCHEDULES how many schedules of each
// kind are played; a single one is told in full (-v).
const (
	simLength   = 40 * time.Second
	simClients  = 9
	simGateways = 3
)

var simNames = []fencing.Name{"a", "b"}

// flaws are bugs that a simulation is to find.
type flaws struct {
	noConfirm, noRecovery, noTakeBack, noSecondTakeBack, noSkewGuard bool
	noQuarantine, noHeartbeat, barging, plainCounter                 bool
}

// simulation is one schedule.
type simulation struct {
	t      *testing.T
	seed   uint64
	strict bool // no fail-over, and no lease ends by itself
	flaw   flaws
	began  time.Time
	server *simServer

	mu       sync.Mutex
	gateways []*simGateway // those that died included
	counts   map[string]uint64
	leases   map[fencing.LeasePublic]*simLease
	tokens   map[fencing.Token]*simLease // told
	faults   []string
	grants   int
	storm    bool
	calm     time.Time // from when on everybody is expected to be in time
	over     bool
	trace    bool // of a single schedule
}

// note logs what happens, if one schedule alone is played.
func (s *simulation) note(format string, args ...any) {
	if s.trace {
		s.t.Logf("%12s "+format, append([]any{time.Since(s.began)}, args...)...)
	}
}

// simulate plays a schedule and returns what went wrong, and how many leases
// clients were told of.
func simulate(t *testing.T, seed uint64, strict bool, flaw flaws) (faults []string, grants int) {
	synctest.Test(t, func(t *testing.T) {
		s := &simulation{
			t: t, seed: seed, strict: strict, flaw: flaw, began: time.Now(),
			counts: map[string]uint64{}, leases: map[fencing.LeasePublic]*simLease{}, tokens: map[fencing.Token]*simLease{},
		}
		s.trace = os.Getenv("FENCEPOST_SCHEDULES") == "1"
		s.server = newSimServer(s)
		s.server.offset = s.between("clock", 400*time.Millisecond)
		for range simGateways {
			s.start()
		}
		s.background(s.watch)
		var clients sync.WaitGroup
		for n := range simClients {
			c := &simClient{sim: s, n: n + 1, rand: s.dice("client", n)}
			clients.Go(c.live)
		}
		s.weather()
		clients.Wait()
		s.finish()
		faults, grants = s.faults, s.grants
	})
	return faults, grants
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

// between returns a duration from -d to d.
func (s *simulation) between(what string, d time.Duration) time.Duration {
	return s.upTo(what, 2*d) - d
}

func (s *simulation) ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

// background runs f by itself; the bubble waits for it.
func (s *simulation) background(f func()) { go f() }

// start has one more gateway.
func (s *simulation) start() {
	s.mu.Lock()
	g := &simGateway{sim: s, id: fencing.Gateway(fmt.Sprintf("%016x", len(s.gateways)+1)), server: 1, lastHeard: time.Now(), hung: make(chan struct{})}
	s.mu.Unlock()
	g.skew = s.between("skew of "+string(g.id), 400*time.Millisecond)
	o := Options{MaxSkew: simMaxSkew}
	if s.flaw.noSecondTakeBack {
		o.MaxSkew = 0
	}
	g.dog = New(g, o)
	s.mu.Lock()
	s.gateways = append(s.gateways, g)
	s.mu.Unlock()
	g.dog.Start()
}

// anyGateway picks a gateway that lives.
func (s *simulation) anyGateway(r *rand.Rand) *simGateway {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if g := s.gateways[r.IntN(len(s.gateways))]; !g.dead() {
			return g
		}
	}
}

func (s *simulation) gateway(id fencing.Gateway) *simGateway {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.gateways {
		if g.id == id {
			return g
		}
	}
	return nil
}

// journey is the way of a command or an answer.
type journey struct {
	delay time.Duration
	lost  bool
}

func (j journey) travel() bool {
	advance(j.delay)
	return !j.lost
}

func (s *simulation) journey(g *simGateway, what string) journey {
	r := s.dice(g.id, what)
	s.mu.Lock()
	storm := s.storm
	s.mu.Unlock()
	j := journey{delay: time.Duration(1 + r.Int64N(int64(3*time.Millisecond)))}
	switch {
	case storm && r.IntN(6) == 0:
		j.lost = true
	case storm && r.IntN(6) == 0:
		j.delay = time.Duration(r.Int64N(int64(simLongest)))
	case r.IntN(10) == 0:
		j.delay = time.Duration(r.Int64N(int64(200 * time.Millisecond)))
	}
	return j
}

// hint tells a gateway of a grant, as Pub/Sub does: perhaps.
func (s *simulation) hint(grant fencing.Grant, now fencing.Instant) {
	to := s.gateway(grant.Gateway)
	if to == nil {
		return
	}
	tell := func() { to.hears(func(l fencing.Listener) { l.Granted(grant, now, time.Time{}) }) }
	s.send("hint "+string(grant.Stamp), tell)
	if s.dice("again", grant.Stamp).IntN(10) == 0 {
		s.background(func() { advance(s.upTo("late "+string(grant.Stamp), 3*time.Second)); tell() })
	}
}

// send delivers a message, late or not at all.
func (s *simulation) send(what string, tell func()) {
	if r := s.dice(what); r.IntN(8) > 0 {
		s.background(func() { advance(time.Duration(r.Int64N(int64(20 * time.Millisecond)))); tell() })
	}
}

// unconfirmed answers for the store what it would, were the lease confirmed.
func (s *simulation) unconfirmed(r fencing.ConfirmRequest) (fencing.Outcome, error) {
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	if record := s.server.state.Records[r.Name]; record != nil {
		if h, ok := record.Holders.Find(r.Lease.Public()); ok {
			h.Provisional, h.ExpiresAt = false, s.server.now().Add(h.TTL)
			return fencing.Outcome{Now: s.server.now(), Holder: h.Holder, Fresh: true, Asked: time.Now()}, nil
		}
	}
	return fencing.Outcome{}, &fencing.Error{Code: fencing.CodeLeaseLost, Reason: fencing.ReasonUnknown}
}

// weather brings trouble until the time is over.
func (s *simulation) weather() {
	r := s.dice("weather")
	span := func(least, most time.Duration) time.Duration {
		return least + time.Duration(r.Int64N(int64(most-least)))
	}
	for time.Since(s.began) < simLength {
		advance(span(time.Second, 7*time.Second))
		n := r.IntN(10)
		s.note("trouble %d", n)
		switch {
		case n < 3:
			s.setStorm(true)
			s.trouble(time.Hour)
			advance(span(time.Second, 4*time.Second))
			s.setStorm(false)
			s.mu.Lock()
			s.calm = time.Now()
			s.mu.Unlock()
			s.trouble(simLongest) // what is late comes in, and is sent again
		case n < 5:
			g := s.anyGateway(r)
			d := span(300*time.Millisecond, 6*time.Second)
			g.mu.Lock()
			g.paused = time.Now().Add(d)
			g.mu.Unlock()
			s.trouble(d + time.Second)
		case n < 7:
			g := s.anyGateway(r)
			s.start() // before the other dies, so that there is always one
			g.kill()
			s.excuse(g)
			s.trouble(fencing.GatewayTTL)
		case n < 8 || s.strict:
			d := span(300*time.Millisecond, 6*time.Second)
			s.server.mu.Lock()
			s.server.stall = time.Now().Add(d)
			s.server.mu.Unlock()
			s.trouble(d + time.Second)
		default:
			s.trouble(time.Hour)
			s.server.fail()
			advance(span(10*time.Millisecond, 2*time.Second))
			s.server.promote(span(0, simLag), span(-400*time.Millisecond, 400*time.Millisecond))
			s.mu.Lock()
			s.calm = time.Now()
			s.mu.Unlock()
			s.trouble(fencing.GatewayTTL)
		}
	}
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
}

func (s *simulation) setStorm(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.storm = on
}

// hangUp returns what is closed when the gateway dies.
func (g *simGateway) hangUp() <-chan struct{} { return g.hung }

func (g *simGateway) kill() {
	g.mu.Lock()
	g.killed = true
	g.mu.Unlock()
	close(g.hung)
}

// finish checks that all that was given is given back, unless it runs out by itself.
func (s *simulation) finish() {
	advance(fencing.RestTTL + 5*time.Second)
	for _, g := range s.gateways {
		g.dog.Stop()
	}
	advance(2 * simLongest) // what is on its way gets there
	now := s.server.now()
	for _, name := range simNames {
		fencing.Step(s.server.state, now, fencing.Guard{}, fencing.ExpireRequest{Name: name})
		r := s.server.state.Records[name]
		if r == nil {
			continue
		}
		for h := range r.Holders.All() {
			if s.strict && !s.leases[h.Lease].excused {
				s.fault("P4: at the end, %s is held by %s", name, h.Lease)
			}
		}
		for _, p := range r.Queue.Waiting() {
			if lease := p.Ask.Lease.Public(); !s.leases[lease].excused {
				s.fault("P5: at the end, %s waits for %s", lease, name)
			}
		}
	}
	for _, g := range s.gateways {
		if l := &g.dog.requests; len(l.waiters)+len(l.queues) != 0 {
			s.fault("a gateway still knows of %d waiters and %d queues", len(l.waiters), len(l.queues))
		}
	}
}

// TestSimulatedSchedules plays random schedules with fail-overs and short leases,
// and without fail-overs and with leases that never end by themselves. P1, P2 and P4
// to P8 hold.
func TestSimulatedSchedules(t *testing.T) {
	first, schedules := seed.Of(t), seed.Number(t, "FENCEPOST_SCHEDULES", simSchedules)
	for _, kind := range []struct {
		name   string
		strict bool
	}{{"with fail-overs", false}, {"without fail-overs", true}} {
		t.Run(kind.name, func(t *testing.T) {
			total := 0
			for seed := first; seed < first+schedules; seed++ {
				faults, grants := simulate(t, seed, kind.strict, flaws{})
				total += grants
				for _, fault := range faults {
					t.Errorf("FENCEPOST_SEED=%d: %s", seed, fault)
				}
				if t.Failed() {
					return
				}
			}
			t.Logf("%d schedules from FENCEPOST_SEED=%d on, %d leases", schedules, first, total)
		})
	}
}
