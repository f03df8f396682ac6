//go:build unix

package main

import "syscall"

// openFiles returns how many files the process may have open. Go has raised the limit
// to the hard one at its start.
func openFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return maxCap
	}
	return int(min(uint64(limit.Cur), maxCap))
}
