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

// raced are the packages that are tested with the race detector, simulated those of them of which some tests, played, run without.
var (
	raced             = regexp.MustCompile(`\nRACE := ((?:[^\n]+\\\n)*[^\n]+)\n`)
	simulated         = regexp.MustCompile(`\nSIMULATED := ([^\n]+)\n`)
	played            = regexp.MustCompile(`\nPLAYED := ([^\n]+)\n`)
	packageOfMakefile = regexp.MustCompile(`\./([a-z/]+)`)
)

// TestNothingIsLeftOutOfBoth: a test that is not built with the race detector is one that
// make test, or make test-system, runs without.
func TestNothingIsLeftOutOfBoth(t *testing.T) {
	makefile := read(t, "Makefile")
	with, without, pattern := raced.FindStringSubmatch(makefile), simulated.FindStringSubmatch(makefile), played.FindStringSubmatch(makefile)
	if with == nil || without == nil || pattern == nil {
		t.Fatal("the Makefile has no RACE, SIMULATED or PLAYED")
	}
	withRace, again := packagesIn(with[1]), packagesIn(without[1])
	runs := regexp.MustCompile("^Test(System)?" + pattern[1])
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
			if slices.Contains(withRace, dir) && !(slices.Contains(again, dir) && runs.MatchString(f.Name.Name)) {
				t.Errorf("%s of %s is run neither with the race detector nor, by PLAYED of the Makefile, without", f.Name.Name, path)
			}
		}
		return nil
	})
	if err != nil || count == 0 {
		t.Errorf("%d tests, %v", count, err)
	}
}

// packagesIn returns the folders of the packages that a line of the Makefile names.
func packagesIn(line string) []string {
	var found []string
	for _, match := range packageOfMakefile.FindAllStringSubmatch(line, -1) {
		found = append(found, match[1])
	}
	return found
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
