package sql

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

// errPanicked is what the log says of an operation that panics.
const errPanicked = "an operation could not be carried out"

// panicIn returns the panic that is behind an error, nil if there is none.
func panicIn(err error) *machine.Panic {
	p, _ := errors.AsType[*machine.Panic](err)
	return p
}

func (s *Store) notePanic(p *machine.Panic) {
	s.panics.Add(1)
	s.log.Error(errPanicked, "error", p, "asked", p.Asked(), "stack", p.Stack)
}

// refuse answers the item whose operation has panicked, which no other gateway hears of: nothing of the turn is in the log. Its name
// rests here. Where it was none of those that can be left out, the store stops.
func (t *turn) refuse(err error, all []carried) {
	p := panicIn(err)
	if p == nil {
		return
	}
	t.notePanic(p)
	no, ok := p.Operation()
	if !ok || p.Op == nil {
		t.fail(fmt.Errorf("what the log needs can't be carried out by this version of the gateway; put back the version that was there before, and report it: %w", p))
		return
	}
	t.Store.resting.add(p.Op.LockName(), rest{time.Now().Add(machine.RestAfterPanic), true})
	for _, c := range all {
		if c.from <= no && no < c.to && c.it.due == nil {
			c.it.finish(fencing.BrokenError(machine.RestAfterPanic))
			t.items = slices.DeleteFunc(t.items, func(it *item) bool { return it == c.it })
		}
	}
}

// resting are the names on which something could not be carried out.
type resting map[fencing.Name]rest

// rest says until when nothing is done on a name by itself: what is due. Where an operation has panicked nothing is changed on it at all.
type rest struct {
	until  time.Time
	broken bool
}

func (r *resting) add(name fencing.Name, is rest) {
	if *r == nil {
		*r = resting{}
	}
	(*r)[name] = is
}

// refuse answers the items that are about names on which nothing is changed, and returns the others.
func (r resting) refuse(items []*item) (left []*item) {
	now := time.Now()
	for name, is := range r {
		if is.until.Before(now) {
			delete(r, name)
		}
	}
	if len(r) == 0 {
		return items
	}
	for _, it := range items {
		it.resting = r
		if len(it.ops) > 0 && it.ops[0].op != nil {
			if is := r[it.ops[0].op.LockName()]; is.broken {
				it.finish(fencing.BrokenError(is.until.Sub(now)))
				continue
			}
		}
		left = append(left, it)
	}
	return left
}

// without returns those operations that are not about names which rest.
func (r resting) without(ops []operation) []operation {
	if len(r) == 0 {
		return ops
	}
	return slices.DeleteFunc(ops, func(o operation) bool {
		if o.op == nil {
			return false
		}
		_, rests := r[o.op.LockName()]
		return rests
	})
}
