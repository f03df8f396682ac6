package deploy_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"fencepost/verify/system"
)

// takeBacks is how long an end may take beyond FENCEPOST_DRAIN_TIMEOUT: docs/operations.md.
const takeBacks = 15 * time.Second

// lastSnapshot is how long the last snapshot of a million held names takes on a busy machine: docs/performance.md.
const lastSnapshot = 30 * time.Second

// buildGateway returns the path of a gateway, built from this tree.
func buildGateway(t *testing.T) string {
	t.Helper()
	path, err := system.Binary(system.Build{})
	must(t, err)
	return path
}

// settingsOf returns the defaults of all settings, by name.
func settingsOf(t *testing.T, gateway string) map[string]string {
	t.Helper()
	help, err := exec.Command(gateway, "-help").Output()
	must(t, err)
	settings := map[string]string{}
	for _, match := range regexp.MustCompile(`(?m)^  (FENCEPOST_\w+) +(\S+)`).FindAllStringSubmatch(string(help), -1) {
		settings[match[1]] = match[2]
	}
	if len(settings) < 10 {
		t.Fatalf("only %d settings", len(settings))
	}
	return settings
}

// shipped returns the files of this directory that are for operators, and the pages that a package has.
func shipped(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	must(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			if entry != nil && (entry.Name() == "validate" || entry.Name() == "secrets") {
				return fs.SkipDir
			}
			return err
		}
		if !strings.HasSuffix(path, "_test.go") {
			files[path] = readFile(t, path)
		}
		return nil
	}))
	pages := regexp.MustCompile(`(?m)^  - \{src: (docs/\S+\.md), dst: /usr/share/doc/fencepost/\S+\.md\}$`).FindAllStringSubmatch(files["package/nfpm.yaml"], -1)
	if len(pages) < 4 {
		t.Fatalf("a package has only %d pages", len(pages))
	}
	for _, page := range pages {
		files["../"+page[1]] = readFile(t, "../"+page[1])
	}
	return files
}

const (
	operations = "../docs/operations.md"
	failures   = "../docs/failures.md"
)

func readFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	return string(b)
}

// TestSettings: the gateway refuses a setting that it does not know, so nothing that is
// shipped may have one.
func TestSettings(t *testing.T) {
	t.Parallel()
	settings := settingsOf(t, buildGateway(t))
	variable := regexp.MustCompile(`FENCEPOST_[A-Z_]*[A-Z]`)
	help, err := exec.Command("go", "run", "fencepost/cmd/lockctl", "-help").Output()
	must(t, err)
	ofLockctl := variable.FindAllString(string(help), -1)
	found := 0
	for path, text := range shipped(t) {
		forPeople := strings.HasSuffix(path, ".md") || strings.HasSuffix(path, ".txt")
		for _, name := range variable.FindAllString(text, -1) {
			if found++; settings[name] == "" && !(forPeople && slices.Contains(ofLockctl, name)) {
				t.Errorf("%s: %s is not a setting", path, name)
			}
		}
	}
	if found < 50 {
		t.Errorf("only %d settings were found", found)
	}
}

// TestTimeToDrain: who stops a gateway waits until it has ended by itself.
func TestTimeToDrain(t *testing.T) {
	t.Parallel()
	usual := settingsOf(t, buildGateway(t))["FENCEPOST_DRAIN_TIMEOUT"]
	for path, waits := range map[string]string{
		"systemd/fencepost.service": `(?m)^TimeoutStopSec=(\S+)`,
		"compose/gateway.yaml":      `stop_grace_period: (\S+)`,
		"kubernetes/embedded.yaml":  `terminationGracePeriodSeconds: (\d+)`,
		"kubernetes/redis.yaml":     `terminationGracePeriodSeconds: (\d+)`,
		"kubernetes/raft.yaml":      `terminationGracePeriodSeconds: (\d+)`,
	} {
		text := readFile(t, path)
		drain := seconds(t, path, text, `FENCEPOST_DRAIN_TIMEOUT(?:: |, value: ")(\w+)`, usual)
		before := seconds(t, path, text, `preStop: \{sleep: \{seconds: (\d+)`, "0s")
		if grace := seconds(t, path, text, waits, ""); grace <= before+drain+takeBacks+lastSnapshot {
			t.Errorf("%s waits %s for an end that may take %s", path, grace, before+drain+takeBacks+lastSnapshot)
		}
	}
}

func seconds(t *testing.T, path, text, pattern, absent string) time.Duration {
	t.Helper()
	if match := regexp.MustCompile(pattern).FindStringSubmatch(text); match != nil {
		absent = match[1]
	}
	if !strings.HasSuffix(absent, "s") {
		absent += "s"
	}
	d, err := time.ParseDuration(absent)
	if err != nil {
		t.Fatalf("%s: %s: %v", path, pattern, err)
	}
	return d
}

// TestProbes: what asks a gateway whether it is well asks for paths that there are, at the
// port at which it serves.
func TestProbes(t *testing.T) {
	t.Parallel()
	document := readFile(t, "../api/openapi.yaml")
	paths := regexp.MustCompile(`httpGet: \{path: (\S+),|httpchk GET (\S+)|\{ path,url_dec (\S+) \}`)
	var probed []string
	for file, text := range shipped(t) {
		for _, match := range paths.FindAllStringSubmatch(text, -1) {
			path := match[1] + match[2] + match[3]
			probed = append(probed, path)
			if !regexp.MustCompile(`(?m)^  ` + regexp.QuoteMeta(path) + `:\n    get:`).MatchString(document) {
				t.Errorf("%s asks for %s, which is not there", file, path)
			}
		}
	}
	for _, path := range []string{"/livez", "/readyz"} {
		if !slices.Contains(probed, path) {
			t.Errorf("nothing asks for %s", path)
		}
	}
	for file, patterns := range map[string][]string{
		"docker/Dockerfile":        {`FENCEPOST_LISTEN_ADDR=:(\d+)`, `EXPOSE (\d+)`},
		"compose/embedded.yaml":    {`127\.0\.0\.1:\d+:(\d+)`},
		"compose/haproxy.cfg":      {`server gateway-1 gateway-1:(\d+)`, `server gateway-2 gateway-2:(\d+)`, `server gateway-3 gateway-3:(\d+)`},
		"kubernetes/embedded.yaml": {`FENCEPOST_LISTEN_ADDR, value: ":(\d+)"`, `containerPort: (\d+)`},
		"kubernetes/redis.yaml":    {`FENCEPOST_LISTEN_ADDR, value: ":(\d+)"`, `containerPort: (\d+)`},
		"kubernetes/raft.yaml":     {`FENCEPOST_LISTEN_ADDR, value: ":(\d+)"`, `containerPort: (\d+)`},
	} {
		for _, pattern := range patterns {
			if match := regexp.MustCompile(pattern).FindStringSubmatch(readFile(t, file)); match == nil || match[1] != "8080" {
				t.Errorf("%s: %s is %q, not 8080", file, pattern, match)
			}
		}
	}
}
