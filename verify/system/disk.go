package system

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// logWrites are the system calls by which a gateway writes its log: of pwrite64 a frame is on disk when it has returned, of
// fsync a new file is, and its name. TestSystemTheLogIsWrittenByTheseCalls holds them to what the program does.
const logWrites = "pwrite64,fsync"

// tamper has strace change what the system calls of a gateway come to, which it counts itself.
func (g *Gateway) tamper(calls, how, what string) (*Harm, error) {
	trace, err := os.CreateTemp("", "fencepost-trace")
	if err != nil {
		return nil, err
	}
	forget := func() error { return errors.Join(trace.Close(), os.Remove(trace.Name())) }
	tracer := exec.Command("strace", "-f", "-qq", "-o", trace.Name(), "-p", fmt.Sprint(g.PID()), "-e", "trace="+calls, "-e", "inject="+calls+":"+how)
	if err := tracer.Start(); err != nil {
		return nil, errors.Join(err, forget())
	}
	release := func() error {
		// Asked to let go while its process ends, strace may wait forever for a thread of it.
		if err := tracer.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
		_, err := tracer.Process.Wait()
		return errors.Join(err, forget())
	}
	seen := func() (int, error) {
		text, err := os.ReadFile(trace.Name())
		return strings.Count(string(text), "(DELAYED)\n") + strings.Count(string(text), "(INJECTED)\n"), err
	}
	for deadline := time.Now().Add(startTimeout); !g.traced(tracer.Process.Pid); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return nil, errors.Join(errors.New("strace does not attach"), release())
		}
	}
	return &Harm{g.Name, what, seen, release}, nil
}

// traced reports whether a process traces all threads of the gateway; one that has ended has none.
func (g *Gateway) traced(by int) bool {
	tasks := fmt.Sprintf("/proc/%d/task", g.PID())
	threads, _ := os.ReadDir(tasks)
	for _, thread := range threads {
		status, err := os.ReadFile(tasks + "/" + thread.Name() + "/status")
		if err == nil && !strings.Contains(string(status), fmt.Sprintf("\nTracerPid:\t%d\n", by)) {
			return false
		}
	}
	return true
}
