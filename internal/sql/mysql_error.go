package sql

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	gomysql "github.com/go-sql-driver/mysql"

	"fencepost/internal/fencing"
)

// certain reports whether a commit has not happened, and will not. The server says so where it refuses a statement before the last
// one, and of the last one itself where it has chosen the transaction to end a deadlock, as a cluster does that certifies commits.
func certain(err error, committing bool) bool {
	var refusal *gomysql.MySQLError
	return errors.As(err, &refusal) && (!committing || refusal.Number == 1213)
}

// mysqlCauses are what a server says by numbers.
var mysqlCauses = map[uint16]cause{
	3: full, 1021: full, 1026: full, 1114: full, 1040: crowded, 1203: crowded, 1226: crowded, 1045: password, 1698: password, 1130: foreign, 1049: nowhere, 1146: noSchema,
	1044: noRights, 1142: noRights, 1143: noRights, 1227: noRights, 1370: noRights, 1290: readOnly, 1792: readOnly, 1836: readOnly, 1874: readOnly, 3989: readOnly,
	1153: packets, 1665: binlog, 3159: needsTLS,
}

// mysqlLost are the numbers by which a server says that it has ended a transaction or a connection, and not why it does not do what it
// was asked: a deadlock, a shutdown, KILL, and MySQL's of a connection that was idle for too long.
var mysqlLost = map[uint16]bool{1213: true, 1317: true, 1927: true, 3169: true, 4031: true}

// mysqlError returns an error in words for whoever runs the gateway; nil for nil. None has a password: a server never repeats one.
func mysqlError(err error) error {
	var refusal *gomysql.MySQLError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refusal) && refusal.Number == 1053:
		return &fencing.Outage{Detail: starting, Err: fmt.Errorf("the database has ended the connection: %w", err)}
	case errors.As(err, &refusal) && mysqlLost[refusal.Number]:
		return fmt.Errorf("the database has ended a transaction, or the connection: %w", err)
	case errors.As(err, &refusal) && refusal.Number == 1205:
		return lockedBy("")
	case errors.As(err, &refusal):
		return mysqlSays(refusal)
	case errors.Is(err, driver.ErrSkip):
		return refused{packets.fault(errors.New("an entry is larger than a message to the database may be")), ofContent}
	}
	if network, is := errors.AsType[*net.OpError](err); is && network.Op == "dial" {
		return away(fmt.Errorf("the database can't be reached: %w", err))
	}
	if errors.Is(err, gomysql.ErrInvalidConn) || errors.Is(err, driver.ErrBadConn) {
		return &fencing.Outage{Detail: closes, Err: fmt.Errorf("the connection to the database failed: %w", err)}
	}
	return away(fmt.Errorf("the connection to the database failed: %w", err))
}

// mysqlSays returns what the server has said in words. What it says of a transaction, and may do when it is asked again, is refused; what is about
// the server is not.
func mysqlSays(said *gomysql.MySQLError) error {
	err := fmt.Errorf("the database refuses: %w", said)
	known, is := mysqlCauses[said.Number]
	if said.Number == 1030 && strings.Contains(said.Message, "28") { // got error 28 from a storage engine: no space left
		known, is = full, true
	}
	if said.Number == 1146 && !strings.Contains(said.Message, ".store'") { // which is asked for first
		known, is = partial, slices.ContainsFunc(mysqlOwn, func(table string) bool { return strings.Contains(said.Message, "."+table+"'") }) // or else a trigger lacks another one
	}
	switch {
	case is && (known == noSchema || known == partial):
		return unclear{known.fault(err)}
	case is && known == readOnly:
		return known.fault(err)
	case is && known == noRights:
		err = unclear{known.fault(err)}
	case is:
		err = known.fault(err)
	default:
		err = unclear{err}
	}
	return refused{err, mysqlRefusals[said.Number]}
}
