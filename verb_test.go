package fencepost_test

import (
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// typical are the verbs by which TestVerbTouchesFiles finds the files that every verb needs: two that only look, one that
// ends leases, one that changes the queue and one that changes a fence. Others (acquire, renew, release) have files of
// their own all over the gateway.
var typical = []string{"admit", "break", "evict", "history", "judge"}

// verbPlaces are where files are looked for that name a verb. Those of guards in storage (fence) admit tokens without a gateway.
var verbPlaces = []string{"api", "bench", "client", "cmd", "demo", "internal", "verify", "web/js"}

// askThemselves are files that name a typical verb since they ask a store for it: no verb is added there.
var askThemselves = []string{
	"internal/http/estimate.go", // looks at the history to tell for how long a request will wait
	"internal/quorum/own.go",    // gives the notice of a break to nodes that do not have it
}

// TestVerbTouchesFiles holds the table of "Adding a verb" in docs/architecture.md to the code, both ways: its files
// are those that name a typical verb, see namesVerb. Tests are in it if they name all of the typical verbs: these hold lists of
// verbs, the others test one.
//
// It can't see a file that handles verbs without naming them: by a field of the request, under another name, or for
// other verbs than the typical ones alone. "If it does more" has those files; TestArchitectureNamesWhatIsThere looks
// whether they are there, and nobody whether any is missing. Nor does it see whether a file of the table handles the
// new verb: the compiler and the tests of the third column do, where there are any. Pages for users are not looked for: those in
// the table are to have a word that begins with a verb.
func TestVerbTouchesFiles(t *testing.T) {
	table, _, _ := strings.Cut(section(t, "docs/architecture.md", "Adding a verb"), "\n### ")
	listed := map[string]bool{}
	for _, row := range regexp.MustCompile(`(?m)^\| ([^|]+) \|`).FindAllStringSubmatch(table, -1) {
		dir := ""
		for _, quote := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			path := quote[1]
			if strings.HasSuffix(path, "/") {
				dir = path
				continue
			}
			if !strings.Contains(path, "/") {
				path = dir + path
			}
			if path = pathOnPage(path); listed[path] {
				t.Errorf("docs/architecture.md, Adding a verb: %s is there twice", path)
			}
			listed[path] = true
		}
	}
	found := map[string]bool{"wrappers_test.go": true} // this package's own
	for _, place := range verbPlaces {
		if err := filepath.WalkDir(filepath.FromSlash(place), func(path string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() && namesVerb(t, path) {
				found[filepath.ToSlash(path)] = true
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range askThemselves {
		if !found[path] || listed[path] {
			t.Errorf("%s names no verb any more, or is in the table", path)
		}
		delete(found, path)
	}
	for _, path := range slices.Sorted(maps.Keys(found)) {
		if !listed[path] {
			t.Errorf("docs/architecture.md, Adding a verb: no row has %s", path)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(listed)) {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("docs/architecture.md, Adding a verb: there is no %s", path)
		} else if !found[path] && !namesVerb(t, path) {
			t.Errorf("docs/architecture.md, Adding a verb: %s names no verb", path)
		}
	}
}

// namesVerb reports whether a file names a typical verb; a test, whether it names them all.
func namesVerb(t *testing.T, path string) bool {
	t.Helper()
	names := func(string) bool { return false }
	switch text := read(t, path); filepath.Ext(path) {
	case ".go":
		words := wordsOf(t, path, text)
		slash := filepath.ToSlash(path)
		ofClient := strings.HasPrefix(slash, "client/") || strings.HasPrefix(slash, "cmd/lockctl/")
		names = func(verb string) bool {
			upper := strings.ToUpper(verb[:1]) + verb[1:]
			return words[upper+"Request"] || words["decode"+upper] || words["Check"+upper] || words[verb+"Verb"] || words[strconv.Quote(verb)] ||
				ofClient && words[upper] // they know no requests: its method
		}
	case ".lua":
		names = func(verb string) bool {
			return regexp.MustCompile(`verbs\.` + verb + `\b|verbs\['` + verb + `'\]|\b` + verb + ` = true`).MatchString(text)
		}
	case ".js":
		names = func(verb string) bool {
			return regexp.MustCompile(`lockctl ` + verb + `\b|function ` + verb + `\(`).MatchString(text)
		}
	case ".yaml":
		names = func(verb string) bool {
			return regexp.MustCompile(`(?i)operationId: (get)?` + verb).MatchString(text)
		}
	case ".md":
		names = func(verb string) bool { return regexp.MustCompile(`(?i)\b` + verb).MatchString(text) }
	}
	if strings.HasSuffix(path, "_test.go") {
		return !slices.ContainsFunc(typical, func(verb string) bool { return !names(verb) })
	}
	return slices.ContainsFunc(typical, names)
}

// wordsOf returns the identifiers and the literals of a file in Go: what a comment says is not among them.
func wordsOf(t *testing.T, path, text string) map[string]bool {
	t.Helper()
	words := map[string]bool{}
	var s scanner.Scanner
	s.Init(token.NewFileSet().AddFile(path, -1, len(text)), []byte(text), nil, 0)
	for {
		_, kind, literal := s.Scan()
		switch kind {
		case token.EOF:
			return words
		case token.IDENT, token.STRING:
			words[literal] = true
		}
	}
}

// section returns what a page has below a heading of the second level.
func section(t *testing.T, path, heading string) string {
	t.Helper()
	_, text, found := strings.Cut(read(t, path), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("%s has no heading %q", path, heading)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return text
}

// pathOnPage returns the path of a file that docs/architecture.md names: it leaves out internal/.
func pathOnPage(path string) string {
	if _, err := os.Stat(path); err != nil {
		if _, err := os.Stat("internal/" + path); err == nil {
			return "internal/" + path
		}
	}
	return path
}

// TestArchitectureNamesWhatIsThere: the files that docs/architecture.md names exist, and what it names behind one, as in
// `dir/file.go`: `function`, that file declares.
func TestArchitectureNamesWhatIsThere(t *testing.T) {
	page := read(t, "docs/architecture.md")
	files := regexp.MustCompile("`([a-zA-Z_.-]+/[a-zA-Z_./-]*\\.(?:go|lua|js|yaml|md))`").FindAllStringSubmatch(page, -1)
	for _, match := range files {
		if _, err := os.Stat(pathOnPage(match[1])); err != nil {
			t.Errorf("docs/architecture.md: there is no %s", match[1])
		}
	}
	found := 0
	for _, match := range regexp.MustCompile("`([a-z_/]+\\.(?:go|lua))`:((?:(?:,?\\s+|\\s+(?:and|or)\\s+)`[A-Za-z_]+`)+)").FindAllStringSubmatch(page, -1) {
		there := declaredIn(t, pathOnPage(match[1]))
		for _, name := range regexp.MustCompile("`([A-Za-z_]+)`").FindAllStringSubmatch(match[2], -1) {
			if found++; !slices.Contains(there, name[1]) {
				t.Errorf("docs/architecture.md: %s has no %s", match[1], name[1])
			}
		}
	}
	if len(files) < 80 || found < 20 {
		t.Errorf("docs/architecture.md: only %d files and %d functions are found", len(files), found)
	}
}

// declaredIn returns the functions of a file and, in Go, what else it declares.
func declaredIn(t *testing.T, path string) []string {
	t.Helper()
	if strings.HasSuffix(path, ".lua") {
		return functionsOf(t, path)
	}
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			names = append(names, d.Name.Name)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					names = append(names, spec.Name.Name)
				case *ast.ValueSpec:
					for _, name := range spec.Names {
						names = append(names, name.Name)
					}
				}
			}
		}
	}
	return names
}
