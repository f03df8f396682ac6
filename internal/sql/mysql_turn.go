package sql

import (
	"bytes"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	gomysql "github.com/go-sql-driver/mysql"

	"fencepost/internal/fencing"
)

// serverNow is what is asked of the server in each message of a turn or a look: its clock, in microseconds since 1970, which server
// it is, whether it can be written to, and whether turns are held off. It is a statement of its own behind the one that waits for the lock, for a statement's
// time is when it began.
//
// MySQL has server_uuid, which is another one on each server, also after a promotion. MariaDB has nothing like it: server_id differs
// only between servers that replicate from each other, so a gateway that has just started does not see that a backup
// was restored on another server, unless its server_id is set to another number. Those that run see it by the log.
const serverNow = `select timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)),
/*M! concat('mariadb/', @@global.server_id) */ /*!80000 @@global.server_uuid */, @@global.read_only, ` + heldBy + `;`

var errReadOnly = readOnly.fault(errors.New("it is read-only (read_only), like a replica"))

func (b *begun) readServer(row []driver.Value) error {
	b.now, b.server = fencing.Instant(number(row[0])), text(row[1])
	if isOn(text(row[2])) {
		return errReadOnly
	}
	return readHold(row[3])
}

// logFrom asks for the entries from one on, and leaves out what is in the first one, and in those that are too much.
func logFrom(after uint64, bytes int) string {
	return fmt.Sprintf("set @size = 0; select seq, id, if(seq - 1 = %d or seq > %[1]d and (@size := @size + length(entry)) <= %d, entry, null) from log where seq >= %[1]d order by seq limit %[3]d",
		after, bytes, mostRead)
}

func (b *begun) readEntry(after uint64) func(row []driver.Value) error {
	return func(row []driver.Value) error {
		e := logged{seq: uint64(number(row[0])), id: number(row[1])}
		if data, is := row[2].([]byte); is {
			e.data = bytes.Clone(data)
		}
		b.add(e, after)
		return nil
	}
}

func (c *mysqlConn) begin(ctx context.Context, after uint64, tried []fencing.Token) (*begun, error) {
	b := &begun{}
	found := errNoSchema
	var rows triedRows
	statements := "start transaction;" + c.bound + "select id from store where id = 1 for update;" + lockTurn
	readers := []func([]driver.Value) error{func([]driver.Value) error {
		found = nil
		return nil
	}}
	if len(tried) > 0 {
		statements += rows.statements(tried)
		readers = append(readers, rows.readFree, rows.readThere)
	}
	err := c.ask(ctx, statements+serverNow+logFrom(after, turnBytes), nil, append(readers, b.readServer, b.readEntry(after))...)
	if err == nil {
		err = found
	}
	if err != nil {
		return nil, err
	}
	b.held = rows.held()
	return b, nil
}

// triedRows are rows of leases that a turn locks, unless a transaction guards them.
type triedRows struct {
	free  map[fencing.Token]bool
	there []fencing.Token
}

// statements lock what is free. Which rows are there at all a read without locks tells.
func (t *triedRows) statements(tried []fencing.Token) string {
	these := with("lease", tried)
	return "select l.token " + these + " for update skip locked; select l.token " + these + ";"
}

func (t *triedRows) readFree(row []driver.Value) error {
	if t.free == nil {
		t.free = map[fencing.Token]bool{}
	}
	t.free[fencing.Token(number(row[0]))] = true
	return nil
}

func (t *triedRows) readThere(row []driver.Value) error {
	t.there = append(t.there, fencing.Token(number(row[0])))
	return nil
}

func (t *triedRows) held() []fencing.Token {
	return slices.DeleteFunc(t.there, func(token fencing.Token) bool { return t.free[token] })
}

func (c *mysqlConn) try(ctx context.Context, tried []fencing.Token) ([]fencing.Token, error) {
	var rows triedRows
	err := c.ask(ctx, strings.TrimSuffix(rows.statements(tried), ";"), nil, rows.readFree, rows.readThere)
	return rows.held(), err
}

// commit writes all and commits by one message. Behind an error the server carries out nothing more of that, so what comes before the
// last statement has no commit.
func (c *mysqlConn) commit(ctx context.Context, e *entry) error {
	committing := false
	s := changes(e)
	err := c.ask(ctx, c.unbound+s.String()+releaseTurn+"select 1; commit", s.args, func([]driver.Value) error {
		committing = true
		return nil
	})
	if err == nil || certain(err, committing) {
		return err
	}
	return fmt.Errorf("%w: %w", errUndecided, err)
}

// script is statements with a semicolon after each, and what is to be put into them.
type script struct {
	strings.Builder
	args []any
}

func (s *script) add(format string, args ...any) { fmt.Fprintf(s, format, args...) }

// changes are the statements that write an entry and the rows that it has changed.
//
// A row of lease is not updated, as a transaction that guards the lease would hold that up: when a lease ends is in renewal. What people see of the lease otherwise
// is changed if nobody guards it, or else remains what it was. The end of a lease remains as well where a transaction at SERIALIZABLE
// has locked that, which lasts until it is over: such a transaction must not hold the gateways up.
func changes(e *entry) *script {
	s := &script{}
	s.add("insert into log values (%d, %d, ?);", int64(e.seq), e.id)
	s.args = append(s.args, e.data)
	if len(e.ended) > 0 {
		s.add("delete l %s; delete l %s;", with("lease", e.ended), with("renewal", e.ended))
	}
	if len(e.changed) == 0 {
		return s
	}
	var renewed []fencing.Token
	var granted []*row
	ends := ""
	for i := range e.changed {
		if r := &e.changed[i]; r.renewed {
			renewed = append(renewed, r.Token)
			ends += fmt.Sprintf(" when %d then %s", r.Token, instant(r.ExpiresAt))
		} else {
			granted = append(granted, r)
		}
	}
	for i, r := range granted {
		if i == 0 {
			s.add("insert into lease (token, name, lease, slot, mode, owner, acquired_at) values ")
		}
		s.add("%s(%d, ?, ?, %s, ?, ?, %s)", comma(i), r.Token, slotText(r), instant(r.AcquiredAt))
		s.args = append(s.args, string(r.name), string(r.Lease), string(r.Mode), r.Owner)
	}
	for i, r := range granted {
		if i == 0 {
			s.add("; insert into renewal values ")
		}
		s.add("%s(%d, %s)", comma(i), r.Token, instant(r.ExpiresAt))
	}
	if len(granted) > 0 {
		s.add(" on duplicate key update expires_at = values(expires_at);")
	}
	if len(renewed) > 0 {
		s.add("set @free = null; select json_arrayagg(l.token) into @free %s for update skip locked;", with("renewal", renewed))
		s.add("update json_table(@free, '$[*]' columns (token bigint path '$')) as these straight_join renewal as l force index (primary) on l.token = these.token"+
			" set l.expires_at = case l.token%s end;", ends)
	}
	for i := range e.changed {
		if r := &e.changed[i]; r.relabelled {
			s.add("set @free = null; select token into @free from lease force index (primary) where token = %d for update skip locked;", r.Token)
			s.add("update lease force index (primary) set slot = %s, mode = ?, owner = ? where token = @free;", slotText(r))
			s.args = append(s.args, string(r.Mode), r.Owner)
		}
	}
	return s
}

func comma(i int) string {
	if i == 0 {
		return ""
	}
	return ", "
}

func slotText(r *row) string {
	if slot := r.slot(); slot != nil {
		return strconv.Itoa(int(*slot))
	}
	return "null"
}

func instant(i fencing.Instant) string {
	return i.Time().UTC().Format("'2006-01-02 15:04:05.000000'")
}

// with returns the part of a statement that finds the rows of tokens in a table, as l. It does so by the key, one by one, whatever the
// server thinks of the table: if that is small, or was, it would read all of it for a list, also where it is told not to, and
// lock what it reads, or wait for who has.
func with(table string, tokens []fencing.Token) string {
	if len(tokens) == 1 {
		return fmt.Sprintf("from %s as l where l.token = %d", table, tokens[0])
	}
	list := make([]string, len(tokens))
	for i, t := range tokens {
		list[i] = strconv.FormatInt(int64(t), 10)
	}
	return fmt.Sprintf("from json_table('[%s]', '$[*]' columns (token bigint path '$')) as these straight_join %s as l force index (primary) on l.token = these.token", strings.Join(list, ","), table)
}

func (c *mysqlConn) abandon(ctx context.Context) error {
	return c.ask(ctx, c.unbound+releaseTurn+"rollback", nil)
}

func (c *mysqlConn) read(ctx context.Context, after uint64) (*begun, error) {
	b := &begun{}
	if err := c.ask(ctx, serverNow+logFrom(after, readBytes), nil, b.readServer, b.readEntry(after)); err != nil {
		return nil, err
	}
	return b, nil
}

func (c *mysqlConn) tries(ctx context.Context, size int, like row) error {
	s := changes(probe(size, like))
	err := c.ask(ctx, "start transaction read write;"+s.String()+"rollback", s.args)
	if said, is := errors.AsType[*gomysql.MySQLError](err); is && said.Number == 1062 {
		return refused{fmt.Errorf("%w: %w", errNoSecond, err), ofContent}
	}
	return err
}
