package fencepost_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// guarded are the fields that say who is known at a gateway, by package: they are looked at and changed under the
// mutex of their registry alone, so that what is known changes in one critical section (docs/architecture.md, "Three
// walks").
var guarded = map[string][]string{
	"internal/watchdog": {"waiters", "held", "places", "queues", "lingering", "lostGrants", "beating"},
	"internal/session":  {"byRequest", "byName", "news", "known"},
}

// withMutex is how a function says that its caller holds the mutex.
var withMutex = regexp.MustCompile(`(?i)the caller\s+holds\s+(mu|the mutex|the registry's\s+mutex)`)

// TestWhoIsKnownIsGuarded finds functions that use a guarded field, or call one whose caller is to hold the mutex,
// without the mutex.
func TestWhoIsKnownIsGuarded(t *testing.T) {
	for dir, fields := range guarded {
		var functions []*ast.FuncDecl
		paths, _ := filepath.Glob(filepath.Join(filepath.FromSlash(dir), "*.go"))
		files := token.NewFileSet()
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(files, path, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range file.Decls {
				if f, is := d.(*ast.FuncDecl); is && f.Body != nil {
					functions = append(functions, f)
				}
			}
		}
		needs, uses := map[string]bool{}, map[string]bool{}
		for _, f := range functions {
			if withMutex.MatchString(f.Doc.Text()) {
				needs[f.Name.Name] = true
			}
		}
		for _, f := range functions {
			if needs[f.Name.Name] {
				continue // who calls it is looked at
			}
			for what, at := range unguarded(f, fields, needs) {
				t.Errorf("%s: %s uses %s without the mutex", files.Position(at), f.Name.Name, what)
			}
		}
		for _, f := range functions {
			ast.Inspect(f, func(n ast.Node) bool {
				if s, is := n.(*ast.SelectorExpr); is && slices.Contains(fields, s.Sel.Name) {
					uses[s.Sel.Name] = true
				}
				return true
			})
		}
		if len(needs) == 0 || len(uses) != len(fields) {
			t.Errorf("%s: %d functions say that their caller holds the mutex, and of %v only %v are used", dir, len(needs), fields, slices.Sorted(maps.Keys(uses)))
		}
	}
}

// unguarded returns what a function uses where it does not have the mutex, as far as its text tells: behind an
// Unlock that is not in a branch which ends there, and before any Lock.
func unguarded(f *ast.FuncDecl, fields []string, needs map[string]bool) map[string]token.Pos {
	found := map[string]token.Pos{}
	locked := false
	var walk func(n ast.Node)
	walk = func(n ast.Node) {
		switch n := n.(type) {
		case *ast.BlockStmt:
			before := locked
			for _, s := range n.List {
				walk(s)
			}
			if k := len(n.List); k > 0 && leaves(n.List[k-1]) {
				locked = before
			}
			return
		case *ast.CaseClause:
			before := locked
			for _, s := range n.Body {
				walk(s)
			}
			if k := len(n.Body); k > 0 && leaves(n.Body[k-1]) {
				locked = before
			}
			for _, e := range n.List {
				walk(e)
			}
			return
		case *ast.DeferStmt:
			if mutexCall(n.Call) == "Unlock" {
				return
			}
		case *ast.CallExpr:
			switch mutexCall(n) {
			case "Lock":
				locked = true
			case "Unlock":
				locked = false
			}
			if s, is := n.Fun.(*ast.SelectorExpr); is && needs[s.Sel.Name] && !locked {
				found[s.Sel.Name+"()"] = n.Pos()
			}
		case *ast.SelectorExpr:
			if slices.Contains(fields, n.Sel.Name) && !locked {
				found[n.Sel.Name] = n.Pos()
			}
		}
		ast.Inspect(n, func(child ast.Node) bool {
			if child == n {
				return true
			}
			if child != nil {
				walk(child)
			}
			return false
		})
	}
	walk(f.Body)
	return found
}

// leaves reports whether nothing behind a statement of its block is reached.
func leaves(s ast.Stmt) bool {
	switch s := s.(type) {
	case *ast.ReturnStmt, *ast.BranchStmt:
		return true
	case *ast.ExprStmt:
		call, is := s.X.(*ast.CallExpr)
		name, named := ast.Node(nil), false
		if is {
			name, named = call.Fun.(*ast.Ident)
		}
		return named && name.(*ast.Ident).Name == "panic"
	}
	return false
}

// mutexCall returns Lock or Unlock of a call of a field mu, else nothing.
func mutexCall(call *ast.CallExpr) string {
	method, is := call.Fun.(*ast.SelectorExpr)
	if !is {
		return ""
	}
	mu, is := method.X.(*ast.SelectorExpr)
	if !is || mu.Sel.Name != "mu" {
		return ""
	}
	return method.Sel.Name
}

// TestWhatIsBegunIsClosed: internal/http begins a request for leases in one place, which puts it where every exit of a
// call, also a panic, closes it.
func TestWhatIsBegunIsClosed(t *testing.T) {
	paths, _ := filepath.Glob(filepath.FromSlash("internal/http/*.go"))
	var begins, sets, closes []string
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			f, is := d.(*ast.FuncDecl)
			if !is {
				continue
			}
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CallExpr:
					s, is := n.Fun.(*ast.SelectorExpr)
					switch {
					case !is:
					case s.Sel.Name == "Begin":
						begins = append(begins, f.Name.Name)
					case s.Sel.Name == "endSession":
						closes = append(closes, f.Name.Name)
					}
				case *ast.AssignStmt:
					for _, to := range n.Lhs {
						if s, is := to.(*ast.SelectorExpr); is && s.Sel.Name == "session" {
							sets = append(sets, f.Name.Name)
						}
					}
				}
				return true
			})
		}
	}
	if !slices.Equal(begins, []string{"begin"}) || !slices.Equal(slices.Sorted(slices.Values(sets)), []string{"begin", "endSession"}) || !slices.Contains(closes, "end") {
		t.Errorf("requests are begun in %v, noted in %v and closed in %v", begins, sets, closes)
	}
}
