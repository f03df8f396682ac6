package sql

import (
	"context"
	"errors"
	"slices"
	"time"

	"fencepost/internal/fencing"
	"fencepost/internal/machine"
)

// looked is memory at one instant, for who has it until the function returns.
type looked struct {
	machine *machine.Machine
	now     fencing.Instant
	guard   fencing.Guard
	guarded bool      // something has not ended for a transaction guards it
	asked   time.Time // the gateway's clock before
}

// isAhead reports whether something has ended by the time since the last entry of the log: on a name, or on any if that is empty.
func (l *looked) isAhead(name fencing.Name) bool {
	written := l.machine.Now()
	if written >= l.now {
		return false
	}
	if name != "" {
		return l.hasEnded(name, written)
	}
	for limit, seen := 64, 0; ; limit *= 4 {
		names := l.machine.Due(l.now, limit)
		if slices.ContainsFunc(names[seen:], func(name fencing.Name) bool { return l.hasEnded(name, written) }) {
			return true
		}
		if seen = len(names); seen < limit {
			return false
		}
	}
}

// hasEnded reports whether something on a name has ended by the time since an instant. What ended before, and is there still, does not count: a
// transaction guards it, or the database refuses its end.
func (l *looked) hasEnded(name fencing.Name, since fencing.Instant) bool {
	state := l.machine.State()
	r := state.Records[name]
	if r == nil {
		return false
	}
	if due := state.Due(name); due > since {
		return due <= l.now
	}
	return slices.ContainsFunc(r.Holders.Over(l.now), func(h fencing.Holding) bool { return h.ExpiresAt > since })
}

// view returns what see finds in memory when that has all that was committed before the call.
func view[T any](ctx context.Context, s *Store, see func(*looked) T, beside ...operation) (T, error) {
	var saw T
	if err := s.await(ctx, &item{ops: beside, look: func(l *looked) { saw = see(l) }}); err != nil {
		var nothing T // saw may be written yet
		return nothing, err
	}
	return saw, nil
}

// settledView is view where see judges by the time: a name, or all if that is empty.
//
// What ends by the time has ended for all gateways once the log has an entry of that time or a later one. Until then a turn that read the clock
// earlier may renew it. So the time is written to the log before anybody is told of such an end, unless the database refuses to write: then
// what was seen is told. Of all names together it is told as well where nothing can be written for another reason: people look at them.
func settledView[T any](ctx context.Context, s *Store, name fencing.Name, see func(*looked) T) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ahead := false
	saw, err := view(ctx, s, func(l *looked) T {
		ahead = l.isAhead(name)
		return see(l)
	})
	unwritable := func() bool { return name == "" && s.out.Load() != nil || s.refusesAll() }
	if err != nil || !ahead || unwritable() {
		return saw, err
	}
	settled, err := view(ctx, s, see, operation{encoded: machine.Tick()})
	if err != nil && unwritable() {
		return saw, nil
	}
	return settled, err
}

// refusesAll reports whether the database was last seen to refuse what this gateway writes, whatever that is. A turn that is waited for in vain is
// not refused.
func (s *Store) refusesAll() bool {
	err := s.out.Load()
	if err == nil || errors.Is(*err, errLocked) {
		return false
	}
	f := fencing.FaultOf(*err)
	return f != nil && (f.Detail == full.detail || f.Detail == readOnly.detail || f.Detail == noRights.detail) || isUnclear(*err)
}

// peek has memory looked at between two turns. While it is not known whether a commit has happened there may be none for long.
func (s *Store) peek(ctx context.Context, see func()) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	locked := make(chan struct{})
	go func() {
		s.mu.RLock()
		close(locked)
	}()
	select {
	case <-locked:
		defer s.mu.RUnlock()
		see()
		return nil
	case <-ctx.Done():
		go func() {
			<-locked
			s.mu.RUnlock()
		}()
		return fencing.Unavailable(s.slow())
	}
}
