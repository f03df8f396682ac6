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

	"github.com/rogpeppe/go-internal/testscript"

	"fencepost/internal/variables"
	"fencepost/verify/system"
)

// atMost bounds every wait for a condition.
const atMost = 60 * time.Second

func TestMain(m *testing.M) {
	if strings.HasSuffix(os.Args[0], ".test") || strings.HasSuffix(os.Args[0], ".test.exe") { // not the program under test
		update = os.Getenv("FENCEPOST_UPDATE") != ""
		for _, entry := range os.Environ() { // those of tests are none of lockctl's
			if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, variables.Prefix+"_") {
				os.Unsetenv(name)
			}
		}
	}
	testscript.Main(m, map[string]func(){"lockctl": main, "set-uid-program": becomeRoot})
}

var update bool // the scripts' expected outputs

// lockctl runs the program with some variables in its environment, until it ends.
func lockctl(t *testing.T, env []string, args ...string) (status int, out string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "lockctl", args...)
	cmd.Env = append(os.Environ(), env...)
	said, err := cmd.CombinedOutput()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		t.Error(err)
	}
	return cmd.ProcessState.ExitCode(), string(said)
}

// TestScripts runs the real program against a real gateway.
func TestScripts(t *testing.T) {
	t.Parallel()
	s := system.StartTest(t, system.Options{Store: system.Embedded})
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		UpdateScripts:       update,
		Setup: func(env *testscript.Env) error {
			env.Setenv("FENCEPOST", s.Gateways[0].URL())
			env.Setenv("no_proxy", "*")
			env.Setenv("TOOLONG", strings.Repeat("a ", 100))
			env.Setenv("LONG", strconv.Itoa(1_000_000+os.Getpid())) // seconds, by which a process is found
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"status": status, "until": until, "save": save},
	})
}

// status N COMMAND...: runs a command that must exit with N.
func status(ts *testscript.TestScript, _ bool, args []string) {
	var exit *exec.ExitError
	err := ts.Exec(args[1], args[2:]...)
	if err != nil && !errors.As(err, &exit) {
		ts.Fatalf("%v", err)
	}
	got := 0
	if exit != nil {
		got = exit.ExitCode()
		if how := exit.Sys().(syscall.WaitStatus); how.Signaled() { // as a shell has it
			got = 128 + int(how.Signal())
		}
	}
	if strconv.Itoa(got) != args[0] {
		ts.Fatalf("the exit status is %d, want %s", got, args[0])
	}
}

// until REGEXP COMMAND...: runs a command until its output matches.
func until(ts *testscript.TestScript, _ bool, args []string) {
	wanted := regexp.MustCompile(args[0])
	for deadline := time.Now().Add(atMost); ; <-time.After(10 * time.Millisecond) {
		err := ts.Exec(args[1], args[2:]...)
		out := ts.ReadFile("stdout")
		if err == nil && wanted.MatchString(out) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("the output never matched %s; the last one is %q, %v", args[0], out, err)
		}
	}
}

// save VARIABLE REGEXP: sets a variable to the first group found in the last output.
func save(ts *testscript.TestScript, _ bool, args []string) {
	found := regexp.MustCompile(args[1]).FindStringSubmatch(ts.ReadFile("stdout"))
	if found == nil {
		ts.Fatalf("the output does not match %s", args[1])
	}
	ts.Setenv(args[0], found[1])
}

// Every command has its help, and every flag a line in it.
func TestHelp(t *testing.T) {
	for _, cmd := range commands() {
		var out bytes.Buffer
		if code := run(t.Context(), []string{cmd.name, "-help"}, &out, &out); code != 0 || !bytes.Contains(out.Bytes(), []byte(cmd.summary)) {
			t.Errorf("%s: status %d, %s", cmd.name, code, &out)
		}
	}
}
