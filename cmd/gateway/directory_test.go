package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"fencepost/internal/redis/redistest"
)

// nobody is a user without privileges, if the tests run as root.
const nobody = 65534

// A data directory that can't be used is named, with who may use it and what to do, by
// the gateway and by doctor.
func TestDirectoryThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	directoryThatCannotBeUsed(t, "embedded", "log/0000000001.log")
}

// So is that of a node of a cluster. Where it is not there yet, doctor says nothing of it: it may be that of another machine.
func TestDirectoryOfANodeThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	directoryThatCannotBeUsed(t, "raft://"+redistest.FreeAddr(t), "id")
}

func directoryThatCannotBeUsed(t *testing.T, store, file string) {
	self := os.Geteuid()
	if self == 0 {
		self = nobody
	}
	for what, c := range map[string]struct {
		prepare func(t *testing.T, dir string) (set string)
		says    []string // {} is what is set
	}{
		"not writable": {func(t *testing.T, dir string) string {
			must(t, os.Chmod(dir, 0o500), os.Chown(dir, self, -1))
			return dir
		}, []string{"mode dr-x------", "user " + strconv.Itoa(self), "chmod -R u+rwX {}"}},
		"not readable": {func(t *testing.T, dir string) string {
			must(t, os.Chmod(dir, 0), os.Chown(dir, self, -1))
			return dir
		}, []string{"mode d---------", "chmod -R u+rwX {}"}},
		"a parent that is not writable": {func(t *testing.T, dir string) string {
			must(t, os.Chmod(dir, 0o555))
			return filepath.Join(dir, "a", "b")
		}, []string{"mode dr-xr-xr-x", "mkdir -p {} && chown " + strconv.Itoa(self) + " {}"}},
		"a file": {func(t *testing.T, dir string) string {
			path := filepath.Join(dir, "file")
			must(t, os.Chmod(dir, 0o755), os.WriteFile(path, nil, 0o644))
			return path
		}, []string{"{} is not a directory; move it away"}},
		"below a file": {func(t *testing.T, dir string) string {
			path := filepath.Join(dir, "file")
			must(t, os.Chmod(dir, 0o755), os.WriteFile(path, nil, 0o644))
			return filepath.Join(path, "data")
		}, []string{"file is not a directory; move it away"}},
		"a link to nothing": {func(t *testing.T, dir string) string {
			path := filepath.Join(dir, "link")
			must(t, os.Chown(dir, self, -1), os.Symlink(filepath.Join(dir, "volume"), path))
			return path
		}, []string{"{} is a symbolic link, and what it leads to is not there"}},
		"below a link to nothing": {func(t *testing.T, dir string) string {
			path := filepath.Join(dir, "link")
			must(t, os.Chown(dir, self, -1), os.Symlink(filepath.Join(dir, "volume"), path))
			return filepath.Join(path, "data")
		}, []string{"link is a symbolic link, and what it leads to is not there"}},
		"a file that is not readable": {func(t *testing.T, dir string) string {
			path := filepath.Join(dir, file)
			must(t, os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o000), os.Chown(dir, self, -1), os.Chown(filepath.Dir(path), self, -1), os.Chown(path, self, -1))
			return dir
		}, []string{file + " belongs to ", "chmod -R u+rwX {}"}},
	} {
		t.Run(what, func(t *testing.T) {
			dir := openDirectory(t)
			set := c.prepare(t, dir)
			t.Cleanup(func() { os.Chmod(dir, 0o700) })
			_, away := os.Stat(set)
			for _, args := range [][]string{nil, {"doctor"}} {
				if store != "embedded" && args != nil && errors.Is(away, fs.ErrNotExist) {
					continue
				}
				out, status := unprivileged(t, args, "FENCEPOST_LISTEN_ADDR=127.0.0.1:0", "FENCEPOST_STORE="+store, "FENCEPOST_DATA_DIR="+set)
				if status != 1 {
					t.Errorf("gateway %v: exit status %d: %s", args, status, out)
				}
				if refused := strings.Contains(out, "permission denied"); args != nil && store == "embedded" && refused != strings.Contains(out, "run this as that user") {
					t.Errorf("permission is denied: %v, and doctor says\n%s", refused, out)
				}
				for _, text := range append(c.says, "FENCEPOST_DATA_DIR") {
					text = strings.ReplaceAll(text, "{}", set)
					if !strings.Contains(out, text) {
						t.Errorf("gateway %v: no %q in\n%s", args, text, out)
					}
				}
			}
		})
	}
}

// A flush that fails when the gateway is on its way out is a failure too: here of a renewal that was
// under way when the gateway was asked to end.
func TestAFlushFailsWhileTheGatewayEnds(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	g := start(t, "FENCEPOST_DATA_DIR="+dir, "FENCEPOST_DRAIN_TIMEOUT=60s")
	held, err := acquireAt(t.Context(), g, "a", `{"ttl_ms":3600000}`)
	must(t, err)
	conn, err := net.Dial("tcp", g.addr)
	must(t, err)
	defer conn.Close()
	must(t, conn.SetDeadline(time.Now().Add(patience)))
	const body = `{"ttl_ms":7200000}` // longer: it is flushed before it is answered
	_, err = fmt.Fprintf(conn, "PUT /locks/a HTTP/1.1\r\nHost: localhost\r\nLease-Id: %s\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", held.LeaseID, len(body))
	must(t, err)
	answers := bufio.NewReader(conn)
	going, err := http.ReadResponse(answers, nil)
	must(t, err)
	if going.StatusCode != http.StatusContinue {
		t.Fatalf("the gateway does not ask for the body: %s", going.Status)
	}
	must(t, os.Rename(dir, dir+".away"), g.cmd.Process.Signal(syscall.SIGTERM))
	for refused := false; !refused; { // until it only waits for what is under way
		other, err := net.Dial("tcp", g.addr)
		if refused = err != nil; !refused {
			other.Close()
			<-time.After(5 * time.Millisecond)
		}
	}
	_, err = io.WriteString(conn, body)
	must(t, err)
	answer, err := http.ReadResponse(answers, nil)
	must(t, err)
	if answer.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("the renewal is answered %s", answer.Status)
	}
	select {
	case <-g.exited:
	case <-time.After(patience):
		t.Fatal("the gateway does not end")
	}
	if status := g.cmd.ProcessState.ExitCode(); status != 1 || !strings.Contains(g.warnings(), "a flush failed") {
		t.Errorf("exit status %d, and it logged\n%s", status, g.warnings())
	}
}

// openDirectory is a temporary directory that other users can reach.
func openDirectory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "fencepost-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// unprivileged runs the gateway to its end as a user who is not root.
func unprivileged(t *testing.T, args []string, env ...string) (out string, status int) {
	t.Helper()
	path, err := exec.LookPath("gateway")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	if os.Geteuid() == 0 {
		path = filepath.Join(openDirectory(t), "gateway") // where that user can reach it
		must(t, copyFile(path, cmd.Path), os.Chmod(filepath.Dir(path), 0o755))
		cmd.Path = path
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	var output bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = "/", env, &output, &output
	if err := cmd.Run(); err != nil {
		if _, ended := errors.AsType[*exec.ExitError](err); !ended {
			t.Fatal(err)
		}
	}
	return output.String(), cmd.ProcessState.ExitCode()
}

// copyFile copies a program. No process is started meanwhile: it would have the copy open for writing, and a program that
// anybody has open so is not executed.
func copyFile(to, from string) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
