package fencepost_test

import (
	"cmp"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	pathInDocument  = regexp.MustCompile("`((?:api|bench|cmd|demo|deploy|docs|examples|fence|internal|scripts|tools|verify|web)(?:/[A-Za-z0-9_.-]+)+)`")
	linkInDocument  = regexp.MustCompile(`\]\(([^):]+\.md)?(#[a-z0-9-]+)?\)`)
	testInDocument  = regexp.MustCompile("`(Test[A-Z][A-Za-z]+)`")
	blockInDocument = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	codeInText      = regexp.MustCompile("`([^`\n]+)`")
	sentence        = regexp.MustCompile(`^[A-Za-z][a-z]*(?:[,:;]? [a-z'-]+){2,}$`)
	anchorless      = regexp.MustCompile(`[^a-z0-9 -]`)
)

// TestDocumentsNameWhatIsThere: paths, links and tests that the documents name exist.
func TestDocumentsNameWhatIsThere(t *testing.T) {
	tests := testNames(t)
	for _, path := range []string{"CHANGELOG.md", "BENCHMARKS.md", "VERIFICATION.md"} { // which name what was there once, too
		checkLinks(t, path, read(t, path))
	}
	for _, path := range documents(t) {
		text := read(t, path)
		checkLinks(t, path, text)
		for _, match := range pathInDocument.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(match[1]); err != nil {
				t.Errorf("%s: there is no %s", path, match[1])
			}
		}
		for _, match := range testInDocument.FindAllStringSubmatch(text, -1) {
			if !tests[match[1]] {
				t.Errorf("%s: there is no %s", path, match[1])
			}
		}
	}
}

// checkLinks: what a document links to is there.
func checkLinks(t *testing.T, path, text string) {
	t.Helper()
	for _, match := range linkInDocument.FindAllStringSubmatch(text, -1) {
		target := path
		if match[1] != "" {
			target = filepath.Join(filepath.Dir(path), match[1])
		}
		if _, err := os.Stat(target); err != nil {
			t.Errorf("%s: there is no %s", path, target)
		} else if match[2] != "" && !hasHeading(read(t, target), match[2][1:]) {
			t.Errorf("%s: %s has no heading %s", path, target, match[2])
		}
	}
}

// TestDocumentsStayShort: whoever is on call reads a page once. A page that grows is one to cut, or a fact to move to where it
// belongs.
func TestDocumentsStayShort(t *testing.T) {
	const mostOfReadme, mostLines, mostBytes = 140, 3000, 232_000
	lines, size := 0, 0
	for _, path := range documents(t) {
		text := read(t, path)
		n := strings.Count(text, "\n")
		if path == "README.md" && n > mostOfReadme {
			t.Errorf("README.md has %d lines, at most %d are allowed", n, mostOfReadme)
		}
		lines, size = lines+n, size+len(text)
	}
	if lines > mostLines || size > mostBytes {
		t.Errorf("the documents have %d lines and %d bytes, at most %d and %d are allowed", lines, size, mostLines, mostBytes)
	}
}

// notOurs are texts in messages that other modules, or the standard library, make.
var notOurs = []string{"x509:", "tls:", "TLS handshake", "connection reset by peer", "EOF"}

// TestFailuresQuotesMessages: what docs/failures.md and docs/operations.md have somebody look for in a log, or in what a
// command says, can be there.
func TestFailuresQuotesMessages(t *testing.T) {
	var quoted []string
	_, table, _ := strings.Cut(read(t, "docs/failures.md"), "\n| text in the log |")
	table, _, _ = strings.Cut(table, "\n\n")
	for _, row := range regexp.MustCompile("(?m)^\\| (`.*?) \\|").FindAllStringSubmatch(table, -1) {
		for _, match := range codeInText.FindAllStringSubmatch(row[1], -1) {
			quoted = append(quoted, match[1])
		}
	}
	for _, page := range []string{"docs/failures.md", "docs/operations.md"} {
		for _, match := range codeInText.FindAllStringSubmatch(blockInDocument.ReplaceAllString(read(t, page), ""), -1) {
			if sentence.MatchString(match[1]) && !strings.Contains(match[1], "systemctl ") && !strings.HasPrefix(match[1], "gateway ") {
				quoted = append(quoted, match[1])
			}
		}
	}
	if len(quoted) < 15 {
		t.Errorf("only %d messages: %q", len(quoted), quoted)
	}
	var sources strings.Builder
	for _, root := range []string{"cmd/gateway", "internal"} {
		if err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && filepath.Ext(path) == ".go" && !strings.HasSuffix(path, "_test.go") {
				for line := range strings.Lines(read(t, path)) {
					if strings.Contains(line, `"`) && !strings.HasPrefix(strings.TrimSpace(line), "//") {
						sources.WriteString(line)
					}
				}
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, text := range quoted {
		if !slices.Contains(notOurs, text) && !strings.Contains(sources.String(), text) {
			t.Errorf("no message has %q", text)
		}
	}
}

// documents returns the paths of README and of every page below docs.
func documents(t *testing.T) []string {
	t.Helper()
	paths := []string{"README.md"}
	for _, pattern := range []string{"docs/*.md", "docs/*/*.md"} {
		pages, err := filepath.Glob(pattern)
		if err != nil || len(pages) == 0 {
			t.Fatal(pattern, pages, err)
		}
		paths = append(paths, pages...)
	}
	return paths
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// hasHeading reports whether a document has the heading of an anchor.
func hasHeading(text, anchor string) bool {
	for line := range strings.Lines(text) {
		if heading := strings.TrimLeft(line, "#"); heading != line {
			words := anchorless.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), "")
			if strings.ReplaceAll(words, " ", "-") == anchor {
				return true
			}
		}
	}
	return false
}

// testNames returns the names of all tests of the module.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, pattern := range []string{"*_test.go", "*/*_test.go", "*/*/*_test.go", "*/*/*/*_test.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range files {
			for _, match := range regexp.MustCompile(`(?m)^func (Test[A-Za-z]+)\(`).FindAllStringSubmatch(read(t, path), -1) {
				names[match[1]] = true
			}
		}
	}
	return names
}

// elsewhere finds references to documents that are not in this repository: everything
// that a reader needs is here.
var elsewhere = regexp.MustCompile(`\b[Ss]ections? [0-9]|\bDESIGN\b|\bissue #?[0-9]`)

func TestNoDocumentsElsewhere(t *testing.T) {
	if err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && path != "." {
			return cmp.Or(err, fs.SkipDir)
		}
		switch filepath.Ext(path) {
		case ".go", ".lua", ".sh", ".py", ".java", ".sql", ".md", ".txt", ".txtar", ".yaml", ".conf", ".js", ".mjs", ".css", ".html":
			if found := elsewhere.FindString(read(t, path)); found != "" && path != "documents_test.go" {
				t.Errorf("%s cites %q of a document that is not here", path, found)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
