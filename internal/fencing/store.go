package fencing

import (
	"context"
	"slices"
	"strings"
	"time"
)

// Store remembers locks. Every method may be called from many goroutines, and
// again with the same arguments after an error: the outcome is then that of one
// call (P7).
//
// A method returns nil or an *Error. Whatever a store can't decide, for lack of
// contact, of time or of disk, is CodeUnavailable and never one of the codes
// that mean "no" (P8). Beside the codes named at each method, all but Close may
// return CodeUnavailable, and those that judge an expiry or issue a token
// CodeClockSkew. When a method that changes something fails with one of these
// two, the change may or may not have been made, or be made a little later.
type Store interface {
	// Acquire asks for a lease. CodeLocked: somebody else holds the name;
	// Error.Lock shows who. CodeLeaseLost: the lease id has ended on this name,
	// or its public part is known with another secret.
	Acquire(context.Context, AcquireRequest) (Outcome, error)

	// Renew sets the remaining time of a lease. CodeLeaseLost: see Error.Reason.
	Renew(context.Context, RenewRequest) (Outcome, error)

	// Release ends a lease; one that was released before is released again.
	// CodeLeaseLost: it ended otherwise.
	Release(context.Context, ReleaseRequest) (Outcome, error)

	// TakeBack undoes a grant that could not be delivered, if it still can be.
	// An Outcome without Now did not reach the store's rules.
	TakeBack(context.Context, TakeBackRequest) (Outcome, error)

	// Break ends the live lease with a token. CodeStaleToken: no live lease has
	// it; Error.Lock shows those that are live.
	Break(context.Context, BreakRequest) (Outcome, error)

	// Inspect returns the public view of a name in Outcome.Lock, whether it is
	// held or free. It is for people and guards nothing, so it never returns
	// CodeClockSkew: while the clocks differ, what it leaves out may be live.
	Inspect(context.Context, InspectRequest) (Outcome, error)

	// List returns live locks in the byte order of their names.
	List(context.Context, ListRequest) (ListPage, error)

	// Expire ends leases whose time has run out, at most limit in one call.
	Expire(ctx context.Context, limit int) (Expiry, error)

	// Stats counts what the store holds.
	Stats(context.Context) (Stats, error)

	// Check makes a round trip to the store and fails if the store could not
	// serve now.
	Check(context.Context) error

	// Close lets go of all resources and waits until that is done. Leases stay.
	Close() error
}

// ListRequest asks for a page of live locks.
type ListRequest struct {
	Prefix string // of the name; empty for all
	Query  string // a part of the name, of an owner or of a public lease id; empty for all
	After  Name   // only names greater than this; empty to start
	Limit  int    // 1 to MaxListLimit
}

// Match reports whether a lock belongs on the page: the prefix is one of its
// name, and Query occurs in its name, an owner or a public lease id, whatever
// the case of the letters.
func (r *ListRequest) Match(lock *Lock) bool {
	if !strings.HasPrefix(string(lock.Name), r.Prefix) {
		return false
	}
	query := strings.ToLower(r.Query)
	if strings.Contains(strings.ToLower(string(lock.Name)), query) {
		return true
	}
	return slices.ContainsFunc(lock.Holders, func(h Holder) bool {
		return strings.Contains(strings.ToLower(h.Owner), query) || strings.Contains(strings.ToLower(string(h.Lease)), query)
	})
}

// ListPage is a page of live locks.
type ListPage struct {
	Locks []Lock // in name order, without Waiters; may be fewer than asked for when Query is set
	Next  Name   // where to go on: the After of the next page; empty at the end
}

// Expiry is what a call of Expire came to.
type Expiry struct {
	Ended   []Ended       // the leases it ended
	Next    time.Duration // when to call again at the latest; 0 is at once
	Standby bool          // another gateway does this work now: earlier calls are of no use
}

// Stats are counts of what a store holds.
type Stats struct {
	Held int // names with a lease, those included whose expiry has not been noticed
}
