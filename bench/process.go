package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a server under measurement.
type process struct {
	cmd  *exec.Cmd
	addr string
}

// startBaseline runs this program again as one of the baselines.
func startBaseline(kind, storeURL string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return start(exec.Command(self, "-baseline", kind, "-store", storeURL), false, func(line string) string { return line })
}

// startGateway runs the real binary on a store, with settings besides.
func startGateway(binary, store, dataDir string, settings ...string) (*process, error) {
	cmd := exec.Command(binary)
	cmd.Env = append(os.Environ(), "FENCEPOST_LISTEN_ADDR=127.0.0.1:0", "FENCEPOST_STORE="+store, "FENCEPOST_DATA_DIR="+dataDir)
	cmd.Env = append(cmd.Env, settings...)
	return start(cmd, true, func(line string) string {
		var entry struct{ Msg, Address string }
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "serving" {
			return entry.Address
		}
		return ""
	})
}

// start runs cmd and waits until a line of its output tells its address.
func start(cmd *exec.Cmd, onStderr bool, address func(line string) string) (*process, error) {
	pipe := cmd.StdoutPipe
	if onStderr {
		pipe = cmd.StderrPipe
	} else {
		cmd.Stderr = os.Stderr
	}
	out, err := pipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd}
	lines := bufio.NewScanner(out)
	var seen strings.Builder
	for p.addr == "" && lines.Scan() {
		p.addr = address(lines.Text())
		fmt.Fprintln(&seen, lines.Text())
	}
	if p.addr == "" {
		return nil, errors.Join(fmt.Errorf("%s did not say where it serves:\n%s", cmd, &seen), p.stop())
	}
	go io.Copy(io.Discard, out) // ends with the process
	return p, nil
}

func (p *process) stop() error {
	p.cmd.Process.Signal(syscall.SIGTERM)
	p.cmd.Wait()
	return nil
}

// clockTick is the unit of CPU times in /proc: USER_HZ is 100 on every Linux
// that Go runs on.
const clockTick = 10 * time.Millisecond

// cpuTime returns the CPU time that processes have used so far.
func cpuTime(pids ...int) (total time.Duration, err error) {
	for _, pid := range pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return 0, err
		}
		// The second field, in parentheses, may hold spaces; 14 and 15 are utime and stime.
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		for _, field := range fields[11:13] {
			ticks, err := strconv.Atoi(field)
			if err != nil {
				return 0, err
			}
			total += time.Duration(ticks) * clockTick
		}
	}
	return total, nil
}
