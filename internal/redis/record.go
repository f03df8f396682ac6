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

// What the scripts write are texts of fields with a fixed width, so that a script
// finds one by its place, then lines. A lease, held or waited for, is a holding:
//
//	16  token       0 of a place
//	16  expires_at  µs; of a place when its rest ends, 0 while it is connected
//	43  secret      SHA-256 of the secret, base64url
//	26  lease       public part
//	16  stamp       of the request; dashes: none
//	16  acquired_at µs; 0 of a place
//	16  joined_at   µs
//	 1  mode        x: exclusive; s: shared
//	 1  state       p: provisional; f: firm; c: with a token that was claimed; F, C: told
//	 1  keep        k: its place may rest; -: it may not
//	    gateway     where the request is or was, one line each from here on; may be
//	                empty of a firm lease
//	    seq         µs, the order in the queue; empty: joined_at + 1
//	    limit       0 for none
//	    slot        -1 for none
//	    hold
//	    ttl         µs
//	    grant_ttl   µs
//	    max_hold    µs, 0 for none
//	    set         fencing.AcquireRequest.Set, or @ and the stamp of the stream that
//	                the lease is attached to
//	    owner
//	    metadata    a JSON object; empty: none; without a line break at its end
//
// The record of a name is one text:
//
//	  1  kind        x: one exclusive firm lease, with the last token, and no place; -: neither lease nor
//	                 place; q: anything else
//	  1  count       of the tokens in broken
//	 16  admitted    the highest token a fence admitted
//	 16  idle_since  µs; the record may go fencing.ForgetAfter later, if idle; of x
//	                 the highest token of a lease that is over: ended
//	 16  born        µs, when the first token was issued since the name was last forgotten
//	 16  last        the last token issued; of x it is the token of the holding,
//	                 which starts here
//	 16  queue_last  the highest seq given; from here to resting only of q
//	 16  stuck       µs, when a hand-off is to be tried again; 0: never
//	 16  rest_till   µs, no rest ends before; 0 where none rests
//	 16  ended       the highest token of a lease that is over, or higher
//	     gateways    a line: 16 each, :, connected places, :, provisional leases, ;
//	     holders     a line, how many
//	     resting     a line, how many places rest
//	     holding     of the only holder; several are under keys of their own
//	16 each  broken  the last tokens that were broken, oldest first
//
// No line can contain a newline: owner and metadata have no control characters.
const (
	kindExclusive = 'x'
	kindFree      = '-'
	kindRich      = 'q'
	digits        = 16 // of a token or an instant
	stampLen      = 16
	gatewayLen    = 16
	secretLen     = 43
	leaseLen      = 26
	noStamp       = "----------------"
	streamMark    = "@"
)

var errUnreadable = errors.New("redis: a record can't be read")

// record is what Go needs to know of a name's record.
type record struct {
	kind     byte
	admitted fencing.Token
	forgetAt fencing.Instant
	born     fencing.Instant
	last     fencing.Token
	waiting  map[fencing.Gateway]int // of kindRich: connected places
	pending  int                     // of kindRich: provisional leases
	resting  int
	holders  int               // how many there are
	holdings []fencing.Holding // one of kindExclusive; of kindRich only if there is one
}

// decodeRecord reads a record of any kind.
func decodeRecord(s string) (record, error) {
	if len(s) < 2+4*digits {
		return record{}, errUnreadable
	}
	r := record{kind: s[0]}
	count := int(s[1] - '0')
	f := fields{rest: s[2:]}
	r.admitted, r.forgetAt, r.born = fencing.Token(f.number()), fencing.Instant(f.number()), fencing.Instant(f.number())
	if r.kind == kindExclusive {
		r.forgetAt = 0
	}
	if r.forgetAt != 0 {
		r.forgetAt = r.forgetAt.Add(fencing.ForgetAfter)
	}
	broken := fields{rest: f.last(count * digits)}
	for range len(broken.rest) / digits {
		broken.number()
	}
	at := f
	r.last = fencing.Token(f.number())
	switch r.kind {
	case kindExclusive:
		r.holders = 1
		f = at
	case kindFree:
		f.bad = f.bad || f.rest != ""
	case kindRich:
		f.queue(&r)
	default:
		f.bad = true
	}
	if f.bad || broken.bad {
		return record{}, errUnreadable
	}
	if r.holders == 1 {
		h, err := decodeHolding(f.rest)
		if err != nil {
			return record{}, err
		}
		r.holdings = []fencing.Holding{h}
	}
	return r, nil
}

// queue reads what only kindRich has.
func (f *fields) queue(r *record) {
	for range 4 {
		f.number()
	}
	l := lines{rest: f.rest}
	r.waiting = map[fencing.Gateway]int{}
	for entry := range strings.SplitSeq(strings.TrimSuffix(l.next(), ";"), ";") {
		if entry == "" {
			continue
		}
		parts := strings.Split(entry, ":")
		if len(parts) != 3 {
			f.bad = true
			return
		}
		places, err := strconv.Atoi(parts[1])
		leases, errLeases := strconv.Atoi(parts[2])
		f.bad, r.pending = f.bad || err != nil || errLeases != nil, r.pending+leases
		if places > 0 {
			r.waiting[fencing.Gateway(parts[0])] = places
		}
	}
	r.holders, r.resting = int(l.int()), int(l.int())
	f.rest, f.bad = l.rest, f.bad || l.bad
}

// decodeHolding reads a lease, or a place.
func decodeHolding(s string) (fencing.Holding, error) {
	h := fencing.Holding{}
	f := fields{rest: s}
	h.Token = fencing.Token(f.number())
	h.ExpiresAt = fencing.Instant(f.number())
	h.Secret = f.hash()
	h.Lease = fencing.LeasePublic(f.first(leaseLen))
	h.Stamp = unpadded(f.first(stampLen))
	h.AcquiredAt = fencing.Instant(f.number())
	h.JoinedAt = fencing.Instant(f.number())
	flags := f.first(3)
	if f.bad {
		return h, errUnreadable
	}
	h.Mode = modeOf(flags[:1])
	h.Provisional, h.Claimed = flags[1] == 'p', flags[1] == 'c' || flags[1] == 'C'
	h.Told, h.Keep = flags[1] == 'F' || flags[1] == 'C', flags[2] == 'k'
	l := lines{rest: f.rest}
	h.Gateway, h.Seq = fencing.Gateway(l.next()), h.JoinedAt+1
	if seq := l.next(); seq != "" {
		n, err := strconv.ParseInt(seq, 10, 64)
		h.Seq, l.bad = fencing.Instant(n), l.bad || err != nil
	}
	h.Limit, h.Slot, h.Hold = int(l.int()), int(l.int()), int(l.int())
	h.TTL, h.GrantTTL, h.MaxHold = l.micros(), l.micros(), l.micros()
	if h.Set = l.next(); strings.HasPrefix(h.Set, streamMark) {
		h.Set, h.Attached = "", unpadded(h.Set[1:])
	}
	h.Owner = l.next()
	if h.AcquiredAt != 0 {
		h.Waited = h.AcquiredAt.Sub(h.JoinedAt)
	}
	if l.bad || l.rest != "" && json.Unmarshal([]byte(l.rest), &h.Metadata) != nil {
		return h, errUnreadable
	}
	return h, nil
}

// modeOf reads a mode.
func modeOf(text string) fencing.Mode {
	if text == "x" {
		return fencing.ModeExclusive
	}
	return fencing.ModeShared
}

// unpadded returns a stamp as it was given.
func unpadded(text string) fencing.Stamp { return fencing.Stamp(strings.TrimRight(text, "-")) }

// waiter returns the public view of a place.
func waiter(h *fencing.Holding, now fencing.Instant, position int) fencing.Waiter {
	return fencing.Waiter{Lease: h.Lease, Owner: h.Owner, Mode: h.Mode, Position: position, Waiting: now.Sub(h.JoinedAt)}
}

// encodeTail returns what the holding of a new grant ends with, from mode on. The
// *fencing.Error has CodeInvalidRequest.
func encodeTail(r *fencing.AcquireRequest) (string, error) {
	switch {
	case len(r.Lease.Public()) != leaseLen:
		return "", &fencing.Error{Code: fencing.CodeInvalidRequest, Field: "Lease-Id", Detail: "is missing"}
	case len(r.Stamp) > stampLen:
		return "", &fencing.Error{Code: fencing.CodeInvalidRequest, Field: "stamp", Detail: "has more than 16 characters"}
	case strings.IndexByte(r.Owner, '\n') >= 0:
		return "", &fencing.Error{Code: fencing.CodeInvalidRequest, Field: "owner", Detail: "has a line break"}
	case strings.IndexByte(r.Set, '\n') >= 0:
		return "", &fencing.Error{Code: fencing.CodeInvalidRequest, Field: "names", Detail: "has a line break"}
	}
	var space [256]byte
	ttl, limit := r.TTL.Microseconds(), 1
	b := append(space[:0], "xf-\n\n"...)
	if r.Mode == fencing.ModeShared {
		b[0], limit = 's', r.Limit
	}
	if r.Keep && r.Wait > 0 {
		b[2] = 'k'
	}
	b = append(strconv.AppendInt(b, int64(limit), 10), "\n-1\n1\n"...)
	b = append(strconv.AppendInt(b, ttl, 10), '\n')
	b = append(strconv.AppendInt(b, ttl, 10), '\n')
	b = append(strconv.AppendInt(b, r.MaxHold.Microseconds(), 10), '\n')
	b = append(append(b, setOf(r)...), '\n')
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

// appendAsk writes what an acquire asks for beyond the plain rules: see
// acquire.lua.
func appendAsk(to text, r *fencing.AcquireRequest) text {
	rich := r.Mode == fencing.ModeShared || r.Hold > 1 || r.Set != "" || r.Again || r.Attach
	switch {
	case rich:
		to = append(to, 'r')
	case r.Wait > 0:
		to = append(to, 'w')
	case r.Intent > 0 || r.Propose > 0:
		to = append(to, 'i')
	case r.Mode != "":
		to = append(to, 'm')
	default:
		return to
	}
	to = append(strconv.AppendInt(append(to, '\n'), int64(max(r.Hold, 0)), 10), "\n-\n-\n"...)
	if r.Wait > 0 {
		to[len(to)-4] = 'w'
	}
	if r.Again {
		to[len(to)-2] = 'a'
	}
	to = append(strconv.AppendInt(to, int64(max(r.MaxWaiters, 0)), 10), '\n')
	to = append(strconv.AppendInt(to, max(r.Intent.Microseconds(), 0), 10), '\n')
	to = append(strconv.AppendInt(to, max(int64(r.Propose), 0), 10), '\n')
	switch r.Mode {
	case fencing.ModeExclusive:
		to = append(to, "x\n"...)
	case fencing.ModeShared:
		to = append(to, "s\n"...)
	default:
		to = append(to, "-\n"...)
	}
	return append(to, setOf(r)...)
}

// setOf returns what stands for the set: a stream has none.
func setOf(r *fencing.AcquireRequest) string {
	if r.Attach {
		return streamMark
	}
	return r.Set
}

// appendUnwind writes what a release says beyond whose it is: see release.lua.
func appendUnwind(to text, r *fencing.ReleaseRequest) text {
	if r.Stamp != "" {
		to = appendStamp(to, r.Stamp)
	}
	if to = append(to, '\n'); r.Hold > 1 {
		to = strconv.AppendInt(to, int64(r.Hold), 10)
	}
	return to
}

// encodeHolder writes what proves a holder.
func encodeHolder(to text, lease fencing.LeaseID) text {
	hash := lease.Hash()
	return append(base64.RawURLEncoding.AppendEncode(to[:0], hash[:]), lease.Public()...)
}

// encodeClaim writes what proves a holder and the request that made the grant.
func encodeClaim(to text, lease fencing.LeaseID, stamp fencing.Stamp) text {
	return appendStamp(encodeHolder(to, lease), stamp)
}

// appendStamp writes a stamp with all its width.
func appendStamp(to text, stamp fencing.Stamp) text {
	return append(append(to, stamp...), noStamp[min(len(stamp), stampLen):]...)
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
