package sql

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"fencepost/internal/fencing"
)

// prepare prepares statements, where no pooler is between, each when it is first needed: to read and to plan one anew costs as much as to
// carry it out. It is called before a transaction, and also for what follows in that.
func (c *postgresConn) prepare(ctx context.Context, statements ...string) error {
	if !c.direct {
		return nil
	}
	for _, statement := range statements {
		if _, err := c.Prepare(ctx, statement, statement); err != nil {
			return postgresError(err)
		}
	}
	return nil
}

const aloneStatement = "select fencepost.turn_alone($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)"

// alone implements lone.
func (c *postgresConn) alone(ctx context.Context, e *entry, behind mark, now fencing.Instant, late time.Duration, tried []fencing.Token) (at fencing.Instant, done bool, err error) {
	if !c.lone {
		return 0, false, nil
	}
	if err := c.prepare(ctx, beginWriting, aloneStatement, "commit"); err != nil {
		return 0, false, err
	}
	batch := &pgx.Batch{}
	batch.Queue(beginWriting)
	batch.Queue(aloneStatement,
		append([]any{int64(behind.seq), behind.id, c.run, int64(now), late.Microseconds(), numbers(tried)}, c.arguments(e)...)...)
	batch.Queue("commit")
	c.warned = false
	r := c.SendBatch(ctx, batch)
	_, err = r.Exec()
	err = standbyError(err)
	var clock *int64
	if err == nil {
		err = r.QueryRow().Scan(&clock)
	}
	var tag pgconn.CommandTag
	if err == nil {
		tag, err = r.Exec()
	}
	if err := closed(r, err); err != nil {
		return 0, false, undecidedUnlessRefused(err)
	}
	if clock == nil {
		return 0, false, c.committed(tag)
	}
	return fencing.Instant(*clock), true, c.committed(tag)
}
