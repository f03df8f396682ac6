package storage_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// snippets are what docs/storage has to copy, by recipe and role. In its pages a mark <!-- storage: RECIPE ROLE --> stands before a
// block of code; one that ends with "in FILE" is of a file beside the page. A file of SQL has the recipes of the page of the same
// name: a line "-- RECIPE ROLE: …" begins each part.
type snippets map[string]string

var (
	markLine = regexp.MustCompile(`^<!-- storage: (\S+(?: \S+)?)(?: in (\S+))? -->$`)
	partLine = regexp.MustCompile(`^-- ([a-z]+ (?:setup|upgrade|write|rights)): `)
)

// readPages reads all pages, and the files that they have beside them. Every block of code has a mark, and every file is named
// by a page: what is not tried is not shown.
func readPages(t testing.TB) snippets {
	t.Helper()
	paths, err := filepath.Glob("../../docs/storage/*.md")
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	found, files := snippets{}, map[string]bool{}
	add := func(path string, line int, mark, text string) {
		if _, twice := found[mark]; twice {
			t.Errorf("%s:%d: the mark %q is there twice", path, line, mark)
		}
		found[mark] = text
	}
	beside := func(path, page, name string) string {
		if files[name] = true; !strings.Contains(page, "]("+name+")") {
			t.Errorf("%s does not link to %s", path, name)
		}
		content, err := os.ReadFile(filepath.Join(filepath.Dir(path), name))
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		page := string(content)
		if strings.Contains(page, "<!-- storage: elsewhere -->") {
			continue // another test tries this page, and says so
		}
		database := strings.TrimSuffix(filepath.Base(path), ".md")
		if _, err := os.Stat(strings.TrimSuffix(path, ".md") + ".sql"); err == nil {
			part := ""
			for i, line := range strings.Split(beside(path, page, database+".sql"), "\n") {
				if begun := partLine.FindStringSubmatch(line); begun != nil {
					part = database + "/" + begun[1]
					add(database+".sql", i+1, part, "")
				} else if part != "" {
					found[part] += line + "\n"
				} else if line != "" && !strings.HasPrefix(line, "--") {
					t.Errorf("%s.sql:%d: a statement of no part: nobody tries it", database, i+1)
				}
			}
		}
		mark, open := "", false
		for i, line := range strings.Split(page, "\n") {
			marked := markLine.FindStringSubmatch(line)
			switch fence := strings.HasPrefix(line, "```"); {
			case fence && !open:
				if mark == "" {
					t.Errorf("%s:%d: a block without a mark: nobody tries it", path, i+1)
				} else {
					add(path, i+1, mark, "")
				}
				open = true
			case fence:
				mark, open = "", false
			case open && mark != "":
				found[mark] += line + "\n"
			case marked != nil && marked[2] != "":
				add(path, i+1, marked[1], beside(path, page, marked[2]))
			case marked != nil:
				mark = marked[1]
			}
		}
	}
	for _, kind := range []string{"sh", "sql", "lua"} {
		paths, err := filepath.Glob("../../docs/storage/*." + kind)
		if err != nil || len(paths) == 0 {
			t.Fatal(kind, paths, err)
		}
		for _, path := range paths {
			if !files[filepath.Base(path)] {
				t.Errorf("no page names %s: nobody tries it", path)
			}
		}
	}
	return found
}

// take returns the snippet of a mark.
func (s snippets) take(t testing.TB, mark string) string {
	t.Helper()
	text, ok := s[mark]
	if !ok {
		t.Fatalf("no page has the mark %q", mark)
	}
	return text
}

// statement is one of SQL, with its parameters by name.
type statement struct {
	text     string
	noRow    bool // the page says that no row means stale
	isSelect bool
}

// statements splits what a page shows: each ends with a semicolon at the end of a line.
func statements(text string) (list []statement) {
	var lines []string
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "-- no row"):
			list[len(list)-1].noRow = true
		case strings.HasPrefix(line, "--") || strings.TrimSpace(line) == "":
		default:
			lines = append(lines, line)
			if strings.HasSuffix(line, ";") {
				whole := strings.TrimSuffix(strings.Join(lines, "\n"), ";")
				list = append(list, statement{text: whole, isSelect: strings.HasPrefix(whole, "SELECT")})
				lines = nil
			}
		}
	}
	return list
}

var parameter = regexp.MustCompile(`:(resource|token|value)\b`)

// bind puts a database's placeholders in place of names, and returns the arguments.
func (s statement) bind(dollar bool, values map[string]any) (text string, args []any) {
	place := map[string]string{}
	text = parameter.ReplaceAllStringFunc(s.text, func(name string) string {
		name = name[1:]
		if !dollar {
			args = append(args, values[name])
			return "?"
		}
		if place[name] == "" {
			args = append(args, values[name])
			place[name] = "$" + string(rune('0'+len(args)))
		}
		return place[name]
	})
	return text, args
}
