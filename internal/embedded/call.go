package embedded

import (
	"context"
	"errors"

	"fencepost/internal/fencing"
)

// call is an operation on its way.
type call struct {
	ctx    context.Context
	op     fencing.Op     // nil: Expire or Heartbeat
	limit  int            // of Expire
	beats  bool           // it is a Heartbeat
	names  []fencing.Name // of that
	out    fencing.Outcome
	expiry fencing.Expiry
	err    error // the store failed
	done   chan struct{}
}

func newCall(ctx context.Context, op fencing.Op) *call {
	return &call{ctx: ctx, op: op, done: make(chan struct{})}
}

func (c *call) acquires() bool {
	_, acquires := c.op.(fencing.AcquireRequest)
	return acquires
}

func (c *call) answer(err error) {
	c.err = err
	close(c.done)
}

func (s *Store) do(ctx context.Context, op fencing.Op) (fencing.Outcome, error) {
	c := newCall(ctx, op)
	if err := s.submit(c); err != nil {
		return fencing.Outcome{}, err
	}
	return c.out.Result()
}

var errClosed = errors.New("the store is closed")

// submit has a call decided and waits for its answer.
func (s *Store) submit(c *call) error {
	select {
	case <-s.closed:
		return fencing.Unavailable(errClosed)
	default:
	}
	select {
	case s.queue <- c:
	case <-c.ctx.Done():
		return fencing.Unavailable(c.ctx.Err())
	case <-s.ended:
		return fencing.Unavailable(errClosed)
	}
	select {
	case <-c.done:
	case <-c.ctx.Done():
		return fencing.Unavailable(c.ctx.Err())
	case <-s.ended:
		select {
		case <-c.done: // among the last to be decided
		default:
			return fencing.Unavailable(errClosed)
		}
	}
	if c.err != nil {
		return fencing.Unavailable(c.err)
	}
	return nil
}
