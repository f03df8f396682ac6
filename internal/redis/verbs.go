package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"fencepost/internal/fencing"
)

var errTooLate = errors.New("redis: the answer took so long that nothing was left of the lease")

// Acquire is fencing.Store.Acquire.
func (s *Store) Acquire(ctx context.Context, r fencing.AcquireRequest) (fencing.Outcome, error) {
	tail, err := encodeTail(&r)
	if err != nil {
		return fencing.Outcome{}, err
	}
	if r.Wait > 0 {
		_ = s.listening(ctx) // without it, heartbeats find what was not heard
	}
	out, err := s.ask(ctx, &r, tail)
	if !out.AskAgain() || s.options.stepLimit != 0 {
		return out, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.options.OperationTimeout, errBudget)
	defer cancel()
	for out.AskAgain() {
		if err := s.handOffs.wait(ctx, r.Name); err != nil {
			return fencing.Outcome{}, s.unavailable(err)
		}
		out, err = s.ask(ctx, &r, tail)
	}
	return out, err
}

// ask runs acquire.lua once.
func (s *Store) ask(ctx context.Context, r *fencing.AcquireRequest, tail string) (fencing.Outcome, error) {
	c := s.newLeaseCommand(acquireScript, r.Name, r.Lease.Public())
	c.claim, c.tail, c.hold = appendAsk(encodeClaim(c.claim, r.Lease, r.Stamp), r), tail, r.Hold
	c.ttl = r.TTL.Microseconds()
	if r.MaxHold > 0 {
		c.ttl = min(c.ttl, r.MaxHold.Microseconds())
	}
	return s.lease(ctx, c, r)
}

// Renew is fencing.Store.Renew.
func (s *Store) Renew(ctx context.Context, r fencing.RenewRequest) (fencing.Outcome, error) {
	c := s.newLeaseCommand(renewScript, r.Name, r.Lease.Public())
	c.claim, c.ttl = encodeHolder(c.claim, r.Lease), r.TTL.Microseconds()
	switch r.Mode {
	case fencing.ModeExclusive:
		c.mode = "x"
	case fencing.ModeShared:
		c.mode = "s" + strconv.Itoa(r.Limit)
	}
	return s.lease(ctx, c, nil)
}

// Release is fencing.Store.Release.
func (s *Store) Release(ctx context.Context, r fencing.ReleaseRequest) (fencing.Outcome, error) {
	c := s.newLeaseCommand(releaseScript, r.Name, r.Lease.Public())
	if c.claim = encodeHolder(c.claim, r.Lease); r.Hold > 1 || r.Stamp != "" {
		c.claim = appendUnwind(c.claim, &r)
	}
	return s.run(ctx, c).result()
}

// Confirm is fencing.Store.Confirm.
func (s *Store) Confirm(ctx context.Context, r fencing.ConfirmRequest) (fencing.Outcome, error) {
	c := s.newLeaseCommand(confirmScript, r.Name, r.Lease.Public())
	c.claim = encodeClaim(c.claim, r.Lease, r.Stamp)
	return s.lease(ctx, c, nil)
}

// Leave is fencing.Store.Leave.
func (s *Store) Leave(ctx context.Context, r fencing.LeaveRequest) (fencing.Outcome, error) {
	c := s.newLeaseCommand(leaveScript, r.Name, r.Lease.Public())
	c.claim = encodeClaim(c.claim, r.Lease, r.Stamp)
	a := s.run(ctx, c)
	if a.err == nil && a.Err == nil && (a.shown.record != nil || a.Place != nil) {
		a.Lock = a.shown.lock(r.Name, a.Now)
	}
	return a.result()
}

// TakeBack is fencing.Store.TakeBack.
func (s *Store) TakeBack(ctx context.Context, r fencing.TakeBackRequest) (fencing.Outcome, error) {
	c := s.newLeaseCommand(takeBackScript, r.Name, r.Lease.Public())
	c.claim = encodeClaim(c.claim, r.Lease, r.Stamp)
	switch {
	case r.Provisional:
		c.claim = append(c.claim, 'p')
	case r.Refused:
		c.claim = append(c.claim, 'r')
	}
	return s.run(ctx, c).result()
}

// Break is fencing.Store.Break.
func (s *Store) Break(ctx context.Context, r fencing.BreakRequest) (fencing.Outcome, error) {
	c := s.newCommand(breakScript, r.Name)
	c.claim = fmt.Appendf(c.claim[:0], "%016d", r.Token)
	return s.run(ctx, c).result()
}

// Claim is fencing.Node.Claim.
func (s *Store) Claim(ctx context.Context, r fencing.ClaimRequest) (fencing.Outcome, error) {
	c := s.newLeaseCommand(claimScript, r.Name, r.Lease.Public())
	c.claim, c.tail = encodeHolder(c.claim, r.Lease), fmt.Sprintf("%016d", r.Token)
	return s.lease(ctx, c, nil)
}

// Inspect is fencing.Store.Inspect.
func (s *Store) Inspect(ctx context.Context, r fencing.InspectRequest) (fencing.Outcome, error) {
	c := s.newCommand(inspectScript, r.Name)
	c.most, c.shown = fencing.MaxWaitersShown, int64(cmp.Or(r.Holders, fencing.MaxHoldersShown))
	a := s.run(ctx, c)
	if a.err == nil {
		a.Lock = a.shown.lock(r.Name, a.Now)
	}
	return a.result()
}

// History is fencing.Store.History. Where a partition has more names with a
// history than MAX_HISTORIES in record.lua, that of others is lost.
func (s *Store) History(ctx context.Context, r fencing.HistoryRequest) (fencing.Outcome, error) {
	c := s.newCommand(historyScript, r.Name)
	c.most, c.shown = fencing.MaxHistory, int64(cmp.Or(r.Holders, fencing.MaxHoldersShown))
	a := s.run(ctx, c)
	if a.err != nil {
		return a.result()
	}
	a.Past, a.Ended = a.shown.past(r.Name, a.Ended, a.Now), nil
	a.Lock = a.shown.lock(r.Name, a.Now)
	return a.result()
}

// past returns what the history shows, newest first; ended are the last ends,
// oldest first.
func (v *view) past(name fencing.Name, ended []fencing.Ended, now fencing.Instant) []fencing.Ended {
	if v.forgotten(now) {
		return nil
	}
	var past []fencing.Ended
	for _, h := range v.holdings() {
		if !h.Provisional && !h.Live(now) { // ran out, and nobody has noticed yet
			past = append(past, fencing.Ended{Name: name, Holder: h.Holder, Reason: fencing.ReasonExpired, At: h.ExpiresAt})
		}
	}
	slices.SortFunc(past, func(a, b fencing.Ended) int { return cmp.Compare(b.Holder.Token, a.Holder.Token) })
	for i := len(ended) - 1; i >= 0; i-- {
		if ended[i].Holder.AcquiredAt >= v.record.born { // others are of before the name was forgotten
			past = append(past, ended[i])
		}
	}
	return past[:min(len(past), fencing.MaxHistory)]
}

// answer is what a command came to.
type answer struct {
	fencing.Outcome
	shown   view // what the script showed of the name
	granted grant
	took    time.Duration // since it was sent
	err     error         // the store could not be asked
	missed  bool          // an attempt before had no answer
}

func (a answer) result() (fencing.Outcome, error) {
	if a.err != nil {
		return fencing.Outcome{}, a.err
	}
	return a.Outcome.Result()
}

// lease runs a command, which is not to be used afterwards, whose success is a
// lease, or a place; asked is what an acquire asked for. A lease that is over by the time the answer is here is not
// handed on: P9.
func (s *Store) lease(ctx context.Context, c *command, asked *fencing.AcquireRequest) (fencing.Outcome, error) {
	a := s.run(ctx, c)
	if a.err == nil && a.Err != nil && asked != nil && a.missed {
		refusal := *a.Err
		refusal.Unanswered = true
		a.Err = &refusal
	}
	if a.err != nil || a.Err != nil {
		return a.result()
	}
	switch {
	case a.granted.token != 0 && asked != nil:
		a.Holder = fencing.Holder{
			Lease: asked.Lease.Public(), Owner: asked.Owner, Metadata: asked.Metadata,
			Mode: fencing.ModeExclusive, Limit: 1, Slot: fencing.NoSlot, Hold: 1, Token: a.granted.token,
			TTL: asked.TTL, GrantTTL: asked.TTL, MaxHold: asked.MaxHold, AcquiredAt: a.Now, ExpiresAt: a.granted.expiresAt,
			Claimed: asked.Wait == 0 && a.granted.token == asked.Propose, // what it issues itself is never the one it refuses
		}
		a.Granted = []fencing.Grant{{Name: asked.Name, Holder: a.Holder, Gateway: fencing.Gateway(s.handle), Stamp: asked.Stamp, Secret: asked.Lease.Hash()}}
	case a.Holder.Token != 0:
	case a.Place != nil:
		a.Lock = a.shown.lock(asked.Name, a.Now)
		return a.result()
	case a.shown.record != nil && len(a.shown.record.holdings) == 1:
		a.Holder = a.shown.record.holdings[0].Holder
	default:
		return fencing.Outcome{}, fencing.Unavailable(errReply)
	}
	s.sentry.uses(a.Holder.TTL)
	if !a.Holder.Provisional && a.took >= a.Holder.ExpiresAt.Sub(a.Now) {
		return fencing.Outcome{}, fencing.Unavailable(errTooLate)
	}
	return a.result()
}

// run runs a command and lets go of it.
func (s *Store) run(ctx context.Context, c *command) answer {
	r, err := s.do(ctx, c)
	if err != nil {
		return answer{err: err}
	}
	defer s.free(c)
	a := answer{took: s.options.Clock().Sub(c.sentAt), granted: r.granted, shown: r.shown, missed: c.missed}
	a.Outcome = fencing.Outcome{
		Now: r.now, Fresh: r.fresh, Ended: r.ended, Granted: r.grants, Joined: r.joined,
		Left: r.left, More: r.more, Replaced: r.replaced, Place: r.place, Asked: c.sentAt,
	}
	if c.script == renewScript {
		a.Margin = r.span
	}
	if r.holder != nil {
		a.Holder = r.holder.Holder
	}
	if r.code != fencing.CodeOK {
		a.Err = s.refusal(c, &r)
	}
	return a
}

// Stats is fencing.Store.Stats. It asks every partition, in one round trip to each master.
func (s *Store) Stats(ctx context.Context) (fencing.Stats, error) {
	held, err := s.countHeld(ctx)
	if err != nil {
		return fencing.Stats{}, err
	}
	return fencing.Stats{Held: held, Quarantine: s.sentry.quarantine(fencing.InstantOf(s.options.Clock()))}, nil
}

// Check is fencing.Store.Check: every master answers. It also returns
// CodeClockSkew: a store whose clock differs grants nothing.
func (s *Store) Check(ctx context.Context) error {
	err := s.checkNodes(ctx)
	if err == nil && s.options.Member && !s.options.Passive { // who only looks sees that it is blank
		err = s.admitted(ctx)
	}
	return err
}
