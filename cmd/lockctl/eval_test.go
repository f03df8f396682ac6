package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"fencepost/client"
	"fencepost/verify/system"
)

// shell runs a script, and returns its status and what it printed.
func shell(t *testing.T, env []string, name string, script ...string) (int, string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, append([]string{"-c"}, script...)...)
	cmd.Env = append(append(os.Environ(), "no_proxy=*"), env...)
	out, _ := cmd.Output()
	if cmd.ProcessState == nil {
		t.Fatalf("%s can't be run", name)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// stale sets all that an earlier lease may have left, and what shows it.
func stale() (set, show string) {
	set = "export " + strings.Join(leaseVariables(), "=stale ") + "=stale\n"
	return set, `set | grep -E '^(LEASE|LEASE_ID|LOCK_NAME|LOCK_SLOT|FENCING_TOKEN)[A-Z0-9_]*=' | sed 's/=.*//'` + "\n"
}

// TestEvalFails: eval "$(lockctl acquire NAME)" has the status of an acquire that fails, whatever
// it fails of, and leaves no variable of an earlier lease.
func TestEvalFails(t *testing.T) {
	t.Parallel()
	s := system.StartTest(t, system.Options{Store: system.Embedded})
	keyed, _ := gatewayWithKey(t, "lock,read", "jobs/")
	env := []string{"FENCEPOST=" + s.Gateways[0].URL(), "KEYED=" + keyed}
	if status, out := lockctl(t, env, "acquire", "-ttl", "10m", "taken"); status != 0 {
		t.Fatal(out)
	}
	set, show := stale()
	const late = "timeout --preserve-status -s "
	for _, c := range []struct {
		name, command string
		want          int
	}{
		{"held", "lockctl acquire taken", exitNotAcquired},
		{"held, and waited for", "lockctl acquire -wait 100ms taken", exitNotAcquired},
		{"no gateway", "lockctl acquire -wait 100ms -gateway http://127.0.0.1:1 free", exitUnreachable},
		{"not a gateway's address", "lockctl acquire -gateway localhost:8080 free", exitUsage},
		{"unknown flag", "lockctl acquire -nonsense free", exitUsage},
		{"value of a flag", "lockctl acquire -ttl 5 free", exitUsage},
		{"value out of its range", "lockctl acquire -ttl 1ms free", exitUsage},
		{"unknown output", "lockctl acquire -o yaml free", exitUsage},
		{"name", "lockctl acquire 'a b'", exitUsage},
		{"no name", "lockctl acquire", exitUsage},
		{"flag before the command", "lockctl -ttl 5s acquire free", exitUsage},
		{"no key file", "FENCEPOST_KEY_FILE=/nonexistent lockctl acquire free", exitUsage},
		{"no key", "FENCEPOST=$KEYED lockctl acquire jobs/a", exitNotAllowed},
		{"wrong key", "FENCEPOST=$KEYED FENCEPOST_KEY=fp_wrong lockctl acquire jobs/a", exitNotAllowed},
		{"SIGTERM", late + "TERM 1 lockctl acquire -wait 1m taken", 143},
		{"SIGINT", late + "INT 1 lockctl acquire -wait 1m taken", 130},
		{"SIGHUP", late + "HUP 1 lockctl acquire -wait 1m taken", 129},
		{"SIGKILL", late + "KILL 1 lockctl acquire -wait 1m taken", 1},
		{"no room", "lockctl acquire free >/dev/full", 0}, // there is nothing to evaluate
	} {
		for _, sh := range []string{"bash", "dash"} {
			t.Run(c.name+", "+sh, func(t *testing.T) {
				t.Parallel() // some of it is waiting
				if c.want == 0 {
					if status, _ := shell(t, env, sh, c.command+" 2>/dev/null"); status != exitFailed {
						t.Errorf("status %d, want %d", status, exitFailed)
					}
					return
				}
				if status, out := shell(t, env, sh, `set -e; eval "$(`+c.command+` 2>/dev/null)"; echo goes on`); status != c.want || out != "" {
					t.Errorf("set -e: status %d, want %d: %q", status, c.want, out)
				}
				_, out := shell(t, env, sh, set+`said=$(`+c.command+` 2>/dev/null)
					eval "$said" && echo goes on
					eval "$said" || echo or $?
					if eval "$said"; then echo goes on; else echo else $?; fi
					set -e
					eval "$said" || echo or $?
					set +e
					`+show)
				if want := fmt.Sprintf("or %d\nelse %[1]d\nor %[1]d\n", c.want); out != want {
					t.Errorf("it is %q, want %q", out, want)
				}
			})
		}
	}
}

// TestEvalSucceeds: what an acquire sets is all that is set afterwards.
func TestEvalSucceeds(t *testing.T) {
	t.Parallel()
	s := system.StartTest(t, system.Options{Store: system.Embedded})
	env := []string{"FENCEPOST=" + s.Gateways[0].URL()}
	set, show := stale()
	for _, sh := range []string{"bash", "dash"} {
		for form, script := range map[string]string{"quoted": `eval "$(lockctl acquire $1)"`, "unquoted": `eval $(lockctl acquire $1)`, "file": `lockctl acquire $1 >$2; . $2`} {
			name := sh + "/" + form
			status, out := shell(t, env, sh, set+"set -e\n"+script+"\n"+show+`lockctl release "$LOCK_NAME"`, sh, name, filepath.Join(t.TempDir(), "file"))
			if status != 0 || out != "FENCING_TOKEN\nLEASE\nLEASE_ID\nLOCK_NAME\n" {
				t.Errorf("%s: status %d, %q", name, status, out)
			}
		}
	}
}

// TestVariables: what is unset, and what a command does not inherit, is what an acquire sets.
func TestVariables(t *testing.T) {
	for _, name := range leaseVariables() {
		if !ourVariables.MatchString(name + "=x") {
			t.Errorf("%s is inherited", name)
		}
	}
	if last := leaseVariables()[len(leaseVariables())-1]; last != "FENCING_TOKEN_64" {
		t.Errorf("the last is %s", last)
	}
}

// TestJSONIsNotForEval: whoever asks for JSON gets nothing else.
func TestJSONIsNotForEval(t *testing.T) {
	for _, args := range []string{"acquire -o json a/../b", "acquire -nonsense -o json a", "acquire -nonsense --o=json a", "-nonsense acquire -o json a", "acquire -help"} {
		var out bytes.Buffer
		run(t.Context(), strings.Fields(args), &out, io.Discard)
		if strings.Contains(out.String(), "unset") {
			t.Errorf("%s: %s", args, &out)
		}
	}
}

// TestLeaseThatNobodyHearsOf: a lease that can't be printed is released.
func TestLeaseThatNobodyHearsOf(t *testing.T) {
	t.Parallel()
	s := system.StartTest(t, system.Options{Store: system.Embedded})
	c, err := client.New(client.Options{Addresses: []string{s.Gateways[0].URL()}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for i, output := range []string{"text", "json"} {
		name := "unheard/" + strconv.Itoa(i)
		first, err := c.Acquire(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		in, out, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		var said bytes.Buffer
		cmd := exec.Command("lockctl", "acquire", "-o", output, "-wait", "1m", name)
		cmd.Env = append(os.Environ(), "FENCEPOST="+s.Gateways[0].URL(), "no_proxy=*")
		cmd.Stdout, cmd.Stderr = out, &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		out.Close()
		for waiting := 0; waiting == 0; {
			l, err := c.Inspect(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			waiting = l.Waiting
		}
		in.Close()
		if err := first.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _ = cmd.Wait(); cmd.ProcessState.ExitCode() != exitFailed || !strings.Contains(said.String(), "broken pipe") {
			t.Errorf("%s: %s, %q", output, cmd.ProcessState, &said)
		}
		if l, err := c.Inspect(t.Context(), name); err != nil || l.Held {
			t.Errorf("%s: it is still held: %+v, %v", output, l, err)
		}
	}
}
