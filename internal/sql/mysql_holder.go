package sql

import (
	"context"
	"database/sql/driver"
	"fmt"
	"time"
)

// A turn says by a lock of the session that it has the store, for a server tells nobody but an administrator who has a row locked. It is
// given back before the commit, so that the next turn gets it. What has locked the row and does not say so is a person's transaction.
const (
	turnLock    = "concat('fencepost ', md5(database()))"
	lockTurn    = "do get_lock(" + turnLock + ", 1);" // a session that was ended gives back the row first
	releaseTurn = "do release_lock(" + turnLock + ");"
)

// holders implements connection. Whether a session has stood still in one statement for long, waiting for its client, the server
// says: a session that makes one turn after the other looks the same otherwise.
func (c *mysqlConn) holders(ctx context.Context) (all []holder, err error) {
	err = c.ask(ctx, fmt.Sprintf(`select id, time >= %d and (command = 'Sleep' or state in ('Writing to net', 'Reading from net', 'Sending to client', 'Receiving from client')),
		concat('user ', user, ', from ', host, ', connection ', id, ', ', command, ', ', ifnull(state, ''), ' for ', time, ' s')
		from information_schema.processlist where id = is_used_lock(%s)`, int(stall/time.Second), turnLock), nil,
		func(row []driver.Value) error {
			all = append(all, holder{id: number(row[0]), ours: number(row[1]) == 1, who: text(row[2])})
			return nil
		})
	return all, err
}

// end implements connection.
func (c *mysqlConn) end(ctx context.Context, h holder) (bool, error) {
	err := c.ask(ctx, fmt.Sprintf("kill connection %d", h.id), nil)
	return err == nil, err
}
