-- Take the parts of one recipe. docs/storage/mariadb.md says what to know. :resource, :token and :value are parameters; bind the token
-- as a 64-bit integer.

-- Guarded UPDATE: the token is in the row that it protects.
-- update setup: once
CREATE TABLE orders (
    id     VARBINARY(255) PRIMARY KEY,
    status TEXT NOT NULL,
    fence  BIGINT NOT NULL DEFAULT 0 CHECK (fence BETWEEN 0 AND 9007199254740991)
) ENGINE=InnoDB;
-- update write: for each write
UPDATE orders SET status = :value, fence = :token
 WHERE id = :resource AND fence <= :token;
-- no row: you are stale, stop. The row must be there, with a fence that is not NULL: else no row changes either

-- Guard table: one row per lock. The transaction admits its token there, and then writes what it likes.
-- table setup: once
CREATE TABLE IF NOT EXISTS fences (
    resource VARBINARY(255) PRIMARY KEY,
    token    BIGINT NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991),
    slots    MEDIUMTEXT NOT NULL
) ENGINE=InnoDB;
CREATE TABLE orders (id VARBINARY(255) PRIMARY KEY, status TEXT NOT NULL) ENGINE=InnoDB;
-- table upgrade: once, if an earlier version of this file made the table fence. Who writes to that fails from then on. Programs in
-- Go call CreateTable before: it refuses, but makes ready what an earlier version has written. After an error or a break, repeat the
-- part: a table fences_before is first renamed to fence again. CreateTable refuses as long as a mark is missing.
CREATE TABLE IF NOT EXISTS fences (
    resource VARBINARY(255) PRIMARY KEY,
    token    BIGINT NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991),
    slots    MEDIUMTEXT NOT NULL
) ENGINE=InnoDB;
LOCK TABLES fence WRITE, fences WRITE;
INSERT INTO fences (resource, token, slots) SELECT resource, token, '' FROM fence
    ON DUPLICATE KEY UPDATE slots = IF(fences.token <= fence.token, '', fences.slots), token = GREATEST(fences.token, fence.token);
ALTER TABLE fence RENAME TO fences_before;
UNLOCK TABLES;
-- table write: for each write
START TRANSACTION;
INSERT INTO fences (resource, token, slots) VALUES (:resource, :token, '')
    ON DUPLICATE KEY UPDATE slots = IF(token <= :token, '', slots), token = GREATEST(token, :token);
SELECT token FROM fences WHERE resource = :resource AND token = :token FOR UPDATE;
-- no row: you are stale, ROLLBACK and stop
INSERT INTO orders (id, status) VALUES (:resource, :value)
    ON DUPLICATE KEY UPDATE status = :value;
COMMIT;
