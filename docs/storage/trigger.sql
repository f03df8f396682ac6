CREATE TABLE fence (
    resource text PRIMARY KEY,
    token    bigint NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991)
);
CREATE TABLE orders (id text PRIMARY KEY, status text NOT NULL);

CREATE FUNCTION admit_fencing_token() RETURNS trigger LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    mine bigint := nullif(current_setting('fence.token', true), '');
BEGIN
    IF mine IS NULL THEN
        RAISE EXCEPTION 'no fencing token' USING ERRCODE = 'ZF428',
            HINT = 'SELECT set_config(''fence.token'', the token, true) first in the transaction';
    END IF;
    IF TG_OP = 'TRUNCATE' OR TG_OP = 'UPDATE' AND NEW.id <> OLD.id THEN
        RAISE EXCEPTION '% of all rows, or of an id, can''t be fenced', TG_OP USING ERRCODE = 'ZF428';
    END IF;
    INSERT INTO fence (resource, token) VALUES (coalesce(NEW.id, OLD.id), mine)
        ON CONFLICT (resource) DO UPDATE SET token = EXCLUDED.token
        WHERE fence.token <= EXCLUDED.token;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'stale fencing token %', mine USING ERRCODE = 'ZF412';
    END IF;
    RETURN coalesce(NEW, OLD);
END $$;

CREATE TRIGGER fenced BEFORE INSERT OR UPDATE OR DELETE ON orders
    FOR EACH ROW EXECUTE FUNCTION admit_fencing_token();
CREATE TRIGGER fenced_whole BEFORE TRUNCATE ON orders
    FOR EACH STATEMENT EXECUTE FUNCTION admit_fencing_token();
