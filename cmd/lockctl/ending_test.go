//go:build linux

package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"fencepost/verify/system"
)

// typing is a script on a terminal at which somebody types.
type typing struct {
	t      *testing.T
	master *os.File
	said   *transcript
	shell  *exec.Cmd
	ended  chan struct{}
}

// typeAt starts a script of bash on a terminal of its own.
func typeAt(t *testing.T, script, gateway string) *typing {
	t.Helper()
	master, terminal := openTerminal(t)
	y := &typing{t: t, master: master, said: &transcript{}, ended: make(chan struct{})}
	file := t.TempDir() + "/script"
	if err := os.WriteFile(file, []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	y.shell = exec.Command("bash", "--norc", file)
	y.shell.Stdin, y.shell.Stdout, y.shell.Stderr = terminal, y.said, y.said
	y.shell.Env = append(os.Environ(), "FENCEPOST="+gateway, "no_proxy=*")
	y.shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := y.shell.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(y.ended)
		_ = y.shell.Wait()
	}()
	t.Cleanup(func() {
		endSession(y.shell.Process.Pid)
		<-y.ended
	})
	return y
}

// keys types.
func (y *typing) keys(text string) {
	y.t.Helper()
	if _, err := y.master.WriteString(text); err != nil {
		y.t.Fatal(err)
	}
}

// end waits for the script's end, and returns how it ended.
func (y *typing) end() syscall.WaitStatus {
	y.t.Helper()
	select {
	case <-y.ended:
	case <-time.After(atMost):
		y.t.Fatalf("it does not end; it said %q", y.said)
	}
	return y.shell.ProcessState.Sys().(syscall.WaitStatus)
}

// TestInterruptedScript: Ctrl-C ends a script whose command runs, or waits, under lockctl, as it does without; a signal that
// somebody else sends ends the command.
func TestInterruptedScript(t *testing.T) {
	t.Parallel()
	s := system.StartTest(t, system.Options{Store: system.Embedded})
	gateway := s.Gateways[0].URL()
	if status, out := lockctl(t, []string{"FENCEPOST=" + gateway, "no_proxy=*"}, "acquire", "-ttl", "10m", "loop/taken"); status != 0 {
		t.Fatal(out)
	}
	for name, command := range map[string]string{
		"runs":  `lockctl run loop/runs -- sh -c 'echo up; exec sleep 300'`,
		"piped": `echo in | lockctl run loop/piped -- sh -c 'echo up; exec sleep 300'`,
		"shell": `lockctl run loop/shell -- sh -c 'echo up; sleep 300; echo not reached'`,
		"waits": `(until lockctl get loop/taken | grep -q "waits, 1"; do sleep 0.01; done; echo up) & lockctl run -wait 5m loop/taken -- true`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			y := typeAt(t, "for i in 1 2 3; do echo start $i; "+command+"; done; echo all done", gateway)
			y.said.waitFor(t, "(?m)^up$")
			y.keys("\x03")
			if how := y.end(); !how.Signaled() || how.Signal() != syscall.SIGINT {
				t.Errorf("the script ended with %#x", how)
			}
			if text := y.said.String(); strings.Contains(text, "start 2") || strings.Contains(text, "all done") || strings.Contains(text, "not reached") {
				t.Errorf("it said %q", text)
			}
		})
	}
	t.Run("killed", func(t *testing.T) {
		t.Parallel()
		y := typeAt(t, `lockctl run loop/killed -- sh -c 'kill -INT $PPID; exec sleep 300'; echo "status $?"; kill -INT $$; echo not reached`, gateway)
		if how, text := y.end(), y.said.String(); !strings.Contains(text, "status 130") || strings.Contains(text, "not reached") || how.Signal() != syscall.SIGINT {
			t.Errorf("it ended with %#x and said %q", how, text)
		}
	})
}

// TestEndsBySignal: lockctl ends by the signal that ended the command, so that who started it sees the same; for a shell
// that is 128 and its number. A signal that ends the wait ends lockctl alike.
func TestEndsBySignal(t *testing.T) {
	t.Parallel()
	s := system.StartTest(t, system.Options{Store: system.Embedded})
	gateway := s.Gateways[0].URL()
	if status, out := lockctl(t, []string{"FENCEPOST=" + gateway, "no_proxy=*"}, "acquire", "-ttl", "10m", "ends/taken"); status != 0 {
		t.Fatal(out)
	}
	for s, by := range map[string]syscall.Signal{"INT": syscall.SIGINT, "QUIT": syscall.SIGQUIT, "TERM": syscall.SIGTERM, "HUP": syscall.SIGHUP} {
		t.Run(s, func(t *testing.T) {
			t.Parallel()
			// The limit would allow a core of lockctl beside that of the command.
			for _, script := range []string{
				`ulimit -c $(ulimit -H -c); exec lockctl run ends/` + s + ` -- sh -c 'kill -` + s + ` $$'`,
				`ulimit -c $(ulimit -H -c); { until lockctl get ends/taken | grep -q "by:` + s + ` "; do sleep 0.01; done; kill -` + s + ` $$; } >/dev/null & exec lockctl run -owner by:` + s + ` -wait 5m ends/taken -- true`,
			} {
				cmd := exec.Command("env", "--default-signal", "sh", "-c", script) // nohup would have it ignore HUP
				cmd.Dir, cmd.Env = t.TempDir(), append(os.Environ(), "FENCEPOST="+gateway, "no_proxy=*")
				var said bytes.Buffer
				cmd.Stderr = &said
				if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
					t.Fatal(err)
				}
				how := cmd.ProcessState.Sys().(syscall.WaitStatus)
				if !how.Signaled() || how.Signal() != by || how.CoreDump() {
					t.Errorf("%s: ended with %#x", script, how)
				}
				if strings.Count(said.String(), "\n") > 1 {
					t.Errorf("%s: said %q", script, &said)
				}
			}
		})
	}
	for s, status := range map[string]int{"KILL": 137, "USR1": 138, "PIPE": 141} {
		if got, out := lockctl(t, []string{"FENCEPOST=" + gateway, "no_proxy=*"}, "run", "ends/others", "--", "sh", "-c", "kill -"+s+" $$"); got != status {
			t.Errorf("%s: status %d, %s", s, got, out)
		}
	}
}

// TestSaysBeforeItStarts: a terminal that takes no output keeps nobody from a lock that was granted.
func TestSaysBeforeItStarts(t *testing.T) {
	t.Parallel()
	s := system.StartTest(t, system.Options{Store: system.Embedded})
	gateway := s.Gateways[0].URL()
	env := []string{"FENCEPOST=" + gateway, "no_proxy=*"}
	if status, out := lockctl(t, env, "acquire", "-ttl", "10m", "stopped/terminal"); status != 0 {
		t.Fatal(out)
	}
	dir := t.TempDir()
	y := typeAt(t, `echo begun; lockctl run -wait 5m stopped/terminal -- sh -c 'echo x >`+dir+`/started' 2>/dev/tty`, gateway)
	wait := func(what string, reached func() bool) {
		t.Helper()
		for deadline := time.Now().Add(atMost); !reached(); <-time.After(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("never %s", what)
			}
		}
	}
	shown := make([]byte, 200) // the line of the queue
	n, err := y.master.Read(shown)
	if err != nil || !bytes.Contains(shown[:n], []byte("stopped/terminal")) {
		t.Fatalf("%q, %v", shown[:n], err)
	}
	y.keys("\x13")
	wait("a waiter", func() bool {
		_, out := lockctl(t, env, "get", "stopped/terminal")
		return strings.Contains(out, "1 waits")
	})
	_, out := lockctl(t, env, "get", "-o", "json", "stopped/terminal")
	_, token, _ := strings.Cut(out, `"fencing_token":`)
	token, _, _ = strings.Cut(token, ",")
	breakLock(t, gateway, "stopped/terminal", token)
	wait("started", func() bool { _, err := os.Stat(dir + "/started"); return err == nil })
	y.keys("\x11")
	if how := y.end(); how.ExitStatus() != 0 {
		t.Errorf("ended with %#x", how)
	}
}
