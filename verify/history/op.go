package history

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Time is how long after the start of the run something was.
type Time = time.Duration

// Verb is what was asked.
type Verb string

// The verbs. A stream's renewed event is a Renew, its end by the client a Release
// whose outcome is Unknown.
const (
	Acquire Verb = "acquire"
	Renew   Verb = "renew"
	Release Verb = "release"
	Break   Verb = "break"
)

// Verdict is what an answer comes to.
type Verdict string

// The verdicts.
const (
	Granted Verdict = "granted" // 200 or 201: Grants has the leases
	Ended   Verdict = "ended"   // 204
	Refused Verdict = "refused" // 423, 429, 503 quarantined or draining: nothing was granted
	Lost    Verdict = "lost"    // 412: Missing has the names it is about
	Unknown Verdict = "unknown" // no answer, 503 or 409: it may have been done, now or later
	Left    Verdict = "left"    // the client closed its connection before the answer
	Invalid Verdict = "invalid" // another refusal that changes nothing
)

// Op is one request and its answer.
type Op struct {
	ID      int // unique in the history
	Call    int // the ID of the first of several attempts at the same; its own if it is that
	Client  int
	Gateway int

	Verb      Verb
	Names     []string // in byte order
	Lease     string   // the lease id, with its secret
	Owner     string   // of the lease: unique to a call of Acquire
	Mode      string   // exclusive, or shared; of a Renew empty unless it is a downgrade
	Limit     int      // with shared: 0 is none
	Permits   int      // with a limit: 0 is one
	Hold      int      // the depth asked for; of a Release that to unwind
	TTL       time.Duration
	Wait      time.Duration
	LockDelay time.Duration // of an Acquire

	Attached bool  // by a stream
	Token    int64 // of a Break

	Sent, Done Time
	Verdict    Verdict
	Status     int
	Code       string // of a problem
	Reason     string
	Grants     []Grant
	Missing    []string
	Delayed    bool // the refusal says that a lock delay keeps everybody out
}

// Grant is one lease of an answer.
type Grant struct {
	Name     string
	Token    int64
	Slots    []int // of permits
	Hold     int
	Left     time.Duration // expires_in_ms of the answer
	Deadline Time          // until when the client may count on it (P9)
}

// Set reports whether the request is for several names.
func (op *Op) Set() bool { return len(op.Names) > 1 }

func (op *Op) on(name string) bool { return slices.Contains(op.Names, name) }

func (op *Op) grant(name string) (Grant, bool) {
	for _, g := range op.Grants {
		if g.Name == name {
			return g, true
		}
	}
	return Grant{}, false
}

// String tells the operation in a line, without the secret.
func (op *Op) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s-%s client %d gateway %d: %s %s", at(op.Sent), at(op.Done), op.Client, op.Gateway, op.Verb, strings.Join(op.Names, ","))
	if op.Owner != "" {
		fmt.Fprintf(&b, " as %s", op.Owner)
	}
	if op.Mode != "" {
		fmt.Fprintf(&b, " %s", op.Mode)
	}
	for _, n := range []struct {
		what string
		n    int64
	}{
		{"limit", int64(op.Limit)}, {"permits", int64(op.Permits)}, {"hold", int64(op.Hold)}, {"ttl_ms", op.TTL.Milliseconds()}, {"wait_ms", op.Wait.Milliseconds()}, {"lock_delay_ms", op.LockDelay.Milliseconds()}, {"token", op.Token},
	} {
		if n.n != 0 {
			fmt.Fprintf(&b, " %s %d", n.what, n.n)
		}
	}
	if op.Attached {
		b.WriteString(" attached")
	}
	fmt.Fprintf(&b, " -> %s", op.Verdict)
	if op.Status != 0 {
		fmt.Fprintf(&b, " %d", op.Status)
	}
	for _, word := range []string{op.Code, op.Reason, strings.Join(op.Missing, ",")} {
		if word != "" {
			fmt.Fprintf(&b, " %s", word)
		}
	}
	for _, g := range op.Grants {
		fmt.Fprintf(&b, " %s token %d hold %d", g.Name, g.Token, g.Hold)
		if len(g.Slots) > 0 {
			fmt.Fprintf(&b, " slots %d", g.Slots)
		}
		fmt.Fprintf(&b, " until %s", at(g.Deadline))
	}
	return b.String()
}

func at(t Time) string { return fmt.Sprintf("%.4fs", t.Seconds()) }

// Look is what GET showed of a name.
type Look struct {
	Name       string
	Sent, Done Time
	Holders    []Shown
	Waiters    []Shown // the first of them
	Delayed    bool    // as of an Op
}

// Shown is a holder or a waiter as a Look shows it.
type Shown struct {
	Owner string
	Token int64
	Mode  string
	Limit int // of a holder with mode shared: 0 is none

	Permits int // 0 is one
}

// String tells the look in a line.
func (l *Look) String() string {
	return fmt.Sprintf("%s-%s GET %s shows the holders %v", at(l.Sent), at(l.Done), l.Name, l.Holders)
}

// Judged is what GET said of a token at a fence.
type Judged struct {
	Name       string
	Sent, Done Time
	Token      int64
	Verdict    string // live, ended, superseded or unissued
	Issued     int64  // the highest token, 0 if none is known
}

// String tells the verdict in a line.
func (j *Judged) String() string {
	return fmt.Sprintf("%s-%s GET the fence of %s says of token %d that it is %s, and of %d that it is the highest", at(j.Sent), at(j.Done), j.Name, j.Token, j.Verdict, j.Issued)
}

func (l *Look) holds(owner string) bool {
	return slices.ContainsFunc(l.Holders, func(s Shown) bool { return s.Owner == owner })
}

// Trouble is a time in which something was made to fail.
type Trouble struct {
	What string

	// From is before the harm, Until after all was healed, and Calm when what follows
	// from it is over too: a quarantine, leases that nobody was told of.
	From, Until, Calm Time

	Forgets bool // the store may have forgotten what it knew
	Ends    bool // or only leases that had ended
	Split   bool // gateways may have asked two masters meanwhile, of which one forgets all that it did
	Restart bool // of a gateway
	Killed  bool // a gateway was: it had no time to flush
	Stopped bool // the time of a cluster may have stood still
}

// History is all that was seen.
type History struct {
	Ops      []Op
	Looks    []Look
	Verdicts []Judged
	Troubles []Trouble
	End      Time
}

// troubled reports whether the time from from to until touches a Trouble.
func (h *History) troubled(from, until Time) bool {
	return slices.ContainsFunc(h.Troubles, func(t Trouble) bool { return from <= t.Calm && until >= t.From })
}

// calm returns for how long there was no Trouble.
func (h *History) calm() (total time.Duration) {
	end := Time(0)
	for _, t := range h.Troubles { // in order of From, as they were made
		if t.Until > t.From || t.Calm > t.From {
			total += max(0, min(t.From, h.End)-end)
			end = max(end, t.Calm)
		}
	}
	return total + max(0, h.End-end)
}

// forgotEnds reports whether the store may have forgotten between from and until that a lease ended.
func (h *History) forgotEnds(from, until Time) bool {
	return slices.ContainsFunc(h.Troubles, func(t Trouble) bool { return (t.Forgets || t.Ends) && t.From <= until && t.Until >= from })
}

// forgot reports whether the store may have forgotten something between from and until.
func (h *History) forgot(from, until Time) bool {
	return slices.ContainsFunc(h.Troubles, func(t Trouble) bool { return t.Forgets && t.From <= until && t.Until >= from })
}

// names returns all names of the history, in order.
func (h *History) names() []string {
	var names []string
	for i := range h.Ops {
		names = append(names, h.Ops[i].Names...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// call is what a client wanted, with all its attempts in order: one operation, which
// happened between the first request and the last answer.
type call struct {
	*Op      // the last attempt
	sent     Time
	attempts int
}

// calls returns the calls on a name in the order of their last attempts.
func (h *History) calls(name string) []call {
	byID := map[int]*call{}
	var order []*call
	for i := range h.Ops {
		op := &h.Ops[i]
		if !op.on(name) {
			continue
		}
		c := byID[op.Call]
		if c == nil {
			c = &call{Op: op, sent: op.Sent}
			byID[op.Call] = c
			order = append(order, c)
		}
		c.attempts++
		if op.ID >= c.ID && c.Verdict != Ended { // what has ended stays so, whatever is told of it later
			c.Op = op
		}
		c.sent = min(c.sent, op.Sent)
	}
	calls := make([]call, len(order))
	for i, c := range order {
		calls[i] = *c
	}
	slices.SortFunc(calls, func(a, b call) int { return cmp.Compare(a.ID, b.ID) })
	return calls
}

// lost reports whether the answer was that the lease on name is gone: of a request for several
// names others may have been let go by it.
func (c *call) lost(name string) bool {
	return c.Verdict == Lost && (len(c.Missing) == 0 || slices.Contains(c.Missing, name))
}

// certain reports whether it is known what the call has come to.
func (c *call) certain() bool { return c.Verdict != Unknown && c.Verdict != Left }
