package sql

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

// hinter is a database that tells a gateway at once that another one has written something which concerns it. A hint that is lost costs
// hintedEvery. None is sent in a turn: on PostgreSQL transactions that notify commit one after the other.
type hinter interface {
	// listen calls heard for each hint to the gateway or to everyone, until its connection ends or the context does. It calls listening
	// when hints arrive from now on. errPooled: on such connections they never would.
	listen(ctx context.Context, gateway fencing.Gateway, listening, heard func()) error

	// speak sends hints, until its connection ends or the context does.
	speak(ctx context.Context, h *hints) error
}

// everyone is who has an attached lease, or hears events: it is not known to others at which gateways that is.
const everyone fencing.Gateway = "all"

var errPooled = errors.New("there is a pooler before the database, through which notifications do not arrive")

// hints are those that wait to be sent.
type hints struct {
	mu   sync.Mutex
	to   map[fencing.Gateway]bool
	wake chan struct{} // holds one when there are some
}

func newHints() *hints {
	return &hints{to: map[fencing.Gateway]bool{}, wake: make(chan struct{}, 1)}
}

func (h *hints) add(to fencing.Gateway) {
	h.mu.Lock()
	h.to[to] = true
	h.mu.Unlock()
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// take returns to whom there are hints, and forgets them.
func (h *hints) take() []fencing.Gateway {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := slices.Collect(maps.Keys(h.to))
	clear(h.to)
	return all
}

// passHints hears and sends hints, where the database passes them on.
func (s *Store) passHints() {
	db, able := s.db.(hinter)
	if !able {
		return
	}
	s.hints = newHints()
	again := func(do func() error) func() {
		return func() {
			for s.ctx.Err() == nil {
				switch err := do(); {
				case errors.Is(err, errPooled):
					s.log.Info("the log is polled while anybody waits here", "cause", err)
					return
				case err != nil && s.ctx.Err() == nil:
					s.log.Debug("notifications to other gateways are not delivered at the moment", "error", err)
				}
				select {
				case <-time.After(maxPause):
				case <-s.ctx.Done():
				}
			}
		}
	}
	s.work.Go(again(func() error {
		defer s.hinted.Store(false)
		return db.listen(s.ctx, s.gateway, func() { s.hinted.Store(true) }, s.queue.stir)
	}))
	s.work.Go(again(func() error { return db.speak(s.ctx, s.hints) }))
}

// hint tells another gateway, or everyone, to look at the log.
func (s *Store) hint(to fencing.Gateway) {
	if s.hints != nil && to != s.gateway {
		s.hints.add(to)
	}
}

// hintOfBreaks tells everyone to look at the log where an attached lease was broken, or given notice: its stream is to say so at once.
func (s *Store) hintOfBreaks(results []machine.Result) {
	for i := range results {
		out := &results[i].Out
		broken := func(e fencing.Ended) bool { return e.Reason == fencing.ReasonBroken && e.Holder.Attached != "" }
		if out.Noticed && out.Holder.Attached != "" || slices.ContainsFunc(out.Ended, broken) {
			s.hint(everyone)
			return
		}
	}
}
