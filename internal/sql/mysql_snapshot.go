package sql

import (
	"context"
	"database/sql/driver"
	"fmt"
	"time"

	"fencepost/internal/fencing"
)

func (c *mysqlConn) newest(ctx context.Context) (seq uint64, chunks int, err error) {
	err = c.ask(ctx, "select seq, chunk from snapshot where no = 0 order by seq desc limit 1", nil, func(row []driver.Value) (err error) {
		head, _ := row[1].([]byte)
		seq = uint64(number(row[0]))
		chunks, err = readHead(head)
		return err
	})
	return seq, chunks, err
}

func (c *mysqlConn) chunk(ctx context.Context, seq uint64, no int) (chunk []byte, err error) {
	err = c.ask(ctx, fmt.Sprintf("select chunk from snapshot where seq = %d and no = %d", seq, no), nil, func(row []driver.Value) error {
		data, _ := row[0].([]byte)
		chunk = append([]byte{}, data...)
		return nil
	})
	return chunk, err
}

func (c *mysqlConn) claim(ctx context.Context, gateway fencing.Gateway) (claimed bool, err error) {
	statements := fmt.Sprintf("update snapshotter set gateway = ?, until = utc_timestamp(6) + interval %d second where id = 1 and (until < utc_timestamp(6) or gateway = ?); select gateway = ? from snapshotter",
		int(claimFor/time.Second))
	err = c.ask(ctx, statements, []any{string(gateway), string(gateway), string(gateway)}, func(row []driver.Value) error {
		claimed = number(row[0]) == 1
		return nil
	})
	return claimed, err
}

func (c *mysqlConn) put(ctx context.Context, seq uint64, no int, chunk []byte) error {
	err := c.ask(ctx, fmt.Sprintf("delete from snapshot where seq = %d and no = %d and %s and not exists (select 1 from (select 1 from snapshot where seq = %[1]d and no = 0) as whole)", seq, no, noHold), nil)
	if err != nil {
		return err
	}
	return c.written(ctx, fmt.Sprintf("insert into snapshot select %d, %d, ? from dual where %s and not exists (select 1 from snapshot where seq = %[1]d and no = 0)", seq, no, noHold), chunk)
}

// written carries out a statement that is to write a row.
func (c *mysqlConn) written(ctx context.Context, statement string, args ...any) error {
	rows := int64(0)
	err := c.ask(ctx, statement+"; select row_count()", args, func(row []driver.Value) error {
		rows = number(row[0])
		return nil
	})
	if err == nil && rows < 1 {
		return errOvertaken
	}
	return err
}

func (c *mysqlConn) finish(ctx context.Context, gateway fencing.Gateway, of mark, chunks int) error {
	err := c.written(ctx, fmt.Sprintf("insert into snapshot select %d, 0, ? from dual where exists (select 1 from log where seq = %[1]d and id = %d) and exists (select 1 from snapshotter where gateway = ?) and %s", of.seq, of.id, noHold),
		head(chunks), string(gateway))
	if err != nil {
		return err
	}
	return c.release(ctx, gateway)
}

func (c *mysqlConn) release(ctx context.Context, gateway fencing.Gateway) error {
	return c.ask(ctx, "update snapshotter set until = '1970-01-01' where gateway = ?", []any{string(gateway)})
}

func (c *mysqlConn) tidy(ctx context.Context) error {
	return c.ask(ctx, "delete from snapshot where seq <> (select coalesce(max(seq), 0) from (select seq from snapshot where no = 0) as whole) and "+noHold, nil)
}

func (c *mysqlConn) cut(ctx context.Context, upTo, snapshot uint64, limit int) (more bool, err error) {
	const while = " and exists (select 1 from (select 1 from snapshot where seq >= %d and no = 0) as whole) and " + noHold
	err = c.ask(ctx, fmt.Sprintf("delete from log where seq <= %d"+while+" order by seq limit %d; select row_count()", upTo, snapshot, limit), nil, func(row []driver.Value) error {
		more = number(row[0]) > 0
		return nil
	})
	if err != nil || more {
		return true, err
	}
	return false, c.ask(ctx, fmt.Sprintf("delete from snapshot where seq < %d"+while, snapshot, snapshot), nil)
}
