package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"
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

// proc is where the kernel shows processes.
var proc = "/proc"

// childrenOf returns the ids of a process's children, and whether they can be seen at all; of one that has ended there are none.
func childrenOf(pid int) (all []int, seen bool) {
	lists, _ := filepath.Glob(proc + "/" + strconv.Itoa(pid) + "/task/*/children")
	for _, list := range lists {
		text, _ := os.ReadFile(list)
		for field := range strings.FieldsSeq(string(text)) {
			if pid, err := strconv.Atoi(field); err == nil {
				all = append(all, pid)
			}
		}
	}
	return all, len(lists) > 0
}

// prSetDumpable is PR_SET_DUMPABLE of <linux/prctl.h>.
const prSetDumpable = 4

// endBy ends this process by a signal, without a core dump: the command has left its own. With typed the others of this
// process's group get it as well. It returns where that does not end it, as where it is process 1.
func endBy(s syscall.Signal, typed bool) {
	runtime.LockOSThread()
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetDumpable, 0, 0)
	var byDefault [8]uint64 // a sigaction of SIG_DFL. signal.Reset would have Go write its stacks at SIGQUIT
	_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&byDefault)), 0, 8, 0, 0)
	if typed {
		_ = syscall.Kill(0, s)
	}
	_, _, _ = syscall.RawSyscall(syscall.SYS_TGKILL, uintptr(os.Getpid()), uintptr(syscall.Gettid()), uintptr(s))
}

// seen is what can be seen of a process.
type seen struct {
	name  string
	state byte   // as ps shows it; 0: it is gone, or hidden
	uid   string // whose it is
}

// lookAt looks at a process.
func lookAt(pid int) (s seen) {
	text, _ := os.ReadFile(proc + "/" + strconv.Itoa(pid) + "/status")
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
