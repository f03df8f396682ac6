package main

import "syscall"

// endsWithParent has the kernel ask the command to end when this process has ended, even by SIGKILL.
func endsWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} }
