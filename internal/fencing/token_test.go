package fencing

import (
	"errors"
	"testing"
	"time"
)

func TestNextToken(t *testing.T) {
	const now Instant = 1_767_225_600_000_000
	lead := Token(now.Add(MaxFloorLead))
	for _, test := range []struct {
		name                 string
		counter, last, floor Token
		now                  Instant
		want                 Token // 0: refused
	}{
		{"the clock wins over nothing", 0, 0, 0, now, Token(now)},
		{"the counter equals the clock", Token(now), 0, 0, now, Token(now) + 1},
		{"the counter is one behind the clock", Token(now) - 1, 0, 0, now, Token(now)},
		{"the counter is ahead", Token(now) + 5, 0, 0, now, Token(now) + 6},
		{"the last token is ahead", Token(now) + 5, Token(now) + 9, 0, now, Token(now) + 10},
		{"the floor is ahead", Token(now) + 5, Token(now) + 9, Token(now) + 20, now, Token(now) + 21},
		{"the floor is behind", Token(now) + 5, 0, 7, now, Token(now) + 6},
		{"the floor leads by an hour", 0, 0, lead, now, lead + 1},
		{"the floor leads by more than an hour", 0, 0, lead + 1, now, 0},
		{"so does the counter", lead + 1, 0, lead + 1, now, lead + 2},
		{"the counter is one behind such a floor", lead, 0, lead + 1, now, 0},
		{"the counter is far ahead of such a floor", lead + 9, 0, lead + 1, now, lead + 10},
		{"the last token there is", MaxToken - 1, 0, 0, now, MaxToken},
		{"no token left in the counter", MaxToken, 0, 0, now, 0},
		{"no token left in the name", 0, MaxToken, 0, now, 0},
		{"no token left above the floor", MaxToken, 0, MaxToken, now, 0},
		{"the largest floor", 0, 0, MaxToken, now, 0},
		{"the clock at the last token", 0, 0, 0, Instant(MaxToken), MaxToken},
		{"the clock beyond the last token", 0, 0, 0, Instant(MaxToken) + 1, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := nextToken(test.counter, test.last, test.floor, test.now)
			if got != test.want || (err != nil) != (test.want == 0) {
				t.Fatalf("nextToken = %d, %v; want %d", got, err, test.want)
			}
			if err != nil && err.Code != CodeClockSkew {
				t.Errorf("the code is %s", err.Code)
			}
		})
	}
}

func TestMaxTokenIsExactInADouble(t *testing.T) {
	if MaxToken != 9007199254740991 || Token(float64(MaxToken)) != MaxToken {
		t.Errorf("MaxToken is %d", MaxToken)
	}
	if lasts := Instant(MaxToken).Time(); lasts.Year() != 2255 {
		t.Errorf("clocks reach MaxToken in %s", lasts)
	}
}

func TestParseToken(t *testing.T) {
	for text, want := range map[string]Token{
		"1": 1, "42": 42, "9007199254740991": MaxToken,
		"": 0, "0": 0, "-1": 0, "+1": 0, "01": 0, " 1": 0, "1 ": 0, "1.0": 0, "1e3": 0, "0x1": 0, "1_0": 0, "*": 0, "٣": 0,
		"9007199254740992": 0, "9223372036854775808": 0,
	} {
		got, err := ParseToken("If-Match", text)
		if got != want || (err == nil) != (want != 0) {
			t.Errorf("ParseToken(%q) = %d, %v", text, got, err)
		}
		if err == nil {
			if got.String() != text {
				t.Errorf("%q became %q", text, got)
			}
			continue
		}
		if e, ok := errors.AsType[*Error](err); !ok || e.Code != CodeInvalidRequest || e.Field != "If-Match" {
			t.Errorf("ParseToken(%q): %#v", text, err)
		}
	}
}

func TestInstant(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 1999, time.FixedZone("", 3600))
	i := InstantOf(at)
	if got := i.Time(); !got.Equal(at.Truncate(time.Microsecond)) || got.Location() != time.UTC {
		t.Errorf("%s became %s", at, got)
	}
	if got := i.Add(time.Second).Sub(i); got != time.Second {
		t.Errorf("a second later is %s later", got)
	}
	if got := i.Add(1999 * time.Nanosecond); got != i+1 {
		t.Errorf("1999 ns are %d us", got-i)
	}
	if got := i.Add(-1999 * time.Nanosecond); got != i-1 {
		t.Errorf("-1999 ns are %d us", got-i)
	}
}
