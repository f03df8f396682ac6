package http

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"fencepost/internal/fencing"
)

// invalid returns the refusal of a field, header or parameter. The detail reads
// "<field> <what>".
func invalid(field, format string, args ...any) *fencing.Error {
	return &fencing.Error{Code: fencing.CodeInvalidRequest, Field: field, Detail: field + " " + fmt.Sprintf(format, args...)}
}

// lockName reads the name from the path, and refuses a query: an option that
// somebody hoped for there must not be ignored.
func (c *call) lockName() (fencing.Name, error) {
	name, err := c.pathName()
	if err != nil {
		return "", err
	}
	return name, c.refuseQuery()
}

// pathName reads the name from a path that takes query parameters.
func (c *call) pathName() (fencing.Name, error) {
	name, err := fencing.ParseName(c.wildcard)
	if err == nil {
		c.traceNames(name)
	}
	return name, err
}

func (c *call) refuseQuery() error {
	if c.r.URL.RawQuery != "" {
		return invalid("query", "is not empty; this path takes no query parameters")
	}
	return nil
}

// leaseID reads Lease-Id; without the header it is the zero LeaseID.
func (c *call) leaseID() (fencing.LeaseID, error) {
	values := c.r.Header["Lease-Id"]
	switch len(values) {
	case 0:
		return fencing.LeaseID{}, nil
	case 1:
		id, err := fencing.ParseLeaseID(values[0])
		c.lease = id.Public()
		return id, err
	}
	return fencing.LeaseID{}, invalid("Lease-Id", "is given %d times; only once is allowed", len(values))
}

// ifMatch reads If-Match: the one token to break. Without the header it is 0.
func (c *call) ifMatch() (fencing.Token, error) {
	const form = `must be one strong entity tag, a fencing token in quotes such as "17"`
	values := c.r.Header["If-Match"]
	if len(values) == 0 {
		return 0, nil
	}
	if len(values) > 1 {
		return 0, invalid("If-Match", "is given %d times; it "+form, len(values))
	}
	quoted := values[0]
	if len(quoted) < 2 || quoted[0] != '"' || quoted[len(quoted)-1] != '"' {
		return 0, invalid("If-Match", form)
	}
	token, err := fencing.ParseToken("If-Match", quoted[1:len(quoted)-1])
	if err != nil {
		return 0, invalid("If-Match", form+"; the token is an integer from 1 to %d", fencing.MaxToken)
	}
	return token, nil
}

// refuseIfMatch refuses a precondition where none is evaluated: RFC 9110 does
// not let it be ignored by a method that changes something.
func (c *call) refuseIfMatch() error {
	if len(c.r.Header["If-Match"]) > 0 {
		return invalid("If-Match", "is only for DELETE, where it breaks a lease")
	}
	return nil
}

// leaseHold reads Lease-Hold: the depth to unwind. Without the header it is 0.
func (c *call) leaseHold() (int, error) {
	values := c.r.Header["Lease-Hold"]
	if len(values) == 0 {
		return 0, nil
	}
	if len(values) > 1 {
		return 0, invalid("Lease-Hold", "is given %d times; only once is allowed", len(values))
	}
	depth, err := strconv.Atoi(values[0])
	if err != nil || depth < 1 || depth > fencing.MaxHoldDepth || strconv.Itoa(depth) != values[0] {
		return 0, invalid("Lease-Hold", "must be an integer from 1 to %d", fencing.MaxHoldDepth)
	}
	return depth, nil
}

// wantsStream reports whether a request asks for an event stream, and does not
// prefer JSON to it.
func (c *call) wantsStream() bool {
	const eventStream = "text/event-stream"
	stream, object := 0.0, 0.0
	for _, value := range c.r.Header["Accept"] {
		if len(value) < len(eventStream) {
			continue
		}
		for part := range strings.SplitSeq(value, ",") {
			mediaType, parameters, _ := strings.Cut(part, ";")
			switch strings.ToLower(strings.TrimSpace(mediaType)) {
			case eventStream:
				stream = weight(parameters)
			case "application/json":
				object = weight(parameters)
			}
		}
	}
	return stream > 0 && stream >= object
}

// weight returns the q of a media type's parameters; 1 without one, or with one
// that can't be read.
func weight(parameters string) float64 {
	for parameter := range strings.SplitSeq(parameters, ";") {
		name, value, _ := strings.Cut(parameter, "=")
		if !strings.EqualFold(strings.TrimSpace(name), "q") {
			continue
		}
		if q, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err == nil && q >= 0 && q <= 1 {
			return q
		}
	}
	return 1
}

// readQuery calls set with each parameter of a query and its values; set returns
// errUnknownField for one it doesn't know, of which known is the list.
func readQuery(rawQuery, known string, set func(name string, values []string) error) error {
	query, err := url.ParseQuery(rawQuery)
	if err != nil {
		return invalid("query", "is malformed")
	}
	for name, values := range query {
		if err := set(name, values); err == errUnknownField {
			return invalid("query", "has an unknown parameter; known parameters: %s", known)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// once returns the value of a parameter that may stand once.
func once(name string, values []string) (string, error) {
	if len(values) > 1 {
		return "", invalid(name, "is given %d times; only once is allowed", len(values))
	}
	return values[0], nil
}

// parseList reads the query of GET /locks.
func parseList(rawQuery string) (fencing.ListRequest, error) {
	list := fencing.ListRequest{Limit: fencing.DefaultListLimit}
	err := readQuery(rawQuery, "prefix, q, mode, held_for_ms, expires_within_ms, waiting, attached, unrenewed, total, limit and cursor", func(name string, values []string) error {
		value, err := once(name, values)
		switch name {
		case "prefix", "q", "mode", "held_for_ms", "expires_within_ms", "waiting", "attached", "unrenewed", "total", "limit", "cursor":
		default:
			return errUnknownField
		}
		if err != nil {
			return err
		}
		switch name {
		case "prefix":
			list.Prefix, err = parsePrefix(value)
		case "q":
			list.Query, err = value, checkQuery(value)
		case "mode":
			list.Mode, err = parseMode(value)
		case "held_for_ms":
			list.HeldFor, err = parseSpan(name, value)
		case "expires_within_ms":
			list.EndsIn, err = parseSpan(name, value)
		case "waiting":
			list.Waiting, err = parseTrue(name, value)
		case "attached":
			list.Attached, err = parseTrue(name, value)
		case "unrenewed":
			list.Unrenewed, err = parseTrue(name, value)
		case "total":
			list.Count, err = parseTrue(name, value)
		case "limit":
			list.Limit, err = parseLimit(value)
		case "cursor":
			list.After, err = parseCursor(value)
		}
		return err
	})
	return list, err
}

func parsePrefix(value string) (string, error) {
	if len(value) > fencing.MaxNameBytes {
		return "", invalid("prefix", "has %d bytes; at most %d are allowed", len(value), fencing.MaxNameBytes)
	}
	for i := 0; i < len(value); i++ {
		if strings.IndexByte(fencing.NameBytes, value[i]) < 0 {
			return "", invalid("prefix", "has the byte 0x%02x, which names can't have; allowed are A-Z a-z 0-9 . _ : @ ~ - and /", value[i])
		}
	}
	return value, nil
}

// maxQueryBytes is the length of the longest thing that q is compared with.
const maxQueryBytes = fencing.MaxOwnerBytes

func checkQuery(value string) error {
	if len(value) > maxQueryBytes {
		return invalid("q", "has %d bytes; at most %d are allowed", len(value), maxQueryBytes)
	}
	if !utf8.ValidString(value) || strings.ContainsFunc(value, unicode.IsControl) {
		return invalid("q", "must be UTF-8 without control characters")
	}
	return nil
}

func parseMode(value string) (fencing.Mode, error) {
	switch mode := fencing.Mode(value); mode {
	case fencing.ModeExclusive, fencing.ModeShared:
		return mode, nil
	}
	return "", invalid("mode", `must be "exclusive" or "shared"`)
}

// parseSpan reads a time that a list is asked for: as long as a lease can be bounded to.
func parseSpan(field, value string) (time.Duration, error) {
	const most = fencing.MaxMaxHold
	ms, err := strconv.ParseInt(value, 10, 64)
	if err != nil || strconv.FormatInt(ms, 10) != value || ms < 1 || ms > most.Milliseconds() {
		return 0, invalid(field, "must be an integer from 1 to %d, in milliseconds", most.Milliseconds())
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// parseNotice reads notice_ms.
func parseNotice(value string) (time.Duration, error) {
	const least, most = fencing.ShortestNotice, fencing.LongestNotice
	ms, err := strconv.ParseInt(value, 10, 64)
	if err != nil || strconv.FormatInt(ms, 10) != value || ms < least.Milliseconds() || ms > most.Milliseconds() {
		return 0, invalid("notice_ms", "must be an integer from %d to %d", least.Milliseconds(), most.Milliseconds())
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// parseTrue reads what is wanted or left out.
func parseTrue(field, value string) (bool, error) {
	if value != "true" {
		return false, invalid(field, "must be true, or be left out")
	}
	return true, nil
}

func parseLimit(value string) (int, error) {
	limit, err := strconv.Atoi(value)
	switch {
	case err != nil || strconv.Itoa(limit) != value:
		return 0, invalid("limit", "must be an integer from 1 to %d", fencing.MaxListLimit)
	case limit < 1 || limit > fencing.MaxListLimit:
		return 0, invalid("limit", "is %d; it must be from 1 to %d", limit, fencing.MaxListLimit)
	}
	return limit, nil
}

// A cursor is the last name of the page before. Strict: one name has one cursor.
var cursorEncoding = base64.RawURLEncoding.Strict()

func parseCursor(value string) (fencing.Name, error) {
	decoded, err := cursorEncoding.DecodeString(value)
	if err == nil {
		var name fencing.Name
		if name, err = fencing.ParseName(string(decoded)); err == nil {
			return name, nil
		}
	}
	return "", invalid("cursor", "must be the next_cursor of an earlier page")
}
