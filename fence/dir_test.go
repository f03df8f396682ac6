//go:build unix

package fence_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"fencepost/fence"
)

// TestMain is another process where the test has started one: it writes a file with
// token 5, says so in the middle of the write, and ends it when it is told to.
func TestMain(m *testing.M) {
	dir := os.Getenv("FENCE_TEST_DIR")
	if dir == "" {
		os.Exit(m.Run())
	}
	d, err := fence.OpenDir(dir)
	if err == nil {
		ctx, cancel := contextFor(time.Minute)
		defer cancel()
		err = d.Do(ctx, "a", 5, no, func() error {
			fmt.Println("writing")
			_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
			return os.WriteFile(filepath.Join(dir, "a"), []byte("5"), 0o600)
		})
	}
	fmt.Println(err)
}

// A process that is stopped in the middle of its write lets nobody in between: the next
// holder waits, and writes after it.
func TestDirStopped(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "FENCE_TEST_DIR="+dir)
	cmd.Stderr = os.Stderr
	out, in := pipes(t, cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if line, err := out.ReadString('\n'); line != "writing\n" {
		t.Fatal(line, err)
	}
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	d := openDir(t, dir)
	short, cancel := contextFor(100 * time.Millisecond)
	defer cancel()
	if err := d.WriteFile(short, "a", 6, no, []byte("6")); err == nil {
		t.Fatal("it was written in the middle of another's write")
	}
	if _, err := in.WriteString("go on\n"); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := d.WriteFile(t.Context(), "a", 6, no, []byte("6")); err != nil {
		t.Fatal(err)
	}
	if line, err := out.ReadString('\n'); line != "<nil>\n" {
		t.Error(line, err)
	}
	if content, err := d.ReadFile("a"); string(content) != "6" {
		t.Errorf("%q, %v", content, err)
	}
}

// Marks stay, for other processes and after a restart, in any directory below.
func TestDirStays(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "b/c"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b/c/a", "a.fence", "a.fence-new"} {
		d := openDir(t, dir)
		if err := d.WriteFile(t.Context(), name, 5, no, []byte("five")); err != nil {
			t.Fatal(err)
		}
		if err := d.WriteFile(t.Context(), name, 6, 3, []byte("six")); err != nil {
			t.Fatal(err)
		}
		d = openDir(t, dir)
		admitted(t, 0, admission{4, no, 6}, d.WriteFile(t.Context(), name, 4, no, []byte("four")))
		admitted(t, 1, admission{5, 3, 6}, d.WriteFile(t.Context(), name, 5, 3, []byte("five")))
		if content, err := d.ReadFile(name); string(content) != "six" {
			t.Errorf("%s: %q, %v", name, content, err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	want := []string{
		".a.fence", ".a.fence-lock", ".a.fence-new.fence", ".a.fence-new.fence-lock", ".a.fence.fence", ".a.fence.fence-lock",
		"a", "a.fence", "a.fence-new", "b",
	}
	if !slices.Equal(names, want) {
		t.Errorf("the directory has %q", names)
	}
}

// A mark that can't be read admits nothing: it must not begin anew.
func TestDirDamaged(t *testing.T) {
	for _, text := range []string{"", "{}", "null", "5", `{"token":-1}`, `{"token":9007199254740992}`, `{"token":5,"slots":{"-1":6}}`, `{"token":5}x`, `{"token":5,"slots":{"0":0}}`} {
		dir := t.TempDir()
		d := openDir(t, dir)
		if err := os.WriteFile(filepath.Join(dir, ".a.fence"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := d.WriteFile(t.Context(), "a", 9, no, []byte("nine"))
		if stale := new(fence.StaleError); err == nil || errors.As(err, &stale) || errors.Is(err, fence.ErrInvalid) {
			t.Errorf("with a mark %q: %v", text, err)
		}
		if _, err := os.Stat(filepath.Join(dir, "a")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("with a mark %q it was written: %v", text, err)
		}
	}
}

// The token is kept before the write, so that a crash between the two leaves what a
// stale holder can't make worse.
func TestDirMarkFirst(t *testing.T) {
	dir := t.TempDir()
	d := openDir(t, dir)
	err := d.Do(t.Context(), "a", 5, no, func() error {
		text, err := os.ReadFile(filepath.Join(dir, ".a.fence"))
		if string(text) != `{"token":5}` {
			t.Errorf("while it writes the mark is %q", text)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestDirPaths(t *testing.T) {
	dir := t.TempDir()
	outside := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	d := openDir(t, dir)
	for _, name := range []string{"..", ".", "../a", "/a", "a/", "a//b", "b/../a", ".a", "b/.a", ".a.fence"} {
		if err := d.WriteFile(t.Context(), name, 1, no, nil); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%q: %v", name, err)
		}
		if _, err := d.ReadFile(name); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("reading %q: %v", name, err)
		}
	}
	for _, name := range []string{"link/a", "missing/a"} {
		if err := d.WriteFile(t.Context(), name, 1, no, nil); err == nil {
			t.Errorf("%s was written", name)
		}
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) > 0 {
		t.Errorf("%v, %v", entries, err)
	}
}

// A file that nobody else may read stays so, and what a crash has left is written over.
func TestDirMode(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	for name, text := range map[string]string{"a": "secret", ".a.fence-new": strings.Repeat("left", 100)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(path, 0o660); err != nil { // more than the umask leaves
		t.Fatal(err)
	}
	if err := openDir(t, dir).WriteFile(t.Context(), "a", 1, no, []byte("new")); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o660 || info.Size() != 3 {
		t.Errorf("%v, %v", info, err)
	}
}

func contextFor(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}

func pipes(t *testing.T, cmd *exec.Cmd) (*bufio.Reader, *os.File) {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { read.Close(); write.Close() })
	cmd.Stdin = read
	return bufio.NewReader(out), write
}

// What a crash has left of a file's successor is in nobody's way, and its mode is not that of
// what is written next.
func TestDirLeftover(t *testing.T) {
	dir := t.TempDir()
	d := openDir(t, dir)
	if err := os.WriteFile(filepath.Join(dir, ".a.fence-new"), []byte("ne"), 0o444); err != nil {
		t.Fatal(err)
	}
	modes := map[string]os.FileMode{}
	for _, name := range []string{"a", "b"} {
		if err := d.WriteFile(t.Context(), name, 5, no, []byte("new")); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{name, "." + name + ".fence"} {
			info, err := os.Stat(filepath.Join(dir, file))
			if err != nil {
				t.Fatal(err)
			}
			modes[file] = info.Mode()
		}
	}
	if modes["a"] != modes["b"] || modes[".a.fence"] != modes[".b.fence"] {
		t.Error(modes)
	}
}

// A token that can't be makes no file.
func TestDirOfTheRefused(t *testing.T) {
	dir := t.TempDir()
	d := openDir(t, dir)
	if err := d.WriteFile(t.Context(), "a", 0, no, nil); !errors.Is(err, fence.ErrInvalid) {
		t.Error(err)
	}
	if entries, err := os.ReadDir(dir); len(entries) != 0 || err != nil {
		t.Error(entries, err)
	}
}

// Beside the mark of an earlier write_fenced nothing is begun anew, and nothing written; a file that only has one of
// its names is any file.
func TestDirBesideEarlierShell(t *testing.T) {
	dir := t.TempDir()
	d := openDir(t, dir)
	for _, name := range []string{"a.fence", "a.fence-lock"} {
		if err := d.WriteFile(t.Context(), "a", 5, no, []byte("five")); err != nil {
			t.Errorf("before there is %s: %v", name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte("7\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	err := d.WriteFile(t.Context(), "a", 9, no, []byte("nine"))
	if stale := new(fence.StaleError); err == nil || errors.As(err, &stale) || !strings.Contains(err.Error(), filepath.Join(dir, "a.fence")+" is a mark of an earlier write_fenced") {
		t.Error(err)
	}
	if content, err := d.ReadFile("a"); string(content) != "five" {
		t.Errorf("%q, %v", content, err)
	}
}

// The mark is what write_fenced of docs/storage reads, byte for byte.
func TestDirFormat(t *testing.T) {
	dir := t.TempDir()
	d := openDir(t, dir)
	for _, of := range []struct {
		token int64
		slot  int
		want  string
	}{{5, no, `{"token":5}`}, {9, 10, `{"token":5,"slots":{"10":9}}`}, {7, 2, `{"token":5,"slots":{"10":9,"2":7}}`}, {9, no, `{"token":9}`}} {
		if err := d.WriteFile(t.Context(), "a", of.token, of.slot, nil); err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(filepath.Join(dir, ".a.fence")); string(text) != of.want {
			t.Errorf("after %d in slot %d the mark is %q, %v", of.token, of.slot, text, err)
		}
	}
}
