-- +goose Up

-- The author of users' commits, and their SSH keys. Servers of the version before go on: their
-- workspaces have neither.
CREATE TABLE git_identities (
    user_id     uuid PRIMARY KEY REFERENCES users (id) ON DELETE CASCADE,
    name        text NOT NULL DEFAULT '',
    email       text NOT NULL DEFAULT '',
    sign        boolean NOT NULL DEFAULT false,
    public_key  text NOT NULL DEFAULT '',
    private_key bytea,
    key_made_at timestamptz,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK (num_nonnulls(private_key, key_made_at, NULLIF(public_key, '')) IN (0, 3)),
    CHECK (NOT sign OR private_key IS NOT NULL)
);
ALTER TABLE user_identities ADD COLUMN full_name text NOT NULL DEFAULT '', ADD COLUMN email text NOT NULL DEFAULT '';
COMMENT ON COLUMN user_identities.full_name IS 'as the provider has it, the default author of commits; empty: unknown';
COMMENT ON COLUMN user_identities.email IS 'as `full_name`';
COMMENT ON TABLE git_identities IS 'The author of users'' commits, and the SSH keys of their workspaces (docs/git.md). Only a signature and a rotation of the keys read a private key.';
COMMENT ON COLUMN git_identities.name IS 'empty: that of the identity provider, or the username';
COMMENT ON COLUMN git_identities.email IS 'empty: that of the identity provider, or none';
COMMENT ON COLUMN git_identities.sign IS 'git signs commits and tags';
COMMENT ON COLUMN git_identities.public_key IS 'as in authorized_keys, without a comment; empty: there is no key';
COMMENT ON COLUMN git_identities.private_key IS 'seed of the Ed25519 key, encrypted for this user and public key (docs/security.md#encrypted-values)';

-- Running workspaces of the user get the change.
-- +goose StatementBegin
CREATE FUNCTION notify_git_identity() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    whose uuid := CASE WHEN TG_OP = 'DELETE' THEN OLD.user_id ELSE NEW.user_id END;
BEGIN
    PERFORM notify_shared(ARRAY(SELECT id FROM workspaces WHERE owner_user_id = whose AND holds_slot));
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER git_identities_sse AFTER INSERT OR UPDATE OR DELETE ON git_identities
    FOR EACH ROW EXECUTE FUNCTION notify_git_identity();
