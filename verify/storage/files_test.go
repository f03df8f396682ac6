package storage_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"fencepost/fence"
	"fencepost/fence/fencetest"
)

// openPair returns both who write files in one directory.
func openPair(t *testing.T) (byShell fencetest.Storage, byGo *fence.Dir, script, dir string) {
	t.Helper()
	byShell, text, dir := recipeFor(t, "files/write")
	byGo, err := fence.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { byGo.Close() })
	return byShell, byGo, text["write"], dir
}

func put(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// The shell and Go that count in one file at once lose nothing: each reads and writes it while it has the lock.
func TestFilesTogether(t *testing.T) {
	t.Parallel()
	_, byGo, script, dir := openPair(t)
	put(t, filepath.Join(dir, "n"), "0", 0o600)
	const shells, writes = 2, 10
	var shell, all sync.WaitGroup
	var counted atomic.Int64
	for range shells {
		shell.Go(func() {
			for range writes {
				cmd := exec.CommandContext(t.Context(), "sh", "-c", script+`write_fenced "$0/n" 7 sh -c 'echo $(($(cat "$0") + 1))' "$0/n"`, dir)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%v: %s", err, out)
				}
				counted.Add(1)
			}
		})
	}
	ended := make(chan struct{})
	for range 2 { // all the while
		all.Go(func() {
			for {
				err := byGo.Do(t.Context(), "n", 7, fence.NoSlot, func() error {
					text, err := byGo.ReadFile("n")
					if err != nil {
						return err
					}
					n, err := strconv.Atoi(strings.TrimSpace(string(text)))
					if err != nil {
						return err
					}
					return os.WriteFile(filepath.Join(dir, "n"), []byte(strconv.Itoa(n+1)), 0o600)
				})
				if err != nil {
					t.Error(err)
				}
				counted.Add(1)
				select {
				case <-ended:
					return
				default:
				}
			}
		})
	}
	shell.Wait()
	close(ended)
	all.Wait()
	if text, err := byGo.ReadFile("n"); strings.TrimSpace(string(text)) != strconv.FormatInt(counted.Load(), 10) {
		t.Errorf("%d writes have counted to %q, %v", counted.Load(), text, err)
	}
}

// crashRole is the variable of the environment that makes this program write a file by a fence.Dir in the
// directory that it names, and end in the middle.
const crashRole = "STORAGE_TEST_CRASH"

func crash() error {
	dir, err := fence.OpenDir(os.Getenv(crashRole))
	if err != nil {
		return err
	}
	return dir.Do(context.Background(), "a", 6, fence.NoSlot, func() error {
		return syscall.Kill(os.Getpid(), syscall.SIGKILL)
	})
}

// Who is killed between its mark and its content leaves the old content, and nobody older writes over it: neither the
// shell nor Go, whoever it was. It may repeat its write, by either.
func TestFilesCrashBetween(t *testing.T) {
	for _, crashed := range []string{"the shell", "Go"} {
		t.Run(crashed, func(t *testing.T) {
			t.Parallel()
			byShell, byGo, script, dir := openPair(t)
			if err := write(t, byShell, "4", "four"); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), "sh", "-c", script+`write_fenced "$0/a" 6 sh -c 'echo half; kill -9 0'`, dir)
			if crashed == "Go" {
				cmd = exec.CommandContext(t.Context(), "/proc/self/exe")
				cmd.Env = append(os.Environ(), crashRole+"="+dir)
			}
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			exit := new(exec.ExitError)
			if err := cmd.Run(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("it was not killed: %v", err)
			}
			if err := write(t, byShell, "5", "stale"); !errors.Is(err, fencetest.ErrRefused) {
				t.Errorf("the shell, with an older token: %v", err)
			}
			var stale *fence.StaleError
			if err := byGo.WriteFile(t.Context(), "a", 5, fence.NoSlot, []byte("stale")); !errors.As(err, &stale) {
				t.Errorf("Go, with an older token: %v", err)
			}
			if text, err := byGo.ReadFile("a"); string(text) != "four" {
				t.Errorf("%q, %v", text, err)
			}
			if err := write(t, byShell, "6", "six"); err != nil {
				t.Error(err)
			}
			if err := byGo.WriteFile(t.Context(), "a", 6, fence.NoSlot, []byte("six")); err != nil {
				t.Error(err)
			}
			names, err := filepath.Glob(filepath.Join(dir, ".*-new"))
			if err != nil || len(names) > 0 {
				t.Error(names, err)
			}
		})
	}
}

// The mark of an earlier write_fenced is not forgotten: both refuse to begin anew and say what to do, and
// that does it. Where Go has a mark, too, the higher one counts.
func TestFilesOfEarlierShell(t *testing.T) {
	for own, highest := range map[string]int64{"": 7, `{"token":6}`: 7, `{"token":8}`: 8, `{"token":3,"slots":{"0":9,"1":4}}`: 9} {
		t.Run(own, func(t *testing.T) {
			t.Parallel()
			byShell, byGo, script, dir := openPair(t)
			put(t, filepath.Join(dir, "a.fence"), "7\n", 0o600)
			put(t, filepath.Join(dir, "a.fence-lock"), "", 0o600)
			put(t, filepath.Join(dir, "data.fence"), "no mark", 0o600)
			if own != "" {
				put(t, filepath.Join(dir, ".a.fence"), own, 0o600)
			}
			var stale *fence.StaleError
			for _, token := range []int64{6, 10} {
				text := strconv.FormatInt(token, 10)
				if err := byGo.WriteFile(t.Context(), "a", token, fence.NoSlot, []byte(text)); err == nil || errors.As(err, &stale) || !strings.Contains(err.Error(), "take_over_fenced") {
					t.Errorf("Go, with %d: %v", token, err)
				}
				out, err := exec.CommandContext(t.Context(), "sh", "-c", script+`write_fenced "$0/a" "$1" echo`, dir, text).CombinedOutput()
				if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(string(out), "take_over_fenced") {
					t.Errorf("the shell, with %d: %v, %s", token, err, out)
				}
			}
			if out, err := exec.CommandContext(t.Context(), "sh", "-c", script+`take_over_fenced "$0" && take_over_fenced "$0"`, dir).CombinedOutput(); err != nil {
				t.Fatalf("%v, %s", err, out)
			}
			if err := byGo.WriteFile(t.Context(), "a", highest-1, fence.NoSlot, nil); !errors.As(err, &stale) || stale.Highest != highest {
				t.Errorf("Go, below %d: %v", highest, err)
			}
			if err := write(t, byShell, strconv.FormatInt(highest-1, 10), "stale"); !errors.Is(err, fencetest.ErrRefused) {
				t.Errorf("the shell, below %d: %v", highest, err)
			}
			if err := write(t, byShell, strconv.FormatInt(highest, 10), "new"); err != nil {
				t.Error(err)
			}
			if err := byGo.WriteFile(t.Context(), "a", highest, fence.NoSlot, []byte("new")); err != nil {
				t.Error(err)
			}
			if text, err := os.ReadFile(filepath.Join(dir, "data.fence")); string(text) != "no mark" {
				t.Errorf("%q, %v", text, err)
			}
		})
	}
}

// userRole is the variable of the environment that makes this program write a file, as another user.
const userRole = "STORAGE_TEST_USER"

func writeAsUser() error {
	dir, err := fence.OpenDir(os.Getenv(userRole))
	if err != nil {
		return err
	}
	return dir.WriteFile(context.Background(), "a", 6, fence.NoSlot, []byte("six"))
}

// In a directory that all may write, one writes what another user has written first, whose files it may only read; by
// Go and by the shell.
func TestFilesOfSeveralUsers(t *testing.T) {
	for _, by := range []string{"the shell", "Go"} {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			_, byGo, script, dir := openPair(t)
			for _, path := range []string{filepath.Dir(dir), dir} {
				if err := os.Chmod(path, 0o777); err != nil {
					t.Fatal(err)
				}
			}
			self, err := os.ReadFile("/proc/self/exe")
			if err != nil {
				t.Fatal(err)
			}
			put(t, filepath.Join(dir, "self"), string(self), 0o755)
			if err := byGo.WriteFile(t.Context(), "a", 5, fence.NoSlot, []byte("five")); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"a", ".a.fence", ".a.fence-lock"} {
				if err := os.Chmod(filepath.Join(dir, name), 0o444); err != nil { // who isn't root is not another user
					t.Fatal(err)
				}
			}
			cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "self"))
			if by == "the shell" {
				cmd = exec.CommandContext(t.Context(), "sh", "-c", script+`write_fenced "$0/a" 6 printf six`, dir)
			}
			cmd.Dir, cmd.Env = dir, []string{"PATH=" + os.Getenv("PATH"), userRole + "=" + dir}
			if os.Getuid() == 0 {
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v, %s", err, out)
			}
			var stale *fence.StaleError
			if err := byGo.WriteFile(t.Context(), "a", 5, fence.NoSlot, nil); !errors.As(err, &stale) {
				t.Error(err)
			}
			if text, err := byGo.ReadFile("a"); string(text) != "six" {
				t.Errorf("%q, %v", text, err)
			}
		})
	}
}

// Whatever the mark is, the shell takes it as Go does: for damaged, or for its highest token.
func TestFilesMarks(t *testing.T) {
	t.Parallel()
	byShell, byGo, _, dir := openPair(t)
	for i, text := range []string{
		"", "{}", "null", "5", "x", `{"token":0}`, `{"token":-1}`, `{"token":9007199254740992}`, `{"token":5,"slots":{"-1":6}}`, `{"token":5}x`, `{"token":5,"slots":{"0":0}}`,
		`{"token":5`, `{"token":5}`, "{\"token\":5}\n", `{"token":0,"slots":{"9999":7}}`, `{"token":5,"slots":{"0":8,"1":12,"10":9}}`, `{"token":9007199254740991}`,
	} {
		path := filepath.Join(dir, ".a.fence")
		answers := [2]string{}
		for k := range answers {
			put(t, path, text, 0o600)
			err := answer(byGo.WriteFile(t.Context(), "a", 7, fence.NoSlot, []byte(fmt.Sprint(i))))
			if k == 0 {
				put(t, path, text, 0o600)
				err = write(t, byShell, "7", fmt.Sprint(i))
			}
			switch {
			case err == nil:
				answers[k] = "written"
			case errors.Is(err, fencetest.ErrRefused):
				answers[k] = "stale"
			default:
				answers[k] = "failed"
			}
		}
		if answers[0] != answers[1] {
			t.Errorf("at a mark %q the shell's write is %s, and Go's %s", text, answers[0], answers[1])
		}
	}
}
