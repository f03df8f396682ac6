package redis

import (
	"errors"
	"fmt"
	"time"

	"fencepost/internal/fencing"
)

// reply is what every script answers: see prelude.lua.
type reply struct {
	code    fencing.Code
	reason  string
	now     fencing.Instant
	late    time.Duration
	token   fencing.Token
	margin  time.Duration
	fresh   bool
	skewed  bool
	ended   []fencing.Ended
	records []any // strings: records, or empty ones
}

// Reasons of clock_skew beside a difference of the clocks.
const (
	reasonFloor     = "floor"
	reasonExhausted = "exhausted"
)

var errReply = errors.New("redis: a script's reply can't be read")

func decodeReply(name fencing.Name, value any) (reply, error) {
	parts, ok := value.([]any)
	if !ok || len(parts) < 2 {
		return reply{}, errReply
	}
	head, ok1 := parts[0].(string)
	ended, ok2 := parts[1].(string)
	if !ok1 || !ok2 {
		return reply{}, errReply
	}
	f := lines{rest: head}
	r := reply{
		code:   fencing.Code(f.next()),
		reason: f.next(),
		now:    fencing.Instant(f.int()),
		late:   f.micros(),
		token:  fencing.Token(f.int()),
		margin: f.micros(),
	}
	for _, flag := range f.rest {
		switch flag {
		case 'f':
			r.fresh = true
		case 's':
			r.skewed = true
		}
	}
	r.records = parts[2:]
	if ended != "" {
		e := lines{rest: ended}
		reason, at := e.next(), e.int()
		record, err := decodeRecord(e.rest)
		if e.bad || err != nil || len(record.Holders) != 1 {
			return reply{}, errReply
		}
		r.ended = []fencing.Ended{{
			Name: name, Holder: record.Holders[0].Holder,
			Reason: fencing.Reason(reason), At: fencing.Instant(at),
		}}
	}
	if f.bad {
		return reply{}, errReply
	}
	return r, nil
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
			Detail: fmt.Sprintf("no live lease on this name has the token %d", c.args[argsFixed+verbKeys+argVerb]),
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
