package sql

import (
	"context"
	"net"
	"strings"
	"testing"

	"fencepost/internal/redis/redistest"
	"fencepost/internal/sql/sqltest"
)

func TestKind(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"postgres://h/d": "postgres", "postgresql://h/d": "postgres", "POSTGRES://h/d": "postgres", "mysql://h/d": "mysql",
		"redis://h": "", "postgres": "", "embedded": "", "": "", "mariadb://h/d": "",
	} {
		if got := Kind(url); got != want {
			t.Errorf("%s: %q, want %q", url, got, want)
		}
	}
}

func TestCheckURL(t *testing.T) {
	t.Parallel()
	for _, good := range []string{
		"postgres://u:p@h/d", "postgresql://h:5432/d", "postgres://u@h1,h2:6432/d", "postgres://u@[::1]:5432/d", "postgres://u:p%23%2F@h/d",
		"postgres:///d?host=/run/postgresql", "postgres://u@/d?host=/run/postgresql&port=5433", "POSTGRES://u@h/d", "MySQL://u@h/d", "postgres://u:p@h/d?sslmode=verify-full&sslrootcert=/ca.pem&application_name=locks&connect_timeout=3",
		"postgres://u@h/d?prepared=true", "postgres://u:p:q@h/d", "postgres://u@h1,h2/d?target_session_attrs=primary",
		"mysql://u:p@h/d", "mysql://u:p@h:3306/d?tls=true&tls-ca=/ca.pem", "mysql://u:p@/d?socket=/run/mysqld/mysqld.sock",
	} {
		if err := CheckURL(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for bad, says := range map[string]string{
		"mariadb://u:hunter2@h/d":                   "write mysql://",
		"jdbc:mariadb://h/d?password=hunter2":       "write mysql://",
		"mysql+pymysql://u:hunter2@h/d":             "write mysql://",
		"jdbc:postgresql://h/d?password=hunter2":    "write postgres://",
		"postgresql+asyncpg://u:hunter2@h/d":        "write postgres://",
		"hunter2+x://h/d":                           "begins with postgres:// or mysql://",
		"postgres://u:hunter2@h/d?port=5433":        `the option "port"`,
		"postgres://u:hunter2@/d?host=/run&port=x":  "port that is not from 1 to 65535",
		"postgres://u:hunter2@:5433/d?host=/run":    "&port=",
		"postgres://u:hunter2@%2Frun:5433/d":        "&port=",
		"mysql://u:hunter2@h/d?port=3307":           `the option "port"`,
		"redis://h/d":                               "begins with postgres:// or mysql://",
		"postgres://u:hunter2@/d":                   "names no host",
		"postgres://u:hunter2@h":                    "does not say which one",
		"postgres://u:hunter2@h/":                   "does not say which one",
		"postgres://u:hunter2@h/a/b":                "slash in the name",
		"postgres://u:hunter2@h:port/d":             "port that is not from 1 to 65535",
		"postgres://u:hunter2@h:70000/d":            "port that is not from 1 to 65535",
		"postgres://u:hunter2@h:/d":                 "port that is not from 1 to 65535",
		"postgres://u:hunter2@h,,i/d":               "no host before a colon or a comma",
		"postgres://u:hunter2@::1/d":                "no host before a colon or a comma",
		"postgres://u:hunter2@[::1/d":               "brackets",
		"postgres://u:hunter2@h/d#x":                "%23",
		"postgres://u:hunter2#@h/d":                 "%23",
		"postgres://u:hunter2%zz@h/d":               "percent-encoded",
		"postgres://u:hunter2/@h/d":                 "port that is not",
		"postgres://u:1/hunter2?hunter2@h/d":        "an unknown option after",
		"postgres://u:hunter2@h/d?statment=5s":      `"statment"`,
		"postgres://u:hunter2@h/d?search_path=x":    `"search_path"`,
		"postgres://u@h/d?password=hunter2":         `the option "password"`,
		"postgres://u:hunter2@h/d?prepared=yes":     "prepared of the URL of the database takes one of true, false",
		"postgres://u:hunter2@h/d?sslmode=on":       "sslmode",
		"postgres://u:hunter2@h/d?host=/run":        "leave one of them out",
		"postgres:///d?host=hunter":                 "begins with a slash",
		"postgres://h/d?sslmode=require&sslmode=a":  "sslmode",
		"mysql://u:hunter2@h,i/d":                   "takes one",
		"mysql://u:hunter2@h/d?prepared=true":       `"prepared"`,
		"mysql://h/d":                               "names no user",
		"mysql://u:hunter2@h/d?tls-ca=/ca.pem":      "needs tls=true",
		"mysql://u:hunter2@h/d?tls=maybe":           "tls of the URL of the database takes one of true,",
		"mysql://u:hunter2@h/d?socket=/run/s.sock":  "leave one of them out",
		"postgres://h/d?target_session_attrs=any;x": "percent-encoded",
	} {
		err := CheckURL(bad)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", bad, err, says)
		}
		if err != nil && strings.Contains(err.Error(), "hunter") {
			t.Errorf("%s: the password is in %v", bad, err)
		}
	}
}

func TestLocation(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"postgres://u:hunter2@h:1,i/d?sslpassword=hunter2": "postgres://h:1,i/d",
		"mysql://u:hunter2@h/d":                            "mysql://h/d",
		"postgres:///d?host=/run/postgresql":               "postgres:///run/postgresql:/d",
		"postgres:///d?host=/run&port=5433":                "postgres:///run:5433/d",
		"postgres://u:hunter2?@h/d":                        "postgres://",
	} {
		if got := Location(url); got != want {
			t.Errorf("%s: %s, want %s", url, got, want)
		}
	}
}

// A server is found by its scheme in capitals, and by a socket whose port is not the usual one.
func TestURLsThatOpen(t *testing.T) {
	t.Parallel()
	for _, server := range []*sqltest.Server{sqltest.Postgres(t), sqltest.MariaDB(t)} {
		url := initialised(t, server.Database(t))
		scheme, rest, _ := strings.Cut(url, "://")
		all := []string{strings.ToUpper(scheme) + "://" + rest}
		if Kind(url) == kindPostgres {
			var directory string
			if err := server.DB(t, url).QueryRowContext(t.Context(), "show unix_socket_directories").Scan(&directory); err != nil {
				t.Fatal(err)
			}
			all = append(all, "postgres://postgres@/"+databaseOf(t, url)+"?host="+directory+"&port="+itoa(server.Port()))
		}
		for _, url := range all {
			if err := CheckURL(url); err != nil {
				t.Error(err)
			}
			openGateway(t, Options{URL: url})
		}
	}
}

// What a gateway can't be opened with is said at once, in a sentence without a password.
func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	server := sqltest.Postgres(t)
	empty, url := server.Database(t), server.Database(t)
	if _, err := Init(t.Context(), url, Rights{}); err != nil {
		t.Fatal(err)
	}
	newer := server.Database(t)
	if _, err := Init(t.Context(), newer, Rights{}); err != nil {
		t.Fatal(err)
	}
	if _, err := server.DB(t, newer).Exec("update fencepost.store set version = version + 1"); err != nil {
		t.Fatal(err)
	}
	user := server.User(t, "hunter2")
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	for _, c := range []struct{ what, url, says string }{
		{"no tables", empty, "run gateway store init"},
		{"newer tables", newer, "newer version of the gateway"},
		{"a wrong password", sqltest.As(url, user, "hunter3"), "password authentication failed for user"},
		{"no rights", sqltest.As(url, user, "hunter2"), "permission denied for schema fencepost (SQLSTATE 42501)); give them to the user by gateway store init -role"},
		{"no such database", strings.Replace(empty, "/db", "/nothing", 1), "does not exist"},
		{"nobody there", "postgres://u:hunter2@" + redistest.FreeAddr(t) + "/d", "can't be reached"},
		{"an address that does not answer", "postgres://u:hunter2@" + silent.Addr().String() + "/d", "can't be reached"},
		{"no certificates of an authority", "postgres://u:hunter2@127.0.0.1/d?sslmode=verify-ca&sslrootcert=/nothing.pem", "/nothing.pem"},
		{"an unknown option", url + "&work_mem=1", "unknown option"},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			s, err := Open(context.Background(), Options{URL: c.url})
			if err == nil {
				s.Close()
				t.Fatal("it is open")
			}
			if !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "hunter") {
				t.Errorf("%v; want %q", err, c.says)
			}
		})
	}
}
