package watchdog

import (
	"context"
	"time"

	"fencepost/internal/fencing"
)

// ConfirmGrant makes the provisional lease of an acquire firm, trying until patience ends or the gateway
// drains. A quarantine that lasts longer than the patience is not waited for. Codes are those of
// fencing.ConfirmRequest, and CodeDraining.
func (w *Watchdog) ConfirmGrant(ctx context.Context, r fencing.AcquireRequest, patience time.Time) (out fencing.Outcome, err error) {
	err = w.Insist(ctx, patience, func(ctx context.Context) (err error) {
		out, err = w.Store.Do(ctx, fencing.ConfirmRequest{Name: r.Name, Lease: r.Lease, Stamp: r.Stamp})
		return err
	})
	return out, err
}

// Insist asks until the store has said, if only that it is futile, or patience would end before it is asked again. Each question is given
// 3 s. CodeDraining: the gateway is shutting down.
func (w *Watchdog) Insist(ctx context.Context, patience time.Time, ask func(context.Context) error) error {
	for backoff := minBackoff; ; backoff = min(2*backoff, maxBackoff) {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		err := ask(call)
		cancel()
		if err == nil || !fencing.Uncertain(err) || fencing.AsError(err).Futile {
			return err
		}
		wait := backoff
		if e := fencing.AsError(err); e.Code == fencing.CodeQuarantined {
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
			err = fencing.DrainingError()
		case <-ctx.Done():
		}
		timer.Stop()
		return err
	}
}
