package sql

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// A turn is bounded whatever the server's session is doing. The server itself throws out who stands still between two messages, but
// not who stands still in the middle of one, or does not take its answer: to it such a session is at work. So who waits for a turn
// for long looks who has it, and ends that session if nothing but its client keeps it.

const (
	// watchAfter is how long a gateway waits for its turn before it looks who has it, and watchEvery how often it does so then.
	watchAfter = 400 * time.Millisecond
	watchEvery = 200 * time.Millisecond

	// watchIdle is for how long the connection for it is kept.
	watchIdle = 10 * time.Second
)

// errLocked says that a turn was given up, for something else had the store locked all the time.
var errLocked = errors.New("a turn was waited for in vain")

// holder is a session that has the store locked.
type holder struct {
	id    int64 // of the session
	since int64 // when its transaction has begun, for the server to know it by

	// ours: it is a turn of a gateway of this user's that waits for nobody but its client. Who is it, in words.
	ours bool
	who  string
}

// awaitTurn calls wait, which waits for a turn. If that takes long, watchHolders looks for who keeps it waiting, and an error says who does.
func awaitTurn[T any](s *Store, wait func() (T, error)) (T, error) {
	s.wants.Store(true)
	timer := time.AfterFunc(watchAfter, s.lookForHolders)
	v, err := wait()
	timer.Stop()
	who := s.lockedBy.Swap(nil)
	s.wants.Store(false)
	if who != nil && inVain(err) {
		err = lockedBy(*who)
	}
	return v, err
}

func (s *Store) lookForHolders() {
	select {
	case s.waitsLong <- struct{}{}:
	default:
	}
}

// holderWatch looks who has the turn while this gateway waits long for one, until the store is closed.
type holderWatch struct {
	*Store
	conn connection           // nil: none
	seen map[holder]time.Time // when each was first seen, by its id and since
}

func (s *Store) watchHolders() {
	h := holderWatch{Store: s}
	idle := time.NewTimer(0)
	defer idle.Stop()
	for {
		select {
		case <-s.waitsLong:
			h.watch()
			idle.Reset(watchIdle)
		case <-idle.C:
			h.disconnect()
		case <-s.ctx.Done():
			h.disconnect()
			return
		}
	}
}

func (h *holderWatch) disconnect() {
	if h.conn != nil {
		h.conn.close()
		h.conn = nil
	}
}

// watch looks as long as a turn is waited for.
func (h *holderWatch) watch() {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for h.wants.Load() {
		if err := h.look(); err != nil {
			h.disconnect()
			h.log.Debug("it can't be found out who has the store locked", "error", err)
		}
		select {
		case <-tick.C:
		case <-h.ctx.Done():
			return
		}
	}
	h.lockedBy.Store(nil) // what was found while the turn was had, or given up, is of no other
}

func (h *holderWatch) look() (err error) {
	if h.conn == nil {
		if h.conn, err = h.connect(h.ctx); err != nil {
			h.conn = nil
			return err
		}
	}
	all, err := h.conn.holders(h.ctx)
	if err != nil {
		return err
	}
	seen := map[holder]time.Time{}
	for _, one := range all {
		key := holder{id: one.id, since: one.since}
		first, known := h.seen[key]
		if !known {
			first = time.Now()
		}
		seen[key] = first
		if time.Since(first) < stall {
			continue
		}
		if err := h.end(one); err != nil {
			return err
		}
	}
	h.seen = seen
	h.lockedBy.Store(inWords(all))
	return nil
}

// end ends a turn of a gateway that has stood still for too long.
func (h *holderWatch) end(one holder) error {
	if !one.ours {
		return nil
	}
	ended, err := h.conn.end(h.ctx, one)
	if ended {
		h.turnsEnded.Add(1)
		h.log.Warn("a gateway stood still in its turn, and its database session was ended: others go on", "session", one.who)
	}
	return err
}

// inVain reports whether a turn was waited for in vain. Of several that wait PostgreSQL has one wait for the other's wait, each time for as long
// as the server has it wait at most.
func inVain(err error) bool {
	return errors.Is(err, errLocked) || errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, errUndecided)
}

// lockedBy returns errLocked for people: who has the store locked, if that is known.
func lockedBy(who string) error {
	if who == "" {
		return locked.fault(errLocked)
	}
	return locked.fault(fmt.Errorf("%w: %s", errLocked, who))
}

// inWords says who has the store locked; nil: nobody.
func inWords(all []holder) *string {
	who := map[string]bool{}
	for _, one := range all {
		who[one.who] = true
	}
	if len(who) == 0 {
		return nil
	}
	words := strings.Join(slices.Sorted(maps.Keys(who)), "; ")
	return &words
}

// TurnsEnded counts the database sessions that were ended, for a gateway stood still in its turn there.
func (s *Store) TurnsEnded() int64 { return s.turnsEnded.Load() }
