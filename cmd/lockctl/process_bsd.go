//go:build unix && !linux

package main

import (
	"os"
	"os/signal"
	"syscall"
	"time"
)

// Here orphans go to init: who leaves the process group escapes. docs/lockctl.md says so.
func adoptOrphans()                      {}
func endWithParent(*syscall.SysProcAttr) {}
func childrenOf(int) ([]int, bool)       { return nil, false }

const adopts = false

type seen struct {
	name, uid string
	state     byte
}

func lookAt(int) seen { return seen{} }

// endBy ends this process by a signal, and with typed the others of its group. It returns where that does not end it: at SIGQUIT
// Go would write its stacks.
func endBy(s syscall.Signal, typed bool) {
	signal.Reset(s)
	if s == syscall.SIGQUIT {
		signal.Ignore(s)
	}
	if typed {
		_ = syscall.Kill(0, s)
	}
	if s != syscall.SIGQUIT {
		_ = syscall.Kill(os.Getpid(), s)
		<-time.After(time.Second) // another thread may get it
	}
}
