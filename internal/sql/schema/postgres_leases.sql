-- The leases that are live, for people and for transactions. PostgreSQL 14 or later.
-- A line "-- ;;" ends a statement. Each may be run again, and keeps the rights that were granted.

-- One row a lease: inserted by the turn that grants it, deleted by the one that ends it. Renewals
-- update expires_at, which is in no key, so a guard (FOR KEY SHARE) does not hold them up.
-- It does hold up the DELETE. Leases that nobody was told of yet have no row.
create table if not exists fencepost.lease (
    token       bigint primary key,
    name        text collate "C" not null,
    lease       text not null,
    slot        int,
    mode        text not null,
    owner       text not null,
    acquired_at timestamptz not null,
    expires_at  timestamptz not null
) with (fillfactor = 80)
-- ;;
create index if not exists lease_name on fencepost.lease (name)
-- ;;
create or replace view fencepost.leases as
    select name, token as fencing_token, lease, slot, mode, owner, acquired_at, expires_at
    from fencepost.lease
    where expires_at > clock_timestamp()
-- ;;
-- guard returns when the lease of name with this fencing token ends, and keeps the name from being
-- handed on until the caller's transaction ends. It fails with SQLSTATE ZF410 if that lease is
-- not live now. It runs with the rights of its owner: its callers can't lock rows.
--
-- The lock is what counts: a gateway that can't delete the row grants the name to nobody. The
-- time is compared after the lock was had, which may have been waited for.
create or replace function fencepost.guard(name text, token bigint) returns timestamptz
    language plpgsql volatile security definer
    set search_path = pg_catalog, pg_temp
    set enable_seqscan = off -- the plan of an empty table reads dead rows
as $guard$
declare
    lock_name text collate "C";
    ends      timestamptz;
    idle      interval := current_setting('idle_in_transaction_session_timeout')::interval;
begin
    select l.name, l.expires_at into lock_name, ends
        from fencepost.lease as l where l.token = guard.token
        for key share;
    if lock_name is null then
        raise exception 'the lock % is not held with the fencing token %', quote_nullable(guard.name), coalesce(guard.token::text, 'null')
            using errcode = 'ZF410';
    end if;
    if lock_name is distinct from guard.name collate "C" then
        raise exception 'the fencing token % is not one of the lock % but of another one', guard.token, quote_nullable(guard.name)
            using errcode = 'ZF410';
    end if;
    if ends <= clock_timestamp() then
        raise exception 'the lease of the lock % with the fencing token % was over at %', quote_nullable(guard.name), guard.token,
            to_char(ends at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
            using errcode = 'ZF410';
    end if;
    -- For the rest of the transaction. 0 is no bound.
    if idle = interval '0' or idle > interval '60 s' then
        perform set_config('idle_in_transaction_session_timeout', '60s', true);
    end if;
    return ends;
end
$guard$
-- ;;
-- Functions may be called by everybody unless that is taken back.
revoke all on function fencepost.guard(text, bigint) from public
