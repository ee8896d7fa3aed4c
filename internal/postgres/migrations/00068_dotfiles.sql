-- +goose Up

-- Dotfiles of users. Servers of the version before go on: they apply none.
CREATE TABLE dotfiles (
    user_id    uuid PRIMARY KEY REFERENCES users (id) ON DELETE CASCADE,
    url        text NOT NULL CHECK (url <> ''),
    branch     text NOT NULL DEFAULT '',
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE dotfiles IS 'The repository of a user''s dotfiles (docs/dotfiles.md)';
COMMENT ON COLUMN dotfiles.branch IS 'branch or tag; empty: the one that the repository begins with';
