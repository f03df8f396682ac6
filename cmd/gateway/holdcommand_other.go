//go:build !linux

package main

import "syscall"

// Here the command runs on when this process is killed.
func endsWithParent() *syscall.SysProcAttr { return nil }
