package redis

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"fencepost/internal/fencing"
)

// reply is what every script answers: see prelude.lua.
type reply struct {
	code    fencing.Code
	reason  string
	now     fencing.Instant
	late    time.Duration
	token   fencing.Token // of the newer grant
	margin  time.Duration
	granted grant
	fresh   bool
	skewed  bool
	ended   []fencing.Ended
	records []any // strings: records, or empty ones
}

// grant is what a grant adds to its request; zero if the script made none.
type grant struct {
	token     fencing.Token
	expiresAt fencing.Instant
}

// Reasons of clock_skew beside a difference of the clocks.
const (
	reasonFloor     = "floor"
	reasonExhausted = "exhausted"
)

var errReply = errors.New("redis: a script's reply can't be read")

func decodeReply(name fencing.Name, value any) (reply, error) {
	head, alone := value.(string)
	var records []any
	if !alone {
		parts, ok := value.([]any)
		if !ok || len(parts) == 0 {
			return reply{}, errReply
		}
		if head, ok = parts[0].(string); !ok {
			return reply{}, errReply
		}
		records = parts[1:]
	}
	f := lines{rest: head}
	r := reply{code: fencing.Code(f.next()), now: fencing.Instant(f.int())}
	made := false
	for _, flag := range f.next() {
		switch flag {
		case 'f':
			r.fresh = true
		case 'g':
			made = true
		case 's':
			r.skewed = true
		}
	}
	if how := f.next(); how != "" {
		var err error
		if r.ended, err = decodeEnded(name, fencing.Reason(how), r.now, records); err != nil {
			return reply{}, err
		}
		records = records[:len(records)-1]
	}
	r.records = records
	r.decodeDetail(&f, made)
	if f.bad {
		return reply{}, errReply
	}
	return r, nil
}

// decodeDetail reads what the code brings with it.
func (r *reply) decodeDetail(f *lines, made bool) {
	switch {
	case made:
		d := fields{rest: f.rest}
		r.granted = grant{token: fencing.Token(d.number()), expiresAt: fencing.Instant(d.number())}
		f.bad = f.bad || d.bad
	case f.rest == "":
	case r.code == fencing.CodeOK:
		f.rest += "\n"
		r.margin = f.micros()
	default:
		f.rest += "\n"
		if r.reason = f.next(); f.rest != "" {
			r.late = f.micros()
		}
		if f.rest != "" {
			r.token = fencing.Token(f.int())
		}
	}
}

// decodeEnded reads the lease that a script ended: the last of the records.
func decodeEnded(name fencing.Name, how fencing.Reason, now fencing.Instant, records []any) ([]fencing.Ended, error) {
	if len(records) == 0 {
		return nil, errReply
	}
	text, _ := records[len(records)-1].(string)
	was, err := decodeRecord(text)
	if err != nil || len(was.Holders) != 1 {
		return nil, errUnreadable
	}
	e := fencing.Ended{Name: name, Holder: was.Holders[0].Holder, Reason: how, At: now}
	if how == fencing.ReasonExpired {
		e.At = e.Holder.ExpiresAt
	}
	return []fencing.Ended{e}, nil
}

// record returns the n-th record of the reply, nil if it has none.
func (r *reply) record(n int) (*fencing.Record, error) {
	if n >= len(r.records) {
		return nil, nil
	}
	text, ok := r.records[n].(string)
	if !ok {
		return nil, errReply
	}
	if text == "" {
		return nil, nil
	}
	return decodeRecord(text)
}

// refusal returns the error of a reply that is not ok, as Step would. The record
// is what the reply shows, nil if nothing.
func (s *Store) refusal(c *command, r *reply, record *fencing.Record) *fencing.Error {
	switch r.code {
	case fencing.CodeClockSkew:
		switch r.reason {
		case reasonFloor:
			return &fencing.Error{Code: r.code, Detail: "the highest token seen from this store is more than an hour ahead of its clock"}
		case reasonExhausted:
			return &fencing.Error{Code: r.code, Detail: "the store's clock or counter is beyond the largest token"}
		}
		return fencing.SkewError(fencing.Guard{Sent: c.sent, MaxSkew: s.options.MaxSkew}, r.now)
	case fencing.CodeLeaseLost:
		reason := fencing.Reason(r.reason)
		return &fencing.Error{Code: r.code, Reason: reason, Late: r.late, CurrentToken: r.token, Detail: lostDetail[reason]}
	case fencing.CodeLocked:
		view := record.View(c.name, r.now)
		return &fencing.Error{Code: r.code, Detail: "somebody else holds the lock", Lock: view, RetryAfter: view.NextExpiry()}
	case fencing.CodeStaleToken:
		return &fencing.Error{
			Code:   r.code,
			Detail: "no live lease on this name has the token " + strings.TrimLeft(string(c.claim), "0"),
			Lock:   record.View(c.name, r.now),
		}
	}
	return fencing.Unavailable(fmt.Errorf("redis: a script answered with the code %q", r.code))
}

// lostDetail says the same as Step does; a test compares them.
var lostDetail = map[fencing.Reason]string{
	fencing.ReasonExpired:    "the lease ran out; nobody has had the lock since",
	fencing.ReasonSuperseded: "the lease ran out, and the lock has been granted again since",
	fencing.ReasonBroken:     "an administrator broke the lease",
	fencing.ReasonReleased:   "the lease was released",
	fencing.ReasonUnknown:    "no such lease on this name: it was never granted, its secret is another, or it ended too long ago to be remembered",
}
