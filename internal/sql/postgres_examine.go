package sql

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"fencepost/internal/fencing"
)

// leastPostgres is the oldest version that the promises are tested with, as server_version_num.
const leastPostgres = 140000

// postgresFacts are what a server says of itself.
type postgresFacts struct {
	settings  map[string]string // as pg_settings has them; times in milliseconds
	recovery  bool              // it is a standby
	log       int64             // bytes
	standbys  int
	confirm   int  // of them, those that a commit may wait for
	knowsSync bool // the user may see which these are
}

// examine implements connection. All of it an ordinary user may ask.
func (c *postgresConn) examine(ctx context.Context) ([]fencing.Finding, error) {
	f := &postgresFacts{settings: map[string]string{}}
	rows, err := c.Query(ctx, `select name, setting from pg_settings where name in ('fsync', 'full_page_writes', 'synchronous_commit',
		'synchronous_standby_names', 'statement_timeout', 'transaction_timeout', 'idle_session_timeout',
		'server_version', 'server_version_num')`)
	if err != nil {
		return nil, postgresError(err)
	}
	defer rows.Close()
	for rows.Next() {
		var name, setting string
		if err := rows.Scan(&name, &setting); err != nil {
			return nil, postgresError(err)
		}
		f.settings[name] = setting
	}
	if rows.Err() != nil {
		return nil, postgresError(rows.Err())
	}
	err = c.QueryRow(ctx, `select pg_is_in_recovery(), coalesce(pg_total_relation_size(to_regclass('fencepost.log')), 0),
		count(pid), count(*) filter (where sync_state in ('sync', 'quorum', 'potential')), count(pid) = count(sync_state)
		from pg_stat_replication where state is distinct from 'backup'`).Scan(&f.recovery, &f.log, &f.standbys, &f.confirm, &f.knowsSync)
	if err != nil {
		return nil, postgresError(err)
	}
	return []fencing.Finding{f.role(), f.version(), f.persistence(), f.replicas(), f.timeouts(), fine(checkLog, "the log has "+size(f.log)+" in the database, its index included")}, nil
}

func (f *postgresFacts) role() fencing.Finding {
	if f.recovery {
		return finding(checkRole, "", "this is a standby, which does not accept writes: every request is answered 503",
			"name the primary in FENCEPOST_STORE, or all servers, separated by commas: the one that accepts writes is used")
	}
	return fine(checkRole, "it accepts writes")
}

func (f *postgresFacts) version() fencing.Finding {
	version := f.settings["server_version"]
	if n, err := strconv.Atoi(f.settings["server_version_num"]); err != nil || n < leastPostgres {
		return finding(checkVersion, "P1, P2", fmt.Sprintf("this is PostgreSQL %s; the promises are tested with 14 and later", version), "use PostgreSQL 14 or later")
	}
	return fine(checkVersion, "this is PostgreSQL "+version)
}

// persistence judges what a crash forgets. It is the same database afterwards, so no quarantine follows, and nobody notices.
func (f *postgresFacts) persistence() fencing.Finding {
	switch {
	case f.settings["fsync"] == "off":
		return finding(checkPersistence, "P1, P2", "a crash of the machine forgets grants, or leaves the files damaged: fsync is off", "fsync on")
	case f.settings["full_page_writes"] == "off":
		return finding(checkPersistence, "P1, P2", "a crash of the machine may leave pages half written, and with them the log damaged, unless the file system can't: full_page_writes is off",
			"full_page_writes on")
	case f.settings["synchronous_commit"] == "off":
		return fine(checkPersistence, "grants are on disk before they are answered: synchronous_commit is off here, and a gateway has it on in its own transactions")
	}
	return fine(checkPersistence, "grants are on disk before they are answered")
}

func (f *postgresFacts) replicas() fencing.Finding {
	const covered = "; then no new leases are granted until the lost ones have expired (quarantine)"
	names, commit := f.settings["synchronous_standby_names"], f.settings["synchronous_commit"]
	switch {
	case f.recovery:
		return fine(checkReplicas, "a standby needs none")
	case names != "" && commit != "local" && (f.standbys == 0 || f.knowsSync && f.confirm == 0):
		return finding(checkReplicas, "", "synchronous_standby_names makes commits wait for a standby, and there is none: every request is answered 503",
			"bring the standbys back, or take them out of synchronous_standby_names")
	case f.standbys == 0:
		return fine(checkReplicas, "no standby follows it: nothing is lost by a fail-over, and nobody can take its place")
	case names == "":
		return fine(checkReplicas, followers(f.standbys)+", and no commit waits for it: a fail-over forgets the last ones"+covered)
	case commit == "local":
		return fine(checkReplicas, followers(f.standbys)+", and no commit waits for it, as synchronous_commit is local: a fail-over forgets the last ones"+covered)
	case !f.knowsSync:
		return fine(checkReplicas, followers(f.standbys)+"; the gateway's user may not see which of them a commit waits for. A fail-over to another one forgets the last commits"+covered)
	case f.confirm < f.standbys:
		return fine(checkReplicas, fmt.Sprintf("%s; a commit waits for %d of them. A fail-over to another one forgets the last commits%s", followers(f.standbys), f.confirm, covered))
	}
	return fine(checkReplicas, followers(f.standbys)+"; a commit waits as synchronous_standby_names says")
}

func followers(n int) string {
	if n == 1 {
		return "1 standby follows it"
	}
	return fmt.Sprintf("%d standbys follow it", n)
}

// timeouts judges those of the server that a turn does not set itself.
func (f *postgresFacts) timeouts() fencing.Finding {
	for _, t := range []struct {
		setting string
		least   time.Duration // with which no turn is cut off
		what    string
	}{
		{"statement_timeout", lockTimeout + time.Second, "a turn that waits for another gateway's is cut off, and its requests are answered late or with 503"},
		{"transaction_timeout", lockTimeout + stall + time.Second, "a turn that waits for another gateway's is cut off, and its requests are answered late or with 503"},
		{"idle_session_timeout", 2 * idleEvery, "connections are cut off between two turns, and opened again"},
	} {
		ms, _ := strconv.Atoi(f.settings[t.setting])
		if limit := time.Duration(ms) * time.Millisecond; limit > 0 && limit < t.least {
			return finding(checkTimeouts, "", fmt.Sprintf("%s: %s is %s", t.what, t.setting, limit),
				fmt.Sprintf("%s 0 for the gateway's user, or at least %s", t.setting, t.least))
		}
	}
	return fine(checkTimeouts, "none of its timeouts cuts off a turn")
}
