-- Take the parts of one recipe. docs/storage/postgresql.md says what to know. :resource, :token and :value are parameters; bind the token
-- as a 64-bit integer.

-- Guarded UPDATE: the token is in the row that it protects.
-- update setup: once
CREATE TABLE orders (
    id     text PRIMARY KEY,
    status text NOT NULL,
    fence  bigint NOT NULL DEFAULT 0 CHECK (fence BETWEEN 0 AND 9007199254740991)
);
-- update write: for each write
UPDATE orders SET status = :value, fence = :token
 WHERE id = :resource AND fence <= :token;
-- no row: you are stale, stop. The row must be there, with a fence that is not NULL: else no row changes either

-- The same, if the row may be missing.
-- upsert write: for each write
INSERT INTO orders (id, status, fence) VALUES (:resource, :value, :token)
    ON CONFLICT (id) DO UPDATE SET status = EXCLUDED.status, fence = EXCLUDED.fence
    WHERE orders.fence <= EXCLUDED.fence;
-- no row: you are stale, stop

-- Guard table: one row per lock. The transaction admits its token there, and then writes what it likes.
-- table setup: once
CREATE TABLE IF NOT EXISTS fences (
    resource text PRIMARY KEY,
    token    bigint NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991),
    slots    text NOT NULL
);
CREATE TABLE orders (id text PRIMARY KEY, status text NOT NULL);
-- table upgrade: once, if an earlier version of this file made the table fence. Who writes to that fails from then on. Programs in
-- Go call CreateTable before: it refuses, but makes ready what an earlier version has written. After an error or a break, repeat the
-- part: a table fences_before is first renamed to fence again. CreateTable refuses as long as a mark is missing.
-- A trigger needs the function of today.
BEGIN;
CREATE TABLE IF NOT EXISTS fences (
    resource text PRIMARY KEY,
    token    bigint NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991),
    slots    text NOT NULL
);
ALTER TABLE fence RENAME TO fences_before;
INSERT INTO fences (resource, token, slots) SELECT resource, token, '' FROM fences_before WHERE true
    ON CONFLICT (resource) DO UPDATE SET token = EXCLUDED.token, slots = ''
    WHERE fences.token <= EXCLUDED.token;
COMMIT;
-- table write: for each write
BEGIN;
INSERT INTO fences (resource, token, slots) VALUES (:resource, :token, '')
    ON CONFLICT (resource) DO UPDATE SET token = EXCLUDED.token, slots = ''
    WHERE fences.token <= EXCLUDED.token;
-- no row: you are stale, ROLLBACK and stop
INSERT INTO orders (id, status) VALUES (:resource, :value)
    ON CONFLICT (id) DO UPDATE SET status = EXCLUDED.status;
COMMIT;

-- A trigger that nobody can forget: the table itself asks the guard table.
-- trigger setup: once, as the owner of the tables. It is for tables in the schema public: else change search_path.
CREATE TABLE IF NOT EXISTS fences (
    resource text PRIMARY KEY,
    token    bigint NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991),
    slots    text NOT NULL
);
CREATE TABLE orders (id text PRIMARY KEY, status text NOT NULL);

CREATE OR REPLACE FUNCTION admit_fencing_token() RETURNS trigger LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    mine bigint := nullif(current_setting('fence.token', true), '');
BEGIN
    IF mine IS NULL THEN
        RAISE EXCEPTION 'no fencing token' USING ERRCODE = 'ZF428',
            HINT = 'SELECT set_config(''fence.token'', the token, true) first in the transaction';
    END IF;
    IF TG_OP = 'TRUNCATE' THEN
        RAISE EXCEPTION 'TRUNCATE can''t be fenced' USING ERRCODE = 'ZF428';
    ELSIF TG_OP = 'UPDATE' AND NEW.id <> OLD.id THEN
        RAISE EXCEPTION 'an UPDATE of an id can''t be fenced' USING ERRCODE = 'ZF428';
    END IF;
    -- The id of a row is the resource. If another table has equal ids for other locks, put its name before them here.
    INSERT INTO fences (resource, token, slots) VALUES (coalesce(NEW.id, OLD.id), mine, '')
        ON CONFLICT (resource) DO UPDATE SET token = EXCLUDED.token, slots = ''
        WHERE fences.token <= EXCLUDED.token;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'stale fencing token %', mine USING ERRCODE = 'ZF412';
    END IF;
    RETURN coalesce(NEW, OLD);
END $$;

CREATE TRIGGER fenced BEFORE INSERT OR UPDATE OR DELETE ON orders
    FOR EACH ROW EXECUTE FUNCTION admit_fencing_token();
CREATE TRIGGER fenced_whole BEFORE TRUNCATE ON orders
    FOR EACH STATEMENT EXECUTE FUNCTION admit_fencing_token();
-- trigger rights: a role for programs, which owns nothing and has no rights on fences
CREATE ROLE program LOGIN;
GRANT SELECT, INSERT, UPDATE, DELETE ON orders TO program;
-- trigger write: for each write; SQLSTATE ZF412: you are stale, ROLLBACK and stop
BEGIN;
SELECT set_config('fence.token', CAST(CAST(:token AS bigint) AS text), true);
INSERT INTO orders (id, status) VALUES (:resource, :value)
    ON CONFLICT (id) DO UPDATE SET status = EXCLUDED.status;
COMMIT;
