package redis

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	"fencepost/internal/fencing"
)

// The record of a name is one string, written by the scripts alone: fields of
// fixed width, so that a script finds one by its place, then lines.
//
//	  1  kind        x: held exclusively; -: nobody holds it
//	  1  count       of the tokens in broken
//	 16  admitted    the highest token a fence admitted
//	 16  idle_since  µs; the record may go fencing.ForgetAfter later, with no holder
//	 16  last        the last token issued; the lease's
//	 16  expires_at  µs; from here to the metadata only of a held name
//	 43  secret      SHA-256 of the secret, base64url
//	 26  lease       public part
//	 16  stamp       of the request that made the grant; dashes: none
//	 16  acquired_at µs
//	     ttl         µs; from here to the metadata one line each
//	     grant_ttl   µs
//	     max_hold    µs, 0 for none
//	     waited      µs
//	     owner
//	     metadata    a JSON object; empty: none; without a line break at its end
//	16 each  broken  the last tokens that were broken, oldest first
//
// No line can contain a newline: owner and metadata have no control characters.
// Shared holders will live under keys of their own, told by the kind.
const (
	kindExclusive = 'x'
	kindFree      = '-'
	digits        = 16 // of a token or an instant
	stampLen      = 16
	secretLen     = 43
	leaseLen      = 26
	noStamp       = "----------------"
)

var errUnreadable = errors.New("redis: a record can't be read")

// encodeTail returns what the record of a new grant ends with. The *fencing.Error
// has CodeInvalidRequest.
func encodeTail(r *fencing.AcquireRequest) (string, error) {
	switch {
	case len(r.Lease.Public()) != leaseLen:
		return "", &fencing.Error{Code: fencing.CodeInvalidRequest, Field: "Lease-Id", Detail: "is missing"}
	case len(r.Stamp) > stampLen:
		return "", &fencing.Error{Code: fencing.CodeInvalidRequest, Field: "stamp", Detail: "has more than 16 characters"}
	case strings.IndexByte(r.Owner, '\n') >= 0:
		return "", &fencing.Error{Code: fencing.CodeInvalidRequest, Field: "owner", Detail: "has a line break"}
	}
	var space [160]byte
	ttl := r.TTL.Microseconds()
	b := append(strconv.AppendInt(space[:0], ttl, 10), '\n')
	b = append(strconv.AppendInt(b, ttl, 10), '\n')
	b = append(strconv.AppendInt(b, r.MaxHold.Microseconds(), 10), "\n0\n"...)
	b = append(append(b, r.Owner...), '\n')
	if r.Metadata != nil {
		text, err := json.Marshal(r.Metadata)
		if err != nil {
			return "", &fencing.Error{Code: fencing.CodeInvalidRequest, Field: "metadata", Detail: err.Error()}
		}
		b = append(b, text...)
	}
	return string(b), nil
}

// encodeHolder writes what proves a holder.
func encodeHolder(to text, lease fencing.LeaseID) text {
	hash := lease.Hash()
	return append(base64.RawURLEncoding.AppendEncode(to[:0], hash[:]), lease.Public()...)
}

// encodeClaim writes what proves a holder and the request that made the grant.
func encodeClaim(to text, lease fencing.LeaseID, stamp fencing.Stamp) text {
	to = append(encodeHolder(to, lease), stamp...)
	return append(to, noStamp[min(len(stamp), stampLen):]...)
}

// decodeRecord reads a record of either kind.
func decodeRecord(s string) (*fencing.Record, error) {
	if len(s) < 2+3*digits {
		return nil, errUnreadable
	}
	kind, count := s[0], int(s[1]-'0')
	f := fields{rest: s[2:]}
	r := &fencing.Record{HighestAdmitted: fencing.Token(f.number()), ForgetAt: fencing.Instant(f.number())}
	if r.ForgetAt != 0 {
		r.ForgetAt = r.ForgetAt.Add(fencing.ForgetAfter)
	}
	r.LastToken = fencing.Token(f.number())
	broken := fields{rest: f.last(count * digits)}
	switch kind {
	case kindExclusive:
		r.Holders = []fencing.Holding{f.holding(r.LastToken)}
	case kindFree:
		f.bad = f.bad || f.rest != ""
	default:
		f.bad = true
	}
	for range len(broken.rest) / digits {
		r.Broken = append(r.Broken, fencing.Token(broken.number()))
	}
	if f.bad || broken.bad {
		return nil, errUnreadable
	}
	return r, nil
}

// holding reads the fields that only a held name has.
func (f *fields) holding(token fencing.Token) fencing.Holding {
	h := fencing.Holding{}
	h.Mode, h.Limit, h.Slot, h.Hold, h.Token = fencing.ModeExclusive, 1, fencing.NoSlot, 1, token
	h.ExpiresAt = fencing.Instant(f.number())
	h.Secret = f.hash()
	h.Lease = fencing.LeasePublic(f.first(leaseLen))
	h.Stamp = fencing.Stamp(strings.TrimRight(f.first(stampLen), "-"))
	h.AcquiredAt = fencing.Instant(f.number())
	l := lines{rest: f.rest}
	h.TTL, h.GrantTTL, h.MaxHold = l.micros(), l.micros(), l.micros()
	h.Waited = l.micros()
	h.Owner = l.next()
	if l.rest != "" && json.Unmarshal([]byte(l.rest), &h.Metadata) != nil {
		f.bad = true
	}
	f.bad = f.bad || l.bad
	return h
}

// fields reads a text by fields of fixed width. One that is missing or not what
// it should be sets bad.
type fields struct {
	rest string
	bad  bool
}

func (f *fields) first(n int) string {
	if len(f.rest) < n {
		f.bad, f.rest = true, ""
		return ""
	}
	field := f.rest[:n]
	f.rest = f.rest[n:]
	return field
}

// last takes the last n bytes.
func (f *fields) last(n int) string {
	if n < 0 || len(f.rest) < n {
		f.bad = true
		return ""
	}
	at := len(f.rest) - n
	field := f.rest[at:]
	f.rest = f.rest[:at]
	return field
}

// number reads a token or an instant.
func (f *fields) number() int64 {
	n, err := strconv.ParseUint(f.first(digits), 10, 63)
	if err != nil {
		f.bad = true
	}
	return int64(n)
}

func (f *fields) hash() (h fencing.SecretHash) {
	var space [secretLen]byte
	field := f.first(secretLen)
	copy(space[:], field)
	if n, err := base64.RawURLEncoding.Decode(h[:], space[:]); err != nil || n != len(h) {
		f.bad = true
	}
	return h
}

// lines reads a text line by line. A line that is missing or not what it should
// be sets bad.
type lines struct {
	rest string
	bad  bool
}

func (f *lines) next() string {
	line, rest, ok := strings.Cut(f.rest, "\n")
	if !ok {
		f.bad = true
	}
	f.rest = rest
	return line
}

func (f *lines) int() int64 {
	n, err := strconv.ParseInt(f.next(), 10, 64)
	if err != nil {
		f.bad = true
	}
	return n
}

func (f *lines) micros() time.Duration { return time.Duration(f.int()) * time.Microsecond }
