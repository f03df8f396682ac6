package quorum

import (
	"time"

	"fencepost/internal/fencing"
)

// What the simulation plays of gateways that take nodes into service: a new quorum, nodes
// that come back with nothing, or with what they had some time ago, and gateways that are
// restarted.
const (
	simTick  = 100 * time.Millisecond
	simLeast = 300 * time.Millisecond // of a quarantine
	simMost  = 1200 * time.Millisecond
)

// enrolDefects are those of taking nodes into service.
type enrolDefects struct {
	own       bool // for the longest TTL that this gateway was asked for
	restarted bool // the same of a node that comes back with something, and at once
	few       bool // though too few nodes can be asked
	any       bool // whichever server is there by now
}

// look is one look of a gateway at all nodes.
type look struct {
	who   uint8
	life  int // of the gateway
	found []*fencing.Memory
}

// order has a node taken into service.
type order struct {
	server  string
	isNew   bool
	longest time.Duration
	sent    fencing.Instant
}

// found plays a new quorum, and what befalls it.
func (w *world) foundQuorum() {
	w.amnesia = true
	for i := range w.nodes {
		if w.chance(70) {
			w.push(event{at: w.between(50*time.Millisecond, 500*time.Millisecond), kind: evDump, node: uint8(i)})
		}
		if w.chance(50) {
			w.push(event{at: w.between(0, time.Second), kind: evDown, node: uint8(i)})
		}
		for range 2 {
			if w.chance(60) {
				w.push(event{at: w.between(0, 1500*time.Millisecond), kind: evReplace, node: uint8(i)})
			}
		}
	}
	for i := range w.clients {
		w.clients[i].roster.patience = simMost
		w.push(event{at: w.between(0, 20*time.Millisecond), kind: evLook, node: uint8(i)})
		for range 2 {
			if w.chance(50) {
				w.push(event{at: w.between(0, 1500*time.Millisecond), kind: evRestart, node: uint8(i)})
			}
		}
	}
}

// enrolling plays what gateways and nodes do that are taken into service.
func (w *world) enrolling(e *event) {
	node, c := &w.nodes[e.node%uint8(len(w.nodes))], &w.clients[e.node%uint8(len(w.clients))]
	switch e.kind {
	case evLook:
		l := &look{who: e.node, life: c.life, found: make([]*fencing.Memory, len(w.nodes))}
		for i := range w.nodes {
			if d, arrives := w.delay(); arrives {
				w.push(event{at: w.now + d, kind: evAsked, node: uint8(i), look: l})
			}
		}
		w.push(event{at: w.now + simTimeout.Microseconds(), kind: evLooked, node: e.node, look: l})
	case evAsked:
		if d, arrives := w.delay(); arrives && !node.down {
			m := w.memory(node)
			w.push(event{at: w.now + d, kind: evFound, node: e.node, look: e.look, memory: &m})
		}
	case evFound:
		e.look.found[e.node] = e.memory
	case evLooked:
		if e.look.life == c.life {
			w.decideOn(c, e.look)
		}
		w.push(event{at: w.now + simTick.Microseconds(), kind: evLook, node: e.node})
	case evEnrol:
		if !node.down {
			w.enrol(node, e)
		}
	case evDump:
		node.dump = node.state.Clone()
		w.log("node %d will come back with what it has now", e.node)
	case evReplace:
		if w.replace(node, int(e.node)) && w.chance(50) {
			for i := range w.clients {
				w.restart(uint8(i))
			}
		}
	case evRestart:
		w.restart(e.node)
	}
}

// restart has a gateway know nothing any more; its client goes on.
func (w *world) restart(who uint8) {
	c := &w.clients[who]
	w.log("gateway %d is restarted", who)
	*c = simClient{offset: c.offset, drift: c.drift, lease: c.lease, life: c.life + 1, roster: roster{patience: simMost}}
	w.next(who, 0, 50*time.Millisecond)
}

// memory is what a node says.
func (w *world) memory(node *simNode) fencing.Memory {
	q, now := node.state.Quarantine, w.clock(node)
	return fencing.Memory{
		Server: node.server(), Blank: q.Server == "", InService: q.Server == node.server(),
		Quarantine: max(q.Until.Sub(now), 0), Longest: q.Longest(now),
	}
}

// server names the run of a node.
func (n *simNode) server() string { return string(rune('a' + n.run)) }

// decideOn has a gateway take nodes into service by what it has found.
func (w *world) decideOn(c *simClient, l *look) {
	e := c.roster.look(l.found, time.UnixMicro(int64(w.wall(c))))
	for i, m := range l.found {
		if m == nil {
			continue
		}
		c.kept[i] = c.kept[i] || !m.Blank
		longest := e.longest
		switch {
		case w.bugs.enrol.own, w.bugs.enrol.restarted && !m.Blank:
			longest = c.longest
		}
		switch {
		case w.bugs.enrol.few && !m.InService, w.bugs.enrol.restarted && !m.InService && !m.Blank:
			e.nodes |= 1 << i
		}
		if !e.nodes.has(i) {
			continue
		}
		d, _ := w.delay()
		o := &order{server: m.Server, isNew: e.isNew && !c.kept[i], longest: longest, sent: w.wall(c)}
		w.push(event{at: w.now + d, kind: evEnrol, node: uint8(i), order: o})
	}
}

// enrol takes a node into service, as fencing.Node.Enroll.
func (w *world) enrol(node *simNode, e *event) {
	o, q, now := e.order, &node.state.Quarantine, w.clock(node)
	skew := now.Sub(o.sent)
	if skew > simSkew || skew < -simSkew || o.server != node.server() && !w.bugs.enrol.any {
		return
	}
	fencing.Arrive(node.state, now, fencing.Arrival{
		Server: node.server(), Longest: o.longest, Least: simLeast, Most: simMost, Lossless: o.isNew && q.Server == "",
	})
	w.log("node %d is in service as %s, new: %t, longest TTL %s, quarantine %s", e.node, node.server(), o.isNew, o.longest, q.Until.Sub(now))
}

// replace restarts a node with nothing, or with what it had some time ago, unless too many
// have forgotten lately.
func (w *world) replace(node *simNode, i int) bool {
	if !w.mayForget() {
		return false
	}
	node.run++
	node.state = fencing.NewState()
	if node.dump != nil && w.chance(50) {
		node.state, node.dump = node.dump.Clone(), nil
	}
	node.blind = w.now + max(w.longest, time.Millisecond).Microseconds() + 2*simSkew.Microseconds()
	w.log("node %d comes back as %s, blank: %t", i, node.server(), node.state.Quarantine.Server == "")
	return true
}
