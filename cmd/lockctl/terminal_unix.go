//go:build unix

package main

import (
	"os"
	"syscall"
	"time"
	"unsafe"
)

// foregroundOf returns the process group in the foreground of a terminal; 0 if it is none.
func foregroundOf(f *os.File) int {
	var group int32
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), syscall.TIOCGPGRP, uintptr(unsafe.Pointer(&group))); errno != 0 {
		return 0
	}
	return int(group)
}

// setForeground gives a terminal to a process group. SIGTTOU must be ignored.
func setForeground(f *os.File, group int) {
	g := int32(group)
	_, _, _ = syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), syscall.TIOCSPGRP, uintptr(unsafe.Pointer(&g)))
}

func isTerminal(f *os.File) bool { return foregroundOf(f) != 0 }

// lookForeground is how often a command that waits for the terminal is looked at.
const lookForeground = 100 * time.Millisecond

// controllingTerminal returns the terminal of this session, wherever stdin comes from.
func controllingTerminal() *os.File {
	f, err := os.OpenFile("/dev/tty", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	return f
}

// inForeground tells whether this process may give the terminal away.
func (p *process) inForeground() bool {
	return p.tty != nil && foregroundOf(p.tty) == syscall.Getpgrp()
}

// readsTerminal tells whether the command is to have the terminal before it asks for it.
// In a pipe its neighbours may need it first.
func (p *process) readsTerminal() bool { return p.inForeground() && isTerminal(os.Stdin) }

// giveTerminal has the command get what is typed.
func (p *process) giveTerminal() {
	setForeground(p.tty, p.pid)
	p.given = true
}

// endedBy says how lockctl is to end after a command that ended by a signal. One that the command got alone because it had the
// terminal was meant for all who were started there, such as the script: that goes on otherwise.
func (p *process) endedBy(s syscall.Signal) exit {
	e := exit{status: 128 + int(s)}
	switch s {
	case syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP:
		e.by, e.typed = s, p.given && p.passed != s
	case syscall.SIGTERM:
		e.by = s
	}
	return e
}

// resume has a stopped command go on: all that it does while it is stopped is to hold the
// lock. One that waits for the terminal gets it if it is this process's to give; else the
// channel says when to try again.
func (p *process) resume(why wait) (again <-chan time.Time) {
	if s := why.StopSignal(); s == syscall.SIGTTIN || s == syscall.SIGTTOU {
		if p.inForeground() {
			p.giveTerminal()
		}
		if p.tty == nil || foregroundOf(p.tty) != p.pid {
			return time.After(lookForeground)
		}
	}
	p.signalGroup(syscall.SIGCONT)
	return nil
}

// forward passes a signal on. Who is stopped has to go on to end by it.
func (p *process) forward(s syscall.Signal) {
	switch s {
	case syscall.SIGTSTP:
		return
	case syscall.SIGCONT:
		if p.readsTerminal() { // the shell's fg
			p.giveTerminal()
		}
	}
	p.passed = s
	p.signalGroup(s)
	switch s {
	case syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM:
		p.signalGroup(syscall.SIGCONT)
	}
}

// restore takes the terminal back from a group of which nothing is left.
func (p *process) restore() {
	if p.tty == nil {
		return
	}
	if group := foregroundOf(p.tty); group > 0 && syscall.Kill(-group, 0) == syscall.ESRCH {
		setForeground(p.tty, syscall.Getpgrp())
	}
	p.tty.Close()
}
