package machine

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"time"

	"fencepost/internal/fencing"
)

// goOn is how many steps an entry goes on with on a name where more has come due than one
// step does: some thousand leases, in a few milliseconds. Another entry does the rest: see Left.
const goOn = 16

// Machine is the state that a log leads to.
type Machine struct {
	mostPast   int
	state      *fencing.State
	index      *stateIndex // nil until it is needed: see Ready
	past       *past       // the same
	now        fencing.Instant
	follows    bool // now is what entries say, also if that is earlier than before
	walls      WallSteps
	ahead      time.Duration // of the wall clock, in the last entry that says what that was
	applied    uint64        // the index of the last entry, or of a later one that is none of ours
	digest     digest
	digests    []digestAt // the last ones, by index
	writer     string     // see Entry.Writer
	known      int        // the newest version of the rules that it knows
	unfinished map[fencing.Name]bool
	snapshot   *Snapshot // that is being written
	refused    Refused
	resting    map[fencing.Name]fencing.Instant // until when nothing is changed on a name; nil: nowhere
}

// New returns a machine that has carried out nothing, whose log begins with version 1 of the rules.
func New() *Machine {
	m := &Machine{mostPast: maxPast, unfinished: map[fencing.Name]bool{}, known: fencing.NewestRules}
	m.restore(&Restored{state: (&stateHead{}).state(), head: &stateHead{}})
	return m
}

// NewFollowing is New for a log whose time is a clock that may be set back, as that of a database server: it is what entries
// say. Skewed gateways are known by their guards then, and what is written meanwhile is put right: see fencing.Guard.
func NewFollowing() *Machine {
	m := New()
	m.follows = true
	return m
}

// Result is what an operation came to.
type Result struct {
	Index   uint64 // of its entry; 0 if that is not known
	Out     fencing.Outcome
	Entries []fencing.Entry // of a heartbeat
}

// Told is a message to the Listener of a gateway.
type Told struct {
	Index    uint64 // of the entry
	Gateway  fencing.Gateway
	Grant    fencing.Grant
	Replaced *fencing.Parked // or this, on the name of Grant
	Asks     *fencing.Parked // or this
	Now      fencing.Instant

	Asked time.Time `cbor:"-"` // Telling.Asked of the batch that brought it about
}

// Telling is what is to be told of an entry, or of a part of one.
type Telling struct {
	Quiet   bool      // nobody is told
	Watched bool      // events are wanted; they have no IDs where it becomes so behind the beginning of an entry
	Asked   time.Time // goes with what is told from now on
	Told    []Told
	Events  []fencing.Event

	// Leases, if it is there, gets those of which something may have changed, but for their metadata, and the token that each had
	// before: 0 if there was none, or a provisional one.
	Leases map[fencing.EndedLease]fencing.Token

	// AskedOf, if it is there, says what Asked is of a batch that begins.
	AskedOf func(*Batch) time.Time

	// Tries has an operation that panics be refused in place where a copy shows that it does: see tried. Panics gets what they panicked with.
	Tries  bool
	Panics []*Panic
}

// Apply carries out an entry. ErrDiffers is wrapped by the error where what came of those before it, or of itself, is something else
// than at whoever wrote it; the entry is carried out then as well. ErrRules is wrapped where it raises the rules to some that this
// version does not know; nothing of it is carried out then, and nothing behind it may be. beats says whether somebody wants Result.Entries: to find
// them costs time, and changes nothing. A *Panic says that the state is not to be trusted any more: see Refused.
func (m *Machine) Apply(index uint64, e *Decoded, t *Telling, beats bool) (results [][]Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			results, err = nil, panicOf(p, nil)
		}
	}()
	if err := m.knows(e.Rules, cmp.Or(e.Writer, m.writer)); err != nil {
		return nil, err
	}
	err = m.check(index, e.Entry)
	if e.Writer != "" {
		m.writer = e.Writer
	}
	if e.Rules != 0 {
		m.raise(e.Rules)
	}
	m.BeginEntry(fencing.Instant(e.Now), fencing.Instant(e.Wall))
	for i := range e.batches {
		b := &e.batches[i]
		m.Advance(fencing.Instant(e.Now + b.After))
		if t.Asked = (time.Time{}); t.AskedOf != nil {
			t.Asked = t.AskedOf(b.Batch)
		}
		results = append(results, m.batch(position{index, i, 0}, t, b, beats))
	}
	m.EndEntry(index)
	if err == nil && e.Behind == index {
		err = m.check(index, e.Entry)
	}
	return results, err
}

// BeginEntry comes before all that an entry asks for: it is an instant then, and that time by the wall clock; 0 says nothing
// of that.
func (m *Machine) BeginEntry(now, wall fencing.Instant) {
	m.Advance(now)
	m.walls = m.walls.noted(m.now, wall)
	if wall != 0 {
		m.ahead = wall.Sub(m.now)
	}
}

// Last returns when the last entry was made. Where only a snapshot says so, the wall clock of then may be up to 2*LeastWallStep later than it
// was, never earlier: so less has passed since, and nothing ends early.
func (m *Machine) Last() Last { return Last{m.now, m.now.Add(m.ahead)} }

// Covered notes the last entry that the snapshot has which was restored: it says exactly what the wall clock was.
func (m *Machine) Covered(e *Decoded) {
	if ahead := fencing.Instant(e.Wall).Sub(fencing.Instant(e.Now)); e.Wall != 0 && !m.walls.Differs(m.now, m.now.Add(ahead)) {
		m.ahead = ahead
	}
}

// Advance has it be an instant, unless it is later already.
func (m *Machine) Advance(now fencing.Instant) { m.now = m.at(now) }

// at returns what the time is where a clock says that it is now.
func (m *Machine) at(now fencing.Instant) fencing.Instant {
	if m.follows {
		return now
	}
	return max(m.now, now)
}

// EndEntry follows all that an entry asks for.
func (m *Machine) EndEntry(index uint64) {
	if m.past != nil {
		m.forgetPast()
	}
	m.digested(index)
	m.Reached(index)
}

// Reached notes that all of the log up to index is carried out: entries that are none of ours change nothing.
func (m *Machine) Reached(index uint64) { m.applied = max(m.applied, index) }

// batch carries out a batch, which begins there.
func (m *Machine) batch(at position, t *Telling, b *decodedBatch, beats bool) []Result {
	defer locate(&at, b)
	guard := b.Guard()
	results := make([]Result, len(b.ops))
	for i, op := range b.ops {
		results[i].Index, at.op = at.index, i
		switch kind := b.kinds[i]; {
		case m.refused[at] || t.Tries && op != nil && m.tried(at, t, guard, op):
			results[i].Out = m.refuse(op)
			continue
		case op != nil:
			results[i].Out = m.Step(at.index, t, guard, op)
			continue
		case kind == kindBeat:
			m.Ready()
			among := func(func(fencing.Name) bool) {}
			if beats {
				among = m.index.among(guard.Gateway)
			}
			results[i].Entries, results[i].Out.Err = fencing.BeatAmong(m.state, m.now, guard, among)
		case kind == kindPrune:
			m.PruneTombstones()
		case kind == kindRestart:
			m.Restart(guard.Gateway)
		case kind == kindLoss:
			m.Lose(time.Duration(b.plain[i].TTL), b.plain[i].AtRestart)
		case kind == kindArrive:
			m.arrive(b.plain[i].arrival())
		} // of kindTick the time is all
		results[i].Out.Now = m.now
	}
	return results
}

// Step decides an operation of the entry at index, and goes on with what it leaves to do. An acquire that stood
// behind what had come due is decided again when all of that is done. It panics with a *Panic: the state is not to be trusted then.
func (m *Machine) Step(index uint64, t *Telling, guard fencing.Guard, op fencing.Op) fencing.Outcome {
	defer blame(op)
	m.Ready()
	if out, rests := m.rests(op); rests {
		return out
	}
	out := m.decide(index, t, guard, op)
	if guard.StepLimit != 0 || fencing.OnlyLooks(op) {
		return out
	}
	more := out.More
	for left := goOn; more && left > 0; left-- {
		next := m.decide(index, t, guard, fencing.ExpireRequest{Name: op.LockName()})
		if _, attends := op.(fencing.ExpireRequest); attends {
			out.Ended = append(out.Ended, next.Ended...)
		}
		more = next.More
	}
	if more {
		m.unfinished[op.LockName()] = true
		return out
	}
	delete(m.unfinished, op.LockName())
	if _, acquires := op.(fencing.AcquireRequest); acquires && out.AskAgain() {
		out = m.decide(index, t, guard, op)
	}
	return out
}

// decide makes one step.
func (m *Machine) decide(index uint64, t *Telling, guard fencing.Guard, op fencing.Op) fencing.Outcome {
	name := op.LockName()
	if fencing.OnlyLooks(op) && !m.Doubtful(name) {
		return fencing.Step(m.state, m.now, guard, op)
	}
	if r, acquires := op.(fencing.AcquireRequest); acquires { // a lease id whose tombstone is due may be used again, and get another
		key := fencing.EndedLease{Name: name, Lease: r.Lease.Public()}
		if tomb, ok := m.state.Tombstones[key]; ok && tomb.Until <= m.now {
			m.dropTombstone(key)
		}
	}
	m.snapshot.save(m, name)
	m.touch(t, name, op)
	out := fencing.Step(m.state, m.now, guard, op)
	t.changed(name, &out)
	m.index.update(m.state, name)
	for i := range out.Ended {
		m.addTombstone(index, fencing.EndedLease{Name: name, Lease: out.Ended[i].Holder.Lease})
	}
	if out.Evicted != nil {
		m.addTombstone(index, fencing.EndedLease{Name: name, Lease: out.Evicted.Waiter.Lease})
	}
	m.past.update(m.state, name)
	m.digest.step(&out)
	m.note(index, t, name, &out, op)
	return out
}

// addTombstone notes that a step has made the tombstone of a lease, unless that is due: then
// nobody is to hear of it, and the lease id may have been used again in the same step.
func (m *Machine) addTombstone(index uint64, key fencing.EndedLease) {
	switch tomb, ok := m.state.Tombstones[key]; {
	case ok && tomb.Until <= m.now:
		delete(m.state.Tombstones, key)
	case ok:
		m.index.tombstones.Set(dueTombstone{until: tomb.Until, key: key, born: index})
	}
}

// note takes down whom to tell of a step.
func (m *Machine) note(index uint64, t *Telling, name fencing.Name, out *fencing.Outcome, op fencing.Op) {
	if t.Quiet {
		return
	}
	if r := out.Replaced; r != nil {
		t.Told = append(t.Told, Told{Index: index, Gateway: r.Gateway, Grant: fencing.Grant{Name: name}, Replaced: r, Now: m.now})
	}
	if e := out.Evicted; e != nil && e.Request != nil {
		t.Told = append(t.Told, Told{Index: index, Gateway: e.Request.Gateway, Grant: fencing.Grant{Name: name}, Asks: e.Request, Now: m.now})
	}
	_, acquires := op.(fencing.AcquireRequest)
	for _, g := range out.Granted {
		if !acquires || g.Holder.Token != out.Holder.Token { // the caller hears of its own from its answer
			t.Told = append(t.Told, Told{Index: index, Gateway: g.Gateway, Grant: g, Now: m.now, Asked: t.Asked})
		}
	}
	if t.Watched {
		for _, e := range out.Events(name) {
			e.ID = strconv.FormatUint(index, 10) + "-" + strconv.Itoa(len(t.Events))
			t.Events = append(t.Events, e)
		}
	}
}

// ToldOf returns the grants to waiters of a gateway that operations of its own brought about.
func ToldOf(gateway fencing.Gateway, results []Result) (all []Told) {
	for i := range results {
		out := &results[i].Out
		for _, g := range out.Granted {
			if g.Gateway == gateway && g.Holder.Token != out.Holder.Token {
				all = append(all, Told{Index: results[i].Index, Gateway: gateway, Grant: g, Now: out.Now})
			}
		}
	}
	return all
}

// PruneTombstones drops some thousand tombstones that are due, those first that were due first.
func (m *Machine) PruneTombstones() {
	m.Ready()
	for range tombstonesPerEntry {
		first, ok := m.index.tombstones.Min()
		if !ok || first.until > m.now {
			return
		}
		m.dropTombstone(first.key)
	}
}

// dropTombstone drops the tombstone of a lease, if there is one.
func (m *Machine) dropTombstone(key fencing.EndedLease) {
	tomb, ok := m.state.Tombstones[key]
	if !ok {
		return
	}
	if d, ok := m.index.tombstones.Get(dueTombstone{until: tomb.Until, key: key}); ok {
		m.snapshot.saveTombstone(m, d)
		m.index.tombstones.Delete(d)
	}
	delete(m.state.Tombstones, key)
}

// forgetPast drops histories while there are too many.
func (m *Machine) forgetPast() {
	for name, over := m.past.oldest(); over; name, over = m.past.oldest() {
		m.snapshot.save(m, name)
		m.state.Records[name].History = nil
		m.past.update(m.state, name)
	}
}

// Restart has the state be as after a restart of a gateway that is the only one: see fencing.State.Restart.
func (m *Machine) Restart(gateway fencing.Gateway) {
	for name := range m.state.Records {
		m.snapshot.save(m, name)
	}
	begins := m.state.Quarantine.Again > 0
	m.state.Restart(m.now, gateway)
	m.index, m.past = nil, nil
	clear(m.unfinished)
	m.digest.number(uint64(m.now))
	if begins {
		m.digest.number(uint64(m.state.Quarantine.Until))
	}
}

// Lose has nothing new be granted for so long: leases that lived at most as long may have been granted, and forgotten. What is
// remembered can be renewed, and tokens go on from the time of the log at least. again: as long as that lasts then it lasts from the
// next Restart on.
func (m *Machine) Lose(longest time.Duration, again bool) {
	fencing.Arrive(m.state, m.now, fencing.Arrival{
		Lost: true, Longest: longest, Least: longest, Most: longest, Server: m.state.Quarantine.Server, Floor: fencing.Token(m.now),
	})
	if again {
		m.state.Quarantine.Again = m.state.Quarantine.Until.Sub(m.now)
	}
	m.digest.number(uint64(m.state.Quarantine.Until))
}

// arrive notes who serves.
func (m *Machine) arrive(a fencing.Arrival) {
	q := fencing.Arrive(m.state, m.now, a)
	m.digest.text(q.Server)
	m.digest.number(uint64(q.Until))
}

// Lone reports whether the state is that of a gateway that is the only one, and counts as alive for ever.
func (m *Machine) Lone() bool {
	for _, seen := range m.state.Gateways.Seen {
		if seen == fencing.Instant(fencing.MaxToken) {
			return true
		}
	}
	return false
}

// Ready makes what finds names and leases in the state, if it is not there: Apply and Step do so where they need it, and
// who only looks has it done before.
func (m *Machine) Ready() {
	if m.index == nil {
		m.index, m.past = newIndex(m.state), newPast(m.state, m.mostPast)
	}
}

// Restore makes a snapshot that was read the state, unless it is by rules that this version does not know: the error wraps ErrRules then.
func (m *Machine) Restore(r *Restored) error {
	if err := m.Follows(r); err != nil {
		return err
	}
	m.restore(r)
	return nil
}

// Follows returns why the machine can't go on from a snapshot: the error wraps ErrRules.
func (m *Machine) Follows(r *Restored) error { return m.knows(r.state.Rules, r.head.Writer) }

func (m *Machine) restore(r *Restored) {
	m.state, m.index, m.past = r.state, nil, nil
	m.now, m.applied, m.walls, m.writer = r.head.now(), r.head.Applied, r.head.Wall, r.head.Writer
	if m.ahead = 0; len(m.walls) > 0 { // see Last
		m.ahead = m.walls[len(m.walls)-1].ahead() + LeastWallStep
	}
	m.restoreDigests(r.head)
	clear(m.unfinished)
	m.resting = nil
	for name, until := range r.head.Resting {
		m.rest(fencing.Name(name), fencing.Instant(until))
	}
}

// State returns the state: it is only to be looked at.
func (m *Machine) State() *fencing.State { return m.state }

// Now returns the greatest instant in the log, or the last one where the log follows a clock.
func (m *Machine) Now() fencing.Instant { return m.now }

// Applied returns up to which index the log is carried out.
func (m *Machine) Applied() uint64 { return m.applied }

// Walls returns what the log says of the wall clock.
func (m *Machine) Walls() WallSteps { return m.walls }

// Writer returns which version of the gateway has written what was carried out last, as far as the log says so.
func (m *Machine) Writer() string { return m.writer }

// ErrDiffers is wrapped by the error of an entry before which something else has come of the log here than at whoever
// wrote it.
var ErrDiffers = errors.New("this version of the gateway computes other results than")

// Belongs reports whether an entry may be one of the log that led to the state, whose last entries it is among: false, if it says
// something else of those before it than is known.
func (m *Machine) Belongs(index uint64, e *Decoded) bool { return m.check(index, e.Entry) == nil }

// check compares what has come of the log up to where an entry says it with what it says, as far as that is known.
func (m *Machine) check(index uint64, e *Entry) error {
	if e.Behind == 0 {
		return nil
	}
	if is, known := m.DigestAt(e.Behind); known && is != e.Digest {
		return fmt.Errorf("%w version %s, which wrote the log (entry %d has a hash of the results up to entry %d)",
			ErrDiffers, cmp.Or(e.Writer, m.writer, "that was there before"), index, e.Behind)
	}
	return nil
}

// Tell tells the Listener of the gateway.
func (t *Told) Tell(l fencing.Listener) {
	switch {
	case t.Replaced != nil:
		l.Replaced(t.Grant.Name, t.Replaced.Stamp)
	case t.Asks != nil:
		l.Ask(t.Grant.Name, t.Asks.Stamp)
	default:
		l.Granted(t.Grant, t.Now, t.Asked)
	}
}
