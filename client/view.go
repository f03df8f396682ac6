package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Lock is the public view of a lock.
type Lock struct {
	Name        string   `json:"name"`
	Held        bool     `json:"held"`
	Mode        string   `json:"mode,omitempty"` // exclusive or shared
	Token       int64    `json:"fencing_token"`  // the last one issued; 0: none is known
	Holders     []Holder `json:"holders"`        // 100 at most, 10 in a list: those that expire first
	HolderCount int      `json:"holder_count"`
	Waiting     int      `json:"waiting"`
	Delayed     int64    `json:"delayed_ms,omitempty"` // how long it takes until anybody is granted it, for the [LockDelay] of a lease that has ended
	Waiters     []Waiter `json:"waiters,omitempty"`    // the first 100; none in a list
	Fence       Fence    `json:"fence"`
	Advice      []Advice `json:"advice,omitempty"` // what there is to remark on how it is used; none in a list
}

// Holder is the public view of a lease.
type Holder struct {
	Lease      string            `json:"lease"` // the public part of the lease id
	Owner      string            `json:"owner"`
	Mode       string            `json:"mode"`
	Token      int64             `json:"fencing_token"`
	Limit      int               `json:"limit,omitempty"`   // of a permit
	Slot       *int              `json:"slot,omitempty"`    // of a permit; of several the lowest
	Permits    int               `json:"permits,omitempty"` // of several permits, how many
	Slots      []int             `json:"slots,omitempty"`   // of several permits; 64 at most
	Hold       int               `json:"hold"`
	TTL        int64             `json:"ttl_ms"`
	ExpiresIn  int64             `json:"expires_in_ms"`
	LockDelay  int64             `json:"lock_delay_ms,omitempty"` // see [LockDelay]
	AcquiredAt time.Time         `json:"acquired_at"`
	ExpiresAt  time.Time         `json:"expires_at"`     // a TTL after the last renewal, unless max_hold_ms or a notice ends it sooner
	Attached   bool              `json:"attached"`       // a stream holds it, and its gateway renews it: see [Attached]
	Left       bool              `json:"left,omitempty"` // its holder has released it, and had it live on: see [AtLeast]
	Metadata   map[string]string `json:"metadata"`

	// Of one that was given notice of a break: when it is broken at the latest, and why.
	BreaksIn    *int64     `json:"breaks_in_ms,omitempty"`
	BreaksAt    *time.Time `json:"breaks_at,omitempty"`
	BreakReason string     `json:"break_reason,omitempty"`
}

// Waiter is who waits for a lock.
type Waiter struct {
	Lease    string `json:"lease"`
	Owner    string `json:"owner"`
	Mode     string `json:"mode"`
	Limit    int    `json:"limit,omitempty"`   // of who waits for a permit
	Permits  int    `json:"permits,omitempty"` // it asks for, if several
	Position int    `json:"position"`          // from 1
	Waited   int64  `json:"waiting_ms"`

	// EstimatedWait is about how much longer it will wait, in milliseconds; 0: too little is known.
	EstimatedWait int64 `json:"estimated_wait_ms,omitempty"`
}

// Advice is a remark on how a lock is used. Nothing follows from it.
type Advice struct {
	Code  string `json:"code"` // ttl_short and the like: api/openapi.yaml
	Text  string `json:"text"` // a sentence for people
	Count int    `json:"count"`
	Of    int    `json:"of"` // leases that were looked at, of which Count are so
	TTL   int64  `json:"ttl_ms"`
	Held  int64  `json:"held_ms"`
	Lease string `json:"lease,omitempty"` // the public part of that of the holder it is about; empty: of ended leases
}

// Fence is what is known of a lock's tokens.
type Fence struct {
	HighestIssued   int64 `json:"highest_issued"`
	HighestAdmitted int64 `json:"highest_admitted"`
}

// Inspect looks at a lock, held or free.
func (c *Client) Inspect(ctx context.Context, name string) (l Lock, err error) {
	path, err := pathOf("/locks/", name)
	if err != nil {
		return l, err
	}
	return look(ctx, c, path, func(l *Lock) bool { return l.Name == name })
}

// List returns the locks that are held and whose names begin with prefix, in the order of
// their names; an error is the last thing it yields.
func (c *Client) List(ctx context.Context, prefix string) iter.Seq2[Lock, error] {
	return c.Find(ctx, Filter{Prefix: prefix})
}

// Filter says which of the held locks are wanted; the zero Filter wants all.
type Filter struct {
	Prefix        string        // of the name
	Query         string        // a part of the name, of an owner, a lease or the metadata, whatever the case
	Mode          string        // exclusive or shared
	HeldFor       time.Duration // somebody has held it for so long; whole milliseconds
	ExpiresWithin time.Duration // a lease expires within this time; whole milliseconds
	Waiting       bool          // somebody waits
	Attached      bool          // a lease is attached to a stream
	Unrenewed     bool          // a lease was never renewed
}

func (f Filter) values() url.Values {
	query := url.Values{"prefix": {f.Prefix}}
	set := func(name, value string, is bool) {
		if is {
			query.Set(name, value)
		}
	}
	set("q", f.Query, f.Query != "")
	set("mode", f.Mode, f.Mode != "")
	set("held_for_ms", strconv.FormatInt(f.HeldFor.Milliseconds(), 10), f.HeldFor != 0)
	set("expires_within_ms", strconv.FormatInt(f.ExpiresWithin.Milliseconds(), 10), f.ExpiresWithin != 0)
	set("waiting", "true", f.Waiting)
	set("attached", "true", f.Attached)
	set("unrenewed", "true", f.Unrenewed)
	return query
}

// Find is List of the locks that a filter lets through.
func (c *Client) Find(ctx context.Context, f Filter) iter.Seq2[Lock, error] {
	return func(yield func(Lock, error) bool) {
		for cursor := ""; ; {
			query := f.values()
			if cursor != "" {
				query.Set("cursor", cursor)
			}
			type locks struct {
				Locks []Lock `json:"locks"`
				Next  string `json:"next_cursor"`
			}
			page, err := look(ctx, c, "/locks?"+query.Encode(), func(p *locks) bool { return p.Locks != nil })
			if err != nil {
				yield(Lock{}, err)
				return
			}
			for _, l := range page.Locks {
				if !yield(l, nil) {
					return
				}
			}
			if cursor = page.Next; cursor == "" {
				return
			}
		}
	}
}

// Past is a lease of a lock's history.
type Past struct {
	Lease      string     `json:"lease"`
	Owner      string     `json:"owner"`
	Mode       string     `json:"mode"`
	Token      int64      `json:"fencing_token"`
	AcquiredAt time.Time  `json:"acquired_at"`
	EndedAt    *time.Time `json:"ended_at,omitempty"` // nil: it is held
	Held       int64      `json:"held_ms"`
	Waited     int64      `json:"waited_ms"`
	Outcome    string     `json:"outcome"` // held, released, expired or broken

	BreakReason string `json:"break_reason,omitempty"` // of one that was broken, if a reason was given
}

// History returns the last leases of a lock, the newest first.
func (c *Client) History(ctx context.Context, name string) ([]Past, error) {
	path, err := pathOf("/history/", name)
	if err != nil {
		return nil, err
	}
	type history struct {
		Grants []Past `json:"grants"`
	}
	h, err := look(ctx, c, path, func(h *history) bool { return h.Grants != nil })
	return h.Grants, err
}

// Break ends a live lease, whoever holds it; token says which. Its holder learns of it
// with the next renewal, and the reason, which may be empty and has at most 256 bytes.
// Breaking it again is no error; a token that no live lease has is CodeStaleToken.
func (c *Client) Break(ctx context.Context, name string, token int64, reason string) error {
	_, _, err := c.breakLease(ctx, name, token, 0, reason)
	return err
}

// BreakWithNotice has a live lease broken when notice is over, 100 ms to 24 h in whole
// milliseconds, and not before the expiry that its holder was last told of; until then its
// holder has it and may finish (OnNotice). It returns the lease as it is, and false if it has
// been broken already. Of several notices the earliest end counts, with its reason; Break
// ends the lease at once all the same. Errors are as those of Break.
func (c *Client) BreakWithNotice(ctx context.Context, name string, token int64, notice time.Duration, reason string) (h Holder, held bool, err error) {
	if notice < minTTL || notice > maxTTL || notice%time.Millisecond != 0 {
		return h, false, invalid("notice_ms", "is %s; it must be whole milliseconds, from %d to %d", notice, minTTL.Milliseconds(), maxTTL.Milliseconds())
	}
	return c.breakLease(ctx, name, token, notice, reason)
}

func (c *Client) breakLease(ctx context.Context, name string, token int64, notice time.Duration, reason string) (h Holder, held bool, err error) {
	var body any
	if reason != "" {
		body = map[string]string{"reason": reason}
	}
	path, err := pathOf("/locks/", name)
	if err != nil {
		return h, false, err
	}
	if notice != 0 {
		path += "?notice_ms=" + strconv.FormatInt(notice.Milliseconds(), 10)
	}
	r := call{method: http.MethodDelete, path: path, ifMatch: `"` + strconv.FormatInt(token, 10) + `"`, body: body}
	r.read = func(status int, body []byte) error {
		if status != http.StatusAccepted {
			return done(status, body)
		}
		if err := json.Unmarshal(body, &h); err != nil || h.Lease == "" {
			return errNoGateway
		}
		return nil
	}
	if _, err = c.insist(ctx, r); err != nil {
		return Holder{}, false, err
	}
	return h, h.Lease != "", nil
}

// Evict takes a waiter out of the queue of a lock; lease is the public part of its lease id, as
// Lock.Waiters has it. Its request is answered at once, with ErrEvicted and the reason,
// which may be empty and has at most 256 bytes. Evicting it again is no error. CodeNotFound: no
// such lease waits; CodeConflict: it holds the lock by now, with Error.CurrentToken to Break.
func (c *Client) Evict(ctx context.Context, name, lease, reason string) error {
	var body any
	if reason != "" {
		body = map[string]string{"reason": reason}
	}
	path, err := pathOf("/queues/", name)
	if err != nil {
		return err
	}
	_, err = c.insist(ctx, call{method: http.MethodDelete, path: path + "?" + url.Values{"lease": {lease}}.Encode(), body: body, read: done})
	return err
}

// look reads what a gateway shows, which right has to find right.
func look[T any](ctx context.Context, c *Client, path string, right func(*T) bool) (v T, err error) {
	_, err = c.insist(ctx, call{method: http.MethodGet, path: path, read: into(&v, right)})
	return v, err
}

// Event is something that happened to a lock. It tells what was, and guards nothing.
type Event struct {
	// Kind is granted, released, expired, broken, notice (of a break), queued, left, or resync:
	// events may be missing before this one, so look again.
	Kind  string    `json:"event"`
	Name  string    `json:"name"`
	Lease string    `json:"lease"`
	Owner string    `json:"owner"`
	Mode  string    `json:"mode"`
	Token int64     `json:"fencing_token,omitempty"`
	At    time.Time `json:"at"`

	Waited      int64      `json:"waited_ms,omitempty"`    // granted: the time in the queue before
	Held        int64      `json:"held_ms,omitempty"`      // released, expired, broken: for how long
	BreaksAt    *time.Time `json:"breaks_at,omitempty"`    // of a notice: when the lease is broken at the latest
	BreakReason string     `json:"break_reason,omitempty"` // of a notice, a break or an eviction, if one was given
	Evicted     bool       `json:"evicted,omitempty"`      // left: an administrator took the place away
}

// Events yields what happens to locks whose names begin with prefix, until the context ends, or the client is closed
// (ErrClosed). A stream that breaks off is opened again where it was, at another gateway too; where that is not known
// it goes on with a resync. An error is the last thing that is yielded.
func (c *Client) Events(ctx context.Context, prefix string) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if err := c.made(); err != nil {
			yield(Event{}, err)
			return
		}
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(c.ctx, func() { cancel(ErrClosed) })()
		r := call{method: http.MethodGet, path: "/events?" + url.Values{"prefix": {prefix}}.Encode(), stream: true, kind: toWait}
		again := false // there was a stream before
		for retry := c.newRetry(); ; {
			within := retry.begin()
			s, err := c.open(ctx, retry.turn, r, within)
			goesOn := true
			if err == nil {
				if again && r.lastEvent == "" {
					goesOn = yield(Event{Kind: "resync"}, nil)
				}
				again = true
			}
			for err == nil && goesOn {
				var e event
				if e, err = s.word(ctx, silence, nil); err == nil {
					goesOn, err = e.tell(yield)
				}
				if err == nil && e.id != "" {
					r.lastEvent = e.id
				}
			}
			if s != nil {
				s.close()
				retry.broken(err)
			}
			switch {
			case !goesOn:
				return
			case ctx.Err() != nil, errors.Is(err, ErrClosed):
				yield(Event{}, cmp.Or(context.Cause(ctx), ErrClosed))
				return
			case toWait.fate(err) == final:
				yield(Event{}, err)
				return
			}
			if err := retry.rest(ctx, toWait, err); err != nil {
				yield(Event{}, err)
				return
			}
		}
	}
}

// tell yields an event, unless it is a comment or says no more than where the stream stands.
func (e event) tell(yield func(Event, error) bool) (goesOn bool, err error) {
	if e.name == "" {
		return true, nil
	}
	told := Event{}
	if err := json.Unmarshal(e.data, &told); err != nil {
		return true, errNoGateway
	}
	told.Kind = e.name
	return yield(told, nil), nil
}

// Readiness is what one gateway says of itself and its store.
type Readiness struct {
	Address string  `json:"address"`
	Ready   bool    `json:"ready"`
	Detail  string  `json:"detail,omitempty"` // why it is not ready
	Err     error   `json:"-"`                // why it could not be asked, or what it has answered in place of being ready
	Store   string  `json:"store,omitempty"`
	Version string  `json:"version,omitempty"`
	Checks  []Check `json:"checks,omitempty"`
}

// Check is one thing that a gateway has looked at.
type Check struct {
	Name      string `json:"name"`
	OK        bool   `json:"ok"`
	Took      *int64 `json:"took_ms,omitempty"`
	Remaining *int64 `json:"remaining_ms,omitempty"`
	Node      string `json:"node,omitempty"`
	Promise   string `json:"promise,omitempty"` // that is in danger
	Detail    string `json:"detail,omitempty"`
	Remedy    string `json:"remedy,omitempty"`
}

// Examine asks every gateway, once, whether it is ready and what it has found.
func (c *Client) Examine(ctx context.Context) (all []Readiness) {
	for i, address := range c.options.Addresses {
		r := Readiness{Address: address}
		body, err := c.examine(ctx, uint32(i))
		if r.Ready, r.Err = err == nil, err; err != nil {
			r.Detail = err.Error()
		}
		if json.Valid(body) {
			_ = json.Unmarshal(body, &r)
			r.Address = address
		}
		all = append(all, r)
	}
	return all
}

// examine asks the gateway of a turn.
func (c *Client) examine(ctx context.Context, turn uint32) ([]byte, error) {
	limited, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	a, err := c.exchange(limited, turn, call{method: http.MethodGet, path: "/readyz?verbose"})
	if err != nil && errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = fmt.Errorf("no answer within %s", answerTimeout)
	}
	return a.body, err
}
