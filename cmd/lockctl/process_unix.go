//go:build unix

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"runtime"
	"slices"
	"sync"
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

	given  bool           // the command has had the terminal
	passed syscall.Signal // the latest that was passed on

	mu     sync.Mutex
	others map[int]bool // children of this process that were there before the command, such as those of a shell that it replaced
	groups map[int]bool // the process groups of these and theirs, and this process's own; nil if there were none. Does not change

	orphaned <-chan struct{} // closed when it is to end with lockctl's parent; nil: it is not
}

type wait = syscall.WaitStatus

// findCommand looks for a command as a shell does.
func findCommand(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case errors.Is(err, os.ErrPermission), errors.Is(err, syscall.EISDIR):
		return "", exit{status: exitNotRunnable, err: err}
	case err != nil && !errors.Is(err, exec.ErrDot):
		return "", exit{status: exitNotFound, err: err}
	}
	return path, nil
}

// startProcess starts a command in a process group of its own. The caller's goroutine is
// bound to its thread from now on: should that end, so does the command.
func startProcess(path string, args, env []string) (*process, error) {
	p := &process{ended: make(chan wait, 1), gone: make(chan struct{}), paused: make(chan wait, 1), tty: controllingTerminal()}
	p.noteOthers()
	adoptOrphans()
	attributes := &syscall.SysProcAttr{Setpgid: true}
	endWithParent(attributes)
	if p.readsTerminal() {
		attributes.Foreground, attributes.Ctty, p.given = true, int(p.tty.Fd()), true
	}
	runtime.LockOSThread()
	var err error
	p.pid, err = syscall.ForkExec(path, args, &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}, Sys: attributes})
	signal.Ignore(syscall.SIGTTOU) // after the start: what is ignored is inherited
	if err != nil {
		p.restore()
		return nil, exit{status: exitNotRunnable, err: &os.PathError{Op: "exec", Path: path, Err: err}}
	}
	go p.reap()
	return p, nil
}

// reap waits for the command and for the orphans that this process has adopted, until
// none is left. Others it waits for only meanwhile, so that no zombies are left.
func (p *process) reap() {
	defer close(p.gone)
	whom := -1
	if !adopts {
		whom = p.pid
	}
	for {
		if p.groups != nil && p.reaped.Load() && len(p.children()) == 0 {
			return
		}
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(whom, &status, syscall.WUNTRACED, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil: // ECHILD: none is left
			for !p.reaped.Load() || !adopts && syscall.Kill(-p.pid, 0) != syscall.ESRCH {
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
		case !status.Stopped():
			p.mu.Lock()
			delete(p.others, pid) // the id may be another's now
			p.mu.Unlock()
		}
	}
}

// noteOthers notes who is a child of this process already, and must be left alone.
func (p *process) noteOthers() {
	children, _ := childrenOf(os.Getpid())
	if len(children) == 0 {
		return
	}
	p.others, p.groups = map[int]bool{}, map[int]bool{syscall.Getpgrp(): true}
	for _, pid := range children {
		p.others[pid] = true
	}
	for _, pid := range withDescendants(children) {
		if group, err := syscall.Getpgid(pid); err == nil {
			p.groups[group] = true
		}
	}
}

// children returns the children of this process that belong to the command: itself, and its orphans. Those of others are
// known by their process groups, in which nothing of the command is.
func (p *process) children() []int {
	all, _ := childrenOf(os.Getpid())
	if p.groups == nil {
		return all
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(all, func(pid int) bool {
		group, err := syscall.Getpgid(pid)
		return p.others[pid] || err == nil && p.groups[group]
	})
}

// descendants returns the ids of all of the command that is found.
func (p *process) descendants() []int { return withDescendants(p.children()) }

// withDescendants adds to processes all that descends from them.
func withDescendants(all []int) []int {
	for i := 0; i < len(all); i++ {
		more, _ := childrenOf(all[i])
		all = append(all, more...)
	}
	return all
}

// signalGroup sends a signal to the command's group. Once the command was waited for, the
// id of the group may be somebody else's; where orphans are adopted they are found without it.
func (p *process) signalGroup(s syscall.Signal) {
	if adopts && p.reaped.Load() {
		return
	}
	_ = syscall.Kill(-p.pid, s)
}

// signal sends a signal to the group and to what has left it, and returns who may not be
// signalled by this user.
func (p *process) signal(s syscall.Signal) (refused []int) {
	p.signalGroup(s)
	for _, pid := range p.descendants() {
		group, err := syscall.Getpgid(pid)
		if err != nil {
			continue
		}
		one := s
		if group == p.pid && !p.reaped.Load() {
			one = 0 // it has got it, if it may be sent any
		}
		if syscall.Kill(pid, one) == syscall.EPERM {
			refused = append(refused, pid)
		}
	}
	return refused
}

// terminate asks all to end. Who is stopped has to go on for that.
func (p *process) terminate() (refused []int) {
	refused = p.signal(syscall.SIGTERM)
	p.signal(syscall.SIGCONT)
	return refused
}

const (
	// soon is how long processes that got SIGKILL have to end: after it those that can't are
	// named, and what is left is looked at less often.
	soon = 500 * time.Millisecond

	// lookRarely is how often then, at most.
	lookRarely = 100 * time.Millisecond

	// maxNamed bounds how many processes are named: one that can't be ended may start others
	// without end.
	maxNamed = 10
)

// ending is the end of a command. Processes that can't be ended are named, each once.
type ending struct {
	p     *process
	say   func(text string)
	begun time.Time // when SIGKILL was sent first
	named map[int]bool
	blind bool // it was said that not all can be found
}

// terminate asks all to end.
func (e *ending) terminate() { e.name(e.p.terminate(), "it belongs to another user") }

// kill sends SIGKILL to all, and returns when to do so again: new children of those that are
// being ended are found then.
func (e *ending) kill() (again time.Duration) {
	now := time.Now()
	if e.begun.IsZero() {
		e.begun = now
	}
	e.name(e.p.signal(syscall.SIGKILL), "it belongs to another user")
	since := now.Sub(e.begun)
	if _, seen := childrenOf(os.Getpid()); since >= soon && !seen && adopts && !e.blind {
		e.blind = true
		e.say("something that has left the command's process group can't be ended: without /proc it is not found. It may run on without the lock")
	}
	if since >= soon {
		var asleep []int
		for _, pid := range e.p.descendants() {
			if lookAt(pid).state == 'D' {
				asleep = append(asleep, pid)
			}
		}
		e.name(asleep, "it is in an uninterruptible sleep, as of a disk that does not answer")
	}
	return lookAfter(since, time.Since(now))
}

// lookAfter returns when to look again at what is being ended for so long, after a look
// that took a while: at first at once, then so that looking takes a twentieth of a processor
// at most.
func lookAfter(since, took time.Duration) time.Duration {
	if since < soon {
		return lookAgain
	}
	return max(lookRarely, 20*took)
}

// name says which processes can't be ended, and why.
func (e *ending) name(stuck []int, why string) {
	for _, pid := range stuck {
		seen := lookAt(pid)
		if e.named[pid] || len(e.named) == maxNamed || seen.state == 'Z' {
			continue
		}
		if e.named == nil {
			e.named = map[int]bool{}
		}
		e.named[pid] = true
		owner := "user " + seen.uid
		if u, err := user.LookupId(seen.uid); err == nil {
			owner = u.Username
		}
		e.say(fmt.Sprintf("process %d of %s, %q, can't be ended: %s. It may run on without the lock; retrying", pid, owner, seen.name, why))
	}
}
