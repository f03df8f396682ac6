package sql

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"

	gomysql "github.com/go-sql-driver/mysql"
)

// mysqlServer is a MariaDB or a MySQL.
type mysqlServer struct {
	config *gomysql.Config
	waits  bool // for tests: a turn is bounded as it is on MySQL
}

// leastPacket is what a message may have at least: a chunk of a snapshot, or an entry, each byte of which may need two.
const leastPacket = 4 << 20

// newMySQL reads a URL, as CheckURL has it.
func newMySQL(address string) (*mysqlServer, error) {
	p, err := dissect(address)
	if err != nil {
		return nil, err
	}
	c := gomysql.NewConfig()
	c.User, c.Passwd, c.DBName, c.TLSConfig = p.user, p.password, p.database, p.options.Get("tls")
	host := &url.URL{Host: p.hosts}
	c.Net, c.Addr = "tcp", net.JoinHostPort(host.Hostname(), cmp.Or(host.Port(), "3306"))
	if p.hosts == "" {
		c.Net, c.Addr = "unix", p.options.Get("socket")
	}
	if file := p.options.Get("tls-ca"); file != "" {
		if c.TLS, err = trusting(file); err != nil {
			return nil, fmt.Errorf("the URL of the database is wrong: tls-ca: %w", err)
		}
		c.TLS.ServerName = host.Hostname()
	}
	c.MultiStatements, c.InterpolateParams, c.ClientFoundRows = true, true, true
	c.MaxAllowedPacket, c.Timeout, c.Logger = 0, connectTimeout, &gomysql.NopLogger{}
	return &mysqlServer{config: c}, nil
}

func trusting(file string) (*tls.Config, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate", file)
	}
	return &tls.Config{RootCAs: pool}, nil
}

func (m *mysqlServer) connect(ctx context.Context) (connection, error) {
	c, err := m.open(ctx)
	if err != nil {
		return nil, err
	}
	if err = c.checkHold(ctx); err == nil {
		err = c.checkSchema(ctx)
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// mysqlConn is a connection, and no pool of them: what is asked after it was lost fails.
type mysqlConn struct {
	conn driver.Conn
	kind mysqlKind

	// What bounds a turn in which the gateway stands still, where a transaction has no timeout: one of the connection, and back.
	bound, unbound string
}

// mysqlSession has a session be as it is needed: see session.go. No list is longer than group_concat_max_len, of which a 32-bit server
// takes at most this.
const mysqlSession = `set names utf8mb4;
set session transaction isolation level read committed, read write;
set session autocommit = 1, sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', completion_type = 'NO_CHAIN',
innodb_lock_wait_timeout = 3, lock_wait_timeout = 2, net_read_timeout = 2, net_write_timeout = 2, sql_safe_updates = 0, sql_select_limit = 18446744073709551615, sql_big_selects = 1,
unique_checks = 1, foreign_key_checks = 1, group_concat_max_len = 4294967295 /*M! , max_statement_time = 0 */ /*!80000 , max_execution_time = 0 */;
`

// open connects and has the session be as it is needed, whatever the server's defaults are. It takes connectTimeout at most.
func (m *mysqlServer) open(ctx context.Context) (*mysqlConn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	connector, err := gomysql.NewConnector(m.config)
	if err != nil {
		return nil, fmt.Errorf("the URL of the database is wrong: %w", err)
	}
	conn, err := connector.Connect(ctx)
	if err != nil {
		return nil, mysqlError(err)
	}
	c := &mysqlConn{conn: conn}
	var version string
	var packet int64
	several := ""
	err = c.ask(ctx, mysqlSession+`select version(), @@max_allowed_packet;
show global variables where variable_name in ('wsrep_on', 'group_replication_single_primary_mode')`, nil,
		func(row []driver.Value) error {
			version, packet = text(row[0]), number(row[1])
			return nil
		},
		func(row []driver.Value) error {
			if name, value := text(row[0]), text(row[1]); name == "wsrep_on" && isOn(value) || name != "wsrep_on" && !isOn(value) {
				several = name
			}
			return nil
		})
	if err == nil {
		c.kind = kindOf(version)
		err = c.kind.refusal()
	}
	switch {
	case err != nil:
	case several != "":
		err = fmt.Errorf("several servers of this database accept writes at once (%s), and a lock in one does not hold in the others: the store needs a database with only one server that accepts writes", several)
	case packet < leastPacket:
		err = fmt.Errorf("the database takes messages of at most %d bytes (max_allowed_packet); at least %d are needed", packet, leastPacket)
	case c.kind.maria && !m.waits:
		err = c.ask(ctx, fmt.Sprintf("set session idle_transaction_timeout = %d", int(stall.Seconds())), nil)
	default:
		c.bound, c.unbound = fmt.Sprintf("set session wait_timeout = %d;", int(stall.Seconds())), "set session wait_timeout = default;"
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// mysqlKind is what a server says of its version.
type mysqlKind struct {
	version      string
	maria        bool
	major, minor int
}

func kindOf(version string) mysqlKind {
	k := mysqlKind{version: version, maria: strings.Contains(version, "MariaDB")}
	_, _ = fmt.Sscanf(version, "%d.%d", &k.major, &k.minor)
	return k
}

// old reports whether a server lacks what a turn needs, such as SKIP LOCKED.
func (k *mysqlKind) old() bool {
	if k.maria {
		return k.major < 10 || k.major == 10 && k.minor < 6
	}
	return k.major < 8
}

func (k *mysqlKind) refusal() error {
	if k.old() {
		return fmt.Errorf("the database is %s; MariaDB 10.6 or later is needed, or MySQL 8.0 or later", k)
	}
	return nil
}

func (k *mysqlKind) String() string {
	number, _, _ := strings.Cut(k.version, "-")
	if k.maria {
		return "MariaDB " + number
	}
	return "MySQL " + number
}

// ask sends a message with statements, and has a function read the rows of each that has some. The row is the function's until it
// returns. After an error the connection is closed: of the statements some may have been carried out, and a transaction with half of
// them must not go on.
func (c *mysqlConn) ask(ctx context.Context, statements string, args []any, read ...func(row []driver.Value) error) error {
	err := c.tryAsk(ctx, statements, args, read)
	if err == nil {
		return nil
	}
	c.close()
	var answer unfit
	switch cause := ctx.Err(); {
	case cause != nil:
		return fmt.Errorf("the database has not answered: %w", cause)
	case errors.As(err, &answer):
		return answer.error
	}
	return mysqlError(err)
}

func (c *mysqlConn) tryAsk(ctx context.Context, statements string, args []any, read []func(row []driver.Value) error) error {
	values := make([]driver.NamedValue, len(args))
	for i, arg := range args {
		values[i] = driver.NamedValue{Ordinal: i + 1, Value: arg}
	}
	all, err := c.conn.(driver.QueryerContext).QueryContext(ctx, statements, values)
	if err != nil {
		return err
	}
	rows := all.(driver.RowsNextResultSet)
	for i := 0; err == nil && i < len(read); i++ {
		if i > 0 {
			if err = rows.NextResultSet(); errors.Is(err, io.EOF) {
				err = errors.New("the database has answered less than it was asked")
			}
		}
		if err == nil {
			err = readRows(rows, read[i])
		}
	}
	if err == nil {
		if err = rows.NextResultSet(); errors.Is(err, io.EOF) {
			err = nil
		} else if err == nil {
			err = errors.New("the database has answered more than it was asked")
		}
	}
	if closing := rows.Close(); err == nil {
		err = closing
	}
	return err
}

func readRows(rows driver.Rows, read func(row []driver.Value) error) error {
	row := make([]driver.Value, len(rows.Columns()))
	for {
		switch err := rows.Next(row); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := read(row); err != nil {
			return unfit{err}
		}
	}
}

// unfit is what is wrong with an answer.
type unfit struct{ error }

// text and number read a value, which the driver hands over as one or the other. What is not a number is 0.
func text(v driver.Value) string {
	if b, is := v.([]byte); is {
		return string(b)
	}
	return fmt.Sprint(v)
}

func number(v driver.Value) int64 {
	if n, is := v.(int64); is {
		return n
	}
	n, _ := strconv.ParseInt(text(v), 10, 64)
	return n
}

// isOn reads a setting.
func isOn(value string) bool {
	return value != "" && value != "0" && !strings.EqualFold(value, "OFF") && !strings.EqualFold(value, "NO")
}

func (c *mysqlConn) close() { _ = c.conn.Close() }

func (c *mysqlConn) checkSchema(ctx context.Context) error {
	is := errNoSchema
	err := c.ask(ctx, "select version, format from store where id = 1", nil, func(row []driver.Value) error {
		is = schemaIs{int(number(row[0])), int(number(row[1]))}.check()
		return nil
	})
	if err != nil {
		return err
	}
	return is
}
