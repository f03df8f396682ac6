package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	readme     = "README.md"
	operations = "docs/operations.md"
	databases  = "docs/stores/database.md"
	failures   = "docs/failures.md"
)

// task is what a section of a document has blocks of commands for (```sh). Console blocks are run by TestDocuments.
type task struct {
	document, section string
	blocks            int
	run               func(t *testing.T, blocks []string)
	notRun            string // why it can't be run by a test; then run only reads the blocks
}

var tasks = []task{
	{readme, "Several gateways", 2, threeGateways, ""},
	{operations, "A binary", 2, aBinary, ""},
	{operations, "Package and systemd", 2, reads, "they install a package as root; TestPackage of deploy/validate unpacks one, makes the key and starts what is in it"},
	{operations, "Docker and Compose", 1, reads, "they need Docker; TestDockerfile and TestCompose of deploy/validate have what it reads"},
	{operations, "Kubernetes", 1, readsTable, "they need a cluster; TestChart of deploy/validate has what it reads"},
	{databases, "Set up", 1, aDatabase, ""},
	{operations, "Upgrade", 1, reads, "they need Docker; TestUpgrade of deploy/validate replaces the gateways in the same way"},
	{operations, "From one gateway to a cluster and back", 2, fromOneToThree, ""},
	{operations, "Backup of the embedded store", 3, embeddedBackups, ""},
	{operations, "Backup of Redis", 2, redisBackups, ""},
	{operations, "Backup of a database", 4, databaseBackups, ""},
	{failures, "A key that can't be read", 1, aDamagedKey, ""},
}

// TestCommands runs the commands of README.md and of the pages for operators. A block that no task has is red.
func TestCommands(t *testing.T) {
	t.Parallel()
	found := map[string][]string{} // by document and section
	for _, document := range []string{readme, operations, failures, databases} {
		for _, b := range shellBlocks(t, document) {
			found[b.section] = append(found[b.section], b.text)
		}
	}
	for _, of := range tasks {
		section := of.document + ": " + of.section
		blocks := found[section]
		delete(found, section)
		if len(blocks) != of.blocks {
			t.Errorf("%s has %d blocks of commands, and its task is for %d", section, len(blocks), of.blocks)
			continue
		}
		t.Run(section, func(t *testing.T) {
			t.Parallel()
			of.run(t, blocks)
		})
	}
	for section := range found {
		t.Errorf("%s has commands, and no task in this test runs them", section)
	}
}

// shellBlock is a block of commands that a reader pastes.
type shellBlock struct{ section, text string }

// notCommands are the languages of blocks that are nothing for a shell, and of those that TestDocuments runs.
var notCommands = []string{"console", "sql", "env"}

// shellBlocks returns those of a document. A block of which nobody knows what it is fails the test.
func shellBlocks(t *testing.T, document string) (blocks []shellBlock) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("../..", document))
	must(t, err)
	section, inside, indent := "", "", ""
	for i, line := range strings.Split(string(content), "\n") {
		text := strings.TrimSpace(line)
		language, isFence := strings.CutPrefix(text, "```")
		switch {
		case isFence && inside == "":
			if inside, indent = language, line[:len(line)-len(text)]; language == "sh" {
				blocks = append(blocks, shellBlock{section: fmt.Sprintf("%s: %s", document, section)})
			} else if !slices.Contains(notCommands, language) {
				t.Errorf("%s:%d: a block that is neither sh nor one of %s", document, i+1, notCommands)
				inside = "?"
			}
		case isFence:
			inside = ""
		case inside == "sh":
			blocks[len(blocks)-1].text += strings.TrimPrefix(line, indent) + "\n"
		case inside == "" && strings.HasPrefix(line, "#"):
			section = strings.TrimLeft(line, "# ")
		}
	}
	return blocks
}
