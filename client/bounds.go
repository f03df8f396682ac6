package client

import (
	"fmt"
	"net/http"
	"regexp"
	"time"
	"unicode"
	"unicode/utf8"
)

// The bounds of what an acquire and a renewal say, as api/openapi.yaml has them. A gateway's
// settings may narrow those of a TTL.
const (
	minTTL, maxTTL        = 100 * time.Millisecond, 24 * time.Hour
	maxMaxHold            = 30 * 24 * time.Hour
	maxLockDelay          = time.Minute
	maxPermits            = 10_000
	maxNames              = 64
	maxOwnerBytes         = 256
	maxMetadataEntries    = 16
	maxMetadataKeyBytes   = 64
	maxMetadataValueBytes = 256
)

// leaseIDForm is the form of a lease id.
var leaseIDForm = regexp.MustCompile(`^[0-7][0-9A-HJKMNP-TV-Z]{25}\.[A-Za-z0-9_-]{22,43}$`)

// invalid refuses a request before it is sent, as a gateway would.
func invalid(field, format string, args ...any) error {
	return &Error{Status: http.StatusBadRequest, Code: CodeInvalidRequest, Field: field, Detail: fmt.Sprintf(field+" "+format, args...)}
}

// check says which option is out of its range.
func (a *acquisition) check(names []string) error {
	ttl, maxHold, delay, linger := millis(a.TTL), millis(a.MaxHold), millis(a.LockDelay), millis(a.Linger)
	if err := checkTTL(ttl); err != nil {
		return err
	}
	if err := checkNames(names); err != nil {
		return err
	}
	switch {
	case maxHold != 0 && (maxHold < max(ttl, minTTL) || maxHold > maxMaxHold):
		return invalid("max_hold_ms", "is %d; it must be 0 (none) or from ttl_ms to %d", a.MaxHold, maxMaxHold.Milliseconds())
	case delay < 0 || delay > maxLockDelay:
		return invalid("lock_delay_ms", "is %d; it must be from 0 to %d", a.LockDelay, maxLockDelay.Milliseconds())
	case linger < 0 || linger > maxTTL || ttl > 0 && linger > ttl:
		return invalid("linger_ms", "is %d; it must be from 0 to ttl_ms", a.Linger)
	case linger > 0 && !a.attached:
		return invalid("linger_ms", "belongs to a lease with Attached")
	case a.least < 0 || a.least > maxTTL:
		return invalid("AtLeast", "is %s; it must be from 0 to %s", a.least, maxTTL)
	case maxHold > 0 && a.least > maxHold:
		return invalid("AtLeast", "is %s; it must not be above MaxHold, %s", a.least, maxHold)
	case a.least > 0 && a.attached:
		return invalid("AtLeast", "is not for a lease with Attached")
	case a.permit && (a.Limit < 1 || a.Limit > maxPermits):
		return noLimit(a.Limit)
	case a.several && (a.Permits < 1 || a.Permits > a.Limit):
		return invalid("permits", "is %d; it must be from 1 to limit, %d", a.Permits, a.Limit)
	case a.found && !leaseIDForm.MatchString(a.leaseID):
		return invalid("Lease-Id", "does not have the form of NewLeaseID") // and is not shown: it may be a secret
	}
	if err := checkLabels(a.Owner, a.Metadata); err != nil {
		return err
	}
	return a.checkMargin(ttl)
}

// checkMargin holds StopEarly against a TTL; 0: the gateway's, which is not known yet.
func (a *acquisition) checkMargin(ttl time.Duration) error {
	if a.margin < 0 || a.margin > maxTTL/2 || ttl > 0 && a.margin > ttl/2 {
		return invalid("StopEarly", "is %s; it must be from 0 to half the TTL, %s", a.margin, ttl/2)
	}
	return nil
}

// check says what of a change is out of its range.
func (c Change) check() error {
	if err := checkTTL(c.TTL); err != nil {
		return err
	}
	if c.Limit < 0 || c.Limit > maxPermits {
		return noLimit(c.Limit)
	}
	if c.Permits < 0 || c.Permits > maxPermits {
		return noPermits(c.Permits)
	}
	return checkLabels(c.Owner, c.Metadata)
}

// checkTTL holds a TTL against the widest bounds that there are; 0 is the default.
func checkTTL(ttl time.Duration) error {
	if ttl != 0 && (ttl < minTTL || ttl > maxTTL) {
		return invalid("ttl_ms", "is %d; it must be from %d to %d", ttl.Milliseconds(), minTTL.Milliseconds(), maxTTL.Milliseconds())
	}
	return nil
}

func checkNames(names []string) error {
	if len(names) > maxNames {
		return invalid("names", "has %d names; it must have from 1 to %d", len(names), maxNames)
	}
	seen := make(map[string]bool, len(names))
	for _, name := range names {
		if seen[name] {
			return invalid("names", "has %q twice; the names must be distinct", name)
		}
		seen[name] = true
	}
	return nil
}

func checkLabels(owner string, metadata map[string]string) error {
	if err := checkText("owner", owner, maxOwnerBytes); err != nil {
		return err
	}
	if len(metadata) > maxMetadataEntries {
		return invalid("metadata", "has %d entries; at most %d are allowed", len(metadata), maxMetadataEntries)
	}
	for key, value := range metadata {
		if key == "" {
			return invalid("metadata", "has an empty key; a key has 1 to %d bytes", maxMetadataKeyBytes)
		}
		if err := checkText("metadata", key, maxMetadataKeyBytes); err != nil {
			return err
		}
		if err := checkText("metadata", value, maxMetadataValueBytes); err != nil {
			return err
		}
	}
	return nil
}

func checkText(field, s string, most int) error {
	if len(s) > most {
		return invalid(field, "has a text of %d bytes; at most %d are allowed", len(s), most)
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
