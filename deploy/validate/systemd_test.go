package validate

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const unitFile = "../systemd/fencepost.service"

// TestUnit: systemd takes every line of the unit, and gives it an exposure of at most 1.2 of 10.
func TestUnit(t *testing.T) {
	// verify wants to see the program.
	text := strings.Replace(string(read(t, unitFile)), "/usr/bin/fencepost-gateway", "/bin/true", 1)
	path := filepath.Join(t.TempDir(), "fencepost.service")
	must(t, os.WriteFile(path, []byte(text), 0o600))
	if out, err := exec.Command("systemd-analyze", "verify", "--man=no", path).CombinedOutput(); err != nil || strings.Contains(string(out), path) {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--threshold=12", unitFile).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "exposure level for ") {
		t.Errorf("systemd-analyze security: %v\n%s", err, out)
	}
}

// TestSystemCalls: the unit's filter lets through all that a gateway does, from its start to
// its end.
func TestSystemCalls(t *testing.T) {
	allowed := map[string]bool{}
	for _, line := range regexp.MustCompile(`(?m)^SystemCallFilter=(~?)(.*)$`).FindAllStringSubmatch(string(read(t, unitFile)), -1) {
		for _, set := range strings.Fields(line[2]) {
			for _, call := range callsOf(t, set) {
				allowed[call] = line[1] == ""
			}
		}
	}
	if !allowed["openat"] || allowed["mount"] || allowed["keyctl"] {
		t.Fatal("the filter is not read as expected")
	}
	dir := t.TempDir()
	trace := filepath.Join(dir, "trace")
	gateway := exec.Command("strace", "-f", "-qq", "-o", trace, build(t, dir))
	addr := serve(t, gateway, dir)
	for _, path := range []string{"/locks/a", "/locks/b"} {
		response, err := http.Post("http://"+addr+path, "application/json", nil)
		must(t, err)
		response.Body.Close()
	}
	stop(t, gateway)
	seen := 0
	for _, match := range regexp.MustCompile(`(?m)^\d+ +([a-z_0-9]+)\(`).FindAllStringSubmatch(string(read(t, trace)), -1) {
		// The first one is strace's own, before there is a gateway.
		if seen++; !allowed[match[1]] {
			t.Errorf("the gateway calls %s, which the unit refuses", match[1])
			allowed[match[1]] = true
		}
	}
	if seen < 100 {
		t.Errorf("only %d calls were seen", seen)
	}
}

// callsOf returns the system calls of a set, and of the sets in it.
func callsOf(t *testing.T, set string) (calls []string) {
	t.Helper()
	if !strings.HasPrefix(set, "@") {
		return []string{set}
	}
	out, err := exec.Command("systemd-analyze", "syscall-filter", set).Output()
	must(t, err)
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); line != set && line != "" && !strings.HasPrefix(line, "#") {
			calls = append(calls, callsOf(t, line)...)
		}
	}
	return calls
}
