package sql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"time"

	gomysql "github.com/go-sql-driver/mysql"

	"fencepost/internal/fencing"
)

// These servers have no notifications. A gateway that listens sleeps in a statement that has its name, on a connection of its own, and one that has
// a hint for it ends that statement. A user sees the statements of its own connections, and may end them.
const (
	sleepFor     = 5 * time.Second // so long a statement sleeps; whether the connection is still there is known by its end
	interruption = 1317            // ER_QUERY_INTERRUPTED
)

var errDeaf = errors.New("a hint to itself did not arrive, as through a proxy")

// listener is what the server shows of the statement in which a gateway sleeps.
func listener(gateway fencing.Gateway) string {
	return fmt.Sprintf("select sleep(%d), 'fencepost %s'", int(sleepFor/time.Second), gateway)
}

// listen implements hinter. It hears hints once it has heard one of its own.
func (m *mysqlServer) listen(ctx context.Context, gateway fencing.Gateway, listening, heard func()) error {
	c, err := m.open(ctx)
	if err != nil {
		return err
	}
	defer c.close()
	own, arrived := context.WithCancel(ctx)
	var saying sync.WaitGroup
	defer saying.Wait()
	defer arrived()
	saying.Go(func() { m.wakeOwn(own, gateway) })
	for first := true; ; first = false {
		woken, err := c.sleep(ctx, gateway)
		switch {
		case err != nil:
			return err
		case first && !woken:
			return errDeaf
		case first:
			arrived()
			listening()
		case woken:
			heard()
		}
	}
}

// sleep reports whether it was woken.
func (c *mysqlConn) sleep(ctx context.Context, gateway fencing.Gateway) (woken bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, sleepFor+readTimeout)
	defer cancel()
	err = c.tryAsk(ctx, listener(gateway), nil, []func([]driver.Value) error{func(row []driver.Value) error {
		woken = number(row[0]) != 0
		return nil
	}})
	var says *gomysql.MySQLError
	if errors.As(err, &says) && says.Number == interruption {
		return true, nil
	}
	if err != nil {
		err = mysqlError(err)
	}
	return woken, err
}

// wakeOwn wakes a gateway as soon as it sleeps. Where a proxy is between it may never be seen to, so it is looked for more and more seldom.
func (m *mysqlServer) wakeOwn(ctx context.Context, gateway fencing.Gateway) {
	c, err := m.open(ctx)
	if err != nil {
		return
	}
	defer c.close()
	for pause := askEvery; ; pause = min(2*pause, maxPause) {
		if woken, err := c.wake(ctx, []fencing.Gateway{gateway}); err != nil || woken > 0 {
			return
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// speak implements hinter. It connects when there is something to say.
func (m *mysqlServer) speak(ctx context.Context, h *hints) (err error) {
	var c *mysqlConn
	defer func() {
		if c != nil {
			c.close()
		}
	}()
	for {
		select {
		case <-h.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
		to := h.take()
		if c != nil {
			if _, err := c.wake(ctx, to); err == nil {
				continue
			} // it may have ended long ago
		}
		if c, err = m.open(ctx); err != nil {
			return err
		}
		if _, err := c.wake(ctx, to); err != nil {
			return err
		}
	}
}

// wake ends the sleep of gateways that listen to this database, and returns of how many.
func (c *mysqlConn) wake(ctx context.Context, gateways []fencing.Gateway) (woken int, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	asleep := map[int64]string{}
	err = c.ask(ctx, "select id, info from information_schema.processlist where db = database() and info like 'select sleep(%), ''fencepost %'", nil,
		func(row []driver.Value) error {
			asleep[number(row[0])] = text(row[1])
			return nil
		})
	for id, statement := range asleep {
		for _, to := range gateways {
			if err == nil && (to == everyone || statement == listener(to)) {
				woken++
				err = c.interrupt(ctx, id)
				break
			}
		}
	}
	return woken, err
}

// interrupt ends the statement of a connection, if that is still there.
func (c *mysqlConn) interrupt(ctx context.Context, id int64) error {
	const gone = 1094 // ER_NO_SUCH_THREAD
	err := c.tryAsk(ctx, fmt.Sprintf("kill query %d", id), nil, nil)
	var says *gomysql.MySQLError
	if errors.As(err, &says) && says.Number == gone {
		return nil
	}
	if err != nil {
		c.close()
		return mysqlError(err)
	}
	return nil
}
