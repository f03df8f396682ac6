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

// The record of a name is one string of lines, written by the scripts alone:
//
//	last        the last token issued
//	admitted    the highest token a fence admitted
//	forget_at   µs; with no holder: when the record may go
//	broken      the last tokens that were broken, oldest first, by commas
//	mode        exclusive; empty, as are all lines below, when nobody holds it
//	lease       public part
//	secret      SHA-256 of the secret, base64url
//	stamp       of the request that made the grant
//	token       of the lease
//	expires_at  µs, 0 when nobody holds the name
//	hold        depth of re-entry; from here on is the tail, empty when nobody holds it
//	ttl         µs
//	grant_ttl   µs
//	max_hold    µs, 0 for none
//	acquired_at µs
//	waited      µs; from here on is the rest, which the scripts only pass on
//	owner
//	metadata    a JSON object; empty: none; without a line break at its end
//
// No line can contain a newline: owner and metadata have no control characters.
// Shared holders will live under keys of their own, told by the mode.

var errUnreadable = errors.New("redis: a record can't be read")

// encodeRest returns the rest of a record.
func encodeRest(waited time.Duration, owner string, metadata map[string]string) (string, error) {
	text := ""
	if metadata != nil {
		b, err := json.Marshal(metadata)
		if err != nil {
			return "", err
		}
		text = string(b)
	}
	if strings.IndexByte(owner, '\n') >= 0 {
		return "", errors.New("owner has a line break")
	}
	return micros(waited) + "\n" + owner + "\n" + text, nil
}

// decodeRecord reads a record of either kind.
func decodeRecord(text string) (*fencing.Record, error) {
	f := lines{rest: text}
	r := &fencing.Record{
		LastToken:       fencing.Token(f.int()),
		HighestAdmitted: fencing.Token(f.int()),
		ForgetAt:        fencing.Instant(f.int()),
		Broken:          f.tokens(),
	}
	if mode := f.next(); mode != "" {
		r.Holders = []fencing.Holding{decodeHolding(&f, fencing.Mode(mode))}
	} else if f.rest != freeLines {
		f.bad = true
	}
	if f.bad {
		return nil, errUnreadable
	}
	return r, nil
}

// freeLines is what follows the mode when nobody holds the name.
const freeLines = "\n\n\n\n0\n"

func decodeHolding(f *lines, mode fencing.Mode) fencing.Holding {
	h := fencing.Holding{}
	h.Mode, h.Limit, h.Slot = mode, 1, fencing.NoSlot
	h.Lease = fencing.LeasePublic(f.next())
	h.Secret = f.hash()
	h.Stamp = fencing.Stamp(f.next())
	h.Token = fencing.Token(f.int())
	h.ExpiresAt = fencing.Instant(f.int())
	h.Hold = int(f.int())
	h.TTL, h.GrantTTL, h.MaxHold = f.micros(), f.micros(), f.micros()
	h.AcquiredAt = fencing.Instant(f.int())
	h.Waited = f.micros()
	h.Owner = f.next()
	if metadata := f.rest; metadata != "" && json.Unmarshal([]byte(metadata), &h.Metadata) != nil {
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

func (f *lines) hash() (h fencing.SecretHash) {
	line := f.next()
	if len(line) != base64.RawURLEncoding.EncodedLen(len(h)) {
		f.bad = true
		return h
	}
	if _, err := base64.RawURLEncoding.Decode(h[:], []byte(line)); err != nil {
		f.bad = true
	}
	return h
}

func (f *lines) tokens() []fencing.Token {
	line := f.next()
	if line == "" {
		return nil
	}
	var tokens []fencing.Token
	for s := range strings.SplitSeq(line, ",") {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			f.bad = true
		}
		tokens = append(tokens, fencing.Token(n))
	}
	return tokens
}

func encodeHash(h fencing.SecretHash) string { return base64.RawURLEncoding.EncodeToString(h[:]) }

// micros writes a duration for the scripts.
func micros(d time.Duration) string { return strconv.FormatInt(d.Microseconds(), 10) }
