package sql

import (
	"database/sql/driver"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"fencepost/internal/sql/sqltest"
)

// What the driver is told of a URL.
func TestMySQLConfig(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"mysql://me:a%2Fb@db.example/locks":                         "me a/b locks tcp db.example:3306 ",
		"MySQL://me@[::1]:3307/locks?tls=skip-verify":               "me  locks tcp [::1]:3307 skip-verify",
		"mysql://me:secret@/locks?socket=/run/mysqld.sock&tls=true": "me secret locks unix /run/mysqld.sock true",
	} {
		m, err := newMySQL(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if c := m.config; strings.Join([]string{c.User, c.Passwd, c.DBName, c.Net, c.Addr, c.TLSConfig}, " ") != want {
			t.Errorf("%s: %+v", text, c)
		}
	}
	if _, err := newMySQL("mysql://me:secret@h/locks?tls=true&tls-ca=/nowhere/ca.pem"); err == nil || !strings.Contains(err.Error(), "tls-ca: open") {
		t.Errorf("a file that is not there: %v", err)
	}
}

func TestMySQLRefusals(t *testing.T) {
	t.Parallel()
	server := sqltest.MariaDB(t)
	place := newPlace(t, server)
	const secret = "s3cret"
	user := server.User(t, secret)
	unused, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	unused.Close()
	reader := server.User(t, secret)
	if _, err := place.db.Exec("grant select on store to " + reader + "@'127.0.0.1'; grant select on log to " + reader + "@'127.0.0.1'"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ what, url, want string }{
		{"a wrong password", sqltest.As(place.url, user, secret+"not"), "refuses the user or the password"},
		{"no rights", sqltest.As(place.url, user, secret), "lacks rights that the gateway needs"},
		{"no database", place.url + "not", "no database of that name"},
		{"no tables", server.Database(t), "gateway store init"},
		{"no server", "mysql://me:s3cret@" + unused.Addr().String() + "/locks", "can't be reached"},
		{"no TLS", place.url + "?tls=true", "TLS"},
	} {
		s, err := Open(t.Context(), Options{URL: c.url})
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v, want %q in it, and no password", c.what, err, c.want)
		}
	}
	c := connect(t, sqltest.As(place.url, reader, secret))
	if _, err = c.begin(t.Context(), 0, nil); err == nil { // MySQL refuses this already
		err = c.commit(t.Context(), &entry{logged: logged{seq: 1, id: newID([]byte("entry")), data: []byte("entry")}})
	}
	if err == nil || !strings.Contains(err.Error(), "lacks rights") || errors.Is(err, errUndecided) {
		t.Errorf("a turn of who may only read: %v", err)
	}
}

func TestMySQLVersions(t *testing.T) {
	for version, want := range map[string]string{
		"10.11.19-MariaDB-0+deb12u1": "", "11.4.2-MariaDB": "", "10.6.0-MariaDB": "", "8.0.36-28": "", "9.1.0": "",
		"10.5.27-MariaDB": "MariaDB 10.5.27", "5.7.44-log": "MySQL 5.7.44",
	} {
		k := kindOf(version)
		if err := k.refusal(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", version, err)
		}
	}
}

// Whatever a server's defaults are.
func TestMySQLDefaultsOfTheServer(t *testing.T) {
	t.Parallel()
	server := sqltest.StartMariaDB(t, "--sql-mode=ORACLE,NO_BACKSLASH_ESCAPES", "--autocommit=0", "--transaction-isolation=SERIALIZABLE",
		"--completion-type=RELEASE", "--skip-character-set-client-handshake", "--character-set-server=latin1", "--max-allowed-packet=4M", "--log-bin",
		"--innodb-flush-log-at-trx-commit=2", "--default-time-zone=+05:00", "--default-storage-engine=MyISAM", "--innodb-doublewrite=0", "--server-id=17")
	place := &place{url: server.Database(t)}
	place.db = server.DB(t, place.url+"?autocommit=1&charset=utf8mb4")
	if _, err := Init(t.Context(), place.url, Rights{}); err != nil {
		t.Fatal(err)
	}
	if _, err := Init(t.Context(), place.url, Rights{}); err != nil {
		t.Fatalf("again: %v", err)
	}
	c, other := connect(t, place.url), connect(t, place.url)
	row := someRow(1, `ü'\"`+"\\'?")
	commitTurn(t, c, 1, nil, nil, row)
	commitTurn(t, other, 2, nil, nil)
	wantLeases(t, place, row)
	for i := range uint64(2) {
		b, err := c.read(t.Context(), 0)
		if err != nil || len(b.entries) != int(2+i) || b.server != "mariadb/17" || time.Since(b.now.Time()).Abs() > time.Minute {
			t.Fatalf("%+v, %v", b, err)
		}
		commitTurn(t, other, 3+i, nil, nil)
	}
	findings, err := c.examine(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var at []string
	for _, f := range findings {
		if !f.OK {
			at = append(at, f.Check)
		}
		if f.Detail == "" || f.OK != (f.Remedy == "") {
			t.Errorf("%+v", f)
		}
	}
	if want := []string{"persistence", "pages", "binlog"}; !slices.Equal(at, want) {
		t.Errorf("in danger are %v, want %v", at, want)
	}

	if _, err := place.db.Exec("set global read_only = 1"); err != nil {
		t.Fatal(err)
	}
	if _, err := connect(t, place.url).begin(t.Context(), 0, nil); !errors.Is(err, errReadOnly) {
		t.Errorf("a turn where only is read: %v", err)
	}
	if _, err := connect(t, place.url).read(t.Context(), 0); !errors.Is(err, errReadOnly) {
		t.Errorf("a look where only is read: %v", err)
	}
	if _, err := place.db.Exec("set global read_only = 0, global max_allowed_packet = 1048576"); err != nil {
		t.Fatal(err)
	}
	db, err := newDatabase(place.url)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := db.connect(t.Context()); err == nil || !strings.Contains(err.Error(), "max_allowed_packet") {
		if err == nil {
			c.close()
		}
		t.Errorf("where messages may have 1 MiB: %v", err)
	}
}

// A message about the log has the server read no more of it than it brings, however much there is.
func TestTheLogIsReadInParts(t *testing.T) {
	t.Parallel()
	server := sqltest.MariaDB(t)
	url := initialised(t, server.Database(t))
	if _, err := server.DB(t, url).Exec("insert into log select seq, 1, 'x' from seq_1_to_1000"); err != nil {
		t.Fatal(err)
	}
	c := connect(t, url).(*mysqlConn)
	read := func() (rows int64) {
		if err := c.ask(t.Context(), "select variable_value from information_schema.session_status where variable_name = 'HANDLER_READ_NEXT'", nil, func(row []driver.Value) error {
			rows = number(row[0])
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return rows
	}
	for what, ask := range map[string]func() (*begun, error){
		"a look": func() (*begun, error) { return c.read(t.Context(), 1) },
		"a turn": func() (*begun, error) { return c.begin(t.Context(), 1, nil) },
	} {
		before := read()
		b, err := ask()
		if err != nil || !b.more {
			t.Fatalf("%s: %+v, %v", what, b, err)
		}
		if rows := read() - before; rows < mostRead/2 || rows > 2*mostRead {
			t.Errorf("%s has %d entries be read", what, rows)
		}
		if what == "a turn" {
			if err := c.abandon(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}
