package machine

import (
	"time"

	"fencepost/internal/fencing"
)

// RestAfterPanic is for how long, by the time of the log, nothing is changed on a name after an operation on it has panicked:
// whoever repeats it is refused without being tried. It is long, as the first panic has a node carry out the log since its newest
// snapshot once more, and stops all names for that.
const RestAfterPanic = time.Hour

// Refused are the operations of a log that count as ones that could not be carried out, for they panic: all that they leave behind is
// that nothing is changed on their name for a while. They are no part of the log: whoever carries it out finds the same ones, if the
// rules are the same. Where one is found, in a machine that may have been changed by half of it, another machine carries out
// the log up to there once more.
type Refused map[position]bool

// position is where an operation is in the log.
type position struct {
	index     uint64 // of the entry
	batch, op int
}

// Add has the operation in which a panic was be refused. It returns false if that is of no use: it was none that a client has asked for,
// or it is refused already.
func (r Refused) Add(p *Panic) bool {
	if p.at == nil || r[*p.at] {
		return false
	}
	r[*p.at] = true
	return true
}

// Operation returns which operation of its batch the panic was in; false, if it was in none that can be refused.
func (p *Panic) Operation() (no int, ok bool) {
	if p.at == nil {
		return 0, false
	}
	return p.at.op, true
}

// Refuse has a new machine refuse operations of the log. More may be added to them later.
func (m *Machine) Refuse(these Refused) { m.refused = these }

// locate has a panic say where in the log its operation is. It is deferred. What no client has asked for can't be left out.
func locate(at *position, b *decodedBatch) {
	p := recover()
	if p == nil {
		return
	}
	caught := panicOf(p, nil)
	if at.op < len(b.kinds) && caught.at == nil {
		if kind := b.kinds[at.op]; kind.ofStep() || kind == kindBeat || kind == kindPrune {
			where := *at
			caught.at = &where
		}
	}
	panic(caught)
}

// tried reports whether an operation panics on copies of what it depends on, and is to be refused: this machine is as it was then. Where one has
// panicked more may follow, so it tries while a name rests, which is so at all nodes alike. One with too much to copy is not tried.
func (m *Machine) tried(at position, t *Telling, guard fencing.Guard, op fencing.Op) (panics bool) {
	if len(m.resting) == 0 || fencing.OnlyLooks(op) {
		return false
	}
	part, ok := m.Part([]fencing.Op{op})
	if !ok {
		return false
	}
	p := Caught(func() { part.Step(at.index, &Telling{Quiet: true}, guard, op) })
	if p == nil {
		return false
	}
	where := at
	p.at = &where
	t.Panics = append(t.Panics, p)
	return m.refused.Add(p)
}

// refuse is all that is done of an operation that panics.
func (m *Machine) refuse(op fencing.Op) fencing.Outcome {
	out := fencing.Outcome{Now: m.now, Err: fencing.BrokenError(0)}
	if op != nil {
		for name, until := range m.resting {
			if until <= m.now {
				delete(m.resting, name)
			}
		}
		m.rest(op.LockName(), m.now.Add(RestAfterPanic))
		out.Err = fencing.BrokenError(RestAfterPanic)
	}
	m.digest.step(&out)
	return out
}

func (m *Machine) rest(name fencing.Name, until fencing.Instant) {
	if m.resting == nil {
		m.resting = map[fencing.Name]fencing.Instant{}
	}
	m.resting[name] = until
	delete(m.unfinished, name)
}

// rests returns the outcome of an operation on a name on which nothing is changed for now; false if that may be.
func (m *Machine) rests(op fencing.Op) (fencing.Outcome, bool) {
	if len(m.resting) == 0 || fencing.OnlyLooks(op) {
		return fencing.Outcome{}, false
	}
	until, rests := m.resting[op.LockName()]
	if !rests {
		return fencing.Outcome{}, false
	}
	if until <= m.now {
		delete(m.resting, op.LockName())
		return fencing.Outcome{}, false
	}
	out := fencing.Outcome{Now: m.now, Err: fencing.BrokenError(until.Sub(m.now))}
	m.digest.step(&out)
	return out, true
}

// restingOf returns where nothing is changed, as it stands in a snapshot.
func (m *Machine) restingOf() map[string]int64 {
	if len(m.resting) == 0 {
		return nil
	}
	all := make(map[string]int64, len(m.resting))
	for name, until := range m.resting {
		all[string(name)] = int64(until)
	}
	return all
}
