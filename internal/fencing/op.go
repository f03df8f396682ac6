package fencing

import (
	"fmt"
	"strconv"
	"time"
)

// Op is an operation on one name: one of the request types of this file, as a value.
type Op interface {
	// LockName returns the name the operation is about.
	LockName() Name

	// LockLease returns the lease id that the operation comes with, the zero one if
	// anybody may ask for it.
	LockLease() LeaseID
}

// OnlyLooks reports whether an operation changes nothing, not even what time has
// brought about.
func OnlyLooks(op Op) bool {
	switch op.(type) {
	case InspectRequest, HistoryRequest, JudgeRequest:
		return true
	}
	return false
}

// Verb returns the word for what an operation does, as metrics, spans and logs have it;
// empty for what is no request type of this file.
func Verb(op Op) string {
	switch op.(type) {
	case AcquireRequest:
		return "acquire"
	case RenewRequest:
		return "renew"
	case ReleaseRequest:
		return "release"
	case ConfirmRequest:
		return "confirm"
	case LeaveRequest:
		return "leave"
	case TakeBackRequest:
		return "take_back"
	case BreakRequest:
		return "break"
	case EvictRequest:
		return "evict"
	case ClaimRequest:
		return "claim"
	case AdmitRequest:
		return "admit"
	case JudgeRequest:
		return "judge"
	case InspectRequest:
		return "inspect"
	case HistoryRequest:
		return "history"
	case ExpireRequest:
		return "expire"
	}
	return ""
}

// Served reports whether every Store with a queue serves an operation: all do but a ClaimRequest,
// which is for nodes of a quorum, an ExpireRequest, which Store.Expire makes, and what is no
// request type of this file.
func Served(op Op) bool {
	switch Verb(op) {
	case "", "claim", "expire":
		return false
	}
	return true
}

// UnservedError is CodeUnsupportedByStore: the store does not serve the operation.
func UnservedError(op Op) *Error {
	return &Error{Code: CodeUnsupportedByStore, Detail: fmt.Sprintf("the store does not serve a %T", op)}
}

// AcquireRequest asks for a lease. With a Lease that already holds the name, or
// waits for it, it changes nothing but whose request it is (see Stamp), and
// answers with what is; see Contradicts. A Hold one above the present depth deepens it, unless the
// lease is provisional: nobody was told of it.
//
// A request with a Wait that can't be granted now joins the queue: Outcome.Waits reports it, and
// the Listener hears what becomes of it. Without Capabilities.Queue it is refused. CodeLocked:
// somebody else holds the name, or others wait for it; Error.Lock shows who.
// CodeTooManyRequests: MaxWaiters. CodeLeaseLost: the lease id has ended on this name, or its
// public part is known with another secret. CodeInvalidRequest: a hold too deep, or a lease id
// of another set. CodeUnsupportedByStore: the store can't do this.
type AcquireRequest struct {
	Name     Name
	Lease    LeaseID
	Stamp    Stamp  // the request that asks; see TakeBackRequest
	Owner    string // empty: none is named
	Metadata map[string]string
	Mode     Mode // empty: none is named, and a new lease is exclusive
	Limit    int  // shared only: permits tolerated; 0: none is named, and a new lease tolerates any number
	Permits  int  // with a limit: how many of them a new lease takes, 1 to Limit; 0: none is named, and it takes one
	Hold     int  // depth of re-entry asked for, from 1
	TTL      time.Duration
	MaxHold  time.Duration // 0 is unbounded

	// LockDelay is for how long after the end of the lease nobody is granted the name, if it
	// expires or is broken: 0 to MaxLockDelay. It counts from the expiry, however late that is
	// noticed. A release delays nothing, nor does a grant that is taken back.
	// CodeUnsupportedByStore at a quorum.
	LockDelay time.Duration

	Wait time.Duration // 0: it does not wait. The gateway measures the time, a store only whether there is any

	// Keep lets the place rest for RestTTL when its request leaves, so that the
	// client can come back to it with the same Lease.
	Keep bool

	// Again says that a gateway asks once more for a request that waits, to learn
	// what it may have missed. It takes nothing over from a newer request.
	Again bool

	// Attach says that the request is a stream: the lease is released when it closes,
	// unless a newer request has the lease by then. See ReleaseRequest.Stamp. Of a Set
	// an acquire without it leaves what is held on the stream that it hangs on.
	Attach bool

	// Epoch is, with Attach and of a Set, Holder.Epoch as this request saw it last. Where the lease
	// hangs on something else than this request and its own is greater, another request has taken it
	// over since, or it was left to linger: CodeReplaced, and nothing happens. Without a Set it is of
	// no meaning: the newest request has the lease.
	Epoch int64

	// MaxWaiters is how many places the name may have, this one and those that rest
	// included; 0 is any number. It refuses newcomers only: whoever has a place keeps it.
	MaxWaiters int

	// Set names what else is taken under the same Lease; empty for one name. A
	// lease of an incomplete set is provisional until it is confirmed. AnyNames where the names
	// under the Lease may change.
	Set string

	// Behind says that others wait for the name at this gateway already: the request is
	// refused unless its lease id has the lease. For stores without a queue.
	Behind bool

	// Intent keeps new shared leases out for so long when an exclusive one can't
	// be granted for the shared ones there are, and does not wait: a writer that
	// comes again gets in. 0 keeps nobody out. For stores without a queue.
	Intent time.Duration

	// Propose is the token that the lease is to have, as if it were claimed in the
	// same step. Where a claim would be refused, or the request waits or is for a set, the
	// store issues a token of its own. 0 proposes none.
	Propose Token

	// Claimed says that a majority of the nodes has the lease, with the token that is
	// proposed: it is granted in quarantine too.
	Claimed bool
}

// AnyNames is the AcquireRequest.Set of streams for several names.
const AnyNames = "any"

// Contradicts returns CodeConflict with the Field that r names unlike what its Lease
// holds or waits for already, nil if there is none: what is not named contradicts
// nothing. Metadata and times don't either; what was granted stays. A gateway that
// asks Again repeats what it was told, and contradicts nobody.
func (r *AcquireRequest) Contradicts(mode Mode, limit, permits int, owner string) *Error {
	switch {
	case r.Again:
	case r.Mode != "" && r.Mode != mode:
		return ConflictError("mode", string(mode))
	case r.Limit != 0 && r.Limit != limit:
		return ConflictError("limit", strconv.Itoa(limit))
	case r.Permits != 0 && r.Permits != permits:
		return ConflictError("permits", strconv.Itoa(permits))
	case r.Owner != "" && r.Owner != owner:
		return ConflictError("owner", owner)
	}
	return nil
}

// ConflictError says that a request names a field unlike what its lease id has,
// which is present; a limit of 0 is none.
func ConflictError(field, present string) *Error {
	if field == "limit" && present == "0" {
		present = "none"
	}
	return &Error{Code: CodeConflict, Field: field, Detail: fmt.Sprintf(
		"%s differs from that of the lease or place that this lease id already has, %q; leave it out to keep that", field, present)}
}

// RenewRequest sets the remaining time of a lease, to shorten it too. MaxHold
// bounds the result. It may turn an exclusive lease into a shared one, and change the limit of one that has one.
//
// CodeLeaseLost: see Error.Reason. CodeInvalidRequest: a change of mode other than a downgrade.
type RenewRequest struct {
	Name  Name
	Lease LeaseID
	TTL   time.Duration // 0 is the TTL the lease was granted with
	Mode  Mode          // empty keeps the mode

	// Limit is what the lease tolerates from now on: with ModeShared that of a lease which becomes
	// shared, 0 for any number; else that of a shared lease which has one, in place of it, and 0
	// keeps it. It is never below the permits that the lease keeps. A lower one than others have
	// permits ends nobody: nobody is granted the name until there is room below it.
	Limit int

	// Permits is how many permits the lease is to have from now on: those with the highest
	// slots go. Never more than it has; 0 keeps them.
	Permits int

	// Owner and Metadata are what people are told of the lease from now on, its history
	// included. An empty Owner and a nil Metadata keep what is; Metadata without entries leaves
	// none. CodeUnsupportedByStore at a quorum.
	Owner    string
	Metadata map[string]string

	// Stamp is that of the stream that renews the lease which hangs on it: see
	// ReleaseRequest. CodeReplaced, and nothing happens, if the lease hangs on another one, or
	// on none: a newer request has it, or the end of the stream has left it to linger. A quorum
	// gives the lease back to a node under it.
	Stamp Stamp

	// Epoch is Holder.Epoch as the stream of Stamp was told last. Where it is greater than the
	// lease's, the store has forgotten that the lease hangs on that stream, as in a fail-over:
	// it does so again.
	Epoch int64
}

// ReleaseRequest ends a lease, unwinds its hold, or lets it linger: what remains is in
// Outcome.Holder. It may be repeated: one that was released before is released again.
// CodeLeaseLost: it ended otherwise.
type ReleaseRequest struct {
	Name  Name
	Lease LeaseID
	Hold  int // from 2: the depth to unwind, which leaves Hold-1; 0 and 1 end the lease

	// Stamp is that of a stream that has closed: nothing happens unless the lease is
	// still attached to it. Empty: the holder wants it so.
	Stamp Stamp

	// Epoch is Holder.Epoch as the stream of Stamp was told last, as of a RenewRequest: where it is
	// greater than the lease's, the store has forgotten that the lease hangs on that stream.
	Epoch int64

	// Linger keeps the lease for so long, to its TTL, without a stream: as if it had been
	// renewed with that TTL, Outcome.Holder is it. With a Stamp an acquire with its lease id finds it,
	// and may attach it again. 0 ends it. In place of a Hold.
	//
	// Without a Stamp the holder has left, from version 2 of the rules on: Holder.Hold is 0, the end of that time is a release,
	// and a stream that has the lease renews it no more. It is neither renewed nor acquired by its lease id any more: CodeLeaseLost,
	// ReasonReleased. Repeating this may have it end sooner, not later.
	Linger time.Duration
}

// ConfirmRequest makes a provisional lease firm: its TTL starts now, and Outcome.Holder is it.
// It may be repeated.
//
// CodeLeaseLost: it was taken back, or has ended. CodeReplaced: another request has it now.
// CodeQuarantined: the lost writes may include a take-back, after which another was granted;
// it can be confirmed later, while its gateway lives.
type ConfirmRequest struct {
	Name  Name
	Lease LeaseID
	Stamp Stamp
}

// LeaveRequest gives up waiting: Outcome.Place and Lock show the place as it was. If the lease
// came first, it is in Outcome.Holder and may be Provisional; if there is neither, nothing is.
// CodeReplaced: another request has the place now.
type LeaveRequest struct {
	Name  Name
	Lease LeaseID
	Stamp Stamp
}

// TakeBackRequest undoes what a request has got, a grant that could not be
// delivered or a place. It leaves no tombstone, so the same lease id may be
// granted again; a place that Keep was asked for rests. It does nothing, and
// succeeds, unless lease or place still bear the Stamp of the request: a retry by
// another request has taken over. A lease that was renewed stays, for its holder
// knows of it, unless the request is Refused, or Left.
type TakeBackRequest struct {
	Name  Name
	Lease LeaseID
	Stamp Stamp

	// Refused says that the client is told that it has no lease: it is taken back also if
	// a renewal has come first.
	Refused bool

	// Unknown is for a gateway that the store has told of a request which it does not
	// know: a place or a provisional lease of its own is taken back, whatever the secret.
	// A firm lease stays, for the client may have been told of it.
	Unknown bool

	// Left is for a stream that nobody is told of any more, for its client has gone or was
	// refused: a lease that hangs on it and can't be taken back, for an earlier request was
	// granted it, is released, or left to linger, as by the end of the stream.
	Left   bool
	Linger time.Duration // with Left: ReleaseRequest.Linger
	Epoch  int64         // with Left: ReleaseRequest.Epoch, of what the stream was told hangs on it; 0: it was told of nothing
}

// BreakRequest ends the live lease that has Token, whoever holds it. Breaking
// one that was just broken succeeds, and changes no BreakReason.
//
// With Notice it leaves the holder that time, and never less than it was told: the lease
// ends as broken at Holder.BreakAt, the later of the end of the notice and its present
// expiry, unless it is over before. Of several notices the earliest end counts, with its
// reason. A provisional lease, of which nobody was told, is broken at once, as any is by
// a break without notice, also after one with it.
//
// With a Notice that is yet to run, Outcome.Holder is the lease as it is, with BreakAt.
// CodeStaleToken: no live lease has the token; Error.Lock shows those that are live.
// CodeClockSkew also of a notice.
type BreakRequest struct {
	Name        Name
	Token       Token
	BreakReason string // why, in the words of who breaks it; empty: none is given. At most MaxBreakReasonBytes

	Notice time.Duration // ShortestNotice to LongestNotice; 0: it is broken at once
}

// EvictRequest takes the place of a waiter from it, connected or resting, for good: its lease
// id has ended, which a tombstone with ReasonEvicted tells. Of a set the whole request ends,
// for it has lost one of its names. Its request is told: Outcome.Evicted. It may be repeated.
//
// CodeNotFound: no such lease waits. CodeConflict: it holds the lock by now, with
// Error.CurrentToken; see BreakRequest. CodeUnsupportedByStore: there is no queue.
type EvictRequest struct {
	Name        Name
	Waiter      LeasePublic // the public part of its lease id
	BreakReason string      // why, in the words of who evicts it, as of a break
}

// ClaimRequest makes Token that of a live lease: the second phase of a quorum's
// acquire. Outcome.Holder is it. It may be repeated. Only a Node serves it.
//
// CodeStaleToken: the token is not above all that count here; Error.CurrentToken is the last
// one. CodeLeaseLost: see Error.Reason.
type ClaimRequest struct {
	Name  Name
	Lease LeaseID
	Token Token
}

// AdmitRequest asks the fence of a name to let a token pass, before something is written
// that the lock protects. One that is not below any that was admitted before passes; it
// may do so again and again. It moves the fence's mark up to the token, so that no lower one
// passes from then on: Outcome.Fence says what the marks are. The mark is durable before the
// answer, and where grants need the word of replicas, so does it: CodeNotReplicated, and the
// mark may have moved.
//
// CodeStaleToken: the token is below a mark, or above the highest one issued; Error.Fence.
// CodeQuarantined: no live lease has it, and what was forgotten may be that a newer one was
// admitted. CodeClockSkew: the clocks differ, and by the right one the name might still be
// remembered, or, in quarantine, the lease be live.
type AdmitRequest struct {
	Name  Name
	Token Token
	Slot  int // what is written belongs to the permit of this number, 0 to MaxLimit-1, of a live lease one that it has; NoSlot: to the whole name. CodeUnsupportedByStore at a quorum

	// Claimed says that only claimed tokens count as issued. For a quorum, whose nodes
	// issue tokens that nobody is ever told of.
	Claimed bool
}

// JudgeRequest asks what has become of a token: Outcome.Fence.Verdict. It is advice, and
// guards nothing: by the time of the answer it may be otherwise. So it is never refused with
// CodeClockSkew.
type JudgeRequest struct {
	Name    Name
	Token   Token
	Claimed bool // as in AdmitRequest
}

// InspectRequest asks for the public view of a name, whether it is held or free, in
// Outcome.Lock, and who held it lately in Outcome.Past. It is for people and guards nothing, so
// it is never refused with CodeClockSkew: while the clocks differ, what it leaves out may be live.
type InspectRequest struct {
	Name    Name
	Holders int // how many to show at most; 0 is MaxHoldersShown
}

// HistoryRequest is as InspectRequest, but that Outcome.Lock is without Waiters.
type HistoryRequest struct {
	Name    Name
	Holders int // how many to show at most; 0 is MaxHoldersShown
}

// ExpireRequest ends the leases on a name whose time has run out and forgets
// the name when it has been idle long enough. It changes nothing that a caller
// could tell: absent and expired are the same. It is for Step: see Store.Expire.
type ExpireRequest struct {
	Name Name
}

// LockName returns the name the operation is about.
func (r AcquireRequest) LockName() Name { return r.Name }

// LockLease returns the lease id that the operation comes with.
func (r AcquireRequest) LockLease() LeaseID { return r.Lease }

// LockName returns the name the operation is about.
func (r RenewRequest) LockName() Name { return r.Name }

// LockLease returns the lease id that the operation comes with.
func (r RenewRequest) LockLease() LeaseID { return r.Lease }

// LockName returns the name the operation is about.
func (r ReleaseRequest) LockName() Name { return r.Name }

// LockLease returns the lease id that the operation comes with.
func (r ReleaseRequest) LockLease() LeaseID { return r.Lease }

// LockName returns the name the operation is about.
func (r ConfirmRequest) LockName() Name { return r.Name }

// LockLease returns the lease id that the operation comes with.
func (r ConfirmRequest) LockLease() LeaseID { return r.Lease }

// LockName returns the name the operation is about.
func (r LeaveRequest) LockName() Name { return r.Name }

// LockLease returns the lease id that the operation comes with.
func (r LeaveRequest) LockLease() LeaseID { return r.Lease }

// LockName returns the name the operation is about.
func (r HistoryRequest) LockName() Name { return r.Name }

// LockLease returns the zero lease id: anybody may ask.
func (r HistoryRequest) LockLease() LeaseID { return LeaseID{} }

// LockName returns the name the operation is about.
func (r TakeBackRequest) LockName() Name { return r.Name }

// LockLease returns the lease id that the operation comes with.
func (r TakeBackRequest) LockLease() LeaseID { return r.Lease }

// LockName returns the name the operation is about.
func (r BreakRequest) LockName() Name { return r.Name }

// LockLease returns the zero lease id: anybody may ask.
func (r BreakRequest) LockLease() LeaseID { return LeaseID{} }

// LockName returns the name the operation is about.
func (r EvictRequest) LockName() Name { return r.Name }

// LockLease returns the zero lease id: anybody may ask.
func (r EvictRequest) LockLease() LeaseID { return LeaseID{} }

// LockName returns the name the operation is about.
func (r ClaimRequest) LockName() Name { return r.Name }

// LockLease returns the lease id that the operation comes with.
func (r ClaimRequest) LockLease() LeaseID { return r.Lease }

// LockName returns the name the operation is about.
func (r AdmitRequest) LockName() Name { return r.Name }

// LockLease returns the zero lease id: anybody may ask.
func (r AdmitRequest) LockLease() LeaseID { return LeaseID{} }

// LockName returns the name the operation is about.
func (r JudgeRequest) LockName() Name { return r.Name }

// LockLease returns the zero lease id: anybody may ask.
func (r JudgeRequest) LockLease() LeaseID { return LeaseID{} }

// LockName returns the name the operation is about.
func (r InspectRequest) LockName() Name { return r.Name }

// LockLease returns the zero lease id: anybody may ask.
func (r InspectRequest) LockLease() LeaseID { return LeaseID{} }

// LockName returns the name the operation is about.
func (r ExpireRequest) LockName() Name { return r.Name }

// LockLease returns the zero lease id: anybody may ask.
func (r ExpireRequest) LockLease() LeaseID { return LeaseID{} }

// Guard is what a gateway sends along with every operation so that a store
// whose clock or memory is off does no harm. The zero Guard checks nothing: a
// store that runs inside the gateway shares its clock.
type Guard struct {
	Sent    Instant       // the gateway's clock when it sent the operation; 0 if not stated
	MaxSkew time.Duration // largest difference between Sent and the store's clock
	Floor   Token         // the highest token the gateway has seen from this partition
	Gateway Gateway       // who asks: what it hands to its own waiters is firm, unless Tentative

	// StepLimit is how much one step does of what has come due; 0 is StepLimit.
	StepLimit int

	// MaxHolders is how many live holders a name may have, a newcomer included, as if
	// that were its Limit: it is refused or waits, and who is handed the lock after it
	// too. Whoever holds the name keeps it. 0 is any number.
	MaxHolders int

	// Kept are leases that do not end in the step though their time is over: a transaction of a user has checked them and may
	// write. They hold the name as before. No operation that is about one of them comes with this guard.
	Kept map[Token]bool

	// Tentative has all that is handed to waiters be provisional, also to those of Gateway.
	Tentative bool

	// HeedLoss has a store that has issued no token as high as Floor grant nothing:
	// it has forgotten grants. Without it the tokens go on above the floor.
	HeedLoss bool
}

// skewed reports whether the gateway's clock and the store's are too far apart,
// or the operation arrived too late.
func (g Guard) skewed(now Instant) bool {
	if g.Sent == 0 {
		return false
	}
	return now.Sub(g.Sent).Abs() > g.MaxSkew
}
