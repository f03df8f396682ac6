package watchdog

import (
	"context"
	"errors"
	"time"

	"fencepost/internal/fencing"
)

// confirm makes a provisional lease firm, trying until patience ends or the gateway
// drains. A quarantine that lasts longer than the patience is not waited for.
func (w *Watchdog) confirm(ctx context.Context, r fencing.AcquireRequest, patience time.Time) (out fencing.Outcome, err error) {
	err = w.insist(ctx, patience, func(ctx context.Context) (err error) {
		out, err = w.Store.Confirm(ctx, fencing.ConfirmRequest{Name: r.Name, Lease: r.Lease, Stamp: r.Stamp})
		return err
	})
	return out, err
}

// insist asks until the store has said, or patience would end before it is asked again.
func (w *Watchdog) insist(ctx context.Context, patience time.Time, ask func(context.Context) error) error {
	for backoff := minBackoff; ; backoff = min(2*backoff, maxBackoff) {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		err := ask(call)
		cancel()
		if err == nil || !uncertain(err) {
			return err
		}
		wait := backoff
		if e := asError(err); e.Code == fencing.CodeQuarantined {
			wait = max(wait, e.RetryAfter)
		}
		if time.Now().Add(wait).After(patience) {
			return err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
			continue
		case <-w.drained:
			err = errDraining()
		case <-ctx.Done():
		}
		timer.Stop()
		return err
	}
}

// asError returns what a store's error says, nil for none.
func asError(err error) *fencing.Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*fencing.Error](err); ok {
		return e
	}
	return fencing.Unavailable(err)
}

func codeOf(err error) fencing.Code { return asError(err).Code }

// uncertain reports whether an error leaves open what was done.
func uncertain(err error) bool {
	switch codeOf(err) {
	case fencing.CodeUnavailable, fencing.CodeClockSkew, fencing.CodeNotReplicated, fencing.CodeQuarantined:
		return true
	}
	return false
}

// unsettled reports whether an acquire that failed so may still get something, or has.
func unsettled(err error) bool { return uncertain(err) || asError(err).Unanswered }

// unreplicated reports whether too few replicas have what was granted.
func unreplicated(err error) bool { return err != nil && codeOf(err) == fencing.CodeNotReplicated }

// takenForDead reports whether a provisional lease is gone because its gateway
// counted as dead.
func takenForDead(err error) bool {
	e := asError(err)
	return e.Code == fencing.CodeLeaseLost && e.Reason == fencing.ReasonUnknown
}

func errDraining() error {
	return &fencing.Error{Code: fencing.CodeDraining, Detail: "this gateway is shutting down; ask another one"}
}
