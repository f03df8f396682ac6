package watchdog

import (
	"context"
	"time"

	"fencepost/internal/fencing"
)

// oldAnswer is the age from which on an answer that brings a lease is asked for again:
// a process that stood still (a signal, a machine that was suspended) may read it when
// the lock is somebody else's: the store has failed over and forgotten the lease, or the answer
// comes so late that the lease has ended, which the clock of a machine that was suspended does
// not show. It is longer than an operation of Redis takes, so that a store that is
// slow is not asked twice, and shorter than a quarantine: a lease that is told has its TTL
// known to the next server before that is over.
const oldAnswer = 2 * fencing.HeartbeatInterval

// Doubts reports whether a lease that was asked for at that instant is to be asked for again.
func (w *Watchdog) Doubts(asked time.Time) bool { return w.doubts && old(asked) }

// old reports whether what was asked for at that instant is an old answer. The monotonic
// clock does not see that the machine was suspended; the wall clock does, once
// it is set right.
func old(asked time.Time) bool {
	now := time.Now()
	return max(now.Sub(asked), now.Round(0).Sub(asked.Round(0))) > oldAnswer
}

// recent is a store that may lose grants, or answers (fencing.Capabilities), of which old answers that
// bring a lease are asked for again. What the Listener is told of, or a LeaveRequest finds,
// Waiter.accept asks for.
type recent struct{ fencing.Store }

// Do implements fencing.Store. What may bring a lease is asked until there is an answer that
// counts: a refusal or place is told whatever its age, an old lease twice in a row is
// CodeUnavailable.
func (s recent) Do(ctx context.Context, op fencing.Op) (fencing.Outcome, error) {
	switch op.(type) {
	default:
		return s.Store.Do(ctx, op)
	case fencing.AcquireRequest, fencing.ConfirmRequest, fencing.RenewRequest:
	}
	for range 2 {
		out, err := s.Store.Do(ctx, op)
		if err != nil || out.Holder.Token == 0 || !old(out.Asked) {
			return out, err
		}
	}
	return fencing.Outcome{}, &fencing.Error{
		Code: fencing.CodeUnavailable, Detail: "the store answered so late that the answer may be out of date; repeat the request",
	}
}
