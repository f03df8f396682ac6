package fencepost_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// ruleFiles are the files all of whose functions are in docs/rules.md. Rows may name
// functions of other files too.
var ruleFiles = []string{
	"internal/fencing/step.go", "internal/fencing/break.go", "internal/fencing/settle.go", "internal/fencing/acquire.go", "internal/fencing/grant.go",
	"internal/fencing/claim.go", "internal/fencing/leave.go", "internal/fencing/own.go", "internal/fencing/quarantine.go",
	"internal/fencing/gateway.go", "internal/fencing/fence.go", "internal/fencing/clocks.go",
	"state.lua", "clocks.lua", "holders.lua", "queue.lua", "rules.lua", "view.lua", "acquire.lua", "verbs.lua", "fence.lua", "gateways.lua", "mend.lua",
}

var (
	ruleReference = regexp.MustCompile(`([a-z_]+\.(?:go|lua)): ((?:` + "`[A-Za-z_]+` ?" + `)+)`)
	ruleCases     = regexp.MustCompile("`([a-z]+_[a-z_*]*)`")
	quoted        = regexp.MustCompile("`([A-Za-z_]+)`")
	luaFunction   = regexp.MustCompile(`(?m)^(?:local )?function (?:verbs\.)?([a-z_]+)|^verbs\['([a-z]+)'\] = function`)
)

// TestRuleIndex holds docs/rules.md to the code, both ways.
func TestRuleIndex(t *testing.T) {
	page, err := os.ReadFile("docs/rules.md")
	if err != nil {
		t.Fatal(err)
	}
	cases := caseNames(t)
	named, covered := map[string]map[string]bool{}, map[string]bool{}
	for _, row := range strings.Split(string(page), "\n") {
		if !strings.HasPrefix(row, "| ") {
			continue
		}
		cells := strings.Split(strings.Trim(row, "| "), " | ")
		for _, match := range ruleReference.FindAllStringSubmatch(row, -1) {
			file := pathOfRules(match[1])
			if named[file] == nil {
				named[file] = map[string]bool{}
			}
			for _, function := range quoted.FindAllStringSubmatch(match[2], -1) {
				named[file][function[1]] = true
			}
		}
		if len(cells) != 4 {
			continue
		}
		for _, match := range ruleCases.FindAllStringSubmatch(cells[3], -1) {
			found := slices.DeleteFunc(slices.Clone(cases), func(name string) bool {
				prefix, many := strings.CutSuffix(match[1], "*")
				return many && !strings.HasPrefix(name, prefix) || !many && name != match[1]
			})
			if len(found) == 0 {
				t.Errorf("docs/rules.md: there is no case %s", match[1])
			}
			for _, name := range found {
				covered[name] = true
			}
		}
	}
	for _, name := range cases {
		if !covered[name] {
			t.Errorf("docs/rules.md: no row has the case %s", name)
		}
	}
	for file, functions := range named {
		there := functionsOf(t, file)
		for function := range functions {
			if !slices.Contains(there, function) {
				t.Errorf("docs/rules.md: %s has no function %s", file, function)
			}
		}
	}
	for _, file := range ruleFiles {
		file = pathOfRules(file)
		for _, function := range functionsOf(t, file) {
			if !named[file][function] {
				t.Errorf("docs/rules.md: no row has %s of %s", function, file)
			}
		}
	}
}

// pathOfRules returns where a file stands that a row names without its directory.
func pathOfRules(file string) string {
	switch {
	case strings.Contains(file, "/"):
		return file
	case strings.HasSuffix(file, ".lua"):
		return "internal/redis/library/" + file
	}
	return "internal/fencing/" + file
}

func caseNames(t *testing.T) (names []string) {
	t.Helper()
	files, err := filepath.Glob("internal/fencing/fencingtest/testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(file), ".txt"))
	}
	return names
}

// functionsOf returns the names of the functions and methods of a file.
func functionsOf(t *testing.T, path string) []string {
	t.Helper()
	names := map[string]bool{}
	if strings.HasSuffix(path, ".lua") {
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range luaFunction.FindAllStringSubmatch(string(source), -1) {
			names[match[1]+match[2]] = true
		}
	} else {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				names[f.Name.Name] = true
			}
		}
	}
	if len(names) == 0 {
		t.Fatalf("%s has no functions", path)
	}
	return slices.Sorted(maps.Keys(names))
}
