-- Take the parts of one recipe. docs/storage/sqlite.md says what to know. :resource, :token and :value are parameters; bind the token
-- as a 64-bit integer.

-- Guarded UPDATE: the token is in the row that it protects.
-- update setup: once
CREATE TABLE orders (
    id     TEXT PRIMARY KEY,
    status TEXT NOT NULL,
    fence  INTEGER NOT NULL DEFAULT 0 CHECK (typeof(fence) = 'integer' AND fence BETWEEN 0 AND 9007199254740991)
);
-- update write: for each write
UPDATE orders SET status = :value, fence = :token
 WHERE id = :resource AND fence <= :token;
-- no row: you are stale, stop. The row must be there, with a fence that is not NULL: else no row changes either

-- The same, if the row may be missing. It needs SQLite 3.24.
-- upsert write: for each write
INSERT INTO orders (id, status, fence) VALUES (:resource, :value, :token)
    ON CONFLICT (id) DO UPDATE SET status = excluded.status, fence = excluded.fence
    WHERE orders.fence <= excluded.fence;
-- no row: you are stale, stop

-- Guard table: one row per lock. The transaction admits its token there, and then writes what it likes.
-- table setup: once
CREATE TABLE IF NOT EXISTS fences (
    resource TEXT PRIMARY KEY CHECK (typeof(resource) = 'text'),
    token    INTEGER NOT NULL CHECK (typeof(token) = 'integer' AND token BETWEEN 1 AND 9007199254740991),
    slots    TEXT NOT NULL
);
CREATE TABLE orders (id TEXT PRIMARY KEY, status TEXT NOT NULL);
-- table upgrade: once, if an earlier version of this file made the table fence. Who writes to that fails from then on. Programs in
-- Go call CreateTable before: it refuses, but makes ready what an earlier version has written. After an error or a break, repeat the
-- part: a table fences_before is first renamed to fence again. CreateTable refuses as long as a mark is missing.
-- The RENAME comes first, so that OR ROLLBACK undoes it if a name is no text. Then make it one: CAST(resource AS TEXT).
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS fences (
    resource TEXT PRIMARY KEY CHECK (typeof(resource) = 'text'),
    token    INTEGER NOT NULL CHECK (typeof(token) = 'integer' AND token BETWEEN 1 AND 9007199254740991),
    slots    TEXT NOT NULL
);
ALTER TABLE fence RENAME TO fences_before;
INSERT OR ROLLBACK INTO fences (resource, token, slots) SELECT resource, token, '' FROM fences_before WHERE true
    ON CONFLICT (resource) DO UPDATE SET token = excluded.token, slots = ''
    WHERE fences.token <= excluded.token;
COMMIT;
-- table write: for each write
BEGIN IMMEDIATE;
INSERT INTO fences (resource, token, slots) VALUES (:resource, :token, '')
    ON CONFLICT (resource) DO UPDATE SET token = excluded.token, slots = ''
    WHERE fences.token <= excluded.token;
-- no row: you are stale, ROLLBACK and stop
INSERT INTO orders (id, status) VALUES (:resource, :value)
    ON CONFLICT (id) DO UPDATE SET status = excluded.status;
COMMIT;
