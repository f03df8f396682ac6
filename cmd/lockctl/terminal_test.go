//go:build linux

package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"fencepost/verify/system"
)

// openTerminal returns both sides of a new pseudo-terminal.
func openTerminal(t *testing.T) (master, terminal *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	connection, err := master.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var unlocked, number int32
	var first, second syscall.Errno
	err = connection.Control(func(fd uintptr) {
		_, _, first = syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCSPTLCK, uintptr(unsafe.Pointer(&unlocked)))
		_, _, second = syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCGPTN, uintptr(unsafe.Pointer(&number)))
	})
	if err != nil || first != 0 || second != 0 {
		t.Fatal(err, first, second)
	}
	terminal, err = os.OpenFile("/dev/pts/"+strconv.Itoa(int(number)), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { terminal.Close() })
	return master, terminal
}

// TestTerminal runs scripts on a terminal, on which one line is typed ahead.
func TestTerminal(t *testing.T) {
	t.Parallel()
	s := system.StartTest(t, system.Options{Store: system.Embedded})
	// The shell waits until the command that lockctl has started in the background is stopped.
	const stopped = `child=; until grep -qs "^State:.T" /proc/$child/status; do sleep 0.01; child=$(cat /proc/$!/task/*/children | tr -d " "); done; `
	for _, c := range []struct{ name, options, script, want string }{
		{"read from the terminal in a pipe", "-c", `echo hi | lockctl run tty/pipe -- sh -c 'read line </dev/tty; echo "said $line"'`, "said typed"},
		{"nobody's after a failed exec", "-c", `lockctl run tty/exec -- ./noshebang; read line; echo "said $line"`, "said typed"},
		{"brought to the foreground", "-ic", `lockctl run tty/fg -- sh -c 'read line; echo "said $line"' & ` + stopped + `fg`, "said typed"},
		{"ended while stopped", "-c", `set -m; lockctl run tty/int -- sh -c 'read line' & ` + stopped + `kill -INT $!; wait $!; echo "status $?"`, "status 130"},
		{"back after the command", "-c", `lockctl run tty/back -- true; read line; echo "said $line"`, "said typed"},
		{"suspended", "-c", `lockctl run tty/tstp -- sh -c 'kill -TSTP 0; echo "went on"'`, "went on"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text, err := onTerminal(t, "typed\n", c.options, c.script, s.Gateways[0].URL())
			if !bytes.Contains(text, []byte(c.want)) || err != nil && strings.HasPrefix(err.Error(), "it did not") {
				t.Errorf("the output is %q, want %q; %v", text, c.want, err)
			}
		})
	}
}

// onTerminal runs a script on a terminal on which something is typed ahead, and returns what it has written.
func onTerminal(t *testing.T, typed, options, script, gateway string) ([]byte, error) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/noshebang", []byte("echo x\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	master, terminal := openTerminal(t)
	if _, err := master.WriteString(typed); err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(dir + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	shell := exec.Command("bash", "--norc", options, script)
	shell.Dir, shell.Stdin, shell.Stdout, shell.Stderr = dir, terminal, out, out
	shell.Env = append(os.Environ(), "FENCEPOST="+gateway, "no_proxy=*")
	shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- shell.Wait() }()
	select {
	case err = <-ended:
	case <-time.After(atMost):
		endSession(shell.Process.Pid)
		err = errors.New("it did not end: " + (<-ended).Error())
	}
	text, _ := os.ReadFile(dir + "/out")
	return text, err
}

// TestBreakOwnerAsks: on a terminal nothing is broken unless the answer is yes.
func TestBreakOwnerAsks(t *testing.T) {
	t.Parallel()
	s := system.StartTest(t, system.Options{Store: system.Embedded})
	text, err := onTerminal(t, "n\n\ny\n", "-c", `lockctl acquire -owner asked:1 asked/1 >/dev/null
		for answer in no none yes; do lockctl break -owner asked; echo "$answer: $?"; lockctl get asked/1; done`, s.Gateways[0].URL())
	want := regexp.MustCompile(`(?s)^NAME .*asked/1 .*Break this lease\? \[y/N\] lockctl: nothing was broken\nno: 1\nasked/1 is held.*none: 1\nasked/1 is held.*yes: 0\nasked/1 is free`)
	if err != nil || !want.Match(text) {
		t.Errorf("%s, %v", text, err)
	}
}

// endSession kills all processes of a session.
func endSession(session int) {
	processes, _ := os.ReadDir("/proc")
	for _, p := range processes {
		text, _ := os.ReadFile("/proc/" + p.Name() + "/stat")
		_, rest, found := strings.Cut(string(text), ") ")
		fields := strings.Fields(rest) // state, parent, group, session
		if pid, err := strconv.Atoi(p.Name()); err == nil && found && fields[3] == strconv.Itoa(session) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}
