package sqltest

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

var postgres = &kind{
	name: "PostgreSQL", user: "postgres", scheme: "postgres", admin: "postgres",
	program: func() (string, error) { return postgresProgram("postgres") },
	args: func(s *Server) []string {
		return []string{"-D", filepath.Join(s.dir, "data"), "-k", s.dir, "-h", "127.0.0.1", "-p", strconv.Itoa(s.port)}
	},
	stop: syscall.SIGINT, end: syscall.SIGQUIT,
}

// postgresSettings are those of every server. A password is needed by the users that User
// makes, and by no others.
const (
	postgresSettings = `
max_connections = 200
shared_buffers = 32MB
dynamic_shared_memory_type = mmap # a kill leaves nothing in /dev/shm
log_line_prefix = '%m [%p] %u@%d '
`
	postgresAccess = `
local all all trust
host all +` + passwordRole + ` 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
host replication all 127.0.0.1/32 trust
`
	passwordRole = "with_password"
)

// StartPostgres starts a PostgreSQL that ends with the test. Settings are those of
// postgresql.conf, such as "fsync = off"; ALTER SYSTEM overrides them. Up to 200 clients may
// connect.
func StartPostgres(t testing.TB, settings ...string) *Server {
	t.Helper()
	return endWithTest(t)(startPostgres(settings...))
}

func startPostgres(settings ...string) (*Server, error) {
	return postgres.start(&Server{}, func(s *Server) error {
		initdb, err := postgresProgram("initdb")
		if err != nil {
			return err
		}
		// Without a sync of what it writes, which outlasts a kill all the same.
		if err := s.run(initdb, "-D", filepath.Join(s.dir, "data"), "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"); err != nil {
			return err
		}
		return errors.Join(
			s.add("data/postgresql.conf", postgresSettings+strings.Join(settings, "\n")+"\n"),
			s.write("data/pg_hba.conf", postgresAccess))
	})
}

// postgresProgram returns the path of one of PostgreSQL's programs: beside the postgres of
// PATH, or of the newest version where Debian has it.
func postgresProgram(name string) (string, error) {
	found, err := exec.LookPath("postgres")
	if err == nil {
		found, err = filepath.EvalSymlinks(found)
	} else {
		found, err = newest("/usr/lib/postgresql/*/bin/postgres")
	}
	if err != nil {
		return "", missing("postgres", "postgresql")
	}
	return filepath.Join(filepath.Dir(found), name), nil
}

// newest returns the path with the largest number for the asterisk of a pattern.
func newest(pattern string) (string, error) {
	before, after, _ := strings.Cut(pattern, "*")
	found, _ := filepath.Glob(pattern)
	best, highest := "", -1.0
	for _, path := range found {
		version, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimPrefix(path, before), after), 64)
		if err == nil && version > highest {
			best, highest = path, version
		}
	}
	if best == "" {
		return "", exec.ErrNotFound
	}
	return best, nil
}

func missing(program, debian string) error {
	return errors.New(program + " is not installed; on Debian: apt-get install " + debian)
}
