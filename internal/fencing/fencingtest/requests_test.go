package fencingtest

import (
	"context"
	"go/ast"
	"reflect"
	"slices"
	"strings"
	"testing"

	"fencepost/internal/fencing"
)

// notDrawn are the fields of what a store is asked that random histories never vary, with the
// reason.
var notDrawn = map[string]string{
	"AcquireRequest.Behind": "for stores without a queue, which refuse by it before they ask anybody",
	"Guard.MaxSkew":         "the suite has one, and moves the clocks across it",
	"Guard.HeedLoss":        "cases have it: heed",
	"Guard.Tentative":       "only a store in a database sets it: TestTentative of fencing, and the tests of internal/sql, have it",
	"Guard.Kept":            "only a store in a database sets it: TestKept of fencing, and the tests of internal/sql, have it",
}

// TestEveryFieldOfARequestIsDrawn holds the generator to what stores are asked: a field that it
// never varies is one that a store may ignore.
func TestEveryFieldOfARequestIsDrawn(t *testing.T) {
	drawn := drawn{}
	for _, caps := range []Capabilities{twoGateways, smallStepped(twoGateways), fewHoldersOf(twoGateways)} {
		for seed := range uint64(16) {
			if _, err := randomHistory(t, drawn.from(caps), caps, seed); err != nil {
				t.Fatal(err)
			}
		}
	}
	ast.Inspect(parseFile(t, "../op.go"), func(n ast.Node) bool {
		if f, ok := n.(*ast.FuncDecl); ok && f.Name.Name == "LockName" {
			if name := f.Recv.List[0].Type.(*ast.Ident).Name; drawn[name] == nil {
				t.Errorf("no random history has a %s: see generate.go", name)
			}
		}
		return true
	})
	for kind, fields := range drawn {
		for field, values := range fields {
			name := kind + "." + field
			_, excused := notDrawn[name]
			switch {
			case len(values) < 2 && !excused:
				t.Errorf("random histories never vary %s: see generate.go", name)
			case len(values) > 1 && excused:
				t.Errorf("%s is drawn: it needs no excuse", name)
			}
		}
	}
	for name := range notDrawn {
		if kind, field, ok := strings.Cut(name, "."); !ok || drawn[kind][field] == nil {
			t.Errorf("%s is no field of what a store is asked", name)
		}
	}
}

// drawn has, of each type and field of what a store was asked, the first two values.
type drawn map[string]map[string][]any

func (d drawn) note(asked any) {
	v := reflect.ValueOf(asked)
	kind := v.Type().Name()
	if d[kind] == nil {
		d[kind] = map[string][]any{}
	}
	for _, field := range reflect.VisibleFields(v.Type()) {
		values, value := d[kind][field.Name], v.FieldByIndex(field.Index).Interface()
		if len(values) < 2 && !slices.ContainsFunc(values, func(known any) bool { return reflect.DeepEqual(known, value) }) {
			d[kind][field.Name] = append(values, value)
		}
	}
}

// from opens models that note what they are asked.
func (d drawn) from(caps Capabilities) Open {
	return func(testing.TB) Backend {
		b := newModelBackend(caps)
		step, arrive := b.memory().step, b.memory().arrive
		b.memory().step = func(s *fencing.State, now fencing.Instant, guard fencing.Guard, op fencing.Op) fencing.Outcome {
			d.note(guard)
			d.note(op)
			return step(s, now, guard, op)
		}
		b.memory().arrive = func(s *fencing.State, now fencing.Instant, a fencing.Arrival) fencing.Quarantine {
			d.note(a)
			return arrive(s, now, a)
		}
		b.wrap = func(store fencing.Store) fencing.Store { return askedForLists{store.(*Model), d} }
		return b
	}
}

// askedForLists is a model that notes which lists it is asked for.
type askedForLists struct {
	*Model
	drawn drawn
}

func (l askedForLists) List(ctx context.Context, r fencing.ListRequest) (fencing.ListPage, error) {
	l.drawn.note(r)
	return l.Model.List(ctx, r)
}
