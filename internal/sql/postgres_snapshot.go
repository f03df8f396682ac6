package sql

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"fencepost/internal/fencing"
)

func (c *postgresConn) newest(ctx context.Context) (seq uint64, chunks int, err error) {
	var head []byte
	var number int64
	err = c.QueryRow(ctx, "select seq, chunk from fencepost.snapshot where no = 0 order by seq desc limit 1").Scan(&number, (*octets)(&head))
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, postgresError(err)
	}
	chunks, err = readHead(head)
	return uint64(number), chunks, err
}

func (c *postgresConn) chunk(ctx context.Context, seq uint64, no int) (chunk []byte, err error) {
	err = c.QueryRow(ctx, "select chunk from fencepost.snapshot where seq = $1 and no = $2", int64(seq), int32(no)).Scan((*octets)(&chunk))
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return chunk, postgresError(err)
}

func (c *postgresConn) claim(ctx context.Context, gateway fencing.Gateway) (bool, error) {
	tag, err := c.write(ctx, "update fencepost.snapshotter set gateway = $1, until = now() + $2 * interval '1 second' where id = 1 and (until < now() or gateway = $1)",
		string(gateway), int32(claimFor/time.Second))
	return tag.RowsAffected() > 0, err
}

func (c *postgresConn) put(ctx context.Context, seq uint64, no int, chunk []byte) error {
	tag, err := c.write(ctx, `insert into fencepost.snapshot select $1, $2, $3 where not exists (select from fencepost.snapshot where seq = $1 and no = 0)
		on conflict (seq, no) do update set chunk = excluded.chunk`, int64(seq), int32(no), chunk)
	return overtakenUnless(tag, err)
}

func overtakenUnless(tag pgconn.CommandTag, err error) error {
	if err == nil && tag.RowsAffected() == 0 {
		return errOvertaken
	}
	return err
}

func (c *postgresConn) finish(ctx context.Context, gateway fencing.Gateway, of mark, chunks int) error {
	err := c.unheld(ctx, func() error {
		tag, err := c.Exec(ctx, `insert into fencepost.snapshot select $1, 0, $2 where exists (select from fencepost.log where seq = $1 and id = $3)
		and exists (select from fencepost.snapshotter where gateway = $4) on conflict do nothing`, int64(of.seq), head(chunks), of.id, string(gateway))
		return overtakenUnless(tag, postgresError(err))
	})
	if err != nil {
		return err
	}
	return c.release(ctx, gateway)
}

func (c *postgresConn) release(ctx context.Context, gateway fencing.Gateway) error {
	_, err := c.write(ctx, "update fencepost.snapshotter set until = 'epoch' where gateway = $1", string(gateway))
	return err
}

func (c *postgresConn) tidy(ctx context.Context) error {
	_, err := c.write(ctx, "delete from fencepost.snapshot where seq <> coalesce((select max(seq) from fencepost.snapshot where no = 0), 0)")
	return err
}

func (c *postgresConn) cut(ctx context.Context, upTo, snapshot uint64, limit int) (more bool, err error) {
	err = c.unheld(ctx, func() error {
		tag, err := c.Exec(ctx, `delete from fencepost.log where seq <= $1 and seq < (select min(seq) from fencepost.log) + $2
		and exists (select from fencepost.snapshot where seq >= $3 and no = 0)`, int64(upTo), int64(limit), int64(snapshot))
		if more = tag.RowsAffected() > 0; err == nil && !more {
			_, err = c.Exec(ctx, "delete from fencepost.snapshot where seq < $1 and exists (select from fencepost.snapshot where seq >= $1 and no = 0)", int64(snapshot))
		}
		return postgresError(err)
	})
	return more, err
}

// write carries out a statement in a transaction of its own, by one message.
func (c *postgresConn) write(ctx context.Context, statement string, args ...any) (pgconn.CommandTag, error) {
	batch := &pgx.Batch{}
	batch.Queue(beginWriting)
	batch.Queue(statement, args...)
	batch.Queue("commit")
	r := c.SendBatch(ctx, batch)
	_, err := r.Exec()
	err = standbyError(err)
	var tag pgconn.CommandTag
	if err == nil {
		tag, err = r.Exec()
	}
	if err == nil {
		_, err = r.Exec()
	}
	return tag, postgresError(closed(r, err))
}
