package storage_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"fencepost/internal/sql/sqltest"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"
)

// readyTimeout bounds how long a server may take to start or to end.
const readyTimeout = 2 * time.Minute

// server is a database server that all tests of the process share; each has a database
// of its own in it.
type server struct {
	driver  string
	get     func(testing.TB) *sqltest.Server
	options string // of its URLs
}

var (
	postgres = &server{driver: "pgx", get: sqltest.Postgres}
	mariadb  = &server{driver: "mysql", get: sqltest.MariaDB, options: "?clientFoundRows=true&multiStatements=true"}
)

// database makes a new database and returns its data source name. No test here ends a server, so
// that none waits for a disk.
func (s *server) database(t testing.TB) string {
	t.Helper()
	one := s.get(t)
	one.NoSync(t)
	_, dsn := sqltest.DSN(one.Database(t) + s.options)
	return dsn
}

// find returns the path of a server's program, which Debian keeps out of PATH; "" if
// there is none.
func find(program string) string {
	if path, err := exec.LookPath(program); err == nil {
		return path
	}
	for _, dir := range []string{"/usr/sbin/", "/usr/local/sbin/"} {
		if _, err := os.Stat(dir + program); err == nil {
			return dir + program
		}
	}
	return ""
}

// plainName makes a test's name one of lower-case letters, digits and _.
func plainName(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToLower(name))
}
