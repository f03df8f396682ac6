package fencing

import (
	"cmp"
	"errors"
	"iter"
	"slices"
	"strings"
	"unicode/utf8"
)

// Labels is the metadata of a lease: entries in one string, for a map takes several times the room. It is the CBOR of a map of texts
// in the deterministic order, by the keys' length and then bytewise. Empty: there is none. Labels of equal entries are equal.
type Labels string

// The major types of CBOR that labels have.
const (
	cborText = 3
	cborMap  = 5
	cborNull = "\xf6" // as CBOR has a nil map
)

// LabelsOf returns the labels with the entries of a map.
func LabelsOf(entries map[string]string) Labels {
	if len(entries) == 0 {
		return ""
	}
	const header = 5 // at most
	size := header
	keys := make([]string, 0, MaxMetadataEntries)
	for key, value := range entries {
		keys = append(keys, key)
		size += header + len(key) + header + len(value)
	}
	slices.SortFunc(keys, compareKeys)
	b := appendHead(make([]byte, 0, size), cborMap, len(keys))
	for _, key := range keys {
		b = append(appendHead(b, cborText, len(key)), key...)
		value := entries[key]
		b = append(appendHead(b, cborText, len(value)), value...)
	}
	return Labels(b)
}

func compareKeys(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b)) }

// appendHead appends the head of a text or map of n bytes or entries.
func appendHead(b []byte, major byte, n int) []byte {
	switch major <<= 5; {
	case n < 24:
		return append(b, major|byte(n))
	case n < 1<<8:
		return append(b, major|24, byte(n))
	case n < 1<<16:
		return append(b, major|25, byte(n>>8), byte(n))
	}
	return append(b, major|26, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
}

// cutHead is the reverse: it also returns what follows. It returns false for what appendHead does not append.
func cutHead(s string, major byte) (n int, rest string, ok bool) {
	if s == "" || s[0]>>5 != major {
		return 0, "", false
	}
	info := int(s[0] & 31)
	if info < 24 {
		return info, s[1:], true
	}
	bytes := 1 << (info - 24)
	if info > 26 || len(s) < 1+bytes {
		return 0, "", false
	}
	for i := range bytes {
		n = n<<8 | int(s[1+i])
	}
	return n, s[1+bytes:], true
}

// cutText returns a text, and what follows.
func cutText(s string) (text, rest string, ok bool) {
	n, rest, ok := cutHead(s, cborText)
	if !ok || n > len(rest) {
		return "", "", false
	}
	return rest[:n], rest[n:], true
}

// All visits keys and values.
func (l Labels) All() iter.Seq2[string, string] {
	return func(yield func(key, value string) bool) {
		n, rest, _ := cutHead(string(l), cborMap)
		for range n {
			var key, value string
			key, rest, _ = cutText(rest)
			value, rest, _ = cutText(rest)
			if !yield(key, value) {
				return
			}
		}
	}
}

// Len returns how many entries there are.
func (l Labels) Len() int {
	n, _, _ := cutHead(string(l), cborMap)
	return n
}

// Map returns the entries, nil if there are none.
func (l Labels) Map() map[string]string {
	if l == "" {
		return nil
	}
	entries := make(map[string]string, l.Len())
	for key, value := range l.All() {
		entries[key] = value
	}
	return entries
}

// MarshalCBOR implements cbor.Marshaler: labels are encoded as a map with their entries is.
func (l Labels) MarshalCBOR() ([]byte, error) {
	if l == "" {
		return []byte(cborNull), nil
	}
	return []byte(l), nil
}

// UnmarshalCBOR implements cbor.Unmarshaler. It fails for what MarshalCBOR does not return.
func (l *Labels) UnmarshalCBOR(b []byte) error {
	text := string(b)
	if *l = ""; text == cborNull {
		return nil
	}
	n, rest, ok := cutHead(text, cborMap)
	last := ""
	for i := 0; ok && i < n; i++ {
		var key, value string
		var is, has bool
		key, rest, is = cutText(rest)
		value, rest, has = cutText(rest)
		ok = is && has && (i == 0 || compareKeys(last, key) < 0) && utf8.ValidString(key) && utf8.ValidString(value)
		last = key
	}
	if !ok || rest != "" {
		return errors.New("metadata is no map of texts in order")
	}
	if n > 0 {
		*l = Labels(text)
	}
	return nil
}
