package client

import (
	"fmt"
	"strings"
)

// EncodeName writes any text as a name: a byte that a name can't have, and ~, becomes ~ and two
// hexadecimal digits, as percent-encoding has it with %. So do a slash at the beginning, at
// the end or after another one, and the first dot of a segment . or .. between slashes. Two texts never
// have the same name, and one that needs nothing of this stays as it is. The empty text has none, and
// a name of more than 255 bytes is refused by gateways: take a hash of what may be longer.
func EncodeName(text string) string {
	var b strings.Builder
	for i := range len(text) {
		if c := text[i]; plainInName(text, i) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "~%02X", c)
		}
	}
	return b.String()
}

// plainInName reports whether a byte of a text stays as it is.
func plainInName(text string, i int) bool {
	begins := i == 0 || text[i-1] == '/'
	switch c := text[i]; {
	case c == '/':
		return !begins && i+1 < len(text)
	case c == '.':
		segment, _, _ := strings.Cut(text[i:], "/")
		return !begins || segment != "." && segment != ".."
	default:
		return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("_:@-", c) >= 0
	}
}
