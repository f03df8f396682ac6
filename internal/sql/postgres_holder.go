package sql

import (
	"context"
	"fmt"
	"time"
)

// holders implements connection. A turn has locked the table as FOR UPDATE does, which does not keep others from that; who waits for a
// turn has as well, and waits for another lock besides. Of the sessions of other users a server says little. A pooler gives others
// a process number of its own, so here is only what the server itself knows.
func (c *postgresConn) holders(ctx context.Context) (all []holder, err error) {
	rows, err := c.Query(ctx, `with locks as materialized (select pid, mode, granted, locktype, relation from pg_locks)
		select a.pid::bigint, coalesce((extract(epoch from a.xact_start) * 1000000)::bigint, 0),
			a.usename = current_user and a.wait_event_type = 'Client' and a.application_name not like 'fencepost store%' and h.turn,
			format('user %s, application_name %s, process %s', a.usename, quote_literal(a.application_name), a.pid)
				|| case when a.xact_start is null then '' else format(' from %s, %s, waits for %s, transaction since %s', coalesce(host(a.client_addr), 'a local socket'), a.state,
					coalesce(a.wait_event_type || '/' || a.wait_event, 'nothing'), to_char(a.xact_start at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')) end
		from (select pid, bool_and(mode = 'RowShareLock') as turn from locks
			where granted and locktype = 'relation' and pid <> pg_backend_pid()
			and (relation = 'fencepost.store'::regclass and mode in ('RowShareLock', 'RowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
				or relation in ('fencepost.log'::regclass, 'fencepost.lease'::regclass) and mode in ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'))
			group by pid) h
		join pg_stat_activity a on a.pid = h.pid and a.datname = current_database()
		where not exists (select from locks l where l.pid = h.pid and not l.granted)`)
	if err != nil {
		return nil, postgresError(err)
	}
	defer rows.Close()
	for rows.Next() {
		var one holder
		var ours *bool
		if err := rows.Scan(&one.id, &one.since, &ours, &one.who); err != nil {
			return nil, postgresError(err)
		}
		one.ours = ours != nil && *ours
		all = append(all, one)
	}
	return all, postgresError(rows.Err())
}

// end implements connection.
func (c *postgresConn) end(ctx context.Context, h holder) (ended bool, err error) {
	err = c.QueryRow(ctx, `select coalesce(bool_or(pg_terminate_backend(pid)), false) from pg_stat_activity
		where pid = $1 and (extract(epoch from xact_start) * 1000000)::bigint = $2 and usename = current_user and wait_event_type = 'Client'`, int32(h.id), h.since).Scan(&ended)
	return ended, postgresError(err)
}

// boundSession has the server notice that the gateway's machine is gone, or takes nothing more, where the system can do that. Behind a pooler,
// which has a process number of its own, the session is not the gateway's.
var boundSession = fmt.Sprintf(`case when pg_backend_pid() = $1 then set_config('tcp_user_timeout', '%d', false) || set_config('tcp_keepalives_idle', '%d', false)
	|| set_config('tcp_keepalives_interval', '1', false) || set_config('tcp_keepalives_count', '2', false) end`, 2*stall/time.Millisecond, stall/time.Second)
