package raft

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/fxamacker/cbor/v2"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

const (
	// callsInFlight is how many batches may be on their way to the leader at once.
	callsInFlight = 4

	// patience bounds how long a caller waits for a leader, and one call to it: longer
	// than a change of leaders takes.
	patience = 3 * time.Second

	// minPause and maxPause bound how long a node waits before it asks again for what was
	// refused, unless it hears of another leader before.
	minPause = 5 * time.Millisecond
	maxPause = 100 * time.Millisecond
)

// item is an operation of this gateway on its way into the log. The queue's mutex guards
// what changes.
type item struct {
	op    cbor.RawMessage
	asked time.Time
	done  chan struct{} // closed when there is a result
	is    machine.Result

	gone   bool   // its caller has given up
	number uint64 // of the batch that it was sent in last; 0 if it was not
}

// request is a batch on its way into the log of this node, which leads.
type request struct {
	batch machine.Batch
	done  func([]machine.Result, error) // errRefused: it is not in the log, and will not be
}

// queue has what is to go into the log.
type queue struct {
	mu       sync.Mutex
	items    []*item    // of this gateway, in order of arrival
	given    int        // how many of them were given up
	requests []*request // what this node is asked for as the leader
	closed   bool

	number uint64               // of this gateway's last batch
	asked  map[uint64]time.Time // when its batches were asked for, until they are carried out
	open   map[uint64]bool      // those sent to another leader that have had no answer
	gone   map[uint64]uint64    // those given up that may be carried out yet, with their terms
}

// mostAsked bounds how many batches are remembered that were perhaps never carried out.
const mostAsked = 1 << 14

// do carries out an operation, and returns when it may be answered.
func (s *Store) do(ctx context.Context, op fencing.Op) (fencing.Outcome, error) {
	for {
		it := &item{op: machine.EncodeOp(op), asked: time.Now(), done: make(chan struct{})}
		if err := s.carryOut(ctx, it); err != nil {
			return fencing.Outcome{}, err
		}
		out := it.is.Out
		out.Asked = it.asked
		if !out.AskAgain() || s.stepLimit != 0 {
			return out.Result()
		}
	}
}

// carryOut returns when an item has a result.
func (s *Store) carryOut(ctx context.Context, it *item) error {
	if err := ctx.Err(); err != nil {
		return fencing.Unavailable(err) // the caller has gone: grant nothing to nobody
	}
	q := &s.queue
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return s.unavailable(errClosed)
	}
	q.items = append(q.items, it)
	q.mu.Unlock()
	s.wakeUp()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	var cause error
	select {
	case <-it.done:
		return nil
	case <-ctx.Done():
		cause = ctx.Err()
	case <-timer.C:
		cause = context.DeadlineExceeded
	case <-s.failed:
		cause = s.Cause()
	case <-s.ctx.Done():
		cause = errClosed
	}
	q.mu.Lock()
	q.giveUp(it, s.raft.CurrentTerm())
	q.mu.Unlock()
	return s.unavailable(cause)
}

// giveUp notes that nobody waits for an item any more. The caller holds the mutex.
func (q *queue) giveUp(it *item, term uint64) {
	it.gone = true
	if q.open[it.number] {
		q.gone[it.number] = term // or of an earlier one, in which it can't be carried out either
	}
	if q.given++; q.given > len(q.items)/2 {
		q.items = slices.DeleteFunc(q.items, func(it *item) bool { return it.gone })
		q.given = 0
	}
}

// take returns the next items, as a batch. The caller holds the mutex.
func (q *queue) take(self *machine.Batch) ([]*item, machine.Batch) {
	var items []*item
	b := *self
	size, taken := 0, 0
	for _, it := range q.items {
		if len(items) == machine.MostOps || size > 0 && size+len(it.op) > machine.MostBytes {
			break
		}
		if taken++; it.gone {
			continue
		}
		items, size = append(items, it), size+len(it.op)
		b.Ops = append(b.Ops, it.op)
	}
	clear(q.items[:taken])
	q.items = q.items[taken:]
	if len(q.items) == 0 {
		q.items, q.given = nil, 0
	}
	if len(items) > 0 {
		b.Number = q.next(items[0].asked)
	}
	return items, b
}

// next returns the number of a batch that was asked for at that time. The caller holds the
// mutex.
func (q *queue) next(asked time.Time) uint64 {
	q.number++
	if len(q.asked) >= mostAsked {
		delete(q.asked, q.number-mostAsked)
	}
	q.asked[q.number] = asked
	return q.number
}

// putBack has items carried out that were perhaps not. The caller holds the mutex.
func (q *queue) putBack(items []*item) {
	items = slices.DeleteFunc(items, func(it *item) bool { return it.gone })
	for _, it := range items {
		it.number = 0
	}
	q.items = append(items, q.items...)
}

// askedAt returns when this gateway asked for a batch, or a time before that, and forgets it.
func (s *Store) askedAt(number uint64) time.Time {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	asked, ok := s.queue.asked[number]
	if !ok {
		return s.opened
	}
	delete(s.queue.asked, number)
	return asked
}

// enqueue has a request go into the log, unless it is not admitted.
func (s *Store) enqueue(r *request, admit func() bool) bool {
	q := &s.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || admit != nil && !admit() {
		return false
	}
	q.requests = append(q.requests, r)
	s.wakeUp()
	return true
}

// request carries out a batch by this node, which leads.
func (s *Store) request(ctx context.Context, b machine.Batch, admit func() bool) ([]machine.Result, error) {
	type outcome struct {
		results []machine.Result
		err     error
	}
	answered := make(chan outcome, 1)
	r := &request{batch: b, done: func(results []machine.Result, err error) { answered <- outcome{results, err} }}
	if !s.enqueue(r, admit) {
		return nil, errRefused
	}
	select {
	case o := <-answered:
		return o.results, o.err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.ctx.Done():
		return nil, errClosed
	}
}

// close has the queue take in no more.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
}

// isClosed reports whether the node is about to stop.
func (q *queue) isClosed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed
}

// wakeUp has route look for something to do.
func (s *Store) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// route has what is asked for go into the log: by this node if it leads, else by the one
// that does.
func (s *Store) route() {
	for {
		select {
		case <-s.wake:
		case <-s.ctx.Done():
			return
		}
		for s.routeNext() {
		}
	}
}

// routeNext does so for a batch, and reports whether there may be more.
func (s *Store) routeNext() bool {
	if !s.queue.any() {
		return false
	}
	if l := s.leading.Load(); l != nil {
		return s.routeHere(l)
	}
	s.refuseRequests()
	address, term, ok := s.leader()
	if !ok || address == s.self.Address {
		return false // changed follows
	}
	select {
	case s.calling <- struct{}{}:
	case <-s.ctx.Done():
		return false
	}
	q := &s.queue
	q.mu.Lock()
	items, b := q.take(&s.batch)
	if len(items) == 0 {
		q.mu.Unlock()
		<-s.calling
		return false
	}
	m := q.message(items, b, term)
	q.mu.Unlock()
	m.Address = s.self.Address
	s.work.Go(func() {
		defer func() { <-s.calling }()
		s.forward(items, address, m)
	})
	return true
}

// any reports whether there is anything to do.
func (q *queue) any() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items)+len(q.requests) > 0
}

// refuseRequests refuses what can't be carried out for this node does not lead.
func (s *Store) refuseRequests() {
	q := &s.queue
	q.mu.Lock()
	requests := q.requests
	q.requests = nil
	q.mu.Unlock()
	for _, r := range requests {
		r.done(nil, errRefused)
	}
}

// routeHere appends an entry. What comes while others are on their way shares the next.
func (s *Store) routeHere(l *leadership) bool {
	select {
	case s.slots <- struct{}{}:
	case <-s.ctx.Done():
		return false
	}
	q := &s.queue
	q.mu.Lock()
	var requests []*request
	ops, size := 0, 0
	for len(q.requests) > 0 && ops < machine.MostOps && size < machine.MostBytes {
		r := q.requests[0]
		q.requests = q.requests[1:]
		requests, ops, size = append(requests, r), ops+len(r.batch.Ops), size+r.batch.Size()
	}
	if items, b := q.take(&s.batch); len(items) > 0 {
		requests = append(requests, &request{batch: b, done: func(results []machine.Result, err error) { s.answer(items, results, err) }})
	}
	q.mu.Unlock()
	if len(requests) == 0 {
		<-s.slots
		return false
	}
	s.propose(l, requests)
	return true
}

// answer gives items their results, or has them asked for again.
func (s *Store) answer(items []*item, results []machine.Result, err error) {
	if err == nil && len(results) != len(items) {
		err = errors.New("an answer has other results than were asked for")
	}
	if err == nil {
		for i, it := range items {
			it.is = results[i]
			close(it.done)
		}
		return
	}
	q := &s.queue
	q.mu.Lock()
	q.putBack(items)
	q.mu.Unlock()
	s.wakeLater()
}

// message returns a batch as it is sent to the leader of a term. The caller holds the mutex.
func (q *queue) message(items []*item, b machine.Batch, term uint64) *message {
	for _, it := range items {
		it.number = b.Number
	}
	q.open[b.Number] = true
	m := &message{Errand: errandBatch, Term: term, Batch: b, Floor: b.Number}
	for number := range q.open {
		m.Floor = min(m.Floor, number)
	}
	for number, in := range q.gone {
		if in < term { // the leader of that term does not carry it out in this one
			delete(q.gone, number)
			continue
		}
		m.Gone, m.Floor = append(m.Gone, number), min(m.Floor, number)
	}
	return m
}

// forward has the leader carry out items.
func (s *Store) forward(items []*item, address string, m *message) {
	a, err := s.callLeader(s.ctx, address, m)
	q := &s.queue
	q.mu.Lock()
	delete(q.open, m.Batch.Number)
	switch {
	case errors.Is(err, ErrNotSent): // nothing that is on its way could be carried out later
		delete(q.gone, m.Batch.Number)
	case err != nil || a.Verdict == unknown:
		q.gone[m.Batch.Number] = m.Term
		if err == nil {
			err = errors.New("the leader does not know the result")
		}
	case a.Removed: // to ask again is of no use
		delete(q.gone, m.Batch.Number)
		for range items {
			a.Outcomes = append(a.Outcomes, fencing.Outcome{Err: removed()})
		}
	case a.Verdict == refused:
		delete(q.gone, m.Batch.Number)
		err = errRefused
	default:
		delete(q.gone, m.Batch.Number)
		for _, number := range m.Gone { // the leader knows
			delete(q.gone, number)
		}
	}
	q.mu.Unlock()
	var results []machine.Result
	if err == nil {
		s.hear(a, items[0].asked)
		results = make([]machine.Result, len(a.Outcomes))
		for i := range results {
			results[i].Out = a.Outcomes[i]
		}
		if n := len(results); n > 0 && n < len(items) {
			s.answer(items[n:], nil, errNoRoom)
			items = items[:n]
		}
	}
	s.answer(items, results, err)
}
