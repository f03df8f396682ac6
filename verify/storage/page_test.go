package storage_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// snippets are what docs/storage has to copy, by recipe and role. A mark <!-- storage: RECIPE ROLE --> stands before a block of
// code; one that has "in FILE" behind the role is of a file beside the page, to which the page links. A block of a recipe without
// role has two: the lines below "-- once" are the setup, those below "-- each write" the write.
type snippets map[string]string

var (
	markLine = regexp.MustCompile(`^<!-- storage: (\S+(?: \S+)?)(?: in (\S+))? -->$`)
	roleLine = regexp.MustCompile(`^-- (once|each write)\b`)
	roles    = map[string]string{"once": " setup", "each write": " write"}
)

// readPages reads all pages. Every block of code has a mark: what is not tried is not
// shown.
func readPages(t testing.TB) snippets {
	t.Helper()
	paths, err := filepath.Glob("../../docs/storage/*.md")
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	found, marks, files := snippets{}, map[string]bool{}, map[string]bool{}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(content), "<!-- storage: elsewhere -->") {
			continue // another test tries this page, and says so
		}
		mark, role, open := "", "", false
		for i, line := range strings.Split(string(content), "\n") {
			marked := markLine.FindStringSubmatch(line)
			switch fence := strings.HasPrefix(line, "```"); {
			case fence && !open:
				if mark == "" {
					t.Errorf("%s:%d: a block without a mark: nobody tries it", path, i+1)
				} else if marks[mark] {
					t.Errorf("%s:%d: the mark %q is there twice", path, i+1, mark)
				}
				marks[mark], open = true, true
			case fence:
				mark, role, open = "", "", false
			case open && mark != "":
				if of := roleLine.FindStringSubmatch(line); of != nil {
					role = roles[of[1]]
				}
				found[mark+role] += line + "\n"
			case marked != nil && marked[2] != "":
				if files[marked[2]] = true; !strings.Contains(string(content), "]("+marked[2]+")") {
					t.Errorf("%s does not link to %s", path, marked[2])
				}
				file, err := os.ReadFile(filepath.Join(filepath.Dir(path), marked[2]))
				if err != nil {
					t.Fatal(err)
				}
				if marks[marked[1]] {
					t.Errorf("%s:%d: the mark %q is there twice", path, i+1, marked[1])
				}
				marks[marked[1]], found[marked[1]] = true, string(file)
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
				t.Errorf("%s has no mark: nobody tries it", path)
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
