//go:build linux

package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fencepost/verify/system"
)

// TestWritesAreChecked: what could not be written is a failure, whatever command it is of.
func TestWritesAreChecked(t *testing.T) {
	t.Parallel()
	s := system.StartTest(t, system.Options{Store: system.Embedded})
	env := append(os.Environ(), "FENCEPOST="+s.Gateways[0].URL(), "no_proxy=*")
	if status, out := lockctl(t, env, "acquire", "-ttl", "10m", "full/1"); status != 0 {
		t.Fatal(out)
	}
	for _, args := range []string{
		"ls", "ls -o json", "ls -o name", "get full/1", "get -o json full/1", "get full/none", "history full/1", "history -o json full/1", "doctor", "doctor -o json",
		"watch -o json", "fence full/1 1", "completion bash", "completion names full", "-help", "help", "run -help", "-version", "break -notice 1h full/1 TOKEN",
	} {
		t.Run(args, func(t *testing.T) {
			if strings.HasPrefix(args, "watch") {
				t.Parallel()
			}
			if strings.Contains(args, "TOKEN") {
				_, out := lockctl(t, env, "get", "-o", "json", "full/1")
				_, token, _ := strings.Cut(out, `"fencing_token":`)
				token, _, _ = strings.Cut(token, ",")
				args = strings.Replace(args, "TOKEN", token, 1)
			}
			full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer full.Close()
			said := &transcript{}
			cmd := exec.Command("lockctl", strings.Fields(args)...)
			cmd.Env, cmd.Stdout, cmd.Stderr = env, full, said
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan int, 1)
			go func() { _ = cmd.Wait(); ended <- statusFor(cmd) }()
			t.Cleanup(func() { _ = cmd.Process.Kill() })
			for strings.HasPrefix(args, "watch") && len(ended) == 0 { // until it has something to say
				lockctl(t, env, "run", "full/event", "--", "true")
			}
			if status := within(t, ended, said); status != exitFailed || !strings.Contains(said.String(), "no space left") {
				t.Errorf("status %d, %q", status, said)
			}
		})
	}
}

// TestUntoldLeasesAreNotHeld: a lease of which nobody could be told is not held.
func TestUntoldLeasesAreNotHeld(t *testing.T) {
	t.Parallel()
	s := system.StartTest(t, system.Options{Store: system.Embedded})
	env := []string{"FENCEPOST=" + s.Gateways[0].URL()}
	for name, c := range map[string]struct {
		flags, to string
		said      string // "": it is told
	}{
		"closed":          {to: ">&-", said: "closed"},
		"closed, JSON":    {flags: "-o json", to: ">&-", said: "closed"},
		"full":            {to: ">/dev/full", said: "no space left"},
		"full, JSON":      {flags: "-o json", to: ">/dev/full", said: "no space left"},
		"not wanted":      {to: ">/dev/null"},
		"read by another": {to: "| cat"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lock := "untold/" + strings.ReplaceAll(strings.ReplaceAll(name, " ", "-"), ",", "")
			status, out := shell(t, env, "bash", "set -o pipefail; lockctl acquire -ttl 10m "+c.flags+" "+lock+" "+c.to+" 2>\"$1\"; status=$?; cat \"$1\"; exit $status", "bash", t.TempDir()+"/said")
			_, seen := shell(t, env, "sh", "lockctl ls -o name untold/")
			held := strings.Contains(seen+"\n", lock+"\n")
			if told := c.said == ""; held != told || told != (status == 0) || !told && (status != exitFailed || !strings.Contains(out, c.said)) {
				t.Errorf("status %d, held %t: %s", status, held, out)
			}
		})
	}
}

// TestKeyIsKept: a command gets the key only where that is asked for; a lockctl in it says so.
func TestKeyIsKept(t *testing.T) {
	t.Parallel()
	url, key := gatewayWithKey(t, "lock,read", "jobs/")
	secret, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"FENCEPOST=" + url, "FENCEPOST_KEY=" + strings.TrimSpace(string(secret)), "no_proxy=*"}
	if status, out := lockctl(t, env, "run", "jobs/env", "--", "env"); status != 0 || strings.Contains(out, "FENCEPOST_KEY") || !strings.Contains(out, "FENCEPOST="+url) {
		t.Errorf("status %d: %s", status, out)
	}
	if status, out := lockctl(t, env, "run", "jobs/outer", "--", "lockctl", "run", "jobs/inner", "--", "true"); status != exitNotAllowed || !strings.Contains(out, "lockctl run keeps them from its command unless it has -with-key") {
		t.Errorf("status %d: %s", status, out)
	}
	if status, out := lockctl(t, env, "run", "-with-key", "jobs/outer", "--", "lockctl", "run", "jobs/inner", "--", "true"); status != 0 {
		t.Errorf("status %d: %s", status, out)
	}
}

// TestReleaseIsBounded: no gateway answers any more when the command ends. How long a release is tried is what docs/lockctl.md says.
func TestReleaseIsBounded(t *testing.T) {
	t.Parallel()
	s := system.StartTest(t, system.Options{Store: system.Embedded})
	for name, answer := range map[string]func(r *http.Request){
		"hangs":  func(r *http.Request) { _, _ = io.Copy(io.Discard, r.Body); <-r.Context().Done() }, // else the end is not seen
		"aborts": func(*http.Request) {},
	} {
		for _, flags := range []string{"", "-at-least 1h"} {
			t.Run(name+" "+flags, func(t *testing.T) {
				t.Parallel()
				var away atomic.Bool
				proxy := proxyTo(t, s.Gateways[0].URL())
				front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if away.Load() {
						answer(r)
						panic(http.ErrAbortHandler)
					}
					proxy.ServeHTTP(w, r)
				}))
				defer front.Close()
				said, file := &transcript{}, t.TempDir()+"/go"
				args := append(append([]string{"run", "-ttl", "5m"}, strings.Fields(flags)...), "bounded/"+name+fmt.Sprint(len(flags)), "--", "sh", "-c", `echo up; until [ -e "$0" ]; do sleep 0.01; done`, file)
				_, ended := startLockctl(t, nil, front.URL, said, said, args...)
				said.waitFor(t, "up")
				away.Store(true)
				begun := time.Now()
				if err := os.WriteFile(file, nil, 0o644); err != nil {
					t.Fatal(err)
				}
				status := within(t, ended, said)
				if took := time.Since(begun); status != 0 || took > 7*time.Second {
					t.Errorf("status %d after %s: %s", status, took, said)
				}
			})
		}
	}
}

// TestAsked: the owner of a lease that is acquired for a shell is the shell.
func TestAsked(t *testing.T) {
	t.Parallel()
	s := system.StartTest(t, system.Options{Store: system.Embedded})
	cmd := exec.Command("sh", "-c", `eval "$(lockctl acquire -ttl 1m asked)"; lockctl get asked; echo; echo ":$$ "`)
	cmd.Env = append(os.Environ(), "FENCEPOST="+s.Gateways[0].URL(), "no_proxy=*")
	out, err := cmd.Output()
	lock, shell, _ := strings.Cut(string(out), "\n\n")
	if host, _ := os.Hostname(); err != nil || !strings.Contains(lock, host+strings.TrimSpace(shell)+" ") {
		t.Errorf("%s, %v", out, err)
	}
}

// TestNamesInTime: a completion whose gateway does not answer is over soon.
func TestNamesInTime(t *testing.T) {
	t.Parallel()
	deaf := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer deaf.Close()
	begun := time.Now()
	status, out := lockctl(t, []string{"FENCEPOST=" + deaf.URL, "no_proxy=*"}, "completion", "names", "x")
	if took := time.Since(begun); status == 0 || took > 3*time.Second {
		t.Errorf("status %d after %s: %s", status, took, out)
	}
}
