package fencingtest

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"fencepost/internal/fencing"
)

// leaseOf returns the lease id of a label. A label is a letter and digits; with
// a quote mark behind it, it has the same public part and another secret.
func leaseOf(label string) fencing.LeaseID {
	public := ulid.ULID{}
	entropy := sha256.Sum256([]byte("public " + strings.TrimRight(label, "'")))
	copy(public[:], entropy[:])
	if err := public.SetTime(uint64(Epoch.Time().UnixMilli())); err != nil {
		panic(err)
	}
	secret := sha256.Sum256([]byte("secret " + label))
	id, err := fencing.ParseLeaseID(public.String() + "." + base64.RawURLEncoding.EncodeToString(secret[:16]))
	if err != nil {
		panic(err)
	}
	return id
}

// stampOf returns the stamp of a label.
func stampOf(label string) fencing.Stamp {
	sum := sha256.Sum256([]byte("stamp " + label))
	return fencing.Stamp(hex.EncodeToString(sum[:8]))
}

// optionalStamp is stampOf where there may be none.
func optionalStamp(label string) fencing.Stamp {
	if label == "" {
		return ""
	}
	return stampOf(label)
}

// splitWords cuts a line at blanks that are not within double quotes.
func splitWords(line string) ([]string, error) {
	var words []string
	for {
		line = strings.TrimLeft(line, " \t")
		if line == "" {
			return words, nil
		}
		end := 0
		for end < len(line) && line[end] != ' ' && line[end] != '\t' {
			if line[end] != '"' {
				end++
				continue
			}
			quoted, err := strconv.QuotedPrefix(line[end:])
			if err != nil {
				return nil, fmt.Errorf("a quotation does not end: %s", line[end:])
			}
			end += len(quoted)
		}
		words = append(words, line[:end])
		line = line[end:]
	}
}

// item is one word of the form key, key=value, key>value or key<=value.
type item struct {
	key, op, value string
}

func parseItem(word string) (item, error) {
	at := strings.IndexAny(word, "=<>")
	if at < 0 {
		return item{key: word}, nil
	}
	it := item{key: word[:at], op: word[at : at+1], value: word[at+1:]}
	if rest, ok := strings.CutPrefix(word[at:], "<="); ok {
		it.op, it.value = "<=", rest
	}
	if it.op == "<" {
		return item{}, fmt.Errorf("%q: the relations are = > <=", word)
	}
	if strings.HasPrefix(it.value, `"`) {
		value, err := strconv.Unquote(it.value)
		if err != nil {
			return item{}, fmt.Errorf("%q is not a quoted text", it.value)
		}
		it.value = value
	}
	return it, nil
}

// constants are the times of package fencing that a case may name in place of a number,
// so that it says what it depends on, and holds when they change.
var constants = map[string]time.Duration{
	"TombstoneTTL": fencing.TombstoneTTL, "ForgetAfter": fencing.ForgetAfter, "RestTTL": fencing.RestTTL, "GatewayTTL": fencing.GatewayTTL,
}

// parseDuration reads times and names of constants with + or - between them.
func parseDuration(text string) (sum time.Duration, err error) {
	for rest := text; rest != ""; {
		end := 1 + strings.IndexAny(rest[1:]+"+", "+-")
		sign, term := time.Duration(1), rest[:end]
		if term[0] == '-' {
			sign = -1
		}
		term, rest = strings.TrimLeft(term, "+-"), rest[end:]
		d, named := constants[term]
		if !named {
			if d, err = time.ParseDuration(term); err != nil {
				return 0, fmt.Errorf("%q is not a time, nor one of %s", term, strings.Join(slices.Sorted(maps.Keys(constants)), " "))
			}
		}
		sum += sign * d
	}
	if text == "" {
		return 0, errors.New("a time is missing")
	}
	return sum, nil
}

// short writes a duration as time.ParseDuration reads it, without zeros and in
// ASCII: 5m for 5m0s.
func short(d time.Duration) string {
	s := strings.Replace(d.String(), "µ", "u", 1)
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// quote returns s as it is written in a case.
func quote(s string) string {
	if s == "" || strings.ContainsAny(s, " \t\"=<>") || strconv.Quote(s) != `"`+s+`"` {
		return strconv.Quote(s)
	}
	return s
}
