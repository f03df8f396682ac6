package fencing

import "time"

// Op is an operation on one name: one of the request types of this file.
type Op interface {
	// LockName returns the name the operation is about.
	LockName() Name
}

// AcquireRequest asks for a lease. With a Lease that already holds the name it
// changes nothing and answers with what is.
type AcquireRequest struct {
	Name     Name
	Lease    LeaseID
	Stamp    Stamp // the request that asks; see TakeBackRequest
	Owner    string
	Metadata map[string]string
	Mode     Mode
	Limit    int // shared only: holders tolerated; 0 is any number
	Hold     int // depth of re-entry asked for, from 1
	TTL      time.Duration
	MaxHold  time.Duration // 0 is unbounded
	Wait     time.Duration // 0 does not wait
}

// RenewRequest sets the remaining time of a lease, to shorten it too. MaxHold
// bounds the result.
type RenewRequest struct {
	Name  Name
	Lease LeaseID
	TTL   time.Duration // 0 is the TTL the lease was granted with
}

// ReleaseRequest ends a lease. It may be repeated.
type ReleaseRequest struct {
	Name  Name
	Lease LeaseID
}

// TakeBackRequest undoes a grant that could not be delivered. It leaves no
// tombstone, so the same lease id may be granted again. It does nothing, and
// succeeds, unless the lease is live and still bears the Stamp of the request
// that made the grant: a retry by another request has taken over, and a renewal
// proves that the holder was told.
type TakeBackRequest struct {
	Name  Name
	Lease LeaseID
	Stamp Stamp
}

// BreakRequest ends the live lease that has Token, whoever holds it. Breaking
// one that was just broken succeeds.
type BreakRequest struct {
	Name  Name
	Token Token
}

// InspectRequest asks for the public view of a name.
type InspectRequest struct {
	Name Name
}

// ExpireRequest ends the leases on a name whose time has run out and forgets
// the name when it has been idle long enough. It changes nothing that a caller
// could tell: absent and expired are the same.
type ExpireRequest struct {
	Name Name
}

// LockName returns the name the operation is about.
func (r AcquireRequest) LockName() Name { return r.Name }

// LockName returns the name the operation is about.
func (r RenewRequest) LockName() Name { return r.Name }

// LockName returns the name the operation is about.
func (r ReleaseRequest) LockName() Name { return r.Name }

// LockName returns the name the operation is about.
func (r TakeBackRequest) LockName() Name { return r.Name }

// LockName returns the name the operation is about.
func (r BreakRequest) LockName() Name { return r.Name }

// LockName returns the name the operation is about.
func (r InspectRequest) LockName() Name { return r.Name }

// LockName returns the name the operation is about.
func (r ExpireRequest) LockName() Name { return r.Name }

// Guard is what a gateway sends along with every operation so that a store
// whose clock or memory is off does no harm. The zero Guard checks nothing: a
// store that runs inside the gateway shares its clock.
type Guard struct {
	Sent    Instant       // the gateway's clock when it sent the operation; 0 if not stated
	MaxSkew time.Duration // largest difference between Sent and the store's clock
	Floor   Token         // the highest token the gateway has seen from this partition
}

// skewed reports whether the gateway's clock and the store's are too far apart,
// or the operation arrived too late.
func (g Guard) skewed(now Instant) bool {
	if g.Sent == 0 {
		return false
	}
	return now.Sub(g.Sent).Abs() > g.MaxSkew
}
