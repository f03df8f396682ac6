package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// AtLeast keeps the names for so long after the grant, from 0 to 24 h, although the work is done sooner, so that nobody
// else does it again: for a job that several machines start at the same time by clocks that differ. Release then has the
// lease live for what is left of that time, 100 ms at least, and renews it no more; its end is a release, and no lock
// delay follows. Release does so whatever became of the work; ReleaseNow releases at once, and so does Do if its
// function has returned an error or panicked, or the lease was lost.
//
// It must not be above MaxHold, and is not for leases with Attached. What is left may be above
// the gateway's longest TTL: Release, and Do, then return an *Error with CodeInvalidRequest, and
// the lease ends by its TTL. While gateways of an earlier version serve the store it may end as an expiry.
func AtLeast(d time.Duration) Option { return func(a *acquisition) { a.least = d } }

// ReleaseNow is Release, at once whatever AtLeast says, also after Release.
func (l *Lease) ReleaseNow(ctx context.Context) error {
	l.mu.Lock()
	if l.least > 0 {
		l.least, l.freed = 0, nil
	}
	l.mu.Unlock()
	return l.Release(ctx)
}

// leftOfLeast is what is left of AtLeast; 0 or less: nothing.
func (l *Lease) leftOfLeast() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.least <= 0 {
		return 0
	}
	return l.least - l.c.now().since(l.grantedAt)
}

// leave has the lease live for so long from now on, and be released then. Where the gateway does not allow such a
// TTL it is that of the grant, which is no fault if it is longer.
func (l *Lease) leave(ctx context.Context, patience, left time.Duration) error {
	err := l.leaveFor(ctx, patience, max(left, minTTL))
	if refuses(err, "ttl_ms") {
		if again := l.leaveFor(ctx, patience, l.granted); again != nil || l.granted >= left {
			err = again
		}
	}
	return err
}

// leaveFor does so where the gateway allows the time, and knows after_ms: an earlier one has the lease end by a TTL, as
// an expiry.
func (l *Lease) leaveFor(ctx context.Context, patience, left time.Duration) error {
	names := l.held()
	path, err := pathOfNames(names)
	if err != nil {
		return err
	}
	query := url.Values{"after_ms": {strconv.FormatInt(upMillis(left), 10)}}
	if len(names) > 1 {
		query["name"] = names
	}
	_, err = l.c.insist(ctx, call{kind: toRelease, method: http.MethodDelete, path: path + "?" + query.Encode(), leaseID: l.id, patience: patience, read: done})
	if refuses(err, "after_ms") || refuses(err, "query") {
		var g granted
		r, invalid := renewalCall(&g, l.id, names, renewRequest{TTL: upMillis(left)})
		if invalid != nil {
			return invalid
		}
		r.patience = patience
		_, err = l.c.insist(ctx, r)
		if e := refusal(err); e != nil && e.Code == CodeLeaseLost && e.Reason == ReasonReleased {
			return nil // a later gateway has done it, and its answer was lost
		}
	}
	if err != nil {
		return unheard(err)
	}
	return nil
}

// refuses reports whether an error refuses a request for a field.
func refuses(err error, field string) bool {
	e := refusal(err)
	return e != nil && e.Code == CodeInvalidRequest && e.Field == field
}
