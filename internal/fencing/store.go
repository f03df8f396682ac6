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
// that mean "no" (P8). Beside the codes named at each method and request, all but Close may
// return CodeUnavailable, and those that judge an expiry or issue a token
// CodeClockSkew. When a method that changes something fails with one of these
// two, the change may or may not have been made, or be made a little later.
type Store interface {
	// Capabilities says what the store leaves to its gateway. It is always the same.
	Capabilities() Capabilities

	// Do carries out an operation. What each asks for, what its Outcome has and the codes
	// it is refused with stand at its request type. CodeUnsupportedByStore: the store
	// serves no such operation, see Served; or what only a queue takes, without Capabilities.Queue.
	Do(context.Context, Op) (Outcome, error)

	// List returns live locks in the byte order of their names. CodeUnsupportedByStore: see
	// ListRequest.Waiting.
	List(context.Context, ListRequest) (ListPage, error)

	// Expire ends leases whose time has run out, on at most limit names in one
	// call, and does whatever else time brings about: waiters of dead gateways go,
	// what was not handed on is.
	Expire(ctx context.Context, limit int) (Expiry, error)

	// Listen says who is to hear of this gateway's waiters. It is called once,
	// before the first AcquireRequest that waits.
	Listen(Listener)

	// Heartbeat says that this gateway lives and has waiters, provisional
	// leases or streams on names, tells the Listener what the store has for it, and then does for
	// those names what Expire does. It is to be called every HeartbeatInterval while
	// there are any, and at once after Listener.Gap. A part of the store that fails keeps
	// no other from being told of.
	Heartbeat(ctx context.Context, names []Name) error

	// Watch has sink hear of every change of any lock, on whatever gateway, from
	// now on until stop is called.
	Watch(sink EventSink) (stop func())

	// Stats counts what the store holds.
	Stats(context.Context) (Stats, error)

	// Examine looks at how what keeps the store is set up, and says what that
	// means for the promises; nothing is at fault if all findings are OK.
	Examine(context.Context) ([]Finding, error)

	// Check makes a round trip to the store and fails if the store could not
	// serve now.
	Check(context.Context) error

	// Close lets go of all resources and waits until that is done. Leases stay.
	Close() error
}

// Capabilities says as data what a store does by itself.
type Capabilities struct {
	// Queue: the store keeps a queue of those who wait, in order of arrival and across
	// gateways, and hands on. Without one, an AcquireRequest with a Wait is refused like any other:
	// CodeLocked, with Error.RetryAfter, or CodeQuarantined. Its gateway asks again; see
	// AcquireRequest.Behind and Intent.
	Queue bool

	// LosesMessages: messages and answers to a gateway may be lost, or come when the store has
	// long gone on, as with the leader of a cluster that dies.
	LosesMessages bool

	// LosesGrants: grants that were answered may be lost, as with a Redis that fails over and
	// serves on.
	LosesGrants bool

	// Tells: heartbeats tell what there is for a gateway, the streams that leases hang on
	// included: see Listener.Has. Without Queue there are only those.
	Tells bool

	// WallTime returns what the wall clock was at an instant of the store, or will be, in UTC, for people to be shown. nil: the
	// store's clock is a wall clock, and Instant.Time says it.
	WallTime func(Instant) time.Time
}

// NoQueueError is CodeUnsupportedByStore: what was asked for takes a queue.
func NoQueueError() *Error { return noQueue }

var noQueue = &Error{Code: CodeUnsupportedByStore, Detail: "the store has no queue"}

// Node is a Store that can be one of a quorum's: it serves ClaimRequest too. It is opened so that it leaves a
// server which remembers nothing to the quorum: it grants nothing there before
// Enroll, and Check returns CodeQuarantined until then.
type Node interface {
	Store

	// Memory says what the server remembers.
	Memory(context.Context) (Memory, error)

	// Enroll takes a server into service: a new one at once, any other after a quarantine
	// that lasts at least as long as the longest TTL in use at any node. Only the server
	// that is named is taken, for another one may have forgotten more. One that is in
	// service already stays as it is, but that a quarantine is made as long as that. It
	// returns for how long nothing new is granted.
	Enroll(ctx context.Context, server string, isNew bool, longest time.Duration) (time.Duration, error)
}

// Memory is what a node of a quorum remembers.
type Memory struct {
	Server     string        // which run of which server it is
	Blank      bool          // it remembers nothing at all: it is new, or has forgotten
	InService  bool          // this run of the server was taken into service
	Quarantine time.Duration // for how long nothing new is granted; at least, once it is in service, if it is not
	Longest    time.Duration // the longest TTL in use, as far as is known there
}

// Listener hears what becomes of the requests that wait at a gateway. Its
// methods are called from the store's goroutines and must return at once.
//
// A message may be lost, late or told twice: what counts is in the store.
type Listener interface {
	// Granted tells of a lease that was granted to a waiter. A Provisional one is
	// to be confirmed before it is answered; asked is Outcome.Asked of one that is
	// not.
	Granted(g Grant, now Instant, asked time.Time)

	// Replaced tells of a waiting request whose lease id a newer one has taken
	// over.
	Replaced(name Name, stamp Stamp)

	// Ask tells of a waiting request that is to ask again at once: its place was taken from
	// it, and the answer says why.
	Ask(name Name, stamp Stamp)

	// Has tells, in a Heartbeat, what the store has for this gateway, in as many calls and
	// heartbeats as it likes. It has told all that there was on names ever since an
	// instant: what had no entry is not there, for it was granted firmly, or forgotten; of a
	// stream see Entry. A store without Capabilities.Tells need not tell.
	Has(names []Name, since time.Time, entries []Entry)

	// Gap says that messages may have been lost: a Heartbeat is to be made at once.
	Gap()
}

// EventSink hears events. Its methods are called from the store's goroutines and
// must return at once.
type EventSink interface {
	// Event tells of an event, each once and those of one name in order.
	Event(Event)

	// Gap says that events may have been lost.
	Gap()
}

// ListRequest asks for a page of live locks. What is looked for is looked for in what a
// view shows: MaxHoldersShown holders, and MaxWaitersShown waiters.
type ListRequest struct {
	Prefix string // of the name; empty for all
	After  Name   // only names greater than this; empty to start
	Limit  int    // 1 to MaxListLimit
	Count  bool   // ListPage.Total is wanted

	Query   string        // a part of the name, of an owner or a public lease id, also of a waiter, or of a key or value of a holder's metadata; empty for all
	Mode    Mode          // of the holders; empty for all
	HeldFor time.Duration // only where somebody has held it for so long; 0 for all
	EndsIn  time.Duration // only where a lease ends within this time; 0 for all
	Waiting bool          // only where somebody waits, with the first of the queue. CodeUnsupportedByStore without Capabilities.Queue

	Attached  bool // only where a lease hangs on a stream: see Holder.Attached
	Unrenewed bool // only where a lease was never renewed: see Holder.RenewedAt
}

// Selects reports whether only some of the locks that bear the prefix belong on the
// pages. A store then looks at a bounded number of them a page.
func (r *ListRequest) Selects() bool {
	return r.Query != "" || r.Mode != "" || r.HeldFor > 0 || r.EndsIn > 0 || r.Waiting || r.Attached || r.Unrenewed
}

// LooksAtWaiters reports whether a store needs the Waiters of a lock for Match and Trim.
func (r *ListRequest) LooksAtWaiters() bool { return r.Query != "" || r.Waiting }

// Trim leaves of the Waiters of a lock what a page shows: the first where Waiting is asked for.
func (r *ListRequest) Trim(lock *Lock) {
	if !r.Waiting {
		lock.Waiters = nil
	} else if len(lock.Waiters) > 1 {
		lock.Waiters = lock.Waiters[:1:1]
	}
}

// Match reports whether a lock, whose Waiters are there if LooksAtWaiters says so, belongs on a
// page.
func (r *ListRequest) Match(lock *Lock) bool {
	some := func(is func(*Holder) bool) bool {
		for i := range lock.Holders {
			if is(&lock.Holders[i]) {
				return true
			}
		}
		return false
	}
	switch {
	case !strings.HasPrefix(string(lock.Name), r.Prefix), r.Waiting && lock.Waiting == 0:
		return false
	case r.Mode != "" && !some(func(h *Holder) bool { return h.Mode == r.Mode }):
		return false
	case r.HeldFor > 0 && !some(func(h *Holder) bool { return lock.Now.Sub(h.AcquiredAt) >= r.HeldFor }):
		return false
	case r.EndsIn > 0 && !some(func(h *Holder) bool { return h.ExpiresAt.Sub(lock.Now) <= r.EndsIn }):
		return false
	case r.Attached && !some(func(h *Holder) bool { return h.Attached != "" }):
		return false
	case r.Unrenewed && !some(func(h *Holder) bool { return h.RenewedAt() == h.AcquiredAt }):
		return false
	}
	return r.finds(lock)
}

// finds reports whether Query occurs in a lock, whatever the case of the letters.
func (r *ListRequest) finds(lock *Lock) bool {
	query := strings.ToLower(r.Query)
	in := func(texts ...string) bool {
		return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(strings.ToLower(text), query) })
	}
	if in(string(lock.Name)) {
		return true
	}
	for i := range lock.Holders {
		h := &lock.Holders[i]
		if in(h.Owner, string(h.Lease)) {
			return true
		}
		for key, value := range h.Metadata.All() {
			if in(key, value) {
				return true
			}
		}
	}
	return slices.ContainsFunc(lock.Waiters, func(w Waiter) bool { return in(w.Owner, string(w.Lease)) })
}

// ListPage is a page of live locks.
type ListPage struct {
	Locks []Lock // in name order, their Waiters as Trim leaves them; may be fewer than asked for where the request Selects
	Next  Name   // where to go on: the After of the next page; empty at the end

	// Total is how many names with the prefix have a holder, those included whose
	// expiry has not been noticed, whatever else was asked for; 0 if it was not.
	Total int
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

	// Quarantine is how long it takes at most until everything may be granted
	// again, 0 if there is none. Of a quorum it is how long until every node votes
	// again: a majority may grant before.
	Quarantine time.Duration
}

// Finding is one thing that an examination of a store has looked at.
type Finding struct {
	Node    string // the server it is about; empty where there is only one
	Check   string // what was looked at, such as "eviction"; one word, for labels
	OK      bool   // it endangers nothing
	Unknown bool   // it could not be looked at; OK is false then
	Promise string // what it endangers: "P1", "P2" or "P1, P2"; empty if OK
	Detail  string // how it is, and what that means: a sentence for people
	Remedy  string // what to change; empty if OK, or if nothing is to be changed
}
