// Package sqltest starts real database servers for tests and benchmarks: PostgreSQL, with
// standbys and PgBouncer, and MariaDB. They listen on loopback, at ports that were free, and
// keep their files in directories of their own, which go with them. Where the test is root's
// they run as the users of the Debian packages, for they refuse to run as root. It is for Linux.
//
// What fails ends the test (testing.TB.Fatal), so that the functions are to be called from the
// test's goroutine. They need nothing else of a test than redistest.Launch has for programs.
package sqltest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"fencepost/internal/redis/redistest"
)

// readyTimeout bounds how long a server may take to start, to end, or to do what a function
// here asks of it.
const readyTimeout = 2 * time.Minute

// Server is a server with its processes and files.
type Server struct {
	kind   *kind
	dir    string
	port   int
	args   []string // of the program
	shared bool     // by all tests of the process

	behind   *Server  // the server that it is a pooler of, or nil
	settings []string // of a pooler

	process *exec.Cmd
	exited  chan struct{} // closed when process has ended
}

// kind is what a server is of.
type kind struct {
	name   string
	user   string // that it runs as where the test is root's
	scheme string // of its URLs
	admin  string // the user and the database of its URLs that are there from the start

	program func() (path string, err error)
	args    func(s *Server) []string // those that each start needs
	prepare func(s *Server) error    // what it needs before each start, or nil
	stop    syscall.Signal           // it ends in order
	end     syscall.Signal           // it ends at once
}

// start starts a server in a new directory, once fill has filled it.
func (k *kind) start(s *Server, fill func(s *Server) error) (_ *Server, err error) {
	s.kind = k
	if s.dir, err = os.MkdirTemp("", "sql"); err != nil { // short: a socket's path has at most 107 bytes
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%s: %w\n%s", k.name, err, s.logFrom(0)), s.close())
		}
	}()
	if err := s.giveAway(s.dir); err != nil {
		return nil, err
	}
	if err := fill(s); err != nil {
		return nil, err
	}
	for range 3 { // another process may take the free port first
		if s.port, err = redistest.FreePort(); err != nil {
			return nil, err
		}
		if err = s.launch(); err == nil {
			return s, nil
		}
	}
	return nil, err
}

// endWithTest ends a server with the test, if it was started, and shows its log if that failed.
func endWithTest(t testing.TB) func(*Server, error) *Server {
	return func(s *Server, err error) *Server {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		s.showLog(t)
		t.Cleanup(func() {
			if err := s.close(); err != nil {
				t.Error(err)
			}
		})
		return s
	}
}

// launch starts the process and waits until it answers.
func (s *Server) launch() error {
	program, err := s.kind.program()
	if err != nil {
		return err
	}
	if s.kind.prepare != nil {
		if err := s.kind.prepare(s); err != nil {
			return err
		}
	}
	process, log, err := s.command(program, append(s.kind.args(s), s.args...)...)
	if err != nil {
		return err
	}
	defer log.Close()
	// Should this process be killed. At once, but PostgreSQL still gives its shared memory back.
	process.SysProcAttr.Pdeathsig = s.kind.end
	if err := process.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	s.process, s.exited = process, exited
	go func() {
		_ = process.Wait()
		close(exited)
	}()
	if err := s.wait("it answers", s.ping); err != nil {
		return errors.Join(err, s.end(s.kind.end))
	}
	return nil
}

// run runs a program to its end, as the server's user.
func (s *Server) run(program string, args ...string) error {
	cmd, log, err := s.command(program, args...)
	if err != nil {
		return err
	}
	defer log.Close()
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	return nil
}

// command returns one that runs as the server's user and writes to its log.
func (s *Server) command(program string, args ...string) (cmd *exec.Cmd, log *os.File, err error) {
	cmd = exec.Command(program, args...)
	cmd.Dir, cmd.SysProcAttr = s.dir, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Getuid() == 0 {
		uid, gid, err := s.ids()
		if err != nil {
			return nil, nil, err
		}
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	if log, err = os.OpenFile(s.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		return nil, nil, err
	}
	cmd.Stdout, cmd.Stderr = log, log
	return cmd, log, nil
}

// ids returns those of the server's user.
func (s *Server) ids() (uid, gid int, err error) {
	u, err := user.Lookup(s.kind.user)
	if err != nil {
		return 0, 0, err
	}
	uid, uidErr := strconv.Atoi(u.Uid)
	gid, gidErr := strconv.Atoi(u.Gid)
	return uid, gid, errors.Join(uidErr, gidErr)
}

// giveAway makes a file the server's user's.
func (s *Server) giveAway(path string) error {
	if os.Getuid() != 0 {
		return nil
	}
	uid, gid, err := s.ids()
	if err != nil {
		return err
	}
	return os.Chown(path, uid, gid)
}

// write writes a file of the server's.
func (s *Server) write(name, text string) error {
	path := filepath.Join(s.dir, name)
	return errors.Join(os.WriteFile(path, []byte(text), 0o600), s.giveAway(path))
}

// add adds to a file of the server's.
func (s *Server) add(name, text string) error {
	file, err := os.OpenFile(filepath.Join(s.dir, name), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(text)
	return errors.Join(err, file.Close())
}

// wait waits until a condition is true, which it asks again and again, for as long as the
// process runs.
func (s *Server) wait(what string, condition func() error) error {
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for deadline := time.After(readyTimeout); ; {
		err := condition()
		if err == nil {
			return nil
		}
		select {
		case <-look.C:
		case <-s.exited:
			return fmt.Errorf("waiting until %s: the process has ended", what)
		case <-deadline:
			return fmt.Errorf("waiting until %s: %w", what, err)
		}
	}
}

func (s *Server) log() string { return filepath.Join(s.dir, "log") }

// Log returns the last 16 kB of what the server has said.
func (s *Server) Log() string { return s.logFrom(0) }

// logFrom returns the log from a place on, or the last 16 kB of that.
func (s *Server) logFrom(from int64) string {
	const most = 16 << 10
	file, err := os.Open(s.log())
	if err != nil {
		return ""
	}
	defer file.Close()
	if size := s.logSize(); size > from+most {
		from = size - most
	}
	text, _ := io.ReadAll(io.NewSectionReader(file, from, most))
	return string(text)
}

func (s *Server) logSize() int64 {
	info, err := os.Stat(s.log())
	if err != nil {
		return 0
	}
	return info.Size()
}

// showLog shows what the server logs from now on if the test fails.
func (s *Server) showLog(t testing.TB) {
	from := s.logSize()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log of %s at port %d:\n%s", s.kind.name, s.port, s.logFrom(from))
		}
	})
}

// Port returns the port that it listens on.
func (s *Server) Port() int { return s.port }
