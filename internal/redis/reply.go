package redis

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"fencepost/internal/fencing"
)

// reply is what an operation came to: item.go says of what it is made.
type reply struct {
	replyHead
	now       fencing.Instant
	skewed    bool // the clocks differ
	fresh     bool
	joined    bool
	shows     bool         // lock belongs to the answer
	unguarded bool         // the partition has no guard, or one of another server than the header
	more      bool         // what has come due is more than one step does
	behind    bool         // the store issued no token as high as the floor
	forgot    bool         // places of the name were forgotten
	lost      bool         // leases of the name were lost
	lock      fencing.Lock // the public view of the name, empty if it was not shown

	holder   *fencing.Holder // the caller's
	place    *fencing.Waiter
	ended    []fencing.Ended
	grants   []fencing.Grant
	left     []fencing.Waiter
	evicted  *fencing.Eviction
	replaced *fencing.Parked
	entries  []fencing.Entry // of a heartbeat: what there is for the gateway
	last     string          // of them, as it is stored
	due      []fencing.Name
	guard    guard // of an arrival
}

// codeFailed is the code of an operation that broke off.
const codeFailed fencing.Code = "failed"

// Reasons of clock_skew beside a difference of the clocks, and what an
// invalid_request is about.
const (
	reasonFloor     = "floor"
	reasonExhausted = "exhausted"
	aboutHold       = "hold"
	aboutNames      = "names"
	aboutMode       = "mode"
	aboutLimit      = "limit"
	aboutLowLimit   = "low_limit"
	aboutPermits    = "permits"
	aboutSlot       = "slot"
)

var errReply = errors.New("redis: an answer can't be read")

// operationError is why an operation broke off: Redis says so of one among others.
type operationError string

func (e operationError) Error() string { return string(e) }

// RedisError makes it an error of Redis.
func (operationError) RedisError() {}

// decodeReply reads the answer of a command.
func decodeReply(c *command) (*reply, error) {
	r := &reply{now: c.now, skewed: c.skewed, lock: fencing.Lock{Name: c.name, Now: c.now}}
	in := codec{rest: c.answer}
	in.reply(&r.replyHead)
	for in.rest != "" && !in.bad {
		tag := in.rest[0]
		in.rest = in.rest[1:]
		r.item(&in, c.name, tag)
	}
	switch {
	case in.bad:
		return nil, errReply
	case r.code == codeFailed:
		return nil, operationError(r.text)
	}
	has := func(flag string) bool { return strings.Contains(r.flags, flag) }
	r.fresh, r.joined, r.shows = has(flagFresh), has(flagJoined), has(flagView)
	r.unguarded, r.more, r.behind = has(flagUnguarded), has(flagMore), has(flagBehind)
	r.forgot, r.lost = has(flagPlacesLost), has(flagLeasesLost)
	if own := slices.IndexFunc(r.grants, func(g fencing.Grant) bool { return g.Holder.Lease == c.lease }); own >= 0 && r.holder == nil && c.verb == acquireVerb && r.code == fencing.CodeOK {
		r.holder = &r.grants[own].Holder
	}
	if len(r.lock.Holders) > 1 {
		slices.SortFunc(r.lock.Holders, func(a, b fencing.Holder) int { return cmp.Compare(a.Token, b.Token) })
	}
	return r, nil
}

// item reads one of the items of a reply, behind its letter.
func (r *reply) item(in *codec, name fencing.Name, tag byte) {
	if tag == itemEntry { // there may be many
		from := in.rest
		r.entries = append(r.entries, fencing.Entry{})
		in.entry(&r.entries[len(r.entries)-1])
		r.last = from[:len(from)-len(in.rest)]
		return
	}
	var h fencing.Holding
	switch tag {
	case itemView:
		in.view(&r.lock)
	case itemDelay:
		number(in, "", &r.lock.DelayedUntil)
	case itemHolder:
		if in.lease(&h); h.Provisional {
			h.ExpiresAt = r.now.Add(h.TTL)
		}
		r.lock.Holders = append(r.lock.Holders, h.Holder)
	case itemWaiter:
		in.lease(&h)
		r.lock.Waiters = append(r.lock.Waiters, waiter(&h, r.now, len(r.lock.Waiters)+1))
	case itemOwnLease:
		in.lease(&h)
		r.holder = &h.Holder
	case itemOwnPlace:
		var position int
		small(in, "", &position)
		in.lease(&h)
		place := waiter(&h, r.now, position)
		r.place = &place
	case itemGrant:
		r.grants = append(r.grants, in.grant(name))
	case itemEnd:
		r.ended = append(r.ended, in.end(name))
	case itemLeft:
		in.lease(&h)
		r.left = append(r.left, waiter(&h, r.now, 0))
	case itemEvicted:
		r.evicted = in.eviction(r.now)
	case itemReplaced:
		r.replaced = &fencing.Parked{}
		word(in, "", &r.replaced.Gateway)
		word(in, "", &r.replaced.Stamp)
	case itemDue:
		var of fencing.Name
		word(in, "", &of)
		r.due = append(r.due, of)
	case itemGuard:
		in.guard(&r.guard)
	default:
		in.bad = true
	}
}

// waiter returns the public view of a place.
func waiter(h *fencing.Holding, now fencing.Instant, position int) fencing.Waiter {
	w := fencing.Waiter{Lease: h.Lease, Owner: h.Owner, Mode: h.Mode, Permits: h.Permits, Position: position, Waiting: now.Sub(h.JoinedAt)}
	if h.Mode == fencing.ModeShared {
		w.Limit = h.Limit
	}
	return w
}

// eviction reads a place that was taken away, behind the reason.
func (c *codec) eviction(now fencing.Instant) *fencing.Eviction {
	var h fencing.Holding
	e := &fencing.Eviction{}
	word(c, "", &e.Reason)
	c.lease(&h)
	e.Waiter = waiter(&h, now, 0)
	if h.ExpiresAt == 0 { // else it rested
		e.Request = &fencing.Parked{Gateway: h.Gateway, Stamp: h.Stamp}
	}
	return e
}

func (c *codec) grant(name fencing.Name) fencing.Grant {
	var h fencing.Holding
	c.lease(&h)
	return h.Grant(name)
}

func (c *codec) end(name fencing.Name) fencing.Ended {
	e := fencing.Ended{Name: name}
	var h fencing.Holding
	c.ended(&e)
	c.over(&h)
	e.Holder = h.Holder
	return e
}

// span returns the number of a reply as µs.
func (r *reply) span() time.Duration { return time.Duration(r.number) * time.Microsecond }

// fence returns the fence that an admit or a judge has found or left.
func (r *reply) fence() *fencing.Fence {
	return &fencing.Fence{Verdict: fencing.Verdict(r.text), HighestIssued: fencing.Token(r.number), HighestAdmitted: r.token}
}

// refusal returns the error of a reply that is not ok, as Step would.
func (s *Store) refusal(c *command, r *reply) *fencing.Error {
	switch r.code {
	case fencing.CodeClockSkew:
		switch r.text {
		case reasonFloor:
			return fencing.FloorError()
		case reasonExhausted:
			return fencing.ExhaustedError()
		}
		return fencing.SkewError(fencing.Guard{Sent: c.sent, MaxSkew: s.options.MaxSkew}, r.now)
	case fencing.CodeLeaseLost:
		err := fencing.LostError(fencing.Reason(r.text))
		err.Late, err.CurrentToken, err.BreakReason = r.span(), r.token, r.present
		return err
	case fencing.CodeLocked, fencing.CodeTooManyRequests:
		err := fencing.LockedError(r.code, &r.lock)
		err.Position = int(r.number)
		return err
	case fencing.CodeNotFound:
		return fencing.NoWaiterError()
	case fencing.CodeConflict:
		if c.verb == evictVerb {
			return fencing.HoldsError(r.token)
		}
		switch r.text {
		case aboutMode:
			r.present = string(modeOf(int(r.number)))
		case aboutLimit, aboutPermits:
			r.present = fmt.Sprint(r.number)
		}
		return fencing.ConflictError(r.text, r.present)
	case fencing.CodeReplaced:
		return fencing.ReplacedError()
	case fencing.CodeQuarantined:
		return fencing.QuarantineError(r.span())
	case fencing.CodeStaleToken:
		switch c.verb {
		case admitVerb:
			return fencing.NotAdmittedError(c.token, r.fence())
		case claimVerb:
			return fencing.ClaimError(r.token)
		}
		return fencing.NoHolderError(c.token, &r.lock)
	case fencing.CodeInvalidRequest:
		switch r.text {
		case aboutHold:
			return fencing.HoldError(c.hold, int(r.number))
		case aboutNames:
			return fencing.OtherNamesError()
		case aboutMode:
			return fencing.UpgradeError()
		case aboutLimit:
			return fencing.LimitError(c.limit, int(r.number))
		case aboutLowLimit:
			return fencing.LowLimitError(c.limit, int(r.number))
		case aboutPermits:
			return fencing.PermitsError(c.permits, int(r.number))
		case aboutSlot:
			return fencing.SlotError(c.slot)
		}
	}
	return fencing.Unavailable(fmt.Errorf("redis: an operation returned the code %q (%s)", r.code, r.text))
}
