package fencing

import "fmt"

// The refusals that more than one side makes: Step, the stores that are no Step, and the
// watchdog. Each text stands here once.

// LockedError is CodeLocked, or CodeTooManyRequests where as many wait as may. It shows
// who holds the lock, and when that may be over.
func LockedError(code Code, lock *Lock) *Error {
	err := &Error{Code: code, Detail: "somebody else holds the lock", Lock: lock, RetryAfter: lock.RetryAfter()}
	switch {
	case code == CodeTooManyRequests:
		err.Detail = "as many wait for the lock as may"
	case lock.DelayedUntil != 0:
		err.Detail = "a lease ended without a release, and nobody is granted the lock before the lock delay of that is over"
	}
	return err
}

var lostDetail = map[Reason]string{
	ReasonExpired:    "the lease ran out; nobody has had the lock since",
	ReasonSuperseded: "the lease ran out, and the lock has been granted again since",
	ReasonBroken:     "an administrator broke the lease",
	ReasonReleased:   "the lease was released",
	ReasonEvicted:    "an administrator took the place in the queue away",
	ReasonUnknown:    "no such lease on this name: it was never granted, its secret is another, or it ended too long ago to be remembered",
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
		return invalid("hold", "is %d; a first acquire has 1", asked)
	}
	return invalid("hold", "is %d; the lease is held %d deep, and one more is the most", asked, present)
}

// OtherNamesError refuses a lease id that has been used for another set.
func OtherNamesError() *Error {
	return invalid("Lease-Id", "has been used for another set of names; a lease id is for one set")
}

// UpgradeError refuses to make a shared lease exclusive.
func UpgradeError() *Error {
	return invalid("mode", `is "exclusive" and the lease is shared; an upgrade would deadlock, so release it and acquire anew`)
}

// LimitError refuses the limit of a renewal, where present is that of the lease, or 0: a shared
// lease without one gets none, one that has one keeps one (asked is 0), and an exclusive lease
// (present is 1) has one only if it becomes shared.
func LimitError(asked, present int) *Error {
	switch {
	case asked == 0:
		return invalid("limit", `is left out beside mode "shared"; the lease has %d, which can be changed and not taken away`, present)
	case present == 0:
		return invalid("limit", "is given, and the lease is shared with any number; release it and acquire one with a limit")
	}
	return invalid("limit", `is given without mode "shared", to which it belongs, and the lease is exclusive`)
}

// LowLimitError refuses a limit below the permits that the lease keeps.
func LowLimitError(asked, kept int) *Error {
	return invalid("limit", "is %d; it must be from the permits that the lease keeps, %d, to %d", asked, kept, MaxLimit)
}

// PermitsError refuses a renewal that would take permits: the lease has as many as present.
func PermitsError(asked, present int) *Error {
	return invalid("permits", "is %d; the lease has %d, and a renewal gives permits back and never takes more", asked, present)
}

// SlotError refuses a token at the fence of a slot that its live lease does not have.
func SlotError(slot int) *Error {
	return invalid("slot", "is %d, which the lease of the token does not have", slot)
}

// NoHolderError is CodeStaleToken of a break: no live lease has the token.
func NoHolderError(token Token, lock *Lock) *Error {
	return &Error{Code: CodeStaleToken, Detail: fmt.Sprintf("no live lease on this name has the token %d", token), Lock: lock}
}

// HoldsError is CodeConflict of an eviction: the waiter has been granted the lock, with a token.
func HoldsError(token Token) *Error {
	return &Error{
		Code: CodeConflict, Field: "lease", CurrentToken: token,
		Detail: "lease does not wait any more: it holds the lock; to end that, break it by its token",
	}
}

// NoWaiterError is CodeNotFound of an eviction.
func NoWaiterError() *Error {
	return &Error{Code: CodeNotFound, Field: "lease", Detail: "no such lease waits for this name"}
}

// ClaimError is CodeStaleToken of a claim; current is what counts instead.
func ClaimError(current Token) *Error {
	return &Error{
		Code: CodeStaleToken, CurrentToken: current,
		Detail: "the token is not above all that count here, or the lease has another one already",
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
