package fencepost_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	// goroutineRow is a row of the table of goroutines: what ends them, and who starts them.
	goroutineRow = regexp.MustCompile(`(?m)^\| ([^|]+) \| ([^|]+) \|$`)
	// starters are functions of a file, with what they start, as in `sql/store.go`: `Open` turns.
	starters = regexp.MustCompile("^`([a-z/]+/[a-z_]+\\.go)`: (.*)$")
)

// TestGoroutinesAreNamed holds the table of docs/architecture.md to the code, both ways: what starts a goroutine is in
// one row, which says what ends it.
func TestGoroutinesAreNamed(t *testing.T) {
	table := section(t, "docs/architecture.md", "Goroutines")
	named := map[string]bool{}
	rows := goroutineRow.FindAllStringSubmatch(table, -1)
	if lines := strings.Count(table, "\n| "); len(rows) != lines {
		t.Errorf("docs/architecture.md: %d of %d rows have who ends and who starts", len(rows), lines)
	}
	for _, row := range rows[2:] { // but for the head
		if strings.Trim(row[1], " –") == "" {
			t.Errorf("docs/architecture.md: nobody ends %s", row[2])
		}
		for part := range strings.SplitSeq(row[2], "; ") {
			of := starters.FindStringSubmatch(part)
			if of == nil {
				t.Errorf("docs/architecture.md: %q names no file", part)
				continue
			}
			functions := quoted.FindAllStringSubmatch(of[2], -1)
			if len(functions) == 0 {
				t.Errorf("docs/architecture.md: %q names no function", part)
			}
			for _, function := range functions {
				name := pathOnPage(of[1]) + ": " + function[1]
				if named[name] {
					t.Errorf("docs/architecture.md: %s is named twice", name)
				}
				named[name] = true
			}
		}
	}
	there := map[string]bool{}
	for _, dir := range []string{"client", "cmd", "internal"} {
		if err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if entry != nil && entry.IsDir() && strings.HasSuffix(path, "test") {
				return fs.SkipDir // what tests are made with
			}
			if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
				for _, function := range startersIn(t, path) {
					there[filepath.ToSlash(path)+": "+function] = true
				}
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	for function := range there {
		if !named[function] {
			t.Errorf("docs/architecture.md does not say who ends what is started by %s", function)
		}
	}
	for function := range named {
		if !there[function] {
			t.Errorf("docs/architecture.md: nothing is started by %s", function)
		}
	}
}

// wrapped are the functions that start what they are given: who calls them starts it.
var wrapped = map[string]bool{"goes": true, "spawnLocked": true, "spawn": true}

// startersIn returns the functions of a file that start a goroutine, or a timer that runs
// a function.
func startersIn(t *testing.T, path string) (functions []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		starts := false
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				starts = true
			case *ast.CallExpr:
				if called, ok := n.Fun.(*ast.SelectorExpr); ok {
					starts = starts || called.Sel.Name == "Go" || called.Sel.Name == "AfterFunc" || wrapped[called.Sel.Name]
				}
			}
			return true
		})
		if starts && !wrapped[f.Name.Name] {
			functions = append(functions, f.Name.Name)
		}
	}
	return functions
}
