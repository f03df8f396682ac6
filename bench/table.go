package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"fencepost/internal/sql/sqltest"
)

// tableConnections is how many connections a table by hand has.
const tableConnections = 16

// table is what everybody writes who has a database: a row for each lock. It has no queue, no tokens, no renewal and no retry.
type table struct {
	acquire func(ctx context.Context, name, lease, owner string, ttl time.Duration) (bool, error)
	release func(ctx context.Context, name, lease string) (bool, error)
}

// openTable makes the table in an empty database.
func openTable(kind, url string) (table, error) {
	if kind == "mariadb" {
		return openMariaDB(url)
	}
	return openPostgres(url)
}

func openPostgres(url string) (table, error) {
	ctx := context.Background()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return table{}, err
	}
	config.MaxConns, config.MinConns = tableConnections, tableConnections
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return table{}, err
	}
	_, err = pool.Exec(ctx, "CREATE TABLE locks (name text PRIMARY KEY, lease text NOT NULL, owner text NOT NULL, expires_at timestamptz NOT NULL)")
	return table{
		acquire: func(ctx context.Context, name, lease, owner string, ttl time.Duration) (bool, error) {
			var mine string
			err := pool.QueryRow(ctx, `INSERT INTO locks VALUES ($1, $2, $3, now() + $4 * interval '1 microsecond')
				ON CONFLICT (name) DO UPDATE SET lease = excluded.lease, owner = excluded.owner, expires_at = excluded.expires_at
				WHERE locks.expires_at <= now() RETURNING lease`, name, lease, owner, ttl.Microseconds()).Scan(&mine)
			if errors.Is(err, pgx.ErrNoRows) {
				return false, nil
			}
			return err == nil, err
		},
		release: func(ctx context.Context, name, lease string) (bool, error) {
			tag, err := pool.Exec(ctx, "DELETE FROM locks WHERE name = $1 AND lease = $2", name, lease)
			return tag.RowsAffected() > 0, err
		},
	}, err
}

func openMariaDB(url string) (table, error) {
	db, err := sql.Open(sqltest.DSN(url))
	if err != nil {
		return table{}, err
	}
	db.SetMaxOpenConns(tableConnections)
	db.SetMaxIdleConns(tableConnections)
	if _, err := db.Exec("CREATE TABLE locks (name varchar(255) PRIMARY KEY, lease varchar(255) NOT NULL, owner varchar(255) NOT NULL, expires_at datetime(6) NOT NULL)"); err != nil {
		return table{}, err
	}
	// What comes first is assigned first.
	insert, err := db.Prepare(`INSERT INTO locks VALUES (?, ?, ?, now(6) + interval ? microsecond) ON DUPLICATE KEY UPDATE
		lease = if(expires_at <= now(6), values(lease), lease), owner = if(lease = values(lease), values(owner), owner),
		expires_at = if(lease = values(lease), values(expires_at), expires_at) RETURNING lease`)
	if err != nil {
		return table{}, err
	}
	remove, err := db.Prepare("DELETE FROM locks WHERE name = ? AND lease = ?")
	return table{
		acquire: func(ctx context.Context, name, lease, owner string, ttl time.Duration) (bool, error) {
			var holds string
			err := insert.QueryRowContext(ctx, name, lease, owner, ttl.Microseconds()).Scan(&holds)
			return holds == lease, err
		},
		release: func(ctx context.Context, name, lease string) (bool, error) {
			done, err := remove.ExecContext(ctx, name, lease)
			if err != nil {
				return false, err
			}
			rows, err := done.RowsAffected()
			return rows > 0, err
		},
	}, err
}

// serve serves the table's locks. Their fencing tokens are none.
func (t *table) serve(router chi.Router) {
	router.Post("/locks/*", func(w http.ResponseWriter, r *http.Request) {
		var in order
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		name, lease := chi.URLParam(r, "*"), newLease()
		mine, err := t.acquire(r.Context(), name, lease, in.Owner, time.Duration(in.TTL)*time.Millisecond)
		switch {
		case err != nil:
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		case !mine:
			http.Error(w, "locked", http.StatusLocked)
		default:
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusCreated)
			json.NewEncoder(w).Encode(newAnswer(name, lease, in.Owner, 0, in.TTL))
		}
	})
	router.Delete("/locks/*", func(w http.ResponseWriter, r *http.Request) {
		done, err := t.release(context.WithoutCancel(r.Context()), chi.URLParam(r, "*"), r.Header.Get("Lease-Id"))
		switch {
		case err != nil:
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		case !done:
			http.Error(w, "lost", http.StatusPreconditionFailed)
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	})
}
