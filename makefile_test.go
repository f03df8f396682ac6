package fencepost_test

import (
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// plainAll, plainPattern and plainPackages are what make test runs without the race detector: whole
// packages, and tests of others.
var (
	plainAll      = regexp.MustCompile(`\nPLAIN := ([^\n]+)\n`)
	plainPattern  = regexp.MustCompile(`(?s)\ntest-plain:.*?-run '([^']+)' \\\n([^\n]+)\n`)
	plainPackages = regexp.MustCompile(`\./([a-z/]+)`)
)

// TestNothingIsLeftOutOfBoth: a test that is not built with the race detector is one that
// make test runs without.
func TestNothingIsLeftOutOfBoth(t *testing.T) {
	found, all := plainPattern.FindStringSubmatch(read(t, "Makefile")), plainAll.FindStringSubmatch(read(t, "Makefile"))
	if found == nil || all == nil {
		t.Fatal("the Makefile has no PLAIN, or no test-plain with -run")
	}
	whole := strings.Fields(all[1])
	runs := regexp.MustCompile(found[1])
	var packages []string
	for _, p := range plainPackages.FindAllStringSubmatch(found[2], -1) {
		packages = append(packages, p[1])
	}
	count := 0
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") || !strings.Contains(read(t, path), "\n//go:build") && !strings.HasPrefix(read(t, path), "//go:build") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil || !withoutRace(t, file) {
			return err
		}
		dir := filepath.Dir(path)
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(f.Name.Name, "Test") {
				continue
			}
			count++
			if !slices.Contains(whole, "./"+dir) && !(slices.Contains(packages, dir) && runs.MatchString(f.Name.Name)) {
				t.Errorf("%s of %s is run neither with the race detector nor by test-plain of the Makefile", f.Name.Name, path)
			}
		}
		return nil
	})
	if err != nil || count == 0 {
		t.Errorf("%d tests, %v", count, err)
	}
}

// withoutRace reports whether a file is not built with the race detector, and is without.
func withoutRace(t *testing.T, file *ast.File) bool {
	for _, group := range file.Comments {
		for _, line := range group.List {
			if line.Pos() > file.Package || !constraint.IsGoBuild(line.Text) {
				continue
			}
			expr, err := constraint.Parse(line.Text)
			if err != nil {
				t.Fatal(err)
			}
			with := func(race bool) bool { return expr.Eval(func(tag string) bool { return tag != "race" || race }) }
			return !with(true) && with(false)
		}
	}
	return false
}
