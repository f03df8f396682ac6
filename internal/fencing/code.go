package fencing

import (
	"errors"
	"fmt"
	"time"
)

// Code is the one vocabulary of outcomes: Step, the Lua library, the JSON
// errors, the OpenAPI document and the metrics use the same words.
type Code string

// The codes. CodeOK is success and never appears in an Error.
const (
	CodeOK                 Code = "ok"
	CodeInvalidRequest     Code = "invalid_request"      // a field is malformed or out of range
	CodeUnsupportedByStore Code = "unsupported_by_store" // this store can't do it
	CodeUnauthenticated    Code = "unauthenticated"      // no or unknown credentials
	CodeForbidden          Code = "forbidden"            // known, but not allowed
	CodeNotFound           Code = "not_found"            // no such route, record or waiter
	CodeMethodNotAllowed   Code = "method_not_allowed"   // the route has other methods
	CodeConflict           Code = "conflict"             // a field contradicts what the lease id holds or waits for: see Field
	CodeReplaced           Code = "replaced"             // a newer request with the same lease id took over
	CodeLeaseLost          Code = "lease_lost"           // definitely not yours any more: see Reason
	CodeStaleToken         Code = "stale_token"          // the token named is not the live one, or its fence does not admit it
	CodeTooLarge           Code = "too_large"            // the body is larger than allowed
	CodeMisdirected        Code = "misdirected"          // the Host is not served here
	CodeLocked             Code = "locked"               // held by somebody else
	CodeWaitTimeout        Code = "wait_timeout"         // still held when the wait ran out
	CodeLeaseIDRequired    Code = "lease_id_required"    // neither Lease-Id nor If-Match
	CodeTooManyRequests    Code = "too_many_requests"    // a cap is reached
	CodeUnavailable        Code = "unavailable"          // the store can't be asked: nothing is known
	CodeClockSkew          Code = "clock_skew"           // gateway and store disagree about the time
	CodeNotReplicated      Code = "not_replicated"       // too few replicas acknowledged
	CodeQuarantined        Code = "quarantined"          // the store may have forgotten grants
	CodeDraining           Code = "draining"             // the gateway is shutting down
)

// Codes lists every code but CodeOK, in the order of their statuses.
func Codes() []Code {
	return []Code{
		CodeInvalidRequest, CodeUnsupportedByStore, CodeUnauthenticated, CodeForbidden, CodeNotFound,
		CodeMethodNotAllowed, CodeConflict, CodeReplaced, CodeLeaseLost, CodeStaleToken, CodeTooLarge, CodeMisdirected,
		CodeLocked, CodeWaitTimeout, CodeLeaseIDRequired, CodeTooManyRequests, CodeUnavailable,
		CodeClockSkew, CodeNotReplicated, CodeQuarantined, CodeDraining,
	}
}

// Reason says how a lease was lost.
type Reason string

// The reasons of CodeLeaseLost.
const (
	ReasonExpired    Reason = "expired"    // its time ran out and nobody has had the name since
	ReasonSuperseded Reason = "superseded" // its time ran out and a newer grant exists
	ReasonBroken     Reason = "broken"     // an administrator ended it
	ReasonReleased   Reason = "released"   // its holder ended it
	ReasonEvicted    Reason = "evicted"    // an administrator took its place in the queue from it, before it was granted
	ReasonUnknown    Reason = "unknown"    // never seen, another secret, or too long ago
)

// Reasons lists every reason.
func Reasons() []Reason {
	return []Reason{ReasonExpired, ReasonSuperseded, ReasonBroken, ReasonReleased, ReasonEvicted, ReasonUnknown}
}

// Verdict says what has become of a fencing token.
type Verdict string

// The verdicts.
const (
	VerdictLive       Verdict = "live"       // a live lease has it
	VerdictSuperseded Verdict = "superseded" // no live lease has it, and a newer token was issued for the name
	VerdictEnded      Verdict = "ended"      // no live lease has it, and it is the highest that was issued
	VerdictUnissued   Verdict = "unissued"   // it is above the highest that is known to have been issued
)

// Verdicts lists every verdict.
func Verdicts() []Verdict {
	return []Verdict{VerdictLive, VerdictSuperseded, VerdictEnded, VerdictUnissued}
}

// Error is a refusal or a failure, with all that helps its reader.
type Error struct {
	Code   Code
	Field  string // the field or header at fault (CodeInvalidRequest, CodeConflict)
	Detail string // one sentence for people; never a secret

	Reason       Reason        // CodeLeaseLost
	Late         time.Duration // CodeLeaseLost by time: how long ago it ended; never below 0
	CurrentToken Token         // CodeLeaseLost, superseded: the token of the newer grant; CodeConflict of an eviction: of the lease
	BreakReason  string        // CodeLeaseLost, broken or evicted: see BreakRequest; other people's words

	Lock     *Lock  // CodeLocked, CodeWaitTimeout, CodeStaleToken: the lock as it is
	Fence    *Fence // CodeStaleToken of an Admit
	Position int    // CodeLocked, CodeWaitTimeout: the caller's place in the queue; 0 if it has none

	// EstimatedWait, of CodeLocked and CodeWaitTimeout, is what Pace.Wait tells of a request
	// that comes now; 0 where too little is known. Gateways set it, stores do not.
	EstimatedWait time.Duration
	RetryAfter    time.Duration // when to come back; 0 if unknown

	// Unanswered: an earlier attempt of the same acquire has had no answer and may
	// still be carried out, so that it has to be taken back like one whose outcome is
	// unknown.
	Unanswered bool

	// Futile: the store refuses this very request, which has changed nothing, and would do so again.
	Futile bool

	Err error // the cause, for the log; never shown
}

// Error returns code and detail.
func (e *Error) Error() string {
	s := string(e.Code)
	if e.Field != "" {
		s += ": " + e.Field
	}
	if e.Reason != "" {
		s += " (" + string(e.Reason) + ")"
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// invalid returns the refusal of a field. The detail reads "<field> <what>".
func invalid(field, format string, args ...any) *Error {
	return &Error{Code: CodeInvalidRequest, Field: field, Detail: field + " " + fmt.Sprintf(format, args...)}
}

// Fault is the cause of a CodeUnavailable that a person can mend: what keeps the store
// refuses this gateway. It is for operators, not for clients.
type Fault struct {
	Detail string // what is refused, in words; never a secret
	Remedy string // what to set, and where
	Err    error  // as it was said
}

// Error returns what is refused, and how that was said.
func (f *Fault) Error() string { return f.Detail + " (" + f.Err.Error() + "); " + f.Remedy }

// Unwrap returns how it was said.
func (f *Fault) Unwrap() error { return f.Err }

// FaultOf returns the fault behind an error, nil if none is known.
func FaultOf(err error) *Fault {
	f, _ := errors.AsType[*Fault](err)
	return f
}

// Outage is the cause of a CodeUnavailable that is no refusal: what keeps the store is
// away, or serves nobody. Its text is that of Err.
type Outage struct {
	Detail string // how it shows, in words: never a secret, and no address
	Public bool   // clients are told the detail as well
	Err    error  // as it was said
}

// Error returns how it was said.
func (o *Outage) Error() string { return o.Err.Error() }

// Unwrap returns how it was said.
func (o *Outage) Unwrap() error { return o.Err }

// OutageOf returns the outage behind an error, nil if none is known.
func OutageOf(err error) *Outage {
	o, _ := errors.AsType[*Outage](err)
	return o
}

// Unavailable returns an error that says the store could not be asked: P8.
func Unavailable(cause error) *Error {
	if FaultOf(cause) != nil {
		return &Error{Code: CodeUnavailable, Detail: "the store refuses to serve this gateway; the outcome is unknown", Err: cause}
	}
	if o := OutageOf(cause); o != nil && o.Public {
		return &Error{Code: CodeUnavailable, Detail: o.Detail + "; the outcome is unknown", Err: cause}
	}
	return &Error{Code: CodeUnavailable, Detail: "the store can't be reached; the outcome is unknown", Err: cause}
}

// AsError returns what the error of a Store says: nil for none, CodeUnavailable for one that says nothing of itself.
func AsError(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return Unavailable(err)
}

// CodeOf returns the code of AsError, CodeOK for no error.
func CodeOf(err error) Code {
	if err == nil {
		return CodeOK
	}
	return AsError(err).Code
}

// Uncertain reports whether an error leaves open what was done.
func Uncertain(err error) bool {
	switch CodeOf(err) {
	case CodeUnavailable, CodeClockSkew, CodeNotReplicated, CodeQuarantined:
		return true
	}
	return false
}

// Unsettled reports whether an acquire that failed so may still get something, or has.
func Unsettled(err error) bool { return err != nil && (Uncertain(err) || AsError(err).Unanswered) }

// NotReplicated reports whether too few replicas have what was granted.
func NotReplicated(err error) bool { return CodeOf(err) == CodeNotReplicated }

// TakenForDead reports whether a provisional lease is gone because its gateway counted as dead.
func TakenForDead(err error) bool {
	e := AsError(err)
	return e != nil && e.Code == CodeLeaseLost && e.Reason == ReasonUnknown
}

// DrainingError is CodeDraining: the gateway is shutting down.
func DrainingError() *Error {
	return &Error{Code: CodeDraining, Detail: "this gateway is shutting down; ask another one"}
}
