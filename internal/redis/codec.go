package redis

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"fencepost/internal/fencing"
)

var (
	errUnreadable = errors.New("redis: a record can't be read")
	errText       = errors.New("redis: an operation can't be written: a text has a zero byte")
)

// codec reads a text, writes one or describes it. What stands in Redis, in an operation
// and in a reply is told field by field in one function each, below: numbers of 7
// bytes, the first the highest, or of 6, 4 and 1; texts up to a zero byte; and hashes. Lua's
// struct.pack and unpack do the same by the format that is described, and the library says
// a field's name where it means its place in the list.
type codec struct {
	mode   byte // reading, writing or describing
	rest   string
	bad    bool // it is cut short, or a text to be written has a zero byte
	b      []byte
	names  []string
	kinds  []string
	values []string // what was described, as Lua source
	rare   int      // how many of the fields, the first ones, are left out where they are as usual
}

const (
	reading = iota
	writing
	describing
)

// field takes the bytes of a number.
func (c *codec) field(name, kind string, size int, v uint64) uint64 {
	switch c.mode {
	case describing:
		n := int64(v)
		if kind == "i4" {
			n = int64(int32(v))
		}
		c.describe(name, kind, strconv.FormatInt(n, 10))
	case writing:
		var space [8]byte
		binary.BigEndian.PutUint64(space[:], v)
		c.b = append(c.b, space[8-size:]...)
	case reading:
		if len(c.rest) < size {
			c.bad, c.rest = true, ""
			return 0
		}
		v = 0
		for i := range size {
			v = v<<8 | uint64(c.rest[i])
		}
		c.rest = c.rest[size:]
	}
	return v
}

func (c *codec) describe(name, kind, value string) {
	c.names, c.kinds, c.values = append(c.names, name), append(c.kinds, kind), append(c.values, value)
}

// rarely takes the fields with which a text begins and which mostly have their usual
// values. A byte says whether they are there: 0 if not, for all of them are as usual.
func (c *codec) rarely(usual string, fields func()) {
	switch c.mode {
	case describing:
		fields()
		c.rare = len(c.names)
	case writing:
		c.b = append(c.b, 1)
		at := len(c.b)
		if fields(); string(c.b[at:]) == usual {
			c.b = append(c.b[:at-1], 0)
		}
	case reading:
		there := false
		if flag(c, "", &there); there {
			fields()
			return
		}
		rest := c.rest
		c.rest = usual
		fields()
		c.rest = rest
	}
}

// usually returns what fields are written as.
func usually(fields func(*codec)) string {
	c := codec{mode: writing}
	fields(&c)
	return string(c.b)
}

// number is a token, an instant or a count: below 2^53, which is what Lua's numbers can say.
func number[T ~int64](c *codec, name string, v *T) {
	*v = T(c.field(name, "I7", 7, uint64(*v)))
}

// few is a number below 2^16.
func few(c *codec, name string, v *int) {
	*v = int(c.field(name, "I2", 2, uint64(*v)))
}

// micros is a duration in µs.
func micros(c *codec, name string, d *time.Duration) {
	*d = time.Duration(c.field(name, "I6", 6, uint64(d.Microseconds()))) * time.Microsecond
}

// millis is a duration below 2^16 ms.
func millis(c *codec, name string, d *time.Duration) {
	*d = time.Duration(c.field(name, "I2", 2, uint64(d.Milliseconds()))) * time.Millisecond
}

func small(c *codec, name string, v *int) {
	*v = int(int32(c.field(name, "i4", 4, uint64(uint32(*v)))))
}

func flag(c *codec, name string, v *bool) {
	n := uint64(0)
	if *v {
		n = 1
	}
	*v = c.field(name, "B", 1, n) == 1
}

// The numbers of the modes.
const (
	noMode = iota
	exclusive
	shared
)

func modeNumber(m fencing.Mode) int {
	switch m {
	case fencing.ModeExclusive:
		return exclusive
	case fencing.ModeShared:
		return shared
	}
	return noMode
}

func modeOf(n int) fencing.Mode {
	return [...]fencing.Mode{"", fencing.ModeExclusive, fencing.ModeShared}[min(max(n, 0), shared)]
}

func mode(c *codec, name string, m *fencing.Mode) {
	*m = modeOf(int(c.field(name, "B", 1, uint64(modeNumber(*m)))))
}

func word[T ~string](c *codec, name string, s *T) {
	switch c.mode {
	case describing:
		c.describe(name, "s", "'"+string(*s)+"'")
	case writing:
		c.bad = c.bad || strings.IndexByte(string(*s), 0) >= 0
		c.b = append(append(c.b, *s...), 0)
	case reading:
		text, rest, ok := strings.Cut(c.rest, "\x00")
		*s, c.rest, c.bad = T(text), rest, c.bad || !ok
	}
}

func hash(c *codec, name string, h *fencing.SecretHash) {
	switch c.mode {
	case describing:
		c.describe(name, fmt.Sprintf("c%d", len(h)), "''")
	case writing:
		c.b = append(c.b, h[:]...)
	case reading:
		if len(c.rest) < len(h) {
			c.bad, c.rest = true, ""
			return
		}
		copy(h[:], c.rest)
		c.rest = c.rest[len(h):]
	}
}

// usualLease is a lease, but for the fields that differ from one to the next: an exclusive
// one that was granted at once.
var usualLease = fencing.Holding{Holder: fencing.Holder{Mode: fencing.ModeExclusive, Limit: 1, Permits: 1, Slot: fencing.NoSlot, Hold: 1}}

var usualLeaseText = usually(func(c *codec) { c.rareOfLease(&usualLease) })

// lease is a lease, held or waited for, and what proves it.
func (c *codec) lease(h *fencing.Holding) {
	c.over(h)
	hash(c, "SECRET", &h.Secret)
}

// over is a lease that is over, which nobody has to prove any more.
func (c *codec) over(h *fencing.Holding) {
	c.rarely(usualLeaseText, func() { c.rareOfLease(h) })
	number(c, "TOKEN", &h.Token)            // 0 of a place
	number(c, "EXPIRES_AT", &h.ExpiresAt)   // of a place when its rest ends, 0 while it is connected
	number(c, "ACQUIRED_AT", &h.AcquiredAt) // 0 of a place
	micros(c, "TTL", &h.TTL)
	flag(c, "TOLD", &h.Told)   // the holder knows of the grant
	word(c, "LEASE", &h.Lease) // the public part
	word(c, "STAMP", &h.Stamp) // empty: none
	word(c, "OWNER", &h.Owner)
	metadata := h.Metadata.Map()
	c.metadata("METADATA", &metadata) // a JSON object; empty: none
	if c.mode != reading {
		return
	}
	h.Metadata = fencing.LabelsOf(metadata)
	if h.GrantTTL == 0 {
		h.GrantTTL = h.TTL
	}
	if h.JoinedAt == 0 {
		h.JoinedAt = h.AcquiredAt
	} else if h.AcquiredAt != 0 {
		h.Waited = h.AcquiredAt.Sub(h.JoinedAt)
	}
}

func (c *codec) rareOfLease(h *fencing.Holding) {
	number(c, "JOINED_AT", &h.JoinedAt) // 0 of a lease that was granted at once
	number(c, "SEQ", &h.Seq)            // the order in the queue
	word(c, "GATEWAY", &h.Gateway)      // where the request is or was; empty if nothing hangs on it
	micros(c, "GRANT_TTL", &h.GrantTTL) // 0: the same as TTL
	micros(c, "MAX_HOLD", &h.MaxHold)   // 0: none
	mode(c, "MODE", &h.Mode)
	small(c, "LIMIT", &h.Limit) // 0: any number; 1 of an exclusive one
	few(c, "PERMITS", &h.Permits)
	small(c, "SLOT", &h.Slot)
	word(c, "SLOTS", &h.Slots) // of several permits
	small(c, "HOLD", &h.Hold)
	flag(c, "PROVISIONAL", &h.Provisional)
	flag(c, "CLAIMED", &h.Claimed)
	flag(c, "KEEP", &h.Keep)          // its place may rest
	word(c, "SET", &h.Set)            // fencing.AcquireRequest.Set
	word(c, "ATTACHED", &h.Attached)  // the stream that it hangs on; empty: none
	number(c, "EPOCH", &h.Epoch)      // fencing.Holder
	number(c, "BREAK_AT", &h.BreakAt) // fencing.Holder, and the next; 0: it was given no notice
	word(c, "BREAK_REASON", &h.BreakReason)
	millis(c, "LOCK_DELAY", &h.LockDelay)
	number(c, "SET_AT", &h.SetAt) // fencing.Holding, and the next; of a place that rests fencing.Place
	number(c, "SENT_AT", &h.SentAt)
}

// labels is what a renewal changes of what people are told of a lease; nothing stands there
// where it changes nothing.
func (c *codec) labels(owner *string, metadata *map[string]string) {
	word(c, "", owner) // empty: it stays
	c.metadata("", metadata)
}

func (c *codec) metadata(name string, m *map[string]string) {
	text := ""
	if c.mode == writing && *m != nil {
		b, err := json.Marshal(*m) // of strings: there is no error
		text, c.bad = string(b), c.bad || err != nil
	}
	word(c, name, &text)
	if c.mode == reading && text != "" && json.Unmarshal([]byte(text), m) != nil {
		c.bad = true
	}
}

// record is what is remembered of a name; behind it is the lease of the holder where
// there is just one. Only the library reads it.
func (c *codec) record() {
	var n int64
	var some int
	c.rarely("", c.rareOfRecord)
	number(c, "BORN", &n)        // when the name was last begun to be remembered
	number(c, "LAST_TOKEN", &n)  // the highest of a grant
	number(c, "ENDED_TOKEN", &n) // the highest of a lease that is over, or higher
	number(c, "MARK", &n)        // fencing.Record
	number(c, "FORGET_AT", &n)   // with no holders: when the record may go
	small(c, "HOLDERS", &some)   // how many
}

func (c *codec) rareOfRecord() {
	var n int64
	var some int
	var s string
	var yes bool
	number(c, "LAST_CLAIMED", &n) // fencing.Record, and the next
	number(c, "HIGHEST_ADMITTED", &n)
	number(c, "QUEUE_LAST", &n)    // the highest SEQ given; 0 when no place is left
	number(c, "RETRY_AT", &n)      // when a hand-off is to be tried again; 0: never
	number(c, "REST_TILL", &n)     // no rest ends before; 0 when none rests
	number(c, "INDEXED", &n)       // what the index of expiries has; 0: when the lone lease ends, or nothing
	small(c, "QUEUED", &some)      // how many connected places
	small(c, "RESTING", &some)     // how many places rest
	few(c, "EXTRA_PERMITS", &some) // how many permits more than holders: one that has no permits counts as one
	flag(c, "SLOT_MARKS", &yes)    // some slot has a mark of its own
	word(c, "BROKEN", &s)          // the last tokens that were broken, oldest first, 16 digits each
	word(c, "DELAY", &s)           // how many holders have a LOCK_DELAY, a colon, and fencing.Record.DelayedUntil, DelaySetAt and DelaySentAt likewise, which are left out where they are 0; empty: all are 0
	word(c, "GATEWAYS", &s)        // those with connected places or provisional leases: name:places:leases; each
}

// tombstone is how a lease ended. Only the library reads it.
func (c *codec) tombstone() {
	var n int64
	var s string
	var h fencing.SecretHash
	number(c, "TOMB_AT", &n)
	number(c, "TOMB_TOKEN", &n)
	number(c, "TOMB_UNTIL", &n)
	hash(c, "TOMB_SECRET", &h)
	word(c, "TOMB_REASON", &s)
	word(c, "TOMB_BREAK_REASON", &s)
}

// ended is how a lease ended, to people; the lease follows, without what proves it.
func (c *codec) ended(e *fencing.Ended) {
	word(c, "END_REASON", &e.Reason)
	number(c, "END_AT", &e.At)
	word(c, "END_BREAK_REASON", &e.BreakReason)
}

// entry is what there is for a gateway.
func (c *codec) entry(e *fencing.Entry) {
	var kind string
	var seq fencing.Instant
	if len(c.rest) > 0 {
		kind, c.rest = c.rest[:1], c.rest[1:]
	}
	word(c, "", &e.Name)
	number(c, "", &seq)
	word(c, "", &e.Lease)
	word(c, "", &e.Stamp)
	e.Provisional, e.Attached = kind == leaseEntry, kind == streamEntry
	c.bad = c.bad || kind != leaseEntry && kind != placeEntry && kind != streamEntry
}

// view is the public view of a name without its holders and waiters.
func (c *codec) view(l *fencing.Lock) {
	number(c, "VIEW_LAST_TOKEN", &l.LastToken)
	number(c, "VIEW_HIGHEST_ADMITTED", &l.HighestAdmitted)
	small(c, "VIEW_HOLDERS", &l.HolderCount)
	small(c, "VIEW_WAITING", &l.Waiting)
}

// guard is what a partition remembers in order to be careful.
func (c *codec) guard(g *guard) {
	word(c, "GUARD_LAYOUT", &g.layout)
	small(c, "GUARD_PARTITIONS", &g.partitions)
	number(c, "GUARD_UNTIL", &g.Until)   // nothing new is granted before
	number(c, "GUARD_PERIOD", &g.Period) // when the present period of TTLs began
	micros(c, "GUARD_TTL", &g.TTL)       // the longest granted or renewed in it
	micros(c, "GUARD_BEFORE", &g.Before) // the same of the period before
	number(c, "GUARD_BORN", &g.born)     // when it was first written: it differs once it was lost
	word(c, "GUARD_SERVER", &g.Server)
}

// header is what all operations of a call share.
type header struct {
	sent         fencing.Instant // the gateway's clock
	now          fencing.Instant // the store's, of a test; 0: Redis's own
	gateway      string          // who asks
	server       string          // whom it has checked; empty: nobody yet
	heedsLoss    bool            // fencing.Guard.HeedLoss
	stepLimit    int             // of all operations together
	maxHolders   int             // fencing.Guard.MaxHolders
	maxSkew      time.Duration
	floor        fencing.Token
	cluster      bool
	maxHistories int // names of the partition that have a history
}

func (c *codec) header(h *header) {
	number(c, "HEADER_SENT", &h.sent)
	number(c, "HEADER_NOW", &h.now)
	word(c, "HEADER_GATEWAY", &h.gateway)
	word(c, "HEADER_SERVER", &h.server)
	flag(c, "HEADER_HEED_LOSS", &h.heedsLoss)
	small(c, "HEADER_STEP_LIMIT", &h.stepLimit)
	small(c, "HEADER_MAX_HOLDERS", &h.maxHolders)
	micros(c, "HEADER_MAX_SKEW", &h.maxSkew)
	number(c, "HEADER_FLOOR", &h.floor)
	small(c, "HEADER_MAX_HISTORIES", &h.maxHistories)
	flag(c, "HEADER_CLUSTER", &h.cluster)
}

// operation is what one operation of a call asks for. Behind that of an acquire is the
// place that it asks for, as a lease; behind that of a renewal the labels that it sets; behind that of an arrival what it knows; behind that
// of a heartbeat the last entry that was told of before, if there is one.
type operation struct {
	verb       verb
	name       fencing.Name
	lease      fencing.LeasePublic
	secret     fencing.SecretHash
	stamp      fencing.Stamp
	mode       fencing.Mode
	limit      int // of a shared lease; of what is shown
	permits    int // 0: none are named
	hold       int
	ttl        time.Duration // of a release and a take-back: Linger
	epoch      int64         // AcquireRequest.Epoch, RenewRequest.Epoch, ReleaseRequest.Epoch, TakeBackRequest.Epoch
	token      fencing.Token // of a break or a claim, to admit or to judge; that an acquire proposes
	slot       int           // AdmitRequest.Slot
	claimed    bool          // AcquireRequest.Claimed, AdmitRequest.Claimed, JudgeRequest.Claimed
	unknown    bool          // TakeBackRequest.Unknown
	refused    bool          // TakeBackRequest.Refused
	left       bool          // TakeBackRequest.Left
	waits      bool          // of a list: the waiters are to be shown
	again      bool
	maxWaiters int
	intent     time.Duration

	breakReason string
	notice      time.Duration // BreakRequest.Notice
}

func (c *codec) operation(o *operation) {
	word(c, "OP_VERB", &o.verb)
	word(c, "OP_NAME", &o.name)
	word(c, "OP_LEASE", &o.lease)
	hash(c, "OP_SECRET", &o.secret)
	word(c, "OP_STAMP", &o.stamp)
	mode(c, "OP_MODE", &o.mode)
	small(c, "OP_LIMIT", &o.limit)
	few(c, "OP_PERMITS", &o.permits)
	small(c, "OP_HOLD", &o.hold)
	micros(c, "OP_TTL", &o.ttl)
	number(c, "OP_EPOCH", &o.epoch)
	number(c, "OP_TOKEN", &o.token)
	small(c, "OP_SLOT", &o.slot)
	flag(c, "OP_CLAIMED", &o.claimed)
	flag(c, "OP_UNKNOWN", &o.unknown)
	flag(c, "OP_REFUSED", &o.refused)
	flag(c, "OP_LEFT", &o.left)
	flag(c, "OP_WAITS", &o.waits)
	flag(c, "OP_AGAIN", &o.again)
	small(c, "OP_MAX_WAITERS", &o.maxWaiters)
	micros(c, "OP_INTENT", &o.intent)
	word(c, "OP_BREAK_REASON", &o.breakReason)
	micros(c, "OP_NOTICE", &o.notice)
}

// arrivalRequest is what a gateway that arrives at a partition knows.
type arrivalRequest struct {
	layout      string
	partitions  int
	server      string
	born        fencing.Instant // of the guard that it goes by; 0: there was none
	lossless    bool            // these are as in fencing.Arrival
	lost        bool
	late        bool
	longest     time.Duration
	until       fencing.Instant
	least, most time.Duration
}

func (c *codec) arrival(a *arrivalRequest) {
	word(c, "ARRIVAL_LAYOUT", &a.layout)
	small(c, "ARRIVAL_PARTITIONS", &a.partitions)
	word(c, "ARRIVAL_SERVER", &a.server)
	number(c, "ARRIVAL_BORN", &a.born)
	flag(c, "ARRIVAL_LOSSLESS", &a.lossless)
	flag(c, "ARRIVAL_LOST", &a.lost)
	flag(c, "ARRIVAL_LATE", &a.late)
	micros(c, "ARRIVAL_LONGEST", &a.longest)
	number(c, "ARRIVAL_UNTIL", &a.until)
	micros(c, "ARRIVAL_LEAST", &a.least)
	micros(c, "ARRIVAL_MOST", &a.most)
}

// head is what every reply begins with.
type replyHead struct {
	code fencing.Code // and codeFailed

	flags string // flagFresh and the others

	// number: of a renewal the µs the lease still had to live; of an expire the µs until there
	// is something to do again, 0 for never; of an index how many entries were missing; locked: the caller's position; lease_lost:
	// µs since the lease ended by time; quarantined: µs until that ends; conflict and
	// invalid_request: what the lease or place has; of an admit that was decided and of a
	// judge the highest token issued.
	number int64

	// token: lease_lost: of the newer grant; conflict of an evict: of the lease; stale_token of a claim: the last one; of an
	// admit and a judge the highest that has moved a mark.
	token fencing.Token

	// text: lease_lost: the reason; clock_skew: "" the clocks differ, "floor" the floor is
	// refused, "exhausted" no token is left; conflict and invalid_request: what is at
	// fault; of a judge the verdict; failed: why.
	text string

	// present: conflict: what the lease or place has; lease_lost, broken or evicted: why it was.
	present string
}

func (c *codec) reply(r *replyHead) {
	word(c, "REPLY_CODE", &r.code)
	word(c, "REPLY_FLAGS", &r.flags)
	number(c, "REPLY_NUMBER", &r.number)
	number(c, "REPLY_TOKEN", &r.token)
	word(c, "REPLY_TEXT", &r.text)
	word(c, "REPLY_PRESENT", &r.present)
}
