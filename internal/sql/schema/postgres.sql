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
-- turn begins a turn: it locks the store, reads the clock (microseconds since 1970), says which run of which server this is, and locks the rows of those leases that may end in the turn and that no
-- transaction guards. Those that one does are held. A gateway that stands still in its turn is thrown out after stall milliseconds.
-- The key is that of turns that are held off: see held.
create or replace function fencepost.turn(tried bigint[], stall int, out at bigint, out run text, out held bigint[])
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    free bigint[];
begin
    if not pg_try_advisory_xact_lock_shared(7378424937699110771) then
        perform fencepost.held();
    end if;
    perform set_config('lock_timeout', '5s', true),
        set_config('idle_in_transaction_session_timeout', stall::text, true),
        set_config('client_min_messages', 'warning', true), -- one warns of a commit that no standby has
        set_config('enable_seqscan', 'off', true);
    if current_setting('synchronous_commit') = 'off' then
        perform set_config('synchronous_commit', 'on', true);
    end if;
    perform 1 from fencepost.store where id = 1 for update;
    if not found then
        raise exception 'the store has no row' using errcode = 'ZF500';
    end if;
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
    if cardinality(ended) > 0 then
        delete from fencepost.lease l where l.token = any(ended);
    end if;
    if cardinality(tokens) > 0 then
        insert into fencepost.lease (token, name, lease, slot, mode, owner, acquired_at, expires_at)
        select t, n, l, nullif(s, -1), m, o, timestamptz 'epoch' + a * interval '1 microsecond', timestamptz 'epoch' + e * interval '1 microsecond'
        from unnest(tokens, names, leases, slots, modes, owners, acquired, expires) as u(t, n, l, s, m, o, a, e)
        on conflict (token) do update
        set slot = excluded.slot, mode = excluded.mode, owner = excluded.owner, acquired_at = excluded.acquired_at, expires_at = excluded.expires_at;
    end if;
end
$$
-- ;;
-- turn_alone is a turn in one statement: it writes an entry behind the one that is named, unless something is otherwise than the gateway
-- believes. The entry's instant is at; late is how many microseconds that may be before the clock, and less than 0 for any.
create or replace function fencepost.turn_alone(
    last bigint, last_id bigint, believed text, at bigint, late bigint, tried bigint[], stall int, id bigint, entry bytea, ended bigint[],
    tokens bigint[], names text[], leases text[], slots int[], modes text[], owners text[], acquired bigint[], expires bigint[],
    out now bigint, out done boolean)
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    t record;
begin
    select * from fencepost.turn(tried, stall) into t;
    now := t.at;
    done := t.run = believed and t.held = '{}'
        and (late < 0 or now between turn_alone.at and turn_alone.at + late)
        and (select l.id from fencepost.log l where l.seq = last) = last_id
        and not exists (select from fencepost.log l where l.seq > last);
    done := coalesce(done, false);
    if done then
        perform fencepost.append(last + 1, turn_alone.id, turn_alone.entry, ended, tokens, names, leases, slots, modes, owners, acquired, expires);
    end if;
end
$$
