package sql

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"fencepost/internal/machine"
)

// script implements database.
func (p *postgres) script(rights Rights) []string {
	all := append(statements(postgresTables), statements(postgresLeases)...)
	all = append(all,
		"-- Functions may be called by everybody unless that is taken back.\nrevoke execute on all functions in schema fencepost from public",
		fmt.Sprintf("insert into fencepost.store as s values (1, %d, %d) on conflict (id) do update\n"+
			"    set version = excluded.version, format = excluded.format\n"+
			"    where s.version < excluded.version or s.format < excluded.format", schemaVersion, machine.Format))
	return append(all, grants(postgresRights, rights, func(name string) string { return pgx.Identifier{name}.Sanitize() })...)
}

// initBound bounds how long init waits for a lock, as of another init, and the server for what init asks next.
const initBound = time.Minute

// init implements database. Who does it at the same time waits.
func (p *postgres) init(ctx context.Context, statements []string) (before *schemaIs, err error) {
	connecting, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(connecting, p.config.Copy())
	if err != nil {
		return nil, postgresError(err)
	}
	defer conn.Close(ctx)
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: beginWriting + "; " + ownBounds(initBound, initBound)})
	if err != nil {
		return nil, postgresError(standbyError(err))
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, "select pg_advisory_xact_lock(hashtext('fencepost store init'))"); err != nil {
		return nil, postgresError(err)
	}
	if before, err = schemaOf(ctx, tx); err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, "select relname::text from pg_class where relnamespace = to_regnamespace('fencepost') and relname in ('store', 'log', 'snapshot', 'snapshotter', 'lease') order by 1")
	if err != nil {
		return nil, postgresError(err)
	}
	there, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, postgresError(err)
	}
	if err := checkWhole(there, "store", "log", "snapshot", "snapshotter", "lease"); err != nil {
		return nil, err
	}
	for _, statement := range statements {
		if _, err := tx.Exec(ctx, statement); err != nil {
			return nil, postgresError(err)
		}
	}
	return before, postgresError(tx.Commit(ctx))
}

// schemaOf returns what tables there are, nil if there are none. It fails if they are of a newer version.
func schemaOf(ctx context.Context, tx pgx.Tx) (*schemaIs, error) {
	there := false
	if err := tx.QueryRow(ctx, "select to_regclass('fencepost.store') is not null").Scan(&there); err != nil || !there {
		return nil, postgresError(err)
	}
	var is schemaIs
	switch err := tx.QueryRow(ctx, "select version, format from fencepost.store where id = 1").Scan(&is.version, &is.format); {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, postgresError(err)
	case is.isNewer():
		return nil, is.check()
	}
	return &is, nil
}
