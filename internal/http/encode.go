package http

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"fencepost/internal/fencing"
)

// Answers are appended to a buffer by hand: the bodies are few and fixed, and
// encoding them by reflection was the largest part of a handler's own time.

func appendString(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s) // its error is invalid UTF-8, which it has replaced
	return b
}

// Members begin with a comma: they never stand first.
func appendStringMember(b []byte, name, value string) []byte {
	b = appendMemberName(b, name)
	return appendString(b, value)
}

func appendIntMember(b []byte, name string, value int64) []byte {
	b = appendMemberName(b, name)
	return strconv.AppendInt(b, value, 10)
}

func appendBoolMember(b []byte, name string, value bool) []byte {
	b = appendMemberName(b, name)
	return strconv.AppendBool(b, value)
}

func appendMemberName(b []byte, name string) []byte {
	b = append(b, ',', '"')
	b = append(b, name...)
	return append(b, '"', ':')
}

// wallClock returns the time at which people are shown that something was: see fencing.Capabilities.
type wallClock func(fencing.Instant) time.Time

// between returns how long it was from one instant to another by the wall clock, as it is between the two times that are
// shown; at least 0.
func (w wallClock) between(from, to fencing.Instant) time.Duration { return max(0, w(to).Sub(w(from))) }

// appendTimeMember appends a time in UTC in RFC 3339 with milliseconds,
// rounded down. RFC3339 is the layout that time formats without parsing it.
func appendTimeMember(b []byte, name string, t time.Time) []byte {
	b = appendMemberName(b, name)
	b = append(b, '"')
	b = t.AppendFormat(b, time.RFC3339)
	ms := t.Nanosecond() / 1e6
	b[len(b)-1] = '.' // in place of the Z
	return append(b, byte('0'+ms/100), byte('0'+ms/10%10), byte('0'+ms%10), 'Z', '"')
}

// appendHolding appends what a lease and a holder have in common, with so many slots at most.
func appendHolding(b []byte, h *fencing.Holder, slots int, wall wallClock) []byte {
	b = appendStringMember(b, "owner", h.Owner)
	b = appendStringMember(b, "mode", string(h.Mode))
	b = appendIntMember(b, "fencing_token", int64(h.Token))
	if h.Mode == fencing.ModeShared && h.Limit > 0 {
		b = appendIntMember(b, "limit", int64(h.Limit))
	}
	if h.Slot != fencing.NoSlot {
		b = appendIntMember(b, "slot", int64(h.Slot))
	}
	if h.Permits > 1 {
		b = appendPermits(b, h, slots)
	}
	b = appendIntMember(b, "hold", int64(max(1, h.Hold)))
	b = appendIntMember(b, "ttl_ms", h.TTL.Milliseconds())
	if h.LockDelay > 0 {
		b = appendIntMember(b, "lock_delay_ms", h.LockDelay.Milliseconds())
	}
	b = appendTimeMember(b, "acquired_at", wall(h.AcquiredAt))
	return appendTimeMember(b, "expires_at", wall(h.ExpiresAt))
}

// appendPermits appends the several permits of a lease, with so many slots at most.
func appendPermits(b []byte, h *fencing.Holder, slots int) []byte {
	b = appendIntMember(b, "permits", int64(h.Permits))
	b = append(b, `,"slots":[`...)
	first := true
	for slot := range h.AllSlots() {
		if slots--; slots < 0 {
			break
		}
		if !first {
			b = append(b, ',')
		}
		b, first = strconv.AppendInt(b, int64(slot), 10), false
	}
	return append(b, ']')
}

// appendMetadata appends the metadata in the order of its keys.
func appendMetadata(b []byte, metadata fencing.Labels) []byte {
	b = appendMemberName(b, "metadata")
	if metadata == "" {
		return append(b, '{', '}')
	}
	type entry struct{ key, value string }
	entries := make([]entry, 0, fencing.MaxMetadataEntries)
	for key, value := range metadata.All() {
		entries = append(entries, entry{key, value})
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.key, b.key) })
	for i, e := range entries {
		b = append(b, "{,"[min(i, 1)])
		b = appendString(b, e.key)
		b = append(b, ':')
		b = appendString(b, e.value)
	}
	return append(b, '}')
}

// appendHolders appends the public view of the holders of a lock.
func appendHolders(b []byte, lock *fencing.Lock, wall wallClock) []byte {
	b = append(b, `,"holders":[`...)
	for i := range lock.Holders {
		h := &lock.Holders[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"lease":"`...)
		b = append(b, h.Lease...)
		b = append(b, '"')
		b = append(appendHolderMembers(b, h, lock.Now, wall), '}')
	}
	b = append(b, ']')
	return appendIntMember(b, "holder_count", int64(lock.HolderCount))
}

// appendHolderMembers appends the public view of a lease at now, but for its id.
func appendHolderMembers(b []byte, h *fencing.Holder, now fencing.Instant, wall wallClock) []byte {
	left := h.ExpiresAt.Sub(now)
	b = appendHolding(b, h, fencing.MaxSlotsShown, wall)
	b = appendBoolMember(b, "attached", h.Attached != "")
	if h.Left() {
		b = appendBoolMember(b, "left", true)
	}
	b = appendIntMember(b, "expires_in_ms", max(0, left.Milliseconds()))
	b = appendBreak(b, h, left, wall)
	return appendMetadata(b, h.Metadata)
}

// appendBreak appends what a lease that has so much left was told of its break: nothing
// unless it was given notice.
func appendBreak(b []byte, h *fencing.Holder, left time.Duration, wall wallClock) []byte {
	if h.BreakAt == 0 {
		return b
	}
	b = appendIntMember(b, "breaks_in_ms", max(0, (left+h.BreakAt.Sub(h.ExpiresAt)).Milliseconds()))
	b = appendTimeMember(b, "breaks_at", wall(h.BreakAt))
	if h.BreakReason == "" {
		return b
	}
	return appendStringMember(b, "break_reason", h.BreakReason)
}

// appendLockMembers appends the public view of a lock, with its queue if there is a pace: the
// object without its last brace.
func appendLockMembers(b []byte, lock *fencing.Lock, pace *fencing.Pace, wall wallClock) []byte {
	b = append(b, `{"name":`...)
	b = appendString(b, string(lock.Name))
	b = appendBoolMember(b, "held", lock.Held())
	if len(lock.Holders) > 0 {
		b = appendStringMember(b, "mode", string(lock.Holders[0].Mode))
	}
	b = appendIntMember(b, "fencing_token", int64(lock.LastToken))
	b = appendHolders(b, lock, wall)
	b = appendIntMember(b, "waiting", int64(lock.Waiting))
	b = appendDelay(b, lock)
	if pace != nil {
		b = appendWaiters(b, lock, pace)
	} else if len(lock.Waiters) > 0 {
		b = appendIntMember(b, "waiting_ms", lock.Waiters[0].Waiting.Milliseconds())
	}
	b = append(b, `,"fence":{"highest_issued":`...)
	b = strconv.AppendInt(b, int64(lock.LastToken), 10)
	b = appendIntMember(b, "highest_admitted", int64(lock.HighestAdmitted))
	return append(b, '}')
}

// appendDelay appends how long it takes until anybody is granted a lock, if a lease that has
// ended keeps everybody out.
func appendDelay(b []byte, lock *fencing.Lock) []byte {
	if lock.DelayedUntil == 0 {
		return b
	}
	return appendIntMember(b, "delayed_ms", ceilTo(lock.Delayed(), time.Millisecond))
}

// appendAdvice appends what there is to remark on a lock.
func appendAdvice(b []byte, advice []fencing.Advice) []byte {
	b = append(b, `,"advice":[`...)
	for i := range advice {
		a := &advice[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"code":"`...)
		b = append(b, a.Code...)
		b = append(b, '"')
		b = appendStringMember(b, "text", a.Text)
		b = appendIntMember(b, "count", int64(a.Count))
		b = appendIntMember(b, "of", int64(a.Of))
		b = appendIntMember(b, "ttl_ms", a.TTL.Milliseconds())
		b = appendIntMember(b, "held_ms", a.Held.Milliseconds())
		if a.Lease != "" {
			b = appendStringMember(b, "lease", string(a.Lease))
		}
		b = append(b, '}')
	}
	return append(b, ']')
}

// appendWaiters appends the queue of a lock, and when it will be whose turn.
func appendWaiters(b []byte, lock *fencing.Lock, pace *fencing.Pace) []byte {
	b = append(b, `,"waiters":[`...)
	for i := range lock.Waiters {
		w := &lock.Waiters[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"lease":"`...)
		b = append(b, w.Lease...)
		b = append(b, '"')
		b = appendStringMember(b, "owner", w.Owner)
		b = appendStringMember(b, "mode", string(w.Mode))
		if w.Limit > 0 {
			b = appendIntMember(b, "limit", int64(w.Limit))
		}
		if w.Permits > 1 {
			b = appendIntMember(b, "permits", int64(w.Permits))
		}
		b = appendIntMember(b, "position", int64(w.Position))
		b = appendIntMember(b, "waiting_ms", w.Waiting.Milliseconds())
		b = append(appendEstimate(b, pace.Wait(lock, w.Mode, w.Limit, w.Permits, w.Position)), '}')
	}
	return append(b, ']')
}

// appendEstimate appends how long a wait will take, if that can be told.
func appendEstimate(b []byte, wait time.Duration) []byte {
	if wait == 0 {
		return b
	}
	return appendIntMember(b, "estimated_wait_ms", ceilTo(wait, time.Millisecond))
}

// granted answers a POST: the only answer with a whole lease id.
type granted struct {
	renewed
	lease fencing.LeaseID
	fresh bool
}

func (a *granted) status() int {
	if a.fresh {
		return http.StatusCreated
	}
	return http.StatusOK
}

func (a *granted) setHeader(h http.Header) {
	a.renewed.setHeader(h)
	if a.fresh {
		h["Location"] = []string{"/locks/" + string(a.name)}
	}
}

func (a *granted) appendJSON(b []byte, wall wallClock) []byte {
	return append(a.appendGrant(b, wall), '}')
}

func (a *granted) appendGrant(b []byte, wall wallClock) []byte {
	b = append(b, `{"name":`...)
	b = appendString(b, string(a.name))
	b = appendStringMember(b, "lease_id", a.lease.Reveal())
	return appendLease(b, &a.renewed, wall)
}

// appendLease appends what the answers to POST and PUT have in common.
func appendLease(b []byte, a *renewed, wall wallClock) []byte {
	h := a.holder
	b = appendHolding(b, h, h.Permits, wall)
	b = appendIntMember(b, "expires_in_ms", a.left.Milliseconds())
	b = appendIntMember(b, "renew_in_ms", h.RenewIn(a.left).Milliseconds())
	b = appendIntMember(b, "waited_ms", a.waited.Milliseconds())
	b = appendBreak(b, h, a.left, wall)
	if h.Metadata == "" { // the holder knows what it has sent
		return b
	}
	return appendMetadata(b, h.Metadata)
}
