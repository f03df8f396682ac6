package http

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"fencepost/internal/fencing"
)

// readBody reads the body to its end into c.in, so that a client that leaves is
// noticed while the store is asked.
func (c *call) readBody() ([]byte, error) {
	if c.r.Body == nil || c.r.Body == http.NoBody {
		return nil, nil
	}
	if c.r.ContentLength > maxBodyBytes {
		return nil, errTooLarge
	}
	b := c.in[:0]
	for {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		n, err := c.r.Body.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		c.in = b
		switch {
		case len(b) > maxBodyBytes:
			return nil, errTooLarge
		case err == io.EOF:
			return b, c.stillPermitted() // it may have come late
		case err != nil:
			return nil, invalid("body", "did not arrive completely or in time")
		}
	}
}

var errTooLarge = &fencing.Error{Code: fencing.CodeTooLarge,
	Detail: "the body is larger than " + strconv.Itoa(maxBodyBytes) + " bytes"}

// jsonDecoder is a decoder with its input. jsontext refuses duplicate names and
// broken UTF-8 by itself.
type jsonDecoder struct {
	jsontext.Decoder
	input bytes.Buffer
}

var decoders = sync.Pool{New: func() any { return new(jsonDecoder) }}

// decodeObject reads a body that is a JSON object or nothing. It calls set with
// each member's name and the decoder before its value; set returns
// errUnknownField for a name it doesn't know, of which known is the list, and what
// the decoder returns as it is.
func decodeObject(body []byte, known string, set func(name string, d *jsontext.Decoder) error) error {
	if len(body) == 0 {
		return nil
	}
	decoder := decoders.Get().(*jsonDecoder)
	defer decoders.Put(decoder)
	decoder.input = *bytes.NewBuffer(body)
	d := &decoder.Decoder
	d.Reset(&decoder.input)

	err := readObject(d, known, set)
	if _, refused := errors.AsType[*fencing.Error](err); err == nil || refused {
		return err
	}
	return syntaxError(body, known, d, err)
}

func readObject(d *jsontext.Decoder, known string, set func(name string, d *jsontext.Decoder) error) error {
	start, err := d.ReadToken()
	if err != nil {
		return err
	}
	if start.Kind() != jsontext.KindBeginObject {
		return invalid("body", "must be a JSON object")
	}
	for {
		token, err := d.ReadToken()
		if err != nil {
			return err
		}
		if token.Kind() == jsontext.KindEndObject {
			break
		}
		name := token.String()
		if err := set(name, d); err == errUnknownField {
			return unknownField(name, known)
		} else if err != nil {
			return err
		}
	}
	if _, err := d.ReadToken(); err != io.EOF {
		return invalid("body", "has more data after the JSON object")
	}
	return nil
}

var errUnknownField = errors.New("unknown field")

// unknownField quotes a name only if it could have been meant for a field.
func unknownField(name, known string) error {
	const maxQuoted = 40
	plain := func(r rune) bool {
		return r == '_' || r == '-' || '0' <= r && r <= '9' || 'A' <= r && r <= 'Z' || 'a' <= r && r <= 'z'
	}
	if name == "" || len(name) > maxQuoted || strings.ContainsFunc(name, func(r rune) bool { return !plain(r) }) {
		return invalid("body", "has an unknown field; known fields: %s", known)
	}
	return invalid(name, "is not a known field; known fields: %s", known)
}

// readValue reads a value that must be of one kind.
func readValue(d *jsontext.Decoder, field string, kind jsontext.Kind, what string) (jsontext.Value, error) {
	got := d.PeekKind()
	switch got {
	case kind, jsontext.KindInvalid:
		value, err := d.ReadValue()
		if err != nil {
			return nil, err
		}
		return value, nil
	case jsontext.KindNull:
		return nil, invalid(field, "is null; leave it out for its default")
	}
	return nil, invalid(field, "must be %s", what)
}

// readInt reads an integer from lo to hi; unit is empty or what follows its bounds. It
// is checked as written, so a number too large for any type is out of range like any
// other.
func readInt(d *jsontext.Decoder, field string, lo, hi int64, unit string) (int64, error) {
	switch d.PeekKind() {
	case jsontext.KindNumber, jsontext.KindNull, jsontext.KindInvalid:
	case jsontext.KindString:
		return 0, invalid(field, "must be an integer from %d to %d%s, not a string", lo, hi, unit)
	default:
		return 0, invalid(field, "must be an integer from %d to %d%s", lo, hi, unit)
	}
	value, err := readValue(d, field, jsontext.KindNumber, "an integer")
	if err != nil {
		return 0, err
	}
	if bytes.ContainsAny(value, ".eE") {
		return 0, invalid(field, "must be an integer from %d to %d%s, without fraction or exponent", lo, hi, unit)
	}
	n, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil {
		return 0, invalid(field, "has %d digits; it must be from %d to %d%s", len(bytes.TrimPrefix(value, []byte("-"))), lo, hi, unit)
	}
	if n < lo || n > hi {
		return 0, invalid(field, "is %d; it must be from %d to %d%s", n, lo, hi, unit)
	}
	return n, nil
}

// readMillis reads a number of milliseconds within two durations. Every refusal says
// that it is milliseconds: seconds are what is most often meant.
func readMillis(d *jsontext.Decoder, field string, lo, hi time.Duration) (time.Duration, error) {
	ms, err := readInt(d, field, lo.Milliseconds(), hi.Milliseconds(), ", in milliseconds")
	return time.Duration(ms) * time.Millisecond, err
}

func readString(d *jsontext.Decoder, field string) (string, error) {
	value, err := readValue(d, field, jsontext.KindString, "a string")
	if err != nil {
		return "", err
	}
	s, err := jsontext.AppendUnquote(make([]byte, 0, len(value)), value)
	if err != nil {
		return "", err
	}
	return string(s), nil
}

// readStrings reads an object of strings.
func readStrings(d *jsontext.Decoder, field string) (map[string]string, error) {
	const what = "an object whose values are strings"
	switch d.PeekKind() {
	case jsontext.KindNull:
		return nil, invalid(field, "is null; leave it out for its default")
	case jsontext.KindBeginObject, jsontext.KindInvalid:
	default:
		return nil, invalid(field, "must be %s", what)
	}
	if _, err := d.ReadToken(); err != nil {
		return nil, err
	}
	var entries map[string]string
	for {
		token, err := d.ReadToken()
		if err != nil {
			return nil, err
		}
		if token.Kind() == jsontext.KindEndObject {
			return entries, nil
		}
		key := token.String()
		if kind := d.PeekKind(); kind != jsontext.KindString && kind != jsontext.KindInvalid {
			return nil, invalid(field, "must be %s", what)
		}
		value, err := readString(d, field)
		if err != nil {
			return nil, err
		}
		if entries == nil {
			entries = map[string]string{}
		}
		entries[key] = value
	}
}

// readNames reads a list of distinct names, and returns them in their order.
func readNames(d *jsontext.Decoder) ([]fencing.Name, error) {
	const field = "names"
	what := fmt.Sprintf("a list of 1 to %d names", fencing.MaxNames)
	switch d.PeekKind() {
	case jsontext.KindNull:
		return nil, invalid(field, "is null; it must be %s", what)
	case jsontext.KindBeginArray, jsontext.KindInvalid:
	default:
		return nil, invalid(field, "must be %s", what)
	}
	if _, err := d.ReadToken(); err != nil {
		return nil, err
	}
	var values []string
	for {
		switch d.PeekKind() {
		case jsontext.KindEndArray:
			if _, err := d.ReadToken(); err != nil {
				return nil, err
			}
			return parseNames(field, values)
		case jsontext.KindString, jsontext.KindInvalid:
		default:
			return nil, invalid(field, "must be %s, each a string", what)
		}
		value, err := readString(d, field)
		if err != nil {
			return nil, err
		}
		values = append(values, value)
	}
}

// parseNames checks the names of a set and returns them in their order.
func parseNames(field string, values []string) ([]fencing.Name, error) {
	if len(values) == 0 || len(values) > fencing.MaxNames {
		return nil, invalid(field, "has %d names; it must have from 1 to %d", len(values), fencing.MaxNames)
	}
	names := make([]fencing.Name, len(values))
	for i, value := range values {
		name, err := fencing.ParseName(value)
		var e *fencing.Error
		if errors.As(err, &e) {
			return nil, invalid(field, "has an invalid name, number %d: %s", i+1, e.Detail)
		}
		names[i] = name
	}
	slices.Sort(names)
	for i := 1; i < len(names); i++ {
		if names[i] == names[i-1] {
			return nil, invalid(field, "has %s twice; the names must be distinct", names[i])
		}
	}
	return names, nil
}
