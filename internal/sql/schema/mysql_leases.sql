-- The leases that are live, for people and for transactions. MariaDB 10.6 or later, MySQL 8.0.29 or
-- later. A line "-- ;;" ends a statement. Each may be run again, and keeps the rights that were
-- granted. What stands in /*M! is for MariaDB alone, in /*!80029 for MySQL alone; so on MySQL a new
-- version of the function needs a DROP FUNCTION first, which takes back the rights to it.

-- One row a lease: inserted by the turn that grants it, deleted by the one that ends it, and never
-- updated, for a guard (LOCK IN SHARE MODE) would hold that up. Leases that nobody was told of yet
-- have no row. Times are in UTC. Names are ASCII.
create table if not exists lease (
    token       bigint not null primary key,
    name        varchar(255) character set ascii collate ascii_bin not null,
    lease       varchar(64) character set ascii collate ascii_bin not null,
    slot        int,
    mode        varchar(16) character set ascii collate ascii_bin not null,
    owner       varchar(256) character set utf8mb4 collate utf8mb4_bin not null,
    acquired_at datetime(6) not null,
    key (name)
) engine = InnoDB
-- ;;
-- When leases end, by token: what a renewal updates.
create table if not exists renewal (
    token      bigint not null primary key,
    expires_at datetime(6) not null
) engine = InnoDB
-- ;;
-- The tables stand in a query of their own, for who reads the view must not lock rows with it:
-- FOR UPDATE does not reach into it.
create or replace view leases as
    select name, fencing_token, lease, slot, mode, owner, acquired_at, expires_at
    from (
        select l.name, l.token as fencing_token, l.lease, l.slot, l.mode, l.owner, l.acquired_at, r.expires_at
        from lease as l join renewal as r on r.token = l.token
    ) as held
    where expires_at > utc_timestamp(6)
-- ;;
-- guard returns when (UTC) the lease of name with this fencing token ends, and keeps the name from
-- being handed on until the caller's transaction ends. It fails with SQLSTATE ZF410 if that
-- lease is not live now, and with ZF428 where it can't guard: outside of a transaction (MariaDB),
-- and at SERIALIZABLE, where the first read below would lock as well. It runs with the rights
-- of its owner.
--
-- The first read locks nothing, so a token that there is none of locks no gap, into which other
-- names' leases are inserted. The second locks by the primary key: through an index it would lock
-- gaps as well. The lock is what counts: a gateway that can't delete the row grants the
-- name to nobody. UTC_TIMESTAMP is the time of the call, also after the lock was waited for.
--
-- Who has waited for a row that was deleted is refused, and is left with a lock on it that becomes one on the gap when the row is
-- purged: that keeps new leases out until the transaction ends. Nothing here gives a lock back; the error asks for a rollback.
create /*M! or replace */ function /*!80029 if not exists */ guard(lock_name blob, fencing_token bigint) returns datetime(6)
    not deterministic reads sql data sql security definer
begin
    declare found_name varchar(255) character set ascii collate ascii_bin;
    declare found_token bigint;
    declare ends datetime(6);
    declare message varchar(128) character set utf8mb4;
    declare shown varchar(70) character set utf8mb4 default coalesce(concat('''', convert(left(lock_name, 60) using utf8mb4), ''''), 'null');
    declare continue handler for not found begin end;

    if upper(/*M! @@tx_isolation */ /*!80000 @@transaction_isolation */) = 'SERIALIZABLE' then
        signal sqlstate 'ZF428' set message_text = 'guard can''t be called at the isolation SERIALIZABLE, where reading locks other leases: take another';
    end if;
    /*M!
    if @@in_transaction = 0 and @@autocommit = 1 then
        signal sqlstate 'ZF428' set message_text = 'guard is to be called in a transaction: it guards until the transaction ends';
    end if;
    */

    select l.name into found_name from lease as l where l.token = fencing_token;
    if cast(found_name as binary) = lock_name then
        select l.token into found_token from lease as l where l.token = fencing_token lock in share mode;
        select r.expires_at into ends from renewal as r where r.token = fencing_token;
    end if;
    if found_name is not null and not cast(found_name as binary) <=> lock_name then
        set message = concat('the fencing token ', fencing_token, ' is not one of the lock ', shown);
        signal sqlstate 'ZF410' set message_text = message;
    elseif found_token is null or ends is null then
        set message = concat('the lock ', shown, ' is not held with the fencing token ', coalesce(fencing_token, 'null'));
        signal sqlstate 'ZF410' set message_text = message;
    elseif ends <= utc_timestamp(6) then
        set message = concat('the lease with the fencing token ', fencing_token, ' was over at ', date_format(ends, '%Y-%m-%dT%H:%i:%s.%fZ'));
        signal sqlstate 'ZF410' set message_text = message;
    end if;
    return ends;
end
