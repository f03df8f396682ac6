package client

import (
	"cmp"
	"slices"
	"time"
)

// acquireRequest is the body of POST.
type acquireRequest struct {
	Names    []string          `json:"names,omitempty"`
	TTL      int64             `json:"ttl_ms,omitempty"`
	Wait     int64             `json:"wait_ms,omitempty"`
	Linger   int64             `json:"linger_ms,omitempty"`
	Owner    string            `json:"owner,omitempty"`
	Mode     string            `json:"mode,omitempty"`
	Limit    int               `json:"limit,omitempty"`
	Permits  int               `json:"permits,omitempty"`
	MaxHold  int64             `json:"max_hold_ms,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`

	LockDelay int64 `json:"lock_delay_ms,omitempty"`
}

// renewRequest is the body of PUT.
type renewRequest struct {
	Names    []string          `json:"names,omitempty"`
	TTL      int64             `json:"ttl_ms,omitempty"`
	Limit    int               `json:"limit,omitempty"`
	Permits  int               `json:"permits,omitempty"`
	Owner    string            `json:"owner,omitempty"`
	Metadata map[string]string `json:"metadata,omitzero"`
}

// granted is an answer to POST or PUT, for one name or several, or an event of a stream.
type granted struct {
	member
	LeaseID   string   `json:"lease_id"`
	ExpiresIn int64    `json:"expires_in_ms"`
	RenewIn   int64    `json:"renew_in_ms"`
	Waited    int64    `json:"waited_ms"`
	Elapsed   int64    `json:"elapsed_ms"`
	Locks     []member `json:"locks"`
}

type member struct {
	Name  string `json:"name"`
	Token int64  `json:"fencing_token"`
	Slot  *int   `json:"slot"`
	Slots []int  `json:"slots"`
	TTL   int64  `json:"ttl_ms"`

	BreaksIn    *int64 `json:"breaks_in_ms"` // nil: it was given no notice
	BreakReason string `json:"break_reason"`
}

// since returns how long after its request came it was said: waited_ms and elapsed_ms are both rounded
// down, and an answer has one of the two.
func (g granted) since() time.Duration { return millis(max(g.Waited, g.Elapsed)) }

// ttl returns the shortest of its names, which renewals that meet may have left with different ones.
func (g granted) ttl() time.Duration {
	if len(g.Locks) == 0 {
		return millis(g.TTL)
	}
	return millis(slices.MinFunc(g.Locks, func(a, b member) int { return cmp.Compare(a.TTL, b.TTL) }).TTL)
}

// notice returns the notice that the lease was given, of several names that which ends first,
// and how long it was until then.
func (g granted) notice() (n Notice, left time.Duration, given bool) {
	for _, m := range append(g.Locks, g.member) {
		if m.BreaksIn == nil {
			continue
		}
		if in := millis(*m.BreaksIn); !given || in < left {
			n, left, given = Notice{Name: m.Name, Reason: m.BreakReason}, in, true
		}
	}
	return n, left, given
}

func (g granted) grants() (all []Grant) {
	for _, m := range append(g.Locks, g.member) {
		if m.Name != "" {
			all = append(all, Grant{Name: m.Name, Token: m.Token, Slot: m.slot(), Slots: m.slots()})
		}
	}
	return all
}

func (m member) slot() int {
	if m.Slot == nil {
		return NoSlot
	}
	return *m.Slot
}

// slots returns those of several permits, or of one.
func (m member) slots() []int {
	if m.Slots == nil && m.Slot != nil {
		return []int{*m.Slot}
	}
	return m.Slots
}

// problem is a refusal as it is sent.
type problem struct {
	Status       int      `json:"status"`
	Code         Code     `json:"code"`
	Detail       string   `json:"detail"`
	Field        string   `json:"field"`
	Instance     string   `json:"instance"`
	Reason       Reason   `json:"reason"`
	Late         int64    `json:"late_ms"`
	CurrentToken int64    `json:"current_token"`
	BreakReason  string   `json:"break_reason"`
	Lost         []string `json:"lost"`
	Name         string   `json:"name"`
	Holders      []Holder `json:"holders"`
	HolderCount  int      `json:"holder_count"`
	Waiting      int      `json:"waiting"`
	Position     int      `json:"position"`
	Delayed      int64    `json:"delayed_ms"`
	RetryAfter   int64    `json:"retry_after_ms"`
	Estimate     int64    `json:"estimated_wait_ms"`
}

func (p problem) refusal() *Error {
	return &Error{
		Status: p.Status, Code: p.Code, Detail: p.Detail, Field: p.Field, Instance: p.Instance,
		Reason: p.Reason, Late: millis(p.Late), CurrentToken: p.CurrentToken, BreakReason: p.BreakReason, Lost: p.Lost,
		Name: p.Name, Holders: p.Holders, HolderCount: p.HolderCount, Waiting: p.Waiting, Position: p.Position,
		Delayed: millis(p.Delayed), RetryAfter: millis(p.RetryAfter), EstimatedWait: millis(p.Estimate),
	}
}

func millis(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// upMillis rounds away from 0, so that what is not 0 stays so.
func upMillis(d time.Duration) int64 {
	n := d.Milliseconds()
	switch rest := d - millis(n); {
	case rest > 0:
		return n + 1
	case rest < 0:
		return n - 1
	}
	return n
}
