package sql

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

// absent is for how long a gateway must not have looked at the log to do so before its turn.
const absent = 2 * idleEvery

// turn is one that is under way.
type turn struct {
	*Store
	items  []*item
	writes bool // there is something to do, as far as is known before
	asked  time.Time
	now    fencing.Instant
	batch  machine.Batch // with the guard of this turn
	tried  map[fencing.Token]bool
	held   map[fencing.Token]bool // leases that transactions guard

	ops      []machine.Op
	wrote    *entry             // what they were to write; nil: nothing yet
	owns     bool               // some of them are the store's own, and no item's
	tells    bool               // it is to say which rules this gateway knows
	raise    int                // and to raise them; 0: it does not
	mine     *machine.Telling   // of the entry of this turn, until it is known to be in the log
	tellings []*machine.Telling // of entries in the log that nobody was told of yet
}

// estimate finds out whether there is something to do, and which leases may yield something; again when others have done something.
func (t *turn) estimate() {
	t.mu.Lock() // what is found due too early is corrected
	defer t.mu.Unlock()
	now := t.clock()
	t.tried = map[fencing.Token]bool{}
	m := t.memory.Machine
	t.tells = t.tells || t.says()
	t.writes = t.tells || t.arrives && !(t.failing && len(t.items) > 0) || t.options.stepLimit == 0 && len(m.Left(1)) > 0
	for _, it := range t.items {
		t.writes = t.writes || it.locks
		for _, op := range it.operations(m, now, nil) {
			t.writes = true
			for _, token := range op.mayYield(m, now) {
				t.tried[token] = true
			}
		}
	}
}

// clock returns what the database's clock is at least, as far as is known.
func (s *Store) clock() fencing.Instant {
	if s.options.now != nil {
		return s.options.now()
	}
	return s.lastNow.Add(time.Since(s.lastSeen))
}

// operations returns what an item has done at now. What is guarded is left out of what is due.
func (it *item) operations(m *machine.Machine, now fencing.Instant, guarded map[fencing.Name]bool) []operation {
	if it.due != nil {
		return it.resting.without(it.due(m, now, guarded))
	}
	return it.ops
}

func (o *operation) mayYield(m *machine.Machine, now fencing.Instant) []fencing.Token {
	if o.op == nil {
		return nil
	}
	return m.State().MayYield(now, o.op)
}

// carryOut asks the database, carries out what others have done and then the items, and tells what came of them. After an error
// nothing has happened to the items that are left in t.
//
// Others wait while this gateway has its turn, so what grows is done before: if it was away, or when much is missing in spite of that, it
// carries out what others have done without a turn. What is missing still is what they did while it waited for its turn.
func (t *turn) carryOut() error {
	if done, err := t.alone(t.ctx); done || err != nil {
		return err
	}
	if t.writes && !t.lastSeen.IsZero() && time.Since(t.lastSeen) > absent {
		if err := t.catchUp(); err != nil {
			return err
		}
	}
	b, err := t.ask()
	if err == nil && t.writes && b.more {
		err = t.conn.abandon(t.ctx)
		if err == nil {
			err = t.catchUp()
		}
		if err == nil {
			b, err = t.ask()
		}
	}
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.tell()
	if err := t.followed(b); err != nil {
		return err
	}
	if last := t.memory.Now(); !t.writes && len(b.entries) > 1 && last > t.now && last.Sub(t.now) < mostLate {
		t.now = last // the clock was read before the log
	}
	t.noteServer(b.server)
	if t.writes {
		t.join()
		if err := t.write(t.ctx, b); err != nil {
			return err
		}
	}
	t.served = b.server
	t.look()
	return nil
}

// join takes up what was asked for while the turn was waited for: where many gateways write that is long, and the next turn as far away.
// Nothing joins a turn behind one that has failed, nor any soon after one that was refused for what one item asks for: else that would
// never be alone, and each try is dear.
func (t *turn) join() {
	if !t.failing && t.unwritten == 0 && time.Since(t.lastApart) > joinAfter {
		t.items = append(t.items, t.resting.refuse(t.queue.join(t.items))...)
	}
}

// ask begins the turn, or looks if there is nothing to do.
func (t *turn) ask() (b *begun, err error) {
	before := t.options.clock()
	t.asked = time.Now()
	if t.writes {
		b, err = awaitTurn(t.Store, func() (*begun, error) {
			return t.conn.begin(t.ctx, t.memory.Applied(), slices.Collect(maps.Keys(t.tried)))
		})
	} else {
		b, err = awaitTurn(t.Store, func() (*begun, error) { return t.conn.read(t.ctx, t.memory.Applied()) }) // the log may be locked
	}
	if err == nil {
		t.begin(b, before, t.options.clock())
	}
	return b, err
}

// catchUp carries out what others have done, without a turn.
func (t *turn) catchUp() error {
	b, err := t.conn.read(t.ctx, t.memory.Applied())
	if err == nil {
		err = t.caughtUp(b)
	}
	if err == nil {
		t.estimate()
	}
	return err
}

func (t *turn) caughtUp(b *begun) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.tell()
	return t.followed(b)
}

// begin notes what the database says of itself, and by how much the clocks differ: what the gateway's was when the database's was
// read is between when it asked and when it got the answer.
func (t *turn) begin(b *begun, before, after time.Time) {
	if t.options.now != nil {
		b.now = t.options.now()
	}
	if t.options.server != nil {
		b.server = t.options.server(b.server)
	}
	t.now = b.now
	t.lastNow, t.lastSeen = b.now, time.Now()
	t.batch = t.Store.batch
	sent := min(max(b.now, fencing.InstantOf(before)), fencing.InstantOf(after))
	if skew := t.options.MaxSkew; skew > 0 && b.now.Sub(sent).Abs() > skew {
		t.batch.Sent = int64(sent)
	}
	t.lastSkewed = t.batch.Sent != 0
	t.held = map[fencing.Token]bool{}
	for _, token := range b.held {
		t.held[token] = true
	}
}

// followed carries out what others have done. If the log is another one, memory is what that leads to. The caller holds the mutex.
func (t *turn) followed(b *begun) error {
	if err := t.follow(b); err != nil {
		if errors.Is(err, errOther) || errors.Is(err, errGap) || isUnreadable(err) {
			return t.restored(err)
		}
		return err
	}
	t.memory.settled()
	return nil
}

// follow carries out what others have done. The caller holds the mutex.
func (t *turn) follow(b *begun) error {
	for {
		if err := t.memory.follow(b.entries, t.applied); err != nil {
			return err
		}
		if !b.more {
			return nil
		}
		next, err := t.conn.read(t.ctx, t.memory.Applied())
		if err != nil {
			return err
		}
		if next.server != b.server { // a pooler has changed it
			return errMoved
		}
		b = next
	}
}

// applied carries out an entry of another gateway.
func (t *turn) applied(seq uint64, e *machine.Decoded) error {
	t.isInLog()
	telling := &machine.Telling{Watched: t.watchers.Any()}
	t.tellings = append(t.tellings, telling)
	before := t.memory.Rules()
	_, err := t.memory.Apply(seq, e, telling, false)
	if p := panicIn(err); p != nil { // memory is read anew without it, which tells of a gap
		*telling = machine.Telling{}
		t.notePanic(p)
	}
	t.lastOther = time.Now()
	t.noteRaise(before)
	return err
}

// write carries out the items, and commits what they ask for. The caller holds the mutex.
func (t *turn) write(ctx context.Context, b *begun) error {
	arrives := false
	if a := t.newArrival(b.server); a != nil {
		t.ops = append(t.ops, machine.Arrive(*a))
		arrives = true
	}
	if t.tells {
		t.say()
	}
	before := t.memory.Rules()
	carried, ops, err := t.choose(ctx)
	if err != nil {
		return err
	}
	if len(t.ops) == 0 {
		return t.conn.abandon(ctx)
	}
	e, d, err := t.entry()
	if err != nil {
		return err
	}
	t.owns = len(carried) == 0 || carried[0].from > 0
	results, err := t.commit(e, d, carried, ops)
	if err != nil {
		return err
	}
	if arrives {
		t.arrives, t.forgot = false, false
	}
	t.answer(carried, results)
	t.noteRaise(before)
	return nil
}

// answer gives items their results, when all that was carried out is in the log.
func (t *turn) answer(carried []carried, results []machine.Result) {
	t.isInLog()
	t.memory.settled()
	t.introduced = true
	if rows := t.wrote.changed; len(rows) > 0 {
		t.taken = rows[len(rows)-1]
	}
	for _, c := range carried {
		c.it.results, c.it.asked = results[c.from:c.to], t.asked
		if c.lost != nil {
			c.it.results = []machine.Result{{Out: fencing.Outcome{Now: t.now, Err: c.lost}}}
		}
	}
	t.hintOfBreaks(results)
}

// isInLog notes that the entry of this turn is in the log: tell tells whom it concerns here, and hints go to the other gateways that it does.
func (t *turn) isInLog() {
	if t.mine != nil {
		for i := range t.mine.Told {
			t.hint(t.mine.Told[i].Gateway)
		}
		t.tellings = append(t.tellings, t.mine)
		t.mine = nil
	}
}

// carried is an item, and where its operations are among those of the turn.
type carried struct {
	it       *item
	from, to int
	lost     *fencing.Error // what it is answered in place of that; nil: nothing
}

// choose puts together what the turn does: first what the store itself has to do. It returns the items, and what they ask for. Of those some
// wait that would have a lease which a transaction guards yield something.
func (t *turn) choose(ctx context.Context) (all []carried, asked []fencing.Op, err error) {
	own := t.own()
	first := append(t.allOperations(nil), own...)
	if err := t.try(ctx, first); err != nil {
		return nil, nil, err
	}
	stuck := t.stuck(first)
	var too map[fencing.Name]bool
	if len(stuck) > 0 { // others may be due in the place of those, and be stuck too
		others := t.allOperations(stuck)
		if err := t.try(ctx, others); err != nil {
			return nil, nil, err
		}
		too = t.stuck(others)
	}
	for _, op := range own {
		if !stuck[op.op.LockName()] {
			t.ops = append(t.ops, op.encoded)
		}
	}
	var left []*item
	for _, it := range t.items {
		ops := it.operations(t.memory.Machine, t.now, stuck)
		if it.due != nil && t.batch.Sent != 0 && !it.beats { // nothing is judged by the time while the clocks differ
			ops = nil
		}
		var lost *fencing.Error
		if it.due != nil {
			ops = slices.DeleteFunc(ops, func(o operation) bool { return t.yields(o) || o.op != nil && too[o.op.LockName()] })
		} else if slices.ContainsFunc(ops, t.yields) {
			if lost = t.lostError(it); lost == nil {
				it.waits.Store(true)
				t.guarded = append(t.guarded, it)
				continue
			}
			ops = []operation{{encoded: machine.Tick()}}
		}
		it.waits.Store(false)
		from := len(t.ops)
		for i := range ops {
			t.ops = append(t.ops, ops[i].encoded)
			if ops[i].op != nil {
				asked = append(asked, ops[i].op)
			}
		}
		all, left = append(all, carried{it, from, len(t.ops), lost}), append(left, it)
	}
	t.items = left
	t.batch.Kept = t.kept()
	return all, asked, nil
}

// size returns how many bytes the turn is to write, at least 1.
func (t *turn) size() (size int) {
	for _, op := range t.ops {
		size += len(op)
	}
	return max(size, 1)
}

// guard returns what goes with what is looked at.
func (t *turn) guard() fencing.Guard { return t.batch.Guard() }

// entry returns what the operations of the turn are in the log.
func (t *turn) entry() (*entry, *machine.Decoded, error) {
	m := t.memory.Machine
	if t.floor > m.State().Counter {
		t.batch.Floor = int64(t.floor)
	}
	t.batch.Ops, t.batch.Tentative = t.ops, t.tentative()
	e := machine.Entry{Now: int64(t.now), Batches: []machine.Batch{t.batch}}
	e.Behind, e.Digest = m.LastDigest()
	if e.Rules = t.raise; !t.introduced || t.raise != 0 {
		e.Writer = t.options.Version
	}
	wrote, d, err := encoded(&e, m.Applied()+1)
	t.wrote = wrote
	return wrote, d, err
}

// encoded returns an entry of the log at a number.
func encoded(e *machine.Entry, seq uint64) (*entry, *machine.Decoded, error) {
	data, err := e.Encode()
	if err != nil {
		return nil, nil, err
	}
	d, err := machine.Decode(data)
	return &entry{logged: logged{seq: seq, id: newID(data), data: data}}, d, err
}

// apply carries out an entry of this gateway in memory, which is ahead of the log then.
func (t *turn) apply(e *entry, d *machine.Decoded, telling *machine.Telling) ([]machine.Result, error) {
	telling.Watched = t.watchers.Any()
	telling.AskedOf = func(*machine.Batch) time.Time { return t.asked }
	t.mine, t.memory.ahead = telling, true
	results, err := t.memory.Apply(e.seq, d, telling, true)
	if err != nil {
		return nil, err
	}
	t.memory.grew(&e.logged)
	return results[0], nil
}

// noteRows notes what the rows of leases have to follow of an entry that has led to a state. Of a row that is there only the end is written,
// unless a request came with its lease that does more than renew it.
func (t *turn) noteRows(e *entry, state *fencing.State, leases map[fencing.EndedLease]fencing.Token) {
	e.noteLeases(state, leases)
	relabelled := map[fencing.EndedLease]bool{}
	for _, it := range t.items {
		for i := range it.ops {
			op := it.ops[i].op
			if op == nil || op.LockLease().Public() == "" {
				continue
			}
			if renew, renews := op.(fencing.RenewRequest); renews && renew.Owner == "" && renew.Mode == "" && renew.Limit == 0 {
				continue
			}
			relabelled[fencing.EndedLease{Name: op.LockName(), Lease: op.LockLease().Public()}] = true
		}
	}
	for i := range e.changed {
		r := &e.changed[i]
		r.relabelled = r.renewed && relabelled[fencing.EndedLease{Name: r.name, Lease: r.Lease}]
	}
}

// restored has memory be what is committed after a turn that is not, and returns why. If that can't be done, its error is about that alone:
// nothing may go on with memory as it is.
func (t *turn) restored(cause error) error {
	if err := t.reload(cause); err != nil {
		return fmt.Errorf("%w, and behind a turn that came to nothing (%v) the log could not be read anew", err, cause)
	}
	return cause
}

// look has items look at memory as it is after the turn, and tells what there is to tell. The caller holds the mutex.
func (t *turn) look() {
	looked := &looked{machine: t.memory.Machine, now: t.now, guard: t.guard(), guarded: len(t.held) > 0 || len(t.resting) > 0, asked: t.asked}
	for _, it := range t.items {
		if it.look == nil {
			continue
		}
		if p := machine.Caught(func() { it.look(looked) }); p != nil {
			t.notePanic(p)
			it.broken = fencing.BrokenError(0)
		}
	}
	t.floor = max(t.floor, t.memory.State().Counter)
	t.longest = t.memory.State().Quarantine.Longest(t.now)
	t.inUse.Store(int64(t.longest))
	t.tell()
	for _, it := range t.items {
		t.noteWaits(it)
		if it.broken != nil {
			it.finish(it.broken)
			continue
		}
		it.finish(nil)
	}
	t.considerSnapshot()
	if t.options.stepLimit == 0 && len(t.memory.Left(1)) > 0 && len(t.held)+len(t.resting) == 0 {
		t.queue.stir()
	}
}

// tell tells of what was carried out, in the order of the log.
func (t *turn) tell() {
	listener := t.listener.Load()
	for _, telling := range t.tellings {
		for i := range telling.Told {
			if told := &telling.Told[i]; told.Gateway == t.gateway && listener != nil {
				told.Tell(*listener)
			}
		}
		t.watchers.Tell(telling.Events)
	}
	t.tellings = nil
}
