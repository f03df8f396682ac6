package sqltest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

var mariadb = &kind{
	name: "MariaDB", user: "mysql", scheme: "mysql", admin: "mysql",
	program: func() (string, error) { return find("mariadbd", "mariadb-server") },
	args: func(s *Server) []string {
		return append(mariadbFiles(s),
			"--bind-address=127.0.0.1", "--port="+strconv.Itoa(s.port), "--skip-name-resolve",
			"--max-connections=1000", "--innodb-buffer-pool-size=64M")
	},
	stop: syscall.SIGTERM, end: syscall.SIGKILL, // it has nothing between them
}

func mariadbFiles(s *Server) []string {
	return []string{
		"--no-defaults", "--datadir=" + filepath.Join(s.dir, "data"), "--tmpdir=" + s.dir, "--socket=" + filepath.Join(s.dir, "socket"),
		"--innodb-log-file-size=32M",
	}
}

// StartMariaDB starts a MariaDB that ends with the test. Arguments are those of mariadbd, such
// as "--sync-binlog=1". Up to 1,000 clients may connect: a session that sleeps is there for
// 5 s after its client has gone.
func StartMariaDB(t testing.TB, args ...string) *Server {
	t.Helper()
	return endWithTest(t)(startMariaDB(args...))
}

func startMariaDB(args ...string) (*Server, error) {
	return mariadb.start(&Server{args: args}, func(s *Server) error {
		install, err := find("mariadb-install-db", "mariadb-server")
		if err != nil {
			return err
		}
		return s.run(install, append(mariadbFiles(s), "--auth-root-authentication-method=normal", "--skip-test-db")...)
	})
}

// find returns the path of a program that a Debian package has, which may be where only root's
// PATH leads.
func find(program, debian string) (string, error) {
	if path, err := exec.LookPath(program); err == nil {
		return path, nil
	}
	path := "/usr/sbin/" + program
	if _, err := os.Stat(path); err != nil {
		return "", missing(program, debian)
	}
	return path, nil
}
