package sql

import (
	"errors"
	"slices"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

// refused is why the server does not do something.
type refused struct {
	error
	of refusal
}

func (r refused) Unwrap() error { return r.error }

// refusal is what the server refuses.
type refusal int

const (
	ofAll     refusal = iota // whoever asks, and whatever for: rights are missing, the disk is full, a lock was waited for too long
	ofContent                // something of what was to be written, and perhaps nothing else
	ofText                   // the same, and it is a text that the database can't hold
)

// postgresRefusals are refusals by the SQLSTATE or the first two characters of it. P0 is an exception of a function, as of a trigger.
var postgresRefusals = map[string]refusal{
	"22": ofContent, "23": ofContent, "44": ofContent, "54": ofContent, "P0": ofContent,
	"22001": ofText, "22021": ofText, "22P05": ofText,
	"23505": ofAll, // the log may have the entry's number already
}

func postgresRefusal(code string) refusal {
	if of, is := postgresRefusals[code]; is {
		return of
	}
	return postgresRefusals[code[:min(2, len(code))]]
}

// mysqlRefusals are refusals by the server's numbers. The second line has those of foreign keys, and of what a trigger does.
var mysqlRefusals = map[uint16]refusal{
	1048: ofContent, 1153: ofContent, 1264: ofContent, 1265: ofContent, 1292: ofContent, 1644: ofContent, 3819: ofContent, 4025: ofContent,
	1216: ofContent, 1217: ofContent, 1451: ofContent, 1452: ofContent, 1364: ofContent, 1365: ofContent, 1690: ofContent, 1054: ofContent, 1305: ofContent, 1442: ofContent,
	1300: ofText, 1366: ofText, 1406: ofText, 3988: ofText,
}

// refusedFor returns what of a turn the server refuses. It is ofAll as well where it has not refused it.
func refusedFor(err error) refusal {
	var r refused
	if errors.Is(err, errUndecided) || !errors.As(err, &r) {
		return ofAll
	}
	return r.of
}

// unclear is a refusal that may be about what was to be written, or about whoever asks: a right or a table is missing, perhaps only to a trigger of
// the database's owner, or the code is one that such a trigger may have chosen.
type unclear struct{ error }

func (u unclear) Unwrap() error { return u.error }

// isUnclear reports whether an error is an unclear refusal, and of no commit that is in doubt.
func isUnclear(err error) bool {
	var u unclear
	return !errors.Is(err, errUndecided) && errors.As(err, &u)
}

// isToPart reports whether a turn that has failed with an error is to be tried in parts, for the database refuses something in it. The turn's
// connection is closed by then.
func (t *turn) isToPart(err error) bool {
	if !t.gives() && len(t.items) <= 1 && (len(t.items) == 0 || t.owns) {
		return false
	}
	return refusedFor(err) != ofAll || isUnclear(err) && t.wrote != nil && t.takes()
}

// takes reports whether the database takes what turns write. If it does, that is not tried again for a second.
func (s *Store) takes() bool {
	if time.Since(s.lastTaken) >= time.Second {
		if s.tries() != nil {
			return false
		}
		s.lastTaken = time.Now()
	}
	return true
}

// apart carries out the items of a turn that was refused for the content of some. It tries halves of them, without a pause, until those are alone:
// they are answered, and all others are served. Nothing of the refused turn has happened. A turn of a single item that comes here has nothing of the
// store's own in it.
//
// The row that is refused may also be of a lease that the turn has granted to who waited for it: then no item of the turn is at fault. So a turn with
// such a row is tried again whole first, with provisional grants to waiters, which have no rows; and so is what is granted to waiters for a while. Each
// waiter confirms its grant, and is refused itself then.
func (s *Store) apart(t *turn, cause error) error {
	s.lastApart = time.Now()
	if t.gives() {
		s.lastGiven = s.lastApart
		return s.turn(t.items)
	}
	refused := len(t.items)
	items := slices.DeleteFunc(slices.Clone(t.items), func(it *item) bool {
		gone := it.gone()
		if gone {
			it.finish(fencing.Unavailable(cause))
		}
		return gone
	})
	switch {
	case len(items) == 0:
		return nil
	case refused == 1:
		return s.isAlone(items[0], cause)
	case len(items) == 1:
		return s.turn(items)
	}
	half := len(items) / 2
	return s.inTurn(items[:half], items[half:])
}

// inTurn carries out items in turns that follow one another. After an error those of the later ones wait.
func (s *Store) inTurn(all ...[]*item) error {
	for i, items := range all {
		if err := s.turn(slices.Clone(items)); err != nil { // what a turn adds to its items would overwrite the others
			for _, later := range all[i+1:] {
				s.tryLater(later, err)
			}
			return err
		}
	}
	return nil
}

// isAlone answers an item that was refused in a turn of its own. One that does what is due on several names is tried with half of them first, and so
// on: a name that is refused by itself rests for a while, and the item goes on without it.
func (s *Store) isAlone(it *item, cause error) error {
	names := s.dueOf(it)
	if len(names) == 0 || it.of != nil && len(names) == 1 {
		for _, name := range names {
			s.resting.add(name, rest{until: time.Now().Add(joinAfter)})
		}
		s.log.Warn("the database refuses a request", "error", cause, "names", names)
		it.finish(refusedError(cause))
		return nil
	}
	var parts [][]*item
	for half := range slices.Chunk(names, (len(names)+1)/2) {
		parts = append(parts, []*item{it.among(half)})
	}
	return s.inTurn(append(parts, []*item{it})...)
}

// dueOf returns the names on which an item has done what is due.
func (s *Store) dueOf(it *item) (names []fencing.Name) {
	if it.due == nil {
		return nil
	}
	s.mu.Lock() // what is found due too early is corrected
	defer s.mu.Unlock()
	for _, o := range it.operations(s.memory.Machine, s.clock(), nil) {
		if o.op != nil {
			names = append(names, o.op.LockName())
		}
	}
	return names
}

// among returns a part of an item: what is due on some of its names. The item gets the results too.
func (it *item) among(names []fencing.Name) *item {
	of := it
	if it.of != nil {
		of = it.of
	}
	part := &item{of: of, ctx: it.ctx, done: make(chan struct{}), due: func(m *machine.Machine, now fencing.Instant, guarded map[fencing.Name]bool) []operation {
		return slices.DeleteFunc(of.due(m, now, guarded), func(o operation) bool { return o.op == nil || !slices.Contains(names, o.op.LockName()) })
	}}
	part.look = func(*looked) { of.parts = append(of.parts, part.results...) }
	return part
}

// gives reports whether the turn was to write the row of a lease that somebody waited for.
func (t *turn) gives() bool {
	if t.wrote == nil || t.batch.Tentative {
		return false
	}
	own := map[fencing.EndedLease]bool{}
	for _, it := range t.items {
		for _, o := range it.ops {
			if o.op != nil {
				own[fencing.EndedLease{Name: o.op.LockName(), Lease: o.op.LockLease().Public()}] = true
			}
		}
	}
	return slices.ContainsFunc(t.wrote.changed, func(r row) bool { return !r.renewed && !own[fencing.EndedLease{Name: r.name, Lease: r.Lease}] })
}

// tentative reports whether what is granted to waiters is provisional for now, for the database may refuse it.
func (s *Store) tentative() bool { return time.Since(s.lastGiven) < joinAfter }

// refusedError is what is answered to a request that the database refuses.
func refusedError(cause error) *fencing.Error {
	if refusedFor(cause) == ofText {
		return &fencing.Error{Code: fencing.CodeInvalidRequest, Futile: true, Detail: "the database can't hold a text of this request", Err: cause}
	}
	return &fencing.Error{Code: fencing.CodeUnavailable, Futile: true, Detail: "the database refuses what this request is to write: the gateway's log says why", Err: cause}
}
