package raft

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"fencepost/internal/datadir"
	"fencepost/internal/disk"
	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

// Store is a fencing.Store that is a node of a cluster.
type Store struct {
	self       Member
	log        *slog.Logger
	calls      Calls
	clocks     func() (wall time.Time, monotonic time.Duration) // read together
	opened     time.Time
	stepLimit  int
	maxHolders int
	version    string
	batch      machine.Batch // an empty one of this gateway

	fsm     *fsm
	pulse   machine.Pulse // of the fsm's mutex
	panics  atomic.Int64
	raft    *raft.Raft
	dir     *directory
	notify  chan bool                  // hashicorp/raft tells whether this node leads
	leading atomic.Pointer[leadership] // nil while it does not, or has not carried out all of the log

	queue     queue
	wake      chan struct{}  // holds one when route is to look for something to do
	slots     chan struct{}  // holds one for each entry on its way
	proposals chan *proposal // those on their way, in order
	calling   chan struct{}  // holds one for each batch on its way to the leader
	sessions  sessions
	verifier  verifier
	pushes    pushes
	founded   machine.Last // of the log of a store without peers, if this run forms a cluster from that
	reaped    atomic.Int64 // when this gateway last asked for Expire as the leader, in nanoseconds since opened

	change change
	failed chan struct{} // closed when the node can't go on
	fault  sync.Once
	cause  error         // set before failed is closed
	over   chan struct{} // closed when hashicorp/raft has been shut down

	election  time.Duration // see Options
	closeTime time.Duration // how long the last snapshot may take
	leaveTime time.Duration // see depart
	stopTime  time.Duration // how long the goroutines of hashicorp/raft may take to end
	left      atomic.Bool   // what it has not carried out by now it will not

	ctx     context.Context // of all that goes on until Close
	cancel  context.CancelFunc
	routing sync.WaitGroup
	work    sync.WaitGroup
	close   sync.Once
}

// change tells of leaders.
type change struct {
	mu     sync.Mutex
	ch     chan struct{}   // closed at the next change
	era    context.Context // of the calls to the leader at address in term
	end    context.CancelFunc
	leader string
	term   uint64
}

var _ fencing.Store = (*Store)(nil)

// Open opens or makes the node in o.Dir and has it take part in its cluster. It does not
// wait for a leader: until there is one everything is CodeUnavailable. It fails if another
// process has the directory open, if anything in it is damaged or of another format, or on
// any error of the file system.
func Open(o Options) (*Store, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	gateway := newGateway()
	s := &Store{
		self: o.Self, log: o.Logger, calls: o.Calls, clocks: o.clocks(), opened: time.Now(),
		stepLimit: o.stepLimit, maxHolders: o.MaxHolders, version: o.Version, election: o.Election, closeTime: cmp.Or(o.closeTime, defaultCloseTime),
		leaveTime: cmp.Or(o.leaveTime, min(o.Election, DefaultElection)), stopTime: cmp.Or(o.stopTime, defaultCloseTime),
		batch: machine.Batch{Gateway: string(gateway), MaxHolders: o.MaxHolders, StepLimit: o.stepLimit},
		fsm:   newFSM(gateway, &o), notify: make(chan bool, 16), wake: make(chan struct{}, 1),
		slots: make(chan struct{}, entriesInFlight), proposals: make(chan *proposal, entriesInFlight),
		calling: make(chan struct{}, callsInFlight), failed: make(chan struct{}), over: make(chan struct{}),
		queue:    queue{asked: map[uint64]time.Time{}, open: map[uint64]bool{}, gone: map[uint64]uint64{}},
		sessions: newSessions(),
		pushes:   pushes{pending: map[string][]machine.Told{}},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.change.ch = make(chan struct{})
	s.change.era, s.change.end = context.WithCancel(s.ctx)
	m := s.fsm
	m.log = s.log
	snapshots := make(chan struct{}, 1)
	m.asked, m.leads, m.push, m.fail, m.raised = s.askedAt, s.leads, s.push, s.fail, s.raised
	m.anew, m.panicked = s.machineAt, s.notePanic
	m.compact = func() {
		select {
		case snapshots <- struct{}{}:
		default:
		}
	}
	var err error
	if s.dir, err = openDirectory(&o, s.fail); err == nil {
		if err = s.followsRules(); err == nil {
			err = s.dir.dropOthers(o.Version)
		}
		m.newest, s.dir.newest = s.dir.newest, nil
		var last uint64
		if err == nil {
			last, err = s.dir.log.LastIndex()
		}
		if err == nil {
			m.quiet.Store(last)
			s.dir.log.cut, s.dir.log.grown, s.dir.log.mark = m.cut, m.compact, s.dir.begin
			err = s.begin(&o)
		}
		if err != nil {
			err = errors.Join(err, s.dir.close())
		}
	}
	if err != nil {
		s.change.end()
		s.cancel()
		return nil, datadir.Explained(o.Dir, err)
	}
	s.tellFiles(o.Dir)
	observations := make(chan raft.Observation, 64)
	s.raft.RegisterObserver(raft.NewObserver(observations, false, func(o *raft.Observation) bool {
		_, ok := o.Data.(raft.LeaderObservation)
		return ok
	}))
	s.work.Go(s.lead)
	s.work.Go(func() { s.observe(observations) })
	s.work.Go(func() { s.takeSnapshots(snapshots) })
	s.work.Go(s.await)
	s.work.Go(s.compare)
	s.work.Go(func() { s.pulse.Watch(&s.fsm.mu, s.ctx.Done()) })
	s.routing.Go(s.route)
	s.changed() // what was observed before
	s.calls.Handle(s.handle)
	return s, nil
}

// begin starts hashicorp/raft. Its call does not return where the log fails meanwhile: see diskLog.halt.
func (s *Store) begin(o *Options) (err error) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err = s.startRaft(o)
	}()
	select {
	case <-ended:
	case <-s.failed:
		s.dir.log.release()
		<-ended
	}
	if s.raft == nil && err == nil {
		err = s.Cause()
	}
	return err
}

func (s *Store) startRaft(o *Options) (err error) {
	d := s.dir
	transport := newLeaving(&silent{newTransport(o, s.ctx.Done()), d.log, stallsFor * o.Election})
	d.log.cutOff = func() { _ = transport.streams.cut() }
	conf := o.config(s.notify)
	started := false
	defer func() {
		if !started {
			err = errors.Join(err, transport.Close())
		}
	}()
	there, err := raft.HasExistingState(d.log, d.log, d.snapshots)
	if err != nil {
		return err
	}
	switch {
	case !there && len(o.Members) > 0:
		err = raft.BootstrapCluster(conf, d.log, d.log, d.snapshots, transport, configurationOf(o.Members))
	case there && d.ofOne():
		err = s.found(o, conf, transport)
	}
	if err != nil {
		return err
	}
	if s.raft, err = raft.NewRaft(conf, s.fsm, d.log, d.log, d.snapshots, transport); err != nil {
		return err
	}
	started, d.transport = true, transport
	return nil
}

// tellFiles logs where the data of this node is, and how much there is.
func (s *Store) tellFiles(dir string) {
	if d := s.dir; d.head == nil && !d.log.any {
		s.log.Warn("there is no data in the directory of this node: it starts as a new node", "directory", disk.Absolute(dir))
		return
	}
	s.log.Info("the data of this node is open", "directory", disk.Absolute(dir), "entry", s.raft.LastIndex(), "torn_bytes", s.dir.log.disk.Torn())
}

// founding carries out the log of a store without peers. There is nobody else who would know what it comes to.
type founding struct{ *fsm }

// Apply implements raft.FSM.
func (f founding) Apply(l *raft.Log) any {
	a := f.fsm.Apply(l)
	if f.differs != nil {
		f.stop(f.differs)
	}
	return a
}

// found makes what a store without peers has kept that of the first node of a cluster: a snapshot with all of it, and with this
// node as the only member. What a crash left is carried out before. The leader gives all leases their TTL anew: see
// goOnAlone.
func (s *Store) found(o *Options, conf *raft.Config, transport raft.Transport) error {
	s.log.Info("the data directory is that of a single gateway: a cluster is formed from it, with this node as its only member", "id", o.Self.ID)
	last, err := s.dir.log.LastIndex()
	if err != nil {
		return err
	}
	var newest raft.Log // which a snapshot of all does not say so exactly
	if err := s.dir.log.GetLog(last, &newest); err != nil {
		return err
	}
	var stopped error
	of := founding{newFSM(s.fsm.self, o)}
	of.newest = s.fsm.newest
	of.asked, of.leads, of.push, of.compact, of.raised = s.askedAt, s.leads, func([]machine.Told) {}, func() {}, s.raised
	of.anew, of.panicked = s.machineAt, s.notePanic
	of.fail = func(err error) { stopped = err }
	of.quiet.Store(last)
	if err := raft.RecoverCluster(conf, of, s.dir.log, s.dir.log, s.dir.snapshots, transport, configurationOf([]Member{o.Self})); err != nil {
		return errors.Join(stopped, err)
	}
	s.fsm.newest = nil // there is another one
	if e, err := machine.Decode(newest.Data); err == nil {
		of.machine.Covered(e)
	}
	s.founded = of.machine.Last()
	return nil
}

// settled returns what came of a future, or an error if the node can't go on. hashicorp/raft never answers some:
// those that it has taken and not come to when it is shut down, or when its own goroutine has ended in
// diskLog.halt.
func (s *Store) settled(future raft.Future) error {
	answered := make(chan error, 1)
	go func() { answered <- future.Error() }()
	select {
	case err := <-answered:
		return err
	case <-s.failed:
		return s.cause
	case <-s.over:
		return raft.ErrRaftShutdown
	}
}

// stopPatience is how long a node that has failed waits for hashicorp/raft's goroutines: usually they end within an election's time.
const stopPatience = 5 * time.Second

// errStuck is of a node whose goroutines can't all be ended: the process is to end all the same.
var errStuck = errors.New("not all of the node has ended: its disk hangs, or one of hashicorp/raft's goroutines was stopped in the middle of its work when the log failed")

// stopRaft ends hashicorp/raft. Where the node has failed, one of its goroutines may wait for another that diskLog.halt has
// ended, for ever: then the error wraps errStuck.
func (s *Store) stopRaft() error {
	stopping, patience := s.raft.Shutdown(), stopPatience
	if s.Cause() == nil { // a disk may hang
		patience = s.stopTime
	}
	stopped := make(chan error, 1)
	go func() { stopped <- stopping.Error() }()
	select {
	case err := <-stopped:
		return err
	case <-time.After(patience):
		return errStuck
	}
}

// handOver gives the lead to another member, nil for any. hashicorp/raft gives up after the time of an election, but says nothing if it has ended, or its
// disk hangs: then the others elect one.
func (s *Store) handOver(to *raft.Server) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if to == nil {
			_ = s.raft.LeadershipTransfer().Error()
			return
		}
		_ = s.raft.LeadershipTransferToServer(to.ID, to.Address).Error()
	}()
	select {
	case <-done:
	case <-s.failed:
	case <-time.After(2 * s.election):
	}
}

// newGateway names this run of the gateway.
func newGateway() fencing.Gateway {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return fencing.Gateway(hex.EncodeToString(b[:]))
}

// takeSnapshots has a snapshot take the place of the log where that has grown.
func (s *Store) takeSnapshots(wanted <-chan struct{}) {
	for {
		select {
		case <-wanted:
			if err := s.settled(s.raft.Snapshot()); err != nil && s.ctx.Err() == nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
				s.log.Warn("a snapshot could not be taken; the log grows until the next one", "error", err)
			}
		case <-s.ctx.Done():
			return
		}
	}
}

// Fail has the node serve nobody from now on: see Failed.
func (s *Store) Fail(err error) { s.fail(err) }

func (s *Store) fail(err error) {
	s.fault.Do(func() {
		s.cause = err
		s.log.Error("the node has failed and stops", "error", err)
		close(s.failed)
	})
}

// Raft returns the node's end of hashicorp/raft, whose configuration internal/raft/cluster
// begins and changes.
func (s *Store) Raft() *raft.Raft { return s.raft }

// Failed is closed when the node can't go on: a write failed, or its data is damaged. Cause
// then says why. The process is to end with an error.
func (s *Store) Failed() <-chan struct{} { return s.failed }

// Alive returns why the process is to be started again, nil if it need not: see machine.Pulse. It never waits.
func (s *Store) Alive() error { return s.pulse.Alive() }

// machineAt is directory.machineAt.
func (s *Store) machineAt(upTo uint64, refused machine.Refused) (*machine.Machine, error) {
	return s.dir.machineAt(upTo, refused, s.pulse.Beat)
}

// notePanic tells of an operation that is refused, perhaps not for the first time.
func (s *Store) notePanic(p *machine.Panic, before bool) {
	level := slog.LevelError
	if before {
		level = slog.LevelWarn
	} else {
		s.panics.Add(1)
	}
	s.log.Log(context.Background(), level, "an operation could not be carried out", "error", p, "asked", p.Asked(), "stack", p.Stack)
}

// Panics counts the operations that could not be carried out since the node began, for they panicked.
func (s *Store) Panics() int64 { return s.panics.Load() }

// Cause returns why the node has failed, nil if it has not.
func (s *Store) Cause() error {
	select {
	case <-s.failed:
		return s.cause
	default:
		return nil
	}
}

func (s *Store) sinceOpen() int64 { return int64(time.Since(s.opened)) }

// Do implements fencing.Store. The leader answers what only looks.
func (s *Store) Do(ctx context.Context, op fencing.Op) (fencing.Outcome, error) {
	if !fencing.Served(op) {
		return fencing.Outcome{}, fencing.UnservedError(op)
	}
	if fencing.OnlyLooks(op) {
		return s.look(ctx, op)
	}
	return s.do(ctx, op)
}

// look has the leader answer what only looks.
func (s *Store) look(ctx context.Context, op fencing.Op) (fencing.Outcome, error) {
	asked := time.Now()
	a, err := s.ask(ctx, message{Errand: errandLook, Op: machine.EncodeOp(op)})
	if err != nil {
		return fencing.Outcome{}, err
	}
	if len(a.Outcomes) != 1 {
		return fencing.Outcome{}, fencing.Unavailable(errors.New("an answer has another number of outcomes than one"))
	}
	out := a.Outcomes[0]
	out.Asked = asked
	return out.Result()
}

// List implements fencing.Store. The leader answers.
func (s *Store) List(ctx context.Context, r fencing.ListRequest) (fencing.ListPage, error) {
	a, err := s.ask(ctx, message{Errand: errandList, List: &r})
	if err != nil {
		return fencing.ListPage{}, err
	}
	return a.Page, nil
}

// Expire implements fencing.Store. The leader does it.
func (s *Store) Expire(ctx context.Context, limit int) (fencing.Expiry, error) {
	a, err := s.ask(ctx, message{Errand: errandExpire, Limit: limit})
	if err != nil {
		return fencing.Expiry{}, err
	}
	return a.Expiry, nil
}

// Listen implements fencing.Store. There is a Gap where this node was behind, and took over
// the state without the entries that led to it.
func (s *Store) Listen(l fencing.Listener) { s.fsm.listener.Store(&l) }

// Capabilities implements fencing.Store. No grant is ever forgotten; but messages may be
// lost, see Listen, and answers with a leader that dies.
func (s *Store) Capabilities() fencing.Capabilities {
	return fencing.Capabilities{Queue: true, LosesMessages: true, Tells: true, WallTime: s.fsm.wall.time}
}

// Heartbeat implements fencing.Store.
func (s *Store) Heartbeat(ctx context.Context, names []fencing.Name) error {
	began := time.Now()
	sent, _ := fits(names, mostSent) // what is due on the others Expire does
	m := message{Errand: errandHeartbeat, Names: names[:sent]}
	var entries []fencing.Entry
	for {
		a, err := s.ask(ctx, m)
		if err != nil {
			return err
		}
		entries = append(entries, a.Entries...)
		if a.More == "" {
			break
		}
		m.Names, m.After = nil, a.More
	}
	if listener := s.fsm.listener.Load(); listener != nil {
		(*listener).Has(names, began, entries)
	}
	return nil
}

// Watch implements fencing.Store. Events are in one order at all nodes, and have the same
// ids. There is a Gap as there is one of Listen.
func (s *Store) Watch(sink fencing.EventSink) (stop func()) { return s.fsm.watchers.Add(sink) }

// Stats implements fencing.Store. The leader answers.
func (s *Store) Stats(ctx context.Context) (fencing.Stats, error) {
	a, err := s.ask(ctx, message{Errand: errandStats})
	if err != nil {
		return fencing.Stats{}, err
	}
	return a.Stats, nil
}

// Check implements fencing.Store: it fails unless there is a leader that a majority follows.
func (s *Store) Check(ctx context.Context) error {
	_, err := s.ask(ctx, message{Errand: errandCheck})
	return err
}

// Close implements fencing.Store. A leader writes down the wall clock, and hands over to another member first: see depart. The node has failed
// if its files are not in the directory any more.
func (s *Store) Close() error {
	var err error
	s.close.Do(func() {
		if err := s.dir.held(); err != nil {
			s.fail(err)
		}
		if s.Cause() == nil {
			s.depart()
		}
		s.queue.close()
		s.cancel()
		s.calls.Handle(nil)
		s.lastSnapshot()
		s.dir.log.release()
		err = s.stopRaft()
		close(s.over)
		s.routing.Wait()
		close(s.proposals)
		s.refuseRequests()
		s.work.Wait()
		s.change.end()
		err = errors.Join(err, s.closeFiles(errors.Is(err, errStuck)))
	})
	return err
}

// closeFiles closes the files. Of a node that is stuck a write may hang that has them: then they are closed with the process.
func (s *Store) closeFiles(stuck bool) error {
	if !stuck {
		return s.dir.close()
	}
	closed := make(chan error, 1)
	go func() { closed <- s.dir.close() }()
	select {
	case err := <-closed:
		return err
	case <-time.After(time.Second):
		return nil
	}
}
