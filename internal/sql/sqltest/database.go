package sqltest

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
)

// made counts the databases and users of this process.
var made atomic.Int64

// Database makes a new and empty database, which no other test of the process has, and returns
// its URL: postgres://postgres@127.0.0.1:PORT/NAME?sslmode=disable or
// mysql://root@127.0.0.1:PORT/NAME. The user needs no password and may do anything. If the test
// fails, what the server logs from then on is shown.
func (s *Server) Database(t testing.TB) string {
	t.Helper()
	if s.behind != nil {
		return s.through(s.behind.Database(t))
	}
	if s.shared {
		s.showLog(t)
	}
	name := fmt.Sprintf("db%d", made.Add(1))
	s.check(t, s.exec("CREATE DATABASE "+name))
	return s.url(name)
}

// DB returns connections to the database of a URL, which are closed with the test. In MariaDB
// one call may have several statements, and times are of type time.Time.
func (s *Server) DB(t testing.TB, rawURL string) *sql.DB {
	t.Helper()
	db, err := open(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// User makes a user who has to give a password, over TCP, and has no rights yet. It returns its
// name, which no other test of the process has.
func (s *Server) User(t testing.TB, password string) (name string) {
	t.Helper()
	name = fmt.Sprintf("user%d", made.Add(1))
	password = "'" + strings.ReplaceAll(password, "'", "''") + "'"
	statements := []string{
		"DO $$ BEGIN PERFORM pg_advisory_xact_lock(1); IF to_regrole('" + passwordRole + "') IS NULL THEN CREATE ROLE " + passwordRole + "; END IF; END $$",
		"CREATE ROLE " + name + " LOGIN PASSWORD " + password + " IN ROLE " + passwordRole,
	}
	if s.kind == mariadb {
		statements = []string{"CREATE USER " + name + "@'127.0.0.1' IDENTIFIED BY " + strings.ReplaceAll(password, `\`, `\\`)}
	}
	for _, statement := range statements {
		s.check(t, s.exec(statement))
	}
	return name
}

// NoSync has the server wait for no disk from then on: the machine's crash would lose what was
// committed, its own does not.
func (s *Server) NoSync(t testing.TB) {
	t.Helper()
	if s.kind == mariadb {
		s.check(t, s.exec("SET GLOBAL innodb_flush_log_at_trx_commit = 2"))
		return
	}
	s.check(t, s.set("fsync", "off"))
}

// As returns a URL with another user, and a password if that is not "".
func As(rawURL, name, password string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		panic(err)
	}
	u.User = url.User(name)
	if password != "" {
		u.User = url.UserPassword(name, password)
	}
	return u.String()
}

// DSN returns a URL of Database as the driver of database/sql that it is for takes it. What
// follows the question mark in a URL of MariaDB is taken over.
func DSN(rawURL string) (driver, dsn string) {
	u, err := url.Parse(rawURL)
	if err != nil {
		panic(err)
	}
	if u.Scheme != mariadb.scheme {
		return "pgx", rawURL
	}
	config := mysql.NewConfig()
	config.User, config.Net, config.Addr, config.DBName = u.User.Username(), "tcp", u.Host, strings.TrimPrefix(u.Path, "/")
	config.Passwd, _ = u.User.Password()
	dsn = config.FormatDSN()
	if u.RawQuery != "" {
		before, _, _ := strings.Cut(dsn, "?")
		dsn = before + "?" + u.RawQuery
	}
	return "mysql", dsn
}

func open(rawURL string) (*sql.DB, error) {
	driver, dsn := DSN(rawURL)
	if driver != "mysql" {
		return sql.Open(driver, dsn)
	}
	config, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, err
	}
	config.MultiStatements, config.ParseTime, config.Logger = true, true, &mysql.NopLogger{}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector), nil
}

// url returns that of a database of the server.
func (s *Server) url(database string) string {
	if s.kind == mariadb {
		return fmt.Sprintf("mysql://root@127.0.0.1:%d/%s", s.port, database)
	}
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", s.port, database)
}

// ask asks the server's own database a question with one answer; exec has no answer.
func (s *Server) ask(answer any, question string) error {
	return s.asAdmin(func(ctx context.Context, db *sql.DB) error {
		return db.QueryRowContext(ctx, question).Scan(answer)
	})
}

func (s *Server) exec(statement string) error {
	return s.asAdmin(func(ctx context.Context, db *sql.DB) error {
		_, err := db.ExecContext(ctx, statement)
		return err
	})
}

func (s *Server) ping() error {
	return s.asAdmin(func(ctx context.Context, db *sql.DB) error { return db.PingContext(ctx) })
}

func (s *Server) asAdmin(do func(ctx context.Context, db *sql.DB) error) error {
	db, err := open(s.url(s.kind.admin))
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	return do(ctx, db)
}
