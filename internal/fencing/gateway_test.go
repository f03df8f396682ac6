package fencing

import (
	"slices"
	"testing"
	"time"
)

// TestLapse plays signs of life of gateway 2 and others, and asks until when 2
// counts as alive.
func TestLapse(t *testing.T) {
	const s = time.Second
	type sign struct {
		at   time.Duration
		from Gateway
	}
	for _, test := range []struct {
		name  string
		signs []sign
		until time.Duration
	}{
		{"from its joining on", nil, 4 * s},
		{"its own sign", []sign{{3 * s, "2"}}, 7 * s},
		{"signs of others", []sign{{1 * s, "1"}, {2 * s, "1"}, {3 * s, "1"}}, 4 * s},
		{"a sign that is too soon to be written down", []sign{{499 * time.Millisecond, "2"}}, 4 * s},
		{"a sign that is not", []sign{{500 * time.Millisecond, "2"}}, 4*s + 500*time.Millisecond},
		{"a gap ends with another's sign", []sign{{20 * s, "1"}}, 24 * s},
		{"a gap ends with its own", []sign{{20 * s, "2"}}, 24 * s},
		{"two gaps: the second is no excuse", []sign{{20 * s, "1"}, {24 * s, "1"}}, 4 * s},
		{"two gaps with a sign in between", []sign{{20 * s, "1"}, {21 * s, "2"}, {40 * s, "1"}}, 44 * s},
		{"a gap just long enough", []sign{{2 * s, "2"}, {4 * s, "2"}, {4*s + StallAfter, "1"}}, 8*s + StallAfter},
		{"a gap just too short", []sign{{2 * s, "2"}, {4 * s, "2"}, {4*s + StallAfter - time.Microsecond, "1"}}, 8 * s},
		{"a gap while nobody is judged", []sign{{20 * s, "1"}, {23 * s, "1"}}, 24 * s},
		{"no gap, then one after its death", []sign{{2 * s, "1"}, {30 * s, "1"}}, 34 * s},
		{"silent for long before the gap", []sign{{2 * s, "1"}, {StallAfter, "1"}, {30 * s, "1"}}, 4 * s},
		{"dead before the gap", []sign{{2 * s, "1"}, {4 * s, "1"}, {6 * s, "1"}, {30 * s, "1"}}, 4 * s},
	} {
		const start = Instant(1_767_225_600_000_000)
		g := Gateways{Seen: map[Gateway]Instant{}}
		g.join("1", start)
		g.join("2", start)
		for _, sign := range test.signs {
			g.hear(sign.from, start.Add(sign.at))
		}
		if until := g.deadAt("2").Sub(start); until != test.until {
			t.Errorf("%s: until %s instead of %s", test.name, until, test.until)
		}
	}
}

// TestOldGatewaysAreForgotten: each run of a gateway has a name of its own.
func TestOldGatewaysAreForgotten(t *testing.T) {
	g := Gateways{Seen: map[Gateway]Instant{}}
	now := Instant(1_767_225_600_000_000)
	for _, gateway := range []Gateway{"a", "b", "c"} {
		g.join(gateway, now)
		now = now.Add(ForgetAfter / 2)
		g.hear("", now)
		now = now.Add(GatewayTTL)
	}
	if len(g.Seen) != 2 {
		t.Errorf("known are %v", g.Seen)
	}
}

func TestBeat(t *testing.T) {
	s, now := NewState(), Instant(1_767_225_600_000_000)
	guard := Guard{Gateway: "1", Sent: now, MaxSkew: time.Second}
	if has, err := Beat(s, now, guard); err != nil || len(has) != 0 {
		t.Errorf("the first heartbeat: %+v, %v", has, err)
	}
	Step(s, now, guard, AcquireRequest{Name: "a", Lease: LeaseID{public: "L"}, Stamp: "r", Mode: ModeExclusive, Hold: 1, TTL: time.Second, Set: "ab"})
	Step(s, now, guard, AcquireRequest{Name: "a", Lease: LeaseID{public: "M"}, Stamp: "s", Mode: ModeExclusive, Hold: 1, TTL: time.Second, Wait: 1})
	now, guard.Sent = now.Add(time.Second), guard.Sent.Add(time.Second)
	want := []Entry{{Name: "a", Lease: "L", Stamp: "r", Provisional: true}, {Name: "a", Lease: "M", Stamp: "s"}}
	if has, err := Beat(s, now, guard); err != nil || !slices.Equal(has, want) {
		t.Errorf("the second: %+v, %v", has, err)
	}
	if has, _ := Beat(s, now, Guard{Gateway: "2"}); len(has) != 0 {
		t.Errorf("another gateway is told of %+v", has)
	}
	guard.Sent = now.Add(-time.Minute)
	before := s.Gateways.Seen["1"]
	if _, err := Beat(s, now.Add(time.Second), guard); err == nil || err.Code != CodeClockSkew || s.Gateways.Seen["1"] != before {
		t.Errorf("while the clocks differ: %v", err)
	}
}
