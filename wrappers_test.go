package fencepost_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// passedOn are the methods of fencing.Store that a wrapper, a type of a package, leaves to
// the store below it. A method that a wrapper neither has nor passes on here was forgotten:
// it would go by unmeasured and unwatched, or an old answer to it would count
// (internal/watchdog/recent.go).
var passedOn = map[string][]string{
	"internal/observe.Store":     {"Capabilities", "Watch", "Stats", "Close"},
	"internal/watchdog.Watchdog": {"Capabilities", "Listen", "Expire", "Heartbeat", "Watch", "Stats", "Check"},
	"internal/watchdog.recent": {
		"List",   // brings no lease
		"Listen", // what it finds is confirmed
		"Expire", "Heartbeat", "Watch", "Stats", "Check", "Examine", "Capabilities", "Close",
	},
}

// opsPassedOn are the operations, as fencing names their requests, that Do of a wrapper leaves to
// the store below it. The others it names itself.
var opsPassedOn = map[string][]string{
	"internal/watchdog.Watchdog": {"ConfirmRequest", "LeaveRequest", "TakeBackRequest", "EvictRequest", "ClaimRequest", "AdmitRequest", "JudgeRequest", "ExpireRequest"},
	"internal/watchdog.recent": {
		"ReleaseRequest", "TakeBackRequest", "BreakRequest", "EvictRequest", "AdmitRequest", "JudgeRequest", "InspectRequest", "HistoryRequest", "ExpireRequest", // bring no lease
		"LeaveRequest", // what it finds is confirmed
		"ClaimRequest", // not of a gateway
	},
}

func TestWrappersOfDo(t *testing.T) {
	ops := receivers(t, "internal/fencing/op.go", "LockName")
	for wrapper, passed := range opsPassedOn {
		dir, of, _ := strings.Cut(wrapper, ".")
		own := opsOfDo(t, dir, of)
		for _, op := range ops {
			switch has, passes := slices.Contains(own, op), slices.Contains(passed, op); {
			case !has && !passes:
				t.Errorf("Do of %s does not name %s, and it is not among those that are passed on", wrapper, op)
			case has && passes:
				t.Errorf("Do of %s names %s, which is among those that are passed on", wrapper, op)
			}
		}
		for _, op := range passed {
			if !slices.Contains(ops, op) {
				t.Errorf("fencing has no %s, which %s passes on", op, wrapper)
			}
		}
	}
}

// receivers returns the types of a file that have a method.
func receivers(t *testing.T, path, method string) (types []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil && f.Name.Name == method {
			types = append(types, receiverOf(f))
		}
	}
	if len(types) == 0 {
		t.Fatalf("nothing in %s has a %s", path, method)
	}
	return types
}

// opsOfDo returns which types of fencing Do of a type of a package names.
func opsOfDo(t *testing.T, dir, of string) (ops []string) {
	t.Helper()
	for _, f := range methodsOf(t, dir, of) {
		if f.Name.Name != "Do" {
			continue
		}
		ast.Inspect(f.Body, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && strings.HasSuffix(s.Sel.Name, "Request") {
				ops = append(ops, s.Sel.Name)
			}
			return true
		})
	}
	return ops
}

func TestWrappersOfStore(t *testing.T) {
	methods := interfaceMethods(t, "internal/fencing/store.go", "Store")
	for wrapper, passed := range passedOn {
		dir, of, _ := strings.Cut(wrapper, ".")
		var own []string
		for _, method := range methodsOf(t, dir, of) {
			own = append(own, method.Name.Name)
		}
		for _, method := range methods {
			switch has, passes := slices.Contains(own, method), slices.Contains(passed, method); {
			case !has && !passes:
				t.Errorf("%s has no %s, which fencing.Store has, and it is not among those that are passed on", wrapper, method)
			case has && passes:
				t.Errorf("%s has a %s, which is among those that are passed on", wrapper, method)
			}
		}
		for _, method := range passed {
			if !slices.Contains(methods, method) {
				t.Errorf("fencing.Store has no %s, which %s passes on", method, wrapper)
			}
		}
	}
}

// interfaceMethods returns the methods of an interface, but for those it embeds.
func interfaceMethods(t *testing.T, path, name string) (methods []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok || spec.Name.Name != name {
			return true
		}
		if kind, ok := spec.Type.(*ast.InterfaceType); ok {
			for _, field := range kind.Methods.List {
				for _, method := range field.Names {
					methods = append(methods, method.Name)
				}
			}
		}
		return false
	})
	if len(methods) == 0 {
		t.Fatalf("%s has no interface %s", path, name)
	}
	return methods
}

// methodsOf returns the exported methods of a type of a package.
func methodsOf(t *testing.T, dir, of string) (methods []*ast.FuncDecl) {
	t.Helper()
	files, err := filepath.Glob(dir + "/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil && f.Name.IsExported() && receiverOf(f) == of {
				methods = append(methods, f)
			}
		}
	}
	return methods
}

// receiverOf returns the name of the type that has a method.
func receiverOf(method *ast.FuncDecl) string {
	receiver := method.Recv.List[0].Type
	if pointer, ok := receiver.(*ast.StarExpr); ok {
		receiver = pointer.X
	}
	name, ok := receiver.(*ast.Ident)
	if !ok {
		return ""
	}
	return name.Name
}
