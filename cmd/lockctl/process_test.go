//go:build linux

package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"fencepost/verify/system"
)

// transcript collects what a program writes, and tells when something is in it.
type transcript struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *transcript) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

func (r *transcript) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

// waitFor waits until something that matches was written.
func (r *transcript) waitFor(t *testing.T, pattern string) []string {
	t.Helper()
	wanted := regexp.MustCompile(pattern)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(atMost); ; <-tick.C {
		if found := wanted.FindStringSubmatch(r.String()); found != nil {
			return found
		}
		if time.Now().After(deadline) {
			t.Fatalf("nothing that matches %s was written within %s, only %q", pattern, atMost, r)
		}
	}
}

// startLockctl starts the program. Its status comes from the channel; whatever becomes of the
// test, it does not outlive it.
func startLockctl(t *testing.T, as *syscall.Credential, gateway string, out, errOut io.Writer, args ...string) (*exec.Cmd, <-chan int) {
	t.Helper()
	path, err := exec.LookPath("lockctl")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), "FENCEPOST="+gateway, "no_proxy=*")
	cmd.Stdout, cmd.Stderr = out, errOut
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	if as != nil {
		cmd.Dir = "/"
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	status, ended := make(chan int, 1), make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
		status <- statusFor(cmd)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	return cmd, status
}

// statusFor is a program's status as a shell has it.
func statusFor(cmd *exec.Cmd) int {
	if how := cmd.ProcessState.Sys().(syscall.WaitStatus); how.Signaled() {
		return 128 + int(how.Signal())
	}
	return cmd.ProcessState.ExitCode()
}

// within waits for the status of a program.
func within(t *testing.T, status <-chan int, said any) int {
	t.Helper()
	select {
	case got := <-status:
		return got
	case <-time.After(atMost):
		t.Fatalf("it has not ended within %s; it said %q", atMost, said)
		return 0
	}
}

// breakLock ends the lease that has a lock.
func breakLock(t *testing.T, gateway, name, token string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, gateway+"/locks/"+name, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("If-Match", `"`+token+`"`)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode >= 300 {
		t.Fatalf("the break of %s is answered %s", name, answer.Status)
	}
}

// becomeRoot is the program set-uid-program: as sudo and su do, it takes on the user it belongs to.
func becomeRoot() {
	if err := syscall.Setresuid(0, 0, 0); err != nil {
		println(err.Error())
		os.Exit(1)
	}
	println("up", os.Getpid(), os.Getenv("FENCING_TOKEN"))
	time.Sleep(2 * atMost)
}

// TestCommandOfAnotherUser: what belongs to another user can't be ended. People are told which
// process it is while it still runs, and lockctl ends once it is gone.
func TestCommandOfAnotherUser(t *testing.T) {
	if os.Getuid() != 0 { // nobody else can make a program set-user-ID; but to this user nothing of root's may be sent
		if p := (&process{}); syscall.Kill(1, 0) != syscall.EPERM || lookAt(1).uid != "0" {
			t.Errorf("process 1 is %+v of %+v", lookAt(1), p)
		}
		return
	}
	s := system.StartTest(t, system.Options{Store: system.Embedded})
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "set-uid") // not the test's own: nobody may not look into that
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	program := filepath.Join(dir, "set-uid-program")
	err = errors.Join(os.WriteFile(program, self, 0o755), os.WriteFile(filepath.Join(dir, "lockctl"), self, 0o755), os.Chmod(dir, 0o755), os.Chmod(program, 0o755|os.ModeSetuid))
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	var said transcript
	const nobody = 65534
	lockctl, status := startLockctl(t, &syscall.Credential{Uid: nobody, Gid: nobody}, s.Gateways[0].URL(), nil, &said, "run", "-ttl", "9s", "other/user", "--", program)
	up := said.waitFor(t, `up (\d+) (\d+)`)
	pid, _ := strconv.Atoi(up[1])
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	breakLock(t, s.Gateways[0].URL(), "other/user", up[2])
	said.waitFor(t, `lockctl: other/user: ending the command: .*\n`)
	said.waitFor(t, `lockctl: other/user: process `+up[1]+` of root, "set-uid-program", can't be ended: it belongs to another user`)
	if err := syscall.Kill(pid, 0); err != nil {
		t.Errorf("the process had ended when it was named: %v", err)
	}
	stays := func(d time.Duration) {
		select {
		case got := <-status:
			t.Fatalf("lockctl has ended with %d beside a command that runs on", got)
		case <-time.After(d):
		}
	}
	stays(soon) // until then it looks often
	began, spent := time.Now(), processorTime(t, lockctl.Process.Pid)
	stays(2 * time.Second)
	if spent, took := processorTime(t, lockctl.Process.Pid)-spent, time.Since(began); spent > took/20 {
		t.Errorf("waiting for it takes %s of a processor in %s", spent, took)
	}
	if strings.Contains(said.String(), "was ended") {
		t.Errorf("it says of a command that runs that it was ended: %q", &said)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if got := within(t, status, &said); got != exitLost {
		t.Errorf("the status is %d, want %d; it said %q", got, exitLost, &said)
	}
	if n := strings.Count(said.String(), "can't be ended"); n != 1 {
		t.Errorf("it was named %d times: %q", n, &said)
	}
}

// processorTime returns how long the threads of a process have run.
func processorTime(t *testing.T, pid int) (sum time.Duration) {
	t.Helper()
	all, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/schedstat")
	if err != nil || len(all) == 0 {
		t.Fatalf("nothing is known of process %d: %v", pid, err)
	}
	for _, path := range all {
		text, _ := os.ReadFile(path) // a thread may have ended
		ran, _, _ := strings.Cut(string(text), " ")
		ns, _ := strconv.ParseInt(ran, 10, 64)
		sum += time.Duration(ns)
	}
	return sum
}

// Looking for what can't be ended takes little of a processor, however long a look takes.
func TestLookAfter(t *testing.T) {
	for _, c := range []struct{ since, took, want time.Duration }{
		{0, time.Millisecond, lookAgain},
		{soon - 1, time.Second, lookAgain},
		{soon, time.Millisecond, lookRarely},
		{time.Hour, 0, lookRarely},
		{time.Hour, 50 * time.Millisecond, time.Second},
	} {
		if got := lookAfter(c.since, c.took); got != c.want {
			t.Errorf("%s after SIGKILL and a look of %s: again after %s, want %s", c.since, c.took, got, c.want)
		}
	}
}

// Processes that can't be ended may be without number; people are told of some.
func TestNamedOnce(t *testing.T) {
	var said []string
	e := &ending{say: func(text string) { said = append(said, text) }}
	self := os.Getpid()
	e.name([]int{self, self}, "a reason")
	e.name([]int{self}, "another")
	if len(said) != 1 || !strings.Contains(said[0], "process "+strconv.Itoa(self)+" of ") || !strings.Contains(said[0], "a reason") {
		t.Errorf("said: %q", said)
	}
	for pid := range 100 {
		e.name([]int{1_000_000_000 + pid}, "none")
	}
	if len(said) != maxNamed {
		t.Errorf("%d were named, want %d", len(said), maxNamed)
	}
}

// TestSignalsAfterTheCommand: once the command was waited for its process id, and that of its
// group, may be somebody else's: no signal goes there.
func TestSignalsAfterTheCommand(t *testing.T) {
	other := exec.Command("cat") // has got the id meanwhile
	other.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Process.Kill(); _ = other.Wait() })
	p := &process{pid: other.Process.Pid}
	p.reaped.Store(true)

	p.forward(syscall.SIGTERM)
	p.forward(syscall.SIGUSR1)
	if _, err := io.WriteString(in, "alive\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "alive\n" {
		t.Fatalf("it was ended by a signal that is not for it: %q, %v", line, err)
	}

	if err := other.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var stopped syscall.WaitStatus
	if _, err := syscall.Wait4(p.pid, &stopped, syscall.WUNTRACED, nil); err != nil || !stopped.Stopped() {
		t.Fatal(err, stopped)
	}
	p.resume(stopped)
	if pid, err := syscall.Wait4(p.pid, &stopped, syscall.WCONTINUED|syscall.WNOHANG, nil); pid != 0 || err != nil {
		t.Errorf("it was made to go on by a signal that is not for it: %v, %v", stopped, err)
	}
}

// proxyTo passes on to a gateway.
func proxyTo(t *testing.T, gateway string) http.Handler {
	t.Helper()
	to, err := url.Parse(gateway)
	if err != nil {
		t.Fatal(err)
	}
	return &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
}

// deafTo is a gateway in front of another one that can't answer some requests.
func deafTo(t *testing.T, method, gateway string) string {
	t.Helper()
	proxy := proxyTo(t, gateway)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == method {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	return front.URL
}

// TestReleaseUnheard: a release of which no gateway has heard leaves the lock held. People are
// told so; the status is that of the command, which had the lock to its end.
func TestReleaseUnheard(t *testing.T) {
	t.Parallel() // most of it is waiting
	s := system.StartTest(t, system.Options{Store: system.Embedded})
	var said transcript
	_, status := startLockctl(t, nil, deafTo(t, http.MethodDelete, s.Gateways[0].URL()), nil, &said, "run", "-ttl", "10m", "release/unheard", "--", "sh", "-c", "exit 7")
	if got := within(t, status, &said); got != 7 {
		t.Errorf("the status is %d, want 7", got)
	}
	if line := said.String(); strings.Count(line, "\n") != 1 || !strings.HasPrefix(line, "lockctl: release/unheard: the lease could not be released, so the lock is held until it expires: ") {
		t.Errorf("it said %q", line)
	}
}

// nobodyReads returns a pipe that takes no more, or whose reader is gone, as a program's stderr.
func nobodyReads(t *testing.T, gone bool) *os.File {
	t.Helper()
	unread, full, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unread.Close(); full.Close() })
	if gone {
		unread.Close()
		return full
	}
	raw, err := full.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Write(func(fd uintptr) bool { // non-blocking
		for {
			if _, err := syscall.Write(int(fd), make([]byte, 4096)); err != nil {
				return true
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return full
}

// TestNobodyReads: a stderr that takes no more, or that nobody can read any more, keeps the command from nothing: it is ended
// when its lease is lost, and lockctl ends with the status that says why.
func TestNobodyReads(t *testing.T) {
	t.Parallel()
	s := system.StartTest(t, system.Options{Store: system.Embedded})
	gateway := s.Gateways[0].URL()
	if status, out := lockctl(t, []string{"FENCEPOST=" + gateway, "no_proxy=*"}, "acquire", "-ttl", "10m", "nobody/busy"); status != 0 {
		t.Fatal(out)
	}
	for how, gone := range map[string]bool{"full": false, "gone": true} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			out := &transcript{}
			_, ended := startLockctl(t, nil, gateway, out, nobodyReads(t, gone), "run", "-ttl", "9s", "nobody/"+how, "--", "sh", "-c", `echo up $$ $FENCING_TOKEN; exec sleep 300`)
			up := out.waitFor(t, `up (\d+) (\d+)`)
			breakLock(t, gateway, "nobody/"+how, up[2])
			if status := within(t, ended, out); status != exitLost {
				t.Errorf("after a break it ends with %d", status)
			}
			if pid, _ := strconv.Atoi(up[1]); lookAt(pid).state != 0 {
				t.Errorf("the command is %c", lookAt(pid).state)
			}
			for want, args := range map[int][]string{
				exitNotAcquired: {"run", "nobody/busy", "--", "true"}, exitNotFound: {"run", "nobody/free", "--", "no-such-command"},
			} {
				if _, ended := startLockctl(t, nil, gateway, out, nobodyReads(t, gone), args...); within(t, ended, out) != want {
					t.Errorf("%v does not end with %d", args, want)
				}
			}
		})
	}
}

// TestWithParent: with -with-parent the command ends, and the lock is free, when what started lockctl
// is killed; so does a wait.
func TestWithParent(t *testing.T) {
	t.Parallel()
	s := system.StartTest(t, system.Options{Store: system.Embedded})
	gateway := s.Gateways[0].URL()
	for name, command := range map[string]string{
		"heeds":   `echo up $$; while :; do sleep 0.05; done`,
		"ignores": `trap "" TERM; echo up $$; while :; do sleep 0.05; done`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lock := "parent/" + name
			var said transcript
			parent := exec.Command("sh", "-c", `lockctl run -ttl 10m -grace 300ms -with-parent `+lock+` -- sh -c "$1"; echo not reached`, "sh", command)
			parent.Env = append(os.Environ(), "FENCEPOST="+gateway, "no_proxy=*")
			parent.Stdout, parent.Stderr = &said, &said
			if err := parent.Start(); err != nil {
				t.Fatal(err)
			}
			up := said.waitFor(t, `up (\d+)`)
			if err := parent.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			said.waitFor(t, "the process that started lockctl has ended")
			_ = parent.Wait() // until what it has started, which has its stderr, has ended
			if pid, _ := strconv.Atoi(up[1]); lookAt(pid).state != 0 {
				t.Errorf("the command is %c", lookAt(pid).state)
			}
			if status, out := lockctl(t, []string{"FENCEPOST=" + gateway, "no_proxy=*"}, "run", lock, "--", "true"); status != 0 {
				t.Errorf("it is not free: %s", out)
			}
		})
	}
	t.Run("waits", func(t *testing.T) {
		t.Parallel()
		env := []string{"FENCEPOST=" + gateway, "no_proxy=*"}
		if status, out := lockctl(t, env, "acquire", "-ttl", "10m", "parent/taken"); status != 0 {
			t.Fatal(out)
		}
		var said transcript
		parent := exec.Command("sh", "-c", `lockctl run -with-parent -wait 10m parent/taken -- true; echo not reached`)
		parent.Env, parent.Stdout, parent.Stderr = append(os.Environ(), env...), &said, &said
		if err := parent.Start(); err != nil {
			t.Fatal(err)
		}
		wait := func(want string) {
			t.Helper()
			for deadline := time.Now().Add(atMost); ; <-time.After(10 * time.Millisecond) {
				if _, out := lockctl(t, env, "get", "parent/taken"); strings.Contains(out, want) {
					return
				}
				if time.Now().After(deadline) {
					t.Fatalf("never %s", want)
				}
			}
		}
		wait("1 wait")
		if err := parent.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		said.waitFor(t, "lockctl: .*the process that started lockctl has ended")
		_ = parent.Wait()
		wait("0 wait")
	})
}
