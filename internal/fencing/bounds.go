package fencing

import (
	"cmp"
	"fmt"
	"time"
	"unicode"
	"unicode/utf8"
)

// Bounds that no setting moves.
const (
	MaxOwnerBytes         = 256
	MaxBreakReasonBytes   = 256
	MaxMetadataEntries    = 16
	MaxMetadataKeyBytes   = 64
	MaxMetadataValueBytes = 256
	MaxLimit              = 10_000
	MaxHoldDepth          = 1_000
	MaxMaxHold            = 30 * 24 * time.Hour
	MaxLockDelay          = time.Minute
	MaxListLimit          = 1_000
	DefaultListLimit      = 100
	MaxHoldersShown       = 100 // of one name, but in a list
	MaxHoldersListed      = 10  // of each name in a list
	MaxWaitersShown       = 100
	MaxSlotsShown         = 64   // of a holder; it is told all of them itself
	MaxNames              = 64   // of one lease id
	MinNodes, MaxNodes    = 3, 7 // of a quorum, which has an odd number of them
)

// The widest range of TTLs an operator can set; api/openapi.yaml has it too.
const (
	ShortestTTL = 100 * time.Millisecond
	LongestTTL  = 24 * time.Hour
)

// The range of the notice that a break gives; api/openapi.yaml has it too.
const (
	ShortestNotice = 100 * time.Millisecond
	LongestNotice  = 24 * time.Hour
)

// LongestAttachedWait is the longest wait of an attached lease, whatever MaxWait
// is: nothing between client and gateway loses patience, for events flow.
const LongestAttachedWait = 24 * time.Hour

// Bounds are the ranges an operator sets, in whole milliseconds.
type Bounds struct {
	DefaultTTL time.Duration // of an acquire that names none
	MinTTL     time.Duration // at least ShortestTTL
	MaxTTL     time.Duration // at most LongestTTL
	MaxWait    time.Duration
	MaxWaiters int // on one name; 0 is any number
}

// DefaultBounds are the bounds without any setting.
func DefaultBounds() Bounds {
	return Bounds{DefaultTTL: 30 * time.Second, MinTTL: ShortestTTL, MaxTTL: LongestTTL, MaxWait: time.Minute, MaxWaiters: 20_000}
}

// CheckTTL returns an *Error that names ttl_ms and its bounds if ttl is not
// within them.
func (b Bounds) CheckTTL(ttl time.Duration) error {
	if ttl < b.MinTTL || ttl > b.MaxTTL {
		return outOfRange("ttl_ms", ttl, b.MinTTL, b.MaxTTL)
	}
	return nil
}

// CheckAcquire returns an *Error that names the first field of r that is out of
// range. Name and Lease are taken to be valid: their parsers saw to it.
func (b Bounds) CheckAcquire(r *AcquireRequest) error {
	if err := b.CheckTTL(r.TTL); err != nil {
		return err
	}
	if r.Wait > b.MaxWait && b.MaxWait < LongestAttachedWait {
		return invalid("wait_ms", "is %d; it must be from 0 to %d (FENCEPOST_MAX_WAIT), on a stream to %d",
			r.Wait.Milliseconds(), b.MaxWait.Milliseconds(), LongestAttachedWait.Milliseconds())
	}
	if r.Wait < 0 || r.Wait > b.MaxWait {
		return outOfRange("wait_ms", r.Wait, 0, b.MaxWait)
	}
	if r.MaxHold != 0 && (r.MaxHold < r.TTL || r.MaxHold > MaxMaxHold) {
		return invalid("max_hold_ms", "is %d; it must be 0 (none) or from ttl_ms (%d) to %d",
			r.MaxHold.Milliseconds(), r.TTL.Milliseconds(), MaxMaxHold.Milliseconds())
	}
	if r.LockDelay < 0 || r.LockDelay > MaxLockDelay {
		return outOfRange("lock_delay_ms", r.LockDelay, 0, MaxLockDelay)
	}
	if r.Mode != "" && r.Mode != ModeExclusive && r.Mode != ModeShared {
		return invalid("mode", `must be "exclusive" or "shared"`)
	}
	if err := checkLimit(r.Mode, r.Limit); err != nil {
		return err
	}
	if r.Permits != 0 && r.Limit == 0 {
		return invalid("permits", "needs limit too")
	}
	if r.Permits < 0 || r.Permits > r.Limit {
		return invalid("permits", "is %d; it must be from 1 to limit (%d)", r.Permits, r.Limit)
	}
	if r.Hold < 1 || r.Hold > MaxHoldDepth {
		return invalid("hold", "is %d; it must be from 1 to %d", r.Hold, MaxHoldDepth)
	}
	return checkLabels(r.Owner, r.Metadata)
}

func checkLabels(owner string, metadata map[string]string) error {
	if err := checkText("owner", owner, MaxOwnerBytes); err != nil {
		return err
	}
	return checkMetadata(metadata)
}

// CheckRenew returns an *Error that names the first field of r that is out of
// range.
func (b Bounds) CheckRenew(r *RenewRequest) error {
	if r.TTL != 0 {
		if err := b.CheckTTL(r.TTL); err != nil {
			return err
		}
	}
	if r.Mode != "" && r.Mode != ModeExclusive && r.Mode != ModeShared {
		return invalid("mode", `must be "exclusive" or "shared"`)
	}
	if r.Permits < 0 || r.Permits > MaxLimit {
		return invalid("permits", "is %d; it must be from 1 to %d", r.Permits, MaxLimit)
	}
	mode := cmp.Or(r.Mode, ModeShared) // without a mode a limit is that of a shared lease
	if err := checkLimit(mode, r.Limit); err != nil {
		return err
	}
	return checkLabels(r.Owner, r.Metadata)
}

// CheckBreak returns an *Error that names the first field of r that is out of range.
func CheckBreak(r *BreakRequest) error {
	if r.Notice != 0 && (r.Notice < ShortestNotice || r.Notice > LongestNotice) {
		return outOfRange("notice_ms", r.Notice, ShortestNotice, LongestNotice)
	}
	return checkText("reason", r.BreakReason, MaxBreakReasonBytes)
}

// CheckEvict returns an *Error that names the first field of r that is out of range.
func CheckEvict(r *EvictRequest) error {
	return checkText("reason", r.BreakReason, MaxBreakReasonBytes)
}

func checkLimit(mode Mode, limit int) error {
	if limit == 0 {
		return nil
	}
	if mode != ModeShared {
		return invalid("limit", `is only for mode "shared"`)
	}
	if limit < 1 || limit > MaxLimit {
		return invalid("limit", "is %d; it must be from 1 to %d", limit, MaxLimit)
	}
	return nil
}

func checkMetadata(metadata map[string]string) error {
	if len(metadata) > MaxMetadataEntries {
		return invalid("metadata", "has %d entries; at most %d are allowed", len(metadata), MaxMetadataEntries)
	}
	for key, value := range metadata {
		if key == "" {
			return invalid("metadata", "has an empty key; a key has 1 to %d bytes", MaxMetadataKeyBytes)
		}
		if err := checkText("metadata", key, MaxMetadataKeyBytes); err != nil {
			return err
		}
		if err := checkText("metadata", value, MaxMetadataValueBytes); err != nil {
			return err
		}
	}
	return nil
}

// checkText refuses what is too long for people to read or would break a log
// line or a terminal.
func checkText(field, s string, maxBytes int) error {
	if len(s) > maxBytes {
		return invalid(field, "has a text of %d bytes; at most %d are allowed", len(s), maxBytes)
	}
	if !utf8.ValidString(s) {
		return invalid(field, "is not valid UTF-8")
	}
	for _, r := range s {
		if unicode.IsControl(r) {
			return invalid(field, "has the control character U+%04X, which is not allowed", r)
		}
	}
	return nil
}

func outOfRange(field string, got, lo, hi time.Duration) *Error {
	return invalid(field, "is %d; it must be from %d to %d", got.Milliseconds(), lo.Milliseconds(), hi.Milliseconds())
}

// Validate reports what is wrong with the bounds themselves.
func (b Bounds) Validate() error {
	for _, bound := range []time.Duration{b.DefaultTTL, b.MinTTL, b.MaxTTL, b.MaxWait} {
		if bound%time.Millisecond != 0 {
			return fmt.Errorf("%s is not in whole milliseconds", bound)
		}
	}
	switch {
	case b.MinTTL < ShortestTTL || b.MaxTTL > LongestTTL || b.MinTTL > b.MaxTTL:
		return fmt.Errorf("the TTL bounds must satisfy %s <= minimum (%s) <= maximum (%s) <= %s", ShortestTTL, b.MinTTL, b.MaxTTL, LongestTTL)
	case b.DefaultTTL < b.MinTTL || b.DefaultTTL > b.MaxTTL:
		return fmt.Errorf("the default TTL (%s) must be from the minimum (%s) to the maximum (%s)", b.DefaultTTL, b.MinTTL, b.MaxTTL)
	case b.MaxWait < 0:
		return fmt.Errorf("the longest wait (%s) must not be negative", b.MaxWait)
	case b.MaxWaiters < 0:
		return fmt.Errorf("the number of waiters (%d) must not be negative", b.MaxWaiters)
	}
	return nil
}
