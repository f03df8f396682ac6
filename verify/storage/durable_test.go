package storage_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"fencepost/fence"
)

// dirRole is the variable of the environment that makes this program write a file by a
// fence.Dir, twice, in the directory that it names.
const dirRole = "STORAGE_TEST_DIR"

func writeDir() error {
	dir, err := fence.OpenDir(os.Getenv(dirRole))
	if err != nil {
		return err
	}
	defer dir.Close()
	for range 2 { // the second time with an equal token, which needs no mark
		if err := dir.WriteFile(context.Background(), "a", 5, fence.NoSlot, []byte("five")); err != nil {
			return err
		}
	}
	return nil
}

var (
	ofFile     = regexp.MustCompile(`^\d+<([^>]*)>`) // as strace -y shows it
	quotedName = regexp.MustCompile(`"([^"]*)"`)
)

// The token is on disk before the content is begun, and the content before it is answered: each
// is synced before it gets its name, and the name after that. A crash that is simulated by
// killing the process would not tell, since the system has what was not synced.
func TestDirSyncs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	trace := filepath.Join(t.TempDir(), "trace")
	cmd := exec.Command("strace", "-f", "-y", "-o", trace, "-e", "trace=flock,write,fsync,rename,renameat,renameat2", self)
	cmd.Env = append(os.Environ(), dirRole+"="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	var calls []string
	for line := range strings.Lines(string(text)) {
		call := regexp.MustCompile(`^\d+ +(flock|write|fsync|rename)[a-z0-9]*\((.*)`).FindStringSubmatch(line)
		if call == nil || !strings.Contains(line, dir) {
			continue
		}
		names := ofFile.FindAllStringSubmatch(call[2], 1)
		if call[1] == "rename" {
			names = quotedName.FindAllStringSubmatch(call[2], 2)
		}
		what := call[1]
		for _, name := range names {
			what = strings.TrimSpace(what + " " + strings.Trim(strings.TrimPrefix(name[1], dir), "/"))
		}
		calls = append(calls, what)
	}
	put := func(name string) []string {
		return []string{"write .a.fence-new", "fsync .a.fence-new", "rename .a.fence-new " + name, "fsync"}
	}
	want := slices.Concat([]string{"flock .a.fence-lock"}, put(".a.fence"), put("a"), []string{"flock .a.fence-lock", "fsync"}, put("a")) // the second time, for the mark that is there
	if !slices.Equal(calls, want) {
		t.Errorf("it does\n%s\nand should\n%s", strings.Join(calls, "\n"), strings.Join(want, "\n"))
	}
}
