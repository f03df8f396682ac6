package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxMargin bounds how long before the deadline a lease's context is cancelled, unless
	// StopEarly says more: a tenth of the TTL otherwise.
	maxMargin = time.Second

	// releaseTimeout bounds how long a release is tried for.
	releaseTimeout = 5 * time.Second

	// lateReleaseTimeout bounds it where the lease's own deadline has come: an answer to a
	// renewal may have been lost, so that the store has it longer.
	lateReleaseTimeout = time.Second

	// endedReleaseTimeout bounds how long it is tried for after its caller's context has ended.
	endedReleaseTimeout = 2 * time.Second
)

// NoSlot is the Slot of a grant that is no permit.
const NoSlot = -1

// Grant is what a lease has of one name.
type Grant struct {
	Name  string
	Token int64 // the fencing token: send it along with every write
	Slot  int   // of a permit, from 0: fence by name and slot. NoSlot for all others
	Slots []int // of permits, all of them in ascending order; nil for all others
}

// Lease is a lease on one name or several. Many goroutines may use one.
type Lease struct {
	c      *Client
	id     string
	names  []string
	grants []Grant
	sooner chan struct{} // has a value when the lease is to be renewed sooner than it was said

	bounded bool          // by MaxHold
	granted time.Duration // the TTL, at first
	found   bool          // perhaps it was granted with another: see LeaseID
	unkept  bool          // of NotRenewed

	grantedAt instant // or somewhat later

	// attached: the end of its connection is its release.
	attached   bool
	linger     time.Duration // for how long its gateway then keeps it
	silence    time.Duration // of the stream, after which the client takes it over
	claim      call          // takes it over from its stream
	detached   atomic.Bool   // still to be taken over
	next       *stream       // that which it was taken over with, of several names; the goroutine's that renews
	doubted    int           // requests for a stream that came to nothing that is known; mu guards it
	doubtedAt  instant       // when that became known of the last of these; mu guards it
	lingerLate time.Duration // for how long the lease is kept after their end, which nobody sees; mu guards it
	asked      []*attempt    // those that ask for a stream, or were granted one late; mu guards it
	used       int           // of those, which have replaced a stream; mu guards it

	ctx    context.Context // the user's
	cancel context.CancelCauseFunc

	kept   context.Context // ends with the lease: nothing is asked for it any more
	end    context.CancelFunc
	keeper sync.WaitGroup

	mu        sync.Mutex
	margin    time.Duration   // of StopEarly, 0: the default; see marginNow
	ttl       time.Duration   // to renew with, unless a shorter one is being asked for; see renewsWith
	news      news            // the newest: see remaining
	due       time.Duration   // how long after its request was sent the lease is to be renewed
	hangs     *stream         // the one whose end releases it; nil: none does
	beside    []*stream       // that were granted to other requests of the lease: it may hang on one of these, if the store has come to that last
	changedAt instant         // when the newest renewal by lease id was sent that was answered
	changing  []*changing     // the renewals by lease id that are under way, also those that don't change its TTL
	open      []time.Duration // those of all attempts to renew it that are under way
	late      *late           // what others know of these
	others    []*late         // of the other Leases of this client with its lease id
	abandoned time.Duration   // the shortest of those that may still be carried out, although nobody waits for them; 0: none
	looked    instant         // when it was judged last
	unproven  *instant        // since when it is to be renewed before anybody has it, see isKept; nil: it is not, or was renewed
	woken     *instant        // when it was seen that this process has stood still, for so long that the lease may be over
	ends      bool            // MaxHold does not let it live longer
	notice    *given          // nil: it was given none
	told      func(Notice)    // is told of it
	failing   func(error)     // is told when no gateway has renewed it
	over      error           // why nobody may count on it any more
	last      error           // of the last attempt to renew it
	freed     func() error    // releases it, once for all who wait
	least     time.Duration   // of AtLeast, until ReleaseNow
	owed      []string        // names that a Client.Release has failed to release

	backoff time.Duration // after the next stream that ends soon
}

// newLease starts to watch over a lease. parent is what its context is made from.
func (c *Client) newLease(parent context.Context, id string, names []string, g granted, n news, hangs *stream, o acquisition) *Lease {
	l := &Lease{c: c, id: id, names: names, grants: g.grants(), news: n, due: n.at + millis(g.RenewIn), attached: o.attached, bounded: o.MaxHold > 0, granted: g.ttl(), sooner: make(chan struct{}, 1), late: &late{}}
	l.ttl, l.found, l.unkept, l.linger = l.granted, o.found, o.unkept, millis(o.Linger)
	l.lingerLate = l.linger
	l.hangsOn(hangs)
	slices.SortFunc(l.grants, func(a, b Grant) int { // as the caller has named them
		return cmp.Compare(slices.Index(names, a.Name), slices.Index(names, b.Name))
	})
	l.told, l.failing, l.least, l.grantedAt = o.noticed, o.failing, o.least, c.now()
	l.looked = l.grantedAt
	l.takeNotice(g, n)
	l.margin = o.margin
	l.ctx, l.cancel = context.WithCancelCause(parent)
	l.kept, l.end = context.WithCancel(c.lastingFor(parent))
	return l
}

// start runs what a lease needs until it is over: the watch over its deadline, and keep. From then on calls with its
// lease id find it. errOvertaken: q is to ask again, and the Lease is none.
func (q *acquiring) start(l *Lease, keep func()) error {
	if !l.c.leases.add(q, l) {
		l.finish(errOvertaken)
		return errOvertaken
	}
	q.follows(l)
	l.keeper.Add(1)
	if !l.c.watch(l) || !l.c.goes(func() { defer l.keeper.Done(); keep() }) {
		l.keeper.Done()
		l.finish(ErrClosed)
		return ErrClosed
	}
	return nil
}

// errOvertaken is a grant of which nobody knows whether it still stands: see ownLeases.add.
var errOvertaken = errors.New("a stream with the same lease id was granted or given up meanwhile")

// forgotten is why a Lease is over that has another token than what its lease id has now.
func forgotten() error {
	return &Error{Code: CodeLeaseLost, Reason: ReasonUnknown, Detail: "another lease was granted with the same lease id"}
}

// replacedHere is why a Lease is over, or releases nothing, where another one of this client has its lease id.
func replacedHere() error {
	return &Error{Code: CodeReplaced, Detail: "another Lease of this client has the same lease id"}
}

// Context returns a context that is cancelled before the lease can be gone (but see Attached). Its cause is an *Error
// with CodeLeaseLost (also ErrMaxHold and ErrNoticeOver) or CodeReplaced, ErrUnknown, ErrReleased or ErrClosed; with
// Do, also that of the context that Do was given. It has the values of the context that the lease was acquired with,
// and not its end.
func (l *Lease) Context() context.Context { return l.ctx }

// Err returns nil as long as the lease may be counted on, and then why not, as the cause of Context. It looks at the
// clocks, so it knows at once when this process or its machine has stood still: ask it right before a write. Of an
// Attached lease it may be ErrUnknown for 3 s, or 6 s, before the context ends, and then nil again: its connection has
// ended, or was replaced, and it is taken over; or this process has stood still and what the gateway has said meanwhile
// is read.
func (l *Lease) Err() error {
	if in, counted := l.look(l.c.now()); !counted && in > 0 {
		return l.doubt()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.over
}

// Token returns the fencing token; of several names that of the first that was given.
func (l *Lease) Token() int64 { return l.first().Token }

// Slot returns the number of a permit, from 0 and below the limit with which it was acquired, or NoSlot.
func (l *Lease) Slot() int { return l.first().Slot }

// Slots returns the numbers of the permits in ascending order, nil if there are none.
func (l *Lease) Slots() []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]int(nil), l.grants[0].Slots...)
}

// Name returns the name; of several the first that was given.
func (l *Lease) Name() string { return l.first().Name }

func (l *Lease) first() Grant {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.grants[0]
}

// Grants returns what the lease has of each name, in the order in which they were given.
func (l *Lease) Grants() []Grant {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Grant(nil), l.grants...)
}

// Public returns the public part of the lease id, which is safe to log and to show.
func (l *Lease) Public() string { return PublicPart(l.id) }

// ID returns the lease id: the credential of the lease. Whoever has it can renew and
// release; it belongs in no log, URL or command line.
func (l *Lease) ID() string { return l.id }

// String returns the public part of the lease id.
func (l *Lease) String() string { return l.Public() }

// GoString returns the public part, so that %#v does not leak the secret.
func (l *Lease) GoString() string { return l.Public() }

// LogValue returns the public part.
func (l *Lease) LogValue() slog.Value { return slog.StringValue(l.Public()) }

// Remaining returns how long the lease can be counted on from now on, by this process's
// own clocks, if it is not renewed; 0 or less: not any more. Context is cancelled somewhat
// sooner.
func (l *Lease) Remaining() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.remaining(l.c.now())
}

// left returns how long it is until the context has to be cancelled.
func (l *Lease) left() time.Duration { return l.Remaining() - l.early() }

func (l *Lease) early() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.marginNow()
}

// finish ends the lease for its user; the first cause counts. An attached lease of which
// nothing is known is kept until its user lets go of it, and so are the other names of one
// that has lost a name: ending its connection would release it while the work is stopping.
func (l *Lease) finish(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.c.leases.remove(l)
	if l.over == nil {
		l.over = cause
		l.cancel(cause)
		l.noteLate()
	}
	others := l.claim.stream && errors.Is(cause, CodeLeaseLost)
	if !l.attached || !others && !errors.Is(cause, ErrUnknown) && !errors.Is(cause, ErrMaxHold) && !errors.Is(cause, ErrNoticeOver) {
		l.end()
	}
}

func (l *Lease) unknown() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch n, now := l.notice, l.c.now(); {
	case n != nil && n.remaining(now) <= l.marginNow()+noticeSlack:
		if n.Reason != "" {
			return fmt.Errorf("%w: %q", ErrNoticeOver, n.Reason)
		}
		return ErrNoticeOver
	case l.ends && l.cut() == nil:
		return ErrMaxHold
	}
	return l.uncertain()
}

// doubt is why nobody may count on a lease that is not over yet.
func (l *Lease) doubt() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.uncertain()
}

// uncertain is ErrUnknown, and why nothing is known. The caller holds mu.
func (l *Lease) uncertain() error {
	if l.last != nil {
		return fmt.Errorf("%w: %w", ErrUnknown, l.last)
	}
	return ErrUnknown
}

// detach has the lease taken over now from its stream.
func (l *Lease) detach() {
	if l.detached.CompareAndSwap(false, true) {
		l.hurry()
	}
}

// hurry has the lease renewed now.
func (l *Lease) hurry() {
	select {
	case l.sooner <- struct{}{}:
	default:
	}
}

func (l *Lease) failed(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = err
}

// renew keeps the lease alive until it is over, or hangs on another stream. first is when to begin,
// counted from sending.
func (l *Lease) renew(t *attempts, first time.Duration) {
	for next := first; ; next = l.dueAfter() {
		next -= rand.N(max(0, next)/10 + 1) // never later than it was told
		in := next - l.c.now().since(l.sentAt())
		if newest := t.newest(); newest != nil { // an older one was answered
			in = max(in, l.share()-l.c.now().since(newest.sent))
		}
		one := l.pause(t, in)
		if l.ended() {
			return
		}
		if one != nil && l.hears(t, one) {
			continue
		} else if l.ended() {
			return
		}
		if err := l.renewOnce(t); err != nil || l.next != nil {
			return
		}
	}
}

// attempts returns those of its renewals. None follows after an answer that renews it, or says
// that it is lost. A stream that was granted late is no such answer: all that it says counts from when
// it was asked for, which may be longer ago than the lease lives.
func (l *Lease) attempts() *attempts {
	return l.c.attempts(l.kept, func(s *stream) { l.c.goes(func() { l.overhear(s) }) })
}

// pause waits before a renewal, less if the lease was shortened meanwhile or is over. It returns the
// answer to an earlier one, if one comes meanwhile: that others fail is no news.
func (l *Lease) pause(t *attempts, d time.Duration) *attempt {
	for begun := l.c.now(); ; {
		one, err := t.next(max(0, d-l.c.now().since(begun)), l.sooner)
		if err == nil || l.kept.Err() != nil {
			return one
		}
	}
}

// ended reports whether the lease is over, or the client was closed, which says so in a moment.
func (l *Lease) ended() bool { return l.isOver() || l.kept.Err() != nil }

func (l *Lease) sentAt() instant {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.news.sent
}

// dueAfter returns when the lease is to be renewed, counted from sentAt.
func (l *Lease) dueAfter() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if end := l.cut(); end != nil && l.keptAfter(*end) > 0 {
		return min(l.due, l.news.at+max(l.keptAfter(*end)/3, minBackoff))
	}
	return min(l.due, l.news.at+l.said().left/3)
}

// whileItLingers bounds a wait between two requests for the lease. After the end of its stream the lease is kept for
// Linger only, so it is a third of that then.
func (l *Lease) whileItLingers(wait time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	end := l.cut()
	if end == nil || l.c.now().since(*end) >= l.keptAfter(*end) {
		return wait
	}
	return min(wait, max(l.keptAfter(*end)/3, minBackoff))
}

// share returns how long the answer to a renewal is waited for until another one is sent beside it: a
// third of what is left, so that others have a chance; half of maxDoubt; and see whileItLingers.
func (l *Lease) share() time.Duration {
	in, counted := l.look(l.c.now())
	if !counted {
		return l.whileItLingers(max(in/2, 20*time.Millisecond))
	}
	return l.whileItLingers(min(max(in/3, 20*time.Millisecond), answerTimeout))
}

// renewOnce asks until a gateway has renewed the lease or it is over.
func (l *Lease) renewOnce(t *attempts) error {
	failed := 0
	for retry := l.c.newRetry(); ; {
		one, err := l.ask(t, l.share())
		if one == nil {
			if l.kept.Err() == nil {
				l.failed(err)
				if failed++; failed == len(l.c.options.Addresses) && l.failing != nil {
					l.failing(err)
				}
			}
			if l.next != nil { // its gateway renews the lease
				return nil
			}
			if one, _ = t.next(l.whileItLingers(min(retry.after(toRenew, err), max(l.chance()/3, minBackoff/5))), nil); l.ended() {
				return err
			}
		}
		if one != nil && (l.hears(t, one) || l.ended()) {
			return one.err
		}
	}
}

// hears takes over what the answer to a renewal says, and reports whether it has renewed the lease.
// Where that has lost no more than some of its names, the others are to be asked for; so are those that
// hang on another stream: it may end at once.
func (l *Lease) hears(t *attempts, one *attempt) bool {
	switch {
	case one.stream != nil:
		one.call.gone(false) // first: the stream's gateway is told nothing of what it would have asked for
		l.adopt(one)
	case one.err == nil:
		n := l.c.answered(one.lease, one.answer.sent)
		l.renewed(one.lease, n)
		l.tellOthers(one.lease, n)
		one.call.gone(false)
		t.supersede(one)
		return true
	case l.dropLost(one.err) || l.fewerThan(one.names, one.err): // in this order: its stream may say the same, and drops it, too
	default:
		l.finish(one.err)
	}
	return false
}

// tellOthers tells the other Leases of this client with its lease id, and no other names, of its renewal. One that is
// not renewed lives no longer for that.
func (l *Lease) tellOthers(g granted, n news) {
	names := l.held()
	for _, other := range l.c.own(l.id, names) {
		if other != l && containsAll(names, other.held()) && !(other.unkept && n.remaining(n.read) >= other.Remaining()) {
			other.renewed(g, n)
		}
	}
}

// ask begins to renew the lease once more, and waits for an answer.
func (l *Lease) ask(t *attempts, within time.Duration) (*attempt, error) {
	names := l.held()
	one := &attempt{names: len(names)}
	ttl := l.renewsFor()
	r, err := renewalCall(&one.lease, l.id, names, renewRequest{TTL: l.ttlToSend(ttl)})
	if err != nil {
		return nil, err
	}
	one.call = r
	one.call.kind = toRenew
	one.call.gone = l.asking(ttl)
	t.start(one, l.reclaim)
	heard, err := t.next(within, nil)
	if refuses(err, "ttl_ms") {
		l.notRenewedWith(ttl)
	}
	return heard, err
}

// reclaim takes a lease over that hangs on a stream which is of no use any more. A refusal of that, but for a loss or
// one that another gateway may not give, keeps nobody from renewing it. That one of several names was released, and not
// by this client meanwhile, is no loss yet: the renewal says which.
func (l *Lease) reclaim(ctx context.Context, one *attempt) error {
	if !l.detached.Load() {
		return nil
	}
	names := len(l.held())
	err := l.takeOver(ctx, one)
	if err == nil || toAsk.fate(err).patient() && outcomeOf(err) != tooMany {
		return err
	}
	if errors.Is(err, CodeLeaseLost) && (refusal(err).Reason != ReasonReleased || names == 1 || l.fewerThan(names, err)) {
		return err
	}
	if _, counted := l.look(l.c.now()); !counted && !errors.Is(err, CodeLeaseLost) {
		return err // a renewal would be no reason to count on it
	}
	return nil
}

// Release lets go of the lease: its context is cancelled, and others may have the lock. It may be called twice. nil
// means that the lease was held until now. An *Error with CodeLeaseLost means that it had been lost before; with
// CodeReplaced that a newer request has it, so nothing is released.
// ErrUnreachable, and a refusal that all gateways give, such as CodeUnauthenticated, mean that nobody could be told, so
// that the lease ends by its TTL. After anything but nil and CodeLeaseLost another call tries again. It asks one gateway
// after the other, for 5 s at most, and 2 s more if the context ends meanwhile: a lease is released although the context
// has ended, as in a deferred call. With AtLeast others may have the lock only when that time is over.
func (l *Lease) Release(ctx context.Context) error {
	l.mu.Lock()
	if l.freed == nil {
		l.freed = sync.OnceValue(func() error {
			err := l.release(ctx)
			if err != nil && !errors.Is(err, CodeLeaseLost) {
				l.mu.Lock()
				defer l.mu.Unlock()
				l.freed = nil
			}
			return err
		})
	}
	freed := l.freed
	l.mu.Unlock()
	return freed()
}

func (l *Lease) release(ctx context.Context) error {
	timeout := releaseTimeout
	if l.mayBeGone() {
		timeout = lateReleaseTimeout
	}
	l.mu.Lock()
	before := l.over
	l.mu.Unlock()
	l.finish(ErrReleased)
	l.mu.Lock()
	lost, owed := l.over, l.owed
	l.mu.Unlock()
	others := l.c.own(l.id, l.held())
	if len(others) > 0 && before != nil && before != ErrReleased { // they were acquired since, or have not heard yet
		if lost = before; !errors.Is(lost, CodeLeaseLost) {
			lost = replacedHere()
		}
		l.keeper.Wait()
		return lost
	}
	if errors.Is(lost, CodeReplaced) { // it is the newer one's
		l.keeper.Wait()
		return lost
	}
	for _, other := range others {
		other.givesUp(l.held())
	}
	l.keeper.Wait()
	err := lost
	if !errors.Is(lost, CodeLeaseLost) || errors.Is(lost, ErrMaxHold) || errors.Is(lost, ErrNoticeOver) || len(l.held()) > 1 {
		err = l.releaseHeld(ctx, timeout)
	}
	if len(owed) == 0 {
		return err
	}
	paid := outlive(ctx, func(ctx context.Context, patience time.Duration) error {
		limited, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		return l.c.release(limited, cmp.Or(patience, min(timeout, l.c.options.Patience)), l.id, owed)
	})
	if err == nil && !errors.Is(paid, CodeLeaseLost) {
		err = paid
	}
	return err
}

// releaseHeld releases what the lease has, or has it live for what is left of AtLeast.
func (l *Lease) releaseHeld(ctx context.Context, timeout time.Duration) error {
	return outlive(ctx, func(ctx context.Context, patience time.Duration) error {
		limited, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		patience = cmp.Or(patience, min(timeout, l.c.options.Patience))
		if left := l.leftOfLeast(); left > 0 {
			return l.leave(limited, patience, left)
		}
		return l.c.release(limited, patience, l.id, l.held())
	})
}

// mayBeGone reports whether the lease's time may have run out, whatever became of its stream.
func (l *Lease) mayBeGone() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.news.remaining(l.c.now()) <= 0
}
