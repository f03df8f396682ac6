package client

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestImport does what docs/clients.md says of a Go program, in a module of its own and without a network: it takes a
// lock from a gateway. So does one in a workspace, and one that has vendored the package, without the sources.
func TestImport(t *testing.T) {
	t.Parallel()
	s, _ := start(t)
	page := string(must[[]byte](t)(os.ReadFile("../docs/clients.md")))
	_, section, _ := strings.Cut(page, "\n## A Go program\n")
	section, _, _ = strings.Cut(section, "\n## ")
	found := regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllStringSubmatch(section, -1)
	if len(found) != 1 {
		t.Fatalf("the page has %d blocks of sh", len(found))
	}
	commands := found[0][1]
	if !strings.HasSuffix(commands, "\ngo run .\n") {
		t.Errorf("the commands do not end with go run: %s", commands)
	}
	for _, command := range []string{"`go work init . ../fencepost`", "`go mod vendor`", "`go doc fencepost/client`"} {
		if !strings.Contains(section, command) {
			t.Errorf("the page does not say %s", command)
		}
	}
	root := must[string](t)(filepath.Abs(".."))
	inShell := func(dir, commands string, env ...string) string {
		t.Helper()
		shell := exec.CommandContext(t.Context(), "sh", "-ec", commands)
		shell.Dir = dir
		shell.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GO111MODULE=") }),
			"GOPROXY=off", "GOFLAGS=", "GOWORK=", "FENCEPOST="+s.Gateways[0].URL(), "no_proxy=*")
		shell.Env = append(shell.Env, env...)
		out, err := shell.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", commands, err, out)
		}
		return string(out)
	}
	fresh := func() (dir string) {
		dir = t.TempDir()
		if err := os.Symlink(root, filepath.Join(dir, "fencepost")); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	takesALock := func(what, out string) {
		t.Helper()
		if !regexp.MustCompile(`(?m)^I have the lock, with the token [1-9][0-9]*$`).MatchString(out) {
			t.Errorf("%s: %s", what, out)
		}
	}
	dir := fresh()
	takesALock("a replacement", inShell(dir, commands+"go doc fencepost/client >doc\ngo vet ."))
	if doc := string(must[[]byte](t)(os.ReadFile(filepath.Join(dir, "nightly", "doc")))); !strings.Contains(doc, "Package client takes locks") {
		t.Errorf("the documentation is %s", doc)
	}
	inShell(filepath.Join(dir, "nightly"), "go mod vendor\nrm ../fencepost")
	takesALock("vendored", inShell(filepath.Join(dir, "nightly"), "go run ."))

	dir = fresh()
	edit := regexp.MustCompile("(?m)^go mod edit .*$")
	if !edit.MatchString(commands) {
		t.Errorf("there is no requirement to leave out: %s", commands)
	}
	takesALock("a workspace", inShell(dir, edit.ReplaceAllString(commands, "go work init . ../fencepost")))
}
