package sql

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Turns are held off by an advisory lock of the database, which gateway store hold has exclusively in a transaction (so that it works
// behind a pooler), and every transaction of a gateway shares that would otherwise lock more than one table. That is tried, not
// waited for. So no transaction of a gateway has a table that a restore waits for, and waits for one that the restore has.
//
// holdKey is the lock's key, as the functions have it: the first eight letters of fencepost.
const holdKey = "7378424937699110771"

// unlessHeld fails with SQLSTATE ZF503 while turns are held off, and else keeps them from being until the transaction ends.
const unlessHeld = "case when not pg_try_advisory_xact_lock_shared(" + holdKey + ") then fencepost.held() end"

const stateHeld = "ZF503"

type postgresHold struct{ conn *pgx.Conn }

// hold implements database. Any user who may connect may hold turns off.
func (p *postgres) hold(ctx context.Context, by string) (holding, error) {
	config := p.config.Copy()
	config.RuntimeParams["application_name"] = by
	connecting, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(connecting, config)
	if err != nil {
		return nil, postgresError(err)
	}
	h := postgresHold{conn}
	ctx, cancel = context.WithTimeout(ctx, holdWait+holdAnswer)
	defer cancel()
	if err := h.lock(ctx); err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

func (h postgresHold) lock(ctx context.Context) error {
	standby := false
	_, err := h.conn.Exec(ctx, "begin isolation level read committed; "+ownBounds(holdWait, holdIdle))
	if err == nil {
		err = h.conn.QueryRow(ctx, "select pg_is_in_recovery()").Scan(&standby)
	}
	if err == nil && standby {
		return errors.New("the database server is a standby: name the primary")
	}
	if err == nil {
		_, err = h.conn.Exec(ctx, "select pg_advisory_xact_lock("+holdKey+")")
	}
	var refusal *pgconn.PgError
	if errors.As(err, &refusal) && refusal.Code == "55P03" {
		return errHoldWait
	}
	return postgresError(err)
}

func (h postgresHold) ask(ctx context.Context) error {
	_, err := h.conn.Exec(ctx, "select 1")
	return postgresError(err)
}

// close waits for the server to let go.
func (h postgresHold) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, _ = h.conn.Exec(ctx, "rollback")
	_ = h.conn.Close(ctx)
}

// checkHold returns held while turns are held off. It needs no function of the tables, which may be of another version, and asks so that
// the server's log says nothing of it.
func (c *postgresConn) checkHold(ctx context.Context) error {
	var by *string
	err := c.QueryRow(ctx, `select case when not pg_try_advisory_xact_lock_shared(`+holdKey+`) then coalesce((
		select string_agg(format('process %s, %s', a.pid, a.application_name), '; ') from pg_locks l join pg_stat_activity a on a.pid = l.pid
		where l.locktype = 'advisory' and l.mode = 'ExclusiveLock' and l.objsubid = 1 and l.classid::bigint << 32 | l.objid::bigint = `+holdKey+`
		and l.database = (select d.oid from pg_database d where d.datname = current_database())), 'it has ended') end`).Scan(&by)
	if err == nil && by != nil {
		return held(*by)
	}
	return postgresError(err)
}

// unheld carries out what locks more than one table, or must not meet tables that were restored meanwhile, in a transaction
// during which turns are not held off.
func (c *postgresConn) unheld(ctx context.Context, do func() error) error {
	_, err := c.Exec(ctx, fmt.Sprintf("%s; select set_config('idle_in_transaction_session_timeout', '%d', true), %s", beginWriting, stall/time.Millisecond, unlessHeld))
	if err != nil {
		return postgresError(standbyError(err))
	}
	if err := do(); err != nil {
		return errors.Join(err, c.abandon(ctx))
	}
	_, err = c.Exec(ctx, "commit")
	return postgresError(err)
}
