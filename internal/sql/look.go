package sql

import (
	"context"
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

// mostAhead is on how many names that are due isAhead looks what has come due.
const mostAhead = 64

// isAhead reports whether time has brought about something that the log does not say yet: on a name, or on any if that is empty.
func (l *looked) isAhead(name fencing.Name) bool {
	if l.machine.Now() >= l.now || l.guard.Sent != 0 {
		return false
	}
	names := []fencing.Name{name}
	if name == "" {
		if names = l.machine.Due(l.now, mostAhead); len(names) == mostAhead {
			return true
		}
	}
	return slices.ContainsFunc(names, func(name fencing.Name) bool { return l.endsBehind(l.machine.Now(), name) })
}

// endsBehind reports whether something on a name has come due since an instant, beside what was due then and nobody can end: what
// a transaction guards, or the database refuses.
func (l *looked) endsBehind(written fencing.Instant, name fencing.Name) bool {
	state := l.machine.State()
	r := state.Records[name]
	if r == nil {
		return false
	}
	if due := state.Due(name); due > written {
		return due <= l.now
	}
	for h := range r.Holders.All() {
		if h.ExpiresAt > written && h.ExpiresAt <= l.now {
			return true
		}
	}
	return false
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

// judged is view where see judges by the time: a name, or all if that is empty.
//
// What ends by the time has ended at all gateways once the log has an entry of that time or a later one. Until then a turn that read the
// clock earlier may renew what has ended by a later reading. So the log is to have the time before anybody is told of such an end. Where
// the database accepts no writes nobody renews, and what was seen is told.
func judged[T any](ctx context.Context, s *Store, name fencing.Name, see func(*looked) T) (T, error) {
	ahead := false
	saw, err := view(ctx, s, func(l *looked) T {
		ahead = l.isAhead(name)
		return see(l)
	})
	if err != nil || !ahead || s.takesNothing() {
		return saw, err
	}
	certain, err := view(ctx, s, see, operation{encoded: machine.Tick()})
	if err != nil && s.takesNothing() {
		return saw, nil
	}
	return certain, err
}

// takesNothing reports whether the database was last seen to accept no writes, whoever asks.
func (s *Store) takesNothing() bool {
	err := s.out.Load()
	if err == nil {
		return false
	}
	f := fencing.FaultOf(*err)
	return f != nil && (f.Detail == full.detail || f.Detail == readOnly.detail)
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
