package sqltest

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

var pgbouncer = &kind{
	name: "PgBouncer", user: "postgres", scheme: "postgres", admin: "postgres",
	program: func() (string, error) { return find("pgbouncer", "pgbouncer") },
	args:    func(s *Server) []string { return []string{filepath.Join(s.dir, "pgbouncer.ini")} },
	prepare: (*Server).configure,
	stop:    syscall.SIGINT, end: syscall.SIGKILL,
}

// StartPgBouncer starts a PgBouncer before a PostgreSQL, which ends with the test. It pools
// transactions: up to 500 clients share 4 connections for each database. Settings are those of
// the section [pgbouncer], such as "default_pool_size = 1". Its Database makes one in the server
// behind it and returns the URL through it; as other users than postgres nobody gets through.
func StartPgBouncer(t testing.TB, server *Server, settings ...string) *Server {
	t.Helper()
	return endWithTest(t)(pgbouncer.start(&Server{behind: server, settings: settings}, func(s *Server) error {
		return s.write("users", "\"postgres\" \"\"\n")
	}))
}

// configure writes the configuration, which has the port.
func (s *Server) configure() error {
	return s.write("pgbouncer.ini", fmt.Sprintf(`[databases]
* = host=127.0.0.1 port=%d
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = trust
auth_file = %s
admin_users = postgres
pool_mode = transaction
max_client_conn = 500
default_pool_size = 4
%s
`, s.behind.port, s.port, filepath.Join(s.dir, "users"), strings.Join(s.settings, "\n")))
}

// through returns a URL of the server behind, through the pooler.
func (s *Server) through(rawURL string) string {
	return strings.Replace(rawURL, fmt.Sprintf(":%d/", s.behind.port), fmt.Sprintf(":%d/", s.port), 1)
}
