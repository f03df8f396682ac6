// Package redistest starts real Redis processes for tests and benchmarks, and a
// small proxy that loses answers and cuts connections.
package redistest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// readyTimeout bounds how long a server may take to start or end.
const readyTimeout = 10 * time.Second

// Server is a redis-server process of our own, on loopback and a Unix socket.
type Server struct {
	dir     string
	port    int
	config  string // path of a configuration file, or ""
	args    []string
	clock   *Clock // nil: that of the machine
	process *exec.Cmd
	exited  chan struct{} // closed when process has ended
}

// Start starts a server that ends with the test. Arguments are those of
// redis-server, such as "--appendonly", "yes"; nothing is persisted by default. With
// those of an Authority it listens with TLS only.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return endWithTest(t)(Run(args...))
}

// endWithTest ends a server with the test, if it was started.
func endWithTest(t testing.TB) func(*Server, error) *Server {
	return func(s *Server, err error) *Server {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		return s
	}
}

// Run starts a server and waits until it answers. Close ends it.
func Run(args ...string) (*Server, error) { return run(&Server{args: args}) }

func run(s *Server) (*Server, error) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		return nil, errors.New("redis-server is not installed; on Debian: apt-get install redis-server")
	}
	dir, err := os.MkdirTemp("", "redis") // short: a socket's path has at most 107 bytes
	if err != nil {
		return nil, err
	}
	s.dir = dir
	if s.clock != nil {
		if err := s.clock.make(dir); err != nil {
			return nil, errors.Join(err, s.clock.close(), os.RemoveAll(dir))
		}
	}
	for range 5 { // another process may take the free port first
		if s.port, err = FreePort(); err != nil {
			break
		}
		if err = s.start(); err == nil {
			return s, nil
		}
	}
	return nil, errors.Join(err, s.clock.close(), os.RemoveAll(dir))
}

func (s *Server) start() error {
	args := append([]string{
		"--bind", "127.0.0.1", "--unixsocket", s.Socket(), "--dir", s.dir,
		"--save", "", "--appendonly", "no", "--daemonize", "no", "--logfile", filepath.Join(s.dir, "log"),
	}, append(s.listen(), s.args...)...)
	if s.config != "" {
		args = append([]string{s.config}, args...)
	}
	s.process = exec.Command("redis-server", args...)
	s.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // with its children, which write files
	if s.clock != nil {
		s.process.Env = append(os.Environ(), s.clock.env(s.dir)...)
	}
	if err := s.process.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	s.exited = exited
	go func(process *exec.Cmd) {
		_ = process.Wait()
		close(exited)
	}(s.process)

	client := s.Client()
	defer client.Close()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.NewTimer(readyTimeout)
	defer deadline.Stop()
	for {
		conn, err := net.Dial("unix", s.Socket())
		if err == nil { // the client would log that it can't dial
			conn.Close()
			err = client.Ping(context.Background()).Err()
		}
		if err == nil || strings.HasPrefix(err.Error(), "NOAUTH") {
			return nil
		}
		select {
		case <-tick.C:
		case <-exited:
			log, _ := os.ReadFile(filepath.Join(s.dir, "log"))
			return fmt.Errorf("redis-server ended at once: %s", log)
		case <-deadline.C:
			return errors.Join(fmt.Errorf("redis-server does not answer: %w", err), s.Kill())
		}
	}
}

// listen returns the arguments for the port: without TLS, or with TLS only.
func (s *Server) listen() []string {
	port := strconv.Itoa(s.port)
	if len(s.encryption()) > 0 {
		return []string{"--port", "0", "--tls-port", port}
	}
	return []string{"--port", port}
}

// URL returns the URL of the server over TCP, which names no password.
func (s *Server) URL() string { return s.scheme() + "://" + s.Addr() + "/0" }

// Addr returns host and port.
func (s *Server) Addr() string { return addr(s.port) }

// Socket returns the path of the Unix socket.
func (s *Server) Socket() string { return filepath.Join(s.dir, "s") }

// SocketURL returns the URL of the server over its Unix socket.
func (s *Server) SocketURL() string { return "unix://" + s.Socket() }

// Pid returns the process id.
func (s *Server) Pid() int { return s.process.Process.Pid }

// Client returns a new client of the server, over its Unix socket.
func (s *Server) Client() *goredis.Client {
	return goredis.NewClient(&goredis.Options{
		Network: "unix", Addr: s.Socket(), Password: s.password(), Protocol: 2, MaxRetries: -1, DialerRetries: 1, DisableIdentity: true, PoolSize: 2,
	})
}

// Kill ends the process at once, as kill -9 does.
func (s *Server) Kill() error { return s.end(syscall.SIGKILL) }

// Stop asks the process to end, and to persist if it is set up to.
func (s *Server) Stop() error { return s.end(syscall.SIGTERM) }

func (s *Server) end(signal syscall.Signal) error {
	if err := s.process.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	deadline := time.NewTimer(readyTimeout)
	defer deadline.Stop()
	select {
	case <-s.exited:
		return nil
	case <-deadline.C:
		return fmt.Errorf("redis-server %d does not end", s.Pid())
	}
}

// Restart ends the process, if it still runs, and starts it again at the same
// place with the same arguments. What was not persisted is gone.
func (s *Server) Restart() error {
	if err := s.Stop(); err != nil {
		return err
	}
	return s.start()
}

// Close ends the process and removes its files.
func (s *Server) Close() error {
	err := s.Kill()
	if killErr := syscall.Kill(-s.Pid(), syscall.SIGKILL); killErr != nil && !errors.Is(killErr, syscall.ESRCH) {
		err = errors.Join(err, killErr)
	}
	return errors.Join(err, s.clock.close(), os.RemoveAll(s.dir))
}
