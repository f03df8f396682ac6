package sql

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"fencepost/internal/fencing"
)

// postgres is a PostgreSQL, or what speaks as one.
type postgres struct {
	config *pgx.ConnConfig
	hosts  hosts

	mu      sync.Mutex
	servers map[string]string // which server a run is of
}

// newPostgres reads a URL. Statements are not prepared unless it says so: behind a pooler in transaction mode the next one may come
// to another connection.
func newPostgres(url string) (*postgres, error) {
	p, err := dissect(url)
	if err != nil {
		return nil, err
	}
	config, err := pgx.ParseConfig(p.scheme + url[len(p.scheme):]) // pgx knows it in small letters
	if err != nil {
		return nil, plainURLError(err)
	}
	if attrs := p.options.Get("target_session_attrs"); attrs == "read-write" || attrs == "" && strings.Contains(p.hosts, ",") { // else a standby might be taken
		config.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsPrimary // whatever transactions are by default
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	if config.RuntimeParams["prepared"] == "true" {
		config.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
	}
	delete(config.RuntimeParams, "prepared")
	if !p.options.Has("connect_timeout") { // each host, with and without TLS, is to have its turn
		config.ConnectTimeout = connectTimeout / time.Duration(1+len(config.Fallbacks))
	}
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "fencepost"
	}
	config.RuntimeParams["client_encoding"] = "UTF8" // see session.go
	return &postgres{config: config, servers: map[string]string{}}, nil
}

func (p *postgres) connect(ctx context.Context) (connection, error) {
	c := &postgresConn{of: p}
	config := p.config.Copy()
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { c.warned = c.warned || n.SeverityUnlocalized == "WARNING" }
	connected := p.hosts.order(config)
	var err error
	if c.Conn, err = pgx.ConnectConfig(ctx, config); err != nil {
		return nil, postgresError(err)
	}
	connected(c.Conn)
	err = c.checkHold(ctx)
	if err == nil {
		err = c.checkSchema(ctx)
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

type postgresConn struct {
	*pgx.Conn
	of     *postgres
	direct bool   // no pooler is between: see prepare
	lone   bool   // it can make turns of one message
	warned bool   // the server has warned of something since this was last set: of a commit that waits for no standby any more
	run    string // which run of which server it was that was asked last
}

// whichRun is what tells the runs of a server apart, a server from the one that it was promoted from, and the tables from those that
// a dump was restored to: cheap enough for each turn.
const whichRun = "extract(epoch from pg_postmaster_start_time())::text || ' ' || left(pg_walfile_name(pg_current_wal_lsn()), 8) || '/' || 'fencepost.log'::regclass::oid"

// server returns which server a run is of, and which table: the same after a restart, another one after a promotion, or where a dump has made
// the table anew. pg_control_checkpoint has another timeline only some seconds after a promotion.
func (c *postgresConn) server(ctx context.Context, run string) (string, error) {
	c.run = run
	p := c.of
	p.mu.Lock()
	defer p.mu.Unlock()
	if server, known := p.servers[run]; known {
		return server, nil
	}
	var system string
	if err := c.QueryRow(ctx, "select system_identifier::text from pg_control_system()").Scan(&system); err != nil {
		return "", postgresError(err)
	}
	p.servers[run] = system + "/" + run[strings.LastIndexByte(run, ' ')+1:]
	return p.servers[run], nil
}

// checkSchema says what is wrong with the tables. Who has them locked is named, as the holders are of a turn that is waited for in vain: to look for these
// a connection is needed as well.
func (c *postgresConn) checkSchema(ctx context.Context) error {
	var is schemaIs
	var pid uint32
	batch := &pgx.Batch{}
	batch.Queue("select set_config('lock_timeout', '1s', true)") // of this batch
	batch.Queue("select version, format, pg_backend_pid(), "+mayAlone+", "+boundSession+" from fencepost.store where id = 1", int32(c.PgConn().PID()))
	r := c.SendBatch(ctx, batch)
	_, err := r.Exec()
	if err == nil {
		err = r.QueryRow().Scan(&is.version, &is.format, &pid, &c.lone, nil)
	}
	err = closed(r, err)
	c.direct = err == nil && pid == c.PgConn().PID() // a pooler names another, for who asks it to cancel something
	if errors.Is(err, pgx.ErrNoRows) {
		return errNoSchema
	}
	if err = postgresError(err); errors.Is(err, errLocked) {
		if all, cause := c.holders(ctx); cause == nil && len(all) > 0 {
			return lockedBy(*inWords(all))
		}
	}
	if err != nil {
		return err
	}
	return is.check()
}

// mayAlone is whether the user may call the function of a turn of one message.
const mayAlone = "coalesce(has_function_privilege(to_regproc('fencepost.turn_alone')::oid, 'execute'), false)"

// The statements of a turn, and of a look: see prepare.
const (
	turnStatement = "select at, run, held from fencepost.turn($1, $2)"
	logStatement  = `select seq, id, case when seq - 1 = $1 or seq > $1 and sum(octet_length(entry)) filter (where seq > $1) over (order by seq) <= $3 then entry end
		from (select * from fencepost.log where seq >= $1 order by seq limit $2) l`
	appendStatement = "select fencepost.append($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
	lookStatement   = "select (extract(epoch from now()) * 1000000)::bigint, " + whichRun + " where (" + unlessHeld + ") is null" // now() is before the log is read at any isolation level
)

func (c *postgresConn) begin(ctx context.Context, after uint64, tried []fencing.Token) (*begun, error) {
	if err := c.prepare(ctx, beginWriting, turnStatement, logStatement, appendStatement, "commit"); err != nil {
		return nil, err
	}
	b := &begun{}
	batch := &pgx.Batch{}
	batch.Queue(beginWriting)
	batch.Queue(turnStatement, numbers(tried), int32(stall/time.Millisecond))
	queueLog(batch, after, turnBytes)
	r := c.SendBatch(ctx, batch)
	_, err := r.Exec()
	err = standbyError(err)
	run := ""
	if err == nil {
		var held []int64
		err = r.QueryRow().Scan(&b.now, &run, &held)
		b.held = tokens(held)
	}
	if err == nil {
		err = b.readLog(r, after)
	}
	if err := closed(r, err); err != nil {
		return nil, postgresError(err)
	}
	b.server, err = c.server(ctx, run)
	return b, err
}

// queueLog asks for the entries from one on, and leaves out what is in the first one, and in those that are too much.
func queueLog(batch *pgx.Batch, after uint64, bytes int) {
	batch.Queue(logStatement, int64(after), int32(mostRead), int32(bytes))
}

func (b *begun) readLog(r pgx.BatchResults, after uint64) error {
	rows, err := r.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var e logged
		if err := rows.Scan(&e.seq, &e.id, (*octets)(&e.data)); err != nil {
			return err
		}
		b.add(e, after)
	}
	return rows.Err()
}

func (c *postgresConn) try(ctx context.Context, tried []fencing.Token) ([]fencing.Token, error) {
	var held []int64
	err := c.QueryRow(ctx, "select held from fencepost.turn($1, $2)", numbers(tried), int32(stall/time.Millisecond)).Scan(&held)
	return tokens(held), postgresError(err)
}

func (c *postgresConn) commit(ctx context.Context, e *entry) error {
	batch := &pgx.Batch{}
	batch.Queue(appendStatement, append([]any{int64(e.seq)}, c.arguments(e)...)...)
	batch.Queue("commit")
	c.warned = false
	r := c.SendBatch(ctx, batch)
	_, err := r.Exec()
	if err != nil {
		r.Close()
		return undecidedUnlessRefused(err)
	}
	tag, err := r.Exec()
	if err := closed(r, err); err != nil {
		return undecidedUnlessRefused(err)
	}
	return c.committed(tag)
}

// arguments returns what the functions get that write an entry.
func (c *postgresConn) arguments(e *entry) []any {
	rows := len(e.changed)
	of, names, leases, slots := make([]int64, rows), make([]string, rows), make([]string, rows), make([]int32, rows)
	modes, owners, acquired, expires := make([]string, rows), make([]string, rows), make([]int64, rows), make([]int64, rows)
	for i := range e.changed {
		r := &e.changed[i]
		of[i], names[i], leases[i], slots[i] = int64(r.Token), string(r.name), string(r.Lease), -1 // there may be no nulls: see session.go
		if slot := r.slot(); slot != nil {
			slots[i] = *slot
		}
		modes[i], owners[i], acquired[i], expires[i] = string(r.Mode), c.holdable(r.Owner), int64(r.AcquiredAt), int64(r.ExpiresAt)
	}
	return []any{e.id, e.data, numbers(e.ended), of, names, leases, slots, modes, owners, acquired, expires}
}

// committed returns nil if the answer to a commit says that it has happened, at standbys that it waits for too. Of a transaction that has
// failed the answer is ROLLBACK.
func (c *postgresConn) committed(tag pgconn.CommandTag) error {
	if tag.String() != "COMMIT" {
		return fmt.Errorf("a commit was answered with %s", tag)
	}
	if c.warned {
		return fmt.Errorf("%w: it warns that a standby may not have it", errUndecided)
	}
	return nil
}

func (c *postgresConn) abandon(ctx context.Context) error {
	_, err := c.Exec(ctx, "rollback")
	return postgresError(err)
}

func (c *postgresConn) read(ctx context.Context, after uint64) (*begun, error) {
	if err := c.prepare(ctx, lookStatement, logStatement); err != nil {
		return nil, err
	}
	b := &begun{}
	batch := &pgx.Batch{}
	batch.Queue(lookStatement)
	queueLog(batch, after, readBytes)
	r := c.SendBatch(ctx, batch)
	run := ""
	err := r.QueryRow().Scan(&b.now, &run)
	if err == nil {
		err = b.readLog(r, after)
	}
	if err := closed(r, err); err != nil {
		return nil, postgresError(err)
	}
	b.server, err = c.server(ctx, run)
	return b, err
}

func (c *postgresConn) tries(ctx context.Context, size int, like row) error {
	e := probe(size, like)
	batch := &pgx.Batch{}
	batch.Queue(beginWriting)
	batch.Queue("select set_config('lock_timeout', '3s', true), " + unlessHeld) // as of a turn
	batch.Queue(appendStatement, append([]any{int64(e.seq)}, c.arguments(e)...)...)
	batch.Queue("rollback")
	err := c.SendBatch(ctx, batch).Close()
	if said, is := errors.AsType[*pgconn.PgError](err); is && said.Code == "23505" {
		return refused{fmt.Errorf("%w: %w", errNoSecond, err), ofContent}
	}
	return postgresError(err)
}

func (c *postgresConn) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.Conn.Close(ctx)
}

func numbers(tokens []fencing.Token) []int64 {
	all := make([]int64, len(tokens))
	for i, t := range tokens {
		all[i] = int64(t)
	}
	return all
}

func tokens(numbers []int64) []fencing.Token {
	all := make([]fencing.Token, len(numbers))
	for i, n := range numbers {
		all[i] = fencing.Token(n)
	}
	return all
}
