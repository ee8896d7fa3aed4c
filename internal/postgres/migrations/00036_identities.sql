-- +goose Up

-- Why a user's access is suspended until the identity provider confirms the user again;
-- null: it is not. Access of inactive users has no effect.
ALTER TABLE users
    ADD COLUMN suspended_for text CHECK (suspended_for IN ('refused', 'not_allowed', 'unreachable')),
    ADD COLUMN active boolean NOT NULL GENERATED ALWAYS AS (NOT disabled AND suspended_for IS NULL) STORED,
    -- Until when the user may log in with a password although password logins are turned off.
    ADD COLUMN password_login_until timestamptz;

-- Accounts at identity providers. An identity is its issuer and subject, and nothing else
-- that the provider says.
CREATE TABLE user_identities (
    id            uuid PRIMARY KEY,
    user_id       uuid NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    issuer        text NOT NULL CHECK (issuer <> ''),
    subject       text NOT NULL CHECK (subject <> ''),
    username      text NOT NULL DEFAULT '',
    -- The provider accepted the user at the last check.
    active        boolean NOT NULL DEFAULT true,
    -- Encrypted; see internal/signin.
    refresh_token bytea,
    admin_granted boolean NOT NULL DEFAULT false,
    created_at    timestamptz NOT NULL DEFAULT now(),
    checked_at    timestamptz NOT NULL DEFAULT now(),
    tried_at      timestamptz NOT NULL DEFAULT now(),
    claimed_until timestamptz,
    failing_since timestamptz,
    CONSTRAINT user_identities_subject UNIQUE (issuer, subject)
);
CREATE INDEX user_identities_user ON user_identities (user_id);
CREATE INDEX user_identities_tried ON user_identities (tried_at) WHERE active;

-- The groups of which the provider said at the last check that the user is a member.
CREATE TABLE user_claim_groups (
    identity_id uuid NOT NULL REFERENCES user_identities (id) ON DELETE CASCADE,
    name        text NOT NULL CHECK (name <> ''),
    PRIMARY KEY (identity_id, name)
);
CREATE INDEX user_claim_groups_name ON user_claim_groups (name);

-- The identity that a session was begun with, and the provider's id of its own session.
ALTER TABLE sessions
    ADD COLUMN identity_id uuid REFERENCES user_identities (id) ON DELETE CASCADE,
    ADD COLUMN provider_session text;
CREATE INDEX sessions_identity ON sessions (identity_id);

-- Logout tokens that providers have sent, for as long as they could be sent again.
CREATE TABLE provider_logouts (
    issuer           text NOT NULL,
    token_id         text NOT NULL,
    provider_session text,
    expires_at       timestamptz NOT NULL,
    PRIMARY KEY (issuer, token_id)
);
CREATE INDEX provider_logouts_session ON provider_logouts (issuer, provider_session);

DROP TRIGGER users_changed ON users;
CREATE TRIGGER users_changed AFTER UPDATE ON users
    FOR EACH ROW WHEN (
        (OLD.username, OLD.password_hash, OLD.admin, OLD.active, OLD.max_running)
        IS DISTINCT FROM
        (NEW.username, NEW.password_hash, NEW.admin, NEW.active, NEW.max_running)
    ) EXECUTE FUNCTION notify_user_changed();

-- +goose Down

DROP TRIGGER users_changed ON users;
CREATE TRIGGER users_changed AFTER UPDATE ON users
    FOR EACH ROW WHEN (
        (OLD.username, OLD.password_hash, OLD.admin, OLD.disabled, OLD.max_running)
        IS DISTINCT FROM
        (NEW.username, NEW.password_hash, NEW.admin, NEW.disabled, NEW.max_running)
    ) EXECUTE FUNCTION notify_user_changed();
DROP TABLE provider_logouts;
ALTER TABLE sessions DROP COLUMN provider_session, DROP COLUMN identity_id;
DROP TABLE user_claim_groups;
DROP TABLE user_identities;
ALTER TABLE users DROP COLUMN password_login_until, DROP COLUMN active, DROP COLUMN suspended_for;
