package main

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kelseyhightower/envconfig"

	"fencepost/internal/variables"
)

// TestSettingsAreListed: what is taken for a setting of the gateway is what it reads.
func TestSettingsAreListed(t *testing.T) {
	var keys strings.Builder
	if err := envconfig.Usagef(envPrefix, &config{}, &keys, "{{range .}}{{usage_key .}}\n{{end}}"); err != nil {
		t.Fatal(err)
	}
	read, listed := strings.Fields(keys.String()), slices.Clone(variables.Gateway)
	slices.Sort(read)
	slices.Sort(listed)
	if !slices.Equal(read, listed) {
		t.Errorf("read: %v\nlisted: %v", read, listed)
	}
}

// TestSettingsPage: docs/reference.md lists the settings with the defaults and the words of gateway -help. To change them there,
// run it with FENCEPOST_UPDATE=1.
func TestSettingsPage(t *testing.T) {
	t.Parallel()
	const path = "../../docs/reference.md"
	content, err := os.ReadFile(path)
	must(t, err)
	all := settings(t)
	page := string(content)
	before, rest, begun := strings.Cut(page, "| setting | default | meaning |\n")
	_, after, ended := strings.Cut(rest, "\n\n")
	if !begun || !ended || !strings.Contains(before, "\n## Settings\n") || strings.Contains(before, "\n## Metrics\n") {
		t.Fatalf("%s has no table of settings", path)
	}
	if want := before + settingsTable(all) + "\n" + after; page != want {
		if os.Getenv("FENCEPOST_UPDATE") == "" {
			t.Errorf("the settings of %s are not those of the gateway: FENCEPOST_UPDATE=1 go test ./cmd/gateway -run TestSettingsPage", path)
		} else {
			must(t, os.WriteFile(path, []byte(want), 0o644))
		}
	}
	for _, name := range regexp.MustCompile(`FENCEPOST_[A-Z_]*[A-Z]`).FindAllString(before+after, -1) {
		if !slices.ContainsFunc(all, func(s setting) bool { return s.name == name }) {
			t.Errorf("%s: %s is not a setting", path, name)
		}
	}
}

// setting is a variable of the environment, as the help tells of it.
type setting struct {
	group string // the struct that has it
	name  string
	usual string // its default; empty: none
	says  string
}

// settings returns all of them, in the order of the help, which is that of the fields of config.
func settings(t *testing.T) (all []setting) {
	t.Helper()
	var listed strings.Builder
	must(t, envconfig.Usagef(envPrefix, &config{}, &listed, "{{range .}}{{usage_key .}}\t{{usage_default .}}\t{{usage_description .}}\n{{end}}"))
	groups := structs(reflect.TypeFor[config]())
	for line := range strings.Lines(listed.String()) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(fields) != 3 || len(all) == len(groups) || groupTitles[groups[len(all)]] == "" {
			t.Fatalf("%q is no setting of a group", line)
		}
		all = append(all, setting{groups[len(all)], fields[0], fields[1], fields[2]})
	}
	return all
}

// structs returns for each field of a struct the name of the one that it is in.
func structs(in reflect.Type) (names []string) {
	for i := range in.NumField() {
		if field := in.Field(i); field.Anonymous {
			names = append(names, structs(field.Type)...)
		} else {
			names = append(names, in.Name())
		}
	}
	return names
}

// groupTitles are the structs of config that begin a group of the table.
var groupTitles = map[string]string{
	"Serving": "Serving", "Storage": "Store", "Cluster": "Cluster of gateways", "Redis": "Redis and databases",
	"Leases": "Leases", "Waiting": "Waiting and streams", "Requests": "Requests of a principal", "Logging": "Logging",
}

// asCode are parts of what is said of a setting that the page shows as code.
var asCode = regexp.MustCompile(`FENCEPOST_[A-Z_]*[A-Z]|[a-z+]+://([^ ]*[^ ,;)])?|/[a-z]+(/[a-z]+)?|wait_ms`)

// settingsTable returns the table. A setting for the file that has another one has no row of its own, but is in that before.
func settingsTable(all []setting) string {
	rows := []string{"| setting | default | meaning", "| --- | --- | ---"}
	var before setting
	for _, s := range all {
		if s.group != before.group {
			rows = append(rows, "| **"+groupTitles[s.group]+"** | |")
		}
		says := asCode.ReplaceAllString(s.says, "`$0`")
		last := &rows[len(rows)-1]
		name := "| `" + before.name + "`"
		switch {
		case s.name == before.name+"_FILE":
			*last = strings.Replace(*last, name, name+", `"+s.name+"`", 1)
		default:
			usual := "–"
			if s.usual != "" {
				usual = "`" + s.usual + "`"
			}
			rows = append(rows, "| `"+s.name+"` | "+usual+" | "+says)
		}
		before = s
	}
	return strings.Join(rows, " |\n") + " |\n"
}
