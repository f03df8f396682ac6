package sql

import (
	"context"
	"slices"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

// tryMore tries the leases that may end and were not tried: those that only what others have done shows, and those that have run out
// since.
func (t *turn) tryMore(ctx context.Context, own *item) error {
	var more []fencing.Token
	for _, it := range append(slices.Clip(t.items), own) {
		for _, op := range it.operations(t.memory.Machine, t.now, nil) {
			for _, token := range op.mayEnd(t.memory.Machine, t.now) {
				if !t.tried[token] {
					t.tried[token] = true
					more = append(more, token)
				}
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

// guardedNames returns the names on which a lease that is over is guarded.
func (t *turn) guardedNames() map[fencing.Name]bool {
	guarded := map[fencing.Name]bool{}
	if len(t.held) == 0 {
		return guarded
	}
	for _, it := range t.items {
		for _, op := range it.operations(t.memory.Machine, t.now, nil) {
			if t.ends([]operation{op}) {
				guarded[op.op.LockName()] = true
			}
		}
	}
	return guarded
}

// ends reports whether operations may end a lease that is guarded.
func (t *turn) ends(ops []operation) bool {
	if len(t.held) == 0 {
		return false
	}
	for i := range ops {
		if slices.ContainsFunc(ops[i].mayEnd(t.memory.Machine, t.now), func(token fencing.Token) bool { return t.held[token] }) {
			return true
		}
	}
	return false
}

// refuseGuarded ends an acquire that does not wait: the name is not free before the transaction is over.
func (t *turn) refuseGuarded(it *item) bool {
	op, acquires := it.ops[0].op.(fencing.AcquireRequest)
	if !acquires || op.Wait > 0 {
		return false
	}
	out := t.memory.Look(fencing.InspectRequest{Name: op.Name}, t.now, t.guard())
	refusal := fencing.LockedError(fencing.CodeLocked, out.Lock)
	refusal.RetryAfter = 5 * guardedEvery
	refusal.Detail = "the lease before is over, and a transaction that has checked it is not"
	it.results, it.asked = []machine.Result{{Out: fencing.Outcome{Now: t.now, Err: refusal}}}, t.asked
	it.finish(nil)
	return true
}
