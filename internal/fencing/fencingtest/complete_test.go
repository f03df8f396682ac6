package fencingtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"fencepost/internal/fencing"
)

// What a new operation, a new field of its answer or a new command of the cases needs in
// this package: each test here names what was forgotten.

// notPlayed are the methods of fencing.Store and Node that no command of a case calls,
// with the reason.
var notPlayed = map[string]string{
	"Capabilities": "data", "Close": "the backend does",
	"Listen": "by the suite itself", "Watch": "by the suite itself: events.go",
	"Examine": "each store looks at something else", "Check": "as Examine",
	"Memory": "tests of internal/redis and internal/quorum", "Enroll": "as Memory",
}

func TestEveryMethodIsPlayed(t *testing.T) {
	played := map[string]bool{}
	ast.Inspect(parseFile(t, "result.go"), func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if method, ok := n.Fun.(*ast.SelectorExpr); ok {
				played[method.Sel.Name] = true
			}
		case *ast.CaseClause: // of ask
			for _, value := range n.List {
				if text, ok := value.(*ast.BasicLit); ok {
					if verb, err := strconv.Unquote(text.Value); err != nil || arguments[verb] == "" {
						t.Errorf("ask has the command %s, and cases can't: see arguments in command.go", verb)
					}
				}
			}
		}
		return true
	})
	methods := map[string]bool{}
	for _, of := range []reflect.Type{reflect.TypeFor[fencing.Store](), reflect.TypeFor[fencing.Node]()} {
		for i := range of.NumMethod() {
			methods[of.Method(i).Name] = true
		}
	}
	for method := range methods {
		if _, excused := notPlayed[method]; !excused && !played[method] {
			t.Errorf("no command of a case calls %s: see ask in result.go", method)
		}
	}
	for method := range notPlayed {
		if !methods[method] {
			t.Errorf("fencing.Store has no method %s", method)
		}
	}
}

// TestEveryOpIsPlayed: a command of a case makes each operation that a store serves.
func TestEveryOpIsPlayed(t *testing.T) {
	made := map[string]bool{"ExpireRequest": true} // which Expire makes
	ast.Inspect(parseFile(t, "result.go"), func(n ast.Node) bool {
		if literal, ok := n.(*ast.CompositeLit); ok {
			if of, ok := literal.Type.(*ast.SelectorExpr); ok {
				made[of.Sel.Name] = true
			}
		}
		return true
	})
	for _, op := range opTypes(t) {
		if !made[op] {
			t.Errorf("no command of a case makes a %s: see ask in result.go", op)
		}
	}
}

// TestEveryOpIsAskedFor: runServed asks for an operation of each kind.
func TestEveryOpIsAskedFor(t *testing.T) {
	asked := map[string]bool{}
	for _, s := range everyOp(acquireOf("a", leaseOf("A")), acquireOf("b", leaseOf("B")), 1, true, true) {
		asked[reflect.TypeOf(s.op).Name()] = true
	}
	for _, op := range opTypes(t) {
		if !asked[op] {
			t.Errorf("no store is asked for a %s: see everyOp in served.go", op)
		}
	}
}

// opTypes returns the types of fencing that are an Op, as its source has them.
func opTypes(t *testing.T) (types []string) {
	t.Helper()
	for _, d := range parseFile(t, "../op.go").Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil && f.Name.Name == "LockName" {
			types = append(types, f.Recv.List[0].Type.(*ast.Ident).Name)
		}
	}
	if len(types) < 14 {
		t.Fatalf("only %v are operations", types)
	}
	return types
}

// notGenerated are the commands that random histories do not have, with the reason.
var notGenerated = map[string]string{
	"heard": "after every command, where there is one state",
	"heed":  "cases have it", "flush": "cases have it",
}

func TestEveryCommandIsPlayed(t *testing.T) {
	all, err := loadCases()
	if err != nil {
		t.Fatal(err)
	}
	inCases, generated := map[string]bool{}, map[string]bool{}
	for _, c := range all {
		for _, command := range c.commands {
			inCases[command.verb] = true
		}
	}
	for seed := range uint64(8) {
		commands, err := randomHistory(t, openModel(twoGateways), twoGateways, seed)
		if err != nil {
			t.Fatal(err)
		}
		for _, command := range commands {
			generated[command.verb] = true
		}
	}
	language, err := os.ReadFile("testdata/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, verb := range slices.Sorted(maps.Keys(arguments)) {
		if !strings.Contains(string(language), "\n| `"+verb) {
			t.Errorf("testdata/README.md does not say what %s is", verb)
		}
		if !inCases[verb] {
			t.Errorf("no case has the command %s", verb)
		}
		if _, excused := notGenerated[verb]; !excused && !generated[verb] {
			t.Errorf("no random history has the command %s: see generate.go", verb)
		}
	}
}

// notCompared are the fields of answers that are not compared with those of Step.
var notCompared = map[string]string{
	"Outcome.More":     "a store goes on by itself",
	"Outcome.Asked":    "Step has no clock",
	"Outcome.Claimed":  "seen in the events",
	"Outcome.Noticed":  "seen in the events",
	"Outcome.Err":      "it is the error",
	"Error.Err":        "the cause, for the log",
	"Error.Detail":     "for people, but of a conflict",
	"Error.Unanswered": "of a store that asks over a network",
	"Error.Futile":     "of a store that something else may keep from writing",

	"Error.EstimatedWait": "a gateway's, not a store's",
}

func TestEveryFieldIsCompared(t *testing.T) {
	check := func(what string, kind reflect.Type, compare func(v reflect.Value) error) {
		for _, field := range reflect.VisibleFields(kind) {
			name := what + "." + field.Name
			if _, excused := notCompared[name]; excused || !field.IsExported() {
				continue
			}
			v := reflect.New(kind).Elem()
			v.FieldByIndex(field.Index).Set(another(t, field.Type))
			if compare(v) == nil {
				t.Errorf("%s is not compared: see compare.go", name)
			}
		}
	}
	d := newComparison(t, openModel(twoGateways), twoGateways)
	check("Outcome", reflect.TypeFor[fencing.Outcome](), func(v reflect.Value) error {
		return d.compare(&command{verb: "inspect"}, &result{out: v.Interface().(fencing.Outcome)}, &result{})
	})
	check("Error", reflect.TypeFor[fencing.Error](), func(v reflect.Value) error {
		err := v.Interface().(fencing.Error)
		return d.compare(&command{verb: "inspect"}, &result{err: &err}, &result{err: &fencing.Error{}})
	})
	check("Stats", reflect.TypeFor[fencing.Stats](), func(v reflect.Value) error {
		return d.compare(&command{verb: "stats"}, &result{stats: v.Interface().(fencing.Stats)}, &result{})
	})
	check("Holder", reflect.TypeFor[fencing.Holder](), func(v reflect.Value) error {
		h := v.Interface().(fencing.Holder)
		return d.compareHolder("a", &h, &fencing.Holder{})
	})
}

// another returns a value of a type that is not the zero one.
func another(t *testing.T, kind reflect.Type) reflect.Value {
	t.Helper()
	v := reflect.New(kind).Elem()
	switch kind.Kind() {
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString("x")
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]string{"k": "v"}))
	case reflect.Pointer:
		v.Set(reflect.New(kind.Elem()))
		if kind.Elem().Kind() == reflect.Struct {
			v.Elem().Field(0).Set(another(t, kind.Elem().Field(0).Type))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(kind, 1, 1))
	case reflect.Struct:
		v.Field(0).Set(another(t, kind.Field(0).Type))
	default:
		t.Fatalf("no %s is made here", kind)
	}
	return v
}

func parseFile(t *testing.T, path string) *ast.File {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	return file
}
