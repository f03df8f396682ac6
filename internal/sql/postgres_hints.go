package sql

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"fencepost/internal/fencing"
)

// channel is the one on which a gateway, or everyone, hears hints.
func channel(of fencing.Gateway) string { return "fencepost_" + string(of) }

// listen implements hinter. A pooler gives its clients a key that is not the server's, and would keep what a client listens to on a
// connection that it gives to others.
func (p *postgres) listen(ctx context.Context, gateway fencing.Gateway, listening, heard func()) error {
	conn, err := pgx.ConnectConfig(ctx, p.config.Copy())
	if err != nil {
		return postgresError(err)
	}
	defer hangUp(ctx, conn)
	pid := uint32(0)
	own, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if err := conn.QueryRow(own, "select pg_backend_pid()").Scan(&pid); err != nil {
		return postgresError(err)
	}
	if pid != conn.PgConn().PID() {
		return errPooled
	}
	for _, to := range []fencing.Gateway{gateway, everyone} {
		if _, err := conn.Exec(own, "listen "+pgx.Identifier{channel(to)}.Sanitize()); err != nil {
			return postgresError(err)
		}
	}
	listening()
	for {
		quiet, cancel := context.WithTimeout(ctx, quietFor)
		_, err := conn.WaitForNotification(quiet)
		cancel()
		switch {
		case err == nil:
			heard()
			continue
		case quiet.Err() == nil || ctx.Err() != nil:
			return postgresError(err)
		}
		asking, cancel := context.WithTimeout(ctx, readTimeout)
		err = conn.Ping(asking) // a hint that comes before the answer is kept
		cancel()
		if err != nil {
			return postgresError(err)
		}
	}
}

// quietFor is how long no hint comes until it is asked whether the connection is still there: a server that hangs does not end it.
const quietFor = 5 * time.Second

// hangUp closes a connection, and does not wait for a server that hangs.
func hangUp(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
}

// speak implements hinter. It connects when there is something to say.
func (p *postgres) speak(ctx context.Context, h *hints) error {
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			hangUp(ctx, conn)
		}
	}()
	for {
		select {
		case <-h.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
		var channels []string
		for _, to := range h.take() {
			channels = append(channels, channel(to))
		}
		if conn != nil && notify(ctx, conn, channels) == nil {
			continue
		}
		if conn != nil { // it may have ended long ago
			hangUp(ctx, conn)
		}
		var err error
		if conn, err = pgx.ConnectConfig(ctx, p.config.Copy()); err != nil {
			return postgresError(err)
		}
		if err := notify(ctx, conn, channels); err != nil {
			return postgresError(err)
		}
	}
}

func notify(ctx context.Context, conn *pgx.Conn, channels []string) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	_, err := conn.Exec(ctx, "select pg_notify(c, '') from unnest($1::text[]) as c", channels)
	return err
}
