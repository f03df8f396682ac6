package fencing_test

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"fencepost/internal/fencing"
)

// What Unmoved answers, Step would answer too, and change nothing.
func TestUnmoved(t *testing.T) {
	passed, refused := 0, 0
	randomSteps(t, 40_000, func(_ *rand.Rand, s *fencing.State, now fencing.Instant, guard fencing.Guard, op fencing.Op) {
		admit, admits := op.(fencing.AdmitRequest)
		if !admits {
			fencing.Step(s, now, guard, op)
			return
		}
		before := s.Clone()
		out, known := fencing.Unmoved(s, now, guard, admit)
		if !reflect.DeepEqual(s, before) {
			t.Fatalf("%#v is not moved (%v), and the state is changed", op, known)
		}
		want := fencing.Step(s, now, guard, op)
		before.Gateways = s.Gateways // of which Step notes a sign of life
		switch unmoved := reflect.DeepEqual(essenceOf(s), essenceOf(before)); {
		case known && (!unmoved || !reflect.DeepEqual(out, want)):
			t.Fatalf("%#v comes to\n%+v and to\n%+v, and moves something: %v", op, out, want, !unmoved)
		case known && out.Err == nil:
			passed++
		case known:
			refused++
		}
	})
	if passed < 20 || refused < 100 {
		t.Errorf("%d passed, and %d were refused: the test misses its aim", passed, refused)
	}
}
