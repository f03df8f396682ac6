package sqltest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Kill ends all processes of the server at one moment, as a crash does. A server that does not
// run stays as it is.
func (s *Server) Kill(t testing.TB) {
	t.Helper()
	s.own(t)
	s.check(t, s.kill())
}

// Stop ends the server in order.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	s.own(t)
	s.check(t, s.end(s.kind.stop))
}

// Restart ends the server in order, if it still runs, and starts it again with the same files
// at the same port.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.own(t)
	s.check(t, s.end(s.kind.stop))
	s.check(t, s.launch())
}

// Pause has all processes of the server stand still (SIGSTOP): connections stay open, and
// nothing is answered. It returns when they do.
func (s *Server) Pause(t testing.TB) {
	t.Helper()
	s.own(t)
	_, err := s.freeze()
	s.check(t, err)
}

// Continue undoes Pause.
func (s *Server) Continue(t testing.TB) {
	t.Helper()
	s.own(t)
	s.check(t, s.thaw())
}

// Processes returns the processes of the server, the first one first; none if it does not run.
func (s *Server) Processes() []int {
	if !s.running() {
		return nil
	}
	first := s.process.Process.Pid
	return append([]int{first}, children(first)...)
}

// own ends the test if the server is not its own.
func (s *Server) own(t testing.TB) {
	t.Helper()
	if s.shared {
		t.Fatalf("other tests need this %s: a test that does such a thing is to start its own", s.kind.name)
	}
}

// check ends the test if something failed that was asked of the server.
func (s *Server) check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s at port %d: %v", s.kind.name, s.port, err)
	}
}

func (s *Server) running() bool {
	if s.process == nil {
		return false
	}
	select {
	case <-s.exited:
		return false
	default:
		return true
	}
}

func (s *Server) kill() error {
	if !s.running() {
		return nil
	}
	pids, err := s.freeze()
	for _, pid := range pids {
		err = errors.Join(err, signal(pid, syscall.SIGKILL))
	}
	err = errors.Join(err, s.gone())
	for _, pid := range pids {
		err = errors.Join(err, await(pid, "Z")) // its parent is gone; who takes its place may not look after it
	}
	return err
}

// end sends the first process a signal that ends it and its children.
func (s *Server) end(how syscall.Signal) error {
	if !s.running() {
		return nil
	}
	if err := errors.Join(s.thaw(), signal(s.process.Process.Pid, how)); err != nil {
		return err
	}
	if err := s.gone(); err != nil {
		return errors.Join(err, s.kill())
	}
	return nil
}

func (s *Server) gone() error {
	select {
	case <-s.exited:
		return nil
	case <-time.After(readyTimeout):
		return fmt.Errorf("process %d does not end", s.process.Process.Pid)
	}
}

// close ends the server at once and removes its files, and what a killed PostgreSQL has left.
func (s *Server) close() error {
	err := s.end(s.kind.end)
	return errors.Join(err, s.freeSharedMemory(), os.RemoveAll(s.dir))
}

// freeSharedMemory gives back the segment by which PostgreSQL knows that a process of it still
// runs, and which outlasts a kill.
func (s *Server) freeSharedMemory() error {
	text, err := os.ReadFile(filepath.Join(s.dir, "data", "postmaster.pid"))
	if err != nil {
		return nil // it has ended in order, or is none
	}
	lines := strings.Split(string(text), "\n")
	if len(lines) < 7 {
		return nil
	}
	var key, id int
	if _, err := fmt.Sscan(lines[6], &key, &id); err != nil {
		return nil // it had not come as far
	}
	if _, err := unix.SysvShmCtl(id, unix.IPC_RMID, nil); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}

// freeze has the processes stand still, and returns them, the first one first.
func (s *Server) freeze() (pids []int, err error) {
	if !s.running() {
		return nil, errors.New("it does not run")
	}
	first := s.process.Process.Pid
	if err := errors.Join(signal(first, syscall.SIGSTOP), await(first, "TZ")); err != nil {
		return nil, err
	}
	pids = append(pids, first) // from here on it has no new children
	pids = append(pids, children(first)...)
	for _, pid := range pids[1:] {
		err = errors.Join(err, signal(pid, syscall.SIGSTOP))
	}
	for _, pid := range pids[1:] {
		err = errors.Join(err, await(pid, "TZ"))
	}
	return pids, err
}

func (s *Server) thaw() error {
	if !s.running() {
		return errors.New("it does not run")
	}
	first := s.process.Process.Pid
	var err error
	for _, pid := range append(children(first), first) {
		err = errors.Join(err, signal(pid, syscall.SIGCONT))
	}
	return err
}

// signal sends a signal to a process, which may be gone.
func signal(pid int, sig syscall.Signal) error {
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

// children returns those of a process that run.
func children(pid int) (pids []int) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		text, _ := os.ReadFile(list)
		for _, field := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(field); err == nil {
				pids = append(pids, child)
			}
		}
	}
	slices.Sort(pids)
	return pids
}

// await waits until a process is in one of some states, by the letters of proc(5), or gone.
func await(pid int, states string) error {
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for deadline := time.After(readyTimeout); ; {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return nil
		}
		_, rest, _ := bytes.Cut(stat[bytes.LastIndexByte(stat, ')'):], []byte(" "))
		if len(rest) > 0 && strings.IndexByte(states, rest[0]) >= 0 {
			return nil
		}
		select {
		case <-look.C:
		case <-deadline:
			return fmt.Errorf("process %d is none of %s, but %q", pid, states, rest)
		}
	}
}
