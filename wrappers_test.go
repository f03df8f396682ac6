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
	"internal/metrics.Store":     {"Capabilities", "Watch", "Stats", "Close"},
	"internal/tracing.Store":     {"Capabilities", "Listen", "Expire", "Heartbeat", "Watch", "Stats", "Examine", "Check", "Close"}, // of no request
	"internal/watchdog.Watchdog": {"Capabilities", "Confirm", "Leave", "TakeBack", "Evict", "Admit", "Judge", "Listen", "Expire", "Heartbeat", "Watch", "Stats", "Check"},
	"internal/watchdog.recent": {
		"Release", "TakeBack", "Break", "Evict", "Admit", "Judge", "Inspect", "List", "History", // bring no lease
		"Leave", "Listen", // what they find is confirmed
		"Expire", "Heartbeat", "Watch", "Stats", "Check", "Examine", "Capabilities", "Close",
	},
}

func TestWrappersOfStore(t *testing.T) {
	methods := interfaceMethods(t, "internal/fencing/store.go", "Store")
	for wrapper, passed := range passedOn {
		dir, of, _ := strings.Cut(wrapper, ".")
		own := methodNames(t, dir, of)
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

// methodNames returns the exported methods of a type of a package.
func methodNames(t *testing.T, dir, of string) (names []string) {
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
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv == nil || !f.Name.IsExported() {
				continue
			}
			receiver := f.Recv.List[0].Type
			if pointer, ok := receiver.(*ast.StarExpr); ok {
				receiver = pointer.X
			}
			if name, ok := receiver.(*ast.Ident); ok && name.Name == of {
				names = append(names, f.Name.Name)
			}
		}
	}
	return names
}
