package fencing

import (
	"fmt"
	"time"
)

// The refusals that more than one side makes: Step, the stores that are no Step, and the
// watchdog. Each text stands here once.

// LockedError is CodeLocked, or CodeTooManyRequests where as many wait as may. It shows
// who holds the lock, and when that may be over.
func LockedError(code Code, lock *Lock) *Error {
	err := &Error{Code: code, Detail: heldDetail(lock), Lock: lock, RetryAfter: lock.RetryAfter()}
	switch {
	case code == CodeTooManyRequests:
		err.Detail = "the queue of this name is full (FENCEPOST_MAX_WAITERS_PER_NAME)"
	case lock.DelayedUntil != 0:
		err.Detail = "a lease ended without a release, and its lock delay is not over yet"
	}
	return err
}

// heldDetail says what keeps a request from a lock.
func heldDetail(lock *Lock) string {
	taken, limit := 0, 0
	for _, h := range lock.Holders {
		if h.Mode != ModeShared {
			return "the lock is held by somebody else"
		}
		taken += max(1, h.Permits)
		if h.Limit > 0 && (limit == 0 || h.Limit < limit) {
			limit = h.Limit
		}
	}
	switch {
	case lock.HolderCount == 0 && lock.Waiting > 0:
		return "others wait for the lock"
	case lock.HolderCount == 0 || lock.HolderCount > len(lock.Holders):
		return "the lock is held by somebody else"
	case limit > 0:
		return fmt.Sprintf("%d of %d permits are taken", taken, limit)
	case lock.HolderCount == 1:
		return "a shared lease holds the lock"
	}
	return fmt.Sprintf("%d shared leases hold the lock", lock.HolderCount)
}

var lostDetail = map[Reason]string{
	ReasonExpired:    "the lease ran out; nobody has had the lock since",
	ReasonSuperseded: "the lease ran out, and the lock has been granted again since",
	ReasonBroken:     "an administrator broke the lease",
	ReasonReleased:   "the lease was released",
	ReasonEvicted:    "an administrator evicted the request from the queue",
	ReasonUnknown:    "no such lease on this name: it was never granted, its secret is wrong, or it ended too long ago to be remembered",
}

// LostError is CodeLeaseLost for a reason.
func LostError(reason Reason) *Error {
	return &Error{Code: CodeLeaseLost, Reason: reason, Detail: lostDetail[reason]}
}

// ReplacedError is CodeReplaced.
func ReplacedError() *Error {
	return &Error{Code: CodeReplaced, Detail: "a newer request with the same lease id has taken over"}
}

// HoldError refuses the depth of re-entry that was asked for; present is that of the
// lease, 0 if there is none.
func HoldError(asked, present int) *Error {
	if present == 0 {
		return invalid("hold", "is %d; the first acquire must have 1", asked)
	}
	return invalid("hold", "is %d; the lease has a hold of %d, and one request can raise it only by 1", asked, present)
}

// OtherNamesError refuses a lease id that has been used for another set, or for the same one without a stream, if this has one, and the
// other way round.
func OtherNamesError() *Error {
	return invalid("Lease-Id", "was used for another set of names, or for this one in the other way, with or without a stream; use a new lease id for this set")
}

// UpgradeError refuses to make a shared lease exclusive.
func UpgradeError() *Error {
	return invalid("mode", `is "exclusive", but the lease is shared and can't be upgraded; release it and acquire a new one`)
}

// LimitError refuses the limit of a renewal, where present is that of the lease, or 0: a shared
// lease without one gets none, one that has one keeps one (asked is 0), and an exclusive lease
// (present is 1) has one only if it becomes shared.
func LimitError(asked, present int) *Error {
	switch {
	case asked == 0:
		return invalid("limit", `is missing; the lease has a limit of %d, which can be changed but not removed`, present)
	case present == 0:
		return invalid("limit", "is given, but the lease is shared without a limit; release it and acquire one with a limit")
	}
	return invalid("limit", `is only for mode "shared", and the lease is exclusive`)
}

// LowLimitError refuses a limit below the permits that the lease keeps.
func LowLimitError(asked, kept int) *Error {
	return invalid("limit", "is %d; it must be from %d, the permits that the lease keeps, to %d", asked, kept, MaxLimit)
}

// PermitsError refuses a renewal that would take permits: the lease has as many as present.
func PermitsError(asked, present int) *Error {
	return invalid("permits", "is %d; the lease has %d, and a renewal can give permits back but not take more", asked, present)
}

// SlotError refuses a token at the fence of a slot that its live lease does not have.
func SlotError(slot int) *Error {
	return invalid("slot", "is %d, but the lease with this token does not have that slot", slot)
}

// NoHolderError is CodeStaleToken of a break: no live lease has the token.
func NoHolderError(token Token, lock *Lock) *Error {
	return &Error{Code: CodeStaleToken, Detail: fmt.Sprintf("no live lease on this name has the token %d", token), Lock: lock}
}

// HoldsError is CodeConflict of an eviction: the waiter has been granted the lock, with a token.
func HoldsError(token Token) *Error {
	return &Error{
		Code: CodeConflict, Field: "lease", CurrentToken: token,
		Detail: "lease does not wait: it has been granted; to end it, break it with its token",
	}
}

// NoWaiterError is CodeNotFound of an eviction.
func NoWaiterError() *Error {
	return &Error{Code: CodeNotFound, Field: "lease", Detail: "no request with this lease waits for this name"}
}

// ClaimError is CodeStaleToken of a claim; current is what counts instead.
func ClaimError(current Token) *Error {
	return &Error{
		Code: CodeStaleToken, CurrentToken: current,
		Detail: "the token is not the highest here, or the lease already has another one",
	}
}

// FloorError is CodeClockSkew: a token comes from a clock that was wrong (MaxFloorLead).
func FloorError() *Error {
	return &Error{Code: CodeClockSkew, Detail: "the highest token seen from this store is more than an hour ahead of its clock"}
}

// ExhaustedError is CodeClockSkew: the next token would be above MaxToken.
func ExhaustedError() *Error {
	return &Error{Code: CodeClockSkew, Detail: "the store's clock or counter is beyond the largest token"}
}

// BrokenError is CodeUnavailable: an operation can't be carried out for a fault of the gateway, and nothing is changed on its name for so
// long; 0: it was on none.
func BrokenError(rest time.Duration) *Error {
	detail := "a fault of the gateway kept this from being carried out; report it: the gateway's log has the line \"an operation could not be carried out\""
	if rest > 0 {
		detail += ". Nothing is changed on this name for up to an hour"
	}
	return &Error{Code: CodeUnavailable, Detail: detail, RetryAfter: rest}
}
