package http

import (
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"fencepost/internal/fencing"
)

const (
	// holdingShare is how many times the bounds of the others hold for renewals and
	// releases: they are shed last. Both use up what the others may have, so that a
	// principal that has much to renew is granted nothing more, and what it holds stays
	// below its rate; it doubles, or more, when this gateway takes over the clients of
	// others that have gone. Without a bound a key would do for any load.
	holdingShare = 4

	// holdingDebt is for how long renewals and releases may use up the rate of the others
	// in advance.
	holdingDebt = time.Second

	// limitedPause is how long a refusal takes at least, and refusedAtOnce how many of one
	// principal take no longer. The more there are the longer each takes, so that who asks
	// again at once, on however many connections or streams of HTTP/2, gets no more of them
	// than 640 a second.
	limitedPause  = 100 * time.Millisecond
	refusedAtOnce = 64

	// maxHeldBack bounds the refusals of one principal that wait, of which each takes some
	// 10 KiB and, beside all the others, 1.6 s. One more is answered at once, and its
	// connection closed: how many of these there are is for the bounds of connections.
	maxHeldBack = 1024

	// requestRefusalLogged is how often refusals of one principal are logged at most.
	requestRefusalLogged = time.Minute
)

// requests bounds the requests of each principal, in rate and in number. A principal is a
// name of the keys file; who needs none, or where there are no keys, is an address or,
// of IPv6, a network.
type requests struct {
	rate int // a second, and at once; 0 is any
	most int // under way at a time, without those that wait and streams; 0 is any number

	mu    sync.Mutex
	by    map[requester]*usage // the zero requester: all the others
	swept time.Time
}

type requester struct {
	name    string
	network netip.Prefix // without a name
}

// usage is what a principal has used of its bounds.
type usage struct {
	requester
	underWay int
	heldBack int    // refusals that wait
	all      bucket // at rate
	holding  bucket // renewals and releases, at holdingShare times the rate
	logged   time.Time
}

// throttle counts a request, until leaveRequest or the end of the call, or refuses it with
// CodeTooManyRequests. Probes are not counted: who watches the gateway must hear of it.
func (c *call) throttle(a access) error {
	q := &c.s.requests
	if q.rate == 0 && q.most == 0 || isProbe(c.r) {
		return nil
	}
	holding := a.holding && c.isHolder()
	u, refused, log := q.enter(c.requester(), c.start, holding)
	if refused == nil {
		c.usage = u
		return nil
	}
	c.s.metrics.limited.WithLabelValues(refused.limit).Inc()
	c.limited = true
	if log {
		attrs := append([]slog.Attr{slog.String("client", clientOf(c.r.RemoteAddr)), slog.String("setting", refused.setting)}, principalAttrs(c.principal)...)
		c.s.log.LogAttrs(c.r.Context(), slog.LevelWarn, "requests are refused: a principal exceeds its limit", attrs...)
	}
	c.holdBack()
	of := "this address"
	if c.principal != nil {
		of = c.principal.Name
	}
	return &fencing.Error{Code: fencing.CodeTooManyRequests, RetryAfter: refused.wait,
		Detail: fmt.Sprintf(refused.form, refused.bound, of, refused.setting)}
}

// isHolder reports whether a request can be of who holds a lease: it has the id of one, and is
// no break.
func (c *call) isHolder() bool {
	lease, err := c.leaseID()
	return err == nil && !lease.IsZero() && len(c.r.Header["If-Match"]) == 0
}

// requester returns whose bounds a request uses up.
func (c *call) requester() requester {
	if c.principal != nil {
		return requester{name: c.principal.Name}
	}
	return requester{network: networkOf(clientOf(c.r.RemoteAddr))}
}

// holdBack waits before a refusal with CodeTooManyRequests, or has its answer close the
// connection.
func (c *call) holdBack() {
	q := &c.s.requests
	u, pause := q.holdBack(c.requester(), c.start)
	if u == nil {
		c.Header()["Connection"] = []string{"close"}
		return
	}
	defer q.leave(u, &u.heldBack)
	select {
	case <-time.After(pause):
	case <-c.r.Context().Done():
	}
	c.waited = c.elapsed() // no time of the gateway's
}

// holdBack counts a refusal that waits, until leave, and returns for how long it does. u is
// nil if as many wait as may.
func (q *requests) holdBack(who requester, now time.Time) (u *usage, pause time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	u = q.of(who, now)
	if u.heldBack >= maxHeldBack {
		return nil, 0
	}
	u.heldBack++
	return u, max(limitedPause, limitedPause*time.Duration(u.heldBack)/refusedAtOnce)
}

// The bounds, as the metric names them.
const (
	limitRate   = "rate"
	limitNumber = "number"
)

// excess is which bound a request is beyond.
type excess struct {
	limit, setting, form string
	bound                int
	wait                 time.Duration
}

// enter counts a request, or says what it is beyond. log is true of the first refusal in a
// while.
func (q *requests) enter(who requester, now time.Time, holding bool) (u *usage, refused *excess, log bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	u = q.of(who, now)
	refused = q.excess(u, now, holding)
	if refused == nil {
		u.underWay++
	} else if log = now.Sub(u.logged) >= requestRefusalLogged; log {
		u.logged = now
	}
	return u, refused, log
}

// excess returns which bound one more request is beyond; nil if none, and then it is counted.
func (q *requests) excess(u *usage, now time.Time, holding bool) *excess {
	share, b := 1, &u.all
	if holding {
		share, b = holdingShare, &u.holding
	}
	if q.most > 0 && u.underWay >= share*q.most {
		return &excess{limit: limitNumber, setting: "FENCEPOST_MAX_REQUESTS_PER_PRINCIPAL", bound: share * q.most, wait: time.Second,
			form: "%d requests of %s are in progress, which is the limit (%s)"}
	}
	if q.rate == 0 {
		return nil
	}
	if wait := b.take(now, time.Second/time.Duration(share*q.rate), share*q.rate); wait > 0 {
		return &excess{limit: limitRate, setting: "FENCEPOST_MAX_REQUEST_RATE_PER_PRINCIPAL", bound: share * q.rate, wait: wait,
			form: "more than %d requests a second come from %s, which is the limit (%s)"}
	}
	if holding {
		u.all.spend(now, time.Second/time.Duration(q.rate), q.rate, holdingDebt)
	}
	return nil
}

// of returns the usage of a principal. Those of addresses are bounded by maxNetworks, and
// those of names by the keys file.
func (q *requests) of(who requester, now time.Time) *usage {
	if u := q.by[who]; u != nil {
		return u
	}
	if len(q.by) >= maxNetworks {
		q.sweep(now)
		if len(q.by) >= maxNetworks && who.name == "" {
			who = requester{}
		}
	}
	u := q.by[who]
	if u == nil {
		u = &usage{requester: who}
		q.by[who] = u
	}
	return u
}

// sweep forgets who has nothing under way and is forgiven.
func (q *requests) sweep(now time.Time) {
	if now.Sub(q.swept) < sweepInterval {
		return
	}
	q.swept = now
	for who, u := range q.by {
		if u.idle() && u.all.full(now) && u.holding.full(now) {
			delete(q.by, who)
		}
	}
}

// leaveRequest takes back what throttle has counted of the number, for one that waits, is
// a stream, or has ended. It may be called without.
func (c *call) leaveRequest() {
	u, q := c.usage, &c.s.requests
	if u == nil {
		return
	}
	c.usage = nil
	q.leave(u, &u.underWay)
}

// leave takes one off a number of a usage.
func (q *requests) leave(u *usage, number *int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if *number--; u.idle() && q.rate == 0 {
		delete(q.by, u.requester)
	}
}

// idle reports whether nothing is counted of a usage but its rate.
func (u *usage) idle() bool { return u.underWay == 0 && u.heldBack == 0 }
