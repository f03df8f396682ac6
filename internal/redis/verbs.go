package redis

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"fencepost/internal/fencing"
)

var errTooLate = errors.New("redis: the answer took longer than the lease had left")

// Capabilities is fencing.Store.Capabilities.
func (s *Store) Capabilities() fencing.Capabilities {
	return fencing.Capabilities{Queue: true, LosesMessages: true, LosesGrants: true, Tells: true}
}

// Do is fencing.Store.Do. Where more names than maxHistories have a history, that of others is
// lost.
func (s *Store) Do(ctx context.Context, op fencing.Op) (fencing.Outcome, error) {
	switch r := op.(type) {
	case fencing.AcquireRequest:
		return s.acquire(ctx, &r)
	case fencing.RenewRequest:
		return s.renew(ctx, &r)
	case fencing.ConfirmRequest:
		return s.lease(ctx, s.newLeaseCommand(confirmVerb, r.Name, r.Lease, r.Stamp))
	case fencing.ClaimRequest:
		return s.lease(ctx, s.newCommand(operation{verb: claimVerb, name: r.Name, lease: r.Lease.Public(), secret: r.Lease.Hash(), token: r.Token}, nil))
	case fencing.InspectRequest:
		return s.lookAt(ctx, inspectVerb, r.Name, r.Holders)
	case fencing.HistoryRequest:
		return s.lookAt(ctx, historyVerb, r.Name, r.Holders)
	}
	c := s.newPlainCommand(op)
	if c == nil {
		return fencing.Outcome{}, fencing.UnservedError(op)
	}
	return s.run(ctx, c).result()
}

// newPlainCommand prepares an operation whose success needs no lease in the answer; nil if
// it is none of these.
func (s *Store) newPlainCommand(op fencing.Op) *command {
	switch r := op.(type) {
	case fencing.ReleaseRequest:
		return s.newCommand(operation{
			verb: releaseVerb, name: r.Name, lease: r.Lease.Public(), secret: r.Lease.Hash(), stamp: r.Stamp, hold: r.Hold, ttl: r.Linger, epoch: r.Epoch,
		}, nil)
	case fencing.LeaveRequest:
		return s.newLeaseCommand(leaveVerb, r.Name, r.Lease, r.Stamp)
	case fencing.TakeBackRequest:
		return s.newCommand(operation{
			verb: takeBackVerb, name: r.Name, lease: r.Lease.Public(), secret: r.Lease.Hash(), stamp: r.Stamp, unknown: r.Unknown, refused: r.Refused, left: r.Left, ttl: r.Linger, epoch: r.Epoch,
		}, nil)
	case fencing.BreakRequest:
		return s.newCommand(operation{verb: breakVerb, name: r.Name, token: r.Token, breakReason: r.BreakReason, notice: r.Notice}, nil)
	case fencing.EvictRequest:
		return s.newCommand(operation{verb: evictVerb, name: r.Name, lease: r.Waiter, breakReason: r.BreakReason}, nil)
	case fencing.AdmitRequest:
		return s.newCommand(operation{verb: admitVerb, name: r.Name, token: r.Token, slot: r.Slot, claimed: r.Claimed}, nil)
	case fencing.JudgeRequest:
		return s.newCommand(operation{verb: judgeVerb, name: r.Name, token: r.Token, claimed: r.Claimed}, nil)
	}
	return nil
}

func (s *Store) acquire(ctx context.Context, r *fencing.AcquireRequest) (fencing.Outcome, error) {
	if err := checkTexts(r); err != nil {
		return fencing.Outcome{}, err
	}
	if r.Wait > 0 {
		_ = s.awaitSubscription(ctx) // without it, heartbeats find what was not heard
	}
	out, err := s.ask(ctx, r)
	if !out.AskAgain() || s.options.stepLimit != 0 {
		return out, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.options.OperationTimeout, errBudget)
	defer cancel()
	for out.AskAgain() {
		if err := s.handOffs.wait(ctx, r.Name); err != nil {
			return fencing.Outcome{}, s.unavailable(err)
		}
		out, err = s.ask(ctx, r)
	}
	return out, err
}

// ask asks once.
func (s *Store) ask(ctx context.Context, r *fencing.AcquireRequest) (fencing.Outcome, error) {
	return s.lease(ctx, s.newAcquireCommand(r))
}

func (s *Store) newAcquireCommand(r *fencing.AcquireRequest) *command {
	place := placeOf(r)
	return s.newCommand(operation{
		verb: acquireVerb, name: r.Name, lease: place.Lease, secret: place.Secret, stamp: r.Stamp, mode: r.Mode, limit: r.Limit, permits: r.Permits, hold: r.Hold,
		token: r.Propose, claimed: r.Claimed, waits: r.Wait > 0, again: r.Again, maxWaiters: r.MaxWaiters, intent: r.Intent, epoch: r.Epoch,
	}, func(w *codec) { w.lease(&place) })
}

// placeOf returns the place that a request asks for; the library adds whose it is, and
// when it was joined.
func placeOf(r *fencing.AcquireRequest) fencing.Holding {
	h := fencing.Holding{
		Holder: fencing.Holder{
			Lease: r.Lease.Public(), Owner: r.Owner, Metadata: fencing.LabelsOf(r.Metadata), Mode: cmp.Or(r.Mode, fencing.ModeExclusive), Limit: r.Limit,
			Permits: max(1, r.Permits), Slot: fencing.NoSlot, Hold: 1, TTL: r.TTL, MaxHold: r.MaxHold, LockDelay: r.LockDelay,
		},
		Secret: r.Lease.Hash(), Stamp: r.Stamp, Set: r.Set, Keep: r.Keep && r.Wait > 0,
	}
	if h.Mode == fencing.ModeExclusive {
		h.Limit = 1
	}
	if r.Attach {
		h.Attached = r.Stamp
	}
	return h
}

// checkTexts refuses what could not be told from its end in Redis, where texts end with
// a zero byte.
func checkTexts(r *fencing.AcquireRequest) error {
	for _, field := range []struct{ name, text string }{{"owner", r.Owner}, {"names", r.Set}, {"stamp", string(r.Stamp)}} {
		if strings.IndexByte(field.text, 0) >= 0 {
			return zeroByte(field.name)
		}
	}
	if r.Lease.IsZero() {
		return &fencing.Error{Code: fencing.CodeInvalidRequest, Field: "Lease-Id", Detail: "Lease-Id is missing"}
	}
	return nil
}

func zeroByte(field string) error {
	return &fencing.Error{Code: fencing.CodeInvalidRequest, Field: field, Detail: field + " has a zero byte"}
}

func (s *Store) renew(ctx context.Context, r *fencing.RenewRequest) (fencing.Outcome, error) {
	var labels func(*codec)
	if r.Owner != "" || r.Metadata != nil {
		if strings.IndexByte(r.Owner, 0) >= 0 {
			return fencing.Outcome{}, zeroByte("owner")
		}
		owner, metadata := r.Owner, r.Metadata
		labels = func(w *codec) { w.labels(&owner, &metadata) }
	}
	return s.lease(ctx, s.newCommand(operation{
		verb: renewVerb, name: r.Name, lease: r.Lease.Public(), secret: r.Lease.Hash(), stamp: r.Stamp, mode: r.Mode, limit: r.Limit, permits: r.Permits, ttl: r.TTL, epoch: r.Epoch,
	}, labels))
}

// newViewCommand prepares what shows a name, with at most so many holders.
func (s *Store) newViewCommand(v verb, name fencing.Name, holders int) *command {
	return s.newCommand(operation{verb: v, name: name, limit: cmp.Or(holders, fencing.MaxHoldersShown)}, nil)
}

// lookAt runs what shows a name and who held it.
func (s *Store) lookAt(ctx context.Context, v verb, name fencing.Name, holders int) (fencing.Outcome, error) {
	a := s.run(ctx, s.newViewCommand(v, name, holders))
	if slices.Reverse(a.Ended); len(a.Ended) > 0 {
		a.Past = a.Ended[:min(len(a.Ended), fencing.MaxHistory)]
	}
	a.Ended = nil
	return a.result()
}

// answer is what a command came to.
type answer struct {
	fencing.Outcome
	took      time.Duration // since it was sent
	err       error         // the store could not be asked
	uncertain bool          // an attempt before had no answer
}

func (a answer) result() (fencing.Outcome, error) {
	if a.err != nil {
		return fencing.Outcome{}, a.err
	}
	return a.Outcome.Result()
}

// lease runs a command, which is not to be used afterwards, whose success is a
// lease, or a place. A lease that is over by the time the answer is here is not
// handed on: P9.
func (s *Store) lease(ctx context.Context, c *command) (fencing.Outcome, error) {
	acquires := c.verb == acquireVerb
	a := s.run(ctx, c)
	switch {
	case a.err != nil:
		return a.result()
	case a.Err != nil:
		if acquires && a.uncertain {
			refusal := *a.Err
			refusal.Unanswered = true
			a.Err = &refusal
		}
		return a.result()
	case a.Holder.Token == 0 && a.Place != nil:
		return a.result()
	case a.Holder.Token == 0:
		return fencing.Outcome{}, fencing.Unavailable(errReply)
	}
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
	a := answer{took: s.options.Clock().Sub(c.sentAt), uncertain: c.uncertain}
	a.Outcome = fencing.Outcome{
		Now: r.now, Fresh: r.fresh, Ended: r.ended, Granted: r.grants, Joined: r.joined,
		Left: r.left, More: r.more, Evicted: r.evicted, Replaced: r.replaced, Place: r.place, Asked: c.sentAt,
	}
	if r.holder != nil {
		a.Holder = *r.holder
	}
	switch {
	case r.code != fencing.CodeOK:
		a.Err = s.refusal(c, r)
	case c.verb == renewVerb:
		a.Margin = r.span()
	case c.verb == admitVerb, c.verb == judgeVerb:
		a.Fence = r.fence()
	case r.place != nil, r.shows, c.verb == inspectVerb, c.verb == historyVerb:
		a.Lock = &r.lock
	}
	return a
}

// Stats is fencing.Store.Stats. It asks every partition, in one round trip to each master.
func (s *Store) Stats(ctx context.Context) (fencing.Stats, error) {
	held, err := s.countHeld(ctx)
	if err != nil {
		return fencing.Stats{}, err
	}
	return fencing.Stats{Held: held, Quarantine: s.guards.quarantine(fencing.InstantOf(s.options.Clock()))}, nil
}

// Check is fencing.Store.Check: every master answers. It also returns
// CodeClockSkew: a store whose clock differs grants nothing.
func (s *Store) Check(ctx context.Context) error {
	err := s.checkNodes(ctx)
	if err == nil && s.options.Member && !s.options.Passive { // who only looks sees that it is not
		var m fencing.Memory
		if m, err = s.Memory(ctx); err == nil && !m.InService {
			err = &fencing.Error{Code: fencing.CodeQuarantined, Detail: "the node is not in service yet"}
		}
	}
	return err
}
