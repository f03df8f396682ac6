package fencing

import (
	"fmt"
	"strings"
)

// MaxNameBytes is the length of the longest name.
const MaxNameBytes = 255

// Name is what is locked: 1 to 255 bytes of A-Z a-z 0-9 . _ : @ ~ - and /, with
// no empty, "." or ".." segment between slashes. A Name made by ParseName is
// valid; nothing is ever cleaned up to make it so.
type Name string

// ParseName checks s and returns it as a Name, or an *Error with
// CodeInvalidRequest and Field "name" that says what is wrong with it.
func ParseName(s string) (Name, error) {
	if s == "" {
		return "", invalid("name", "is empty; a name has 1 to %d bytes", MaxNameBytes)
	}
	if len(s) > MaxNameBytes {
		return "", invalid("name", "has %d bytes; a name has 1 to %d", len(s), MaxNameBytes)
	}
	for i := 0; i < len(s); i++ {
		if !nameByte[s[i]] {
			return "", invalid("name", "has %s at byte %d; allowed are A-Z a-z 0-9 . _ : @ ~ - and /", describeByte(s[i]), i)
		}
	}
	for segment := range strings.SplitSeq(s, "/") {
		switch segment {
		case "":
			return "", invalid("name", "has an empty segment: no leading, trailing or double slash is allowed")
		case ".", "..":
			return "", invalid("name", "has the segment %q, which is not allowed", segment)
		}
	}
	return Name(s), nil
}

// NameBytes are the bytes a name may consist of.
const NameBytes = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:@~-/"

var nameByte = func() (table [256]bool) {
	for i := 0; i < len(NameBytes); i++ {
		table[NameBytes[i]] = true
	}
	return table
}()

func describeByte(b byte) string {
	if b > ' ' && b < 0x7f {
		return fmt.Sprintf("%q", rune(b))
	}
	return fmt.Sprintf("the byte 0x%02x", b)
}
