package http

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// syntaxError says where a body is not JSON: the field, if it is in one of those that
// known lists (see decodeObject), the byte (counted from 1), what stands there, and what
// should. err is what d returned.
func syntaxError(body []byte, known string, d *jsontext.Decoder, err error) error {
	syntax, ok := errors.AsType[*jsontext.SyntacticError](err)
	if !ok {
		return invalid("body", "is not valid JSON: it ends too early")
	}
	field := "body"
	for name := range syntax.JSONPointer.Tokens() {
		if lists(known, name) {
			field = name
		}
		break
	}
	at := int(min(syntax.ByteOffset, int64(len(body))))
	reason := syntax.Err.Error()
	switch {
	case syntax.Err == io.ErrUnexpectedEOF:
		return invalid(field, "is not valid JSON: it ends too early")
	case syntax.Err == jsontext.ErrDuplicateName:
		return invalid(field, "has the same field name twice")
	case strings.Contains(reason, "UTF-8"):
		return invalid(field, "is not valid UTF-8 at byte %d of the body", at+1)
	case strings.Contains(reason, "in string"):
		return invalid(field, "is not valid JSON at byte %d of the body: found %s, which must be escaped in a string", at+1, found(body[at:]))
	}
	for strings.Contains(reason, " in ") && at > 0 && isWord(body[at-1]) { // the beginning of the literal or number
		at--
	}
	at, expected := expectation(body, at, d)
	return invalid(field, "is not valid JSON at byte %d of the body: found %s, expected %s", at+1, found(body[at:]), expected)
}

// lists reports whether a name is in a list such as "mode, limit and owner".
func lists(known, name string) bool {
	return slices.Contains(strings.Split(strings.ReplaceAll(known, " and ", ", "), ", "), name)
}

// expectation returns what should stand where a body goes wrong outside of strings, and
// where that is: behind a comma, if at is one.
func expectation(body []byte, at int, d *jsontext.Decoder) (start int, expected string) {
	const space = " \t\r\n"
	kind, n := d.StackIndex(d.StackDepth())
	start = at
	if n > 0 && at < len(body) && body[at] == ',' {
		start = len(body) - len(bytes.TrimLeft(body[at+1:], space))
	}
	var before byte // the last that is no space
	if head := bytes.TrimRight(body[:start], space); len(head) > 0 {
		before = head[len(head)-1]
	}
	switch isObject := kind == jsontext.KindBeginObject; {
	case kind == 0 || d.StackDepth() == 0:
		return start, "an object in braces"
	case isObject && n%2 == 1 && before != ':':
		return start, "a colon"
	case isObject && n%2 == 0 && (n == 0 || before == ','):
		return start, "a name in double quotes"
	case isObject && n%2 == 0:
		return start, "a comma or the end of the object"
	case !isObject && n > 0 && before != ',':
		return start, "a comma or the end of the list"
	}
	return start, "a value"
}

// found shows the word or the character with which text begins.
func found(text []byte) string {
	const most = 20 // bytes of a word
	n := 0
	for n < len(text) && n < most && isWord(text[n]) {
		n++
	}
	switch {
	case len(text) == 0:
		return "the end"
	case text[0] == '\'':
		return "a single quote"
	case text[0] == '"':
		return "a double quote"
	case n > 0:
		return fmt.Sprintf("%q", text[:n])
	}
	r, _ := utf8.DecodeRune(text)
	return fmt.Sprintf("%+q", r)
}

func isWord(b byte) bool {
	return b == '_' || b == '-' || b == '+' || b == '.' || '0' <= b && b <= '9' || 'A' <= b && b <= 'Z' || 'a' <= b && b <= 'z'
}
