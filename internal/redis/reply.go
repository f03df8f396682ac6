package redis

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"fencepost/internal/fencing"
)

// reply is what every script answers: see prelude.lua.
type reply struct {
	code      fencing.Code
	now       fencing.Instant
	detail    string
	fresh     bool
	made      bool // a grant that no item tells of
	joined    bool
	lapsed    bool
	skewed    bool
	unguarded bool          // the partition has no guard
	more      bool          // what has come due is more than one step does
	behind    bool          // the store issued no token as high as the floor
	span      time.Duration // of a renewal: the margin; of expire: until something is due
	granted   grant
	items     []any // what items does not read

	shown    view
	holder   *fencing.Holding
	place    *fencing.Waiter
	ended    []fencing.Ended
	grants   []fencing.Grant
	left     []fencing.Waiter
	replaced *fencing.Parked
	missed   []fencing.Grant // of a heartbeat
	due      []fencing.Name
}

// grant is what a grant by the plain rules adds to its request.
type grant struct {
	token     fencing.Token
	expiresAt fencing.Instant
}

// view is what the public view of a name is made of.
type view struct {
	record  *record           // nil if nothing is remembered of the name
	several []fencing.Holding // at most as many as are shown, and some that ran out
	count   int               // how many are live, where there are several
	last    fencing.Instant   // when the last of several ends
	dead    map[fencing.Gateway]bool
	waiters []fencing.Holding
}

// Reasons of clock_skew beside a difference of the clocks, and what an
// invalid_request is about.
const (
	reasonFloor     = "floor"
	reasonExhausted = "exhausted"
	aboutHold       = "hold"
	aboutNames      = "names"
	aboutMode       = "mode"
	aboutLimit      = "limit"
)

// claimRefused says the same as Step does.
const claimRefused = "the token is not above all that count here, or the lease has another one already"

var errReply = errors.New("redis: a script's reply can't be read")

func decodeReply(c *command, value any) (reply, error) {
	head, alone := value.(string)
	var items []any
	if !alone {
		parts, ok := value.([]any)
		if !ok || len(parts) == 0 {
			return reply{}, errReply
		}
		if head, ok = parts[0].(string); !ok {
			return reply{}, errReply
		}
		items = parts[1:]
	}
	f := lines{rest: head}
	r := reply{code: fencing.Code(f.next()), now: fencing.Instant(f.int())}
	for _, flag := range f.next() {
		switch flag {
		case 'f':
			r.fresh = true
		case 'g':
			r.made = true
		case 'm':
			r.more = true
		case 'j':
			r.joined = true
		case 'l':
			r.lapsed = true
		case 's':
			r.skewed = true
		case 'u':
			r.unguarded = true
		case 'b':
			r.behind = true
		}
	}
	r.detail = f.rest
	if r.made {
		d := fields{rest: f.rest}
		r.granted = grant{token: fencing.Token(d.number()), expiresAt: fencing.Instant(d.number())}
		f.bad = f.bad || d.bad
	} else if r.code == fencing.CodeOK && r.detail != "" && c.script != arriveScript {
		us, err := strconv.ParseInt(r.detail, 10, 64)
		r.span, f.bad = time.Duration(us)*time.Microsecond, f.bad || err != nil
	}
	if f.bad {
		return reply{}, errReply
	}
	if c.script == listScript {
		r.items = items
		return r, nil
	}
	before := ""
	for _, item := range items {
		text, ok := item.(string)
		if !ok || text == "" {
			return reply{}, errUnreadable
		}
		if before == "" && isHeading(text) {
			before = text
			continue
		}
		if err := r.item(c.name, before, text); err != nil {
			return reply{}, err
		}
		before = ""
	}
	if before != "" {
		return reply{}, errReply
	}
	return r, nil
}

// item reads one of the items of a reply, and the one before it, if that is
// about it.
func (r *reply) item(name fencing.Name, before, text string) error {
	var h fencing.Holding
	var err error
	if before != "" || text[0] == 'O' || text[0] == 'G' {
		if h, err = decodeHeld(text); err != nil {
			return err
		}
	}
	if before == "L" {
		r.left = append(r.left, waiter(&h, r.now, 0))
		return nil
	}
	if before != "" {
		ended, err := decodeEnded(name, before, &h)
		r.ended = append(r.ended, ended)
		return err
	}
	switch text[0] {
	case 'O':
		r.holder = &h
	case 'G':
		r.grants = append(r.grants, fencing.Grant{Name: name, Holder: h.Holder, Gateway: h.Gateway, Stamp: h.Stamp, Secret: h.Secret})
	case 'P':
		position, rest, _ := strings.Cut(text[1:], "\n")
		n, _ := strconv.Atoi(position)
		h, err = decodeHolding(rest)
		place := waiter(&h, r.now, n)
		r.place = &place
	case 'X':
		f := fields{rest: text[1:]}
		r.replaced = &fencing.Parked{Gateway: fencing.Gateway(f.first(gatewayLen)), Stamp: unpadded(f.first(stampLen))}
		if f.bad {
			err = errUnreadable
		}
	case 'U':
		of, rest, _ := strings.Cut(text[1:], "\n")
		h, err = decodeHolding(rest)
		r.missed = append(r.missed, fencing.Grant{Name: fencing.Name(of), Holder: h.Holder, Gateway: h.Gateway, Stamp: h.Stamp, Secret: h.Secret})
	case 'T':
		r.due = append(r.due, fencing.Name(text[1:]))
	default:
		err = r.shown.item(text)
	}
	return err
}

// item reads one of the items that the public view is made of.
func (v *view) item(text string) error {
	var h fencing.Holding
	var err error
	switch text[0] {
	case 'H', 'W':
		h, err = decodeHeld(text)
	}
	switch text[0] {
	case kindExclusive, kindFree, kindRich:
		var r record
		r, err = decodeRecord(text)
		v.record = &r
	case 'N':
		l := lines{rest: text[1:] + "\n"}
		v.count, v.last = int(l.int()), fencing.Instant(l.int())
		if l.bad {
			err = errUnreadable
		}
	case 'H':
		v.several = append(v.several, h)
	case 'W':
		v.waiters = append(v.waiters, h)
	case 'D':
		if v.dead == nil {
			v.dead = map[fencing.Gateway]bool{}
		}
		v.dead[fencing.Gateway(text[1:])] = true
	default:
		err = errUnreadable
	}
	return err
}

// holdings returns all that hold the name by the record, in order of grant.
func (v *view) holdings() []fencing.Holding {
	if v.record == nil {
		return nil
	}
	if v.record.holders == 1 {
		return v.record.holdings
	}
	slices.SortFunc(v.several, func(a, b fencing.Holding) int { return cmp.Compare(a.Token, b.Token) })
	return v.several
}

// forgotten is the twin of Record.forgotten.
func (v *view) forgotten(now fencing.Instant) bool {
	if v.record == nil {
		return true
	}
	places := v.record.resting
	for _, n := range v.record.waiting {
		places += n
	}
	if places > 0 {
		return false
	}
	if v.record.pending > 0 {
		return false
	}
	last := v.last
	for _, h := range v.record.holdings {
		last = h.ExpiresAt
	}
	return max(v.record.forgetAt, last.Add(fencing.ForgetAfter)) <= now || v.record.holders == 0 && v.record.forgetAt <= now
}

// lock is the twin of Record.View.
func (v *view) lock(name fencing.Name, now fencing.Instant) *fencing.Lock {
	lock := &fencing.Lock{Name: name, Now: now}
	if v.forgotten(now) {
		return lock
	}
	lock.LastToken, lock.HighestAdmitted = v.record.last, v.record.admitted
	for _, holding := range v.holdings() {
		h := holding.Holder
		if h.Provisional {
			h.ExpiresAt = now.Add(h.TTL)
		}
		if h.Live(now) && (!h.Provisional || !v.dead[holding.Gateway]) {
			lock.Holders = append(lock.Holders, h)
		}
	}
	lock.HolderCount = len(lock.Holders)
	if v.record.holders > 1 {
		lock.HolderCount = v.count
	}
	for gateway, n := range v.record.waiting {
		if !v.dead[gateway] {
			lock.Waiting += n
		}
	}
	for i := range v.waiters {
		lock.Waiters = append(lock.Waiters, waiter(&v.waiters[i], now, i+1))
	}
	return lock
}

// refusal returns the error of a reply that is not ok, as Step would.
func (s *Store) refusal(c *command, r *reply) *fencing.Error {
	first, rest, _ := strings.Cut(r.detail, "\n")
	switch r.code {
	case fencing.CodeClockSkew:
		switch first {
		case reasonFloor:
			return &fencing.Error{Code: r.code, Detail: "the highest token seen from this store is more than an hour ahead of its clock"}
		case reasonExhausted:
			return &fencing.Error{Code: r.code, Detail: "the store's clock or counter is beyond the largest token"}
		}
		return fencing.SkewError(fencing.Guard{Sent: c.sent, MaxSkew: s.options.MaxSkew}, r.now)
	case fencing.CodeLeaseLost:
		reason := fencing.Reason(first)
		err := &fencing.Error{Code: r.code, Reason: reason, Detail: lostDetail[reason]}
		late, token, _ := strings.Cut(rest, "\n")
		us, _ := strconv.ParseInt(late, 10, 64)
		current, _ := strconv.ParseInt(token, 10, 64)
		err.Late, err.CurrentToken = time.Duration(us)*time.Microsecond, fencing.Token(current)
		return err
	case fencing.CodeLocked, fencing.CodeTooManyRequests:
		lock := r.shown.lock(c.name, r.now)
		err := &fencing.Error{Code: r.code, Detail: "somebody else holds the lock", Lock: lock, RetryAfter: lock.NextExpiry()}
		if r.code == fencing.CodeTooManyRequests {
			err.Detail = "as many wait for the lock as may"
		}
		err.Position, _ = strconv.Atoi(first)
		return err
	case fencing.CodeConflict:
		if first == aboutMode {
			rest = string(modeOf(rest))
		}
		return fencing.ConflictError(first, rest)
	case fencing.CodeReplaced:
		return &fencing.Error{Code: r.code, Detail: "a newer request with the same lease id has taken over"}
	case fencing.CodeQuarantined:
		us, _ := strconv.ParseInt(first, 10, 64)
		return fencing.QuarantineError(time.Duration(us) * time.Microsecond)
	case fencing.CodeStaleToken:
		if c.script == claimScript {
			last, _ := strconv.ParseInt(first, 10, 64)
			return &fencing.Error{Code: r.code, Detail: claimRefused, CurrentToken: fencing.Token(last)}
		}
		return &fencing.Error{
			Code:   r.code,
			Detail: "no live lease on this name has the token " + strings.TrimLeft(string(c.claim), "0"),
			Lock:   r.shown.lock(c.name, r.now),
		}
	case fencing.CodeInvalidRequest:
		return invalid(c, first, rest)
	}
	return fencing.Unavailable(fmt.Errorf("redis: a script answered with the code %q", r.code))
}

// invalid returns the refusal of a request that does not go with the lease it is
// about; present is what the lease has.
func invalid(c *command, about, present string) *fencing.Error {
	err := &fencing.Error{Code: fencing.CodeInvalidRequest, Field: about}
	switch about {
	case aboutHold:
		err.Detail = fmt.Sprintf("hold is %d; the lease is held %s deep, and one more is the most", c.hold, present)
		if present == "0" {
			err.Detail = fmt.Sprintf("hold is %d; a first acquire has 1", c.hold)
		}
	case aboutNames:
		err.Field = "Lease-Id"
		err.Detail = "Lease-Id has been used for another set of names; a lease id is for one set"
	case aboutMode:
		err.Detail = `mode is "exclusive" and the lease is shared; an upgrade would deadlock, so release it and acquire anew`
	case aboutLimit:
		err.Detail = "limit is not that of the lease, " + present + " (0 is none); a shared lease keeps its limit"
	}
	return err
}

// lostDetail says the same as Step does; a test compares them.
var lostDetail = map[fencing.Reason]string{
	fencing.ReasonExpired:    "the lease ran out; nobody has had the lock since",
	fencing.ReasonSuperseded: "the lease ran out, and the lock has been granted again since",
	fencing.ReasonBroken:     "an administrator broke the lease",
	fencing.ReasonReleased:   "the lease was released",
	fencing.ReasonUnknown:    "no such lease on this name: it was never granted, its secret is another, or it ended too long ago to be remembered",
}
