-- The tables of the lock store. Statements are apart by a line with two semicolons alone. Each may be run again.

-- One row. It is locked in each turn of a gateway, and never updated.
create table if not exists store (
    id      int not null primary key,
    version int not null, -- of these tables and of the functions
    format  int not null  -- of entries and snapshots
) engine = InnoDB
-- ;;
-- What gateways asked for, in order. It is only appended to, and cut behind a snapshot.
create table if not exists log (
    seq   bigint not null primary key,
    id    bigint not null, -- chosen by who wrote it: by it an entry is known
    entry longblob not null
) engine = InnoDB
-- ;;
-- The state as of an entry, in parts from 1. One that is whole has part 0, which says how many there are.
create table if not exists snapshot (
    seq   bigint not null,
    no    int not null,
    chunk longblob not null,
    primary key (seq, no)
) engine = InnoDB
-- ;;
-- Who writes a snapshot, and until when (UTC) nobody else does.
create table if not exists snapshotter (
    id      int not null primary key,
    gateway varchar(64) character set ascii collate ascii_bin not null,
    until   datetime(6) not null
) engine = InnoDB
-- ;;
insert ignore into snapshotter values (1, '', '1970-01-01')
