package sql

import (
	"context"
	"time"

	"fencepost/internal/fencing"
)

// hinter is a database that tells a gateway at once that another one has written something which concerns it. A hint that is lost costs
// askEvery. It is never sent in a transaction: PostgreSQL has one that does wait for all others that do.
type hinter interface {
	// listen calls heard for each hint to a gateway, until its connection ends or the context does.
	listen(ctx context.Context, gateway fencing.Gateway, heard func()) error

	// speak sends hints to the gateways that come, until its connection ends or the context does.
	speak(ctx context.Context, to <-chan fencing.Gateway) error
}

// hintsQueued is how many hints may wait to be sent: more are left out.
const hintsQueued = 64

// passHints hears and sends hints, where the database passes them on.
func (s *Store) passHints() {
	db, able := s.db.(hinter)
	if !able {
		return
	}
	s.hints = make(chan fencing.Gateway, hintsQueued)
	again := func(do func() error) func() {
		return func() {
			for s.ctx.Err() == nil {
				if err := do(); err != nil && s.ctx.Err() == nil {
					s.log.Debug("notifications to other gateways are not delivered at the moment", "error", err)
				}
				select {
				case <-time.After(maxPause):
				case <-s.ctx.Done():
				}
			}
		}
	}
	s.work.Go(again(func() error { return db.listen(s.ctx, s.gateway, s.queue.stir) }))
	s.work.Go(again(func() error { return db.speak(s.ctx, s.hints) }))
}

// hint tells another gateway to look at the log.
func (s *Store) hint(to fencing.Gateway) {
	if to == s.gateway {
		return
	}
	select {
	case s.hints <- to:
	default: // also where there are none
	}
}
