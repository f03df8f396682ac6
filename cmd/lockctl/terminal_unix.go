//go:build unix

package main

import (
	"os"
	"syscall"
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
