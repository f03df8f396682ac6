package machine

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"fencepost/internal/fencing"
)

// raising returns a log whose entry at index at raises the rules.
func raising(t *testing.T, at int, rules int) []logged {
	t.Helper()
	log := logOf(5, 60)
	e, err := Decode(log[at-1].data)
	if err != nil {
		t.Fatal(err)
	}
	e.Rules, e.Writer = rules, "v2"
	log[at-1].data = must(e.Encode())
	return log
}

// An entry raises the rules for itself and all behind it, and none lowers them; a snapshot has them, and so has the hash.
func TestTheRulesAreRaised(t *testing.T) {
	plain, raised := testMachine(t), testMachine(t)
	raised.Know(3)
	log := raising(t, 20, 3)
	lower, err := Decode(log[39].data)
	if err != nil {
		t.Fatal(err)
	}
	lower.Rules = 2
	log[39].data = must(lower.Encode())
	for i, l := range logOf(5, 60) {
		l.apply(t, plain)
		log[i].apply(t, raised)
		want := 1
		if i >= 19 {
			want = 3
		}
		if raised.Rules() != want || plain.Rules() != 1 {
			t.Fatalf("after entry %d: rules %d and %d, want %d and 1", i+1, raised.Rules(), plain.Rules(), want)
		}
		_, a := plain.LastDigest()
		_, b := raised.LastDigest()
		if (a == b) != (want == 1) {
			t.Fatalf("after entry %d the hashes are %x and %x", i+1, a, b)
		}
	}
	r, err := Read(bytes.NewReader(encoded(t, raised)))
	if err != nil {
		t.Fatal(err)
	}
	again := testMachine(t)
	again.Know(3)
	if err := again.Restore(r); err != nil || again.Rules() != 3 {
		t.Errorf("behind a snapshot: rules %d, %v", again.Rules(), err)
	}
	if part, ok := raised.Part(nil); !ok || part.Rules() != 3 || part.Known() != 3 {
		t.Errorf("a part goes by other rules: %v", ok)
	}
}

// Rules that this version does not know end it where the log raises them, before anything of that entry is carried out, and at the
// snapshot behind. The error names the rules, what is known, and whom to start.
func TestRulesThatAreNotKnown(t *testing.T) {
	says := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, ErrRules) {
			t.Errorf("%s: %v", what, err)
			return
		}
		for _, part := range []string{"version 2 of them", "knows up to 1", "start version v2"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q does not say %q", what, err, part)
			}
		}
	}
	m, knows := testMachine(t), testMachine(t)
	m.Know(1)
	knows.Know(2)
	log := raising(t, 20, 2)
	for _, l := range log[:19] {
		l.apply(t, m)
		l.apply(t, knows)
	}
	before := encoded(t, m)
	e, err := Decode(log[19].data)
	if err != nil {
		t.Fatal(err)
	}
	results, err := m.Apply(20, e, &Telling{}, false)
	says("an entry", err)
	if results != nil || !bytes.Equal(encoded(t, m), before) {
		t.Error("some of it was carried out")
	}
	says("an entry that is only looked at", m.KnowsAll(log[19].data))
	if err := m.KnowsAll(log[20].data); err != nil {
		t.Error(err)
	}
	log[19].apply(t, knows)
	r, err := Read(bytes.NewReader(encoded(t, knows)))
	if err != nil {
		t.Fatal(err)
	}
	says("a snapshot", m.Restore(r))
	if !bytes.Equal(encoded(t, m), before) {
		t.Error("the state of a snapshot was taken over that is not known")
	}
}

// While version 1 is in force, a snapshot is what versions read that know of no rules; once another one is, they refuse it.
func TestWhatEarlierVersionsRead(t *testing.T) {
	for rules, version := range map[int]int{1: Format, 2: headWithRules} {
		s := fencing.NewState()
		s.Rules = rules
		if h := headOf(s, 0, 0); h.Version != version || (rules == 1) != (h.Rules == 0) {
			t.Errorf("rules %d: %+v", rules, h)
		}
	}
	if h := (&stateHead{}).state(); h.Rules != 1 {
		t.Errorf("a head without rules is by %d", h.Rules)
	}
}

// An entry that this version can't read names the version that does.
func TestAnEntryOfALaterVersion(t *testing.T) {
	m := testMachine(t)
	first := Entry{Now: 1, Writer: "v8"}
	logged{1, must(first.Encode())}.apply(t, m)
	for _, c := range []struct{ writer, want string }{{"", "version v8"}, {"v9", "version v9"}} {
		e := Entry{Now: 2, Writer: c.writer, Batches: []Batch{{Ops: []Op{must(Encoding.Marshal(operation{Kind: 9999}))}}}}
		data := must(e.Encode())
		_, err := Decode(data)
		if err == nil {
			t.Fatal("an operation of an unknown kind is read")
		}
		if err := m.Unread(2, data, err); !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "kind 9999") || !strings.Contains(err.Error(), "start that one") {
			t.Errorf("%v", err)
		}
	}
}
