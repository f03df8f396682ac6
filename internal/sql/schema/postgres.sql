-- The tables of the lock store. Statements are apart by a line with two semicolons alone.
create schema if not exists fencepost
-- ;;
-- One row. It is locked in each turn of a gateway, and never updated, so that no version of it is dead.
create table if not exists fencepost.store (
    id      int primary key check (id = 1),
    version int not null, -- of these tables and functions
    format  int not null  -- of entries and snapshots
)
-- ;;
-- What gateways asked for, in order. It is only appended to, and cut behind a snapshot.
create table if not exists fencepost.log (
    seq   bigint primary key,
    id    bigint not null, -- chosen by who wrote it: by it an entry is known
    entry bytea not null
)
-- ;;
alter table fencepost.log alter column entry set storage external
-- ;;
-- The state as of an entry, in parts from 1. One that is whole has part 0, which says how many there are.
create table if not exists fencepost.snapshot (
    seq   bigint,
    no    int,
    chunk bytea not null,
    primary key (seq, no)
)
-- ;;
alter table fencepost.snapshot alter column chunk set storage external
-- ;;
-- Who writes a snapshot, and until when nobody else does.
create table if not exists fencepost.snapshotter (
    id            int primary key check (id = 1),
    gateway       text not null,
    until         timestamptz not null
)
-- ;;
insert into fencepost.snapshotter values (1, '', 'epoch') on conflict do nothing
-- ;;
-- held says that no turn can be made, for a session holds them off.
create or replace function fencepost.held() returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception 'gateway store hold keeps turns from being made' using errcode = 'ZF503';
end
$$
-- ;;
-- lock_store begins a turn, unless turns are held off: the key is that of held. What it sets is for the rest of the transaction.
create or replace function fencepost.lock_store() returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    was text;
begin
    if not pg_try_advisory_xact_lock_shared(7378424937699110771) then
        perform fencepost.held();
    end if;
    was := set_config('lock_timeout', '3s', true);
    was := set_config('client_min_messages', 'warning', true); -- one warns of a commit that no standby has
    was := set_config('enable_seqscan', 'off', true);
    was := set_config('plan_cache_mode', 'force_generic_plan', true); -- else most statements are planned anew each time
    if current_setting('synchronous_commit') = 'off' then
        was := set_config('synchronous_commit', 'on', true);
    end if;
    perform from fencepost.store where id = 1 for update;
    if not found then
        raise exception 'the store has no row' using errcode = 'ZF500';
    end if;
end
$$
-- ;;
-- turn begins a turn: it locks the store, reads the clock (microseconds since 1970), says which run of which server this is, and locks the
-- rows of those leases that may yield something in the turn and that no transaction guards. Those that one does are held. A gateway that
-- stands still in its turn is thrown out after stall milliseconds.
create or replace function fencepost.turn(tried bigint[], stall int, out at bigint, out run text, out held bigint[])
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    free bigint[];
    was  text;
begin
    was := set_config('idle_in_transaction_session_timeout', stall::text, true);
    perform fencepost.lock_store();
    held := '{}';
    if cardinality(tried) > 0 then
        with taken as materialized (
            select l.token from fencepost.lease l where l.token = any(tried) for update skip locked
        )
        select coalesce(array_agg(taken.token), '{}') from taken into free;
        select coalesce(array_agg(l.token), '{}') from fencepost.lease l where l.token = any(tried) and l.token <> all(free) into held;
    end if;
    at := (extract(epoch from clock_timestamp()) * 1000000)::bigint;
    run := extract(epoch from pg_postmaster_start_time())::text || ' ' || left(pg_walfile_name(pg_current_wal_lsn()), 8) || '/' || 'fencepost.log'::regclass::oid;
end
$$
-- ;;
-- put_leases removes leases, and writes those that a turn has changed.
create or replace function fencepost.put_leases(
    ended bigint[], tokens bigint[], names text[], leases text[], slots int[], modes text[], owners text[], acquired bigint[], expires bigint[])
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    if ended <> '{}' then
        delete from fencepost.lease l where l.token = any(ended);
    end if;
    if tokens <> '{}' then
        insert into fencepost.lease (token, name, lease, slot, mode, owner, acquired_at, expires_at)
        select t, n, l, nullif(s, -1), m, o, timestamptz 'epoch' + a * interval '1 microsecond', timestamptz 'epoch' + e * interval '1 microsecond'
        from unnest(tokens, names, leases, slots, modes, owners, acquired, expires) as u(t, n, l, s, m, o, a, e)
        on conflict (token) do update
        set slot = excluded.slot, mode = excluded.mode, owner = excluded.owner, acquired_at = excluded.acquired_at, expires_at = excluded.expires_at;
    end if;
end
$$
-- ;;
-- append ends a turn: it writes its entry, and the leases that it has changed.
create or replace function fencepost.append(
    seq bigint, id bigint, entry bytea, ended bigint[], tokens bigint[], names text[], leases text[], slots int[], modes text[],
    owners text[], acquired bigint[], expires bigint[])
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into fencepost.log values (append.seq, append.id, append.entry);
    perform fencepost.put_leases(ended, tokens, names, leases, slots, modes, owners, acquired, expires);
end
$$
-- ;;
-- What version 1 had.
drop function if exists fencepost.turn_alone(bigint, bigint, text, bigint, bigint, bigint[], int, bigint, bytea, bigint[], bigint[], text[], text[], int[], text[], text[], bigint[], bigint[])
-- ;;
-- turn_alone is a turn in one statement: it writes an entry behind the one that is named, unless something is otherwise than the gateway
-- believes: then it returns null, else the clock. The entry's instant is at; late is how many microseconds that may be before the clock, and less
-- than 0 for any. It has as few statements as can be, and plans each of them once: a lone caller waits for little else.
create or replace function fencepost.turn_alone(
    last bigint, last_id bigint, believed text, at bigint, late bigint, tried bigint[], id bigint, entry bytea, ended bigint[],
    tokens bigint[], names text[], leases text[], slots int[], modes text[], owners text[], acquired bigint[], expires bigint[])
returns bigint
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    clock bigint;
begin
    perform fencepost.lock_store();
    clock := (extract(epoch from clock_timestamp()) * 1000000)::bigint;
    if late >= 0 and clock not between turn_alone.at and turn_alone.at + late
        or believed <> extract(epoch from pg_postmaster_start_time())::text || ' ' || left(pg_walfile_name(pg_current_wal_lsn()), 8) || '/' || 'fencepost.log'::regclass::oid
    then
        return null;
    end if;
    -- Nobody appends while the store is locked, and what is cut off is older: so nothing is behind last if the number after it is free.
    if tried = '{}' then
        insert into fencepost.log select last + 1, turn_alone.id, turn_alone.entry
        from fencepost.log l where l.seq = last and l.id = last_id
        on conflict do nothing;
    else
        with taken as materialized (
            select l.token from fencepost.lease l where l.token = any(tried) for update skip locked
        )
        insert into fencepost.log select last + 1, turn_alone.id, turn_alone.entry
        from fencepost.log l where l.seq = last and l.id = last_id
            and not exists (select from fencepost.lease l where l.token = any(tried) and l.token <> all(array(select taken.token from taken)))
        on conflict do nothing;
    end if;
    if not found then
        return null;
    end if;
    perform fencepost.put_leases(ended, tokens, names, leases, slots, modes, owners, acquired, expires);
    return clock;
end
$$
