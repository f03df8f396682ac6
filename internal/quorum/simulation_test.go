package quorum

import (
	"testing"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/seed"
)

var simTTLs = [...]time.Duration{300 * time.Millisecond, 600 * time.Millisecond, 1200 * time.Millisecond}

// act is what a client does next, of its own accord.
func (w *world) act(c *simClient, who uint8) {
	if c.busy > 0 {
		return
	}
	l := c.lease
	switch {
	case l == nil || l.closed || l.lost:
		w.acquireNew(c, who)
	case l.token == 0: // refused before, and comes again
		if c.tries++; c.tries > 6 {
			l.closed = true
			w.next(who, 0, 50*time.Millisecond)
			return
		}
		w.begin(c, who, l)
	default:
		w.use(c, who, l)
	}
}

// next has a client act again after some time.
func (w *world) next(who uint8, lo, hi time.Duration) {
	w.push(event{at: w.now + w.between(lo, hi), kind: evAct, node: who})
}

func (w *world) acquireNew(c *simClient, who uint8) {
	l := &simLease{id: simLeases[w.leases%len(simLeases)], mode: fencing.ModeExclusive, ttl: simTTLs[w.rng.IntN(len(simTTLs))]}
	if w.enrols { // one asks for longer than a quarantine takes at least, and the others don't know
		l.ttl = simTTLs[0]
		if who == 0 {
			l.ttl = simTTLs[2]
		}
	}
	w.leases++
	if w.seed%2 == 0 && w.chance(45) {
		l.mode = fencing.ModeShared
	}
	c.lease, c.tries = l, 0
	w.longest, c.longest = max(w.longest, l.ttl), max(c.longest, l.ttl)
	w.begin(c, who, l)
	if w.chance(8) { // the request is sent twice, by way of two gateways
		w.begin(c, who, l)
	}
}

// use is what a client does with a lease that it has.
func (w *world) use(c *simClient, who uint8, l *simLease) {
	switch p := w.rng.IntN(100); {
	case p < 40:
		k := w.newCall(c, who, l)
		k.tally = newTally(len(w.nodes), marginOf(l.ttl, simSkew), false)
		if w.bugs.noMargin {
			k.tally.margin = 0
		}
		w.sendAll(k, vRenew)
	case p < 60:
		w.begin(c, who, l) // a retry
	case p < 85:
		k := w.newCall(c, who, l)
		l.closed = true
		k.tally = newTally(len(w.nodes), 0, true)
		w.log("client %d releases %s", who, l.id)
		w.sendAll(k, vRelease)
	case p < 92: // it is forgotten
		l.closed = w.chance(50)
		c.lease = nil
		w.next(who, 0, 50*time.Millisecond)
	default:
		w.next(who, 0, l.ttl)
	}
}

func (w *world) newCall(c *simClient, who uint8, l *simLease) *call {
	c.busy++
	return &call{client: c, who: who, lease: l, began: w.now, stamp: w.newStamp(), ttl: l.ttl, life: c.life}
}

// begin starts an attempt.
func (w *world) begin(c *simClient, who uint8, l *simLease) {
	k := w.newCall(c, who, l)
	if w.proposes {
		k.propose = proposal(w.wall(c), c.seen, simSkew)
		c.seen = max(c.seen, k.propose)
	}
	k.attempt = newAttempt(len(w.nodes), marginOf(l.ttl, simSkew))
	if w.bugs.noMargin {
		k.attempt.margin = 0
	}
	w.log("client %d acquires %s %s for %s, proposing %d", who, l.mode, l.id, l.ttl, k.propose)
	w.sendAll(k, vAcquire)
}

func (w *world) sendAll(k *call, v verb) {
	for i := range w.nodes {
		w.send(k, i, v, false)
	}
}

// attempted is the end of an attempt, for its client.
func (w *world) attempted(k *call) {
	c, a, l := k.client, k.attempt, k.lease
	if k.ttl == 0 { // it brought a lease back
		return
	}
	c.busy--
	if a.phase == granted {
		w.tell(k, a.token, a.until)
		w.next(k.who, 0, l.ttl)
		return
	}
	w.log("client %d does not get %s: %s %s", k.who, l.id, a.refusal.Code, a.refusal.Detail)
	if a.refusal.Code == fencing.CodeLeaseLost {
		w.lose(k)
	}
	w.next(k.who, time.Millisecond, 60*time.Millisecond)
}

// counted is the end of a renewal or release, for its client.
func (w *world) counted(k *call) {
	t := k.tally
	if !t.decided || k.over {
		return
	}
	k.over = true
	k.client.busy--
	switch {
	case t.release:
		w.next(k.who, 0, 50*time.Millisecond)
		return
	case t.ok:
		w.tell(k, t.token, t.until)
		if missing := t.missing(); missing != 0 {
			w.bringBack(k, missing)
		}
	case t.refusal.Code == fencing.CodeLeaseLost:
		w.lose(k)
	}
	w.next(k.who, 0, k.lease.ttl)
}

// bringBack gives a lease back to nodes that don't have it.
func (w *world) bringBack(renewal *call, missing nodeSet) {
	k := w.newCall(renewal.client, renewal.who, renewal.lease)
	k.client.busy--
	k.over = true
	k.attempt = newReturn(len(w.nodes), missing, renewal.tally.token)
	if w.proposes {
		k.propose, k.claimed = renewal.tally.token, true
	}
	w.log("client %d brings %s back", k.who, k.lease.id)
	for i := range w.nodes {
		if missing.has(i) {
			w.send(k, i, vAcquire, false)
		}
	}
}

// TestSimulation plays random schedules of the protocol on nodes that are
// fencing.Step, as many as FENCEPOST_SCHEDULES says from the seed FENCEPOST_SEED on.
func TestSimulation(t *testing.T) { simulate(t, defaultSchedules) }

func TestSystemSimulation(t *testing.T) { simulate(t, 20_000) }

func simulate(t *testing.T, usually uint64) {
	first, schedules := seed.Of(t), seed.Number(t, "FENCEPOST_SCHEDULES", usually)
	start, grants := time.Now(), 0
	for seed := first; seed < first+schedules; seed++ {
		w := newWorld(seed, defects{}, false)
		if fault := w.run(); fault != "" {
			t.Fatalf("FENCEPOST_SEED=%d FENCEPOST_SCHEDULES=1: %s\n%s", seed, fault, replay(seed, defects{}))
		}
		grants += w.grants
	}
	if schedules > 100 && grants == 0 {
		t.Error("no lease was ever granted: the simulation shows nothing")
	}
	t.Logf("%d schedules from FENCEPOST_SEED=%d on, %d leases told, %s", schedules, first, grants, time.Since(start).Round(time.Millisecond))
}

func replay(seed uint64, bugs defects) string {
	w := newWorld(seed, bugs, true)
	w.run()
	return w.trace.String()
}
