package fencingtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"fencepost/internal/fencing"
)

// result is what a store answered to a command.
type result struct {
	now        fencing.Instant
	out        fencing.Outcome
	page       fencing.ListPage
	expiry     fencing.Expiry
	stats      fencing.Stats
	quarantine fencing.Quarantine // arrive
	heard      []message          // heard: what the gateway was told since it was last asked
	entries    []fencing.Entry    // heartbeat: what there is for the gateway
	err        *fencing.Error

	undone []undo // what the model took back
}

// undo is a grant that was taken back.
type undo struct {
	name  fencing.Name
	lease fencing.LeasePublic
}

// undone returns the grants that a step may have taken back.
func undone(name fencing.Name, out *fencing.Outcome) []undo {
	var all []undo
	for i := range out.Left {
		all = append(all, undo{name, out.Left[i].Lease})
	}
	return all
}

func (r *result) code() fencing.Code {
	if r.err == nil {
		return fencing.CodeOK
	}
	return r.err.Code
}

// lock returns the view that the answer carries, or nil.
func (r *result) lock() *fencing.Lock {
	if r.err != nil {
		return r.err.Lock
	}
	return r.out.Lock
}

// fence returns the fence that the answer tells of, or nil.
func (r *result) fence() *fencing.Fence {
	if r.err != nil {
		return r.err.Fence
	}
	return r.out.Fence
}

// ended returns the leases that the answer says have ended.
func (r *result) ended() []fencing.Ended {
	return slices.Concat(r.out.Ended, r.expiry.Ended)
}

// maxPages bounds a walk through a list and a repeated expire: more would mean
// that the store goes round in circles.
const maxPages = 1000

// ask gives a command to a store. The error is a breach of the interface.
func ask(ctx context.Context, store fencing.Store, c *command, token fencing.Token, now fencing.Instant) (result, error) {
	r := result{now: now}
	var err error
	switch c.verb {
	case "acquire":
		if c.token == "" {
			token = 0
		}
		r.out, err = store.Do(ctx, fencing.AcquireRequest{
			Name: c.name, Lease: leaseOf(c.lease), Stamp: stampOf(c.stampLabel()), Owner: c.owner, Metadata: c.metadata,
			Mode: c.mode, Limit: c.limit, Permits: c.permits, Hold: cmp.Or(c.hold, 1),
			TTL: cmp.Or(c.ttl, defaultTTL), MaxHold: c.maxHold, LockDelay: c.lockDelay,
			Wait: c.wait, Keep: c.keep, Again: c.again, Attach: c.attach, MaxWaiters: c.waiters, Set: c.setName, Intent: c.intent, Propose: token, Claimed: c.claimed, Epoch: c.epoch,
		})
	case "renew":
		r.out, err = store.Do(ctx, fencing.RenewRequest{
			Name: c.name, Lease: leaseOf(c.lease), TTL: c.ttl, Mode: c.mode, Limit: c.limit, Permits: c.permits,
			Owner: c.owner, Metadata: c.metadata, Stamp: optionalStamp(c.stamp), Epoch: c.epoch,
		})
	case "release":
		r.out, err = store.Do(ctx, fencing.ReleaseRequest{
			Name: c.name, Lease: leaseOf(c.lease), Hold: c.hold, Stamp: optionalStamp(c.stamp), Linger: c.linger, Epoch: c.epoch,
		})
	case "confirm":
		r.out, err = store.Do(ctx, fencing.ConfirmRequest{Name: c.name, Lease: leaseOf(c.lease), Stamp: stampOf(c.stamp)})
	case "leave":
		r.out, err = store.Do(ctx, fencing.LeaveRequest{Name: c.name, Lease: leaseOf(c.lease), Stamp: stampOf(c.stamp)})
	case "takeback":
		r.out, err = store.Do(ctx, fencing.TakeBackRequest{
			Name: c.name, Lease: leaseOf(c.lease), Stamp: stampOf(c.stamp), Refused: c.refused, Unknown: c.unknown, Left: c.left, Linger: c.linger, Epoch: c.epoch,
		})
	case "break":
		r.out, err = store.Do(ctx, fencing.BreakRequest{Name: c.name, Token: token, BreakReason: c.breakReason, Notice: c.notice})
	case "evict":
		r.out, err = store.Do(ctx, fencing.EvictRequest{Name: c.name, Waiter: leaseOf(c.lease).Public(), BreakReason: c.breakReason})
	case "claim":
		r.out, err = store.Do(ctx, fencing.ClaimRequest{Name: c.name, Lease: leaseOf(c.lease), Token: token})
	case "admit":
		r.out, err = store.Do(ctx, fencing.AdmitRequest{Name: c.name, Token: token, Slot: c.slot, Claimed: c.claimed})
	case "judge":
		r.out, err = store.Do(ctx, fencing.JudgeRequest{Name: c.name, Token: token, Claimed: c.claimed})
	case "inspect":
		r.out, err = store.Do(ctx, fencing.InspectRequest{Name: c.name, Holders: c.holders})
		if err == nil && r.out.Lock == nil {
			return r, errors.New("no Lock without an error")
		}
	case "history":
		r.out, err = store.Do(ctx, fencing.HistoryRequest{Name: c.name, Holders: c.holders})
		if err == nil && r.out.Lock == nil {
			return r, errors.New("no Lock without an error")
		}
	case "heartbeat":
		err = store.Heartbeat(ctx, c.names)
	case "list":
		err = r.listPages(ctx, store, c)
	case "expire":
		err = r.expire(ctx, store, c)
	case "stats":
		r.stats, err = store.Stats(ctx)
	default:
		return r, fmt.Errorf("no store answers %q", c.verb)
	}
	if admits := c.verb == "admit" || c.verb == "judge"; admits && err == nil && r.out.Fence == nil {
		return r, errors.New("no Fence without an error")
	}
	r.undone = undone(c.name, &r.out)
	if err == nil {
		if r.out.Err != nil {
			return r, fmt.Errorf("Outcome.Err is %v, and the error nil", r.out.Err)
		}
		if r.out.Holder.Token != 0 && r.out.Asked.IsZero() {
			return r, errors.New("an Outcome with a Holder lacks Asked")
		}
		return r, nil
	}
	if b, ok := errors.AsType[breach](err); ok {
		return r, b
	}
	if !errors.As(err, &r.err) {
		return r, fmt.Errorf("the error is a %T, not a *fencing.Error: %w", err, err)
	}
	if !slices.Contains(fencing.Codes(), r.err.Code) {
		return r, fmt.Errorf("the error has the code %q: %w", r.err.Code, err)
	}
	return r, nil
}

// breach is an answer that the interface does not allow, other than an error.
type breach string

func (b breach) Error() string { return string(b) }

func breachf(format string, args ...any) error { return breach(fmt.Sprintf(format, args...)) }

// listPages lists one page, or all when c says to walk.
func (r *result) listPages(ctx context.Context, store fencing.Store, c *command) error {
	req := c.list
	if req.Limit == 0 {
		req.Limit = fencing.MaxListLimit
	}
	for range maxPages {
		page, err := store.List(ctx, req)
		if err != nil {
			return err
		}
		if len(page.Locks) > req.Limit {
			return breachf("a page of %d locks is longer than the limit %d", len(page.Locks), req.Limit)
		}
		if page.Next != "" && !req.Selects() && len(page.Locks) < req.Limit {
			return breachf("a page of %d locks is not full (limit %d), yet there is more", len(page.Locks), req.Limit)
		}
		r.page = fencing.ListPage{Locks: append(r.page.Locks, page.Locks...), Next: page.Next, Total: page.Total}
		if !c.walk || page.Next == "" {
			return nil
		}
		if page.Next <= req.After {
			return breachf("the next page after %q starts at %q: the walk does not go on", req.After, page.Next)
		}
		req.After = page.Next
	}
	return breach("the walk has no end")
}

// expire calls Expire once, or until nothing is due when c says to repeat.
func (r *result) expire(ctx context.Context, store fencing.Store, c *command) error {
	limit := c.limit
	if limit == 0 {
		limit = 1000
	}
	for range maxPages {
		expiry, err := store.Expire(ctx, limit)
		if err != nil {
			return err
		}
		names := map[fencing.Name]bool{}
		for i := range expiry.Ended {
			names[expiry.Ended[i].Name] = true
		}
		if len(names) > limit {
			return breachf("leases on %d names were ended in one call; the limit is %d", len(names), limit)
		}
		if expiry.Next < 0 {
			return breachf("Expiry.Next is %s", expiry.Next)
		}
		expiry.Ended = append(r.expiry.Ended, expiry.Ended...)
		r.expiry = expiry
		if !c.repeat || expiry.Next > 0 || expiry.Standby {
			return nil
		}
	}
	return breach("Expire asks to be called again without end")
}
