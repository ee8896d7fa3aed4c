-- Rows as the first version left them, in every status. @ stands for six
-- characters of the test's own, so that names in Docker do not meet. Passwords:
-- kim and lee testpassword, admin admin (which that version came with).

INSERT INTO users (id, username, password_hash, created_at, failed_login_attempts, locked_until, last_failed_at) VALUES
('01JFA0000000000000K0@', 'kim', '$argon2id$v=19$m=65536,t=3,p=4$v0dTt9RuCAnb/3vSZXKDGg$KnREf1GzvJaig9tx7+alrITO4r3TQSPpS2AK0hdxnJg', '2025-12-21 06:00:00Z', 7, '2026-01-01 00:00:00Z', '2025-12-31 23:59:00Z'),
('01JFA0000000000000M0@', 'lee', '$argon2id$v=19$m=102400,t=2,p=8$UyCfUPrQ7YpghHHBI1wO+w$6wgxspNgJKVrsNfRJdJ5pg', '2025-12-22 06:00:00Z', 0, NULL, NULL),
('01JFA0000000000000A0@', 'admin', '$argon2id$v=19$m=65536,t=3,p=4$3Izt5V2qvYckjaSnyV43tQ$VaUjAk8kCSaff6tq5ooro7K142grW/xMUe+DdJQMlxg', '2025-12-20 06:00:00Z', 0, NULL, NULL);

INSERT INTO sessions (id, user_id, created_at, expires_at) VALUES
('01JFA0000000000000S0@', '01JFA0000000000000K0@', '2025-12-22 06:00:00Z', '2099-01-01 00:00:00Z');

INSERT INTO workspaces (id, owner_user_id, name, description, memo, status, image_ref, instance_backend, storage_backend,
    home_store_key, home_ctx, created_at, updated_at, deleted_at)
SELECT id, owner, name, description, memo, status::workspacestatus, 'cagojeiger/code-server:4.107.0', 'local-docker', 'local-dir',
    'users/' || owner || '/workspaces/' || id || '/home',
    CASE WHEN provisioned THEN '/srv/homes/users/' || owner || '/workspaces/' || id || '/home' END,
    created_at::timestamptz, updated_at::timestamptz, deleted_at::timestamptz
FROM (VALUES
    -- kim's: one of each status, two of one name, and a start and a stop that a crash cut short
    ('01JFB0000000000000C0@', '01JFA0000000000000K0@', 'never started', NULL, NULL, 'CREATED', false, '2026-01-01 09:00:00+09', '2026-01-01 09:00:00+09', NULL),
    ('01JFB0000000000000P0@', '01JFA0000000000000K0@', 'starting', 'a start that was cut short', NULL, 'PROVISIONING', true, '2026-01-02 09:00:00+09', '2026-02-01 12:00:00+09', NULL),
    ('01JFB0000000000000R0@', '01JFA0000000000000K0@', 'project', '실행 중', E'several\nlines', 'RUNNING', true, '2026-01-03 09:00:00+09', '2026-02-03 12:00:00+09', NULL),
    ('01JFB0000000000000G0@', '01JFA0000000000000K0@', 'stopping', '', '', 'STOPPING', true, '2026-01-04 09:00:00+09', '2026-02-01 12:00:00+09', NULL),
    ('01JFB0000000000000T0@', '01JFA0000000000000K0@', 'project', NULL, NULL, 'STOPPED', false, '2026-01-05 09:00:00+09', '2026-02-01 12:00:00+09', NULL),
    ('01JFB0000000000000D0@', '01JFA0000000000000K0@', 'half deleted', NULL, NULL, 'DELETING', true, '2026-01-06 09:00:00+09', '2026-02-01 12:00:00+09', NULL),
    ('01JFB0000000000000E0@', '01JFA0000000000000K0@', 'failed', NULL, NULL, 'ERROR', false, '2026-01-07 09:00:00+09', '2026-02-01 12:00:00+09', NULL),
    ('01JFB0000000000000X0@', '01JFA0000000000000K0@', 'project', NULL, NULL, 'DELETED', false, '2026-01-08 09:00:00+09', '2026-02-01 12:00:00+09', '2026-02-01 12:00:00+09'),
    -- lee's, of a name that kim has, too
    ('01JFB0000000000000T1@', '01JFA0000000000000M0@', 'project', NULL, NULL, 'STOPPED', false, '2026-01-09 09:00:00+09', '2026-02-01 12:00:00+09', NULL)
) AS w (id, owner, name, description, memo, status, provisioned, created_at, updated_at, deleted_at);
