package storage_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"fencepost/internal/redis/redistest"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"
)

// readyTimeout bounds how long a server may take to start or to end.
const readyTimeout = 2 * time.Minute

// server is a database server that all tests of the process share; each has a database
// of its own in it.
type server struct {
	once   sync.Once
	err    error
	start  func(s *server) error
	driver string
	dsn    func(s *server, database string) string
	admin  string // database that is there from the start

	dir    string
	port   int
	cmd    *exec.Cmd
	exited chan struct{}
}

var postgres = &server{
	driver: "pgx", admin: "postgres", start: startPostgres,
	dsn: func(s *server, database string) string {
		return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", s.port, database)
	},
}

var mariadb = &server{
	driver: "mysql", admin: "mysql", start: startMariaDB,
	dsn: func(s *server, database string) string {
		return fmt.Sprintf("root@tcp(127.0.0.1:%d)/%s?clientFoundRows=true&multiStatements=true", s.port, database)
	},
}

// database makes a new database and returns its data source name. The server is started
// when it is first needed.
func (s *server) database(t testing.TB, name string) string {
	t.Helper()
	s.once.Do(func() { s.err = s.launch() })
	if s.err != nil {
		t.Fatal(s.err)
	}
	db, err := sql.Open(s.driver, s.dsn(s, s.admin))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	return s.dsn(s, name)
}

func (s *server) launch() (err error) {
	if s.dir, err = os.MkdirTemp("", "storage"); err != nil {
		return err
	}
	if s.port, err = redistest.FreePort(); err != nil {
		return err
	}
	s.exited = make(chan struct{})
	if err := s.start(s); err != nil {
		return err
	}
	go func() {
		_ = s.cmd.Wait()
		close(s.exited)
	}()
	db, err := sql.Open(s.driver, s.dsn(s, s.admin))
	if err != nil {
		return err
	}
	defer db.Close()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for deadline := time.Now().Add(readyTimeout); ; {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		err := db.PingContext(ctx)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-s.exited:
			log, _ := os.ReadFile(filepath.Join(s.dir, "log"))
			return fmt.Errorf("it has ended:\n%s", log)
		case <-look.C:
		}
		if time.Now().After(deadline) {
			return err
		}
	}
}

// stop ends the server, if it was started.
func (s *server) stop() (err error) {
	if s.cmd != nil && s.cmd.Process != nil {
		err = s.cmd.Process.Signal(syscall.SIGQUIT) // at once
		if s.driver == "mysql" {
			err = s.cmd.Process.Kill() // it has no such thing
		}
		select {
		case <-s.exited:
		case <-time.After(readyTimeout):
			err = errors.Join(errors.New("it does not end"), s.cmd.Process.Kill())
		}
	}
	if s.dir != "" {
		err = errors.Join(err, os.RemoveAll(s.dir))
	}
	return err
}

// asUser runs a command as another user where this one is root, which these servers
// refuse to run as, and gives it the directory.
func (s *server) asUser(name, program string, args ...string) (*exec.Cmd, error) {
	if program == "" {
		return nil, errors.New("it is not installed; make deps installs it on Debian")
	}
	cmd := exec.Command(program, args...)
	cmd.Dir = s.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // should this process be killed
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = log, log
	if os.Getuid() != 0 {
		return cmd, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return nil, err
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.Atoi(u.Gid)
	if err != nil {
		return nil, err
	}
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return cmd, os.Chown(s.dir, uid, gid)
}

func (s *server) run(user, program string, args ...string) error {
	cmd, err := s.asUser(user, program, args...)
	if err != nil {
		return err
	}
	if err := cmd.Run(); err != nil {
		log, _ := os.ReadFile(filepath.Join(s.dir, "log"))
		return fmt.Errorf("%s: %w\n%s", program, err, log)
	}
	return nil
}

func startPostgres(s *server) (err error) {
	data := filepath.Join(s.dir, "data")
	if err := s.run("postgres", find("initdb"), "-D", data, "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"); err != nil {
		return err
	}
	if s.cmd, err = s.asUser("postgres", find("postgres"), "-D", data, "-k", s.dir, "-h", "127.0.0.1", "-p", strconv.Itoa(s.port), "-F"); err != nil {
		return err
	}
	return s.cmd.Start()
}

func startMariaDB(s *server) (err error) {
	data := filepath.Join(s.dir, "data")
	if err := s.run("mysql", find("mariadb-install-db"), "--no-defaults", "--datadir="+data, "--tmpdir="+data, "--auth-root-authentication-method=normal", "--skip-test-db"); err != nil {
		return err
	}
	if s.cmd, err = s.asUser("mysql", find("mariadbd"), "--no-defaults", "--datadir="+data, "--tmpdir="+data, "--bind-address=127.0.0.1", "--port="+strconv.Itoa(s.port),
		"--socket="+filepath.Join(s.dir, "socket"), "--innodb-flush-log-at-trx-commit=0", "--skip-log-bin"); err != nil {
		return err
	}
	return s.cmd.Start()
}

// find returns the path of a server's program, which Debian keeps out of PATH; "" if
// there is none.
func find(program string) string {
	if path, err := exec.LookPath(program); err == nil {
		return path
	}
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin/", "/usr/sbin/", "/usr/local/sbin/"} {
		if found, _ := filepath.Glob(pattern + program); len(found) > 0 {
			return found[len(found)-1]
		}
	}
	return ""
}

// databaseName makes a test's name one of a database.
func databaseName(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToLower(name))
}
