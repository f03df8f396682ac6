//go:build unix

package main

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
)

// lookAgain is how often a process tree that is being ended is looked at.
const lookAgain = 2 * time.Millisecond

// process is a command and what descends from it.
type process struct {
	pid    int           // also of its process group
	ended  chan wait     // gets how the command itself has ended, once
	gone   chan struct{} // closed when nothing is left of it
	reaped atomic.Bool   // the command itself has been waited for: its id may be another's
	paused chan wait     // gets how the command was stopped, the latest
	tty    *os.File      // the controlling terminal; nil: none
}

type wait = syscall.WaitStatus

// findCommand looks for a command as a shell does.
func findCommand(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case errors.Is(err, os.ErrPermission):
		return "", exit{exitNotRunnable, err}
	case err != nil && !errors.Is(err, exec.ErrDot):
		return "", exit{exitNotFound, err}
	}
	return path, nil
}

// startProcess starts a command in a process group of its own. The caller's goroutine is
// bound to its thread from now on: should that end, so does the command.
func startProcess(path string, args, env []string) (*process, error) {
	p := &process{ended: make(chan wait, 1), gone: make(chan struct{}), paused: make(chan wait, 1), tty: controllingTerminal()}
	adoptOrphans()
	attributes := &syscall.SysProcAttr{Setpgid: true}
	endWithParent(attributes)
	if p.readsTerminal() {
		attributes.Foreground, attributes.Ctty = true, int(p.tty.Fd())
	}
	runtime.LockOSThread()
	var err error
	p.pid, err = syscall.ForkExec(path, args, &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}, Sys: attributes})
	signal.Ignore(syscall.SIGTTOU) // after the start: what is ignored is inherited
	if err != nil {
		p.restore()
		return nil, exit{exitNotRunnable, &os.PathError{Op: "exec", Path: path, Err: err}}
	}
	go p.reap()
	return p, nil
}

// reap waits for the command and for the orphans that this process has adopted, until
// none is left.
func (p *process) reap() {
	defer close(p.gone)
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WUNTRACED, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil: // ECHILD: none is left
			for !p.reaped.Load() || syscall.Kill(-p.pid, 0) == nil { // where orphans can't be adopted
				time.Sleep(lookAgain)
			}
			return
		case pid == p.pid && status.Stopped():
			select {
			case <-p.paused: // only the latest counts
			default:
			}
			p.paused <- status
		case pid == p.pid:
			p.reaped.Store(true)
			p.ended <- status
		}
	}
}

// signal sends a signal to the group and to what has left it.
func (p *process) signal(s syscall.Signal) {
	_ = syscall.Kill(-p.pid, s)
	for _, pid := range descendants() {
		if group, err := syscall.Getpgid(pid); err == nil && group != p.pid {
			_ = syscall.Kill(pid, s)
		}
	}
}

// terminate asks all to end. Who is stopped has to go on for that.
func (p *process) terminate() {
	p.signal(syscall.SIGTERM)
	p.signal(syscall.SIGCONT)
}

// kill ends all, and returns when nothing is left. New children of those that are being
// ended are found in the next round.
func (p *process) kill() {
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for {
		select {
		case <-p.gone:
			return
		default:
		}
		p.signal(syscall.SIGKILL)
		select {
		case <-p.gone:
		case <-tick.C:
		}
	}
}
