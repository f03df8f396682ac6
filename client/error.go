package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Code is what went wrong, as the gateway's problem says it. A Code is an error, so that
// errors.Is(err, client.CodeLocked) asks for it.
type Code string

// The codes of the interface; api/openapi.yaml says which operation has which.
const (
	CodeInvalidRequest     Code = "invalid_request"
	CodeUnsupportedByStore Code = "unsupported_by_store"
	CodeUnauthenticated    Code = "unauthenticated"
	CodeForbidden          Code = "forbidden"
	CodeNotFound           Code = "not_found"
	CodeMethodNotAllowed   Code = "method_not_allowed"
	CodeConflict           Code = "conflict"
	CodeReplaced           Code = "replaced"
	CodeLeaseLost          Code = "lease_lost"
	CodeStaleToken         Code = "stale_token"
	CodeTooLarge           Code = "too_large"
	CodeMisdirected        Code = "misdirected"
	CodeLocked             Code = "locked"
	CodeWaitTimeout        Code = "wait_timeout"
	CodeLeaseIDRequired    Code = "lease_id_required"
	CodeTooManyRequests    Code = "too_many_requests"
	CodeUnavailable        Code = "unavailable"
	CodeClockSkew          Code = "clock_skew"
	CodeNotReplicated      Code = "not_replicated"
	CodeQuarantined        Code = "quarantined"
	CodeDraining           Code = "draining"
)

func (c Code) Error() string { return string(c) }

// Reason is how a lease was lost.
type Reason string

// The reasons of CodeLeaseLost: its time ran out and nobody has had the lock since; it ran
// out and somebody has; an administrator ended it; its holder did; an administrator took its
// place in the queue away before it was granted; nothing is known of it.
const (
	ReasonExpired    Reason = "expired"
	ReasonSuperseded Reason = "superseded"
	ReasonBroken     Reason = "broken"
	ReasonReleased   Reason = "released"
	ReasonEvicted    Reason = "evicted"
	ReasonUnknown    Reason = "unknown"
)

// Error is a gateway's refusal. Members that a code does not have are zero.
type Error struct {
	Status   int    // of HTTP
	Code     Code   // "" of an answer that is no problem of Fencepost's: a defect, or a proxy's answer
	Detail   string // a sentence for people
	Field    string // what is at fault in an invalid or contradicting request
	Instance string // names the request in the gateway's log

	Reason       Reason        // CodeLeaseLost
	Late         time.Duration // CodeLeaseLost by time: how long ago it ended
	CurrentToken int64         // CodeLeaseLost, superseded: the token of the newest grant; CodeConflict of Evict: of the lease
	BreakReason  string        // CodeLeaseLost, broken or evicted: why, in the words of who did it, if they said
	Lost         []string      // CodeLeaseLost, several names: those that are lost

	Name        string        // which name it is about; of several, if one is to blame
	Holders     []Holder      // CodeLocked, CodeWaitTimeout: who holds the lock, 100 at most
	HolderCount int           // how many do
	Waiting     int           // how many wait
	Position    int           // the caller's place in the queue, from 1; 0: none
	Delayed     time.Duration // how long it takes until anybody is granted the lock, for the LockDelay of a lease that has ended; 0: it is not so
	RetryAfter  time.Duration // when it is worth to ask again; 0: not said

	// EstimatedWait is about how long a request that waits from now on will wait, of CodeLocked
	// and CodeWaitTimeout; 0: too little is known.
	EstimatedWait time.Duration

	credential uint64 // of CodeUnauthenticated and CodeForbidden: credentialOf the key that was sent
}

func (e *Error) Error() string {
	code := string(e.Code)
	if code == "" {
		code = fmt.Sprintf("status %d", e.Status)
	}
	text := code
	if e.namesLock() {
		text += ": " + e.Name
	}
	if e.Detail != "" {
		text += ": " + strings.Join(strings.Fields(e.Detail), " ") // one line
	}
	if e.BreakReason != "" {
		text += fmt.Sprintf(": %q", e.BreakReason)
	}
	if len(e.Holders) > 0 {
		text += fmt.Sprintf(": held by %q", cmp.Or(e.Holders[0].Owner, e.Holders[0].Lease))
		if others := max(e.HolderCount, len(e.Holders)) - 1; others > 0 {
			text += fmt.Sprintf(" and %d more", others)
		}
	}
	return text
}

// namesLock reports whether the text of the error says which lock it is about.
func (e *Error) namesLock() bool {
	switch e.Code {
	case CodeLocked, CodeWaitTimeout, CodeLeaseLost, CodeStaleToken, CodeConflict, CodeReplaced, CodeNotFound:
		return e.Name != ""
	}
	return false
}

// Is makes errors.Is find the code, and ErrEvicted.
func (e *Error) Is(target error) bool {
	if target == ErrEvicted {
		return e.Code == CodeLeaseLost && e.Reason == ReasonEvicted
	}
	code, ok := target.(Code)
	return ok && code != "" && e.Code == code
}

var (
	// ErrUnknown is the cause of a lease's context whose deadline came before a renewal
	// was answered. Perhaps the lease is still held; nobody may count on it.
	ErrUnknown = errors.New("the lease could not be renewed in time: it is unknown whether it is still held")

	// ErrUnreachable is wrapped by what is returned when no gateway could answer for as
	// long as Options.Patience, or may be trusted. Where one has refused the call by a code that another one might not
	// have (CodeUnauthenticated, CodeForbidden, CodeMisdirected, CodeTooManyRequests) that is returned instead.
	ErrUnreachable = errors.New("no gateway could answer")

	// ErrExpired is returned by an acquire whose lease had run out before its answer was read, three times in a row:
	// this process or its gateway stands still, or the TTL is shorter than what an answer takes.
	ErrExpired = errors.New("the lease expired before the answer was read")

	// ErrMaxHold is the cause of the context of a lease that was held for as long as
	// MaxHold allows. It is an *Error with CodeLeaseLost, for no renewal can keep the lease, which
	// lives on for what Lease.Remaining says: the work can stop until then.
	ErrMaxHold error = &Error{Code: CodeLeaseLost, Reason: ReasonExpired, Detail: "the lease has reached its max_hold_ms"}

	// ErrEvicted is what errors.Is finds in what an acquire returns whose place in the queue an
	// administrator took away (Client.Evict). Asking again with another lease id would join the
	// queue anew: the client leaves that to its caller.
	ErrEvicted = errors.New("an administrator evicted the request from the queue")

	// ErrNoticeOver is the cause of the context of a lease whose notice of a break is about to
	// be over (Lease.Notice). It is an *Error with CodeLeaseLost, as ErrMaxHold is: the work can stop until
	// the lease's end, for as long as Lease.Remaining says.
	ErrNoticeOver error = &Error{Code: CodeLeaseLost, Reason: ReasonBroken, Detail: "the notice given by an administrator is over"}

	// ErrReleased is the cause of the context of a lease that was released by its holder.
	ErrReleased = errors.New("the lease was released")

	// ErrClosed is returned by a client that was closed, and is the cause of the
	// contexts of its leases.
	ErrClosed = errors.New("the client is closed")
)

// errNotNew is what the zero Client answers.
var errNotNew error = &Error{Status: http.StatusBadRequest, Code: CodeInvalidRequest, Field: "Client", Detail: "the client has no gateways: it has to be made by New, with their addresses"}

// ended says that a call was given up because its context has ended, and what the last request
// came to.
func ended(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if errors.Is(err, cause) {
		return err
	}
	return fmt.Errorf("%w: %w", cause, err)
}

// untrusted is an attempt that nothing was sent with: the certificate of the gateway is of no authority that is
// trusted, or for another name, or not valid now.
type untrusted struct{ err error }

func (e *untrusted) Error() string { return e.err.Error() }
func (e *untrusted) Unwrap() error { return e.err }

// unsent is why a request was not sent.
type unsent struct{ error }

func (e *unsent) Unwrap() error { return e.error }

// refusal returns the gateway's refusal in err, or nil.
func refusal(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return nil
}
