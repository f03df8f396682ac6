package watchdog

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"fencepost/internal/fencing"
)

const (
	// simMaxSkew is the guard of the simulated store.
	simMaxSkew = time.Second

	// simLeast and simMost bound a quarantine.
	simLeast = 3 * time.Second
	simMost  = 20 * time.Second

	// simLag is how far a replica is behind at most.
	simLag = time.Second
)

// simServer is the store of a simulation: a fencing.State that only Step, Beat and
// Arrive change, with a clock of its own and replicas that are behind.
type simServer struct {
	sim *simulation

	mu     sync.Mutex
	state  *fencing.State
	run    int           // which server it is, from 1
	offset time.Duration // its clock is ahead of the gateways' by so much
	since  time.Time     // when it began to serve
	down   bool
	stall  time.Time // what comes before is done then
	copies []simCopy // oldest first

	told map[fencing.Name]fencing.Token // the highest token that a client was told
}

type simCopy struct {
	at    time.Time
	state *fencing.State
}

func newSimServer(s *simulation) *simServer {
	server := &simServer{
		sim: s, state: fencing.NewState(), run: 1, told: map[fencing.Name]fencing.Token{},
	}
	server.state.Quarantine.Server = simRun(server.run)
	return server
}

func simRun(n int) string { return string(rune('0' + n)) }

func (s *simServer) now() fencing.Instant { return fencing.InstantOf(time.Now().Add(s.offset)) }

// replicate keeps copies of the state, as replicas have it.
func (s *simServer) replicate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.copies = append(s.copies, simCopy{time.Now(), s.state.Clone()})
	s.copies = slices.DeleteFunc(s.copies, func(c simCopy) bool { return time.Since(c.at) > 2*simLag })
}

// fail takes the server away.
func (s *simServer) fail() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = true
}

// promote has a replica serve, whose state is behind by up to lag and whose clock
// differs.
func (s *simServer) promote(lag, offset time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := fencing.NewState() // a replica that has nothing yet
	for _, c := range s.copies {
		if time.Since(c.at) >= lag || len(state.Records) == 0 {
			state = c.state
		}
	}
	s.state, s.copies = state.Clone(), nil
	for _, name := range simNames {
		s.sim.broughtBack(s.waiting(name))
	}
	s.run++
	s.since = time.Now()
	s.offset, s.down = offset, false
}

// simCall is one command on its way.
type simCall struct {
	from *simGateway
	sent time.Time
	what string
}

// do runs a command at the server. It reports false if it did not get there.
func (s *simServer) do(c simCall, run func(now fencing.Instant, guard fencing.Guard)) bool {
	s.mu.Lock()
	wait := time.Until(s.stall)
	s.mu.Unlock()
	if wait > 0 {
		advance(wait + s.sim.upTo("after a stall "+string(c.from.id)+c.what, 20*time.Millisecond))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	g := c.from
	if s.down || g.dead() {
		return false
	}
	now := s.now()
	s.greet(g, now)
	guard := fencing.Guard{
		Sent: fencing.InstantOf(c.sent.Add(g.skew)), MaxSkew: simMaxSkew, Floor: g.highest(), Gateway: g.id, HeedLoss: true,
	}
	if s.sim.flaw.noSkewGuard {
		guard.Sent = 0
	}
	if s.sim.flaw.plainCounter {
		guard.Floor = 0
	}
	if now.Sub(fencing.InstantOf(c.sent.Add(g.skew))).Abs() <= simMaxSkew {
		g.heard(time.Now())
	}
	run(now, guard)
	return true
}

// greet notes who serves, when a gateway has a new connection.
func (s *simServer) greet(g *simGateway, now fencing.Instant) {
	if !g.meets(s.run) {
		return
	}
	a := fencing.Arrival{Server: simRun(s.run), Longest: g.longestTTL(), Least: simLeast, Most: simMost, Floor: g.highest()}
	if s.sim.flaw.noQuarantine {
		a.Least, a.Most = 0, 0
	}
	if s.sim.flaw.plainCounter {
		a.Floor = 0
	}
	fencing.Arrive(s.state, now, a)
	if s.run > 1 {
		s.sim.background(func() {
			advance(s.sim.upTo("resubscribe", 50*time.Millisecond))
			g.gap()
		})
	}
}

// step decides an operation, checks what comes of it and tells those concerned. The
// grants to waiters of the gateway itself are returned: the answer tells of them.
func (s *simServer) step(g *simGateway, now fencing.Instant, guard fencing.Guard, op fencing.Op) (fencing.Outcome, []fencing.Grant) {
	name := op.LockName()
	before, queue := s.state.Counter, s.waiting(name)
	var out fencing.Outcome
	if _, acquires := op.(fencing.AcquireRequest); s.sim.flaw.barging && acquires && len(queue) > 0 {
		out = s.stepWithoutQueue(now, guard, op)
	} else {
		out = fencing.Step(s.state, now, guard, op)
	}
	if s.sim.flaw.plainCounter && len(out.Granted) > 0 {
		s.recount(name, &out, before)
	}
	s.sim.note("%s %s: %+v\n%s", g.id, name, op, simSummary(&out))
	s.sim.checkStep(op, &out, queue)
	var own []fencing.Grant
	for _, grant := range out.Granted {
		switch {
		case grant.Holder.Token == out.Holder.Token:
		case grant.Gateway == g.id:
			own = append(own, grant)
		default:
			s.sim.hint(grant, now)
		}
	}
	if p := out.Replaced; p != nil {
		if to := s.sim.gateway(p.Gateway); to != nil {
			s.sim.send("replaced", func() { to.replaced(name, p.Stamp) })
		}
	}
	return out, own
}

// simSummary tells what a step came to.
func simSummary(out *fencing.Outcome) string {
	text := fmt.Sprintf("=> %s, holder %s %d", out.Code(), out.Holder.Lease, out.Holder.Token)
	for _, g := range out.Granted {
		text += fmt.Sprintf(", granted %s %d to %s (provisional: %t)", g.Holder.Lease, g.Holder.Token, g.Stamp, g.Holder.Provisional)
	}
	for _, e := range out.Ended {
		text += fmt.Sprintf(", ended %s %s", e.Holder.Lease, e.Reason)
	}
	for _, w := range out.Left {
		text += fmt.Sprintf(", left %s", w.Lease)
	}
	if out.Waits() {
		text += ", waits"
	}
	return text
}

// waiting returns who waits for a name.
func (s *simServer) waiting(name fencing.Name) []fencing.Place {
	if r := s.state.Records[name]; r != nil {
		return r.Queue.Waiting()
	}
	return nil
}

// stepWithoutQueue hides the queue from an operation.
func (s *simServer) stepWithoutQueue(now fencing.Instant, guard fencing.Guard, op fencing.Op) fencing.Outcome {
	r := s.state.Records[op.LockName()]
	queue := r.Queue
	r.Queue = fencing.Queue{}
	out := fencing.Step(s.state, now, guard, op)
	r.Queue = queue
	return out
}

// recount issues tokens from the counter alone.
func (s *simServer) recount(name fencing.Name, out *fencing.Outcome, counter fencing.Token) {
	r := s.state.Records[name]
	counter = max(counter, 1000)
	for i := range out.Granted {
		counter++
		was := out.Granted[i].Holder.Token
		if h, ok := r.Holders.WithToken(was); ok {
			h.Token = counter
			r.Holders.Put(h)
		}
		if out.Holder.Token == was {
			out.Holder.Token = counter
		}
		out.Granted[i].Holder.Token = counter
	}
	s.state.Counter, r.LastToken = counter, counter
}

// due returns the names on which something is due, those first that were due first.
func (s *simServer) due(now fencing.Instant) []fencing.Name {
	names := slices.Collect(maps.Keys(s.state.Records))
	names = slices.DeleteFunc(names, func(name fencing.Name) bool { return s.state.Due(name) > now })
	slices.SortFunc(names, func(a, b fencing.Name) int {
		return cmp.Or(cmp.Compare(s.state.Due(a), s.state.Due(b)), cmp.Compare(a, b))
	})
	return names
}
