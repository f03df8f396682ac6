package client

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// simPlan is all that befalls one schedule. A seed settles it; what is left to the scheduler is the order of goroutines
// that wake at the same instant, and the client's own dice.
type simPlan struct {
	seed     uint64
	kind     simKind
	length   time.Duration
	clients  []simScript
	troubles []simTrouble
}

// simKind is what a schedule is about. Each seed has one.
type simKind struct {
	name     string
	skew     bool // clocks run at other rates than the store's, and stand still
	troubles []simTroubleKind
	often    time.Duration // between two troubles
	calls    bool          // Renew, Change and Release with the lease id, and other Leases with it
	beside   bool          // many of them, beside each other
}

var simKinds = []simKind{
	{name: "calm", calls: true},
	{name: "clocks", skew: true, troubles: []simTroubleKind{simFreeze, simStop, simCut, simVanish, simKill}, often: 5 * time.Second},
	{name: "cuts", troubles: []simTroubleKind{simCut, simCut, simVanish, simMute, simDrop, simLag}, often: 2 * time.Second},
	{name: "gateways", troubles: []simTroubleKind{simKill, simDrain, simCut, simDrop, simLag, simLag}, often: 3 * time.Second},
	{name: "slow", calls: true, troubles: []simTroubleKind{simSlow, simSlow, simMute, simCut}, often: 2 * time.Second},
	{name: "beside", calls: true, beside: true, troubles: []simTroubleKind{simSlow, simSlow, simVanish, simMute, simCut, simDrop, simLag}, often: time.Second},
	{name: "everything", skew: true, calls: true, troubles: []simTroubleKind{simFreeze, simStop, simCut, simVanish, simMute, simSlow, simKill, simDrain, simDrop, simLag}, often: 2 * time.Second},
}

// simScript is what one client does.
type simScript struct {
	rate  float64 // of its clocks, against the store's
	holds []simHold
}

// simHold is a lease that a client asks for, and what it does with it.
type simHold struct {
	after    time.Duration
	names    []string
	ttl      time.Duration
	wait     time.Duration
	attached bool
	linger   time.Duration
	maxHold  time.Duration
	least    time.Duration // of AtLeast
	span     time.Duration // for how long it has the lease, after the calls
	calls    []simCall
	again    time.Duration // it is not renewed, and acquired by its lease id when no more than that is left; 0: it is not
}

func (h *simHold) String() string {
	return fmt.Sprintf("{%v ttl %s attached %t linger %s maxHold %s at least %s for %s, again %s before its end, %v}", h.names, h.ttl, h.attached, h.linger, h.maxHold, h.least, h.span, h.again, h.calls)
}

type simCallKind int

const (
	simRenew simCallKind = iota
	simChange
	simReleaseOne // of several names
	simRelease    // of all
	simFind       // acquires with the lease id: another Lease
)

// simCall is a call with the lease id of a lease that the client holds.
type simCall struct {
	after  time.Duration
	what   simCallKind
	ttl    time.Duration
	beside bool     // the next one does not wait for it
	found  *simHold // by simFind
}

func (c simCall) String() string {
	if c.what == simFind {
		return fmt.Sprintf("Acquire of %v with LeaseID after %s (beside the next: %t)", c.found, c.after, c.beside)
	}
	return fmt.Sprintf("%s(%s) after %s (beside the next: %t)", [...]string{"Renew", "Change", "Release of one", "Release"}[c.what], c.ttl, c.after, c.beside)
}

type simTroubleKind int

const (
	simFreeze simTroubleKind = iota // a client stands still, and all its clocks
	simStop                         // a client stands still, and its clock since boot runs on
	simCut                          // all connections of a client break at one end or both, and perhaps new ones fail for a while
	simVanish                       // nothing reaches a client any more, nor anybody from it; its gateway hears of that in time
	simMute                         // the same in one direction
	simSlow                         // what a client and gateways write takes long over some connections, in one direction or both
	simDrop                         // a proxy drops every other request of a client at once, and passes it on late
	simKill                         // a gateway ends at once, or its machine
	simDrain                        // a gateway is shut down
	simLag                          // what a gateway asks of the store takes long, each by itself
)

// simTrouble befalls a client or a gateway.
type simTrouble struct {
	at     time.Duration
	what   simTroubleKind
	of     int // which client or gateway
	lasts  time.Duration
	ends   [2]bool // which ends see it: gateway, client
	reach  simReach
	silent bool
}

func (k simTroubleKind) String() string {
	return [...]string{"freeze", "stop", "cut", "vanish", "mute", "slow", "drop", "kill", "drain", "lag"}[k]
}

func (t simTrouble) String() string {
	return fmt.Sprintf("at %s %s of %d for %s (at gateway, client: %v; then %s; silent %t)", t.at, t.what, t.of, t.lasts, t.ends,
		[...]string{"reached", "refused", "unheard"}[t.reach], t.silent)
}

const (
	simClients  = 2
	simGateways = 2
)

// planOf makes the plan of a seed.
func planOf(seed uint64) *simPlan {
	r := rand.New(rand.NewPCG(seed, 61))
	between := func(least, most time.Duration) time.Duration {
		return least + time.Duration(r.Int64N(int64(most-least)))
	}
	oneIn := func(n int) bool { return r.IntN(n) == 0 }
	p := &simPlan{seed: seed, kind: simKinds[seed%uint64(len(simKinds))], length: between(15*time.Second, 30*time.Second)}
	calm := len(p.kind.troubles) == 0
	for range simClients {
		s := simScript{rate: 1}
		if p.kind.skew {
			s.rate = []float64{0.95, 0.97, 1, 1.05}[r.IntN(4)]
		}
		for at := time.Duration(0); at < p.length; {
			h := simHold{after: between(0, 300*time.Millisecond), names: []string{[]string{"a", "b", "c"}[r.IntN(3)]}, ttl: between(time.Second, 6*time.Second), span: between(500*time.Millisecond, 6*time.Second)}
			if h.wait = between(3*time.Second, 20*time.Second); s.rate != 1 {
				h.wait = h.ttl // what is waited by one clock is added to what was asked for by another
			}
			if oneIn(4) {
				h.names = [][]string{{"b", "a"}, {"a", "c"}, {"c", "a", "b"}}[r.IntN(3)]
			}
			if !oneIn(3) {
				h.attached = true
				if oneIn(2) {
					h.linger = between(100*time.Millisecond, h.ttl)
				}
			}
			if oneIn(3) {
				h.span = between(8*time.Second, 20*time.Second)
			}
			if oneIn(8) {
				h.maxHold = between(h.ttl, 3*h.ttl)
			}
			if !h.attached && oneIn(6) {
				h.least = between(time.Second, 8*time.Second)
				if h.maxHold > 0 {
					h.least = h.ttl
				}
			}
			for p.kind.calls && (oneIn(2) || p.kind.beside && !oneIn(4)) {
				h.calls = append(h.calls, p.drawCall(&h, between, oneIn))
			}
			if h.maxHold == 0 && h.least == 0 && oneIn(4) {
				h.again, h.calls = between(50*time.Millisecond, h.ttl/2), nil
				if len(h.names) > 1 { // a set that has no stream can't be given one
					h.attached, h.linger = false, 0
				}
			}
			at += h.after + h.span
			s.holds = append(s.holds, h)
		}
		p.clients = append(p.clients, s)
	}
	if calm {
		return p
	}
	for at := between(0, p.kind.often); at < p.length; at += between(p.kind.often/2, 2*p.kind.often) {
		t := simTrouble{at: at, what: p.kind.troubles[r.IntN(len(p.kind.troubles))], of: r.IntN(simClients), lasts: between(200*time.Millisecond, 8*time.Second)}
		t.ends = [...][2]bool{{true, true}, {true, false}, {false, true}}[r.IntN(3)]
		t.reach, t.silent = simReach(r.IntN(3)), oneIn(2)
		if t.what == simSlow && p.clients[t.of].rate != 1 {
			t.what = simCut // an event that takes long says too much where it can't be told how old the stream is
		}
		p.troubles = append(p.troubles, t)
	}
	return p
}

// drawCall returns a call with the lease id of a hold.
func (p *simPlan) drawCall(h *simHold, between func(least, most time.Duration) time.Duration, oneIn func(int) bool) simCall {
	calm := len(p.kind.troubles) == 0
	c := simCall{after: between(100*time.Millisecond, 3*time.Second), what: simCallKind(between(0, 4)), ttl: between(500*time.Millisecond, 12*time.Second)}
	switch {
	case p.kind.beside && !oneIn(4), h.least > 0 && c.what >= simReleaseOne: // a release by id keeps nothing
		c.what = simRenew
	case !calm && h.least == 0 && oneIn(4):
		c.what = simFind
		c.found = &simHold{names: h.names, ttl: c.ttl, attached: oneIn(2), span: between(500*time.Millisecond, 6*time.Second)}
		if c.found.attached && oneIn(2) {
			c.found.linger = between(100*time.Millisecond, c.ttl)
		}
	case c.what == simReleaseOne && len(h.names) == 1:
		c.what = simRenew
	}
	switch c.beside = !calm && (p.kind.beside || oneIn(2)); {
	case p.kind.beside:
		c.after = between(0, 400*time.Millisecond)
	case c.beside:
		c.after /= 4
	}
	return c
}

// shrunk returns what is left of a plan that goes wrong when all is left out that it goes wrong without, as far as a few
// dozen attempts tell.
func shrunk(t *testing.T, p *simPlan) *simPlan {
	tries := 60
	wrong := func(q *simPlan) bool {
		tries--
		faults, _ := simulate(t, q, false)
		return len(faults) > 0
	}
	for i := len(p.troubles) - 1; i >= 0 && tries > 0; i-- {
		q := *p
		q.troubles = slices.Delete(slices.Clone(p.troubles), i, i+1)
		if wrong(&q) {
			p = &q
		}
	}
	for n := range p.clients {
		for i := len(p.clients[n].holds) - 1; i >= 0 && tries > 0; i-- {
			q := *p
			q.clients = slices.Clone(p.clients)
			q.clients[n].holds = slices.Clone(p.clients[n].holds[:i])
			if wrong(&q) {
				p = &q
			}
		}
	}
	return p
}

func (p *simPlan) String() string {
	text := fmt.Sprintf("seed %d, %s, %s\n", p.seed, p.kind.name, p.length)
	for n, c := range p.clients {
		text += fmt.Sprintf("client %d at rate %v:\n", n, c.rate)
		for i := range c.holds {
			text += fmt.Sprintf("  after %s %v\n", c.holds[i].after, &c.holds[i])
		}
	}
	for _, trouble := range p.troubles {
		text += fmt.Sprintln(trouble)
	}
	return text
}
