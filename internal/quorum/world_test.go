package quorum

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"fencepost/internal/fencing"
)

// What the simulation plays with. Times are shorter than in earnest, which changes
// nothing but how soon things meet.
const (
	simSkew    = 100 * time.Millisecond
	simTimeout = 50 * time.Millisecond
	simName    = fencing.Name("orders/42")
	simEpoch   = 1_000_000_000 // µs: what all clocks show at the beginning, about
	simEvents  = 340           // of one schedule
	simDrift   = 4000          // ppm, at most, of any clock
)

// defects are bugs planted into the protocol, to see them found.
type defects struct {
	onePhase     bool // the highest token of a majority counts, without a claim
	writeBack    bool // a node raises its token to the one that is claimed, whatever it knows
	noQuarantine bool // a node that forgot votes at once
	undoOnce     bool // a late acquire is not undone
	noMargin     bool // a lease is told for all the time the nodes give
	anyVote      bool // a renewal counts nodes that never accepted the token
	raising      bool // a node lets a claimed token be raised
	admit        admitDefects
	enrol        enrolDefects
}

// admitDefects are those of admissions at a fence.
type admitDefects struct {
	one       bool // one node is enough
	silent    bool // a node that does not answer counts as admitting
	unclaimed bool // tokens that nobody has claimed count as issued
	noMark    bool // a node does not remember what it has admitted
	over      bool // a token whose lease is over is admitted like any other, beside older holders
	forgotten bool // a node that forgot admits what was issued before
}

// verb is what a message asks for.
type verb uint8

const (
	vNone verb = iota
	vAcquire
	vClaim
	vUndo
	vRenew
	vRelease
	vAdmit
)

var verbNames = [...]string{"-", "acquire", "claim", "undo", "renew", "release", "admit"}

type eventKind uint8

const (
	evDeliver eventKind = iota
	evReply
	evTimeout
	evAct
	evAgain // the second undo is due
	evPause
	evForget
	evDown
	evUp
	evClock
	evWrite // somebody has a token admitted

	// of gateways that take nodes into service
	evLook
	evAsked
	evFound
	evLooked
	evEnrol
	evDump
	evReplace
	evRestart
)

// event is something that happens at a time.
type event struct {
	at   int64 // µs
	seq  uint32
	kind eventKind
	verb verb
	node uint8 // or client
	last bool  // an undo behind which nothing may come to life
	call *call
	sent fencing.Instant // the client's clock
	from time.Duration   // the same since the call began
	out  result

	look   *look
	memory *fencing.Memory
	order  *order
}

// result is what of an outcome a client looks at.
type result struct {
	holder fencing.Holder
	end    time.Duration // the holder's time left
	err    *fencing.Error
	fence  *fencing.Fence
}

// world is one schedule: nodes, clients, and the messages between them.
type world struct {
	seed    uint64
	rng     *rand.Rand
	aside   *rand.Rand // of admissions, which leave the rest of a schedule as it is
	third   *rand.Rand // of a quorum whose nodes are taken into service
	enrols  bool       // it is played
	bugs    defects
	now     int64
	seq     uint32
	queue   []event
	nodes   []simNode
	clients []simClient
	told    []tale
	leases  int
	stamps  int
	longest time.Duration
	amnesia bool // some node may forget
	heed    bool // fencing.Guard.HeedLoss

	// proposes: clients propose tokens. Both ways lead to the second phase, and
	// without proposals all go there.
	proposes bool
	rough    int // percent of messages that are late or lost
	fault    string
	grants   int
	fences   fences
	trace    *strings.Builder
}

// simNode is a server with its clock.
type simNode struct {
	state  *fencing.State
	offset int64
	drift  int64 // ppm
	down   bool
	run    int
	blind  int64 // until when it may have forgotten something that matters, in true time
	dump   *fencing.State
}

// simClient is a gateway with one client. Both stop when it is paused.
type simClient struct {
	offset, drift int64
	paused        int64
	floor         [maxNodes]fencing.Token
	seen          fencing.Token
	lease         *simLease
	busy          int // calls under way
	tries         int
	life          int // how often the gateway was restarted
	roster        roster
	longest       time.Duration  // that it was asked for
	kept          [maxNodes]bool // nodes that it has seen remember something
}

// simLease is a lease id and what its client was told.
type simLease struct {
	id     fencing.LeaseID
	mode   fencing.Mode
	ttl    time.Duration
	token  fencing.Token // told; 0 if none
	until  int64         // true time until which the client may believe in it
	closed bool          // the client has given it up
	lost   bool          // the client was told that it is lost
}

// tale is a token that was told.
type tale struct {
	lease *simLease
	token fencing.Token
}

// call is what a client has under way: an attempt, or the count of a renewal or
// release.
type call struct {
	client  *simClient
	who     uint8
	lease   *simLease
	attempt *attempt
	tally   *tally
	poll    *poll
	admit   fencing.Token // poll: the token
	held    bool          // poll: by a lease that was counted on
	began   int64
	stamp   fencing.Stamp
	ttl     time.Duration
	propose fencing.Token
	await   [maxNodes]verb
	undone  nodeSet // nodes that have had the last undo
	over    bool
	life    int  // of the gateway
	claimed bool // it gives back what a majority has
}

func (w *world) log(format string, args ...any) {
	if w.trace != nil {
		fmt.Fprintf(w.trace, "%9.3f ms  %s\n", float64(w.now)/1000, fmt.Sprintf(format, args...))
	}
}

// fail notes the first thing that went wrong.
func (w *world) fail(format string, args ...any) {
	if w.fault == "" {
		w.fault = fmt.Sprintf(format, args...)
		w.log("WRONG: %s", w.fault)
	}
}

func (w *world) push(e event) {
	w.seq++
	e.seq = w.seq
	q := append(w.queue, e)
	i := len(q) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !before(&q[i], &q[up]) {
			break
		}
		q[i], q[up] = q[up], q[i]
		i = up
	}
	w.queue = q
}

func (w *world) pop() event {
	q := w.queue
	e := q[0]
	last := len(q) - 1
	q[0] = q[last]
	q[last] = event{}
	q = q[:last]
	for i := 0; ; {
		low := 2*i + 1
		if low >= len(q) {
			break
		}
		if low+1 < len(q) && before(&q[low+1], &q[low]) {
			low++
		}
		if !before(&q[low], &q[i]) {
			break
		}
		q[low], q[i] = q[i], q[low]
		i = low
	}
	w.queue = q
	return e
}

func before(a, b *event) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }

// clock returns what a node's clock shows.
func (w *world) clock(n *simNode) fencing.Instant {
	return fencing.Instant(simEpoch + w.now + n.offset + w.now*n.drift/1_000_000)
}

// wall returns what a client's clock shows.
func (w *world) wall(c *simClient) fencing.Instant {
	return fencing.Instant(simEpoch + w.now + c.offset + w.now*c.drift/1_000_000)
}

// elapsed returns how long a call has been under way by its client's clock.
func (w *world) elapsed(k *call) time.Duration {
	d := w.now - k.began
	return time.Duration(d+d*k.client.drift/1_000_000) * time.Microsecond
}

// chance is true in so many percent of all cases.
func (w *world) chance(percent int) bool { return w.rng.IntN(100) < percent }

func (w *world) between(lo, hi time.Duration) int64 {
	return lo.Microseconds() + w.rng.Int64N((hi-lo).Microseconds()+1)
}

// delay returns how long a message travels, and whether it arrives.
func (w *world) delay() (int64, bool) {
	if !w.chance(w.rough) {
		return w.between(100*time.Microsecond, 3*time.Millisecond), true
	}
	switch p := w.rng.IntN(10); {
	case p < 3:
		return 0, false
	case p < 8:
		return w.between(3*time.Millisecond, simTimeout), true
	default:
		return w.between(simTimeout, 10*simTimeout), true
	}
}

// newWorld sets a schedule up: all of it follows from the seed.
func newWorld(seed uint64, bugs defects, trace bool) *world {
	w := &world{seed: seed, rng: rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15)), bugs: bugs, queue: make([]event, 0, 64)}
	if trace {
		w.trace = &strings.Builder{}
	}
	n := 3
	if w.chance(20) {
		n = 5
	}
	w.amnesia = w.chance(35)
	w.heed, w.proposes = w.chance(30), seed%2 == 0
	w.rough = [...]int{2, 10, 25, 40}[w.rng.IntN(4)]
	w.nodes = make([]simNode, n)
	for i := range w.nodes {
		node := &w.nodes[i]
		node.state = fencing.NewState()
		node.offset = w.between(0, simSkew) - simSkew.Microseconds()/2
		node.drift = w.rng.Int64N(2*simDrift+1) - simDrift
		if !w.amnesia { // tokens that are close together, as counters ahead of the clock give
			node.state.Counter = fencing.Token(2*simEpoch + w.rng.IntN(4))
		}
		if w.chance(40) {
			w.push(event{at: w.between(0, 4*time.Second), kind: evDown, node: uint8(i)})
		}
		if w.chance(40) {
			w.push(event{at: w.between(0, 4*time.Second), kind: evClock, node: uint8(i)})
		}
		if w.amnesia && w.chance(70) {
			w.push(event{at: w.between(0, 3*time.Second), kind: evForget, node: uint8(i)})
		}
	}
	w.clients = make([]simClient, 2+w.rng.IntN(2))
	for i := range w.clients {
		c := &w.clients[i]
		c.offset = w.between(0, simSkew/2) - simSkew.Microseconds()/4
		c.drift = w.rng.Int64N(2*simDrift+1) - simDrift
		w.push(event{at: w.between(0, 10*time.Millisecond), kind: evAct, node: uint8(i)})
		if w.chance(40) {
			w.push(event{at: w.between(0, 3*time.Second), kind: evPause, node: uint8(i)})
		}
	}
	w.aside, w.third = rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, 2))
	planted := bugs.enrol != enrolDefects{}
	if w.enrols = (w.third.IntN(5) == 0 || planted) && bugs == (defects{enrol: bugs.enrol}); w.enrols {
		w.rng, w.third = w.third, w.rng
		w.foundQuorum()
		w.rng, w.third = w.third, w.rng
	} else if w.aside.IntN(2) == 0 && bugs == (defects{admit: bugs.admit}) { // what else is planted is to show elsewhere
		w.push(event{at: 20_000, kind: evWrite})
	}
	return w
}

// run plays the schedule until something is wrong or enough has happened.
func (w *world) run() string {
	for n := 0; n < simEvents && len(w.queue) > 0 && w.fault == ""; {
		e := w.pop()
		w.now = e.at
		if e.kind == evWrite || e.call != nil && e.call.poll != nil {
			w.rng, w.aside = w.aside, w.rng
			w.happen(&e)
			w.rng, w.aside = w.aside, w.rng
			continue
		}
		if e.kind >= evLook {
			w.rng, w.third = w.third, w.rng
			w.happen(&e)
			w.rng, w.third = w.third, w.rng
			continue
		}
		n++
		w.happen(&e)
	}
	return w.fault
}

func (w *world) happen(e *event) {
	if e.call != nil && e.call.life != e.call.client.life && e.kind != evDeliver { // its gateway is not there any more
		return
	}
	switch e.kind {
	case evReply, evTimeout, evAgain:
		if until := e.call.client.paused; until > w.now {
			e.at = until
			w.push(*e)
			return
		}
	case evAct, evLook, evLooked:
		if until := w.clients[e.node].paused; until > w.now {
			e.at = until
			w.push(*e)
			return
		}
	}
	switch e.kind {
	case evDeliver:
		w.deliver(e)
	case evReply:
		w.reply(e)
	case evTimeout:
		w.timeOut(e)
	case evAct:
		w.act(&w.clients[e.node], e.node)
	case evWrite:
		w.write()
	case evAgain:
		w.undo(e.call, allNodes(len(w.nodes)), true)
	case evPause:
		w.clients[e.node].paused = w.now + w.between(20*time.Millisecond, 3*time.Second)
		w.log("client %d pauses until %.3f ms", e.node, float64(w.clients[e.node].paused)/1000)
	case evDown, evUp, evClock, evForget:
		w.disturb(e)
	default:
		w.enrolling(e)
	}
}

// disturb is what befalls a node.
func (w *world) disturb(e *event) {
	node := &w.nodes[e.node]
	switch e.kind {
	case evDown:
		node.down = true
		w.log("node %d is down", e.node)
		w.push(event{at: w.now + w.between(50*time.Millisecond, 2*time.Second), kind: evUp, node: e.node})
	case evUp:
		node.down = false
		w.log("node %d is back", e.node)
	case evClock:
		node.offset = w.between(0, simSkew) - simSkew.Microseconds()/2
		w.log("node %d steps its clock to %d µs", e.node, node.offset)
	case evForget:
		w.forget(e)
	}
}

// mayForget reports whether one more node may forget: too many have not lately.
func (w *world) mayForget() bool {
	blind := 1
	for i := range w.nodes {
		if w.nodes[i].blind > w.now {
			blind++
		}
	}
	return blind < majorityOf(len(w.nodes))
}

// forget restarts a node empty, unless too many have forgotten lately. It does not
// vote for the longest TTL in use.
func (w *world) forget(e *event) {
	node := &w.nodes[e.node]
	if w.enrols || !w.mayForget() {
		return
	}
	node.run++
	node.state = fencing.NewState()
	longest := max(w.longest, time.Millisecond)
	if !w.bugs.noQuarantine {
		fencing.Arrive(node.state, w.clock(node), fencing.Arrival{
			Server: string(rune('a' + node.run)), Longest: longest, Most: fencing.LongestQuarantine,
		})
	}
	node.blind = w.now + longest.Microseconds() + 2*simSkew.Microseconds()
	w.log("node %d forgets, quarantine %s", e.node, longest)
}
