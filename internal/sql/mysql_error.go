package sql

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"net"

	gomysql "github.com/go-sql-driver/mysql"
)

// certain reports whether a commit has not happened, and will not. The server says so where it refuses a statement before the last
// one, and of the last one itself where it has chosen the transaction to end a deadlock, as a cluster does that certifies commits.
func certain(err error, committing bool) bool {
	var refusal *gomysql.MySQLError
	return errors.As(err, &refusal) && (!committing || refusal.Number == 1213)
}

// mysqlWords has what a server says by numbers in words for whoever runs the gateway, and whether what it says itself is to follow.
var mysqlWords = map[uint16]string{
	1040: "the database has no room for another connection (max_connections)",
	1044: "the user has no rights to the database",
	1045: "the database refuses the user or the password",
	1049: "the database server has no database of the name in the URL",
	1130: "the database takes no connections from this machine",
	1142: "the user lacks a right in the database",
	1143: "the user lacks a right in the database",
	1153: "a message is larger than the database takes (max_allowed_packet)",
	1203: "the database has no room for another connection of this user (max_user_connections)",
	1205: "something else than this gateway has locked the store in the database for too long: another gateway's turn, or a transaction of a person",
	1226: "the user has used up what it may use of the database",
	1227: "the user lacks a right in the database",
	1370: "the user lacks a right in the database",
	1665: "the database writes a binary log by statements, in which the store can't write: set binlog_format to ROW or MIXED",
	1698: "the database refuses the user or the password",
	3159: "the database refuses connections without TLS: add tls=true to its URL",
}

// mysqlLost are the numbers by which a server says that it has ended a transaction or a connection, and not why it does not do what it
// was asked: a deadlock, a shutdown, KILL, and MySQL's of a connection that was idle for too long.
var mysqlLost = map[uint16]bool{1053: true, 1213: true, 1317: true, 1927: true, 3169: true, 4031: true}

// mysqlError returns an error in words for whoever runs the gateway; nil for nil. None has a password: a server never repeats one.
func mysqlError(err error) error {
	var refusal *gomysql.MySQLError
	var network *net.OpError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refusal) && refusal.Number == 1146:
		return fmt.Errorf("%w (%w)", errNoSchema, err)
	case errors.As(err, &refusal) && mysqlLost[refusal.Number]:
		return fmt.Errorf("the database has ended a transaction, or the connection: %w", err)
	case errors.As(err, &refusal) && (refusal.Number == 1290 || refusal.Number == 1792 || refusal.Number == 1836):
		return fmt.Errorf("the database server does not accept writes; it may be a replica: %w", err)
	case errors.As(err, &refusal):
		if words := mysqlWords[refusal.Number]; words != "" {
			return refused{fmt.Errorf("%s: %w", words, err), mysqlRefusals[refusal.Number]}
		}
		return refused{fmt.Errorf("the database refuses: %w", err), mysqlRefusals[refusal.Number]}
	case errors.Is(err, driver.ErrSkip):
		return refused{errors.New("an entry is larger than a message to the database may be (max_allowed_packet)"), ofContent}
	case errors.As(err, &network) && network.Op == "dial":
		return fmt.Errorf("the database can't be reached: %w", err)
	}
	return fmt.Errorf("the connection to the database failed: %w", err)
}
