package clients

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"fencepost/verify/system"
)

// exitLost is lockctl's status for a lease that was lost.
const exitLost = 124

// scripts are what runs under the lock. Each tells its token through a named pipe, and
// keeps that open: its end is the end of all that has come of the script.
var scripts = []string{
	"exec 3>\"$PIPE\"; echo $FENCING_TOKEN >&3; exec sleep 600",
	// ignores SIGTERM, and its children do
	"trap '' TERM; exec 3>\"$PIPE\"; echo $FENCING_TOKEN >&3; sleep 600",
	// forks and detaches: a session of its own, an orphan, and that ignores SIGTERM and SIGHUP
	"trap '' TERM HUP; exec 3>\"$PIPE\"; (setsid sh -c '(sleep 600 &); sleep 600' &); echo $FENCING_TOKEN >&3; exec sleep 600",
}

// command is a lockctl run.
type command struct {
	cmd    *exec.Cmd
	dir    string
	said   bytes.Buffer
	number int64 // the token
	over   chan struct{}
	overAt time.Time
	waited chan error
}

// environment is that of this process, but for the settings of its tests: lockctl refuses variables that it does not know.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "FENCEPOST_") })
}

// startCommand starts a script under the lock.
func (l *lane) startCommand(ctx context.Context, name, script string) (_ holder, err error) {
	path, err := system.Binary(system.Build{Program: "lockctl"})
	if err != nil {
		return nil, err
	}
	c := &command{over: make(chan struct{}), waited: make(chan error, 1)}
	if c.dir, err = os.MkdirTemp("", "fencepost-clients"); err != nil {
		return nil, err
	}
	pipe := filepath.Join(c.dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		return nil, err
	}
	c.cmd = exec.Command(path, "run", "-gateway", "http://"+l.front.Addr(), "-ttl", ttl.String(), "-wait", "30s", name, "--", "sh", "-c", script)
	c.cmd.Env = append(environment(), "PIPE="+pipe)
	c.cmd.Stderr = &c.said
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // should this process be killed
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { c.waited <- c.cmd.Wait() }()
	read, err := c.open(pipe)
	if err != nil {
		return nil, errors.Join(err, c.cmd.Process.Kill())
	}
	line := make([]byte, 32)
	n, err := read.Read(line)
	if err != nil {
		return nil, errors.Join(err, c.cmd.Process.Kill())
	}
	if c.number, err = strconv.ParseInt(strings.TrimSpace(string(line[:n])), 10, 64); err != nil {
		return nil, errors.Join(err, c.cmd.Process.Kill())
	}
	go func() {
		_, _ = io.Copy(io.Discard, read)
		c.overAt = time.Now()
		read.Close()
		close(c.over)
	}()
	return c, nil
}

// open opens the pipe when the script has, unless lockctl has ended before.
func (c *command) open(pipe string) (*os.File, error) {
	opened := make(chan *os.File, 1)
	go func() {
		f, err := os.Open(pipe)
		if err == nil {
			opened <- f
		}
	}()
	select {
	case f := <-opened:
		return f, nil
	case err := <-c.waited:
		if w, openErr := os.OpenFile(pipe, os.O_WRONLY|syscall.O_NONBLOCK, 0); openErr == nil {
			w.Close() // so that the goroutine ends
		}
		return nil, fmt.Errorf("lockctl ended before its command ran: %w: %s", err, &c.said)
	}
}

func (c *command) ended() <-chan struct{} { return c.over }
func (c *command) at() time.Time          { return c.overAt }
func (c *command) keeps() bool            { return false }
func (c *command) pid() int               { return c.cmd.Process.Pid }
func (c *command) token() int64           { return c.number }

// finish asks lockctl to end, which passes it on: a script that does not heed it is ended
// by a kill of its own group.
func (c *command) finish() {
	_ = syscall.Kill(c.pid(), syscall.SIGTERM)
	select {
	case <-c.over:
	case <-time.After(ttl):
		_ = syscall.Kill(c.pid(), syscall.SIGTERM)
		c.killChildren()
	}
}

// killChildren ends lockctl's own children, so that it ends what they leave behind.
func (c *command) killChildren() {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", c.pid()))
	for _, list := range lists {
		text, _ := os.ReadFile(list)
		for field := range strings.FieldsSeq(string(text)) {
			if pid, err := strconv.Atoi(field); err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}
}

func (c *command) verdict(survived bool) error {
	defer os.RemoveAll(c.dir)
	select {
	case <-c.waited:
	case <-time.After(patience):
		return errors.Join(errors.New("lockctl does not end"), c.cmd.Process.Kill())
	}
	status := c.cmd.ProcessState.ExitCode()
	if survived && (status == 128+int(syscall.SIGTERM) || status == 128+int(syscall.SIGKILL)) || !survived && status == exitLost {
		return nil
	}
	return fmt.Errorf("survived %t, and lockctl's exit status is %d: %s", survived, status, &c.said)
}
