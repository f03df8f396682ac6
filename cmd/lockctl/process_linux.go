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

// adopts tells whether all that the command leaves behind is found, wherever it went.
const adopts = true

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

// seen is what can be seen of a process.
type seen struct {
	name  string
	state byte   // as ps shows it; 0: it is gone, or hidden
	uid   string // whose it is
}

// lookAt looks at a process.
func lookAt(pid int) (s seen) {
	text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	for line := range strings.Lines(string(text)) {
		field, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":\t")
		switch field {
		case "Name":
			s.name = value
		case "State":
			s.state = value[0]
		case "Uid":
			s.uid, _, _ = strings.Cut(value, "\t")
		}
	}
	return s
}
