// Package fencepost_test holds what is true of the whole module: who may import
// whom. docs/architecture.md shows it.
package fencepost_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "fencepost/"

// ours says which packages of this module a package may import.
var ours = map[string][]string{
	"api":                          {},
	"web":                          {},
	"internal/fencing":             {},
	"internal/fencing/fencingtest": {"internal/fencing", "internal/seed"},
	"internal/datadir":             {"internal/fencing"},
	"internal/disk":                {"internal/datadir", "internal/snapshots", "internal/wal"},
	"internal/embedded":            {"internal/datadir", "internal/disk", "internal/fencing", "internal/machine", "internal/snapshots", "internal/wal"},
	"internal/quorum":              {"internal/fencing"},
	"internal/wal":                 {"internal/datadir"},
	"internal/wal/waltest":         {},
	"internal/snapshots":           {"internal/datadir", "internal/wal"},
	"internal/machine":             {"internal/fencing"},
	"internal/raft":                {"internal/datadir", "internal/disk", "internal/fencing", "internal/machine", "internal/snapshots", "internal/wal"},
	"internal/redis":               {"internal/fencing"},
	"internal/raft/peer":           {},
	"internal/raft/cluster":        {"internal/datadir", "internal/disk", "internal/raft/peer", "internal/wal"},
	"internal/redis/redistest":     {},
	"internal/sql":                 {"internal/fencing", "internal/machine"},
	"internal/sql/sqltest":         {"internal/redis/redistest"},
	"internal/proxytest":           {},
	"internal/seed":                {},
	"internal/lines":               {},
	"internal/variables":           {},
	"internal/watchdog":            {"internal/fencing"},
	"internal/session":             {"internal/fencing", "internal/watchdog"},
	"internal/observe":             {"internal/fencing"},
	"internal/auth":                {"internal/fencing"},
	"internal/http":                {"internal/auth", "internal/fencing", "internal/session", "internal/watchdog", "api"},
	"client":                       {},
	"cmd/lockctl":                  {"client", "fence/fencetest", "internal/lines", "internal/variables"},
	"cmd/gateway": {
		"internal/auth", "internal/fencing", "internal/embedded", "internal/lines", "internal/quorum", "internal/raft", "internal/raft/cluster", "internal/raft/peer", "internal/redis", "internal/sql", "internal/variables", "internal/watchdog", "internal/observe", "internal/http", "web",
	},
	"fence":            {},
	"fence/fencetest":  {},
	"demo":             {"fence"},
	"examples/nightly": {"client"},
	"bench":            {"client", "internal/fencing", "internal/quorum", "internal/redis", "internal/redis/redistest", "internal/sql/sqltest", "internal/watchdog"},

	// They know the gateway by its processes and its HTTP, as its users do.
	"verify":          {"verify/attack", "verify/check", "verify/clients", "verify/crowd", "verify/history", "verify/members", "verify/planted", "verify/sessions", "verify/soak", "verify/system"},
	"verify/attack":   {"internal/redis/redistest", "verify/check", "verify/system"},
	"verify/check":    {},
	"verify/clients":  {"client", "internal/redis/redistest", "verify/check", "verify/system"},
	"verify/crowd":    {"verify/check", "verify/system"},
	"verify/members":  {"verify/check", "verify/system"},
	"verify/sessions": {"verify/check", "verify/system"},
	"verify/soak":     {"verify/check", "verify/system"},
	"verify/system":   {"internal/redis/redistest", "internal/sql/sqltest", "verify/check"},
	"verify/history":  {"verify/check", "verify/system"},
	"verify/planted":  {"verify/history", "verify/system"},
}

// theirs says who alone may import a package, or one below it, of others.
var theirs = map[string][]string{
	"github.com/go-chi/chi": {"internal/http", "bench"},
	"net/http": {
		"client", "internal/http", "cmd/gateway", "fence", "fence/fencetest", "demo", "examples/nightly", "bench", "verify/attack", "verify/clients", "verify/crowd", "verify/history", "verify/members", "verify/sessions", "verify/soak", "verify/system",
	},
	"github.com/redis/go-redis":            {"internal/redis", "internal/redis/redistest", "bench"},
	"github.com/jackc/pgx":                 {"internal/sql", "internal/sql/sqltest", "bench"},
	"github.com/go-sql-driver/mysql":       {"internal/sql", "internal/sql/sqltest"},
	"github.com/hashicorp":                 {"internal/disk", "internal/embedded", "internal/raft", "internal/raft/cluster", "internal/snapshots", "internal/wal"},
	"github.com/anishathalye/porcupine":    {"verify/history"},
	"github.com/kelseyhightower/envconfig": {"cmd/gateway"},
	"github.com/prometheus":                {"internal/observe", "internal/http", "cmd/gateway"},
	"go.opentelemetry.io":                  {"internal/observe", "internal/http", "cmd/gateway"},
}

// onlyULID are the packages that keep to the standard library and ulid, beside ours.
var onlyULID = []string{"internal/auth", "internal/fencing"}

// onlyStandard are the packages that keep to the standard library: they are for others to
// import, who get nothing else along with them.
var onlyStandard = []string{"client", "fence", "fence/fencetest"}

type pkg struct {
	ImportPath string
	Imports    []string
	Standard   bool
}

func TestImports(t *testing.T) {
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, module)
		allowed, known := ours[name]
		if !known && len(p.Imports) > 0 {
			t.Errorf("%s is not in the list of packages; add it with what it may import", name)
			continue
		}
		for _, imported := range p.Imports {
			if local, ok := strings.CutPrefix(imported, module); ok {
				if !slices.Contains(allowed, local) {
					t.Errorf("%s imports %s; it may import %v of ours", name, local, allowed)
				}
				continue
			}
			for prefix, users := range theirs {
				if (imported == prefix || strings.HasPrefix(imported, prefix+"/")) && !slices.Contains(users, name) {
					t.Errorf("%s imports %s; only %v may", name, imported, users)
				}
			}
			if slices.Contains(onlyULID, name) && strings.Contains(imported, ".") && imported != "github.com/oklog/ulid/v2" {
				t.Errorf("%s imports %s; it keeps to the standard library and ulid", name, imported)
			}
			if slices.Contains(onlyStandard, name) && strings.Contains(imported, ".") {
				t.Errorf("%s imports %s; it keeps to the standard library", name, imported)
			}
		}
	}
}

// TestImportsAreDocumented holds the table of docs/architecture.md to what packages may import, both ways. "all" stands
// for many.
func TestImportsAreDocumented(t *testing.T) {
	documented := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]+`) \\| ([^|]+) \\|$").FindAllStringSubmatch(section(t, "docs/architecture.md", "Imports"), -1) {
		for short := range strings.SplitSeq(row[1], ", ") {
			name, imports := strings.Trim(short, "`"), row[2]
			if _, top := ours[name]; !top {
				name = "internal/" + name
			}
			if _, known := ours[name]; !known || documented[name] {
				t.Errorf("a row has %s, which is no package of layout_test.go, or in two rows", short)
			}
			documented[name] = true
			var want []string
			for _, imported := range ours[name] {
				want = append(want, strings.TrimPrefix(imported, "internal/"))
			}
			slices.Sort(want)
			got := strings.Split(imports, ", ")
			slices.Sort(got)
			switch {
			case imports == "all" && len(want) > 5, imports == "–" && len(want) == 0, slices.Equal(got, want):
			default:
				t.Errorf("the row of %s has %s; layout_test.go has %s", name, imports, strings.Join(want, ", "))
			}
		}
	}
	for name := range ours {
		if !documented[name] && !strings.HasPrefix(name, "verify/") && !strings.HasPrefix(name, "examples/") {
			t.Errorf("%s is in no row", name)
		}
	}
}

func packages(t *testing.T) (list []pkg) {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports,Standard", "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	decoder := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p pkg
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
	if len(list) < 5 {
		t.Fatalf("only %d packages were found", len(list))
	}
	return list
}
