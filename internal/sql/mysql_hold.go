package sql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"
)

// Turns are held off by a user lock of the server, whose name has the database in it. A turn looks at it when it has the store's row;
// gateway store hold takes it, and then that row for a moment, so that the turns under way are over.
//
// holdName is the lock's name: it may have 64 characters.
const holdName = "left(concat('fencepost hold ', database()), 64)"

// heldBy is the connection that holds turns off, or null. It is not waited for.
const heldBy = "is_used_lock(" + holdName + ")"

// noHold is true in a statement that no restore has got in the way of: one that has its table keeps a restore, which needs the table
// for itself, from beginning.
const noHold = "is_free_lock(" + holdName + ")"

// readHold returns held if turns are held off.
func readHold(connection driver.Value) error {
	if connection == nil {
		return nil
	}
	return held("connection " + text(connection))
}

func (c *mysqlConn) checkHold(ctx context.Context) error {
	return c.ask(ctx, "select "+heldBy, nil, func(row []driver.Value) error { return readHold(row[0]) })
}

type mysqlHold struct{ *mysqlConn }

// hold implements database. The user has to be one who may lock the store's row, as a gateway's may.
func (m *mysqlServer) hold(ctx context.Context, _ string) (holding, error) {
	c, err := m.open(ctx)
	if err != nil {
		return nil, err
	}
	h := mysqlHold{c}
	ctx, cancel := context.WithTimeout(ctx, 2*holdWait+holdAnswer)
	defer cancel()
	if err := h.lock(ctx); err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

func (h mysqlHold) lock(ctx context.Context) error {
	wait := int(holdWait / time.Second)
	has, there, readOnly := false, false, false
	err := h.mysqlConn.ask(ctx, fmt.Sprintf(`set session wait_timeout = %d, innodb_lock_wait_timeout = %d, lock_wait_timeout = %[2]d;
select get_lock(%[3]s, %[2]d), @@global.read_only;
select count(*) from information_schema.tables where table_schema = database() and table_name = 'store'`, int(holdIdle/time.Second), wait, holdName), nil,
		func(row []driver.Value) error {
			has, readOnly = number(row[0]) == 1, isOn(text(row[1]))
			return nil
		},
		func(row []driver.Value) error {
			there = number(row[0]) > 0
			return nil
		})
	switch {
	case err != nil:
		return err
	case readOnly:
		return errReadOnly
	case !has:
		return errHoldWait
	case !there:
		return nil
	}
	err = h.mysqlConn.ask(ctx, "start transaction; select id from store where id = 1 for update; rollback", nil, func([]driver.Value) error { return nil })
	if errors.Is(err, errLocked) {
		return errHoldWait
	}
	return err
}

func (h mysqlHold) ask(ctx context.Context) error {
	held := false
	err := h.mysqlConn.ask(ctx, "select "+heldBy+" <=> connection_id()", nil, func(row []driver.Value) error {
		held = number(row[0]) == 1
		return nil
	})
	if err == nil && !held {
		err = errors.New("the connection has lost its lock: a proxy may have put another one in its place")
	}
	return err
}

// close waits for the server to let go.
func (h mysqlHold) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = h.mysqlConn.ask(ctx, "do release_lock("+holdName+")", nil)
	h.mysqlConn.close()
}
