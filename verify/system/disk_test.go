package system

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"fencepost/internal/redis/redistest"
)

// event is a system call on a file or a socket: its begin, its end, or both, if nothing was in between.
type event struct {
	call, on, args string
	begun, ended   bool
}

var (
	callLine    = regexp.MustCompile(`^(\d+)\s+(\w+)\(\d+<([^>]*)>(.*)`)
	resumedLine = regexp.MustCompile(`^(\d+)\s+<\.\.\. (\w+) resumed>(.*)`)
)

// eventsOf reads what strace -f -y has written.
func eventsOf(t *testing.T, trace string) (all []event) {
	t.Helper()
	text, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	under := map[string]event{} // by the thread
	for line := range strings.Lines(string(text)) {
		if m := callLine.FindStringSubmatch(line); m != nil {
			e := event{call: m[2], on: m[3], args: m[4], begun: true, ended: !strings.Contains(m[4], "<unfinished ...>")}
			under[m[1]] = e
			all = append(all, e)
		} else if m := resumedLine.FindStringSubmatch(line); m != nil {
			if e := under[m[1]]; e.call == m[2] {
				all = append(all, event{call: e.call, on: e.on, args: e.args + m[3], ended: true})
			}
		}
	}
	return all
}

// readings are calls on a file that leave it as it is.
var readings = []string{"read", "pread64", "lseek", "fstat", "fcntl", "close", "getdents64", "flock", "ioctl", "statx", "newfstatat", "openat"}

// The calls that faults of disks slow down, and let fail, are those by which the log is written, all of them and no other, and a
// lock is granted after one of them has come back. Whoever changes how the log is written changes logWrites here, or no slow disk
// is slow in any check.
func TestSystemTheLogIsWrittenByTheseCalls(t *testing.T) {
	for _, store := range []Kind{Embedded, Raft} {
		t.Run(string(store), func(t *testing.T) {
			dir := t.TempDir()
			trace, log := filepath.Join(dir, "trace"), filepath.Join(dir, "data", "log")
			env := []string{"FENCEPOST_LISTEN_ADDR=127.0.0.1:0", "FENCEPOST_DATA_DIR=" + filepath.Dir(log)}
			if store == Raft {
				port, err := redistest.FreePort()
				if err != nil {
					t.Fatal(err)
				}
				env = append(env, fmt.Sprintf("FENCEPOST_STORE=raft://127.0.0.1:%d", port))
			}
			path, err := Binary(Build{})
			if err != nil {
				t.Fatal(err)
			}
			tracer := exec.Command("strace", "-f", "-y", "-qq", "-s", "100", "-o", trace, path)
			tracer.Env = append(os.Environ(), env...)
			tracer.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			stderr, err := tracer.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := tracer.Start(); err != nil {
				t.Fatal(err)
			}
			g := &Gateway{process: &process{cmd: tracer, exited: make(chan struct{})}}
			ended := make(chan struct{})
			t.Cleanup(func() {
				_ = syscall.Kill(-tracer.Process.Pid, syscall.SIGKILL)
				<-ended
				_ = tracer.Wait()
			})
			serves := make(chan string, 1)
			go func() {
				defer close(ended)
				for lines := bufio.NewScanner(stderr); lines.Scan(); {
					var said struct{ Msg, Address string }
					if json.Unmarshal(lines.Bytes(), &said) == nil && said.Msg == "serving" {
						serves <- said.Address
					}
				}
			}()
			select {
			case g.addr = <-serves:
			case <-ended:
				t.Fatal("the gateway does not serve")
			}
			if err := g.AwaitReady(startTimeout); err != nil {
				t.Fatal(err)
			}
			const grants = 5
			c := NewClient(1)
			defer c.Close()
			for i := range grants {
				if a, err := c.Acquire(t.Context(), g, fmt.Sprint("name-", i), "", ""); err != nil || a.Status != http.StatusCreated {
					t.Fatalf("%s, %v", a, err)
				}
			}
			for _, pid := range childrenOf(t, tracer.Process.Pid) {
				if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
			}
			<-ended

			granted, written := 0, false
			var writes []string
			for _, e := range eventsOf(t, trace) {
				switch of := strings.HasPrefix(e.on, log); {
				case of && !slices.Contains(readings, e.call):
					if !slices.Contains(writes, e.call) {
						writes = append(writes, e.call)
					}
					written = written || e.ended
				case e.call == "read" && strings.Contains(e.args, `"POST /locks/`):
					written = false
				case e.call == "write" && e.begun && strings.Contains(e.args, `"HTTP/1.1 201 `):
					if granted++; !written {
						t.Errorf("grant %d was answered, and none of %v on a file of the log had come back: is it written by another call?", granted, writes)
					}
				}
			}
			slices.Sort(writes)
			want := strings.Split(logWrites, ",")
			slices.Sort(want)
			if !slices.Equal(writes, want) {
				t.Errorf("the log is written by %v, and logWrites are %v", writes, want)
			}
			if granted != grants {
				t.Errorf("%d of %d grants are in the trace: the test misses its aim", granted, grants)
			}
		})
	}
}

// childrenOf returns the processes that a process has started.
func childrenOf(t *testing.T, pid int) (all []int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range strings.Fields(string(text)) {
		var child int
		if _, err := fmt.Sscan(field, &child); err != nil {
			t.Fatal(err)
		}
		all = append(all, child)
	}
	return all
}
