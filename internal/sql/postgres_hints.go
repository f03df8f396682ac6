package sql

import (
	"context"

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
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	pid := uint32(0)
	if err := conn.QueryRow(ctx, "select pg_backend_pid()").Scan(&pid); err != nil {
		return postgresError(err)
	}
	if pid != conn.PgConn().PID() {
		return errPooled
	}
	for _, to := range []fencing.Gateway{gateway, everyone} {
		if _, err := conn.Exec(ctx, "listen "+pgx.Identifier{channel(to)}.Sanitize()); err != nil {
			return postgresError(err)
		}
	}
	listening()
	for {
		if _, err := conn.WaitForNotification(ctx); err != nil {
			return postgresError(err)
		}
		heard()
	}
}

// speak implements hinter. It connects when there is something to say.
func (p *postgres) speak(ctx context.Context, h *hints) error {
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			_ = conn.Close(context.WithoutCancel(ctx))
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
			_ = conn.Close(ctx)
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
	_, err := conn.Exec(ctx, "select pg_notify(c, '') from unnest($1::text[]) as c", channels)
	return err
}
