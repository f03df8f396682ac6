//go:build !race

package fencingtest

import (
	"context"
	"reflect"
	"testing"

	"fencepost/internal/fencing"
)

// notMissed are the fields that a store can't ignore, or may, with the reason.
var notMissed = map[string]string{
	"ListRequest.Limit": "0 is out of its range",
}

// TestEveryFieldOfARequestIsMissed has a store ignore one field of what it is asked, each in turn:
// a case or a random history finds that.
func TestEveryFieldOfARequestIsMissed(t *testing.T) {
	all, err := loadCases()
	if err != nil {
		t.Fatal(err)
	}
	asked := drawn{}
	for seed := range uint64(16) {
		if _, err := randomHistory(t, asked.from(twoGateways), twoGateways, seed); err != nil {
			t.Fatal(err)
		}
	}
	for kind, fields := range asked {
		for field := range fields {
			name := kind + "." + field
			if notDrawn[name] != "" || notMissed[name] != "" || kind == "Guard" {
				continue
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				for _, c := range all {
					if twoGateways.offers(c) && c.run(t, ignoring(kind, field), twoGateways) != nil {
						return
					}
				}
				for seed := range uint64(plantedSeeds) {
					if _, err := randomHistory(t, ignoring(kind, field), twoGateways, seed); err != nil {
						return
					}
				}
				t.Errorf("a store that ignores it passes: no case needs it, and no random history; see generate.go")
			})
		}
	}
}

// ignoring opens models that take a field of what they are asked as if it were left out.
func ignoring(kind, field string) Open {
	without := func(asked any) any {
		if reflect.TypeOf(asked).Name() != kind {
			return asked
		}
		v := reflect.New(reflect.TypeOf(asked)).Elem()
		v.Set(reflect.ValueOf(asked))
		v.FieldByName(field).SetZero()
		return v.Interface()
	}
	return func(testing.TB) Backend {
		b := newModelBackend(twoGateways)
		step, arrive := b.memory().step, b.memory().arrive
		b.memory().step = func(s *fencing.State, now fencing.Instant, guard fencing.Guard, op fencing.Op) fencing.Outcome {
			return step(s, now, guard, without(op).(fencing.Op))
		}
		b.memory().arrive = func(s *fencing.State, now fencing.Instant, a fencing.Arrival) fencing.Quarantine {
			return arrive(s, now, without(a).(fencing.Arrival))
		}
		b.wrap = func(store fencing.Store) fencing.Store { return ignoresOfLists{store.(*Model), without} }
		return b
	}
}

// ignoresOfLists is a model that takes lists as without changes them.
type ignoresOfLists struct {
	*Model
	without func(any) any
}

func (i ignoresOfLists) List(ctx context.Context, r fencing.ListRequest) (fencing.ListPage, error) {
	return i.Model.List(ctx, i.without(r).(fencing.ListRequest))
}
