package fencing

import (
	"strconv"
	"time"
)

// Token is a fencing token: a positive integer below 2^53, strictly increasing
// per name in the order of grants and unchanged by renewals. 0 means none.
//
// It is max(counter+1, clock in microseconds, floor+1, the name's last token+1).
// The counter belongs to a partition of names, so no name leaks one; the clock
// carries the sequence over a lost counter.
type Token int64

// MaxToken is the largest token: doubles (JSON in browsers, Lua) count exactly
// up to here.
const MaxToken Token = 1<<53 - 1

// MaxFloorLead is how far a floor may lie ahead of both the store's clock and
// its counter. A floor further ahead comes from a clock that was wrong; obeying
// it would poison every resource the tokens fence.
const MaxFloorLead = time.Hour

func (t Token) String() string { return strconv.FormatInt(int64(t), 10) }

// ParseToken reads a token: decimal digits without sign or leading zero, 1 to
// MaxToken. The *Error names field.
func ParseToken(field, s string) (Token, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 1 || n > int64(MaxToken) || strconv.FormatInt(n, 10) != s {
		return 0, invalid(field, "must be a fencing token: an integer from 1 to %d", MaxToken)
	}
	return Token(n), nil
}

// nextToken returns the token of the next grant, or an error with
// CodeClockSkew when the floor is refused or no token is left.
func nextToken(counter, last, floor Token, now Instant) (Token, *Error) {
	if floor > counter && floor > Token(now.Add(MaxFloorLead)) {
		return 0, FloorError()
	}
	token := max(counter+1, Token(now), floor+1, last+1)
	if token > MaxToken {
		return 0, ExhaustedError()
	}
	return token, nil
}
