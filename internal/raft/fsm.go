package raft

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
	"fencepost/internal/snapshots"
)

// snapshotAfter is how much of the log is carried out before a snapshot takes its place: a
// node reads as much at its start, in a second or two.
const snapshotAfter = 64 << 20

// fsm carries out the log on this node, and tells whom it concerns. It is the FSM of hashicorp/raft.
type fsm struct {
	self     fencing.Gateway
	quiet    atomic.Uint64                                           // entries up to this one were carried out before this process began, or may have been
	asked    func(batch uint64) time.Time                            // when this gateway asked for one of its batches; forgets it
	leads    func(term uint64) bool                                  // reports whether this node leads in a term
	push     func([]machine.Told)                                    // tells other gateways; only the leader does
	compact  func()                                                  // the log has grown enough for a snapshot
	fail     func(error)                                             // the node can't go on
	check    func(io.Reader) error                                   // makes sure that a snapshot that was written can be read
	anew     func(uint64, machine.Refused) (*machine.Machine, error) // what the log comes to up to an entry: directory.machineAt
	panicked func(p *machine.Panic, before bool)                     // an operation is refused, perhaps not for the first time in this log
	newest   *machine.Restored                                       // at the start of the node: the newest snapshot, which was read already
	listener atomic.Pointer[fencing.Listener]                        // of this gateway
	raised   func(before, to int)                                    // an entry has raised the rules
	version  string                                                  // of this gateway
	watchers fencing.Watchers
	wall     wallClock
	last     atomic.Pointer[cameTo] // see lastDigest
	log      *slog.Logger

	mu       sync.RWMutex // held to change what follows
	machine  *machine.Machine
	refused  machine.Refused // those that were found since this process began
	early    map[early]bool  // what the Listener has heard of entries that are not carried out here yet
	stopped  bool            // an entry could not be carried out
	differs  error           // it has come to something else than a leader; nil: it has not
	progress chan struct{}   // closed when more of the log is carried out; nil while nobody waits for it
	grown    int             // bytes of entries since the last snapshot
	doubtful uint64          // the last entry of which an operation was refused, until one that follows says that its writer came to the same; 0: none

	quarantine machine.QuarantineLog // of the leader
	saved      uint64                // the last entry that a snapshot on disk has
	until      time.Time             // snapshots are written until then; none: for ever
}

var (
	_ raft.FSM                = (*fsm)(nil)
	_ raft.ConfigurationStore = (*fsm)(nil)
)

// applied is what an entry came to, for the node that appended it.
type applied struct {
	stale   bool // it was made in another term: nothing of it counts
	results [][]machine.Result
}

func newFSM(self fencing.Gateway, o *Options) *fsm {
	m := &fsm{self: self, version: o.Version, machine: machine.New(), check: machine.Check, early: map[early]bool{}, refused: machine.Refused{}, log: slog.New(slog.DiscardHandler)}
	m.machine.Refuse(m.refused)
	m.machine.Know(cmp.Or(o.rules, m.machine.Known()))
	m.machine.Ready()
	m.noteDigest()
	return m
}

// Apply carries out an entry. It implements raft.FSM, and returns an *applied.
func (m *fsm) Apply(l *raft.Log) any {
	e, err := machine.Decode(l.Data)
	if err != nil {
		m.stop(look(m, func(of *machine.Machine) error { return of.Unread(l.Index, l.Data, err) }))
		return &applied{stale: true}
	}
	leads := m.leads(e.Term)
	t := &machine.Telling{Quiet: l.Index <= m.quiet.Load(), Watched: m.watchers.Any(), AskedOf: m.askedOf, Tries: true}
	a := &applied{stale: e.Term != l.Term}
	m.mu.Lock()
	if m.stopped {
		m.mu.Unlock()
		return &applied{stale: true}
	}
	before, refused := m.machine.Rules(), false
	if a.stale {
		m.machine.Reached(l.Index)
	} else {
		a.results, refused, err = m.carryOut(l.Index, e, t, leads)
	}
	if m.stopped = errors.Is(err, errPanicked) || errors.Is(err, machine.ErrRules) || errors.Is(err, machine.ErrDiffers) && m.byAnother(); m.stopped {
		if errors.Is(err, machine.ErrDiffers) {
			err = fmt.Errorf("%w; %s", err, wayOut(m.machine.Writer()))
		}
		m.mu.Unlock()
		m.fail(err)
		return &applied{stale: true}
	}
	if err != nil && m.differs == nil {
		m.differs = err // who is right the nodes find out: see compare
	}
	after := m.machine.Rules()
	m.machine.Ready()
	m.wall.follow(m.machine.Walls())
	m.noteDigest()
	m.wake()
	m.grown += len(l.Data)
	large := m.grown > snapshotAfter
	switch {
	case refused: // the version of who wrote the entry may have carried that out
		m.doubtful, large = l.Index, false
	case m.doubtful > 0 && err == nil && !a.stale && e.Behind >= m.doubtful:
		m.doubtful, large = 0, true
	}
	m.mu.Unlock()
	if large {
		m.compact()
	}
	if after != before && !t.Quiet {
		m.raised(before, after)
	}
	m.tell(t, leads)
	return a
}

// errDoubtful is why no snapshot is taken right behind an operation that was refused.
var errDoubtful = errors.New("it is not known yet whether the other nodes have refused as well what panicked here")

// byAnother reports whether another version of the gateway writes the log, as far as that is known: what differs is no fault of a machine
// then. The caller holds the mutex.
func (m *fsm) byAnother() bool {
	writer := m.machine.Writer()
	return writer != "" && m.version != "" && writer != m.version
}

// wayOut says what to do where this version of the gateway comes to something else than the one that writes the log.
func wayOut(writer string) string {
	return fmt.Sprintf("start version %s here. To go over to another one, stop all nodes of the cluster with SIGTERM while they have that version, "+
		"and then start all of them with the other one. If that version stops here as well, this log has what each of the two has decided: "+
		"start this node with an empty directory then, while others of the cluster serve", writer)
}

// askedOf returns when this gateway asked for a batch, if it is one of its own.
func (m *fsm) askedOf(b *machine.Batch) time.Time {
	if fencing.Gateway(b.Gateway) != m.self || b.Number == 0 {
		return time.Time{}
	}
	return m.asked(b.Number)
}

// stop ends the part of this node: it must not go on without an entry that others have
// carried out.
func (m *fsm) stop(err error) {
	m.mu.Lock()
	m.stopped = true
	m.mu.Unlock()
	m.fail(err)
}

// wake has those look that wait for the log to be carried out. The caller holds the mutex.
func (m *fsm) wake() {
	if m.progress != nil {
		close(m.progress)
		m.progress = nil
	}
}

// reached notes that all of the log up to index is carried out.
func (m *fsm) reached(index uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.machine.Reached(index)
	m.wake()
}

// cut notes that the end of the log is cut off from an entry on: others take its place, which nobody was told of.
func (m *fsm) cut(from uint64) { m.quiet.Store(min(m.quiet.Load(), from-1)) }

// StoreConfiguration notes an entry that changes the members. It implements
// raft.ConfigurationStore.
func (m *fsm) StoreConfiguration(index uint64, _ raft.Configuration) { m.reached(index) }

// await returns when all of the log up to index is carried out, or done is closed.
func (m *fsm) await(index uint64, done <-chan struct{}) {
	for {
		m.mu.Lock()
		if m.machine.Applied() >= index {
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
func (m *fsm) tell(of *machine.Telling, leads bool) {
	var others []machine.Told
	for i := range of.Told {
		switch t := &of.Told[i]; {
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
	m.watchers.Tell(of.Events)
}

// early names a message that came before its entry was carried out here.
type early struct {
	index uint64
	name  fencing.Name
	token fencing.Token
	stamp fencing.Stamp
}

func earlyOf(t *machine.Told) early {
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
func (m *fsm) hearEarly(t *machine.Told) {
	of := earlyOf(t)
	m.mu.Lock()
	fresh := t.Index > m.machine.Applied() && !m.early[of]
	if fresh {
		m.early[of] = true
	}
	m.mu.Unlock()
	if fresh {
		m.hear(t)
	}
}

// wasEarly reports whether hearEarly has told the Listener already, and forgets it.
func (m *fsm) wasEarly(t *machine.Told) bool {
	of := earlyOf(t)
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.early[of]
	delete(m.early, of)
	return was
}

// hear tells the Listener of this gateway.
func (m *fsm) hear(t *machine.Told) {
	if listener := m.listener.Load(); listener != nil {
		t.Tell(*listener)
	}
}

// snapshot is one that is being written. It implements raft.FSMSnapshot.
type snapshot struct {
	of *fsm
	*machine.Snapshot
}

// Snapshot begins a snapshot. It implements raft.FSM: what it returns is written while
// entries are carried out.
func (m *fsm) Snapshot() (raft.FSMSnapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopped {
		return nil, errors.New("this node has stopped")
	}
	if m.doubtful > 0 && m.grown <= 2*snapshotAfter {
		return nil, errDoubtful
	}
	s, err := m.machine.Snapshot()
	if err != nil {
		return nil, err
	}
	m.grown = 0
	return snapshot{m, s}, nil
}

// Persist writes the snapshot, and reads it once more. After an error hashicorp/raft keeps the log that
// it was to take the place of.
func (s snapshot) Persist(sink raft.SnapshotSink) error {
	s.of.mu.RLock()
	until, check := s.of.until, s.of.check
	s.of.mu.RUnlock()
	if err := s.Write(timed{sink, until}, &s.of.mu); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	snapshots.Checked(sink, check)
	if err := sink.Close(); err != nil {
		return err
	}
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.of.saved = max(s.of.saved, s.Applied())
	return nil
}

// Release ends the snapshot.
func (s snapshot) Release() {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.Snapshot.Release()
}

// Restore makes a snapshot the state. It implements raft.FSM. What was to be told of the
// entries in between is lost, so there is a gap. A snapshot that this node can't read ends it: hashicorp/raft
// would have it sent again for ever.
func (m *fsm) Restore(from io.ReadCloser) error {
	known := m.newest
	m.newest = nil
	is, err := machine.ReadUnless(known, from)
	if err != nil {
		if errors.Is(err, machine.ErrDamaged) || errors.Is(err, machine.ErrVersion) {
			m.stop(fmt.Errorf("a snapshot can't be taken over: %w", err))
		}
		return err
	}
	restored := machine.New() // one with many names takes seconds to be ready
	restored.Refuse(m.refused)
	restored.Know(look(m, (*machine.Machine).Known))
	if err := restored.Restore(is); err != nil {
		m.stop(fmt.Errorf("a snapshot can't be taken over: %w", err))
		return err
	}
	restored.Ready()
	m.mu.Lock()
	m.machine = restored // a snapshot that is being written goes on with the one before
	clear(m.early)
	m.differs, m.doubtful, m.saved = nil, 0, m.machine.Applied()
	m.wall.follow(m.machine.Walls())
	m.noteDigest()
	m.wake()
	m.mu.Unlock()
	m.watchers.Gap()
	if listener := m.listener.Load(); listener != nil {
		(*listener).Gap()
	}
	return nil
}

// look has see look at what the log has led to.
func look[T any](m *fsm, see func(*machine.Machine) T) T {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return see(m.machine)
}

// list returns a page: see machine.Page.
func (m *fsm) list(r fencing.ListRequest, now fencing.Instant, guard fencing.Guard) fencing.ListPage {
	total := 0
	if r.Count {
		total = look(m, func(of *machine.Machine) int { return of.HeldBelow(r.Prefix) })
	}
	page := machine.Page(r, func(v machine.View, after fencing.Name) ([]*fencing.Lock, bool) {
		m.mu.RLock()
		defer m.mu.RUnlock()
		v.Now, v.Guard = now, guard
		return m.machine.Views(v, after)
	})
	page.Total = total
	return page
}
