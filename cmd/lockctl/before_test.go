//go:build linux

package main

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"fencepost/client"
	"fencepost/verify/system"
)

// TestStartsUnderALease: a command is not started under a lease that is gone.
func TestStartsUnderALease(t *testing.T) {
	t.Parallel()
	s := system.StartTest(t, system.Options{Store: system.Embedded})
	c, err := client.New(client.Options{Addresses: []string{s.Gateways[0].URL()}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, err := c.Acquire(t.Context(), "starts", client.TTL(300*time.Millisecond), client.NotRenewed())
	if err != nil {
		t.Fatal(err)
	}
	<-l.Context().Done()
	file := t.TempDir() + "/started"
	if _, err = startUnder(l, "/bin/sh", []string{"sh", "-c", "echo >" + file}, nil); statusOf(err) != exitLost {
		t.Errorf("it ends with %d: %v", statusOf(err), err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("the command was started")
	}
}

// TestWithoutProc: where the kernel shows no processes, people are told that not all of a command may be found.
func TestWithoutProc(t *testing.T) {
	old := proc
	t.Cleanup(func() { proc = old })
	proc = t.TempDir()
	var said []string
	p := &process{pid: os.Getpid()}
	p.reaped.Store(true) // so that nothing is signalled
	e := &ending{p: p, say: func(text string) { said = append(said, text) }, begun: time.Now().Add(-soon)}
	e.kill()
	e.kill()
	if len(said) != 1 || !strings.Contains(said[0], "without /proc") {
		t.Errorf("said %q", said)
	}
}

// TestBefore: what runs already when lockctl takes a shell's place is no part of the command. It gets no signal, nobody
// waits for it, its orphans are left alone as well, and what ends of it is waited for, so that no zombie is left.
func TestBefore(t *testing.T) {
	t.Parallel()
	s := system.StartTest(t, system.Options{Store: system.Embedded})
	gateway := s.Gateways[0].URL()
	until := func(t *testing.T, what string, reached func() bool) {
		t.Helper()
		for deadline := time.Now().Add(atMost); !reached(); <-time.After(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("never: %s", what)
			}
		}
	}
	const before = `await() { until [ -e "$1" ]; do sleep 0.01; done; }
		exec > >(await go; cat >out; echo all >>out)
		(trap 'echo got TERM >>side' TERM; echo $BASHPID >side.pid; await go; echo survived >>side) 2>/dev/null &
		( (trap 'echo got TERM >>orphan' TERM; echo $BASHPID >orphan.pid; await go; echo survived >>orphan) & await middle ) 2>/dev/null &
		(echo $BASHPID >short.pid; await middle) &
		await side.pid; await orphan.pid; await short.pid
		`
	for name, c := range map[string]struct {
		command string
		lost    bool
		status  int
	}{
		"ends": {`for i in $(seq 200); do echo line $i; done; touch middle; setsid sh -c "trap '' TERM; echo \$\$ >own.pid; exec sleep 300" & until [ -s own.pid ]; do sleep 0.01; done; exit 3`, false, 3},
		"lost": {`for i in $(seq 200); do echo line $i; done; touch middle; echo $$ >own.pid; echo $FENCING_TOKEN >token; exec sleep 300`, true, exitLost},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, said := t.TempDir(), &transcript{}
			read := func(name string) string {
				text, _ := os.ReadFile(dir + "/" + name)
				return strings.TrimSpace(string(text))
			}
			shell := exec.Command("bash", "--norc", "-c", before+`exec lockctl run -ttl 9s -grace 300ms before/`+name+` -- sh -c "$1"`, "bash", c.command)
			shell.Dir, shell.Env = dir, append(os.Environ(), "FENCEPOST="+gateway, "no_proxy=*")
			errors, err := os.Create(dir + "/err") // of which no copier waits for the end
			if err != nil {
				t.Fatal(err)
			}
			defer errors.Close()
			shell.Stderr = errors
			if err := shell.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan int, 1)
			go func() { _ = shell.Wait(); ended <- shell.ProcessState.ExitCode() }()
			t.Cleanup(func() { _ = os.WriteFile(dir+"/go", nil, 0o644) })
			state := func(pidFile string) byte {
				pid, err := strconv.Atoi(read(pidFile))
				if err != nil {
					return 0
				}
				return lookAt(pid).state
			}
			if c.lost {
				until(t, "the token is there", func() bool { return read("token") != "" })
				until(t, "what ended early was waited for", func() bool { return state("short.pid") == 0 })
				breakLock(t, gateway, "before/"+name, read("token"))
			}
			if status := within(t, ended, said); status != c.status {
				t.Errorf("status %d, want %d: %s", status, c.status, read("err"))
			}
			if state := state("own.pid"); state != 0 {
				t.Errorf("the command is %c", state)
			}
			for _, name := range []string{"side", "orphan"} {
				if state(name+".pid") == 0 || read(name) != "" {
					t.Errorf("%s is gone: %q", name, read(name))
				}
			}
			if err := os.WriteFile(dir+"/go", nil, 0o644); err != nil {
				t.Fatal(err)
			}
			until(t, "the output is whole", func() bool { return strings.HasSuffix(read("out"), "line 200\nall") })
			for _, name := range []string{"side", "orphan"} {
				until(t, name+" ends by itself", func() bool { return read(name) == "survived" })
			}
		})
	}
}
