package sql

import (
	"context"
	"maps"
	"slices"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

// A transaction of a user that guards a lease has its row locked, so that nobody else gets what the lease has. A turn has a lease yield
// something, as fencing.State.Yields lists it, only if it has tried its row and got it. What is about a lease that is guarded, and would
// have it yield something, waits for a later turn; a lease that is guarded and over is kept by everything else that is done on its name.

// try locks the rows of those leases of which operations may have something be yielded and that were not tried: those that only what others
// have done shows, and those that have run out since.
func (t *turn) try(ctx context.Context, ops []operation) error {
	var more []fencing.Token
	for i := range ops {
		for _, token := range ops[i].mayYield(t.memory.Machine, t.now) {
			if !t.tried[token] {
				t.tried[token] = true
				more = append(more, token)
			}
		}
	}
	if len(more) == 0 {
		return nil
	}
	held, err := t.conn.try(ctx, more)
	for _, token := range held {
		t.held[token] = true
	}
	return err
}

// stuck returns the names of operations on which something is over, and all of that is guarded: to attend to them does nothing. It puts
// right what was written while the clocks differed, whatever is guarded. What would be forgotten with its name stays.
func (t *turn) stuck(ops []operation) map[fencing.Name]bool {
	names := map[fencing.Name]bool{}
	if len(t.held) == 0 {
		return names
	}
	for i := range ops {
		if op, attends := ops[i].op.(fencing.ExpireRequest); attends {
			over := ops[i].mayYield(t.memory.Machine, t.now)
			all := len(over) > 0 && !slices.ContainsFunc(over, func(token fencing.Token) bool { return !t.held[token] })
			if all && !t.memory.Doubtful(op.Name) || t.yields(ops[i]) {
				names[op.Name] = true
			}
		}
	}
	return names
}

// yields reports whether an operation would have a lease that is guarded yield something.
func (t *turn) yields(o operation) bool {
	return len(t.held) > 0 && o.op != nil &&
		slices.ContainsFunc(t.memory.State().Yields(t.now, t.batch.Sent != 0, o.op), func(token fencing.Token) bool { return t.held[token] })
}

// lostError returns what is answered to what comes with a lease that is over, nil for others: it has ended for its holder, though it is not handed on
// yet. The turn then writes the time down, so that no other one renews the lease. While the clocks differ that is not judged.
func (t *turn) lostError(it *item) *fencing.Error {
	op := it.ops[0].op
	if _, takesBack := op.(fencing.TakeBackRequest); takesBack {
		return nil
	}
	r := t.memory.State().Records[op.LockName()]
	h, found := r.Holders.Find(op.LockLease().Public())
	if !found || h.Live(t.now) || t.batch.Sent != 0 || r.Doubtful() || !h.Secret.Equal(op.LockLease().Hash()) {
		return nil
	}
	err := fencing.LostError(fencing.ReasonExpired)
	err.Late = t.now.Sub(h.ExpiresAt)
	return err
}

// kept returns the leases that no operation of the turn ends, in order.
func (t *turn) kept() (tokens []int64) {
	for _, token := range slices.Sorted(maps.Keys(t.held)) {
		tokens = append(tokens, int64(token))
	}
	return tokens
}

// allOperations returns what the items have done at now, as far as names are not stuck.
func (t *turn) allOperations(stuck map[fencing.Name]bool) (ops []operation) {
	for _, it := range t.items {
		ops = append(ops, it.operations(t.memory.Machine, t.now, stuck)...)
	}
	return ops
}

// own returns what steps have left to do, which the store goes on with by itself.
func (t *turn) own() (ops []operation) {
	if t.options.stepLimit == 0 {
		for _, name := range t.memory.Left(machine.GoOn) {
			ops = append(ops, newOperation(fencing.ExpireRequest{Name: name}))
		}
	}
	return t.resting.without(ops)
}
