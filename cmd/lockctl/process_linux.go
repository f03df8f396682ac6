package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// prSetChildSubreaper is PR_SET_CHILD_SUBREAPER of <linux/prctl.h>.
const prSetChildSubreaper = 36

// adoptOrphans makes this process the parent of those among its descendants whose parents
// have ended, in place of init: so none of them escapes by forking and detaching.
func adoptOrphans() { _, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0) }

// endWithParent has the kernel end the command when this process has ended, even by SIGKILL.
func endWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }

// descendants returns the ids of all that descends from this process.
func descendants() (all []int) {
	for next := []int{os.Getpid()}; len(next) > 0; next = next[1:] {
		lists, _ := filepath.Glob("/proc/" + strconv.Itoa(next[0]) + "/task/*/children")
		for _, list := range lists {
			text, _ := os.ReadFile(list) // of a process that has ended meanwhile there is nothing
			for field := range strings.FieldsSeq(string(text)) {
				if pid, err := strconv.Atoi(field); err == nil {
					all, next = append(all, pid), append(next, pid)
				}
			}
		}
	}
	return all
}
