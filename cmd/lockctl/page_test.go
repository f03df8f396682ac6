package main

import (
	"bytes"
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestPage holds docs/lockctl.md to the program: it has every exit status that the help has and every command, and no flag and no
// command that there is not.
func TestPage(t *testing.T) {
	content, err := os.ReadFile("../../docs/lockctl.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(content)
	_, table, _ := strings.Cut(page, "\n| Exit status |")
	table, _, _ = strings.Cut(table, "\n\n")
	var help bytes.Buffer
	if err := printHelp(&help); err != nil {
		t.Fatal(err)
	}
	statuses := regexp.MustCompile(`(?m)^ +(\d+)  [a-z]`).FindAllStringSubmatch(help.String(), -1)
	if len(statuses) < 7 {
		t.Fatalf("the help has %d exit statuses", len(statuses))
	}
	for _, status := range statuses {
		if !regexp.MustCompile(`(?m)^\|[^|]*\b` + status[1] + `\b[^|]*\|`).MatchString(table) {
			t.Errorf("the table has no exit status %s", status[1])
		}
	}
	flags, names := map[string]bool{"help": true}, map[string]bool{"COMMAND": true}
	for _, cmd := range commands() {
		names[cmd.name] = true
		if cmd.name != "completion" && cmd.name != "release" && !regexp.MustCompile("`(?:lockctl )?"+cmd.name+`\b`).MatchString(page) {
			t.Errorf("the page does not have the command %s", cmd.name)
		}
		cmd.flagSet(&settings{}).VisitAll(func(f *flag.Flag) { flags[f.Name] = true })
	}
	for _, word := range regexp.MustCompile("(?:`|lockctl [^`\n]*? )-([a-z]+(?:-[a-z]+)*)").FindAllStringSubmatch(page, -1) {
		if !flags[word[1]] {
			t.Errorf("the page has the flag -%s, and no command has", word[1])
		}
	}
	for _, word := range regexp.MustCompile("`lockctl ([A-Za-z]+)").FindAllStringSubmatch(page, -1) {
		if !names[word[1]] {
			t.Errorf("the page has the command %s, which there is not", word[1])
		}
	}
}
