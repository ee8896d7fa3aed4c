-- +goose Up

-- Links with which users set their passwords, at most one of each user. Servers of the version
-- before go on: they show none, and the proof ends an invitation when they set a password.
CREATE TABLE invitations (
    user_id    uuid PRIMARY KEY REFERENCES users (id) ON DELETE CASCADE,
    -- SHA-256 of the secret in the link.
    hash       bytea NOT NULL CONSTRAINT invitations_hash UNIQUE CHECK (octet_length(hash) = 32),
    -- Of the password, or none, that the user had, as postgres.PasswordProof makes it.
    proof      text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL
);

-- +goose Down

DROP TABLE invitations;
