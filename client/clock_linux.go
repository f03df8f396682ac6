package client

import (
	"syscall"
	"time"
	"unsafe"
)

// clockBoottime is CLOCK_BOOTTIME of <linux/time.h>: CLOCK_MONOTONIC and the time for
// which the machine was suspended.
const clockBoottime = 7

func sinceBoot() time.Duration {
	var t syscall.Timespec
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&t)), 0); errno != 0 {
		return 0 // before Linux 2.6.39
	}
	return time.Duration(t.Nano())
}
