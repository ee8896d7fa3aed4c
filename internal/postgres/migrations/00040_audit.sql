-- +goose Up

-- Where the request came from; null for the server itself.
ALTER TABLE audit_log ADD COLUMN address inet;

CREATE INDEX audit_log_action ON audit_log (action text_pattern_ops, id);
CREATE INDEX audit_log_username ON audit_log (lower(username), id);

-- Entries are added and never changed. Only those that are at least a day old can be removed,
-- by the retention. See docs/adr/0025.
-- +goose StatementBegin
CREATE FUNCTION keep_audit_log() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND OLD.at < clock_timestamp() - interval '1 day' THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'entries of the audit log cannot be changed or removed' USING ERRCODE = 'insufficient_privilege';
END
$$;
-- +goose StatementEnd

CREATE TRIGGER audit_log_rows BEFORE UPDATE OR DELETE ON audit_log
    FOR EACH ROW EXECUTE FUNCTION keep_audit_log();
CREATE TRIGGER audit_log_truncate BEFORE TRUNCATE ON audit_log
    FOR EACH STATEMENT EXECUTE FUNCTION keep_audit_log();

-- The time of an entry is that at which it is added: nobody can antedate one.
-- +goose StatementBegin
CREATE FUNCTION stamp_audit_log() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.at := clock_timestamp();
    RETURN NEW;
END
$$;
-- +goose StatementEnd

CREATE TRIGGER audit_log_stamp BEFORE INSERT ON audit_log
    FOR EACH ROW EXECUTE FUNCTION stamp_audit_log();

-- +goose Down

DROP TRIGGER audit_log_stamp ON audit_log;
DROP FUNCTION stamp_audit_log();
DROP TRIGGER audit_log_truncate ON audit_log;
DROP TRIGGER audit_log_rows ON audit_log;
DROP FUNCTION keep_audit_log();
DROP INDEX audit_log_username, audit_log_action;
ALTER TABLE audit_log DROP COLUMN address;
