package sql

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

// operation is one of fencing's with its bytes, or one of the machine's own: then op is nil.
type operation struct {
	op      fencing.Op
	encoded machine.Op
}

func newOperation(op fencing.Op) operation { return operation{op, machine.EncodeOp(op)} }

// item is what a caller asks for: operations, or a look, or both. The look comes last.
type item struct {
	ops  []operation
	due  func(m *machine.Machine, now fencing.Instant, guarded map[fencing.Name]bool) []operation // or these, which depend on what there is
	look func(*looked)

	waits atomic.Bool // a transaction guards the lease that it is about

	locks bool // it is to find out whether a turn could be written, and needs one, though there is nothing to do
	beats bool // due begins with a sign of life

	of    *item            // whose names these are, some of them: see among
	parts []machine.Result // of those of which this is it

	resting resting        // Store.resting
	broken  *fencing.Error // why there is no result: look has panicked

	asked    time.Time        // the gateway's clock before the database was asked
	refusals int              // how often the database has refused a turn that had it
	results  []machine.Result // of ops
	err      error
	done     chan struct{} // closed when there is a result, or err says why there is none
	ctx      context.Context
}

// gone reports whether the caller has given up.
func (it *item) gone() bool { return it.ctx.Err() != nil }

// size returns how many bytes the operations have.
func (it *item) size() (size int) {
	for i := range it.ops {
		size += len(it.ops[i].encoded)
	}
	return size
}

// queue has what was asked for and no turn has taken yet.
type queue struct {
	mu     sync.Mutex
	items  []*item
	wake   chan struct{} // holds one when run is to look
	closed bool
}

func newQueue() queue { return queue{wake: make(chan struct{}, 1)} }

// put adds an item, and reports whether that is still possible.
func (q *queue) put(it *item) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	q.items = append(q.items, it)
	q.stir()
	return true
}

// putBack adds items in front of all others.
func (q *queue) putBack(items []*item) {
	if len(items) == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.items = append(items, q.items...)
	q.stir()
}

func (q *queue) stir() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// end has nothing be added any more.
func (q *queue) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.stir()
}

// take returns the next items, as many as an entry may have.
func (q *queue) take() []*item {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.next(nil)
}

// over reports whether no more will come.
func (q *queue) over() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed && len(q.items) == 0
}

// join returns the next items, as many as an entry may have beside those of a turn that has just read all that others have done. Those that lock are
// left for the next turn: this one was not tried for them, and may write nothing that the database refuses.
func (q *queue) join(items []*item) []*item {
	q.mu.Lock()
	defer q.mu.Unlock()
	var left []*item
	q.items = slices.DeleteFunc(q.items, func(it *item) bool {
		if it.locks {
			left = append(left, it)
		}
		return it.locks
	})
	more := q.next(items)
	q.items = slices.Insert(q.items, 0, left...)
	if len(q.items) == 0 && !q.closed { // nothing is left to look for either
		select {
		case <-q.wake:
		default:
		}
	}
	return more
}

// next removes the next items, as many as an entry may have beside others. The caller holds the mutex.
func (q *queue) next(beside []*item) (items []*item) {
	ops, size, taken := 0, 0, 0
	for _, it := range beside {
		ops, size = ops+len(it.ops), size+it.size()
	}
	for _, it := range q.items {
		if ops += len(it.ops); ops > machine.MostOps {
			break
		}
		if size += it.size(); taken+len(beside) > 0 && size > machine.MostBytes {
			break
		}
		if taken++; it.gone() {
			it.finish(fencing.Unavailable(it.ctx.Err()))
			continue
		}
		items = append(items, it)
	}
	clear(q.items[:taken])
	if q.items = q.items[taken:]; len(q.items) > 0 {
		q.stir()
	} else {
		q.items = nil
	}
	return items
}

// finish gives an item its end.
func (it *item) finish(err error) {
	it.err = err
	close(it.done)
}

// await has an item carried out, and returns when it has a result.
func (s *Store) await(ctx context.Context, it *item) error {
	if err := ctx.Err(); err != nil {
		return fencing.Unavailable(err) // the caller has gone: grant nothing to nobody
	}
	caller := ctx
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	it.ctx, it.done = ctx, make(chan struct{})
	if !s.queue.put(it) {
		return fencing.Unavailable(errClosed)
	}
	select {
	case <-it.done:
		return it.err
	case <-ctx.Done():
		if it.waits.Load() {
			return guardedError
		}
		if errors.Is(caller.Err(), context.Canceled) {
			return fencing.Unavailable(caller.Err())
		}
		return fencing.Unavailable(s.slow())
	case <-s.failed:
		return fencing.Unavailable(s.errFailed())
	}
}

// guardedError is CodeUnavailable: what would have the lease yield something has to wait.
var guardedError = &fencing.Error{
	Code: fencing.CodeUnavailable, RetryAfter: time.Second,
	Detail: "a database transaction that checked the lease is still open, and nobody else is to get what the lease has before that ends; the outcome is unknown",
}
