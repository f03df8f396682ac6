package fencepost_test

import (
	"go/scanner"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestMessagesOfAStart: the messages that docs/format.md explains are in the code: what is between dots in one literal, in this
// order. Whether a start says them, tests of the packages show.
func TestMessagesOfAStart(t *testing.T) {
	var literals []string
	for _, dir := range []string{"wal", "snapshots", "disk", "machine", "embedded", "raft"} {
		files, err := filepath.Glob("internal/" + dir + "/*.go")
		if err != nil || len(files) == 0 {
			t.Fatal(files, err)
		}
		for _, path := range files {
			if !strings.HasSuffix(path, "_test.go") {
				literals = append(literals, stringsIn(t, path)...)
			}
		}
	}
	rows := regexp.MustCompile("(?m)^\\| (`[^|]+`) \\|").FindAllStringSubmatch(section(t, "docs/format.md", "What a start does"), -1)
	if len(rows) < 5 {
		t.Fatalf("docs/format.md explains only %d messages", len(rows))
	}
	for _, row := range rows {
		for _, message := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			said := regexp.MustCompile(strings.ReplaceAll(regexp.QuoteMeta(message[1]), `\.\.\.`, `.*`))
			found := false
			for _, literal := range literals {
				found = found || said.MatchString(literal)
			}
			if !found {
				t.Errorf("docs/format.md: nothing says %q", message[1])
			}
		}
	}
}

// stringsIn returns the values of the string literals of a file in Go.
func stringsIn(t *testing.T, path string) (values []string) {
	t.Helper()
	text := read(t, path)
	var s scanner.Scanner
	s.Init(token.NewFileSet().AddFile(path, -1, len(text)), []byte(text), nil, 0)
	for {
		_, kind, literal := s.Scan()
		if kind == token.EOF {
			return values
		}
		if value, err := strconv.Unquote(literal); err == nil && kind == token.STRING {
			values = append(values, value)
		}
	}
}
