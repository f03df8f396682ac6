package main

import (
	"context"
	"database/sql"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"fencepost/internal/sql/sqltest"
)

// tableConnections is how many connections a table by hand has.
const tableConnections = 16

// openTable makes what everybody writes who has a database, in an empty one: a table with a row for each lock. It has no queue, no tokens,
// no renewal and no retry.
func openTable(kind, url string) (locks, error) {
	if kind == "mariadb" {
		return openMariaDB(url)
	}
	return openPostgres(url)
}

func openPostgres(url string) (locks, error) {
	ctx := context.Background()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return locks{}, err
	}
	config.MaxConns, config.MinConns = tableConnections, tableConnections
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return locks{}, err
	}
	_, err = pool.Exec(ctx, "CREATE TABLE locks (name text PRIMARY KEY, lease text NOT NULL, owner text NOT NULL, expires_at timestamptz NOT NULL)")
	return locks{
		take: func(ctx context.Context, name, lease string, in order) (int64, bool, error) {
			var mine string
			err := pool.QueryRow(ctx, `INSERT INTO locks VALUES ($1, $2, $3, now() + $4 * interval '1 microsecond')
				ON CONFLICT (name) DO UPDATE SET lease = excluded.lease, owner = excluded.owner, expires_at = excluded.expires_at
				WHERE locks.expires_at <= now() RETURNING lease`, name, lease, in.Owner, 1000*in.TTL).Scan(&mine)
			if errors.Is(err, pgx.ErrNoRows) {
				return 0, false, nil
			}
			return 0, err == nil, err
		},
		give: func(ctx context.Context, name, lease string) (bool, error) {
			tag, err := pool.Exec(ctx, "DELETE FROM locks WHERE name = $1 AND lease = $2", name, lease)
			return tag.RowsAffected() > 0, err
		},
	}, err
}

func openMariaDB(url string) (locks, error) {
	db, err := sql.Open(sqltest.DSN(url))
	if err != nil {
		return locks{}, err
	}
	db.SetMaxOpenConns(tableConnections)
	db.SetMaxIdleConns(tableConnections)
	if _, err := db.Exec("CREATE TABLE locks (name varchar(255) PRIMARY KEY, lease varchar(255) NOT NULL, owner varchar(255) NOT NULL, expires_at datetime(6) NOT NULL)"); err != nil {
		return locks{}, err
	}
	// What comes first is assigned first.
	insert, err := db.Prepare(`INSERT INTO locks VALUES (?, ?, ?, now(6) + interval ? microsecond) ON DUPLICATE KEY UPDATE
		lease = if(expires_at <= now(6), values(lease), lease), owner = if(lease = values(lease), values(owner), owner),
		expires_at = if(lease = values(lease), values(expires_at), expires_at) RETURNING lease`)
	if err != nil {
		return locks{}, err
	}
	remove, err := db.Prepare("DELETE FROM locks WHERE name = ? AND lease = ?")
	return locks{
		take: func(ctx context.Context, name, lease string, in order) (int64, bool, error) {
			var holds string
			err := insert.QueryRowContext(ctx, name, lease, in.Owner, 1000*in.TTL).Scan(&holds)
			return 0, holds == lease, err
		},
		give: func(ctx context.Context, name, lease string) (bool, error) {
			done, err := remove.ExecContext(ctx, name, lease)
			if err != nil {
				return false, err
			}
			rows, err := done.RowsAffected()
			return rows > 0, err
		},
	}, err
}
