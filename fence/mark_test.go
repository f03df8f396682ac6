package fence_test

import (
	"encoding/json"
	"errors"
	"maps"
	"math/rand/v2"
	"testing"

	"fencepost/fence"
	"fencepost/internal/seed"
)

// admission is a step of a test: what is asked, and below which token it is stale.
type admission struct {
	token int64
	slot  int
	stale int64 // 0: admitted
}

const no = fence.NoSlot

var markCases = map[string][]admission{
	"only what is not below": {{5, no, 0}, {5, no, 0}, {4, no, 5}, {1, no, 5}, {9, no, 0}, {8, no, 9}, {9, no, 0}},
	"from 1 to the largest":  {{1, no, 0}, {fence.MaxToken, no, 0}, {fence.MaxToken, no, 0}, {fence.MaxToken - 1, no, fence.MaxToken}},
	"permits side by side":   {{10, 0, 0}, {20, 1, 0}, {10, 0, 0}, {15, 1, 20}, {11, 0, 0}, {10, 0, 11}, {20, 1, 0}, {1, 2, 0}},
	"a lease without slot is below no permit": {
		{10, 0, 0}, {20, 1, 0}, {15, no, 20}, {10, 0, 0}, {20, no, 0}, {20, no, 0}, {19, no, 20},
	},
	"a permit is not below a lease without slot": {{10, no, 0}, {9, 0, 10}, {10, 0, 0}, {12, 0, 0}, {9, 7, 10}, {10, 7, 0}, {10, no, 12}},
	"a lease without slot ends what permits had": {{30, 3, 0}, {40, no, 0}, {35, 3, 40}, {40, 3, 0}, {41, 3, 0}, {40, no, 41}},
	"the highest slot":                           {{3, fence.MaxSlot, 0}, {2, fence.MaxSlot, 3}, {2, 0, 0}},
}

func TestMark(t *testing.T) {
	for name, steps := range markCases {
		t.Run(name, func(t *testing.T) {
			var mark fence.Mark
			for i, step := range steps {
				before := fence.Mark{Token: mark.Token, Slots: maps.Clone(mark.Slots)}
				admitted(t, i, step, mark.Admit(step.token, step.slot))
				if step.stale != 0 && (mark.Token != before.Token || !maps.Equal(mark.Slots, before.Slots)) {
					t.Errorf("step %d was refused and changed the mark to %v", i, mark)
				}
			}
		})
	}
}

// admitted holds what came of a step against what is expected.
func admitted(t *testing.T, i int, step admission, err error) {
	t.Helper()
	if step.stale == 0 {
		if err != nil {
			t.Errorf("step %d, token %d, slot %d: %v", i, step.token, step.slot, err)
		}
		return
	}
	var stale *fence.StaleError
	if !errors.As(err, &stale) || *stale != (fence.StaleError{Token: step.token, Highest: step.stale}) {
		t.Errorf("step %d, token %d, slot %d: %v; it is stale, below %d", i, step.token, step.slot, err, step.stale)
	}
}

// What no lease has is refused as that, and changes nothing.
func TestMarkInvalid(t *testing.T) {
	mark := fence.Mark{Token: 7}
	for _, step := range []admission{
		{token: 0, slot: no}, {token: -1, slot: no}, {token: 1 << 53, slot: no}, {token: -1 << 63, slot: no}, {token: 1<<63 - 1, slot: no},
		{token: 8, slot: -2}, {token: 8, slot: fence.MaxSlot + 1},
	} {
		if err := mark.Admit(step.token, step.slot); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("token %d, slot %d: %v", step.token, step.slot, err)
		}
	}
	if mark.Token != 7 || len(mark.Slots) != 0 {
		t.Errorf("the mark has become %v", mark)
	}
}

// The rule, said once more without the saving of what is below: random admissions are
// judged alike by both, with the mark written down and read again in between.
func TestMarkRandom(t *testing.T) {
	seed := seed.Of(t)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		var mark fence.Mark
		all := map[int]int64{}
		for range 40 {
			token, slot := 1+random.Int64N(30), random.IntN(5)-1
			below := max(all[no], all[slot])
			if slot == no {
				for _, other := range all {
					below = max(below, other)
				}
			}
			err := mark.Admit(token, slot)
			if refused := err != nil; refused != (token < below) {
				t.Fatalf("seed %d: token %d, slot %d after %v: %v", seed, token, slot, all, err)
			}
			if err == nil {
				all[slot] = token
			}
			text, err := json.Marshal(mark)
			if err != nil {
				t.Fatal(err)
			}
			mark = fence.Mark{}
			if err := json.Unmarshal(text, &mark); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A mark keeps no slot that a token without slot has overtaken.
func TestMarkForgetsSlots(t *testing.T) {
	var mark fence.Mark
	for slot := range 100 {
		if err := mark.Admit(int64(slot+1), slot); err != nil {
			t.Fatal(err)
		}
	}
	if err := mark.Admit(100, no); err != nil || len(mark.Slots) != 0 {
		t.Errorf("%v; it keeps %d slots", err, len(mark.Slots))
	}
}

func TestParseToken(t *testing.T) {
	for text, want := range map[string]int64{"1": 1, "1795184727477314": 1795184727477314, "9007199254740991": fence.MaxToken} {
		if token, err := fence.ParseToken(text); err != nil || token != want {
			t.Errorf("%q: %d, %v", text, token, err)
		}
	}
	for _, text := range []string{"", "0", "-1", "+1", "01", " 1", "1 ", "1.0", "1e3", "0x1", "1_0", "NaN", "٣", "9007199254740992", "99999999999999999999", "1;slot=1"} {
		if token, err := fence.ParseToken(text); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%q: %d, %v", text, token, err)
		}
	}
}
