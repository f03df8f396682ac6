package raft

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/internal/fencing"
)

// goOn is how many steps an entry goes on with on a name where more has come due than one
// step does: some thousand leases, in a few milliseconds. The leader appends another entry
// for the rest.
const goOn = 16

// snapshotAfter is how much of the log is carried out before a snapshot takes its place: a
// node reads as much at its start, in a second or two.
const snapshotAfter = 64 << 20

// machine is the state that every node has, and what is told of it on this one. It is the
// FSM of hashicorp/raft: what Apply changes depends on the entry and the state alone.
type machine struct {
	self     fencing.Gateway
	mostPast int
	quiet    atomic.Uint64                    // entries up to this one were carried out before this process began, or may have been
	asked    func(batch uint64) time.Time     // when this gateway asked for one of its batches; forgets it
	leads    func(term uint64) bool           // reports whether this node leads in a term
	push     func([]told)                     // tells other gateways; only the leader does
	compact  func()                           // the log has grown enough for a snapshot
	fail     func(error)                      // the node can't go on
	readBack func(id string) error            // makes sure that a snapshot that was written can be read
	newest   *restored                        // at the start of the node: the newest snapshot, which was read already
	listener atomic.Pointer[fencing.Listener] // of this gateway
	watchers fencing.Watchers

	mu         sync.RWMutex // held to change what follows
	state      *fencing.State
	index      *stateIndex
	past       *past
	now        fencing.Instant // the greatest in the log
	wall       wallSteps       // has a mutex of its own, for what the leader tells of
	applied    uint64          // the index of the last entry, or of a later one that is none of ours
	digest     digest
	digests    []digestAt // the last ones, by index
	unfinished map[fencing.Name]bool
	early      map[early]bool // what the Listener has heard of entries that are not carried out here yet
	snapshot   *snapshot      // that is being written
	stopped    bool           // an entry could not be carried out
	progress   chan struct{}  // closed when applied moves; nil while nobody waits for it
	grown      int            // bytes of entries since the last snapshot
}

var (
	_ raft.FSM                = (*machine)(nil)
	_ raft.ConfigurationStore = (*machine)(nil)
)

// applied is what an entry came to, for the node that appended it.
type applied struct {
	stale   bool // it was made in another term: nothing of it counts
	index   uint64
	results [][]result // of each batch
}

// result is what an operation came to.
type result struct {
	index   uint64 // of its entry; 0 if that is not known here
	out     fencing.Outcome
	entries []fencing.Entry // of a heartbeat
}

// told is a message to the Listener of a gateway.
type told struct {
	Index    uint64 // of the entry
	Gateway  fencing.Gateway
	Grant    fencing.Grant
	Replaced *fencing.Parked // or this, on the name of Grant
	Asks     *fencing.Parked // or this
	Now      fencing.Instant

	asked time.Time // of a firm grant, which only the gateway that asked for it is told
}

// doing is what is to be told of an entry.
type doing struct {
	index uint64
	now   fencing.Instant
	asked time.Time // of the batch under way, if it is of this gateway
	told  []told

	watched bool // somebody watched when it began, so that its events are counted from the first one
	events  []fencing.Event
}

// decoded is a batch with its operations.
type decoded struct {
	*batch
	kinds []kind
	ops   []fencing.Op // nil of those that are none of fencing's
}

func newMachine(self fencing.Gateway) *machine {
	m := &machine{self: self, mostPast: maxPast, unfinished: map[fencing.Name]bool{}, early: map[early]bool{}}
	m.adopt(fencing.NewState(), 0, 0)
	return m
}

// adopt makes a state that of the machine. The caller holds the mutex, or is alone.
func (m *machine) adopt(state *fencing.State, now fencing.Instant, applied uint64) {
	m.state, m.index, m.past = state, newIndex(state), newPast(state, m.mostPast)
	m.now, m.applied = now, applied
	clear(m.unfinished)
	clear(m.early)
}

// Apply carries out an entry. It implements raft.FSM, and returns an *applied.
func (m *machine) Apply(l *raft.Log) any {
	e, batches, err := decodeAll(l.Data)
	if err != nil {
		m.stop(fmt.Errorf("entry %d of the log can't be carried out: %w", l.Index, err))
	}
	wanted := err == nil && m.leads(e.Term)
	a := &applied{stale: err != nil || e.Term != l.Term, index: l.Index}
	d := &doing{index: l.Index, watched: m.watchers.Any()}
	m.mu.Lock()
	if m.stopped {
		m.mu.Unlock()
		return &applied{stale: true}
	}
	if !a.stale {
		m.now = max(m.now, fencing.Instant(e.Now))
		d.now = m.now
		m.wall.note(m.now, fencing.Instant(e.Wall))
		for i := range batches {
			results := m.batch(d, &batches[i], wanted)
			if wanted {
				a.results = append(a.results, results)
			}
		}
		m.forgetPast()
		m.digested(l.Index)
	}
	m.reached(l.Index)
	m.grown += len(l.Data)
	large := m.grown > snapshotAfter
	m.mu.Unlock()
	if large {
		m.compact()
	}
	m.tell(d, wanted)
	return a
}

// decodeAll returns an entry with its operations, or an error: then nothing of it counts.
func decodeAll(data []byte) (*entry, []decoded, error) {
	e, err := decodeEntry(data)
	if err != nil {
		return nil, nil, err
	}
	batches := make([]decoded, len(e.Batches))
	for i := range e.Batches {
		b := decoded{batch: &e.Batches[i]}
		b.kinds, b.ops = make([]kind, len(b.Ops)), make([]fencing.Op, len(b.Ops))
		for j, encoded := range b.Ops {
			o, err := decodeOperation(encoded)
			if err != nil {
				return nil, nil, fmt.Errorf("an operation can't be read by this version: %w", err)
			}
			if b.kinds[j] = o.Kind; !o.Kind.ofStep() {
				continue
			}
			if b.ops[j], err = o.op(); err != nil {
				return nil, nil, err
			}
		}
		batches[i] = b
	}
	return e, batches, nil
}

// stop ends the part of this node: it must not go on without an entry that others have
// carried out.
func (m *machine) stop(err error) {
	m.mu.Lock()
	m.stopped = true
	m.mu.Unlock()
	m.fail(err)
}

// batch carries out a batch. The caller holds the mutex.
func (m *machine) batch(d *doing, b *decoded, wanted bool) []result {
	d.asked = time.Time{}
	if fencing.Gateway(b.Gateway) == m.self && b.Number != 0 {
		d.asked = m.asked(b.Number)
	}
	guard := b.guard()
	results := make([]result, len(b.ops))
	for i, op := range b.ops {
		switch {
		case op != nil:
			results[i].out = m.step(d, guard, op)
		case b.kinds[i] == kindBeat:
			among := func(func(fencing.Name) bool) {}
			if wanted {
				among = m.index.among(guard.Gateway)
			}
			entries, refusal := fencing.BeatAmong(m.state, d.now, guard, among)
			results[i] = result{out: fencing.Outcome{Now: d.now, Err: refusal}, entries: entries}
		default: // of kindTick the time is all
			if b.kinds[i] == kindPrune {
				m.prune()
			}
			results[i].out.Now = d.now
		}
		results[i].index = d.index
	}
	return results
}

// step decides an operation, and goes on with what it leaves to do. An acquire that stood
// behind what had come due is decided again when all of that is done.
func (m *machine) step(d *doing, guard fencing.Guard, op fencing.Op) fencing.Outcome {
	out := m.decide(d, guard, op)
	if guard.StepLimit != 0 || fencing.OnlyLooks(op) {
		return out
	}
	more := out.More
	for left := goOn; more && left > 0; left-- {
		next := m.decide(d, guard, fencing.ExpireRequest{Name: op.LockName()})
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
		out = m.decide(d, guard, op)
	}
	return out
}

// decide makes one step.
func (m *machine) decide(d *doing, guard fencing.Guard, op fencing.Op) fencing.Outcome {
	name := op.LockName()
	if fencing.OnlyLooks(op) {
		return fencing.Step(m.state, d.now, guard, op)
	}
	if r, acquires := op.(fencing.AcquireRequest); acquires { // a lease id whose tombstone is due may be used again, and get another
		key := fencing.EndedLease{Name: name, Lease: r.Lease.Public()}
		if tomb, ok := m.state.Tombstones[key]; ok && tomb.Until <= d.now {
			m.dropTombstone(key)
		}
	}
	m.snapshot.save(m, name)
	out := fencing.Step(m.state, d.now, guard, op)
	m.index.update(m.state, name)
	for i := range out.Ended {
		m.addTombstone(d, fencing.EndedLease{Name: name, Lease: out.Ended[i].Holder.Lease})
	}
	if out.Evicted != nil {
		m.addTombstone(d, fencing.EndedLease{Name: name, Lease: out.Evicted.Waiter.Lease})
	}
	m.past.update(m.state, name)
	m.digest.step(&out)
	m.note(d, name, &out, op)
	return out
}

// addTombstone notes that a step has made the tombstone of a lease, unless that is due: then
// nobody is to hear of it, and the lease id may have been used again in the same step.
func (m *machine) addTombstone(d *doing, key fencing.EndedLease) {
	switch tomb, ok := m.state.Tombstones[key]; {
	case ok && tomb.Until <= d.now:
		delete(m.state.Tombstones, key)
	case ok:
		m.index.tombstones.Set(dueTombstone{until: tomb.Until, key: key, born: d.index})
	}
}

// note takes down whom to tell of a step.
func (m *machine) note(d *doing, name fencing.Name, out *fencing.Outcome, op fencing.Op) {
	if d.index <= m.quiet.Load() {
		return
	}
	if r := out.Replaced; r != nil {
		d.told = append(d.told, told{Index: d.index, Gateway: r.Gateway, Grant: fencing.Grant{Name: name}, Replaced: r, Now: d.now})
	}
	if e := out.Evicted; e != nil && e.Request != nil {
		d.told = append(d.told, told{Index: d.index, Gateway: e.Request.Gateway, Grant: fencing.Grant{Name: name}, Asks: e.Request, Now: d.now})
	}
	_, acquires := op.(fencing.AcquireRequest)
	for _, g := range out.Granted {
		if !acquires || g.Holder.Token != out.Holder.Token { // the caller hears of its own from its answer
			d.told = append(d.told, told{Index: d.index, Gateway: g.Gateway, Grant: g, Now: d.now, asked: d.asked})
		}
	}
	if d.watched {
		for _, e := range out.Events(name) {
			e.ID = strconv.FormatUint(d.index, 10) + "-" + strconv.Itoa(len(d.events))
			d.events = append(d.events, e)
		}
	}
}

// prune drops tombstones that are due, those first that were due first.
func (m *machine) prune() {
	for range tombstonesPerEntry {
		first, ok := m.index.tombstones.Min()
		if !ok || first.until > m.now {
			return
		}
		m.dropTombstone(first.key)
	}
}

// dropTombstone drops the tombstone of a lease, if there is one.
func (m *machine) dropTombstone(key fencing.EndedLease) {
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
func (m *machine) forgetPast() {
	for name, over := m.past.oldest(); over; name, over = m.past.oldest() {
		m.snapshot.save(m, name)
		m.state.Records[name].History = nil
		m.past.update(m.state, name)
	}
}

// reached notes that all of the log up to index is carried out. The caller holds the mutex.
func (m *machine) reached(index uint64) {
	m.applied = max(m.applied, index)
	if m.progress != nil {
		close(m.progress)
		m.progress = nil
	}
}

// cut notes that the end of the log is cut off from an entry on: others take its place, which nobody was told of.
func (m *machine) cut(from uint64) { m.quiet.Store(min(m.quiet.Load(), from-1)) }

// StoreConfiguration notes an entry that changes the members. It implements
// raft.ConfigurationStore.
func (m *machine) StoreConfiguration(index uint64, _ raft.Configuration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reached(index)
}

// await returns when all of the log up to index is carried out, or done is closed.
func (m *machine) await(index uint64, done <-chan struct{}) {
	for {
		m.mu.Lock()
		if m.applied >= index {
			m.mu.Unlock()
			return
		}
		if m.progress == nil {
			m.progress = make(chan struct{})
		}
		progress := m.progress
		m.mu.Unlock()
		select {
		case <-progress:
		case <-done:
			return
		}
	}
}

// tell tells of an entry. Only Apply calls it, so all is told in the order of the log.
func (m *machine) tell(d *doing, leads bool) {
	var others []told
	for i := range d.told {
		switch t := &d.told[i]; {
		case t.Gateway == m.self:
			if !m.wasEarly(t) {
				m.hear(t)
			}
		case t.Replaced != nil || t.Asks != nil || t.Grant.Holder.Provisional: // of others their gateway hears from its answer
			others = append(others, *t)
		}
	}
	if leads && len(others) > 0 {
		m.push(others)
	}
	m.watchers.Tell(d.events)
}

// toldOf returns the grants to waiters of a gateway that operations of its own brought about.
func toldOf(gateway fencing.Gateway, results []result) (all []told) {
	for i := range results {
		out := &results[i].out
		for _, g := range out.Granted {
			if g.Gateway == gateway && g.Holder.Token != out.Holder.Token {
				all = append(all, told{Index: results[i].index, Gateway: gateway, Grant: g, Now: out.Now})
			}
		}
	}
	return all
}

// early names a message that came before its entry was carried out here.
type early struct {
	index uint64
	name  fencing.Name
	token fencing.Token
	stamp fencing.Stamp
}

func (t *told) early() early {
	e := early{index: t.Index, name: t.Grant.Name, token: t.Grant.Holder.Token}
	if t.Replaced != nil {
		e.stamp = t.Replaced.Stamp
	}
	if t.Asks != nil {
		e.stamp = t.Asks.Stamp
	}
	return e
}

// hearEarly tells the Listener what the leader says of an entry that is not carried out
// here yet.
func (m *machine) hearEarly(t *told) {
	m.mu.Lock()
	fresh := t.Index > m.applied && !m.early[t.early()]
	if fresh {
		m.early[t.early()] = true
	}
	m.mu.Unlock()
	if fresh {
		m.hear(t)
	}
}

// wasEarly reports whether hearEarly has told the Listener already, and forgets it.
func (m *machine) wasEarly(t *told) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.early[t.early()]
	delete(m.early, t.early())
	return was
}

// hear tells the Listener of this gateway.
func (m *machine) hear(t *told) {
	listener := m.listener.Load()
	switch {
	case listener == nil:
	case t.Replaced != nil:
		(*listener).Replaced(t.Grant.Name, t.Replaced.Stamp)
	case t.Asks != nil:
		(*listener).Ask(t.Grant.Name, t.Asks.Stamp)
	default:
		(*listener).Granted(t.Grant, t.Now, t.asked)
	}
}

// Snapshot begins a snapshot. It implements raft.FSM: what it returns is written while
// entries are carried out.
func (m *machine) Snapshot() (raft.FSMSnapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.stopped:
		return nil, errors.New("this node has stopped")
	case m.snapshot != nil:
		return nil, errors.New("another snapshot is being written")
	}
	m.snapshot, m.grown = newSnapshot(m), 0
	return m.snapshot, nil
}

// restored is a snapshot that was read.
type restored struct {
	state *fencing.State
	head  *stateHead
}

// restored reads a snapshot, unless it is the one that was read at the start.
func (m *machine) restored(from io.Reader) (restored, error) {
	r, head, err := readHead(from)
	if err != nil {
		return restored{}, err
	}
	known := m.newest
	if m.newest = nil; known != nil && known.head.Applied == head.Applied && known.head.Now == head.Now {
		return *known, nil
	}
	is := restored{head.state(), head}
	return is, r.readRest(is.state, false)
}

// Restore makes a snapshot the state. It implements raft.FSM. What was to be told of the
// entries in between is lost, so there is a gap. A snapshot that this node can't read ends it: hashicorp/raft
// would have it sent again for ever.
func (m *machine) Restore(from io.ReadCloser) error {
	is, err := m.restored(from)
	if err != nil {
		if errors.Is(err, errDamaged) || errors.Is(err, errVersion) {
			m.stop(fmt.Errorf("a snapshot can't be taken over: %w", err))
		}
		return err
	}
	m.mu.Lock()
	m.adopt(is.state, is.head.now(), is.head.Applied)
	m.digest, m.digests = digest(is.head.Digest), nil
	m.wall.set(is.head.Wall)
	if m.progress != nil {
		close(m.progress)
		m.progress = nil
	}
	m.mu.Unlock()
	m.watchers.Gap()
	if listener := m.listener.Load(); listener != nil {
		(*listener).Gap()
	}
	return nil
}
