package fencepost_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestGoroutinesAreNamed holds docs/running.md to the code, both ways.
func TestGoroutinesAreNamed(t *testing.T) {
	page, err := os.ReadFile("docs/running.md")
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, match := range regexp.MustCompile("(?m)^\\| ([a-z_/]+\\.go): ((?:`[A-Za-z]+` ?)+)").FindAllStringSubmatch(string(page), -1) {
		for _, function := range quoted.FindAllStringSubmatch(match[2], -1) {
			named[match[1]+": "+function[1]] = true
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
			t.Errorf("docs/running.md does not say who stops what is started by %s", function)
		}
	}
	for function := range named {
		if !there[function] {
			t.Errorf("docs/running.md: nothing is started by %s", function)
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
