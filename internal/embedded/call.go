package embedded

import (
	"context"
	"errors"
	"time"

	"fencepost/internal/fencing"
)

var errClosed = errors.New("the store is closed")

// do decides an operation, and returns when it may be answered. An Acquire that
// stands behind what has come due is decided again until all of that is done.
func (s *Store) do(ctx context.Context, op fencing.Op) (out fencing.Outcome, err error) {
	for again := true; again && err == nil; {
		err = s.decide(ctx, func() (wait bool) {
			out, wait = s.step(op)
			if again = out.AskAgain() && s.unfinished[op.LockName()]; again {
				s.attend(op.LockName())
			}
			return wait
		})
	}
	if err != nil {
		return fencing.Outcome{}, err
	}
	return out.Result()
}

// decide runs a decision in its caller's goroutine: one at a time. It returns at once,
// or, if the decision says that its answer has to wait, when all that was decided until
// then is durable.
func (s *Store) decide(ctx context.Context, decision func() (wait bool)) error {
	s.mu.Lock()
	if err := s.refusal(ctx); err != nil {
		s.mu.Unlock()
		return fencing.Unavailable(err)
	}
	s.next.asked, s.next.now = time.Now(), s.now()
	var awaited *batch
	if decision() {
		if awaited = s.next; awaited.empty() {
			awaited = s.flushing // all before that is on disk
		} else {
			awaited.late = true
		}
	}
	s.scheduleFlush()
	s.mu.Unlock()
	if awaited == nil {
		return nil
	}
	select {
	case <-awaited.done:
	case <-ctx.Done():
		return fencing.Unavailable(ctx.Err())
	}
	if awaited.err != nil {
		return fencing.Unavailable(awaited.err)
	}
	return nil
}

// refusal returns why nothing is decided. The caller holds the mutex.
func (s *Store) refusal(ctx context.Context) error {
	switch {
	case s.ending:
		return errClosed
	case s.cause != nil:
		return s.cause
	}
	return ctx.Err() // the caller has gone: grant nothing to nobody
}
