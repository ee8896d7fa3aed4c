package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"codehub/api"
	"codehub/internal/workspace"
)

// Actions on secrets in the audit log.
const (
	AuditSecretCreate = "secret.create"
	AuditSecretChange = "secret.change"
	AuditSecretDelete = "secret.delete"
)

// Limits of secrets.
const (
	MaxSecrets = 100 // of a user or a group
	// MaxSecretBytes is the size of all values of a user or a group, and MaxSecretVariables that of
	// those that are variables: the kernel bounds what a program gets.
	MaxSecretBytes     = 2 << 20
	MaxSecretVariables = 256 << 10
)

type Secret = api.Secret

// NewSecret is a secret that is stored, or replaces one. Value is sealed for SecretOwner.
type NewSecret struct {
	ID        string
	GroupID   string // empty: it is the caller's
	Name      string // of a new one
	Env, File string
	Workspace string // id; empty: all
	Template  string // name; empty: it does not matter
	Value     []byte // nil: unchanged
	Size      int    // of the value before it was sealed
}

// SecretOwner is what a secret of a user or a group is sealed for; secretOwner is the same in SQL.
func SecretOwner(id, userOrGroup string) string { return "secret " + id + " " + userOrGroup }

const secretOwner = `'secret ' || s.id || ' ' || coalesce(s.user_id, s.group_id)`

const secretColumns = `s.id, s.name, s.variable, s.path, s.workspace_id, coalesce(w.name, ''), s.template, s.group_id, coalesce(g.name, ''),
	s.group_id IS NULL OR me.admin,
	s.size, s.created_at, s.changed_at`

// secretsFrom are all secrets s, seen by the user $1, who is me.
const secretsFrom = `FROM secrets s JOIN users me ON me.id = $1 AND me.active
	LEFT JOIN workspaces w ON w.id = s.workspace_id AND w.owner_user_id = s.user_id AND w.deleted_at IS NULL LEFT JOIN user_groups g ON g.id = s.group_id`

func toSecret(row pgx.CollectableRow) (Secret, error) {
	var s Secret
	err := row.Scan(&s.ID, &s.Name, &s.Env, &s.File, &s.WorkspaceID, &s.WorkspaceName, &s.Template, &s.GroupID, &s.GroupName, &s.Manages, &s.Size, &s.CreatedAt, &s.ChangedAt)
	return s, err
}

// Secrets lists the caller's secrets by name, and those of the caller's groups after them.
func (db *DB) Secrets(ctx context.Context, caller workspace.Caller) (list api.SecretList, err error) {
	if !workspace.ValidID(caller.UserID) {
		return list, forbidden()
	}
	return db.secrets(ctx, caller, `s.user_id = me.id OR s.group_id IN (SELECT group_id FROM group_people WHERE user_id = me.id)`)
}

// GroupSecrets lists the secrets of a group by name. CodeForbidden for a caller who is neither an
// administrator nor a member.
func (db *DB) GroupSecrets(ctx context.Context, caller workspace.Caller, id string) (list api.SecretList, err error) {
	if _, err := group(ctx, db.pool, caller, id); err != nil {
		return list, failed("read a group", err)
	}
	return db.secrets(ctx, caller, `s.group_id = $3`, id)
}

func (db *DB) secrets(ctx context.Context, caller workspace.Caller, which string, args ...any) (list api.SecretList, err error) {
	const verb = "list the secrets"
	rows, err := db.pool.Query(ctx, `
		SELECT `+secretColumns+` `+secretsFrom+` WHERE ($2 = '' OR s.workspace_id IS NULL OR s.workspace_id::text = $2) AND (`+which+`)
		ORDER BY s.group_id IS NOT NULL, coalesce(g.name_key, '') COLLATE "C", s.name COLLATE "C"`, append([]any{caller.UserID, string(caller.Only)}, args...)...)
	if err != nil {
		return list, failed(verb, err)
	}
	if list.Secrets, err = pgx.CollectRows(rows, toSecret); err != nil {
		return list, failed(verb, err)
	}
	rows, err = db.pool.Query(ctx, `
		SELECT w.id, w.name FROM workspaces w
		WHERE w.owner_user_id = $1 AND w.deleted_at IS NULL
			AND coalesce(w.conditions #>> '{infra.container_ready,reason}', $2) NOT IN ($2, $3)
			AND split_part(coalesce(w.running_env_digest, ''), $4, 2) <> `+secretsDigest+` AND ($5 = '' OR w.id::text = $5)
		ORDER BY w.name COLLATE "C"`, caller.UserID, workspace.ReasonNotObserved, workspace.ReasonNoContainer, workspace.SecretsMark, string(caller.Only))
	if err != nil {
		return list, failed(verb, err)
	}
	if list.Waiting, err = pgx.CollectRows(rows, pgx.RowToStructByPos[api.SecretWaiting]); err != nil {
		return list, failed(verb, err)
	}
	list.Missing, err = db.missingSecrets(ctx, caller, caller.Only)
	return list, failed(verb, err)
}

// MissingSecrets lists the secrets that the caller's workspace requires and does not have.
func (db *DB) MissingSecrets(ctx context.Context, caller workspace.Caller, id workspace.ID) ([]api.SecretMissing, error) {
	list, err := db.missingSecrets(ctx, caller, id)
	return list, failed("list missing secrets", err)
}

func (db *DB) missingSecrets(ctx context.Context, caller workspace.Caller, only workspace.ID) ([]api.SecretMissing, error) {
	rows, err := db.pool.Query(ctx, `
		SELECT w.id, w.name, r.name FROM workspaces w, jsonb_array_elements_text(
			coalesce(w.project -> 'secrets', '[]') || (coalesce(w.project #> '{devcontainer,secrets}', '[]') - ARRAY(SELECT jsonb_array_elements_text(w.project -> 'secrets')))
		) WITH ORDINALITY r (name, nr)
		WHERE w.owner_user_id = $1 AND w.deleted_at IS NULL AND ($2 = '' OR w.id::text = $2)
			AND NOT coalesce(w.env ? r.name, false) AND NOT EXISTS (SELECT FROM secrets s WHERE s.variable = r.name AND `+secretsOf+`)
		ORDER BY w.name COLLATE "C", r.nr`, caller.UserID, string(only))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[api.SecretMissing])
}

// LackedSecrets returns those of the variables that no secret of the caller would set in a new
// workspace of a template.
func (db *DB) LackedSecrets(ctx context.Context, caller workspace.Caller, template string, variables []string) ([]string, error) {
	if len(variables) == 0 {
		return nil, nil
	}
	const verb = "list missing secrets"
	rows, err := db.pool.Query(ctx, `
		SELECT r.name FROM unnest($3::text[]) WITH ORDINALITY r (name, nr)
		WHERE NOT EXISTS (SELECT FROM secrets s WHERE s.variable = r.name AND s.workspace_id IS NULL AND (s.template IS NULL OR s.template = $2)
			AND (s.user_id = $1 OR s.group_id IN (SELECT group_id FROM group_people WHERE user_id = $1)))
		ORDER BY r.nr`, caller.UserID, template, variables)
	if err != nil {
		return nil, failed(verb, err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return list, failed(verb, err)
}

// secretsOf are the secrets s that the workspace w gets.
const secretsOf = `((s.user_id = w.owner_user_id AND (s.workspace_id IS NULL OR s.workspace_id = w.id)
	OR s.group_id IN (SELECT p.group_id FROM group_people p WHERE p.user_id = w.owner_user_id)) AND (s.template IS NULL OR s.template = w.template ->> 'name'))`

// secretsDigest identifies the secrets of the workspace w and their versions; empty for none. It
// depends on no value, since those who see containers could try values out.
const secretsDigest = `(SELECT coalesce(left(encode(sha256(convert_to(string_agg(s.id || ' ' || s.version, ',' ORDER BY s.id), 'UTF8')), 'hex'), 24), '')
	FROM secrets s WHERE ` + secretsOf + `)`

// Secret reads a secret that the caller may change. CodeNotFound, also for one of another user;
// CodeForbidden for a member of its group who is no administrator.
func (db *DB) Secret(ctx context.Context, caller workspace.Caller, id string) (Secret, error) {
	s, err := secret(ctx, db.pool, caller, id)
	return s, failed("read a secret", err)
}

func secret(ctx context.Context, in querier, caller workspace.Caller, id string) (Secret, error) {
	if !workspace.ValidID(id) || !workspace.ValidID(caller.UserID) {
		return Secret{}, notFound("secret")
	}
	rows, err := in.Query(ctx, `
		SELECT `+secretColumns+` `+secretsFrom+`
		WHERE s.id = $2 AND (s.user_id = me.id OR s.group_id IS NOT NULL AND (me.admin OR s.group_id IN (SELECT group_id FROM group_people WHERE user_id = me.id)))`, caller.UserID, id)
	if err != nil {
		return Secret{}, err
	}
	s, err := pgx.CollectExactlyOneRow(rows, toSecret)
	switch {
	case missing(err):
		return s, notFound("secret")
	case err == nil && !s.Manages:
		return s, notAdmin()
	}
	return s, err
}

// lockSecrets makes this the only transaction that changes the secrets of a user or a group, which
// it returns. CodeForbidden unless the caller may change them: a group's only as an administrator.
func lockSecrets(ctx context.Context, tx pgx.Tx, caller workspace.Caller, groupID string) (owner string, err error) {
	if groupID == "" {
		return caller.UserID, lockUser(ctx, tx, caller.UserID)
	}
	// Group administrators add members who were not asked, and a secret can be code that a member's
	// programs run, such as ~/.bashrc.
	_, admin, err := lockGroup(ctx, tx, caller, groupID)
	if err == nil && !admin {
		err = notAdmin()
	}
	return groupID, err
}

// CreateSecret stores a secret of the caller or, by administrators, of a group.
// CodeNameTaken, also for a variable or a file of another secret; CodeQuotaExceeded; CodeNotFound
// for a workspace of another user.
func (db *DB) CreateSecret(ctx context.Context, caller workspace.Caller, n NewSecret) (made Secret, err error) {
	if !workspace.ValidID(caller.UserID) {
		return made, forbidden()
	}
	err = db.tx(ctx, "store a secret", func(tx pgx.Tx) error {
		owner, err := lockSecrets(ctx, tx, caller, n.GroupID)
		if err != nil {
			return err
		}
		var count int
		if err := tx.QueryRow(ctx, `SELECT count(*) FROM secrets WHERE coalesce(user_id, group_id) = $1`, owner).Scan(&count); err != nil {
			return err
		}
		if count >= MaxSecrets {
			return quotaExceeded("secrets", count, MaxSecrets, "There are %d secrets, and at most %d are allowed. Delete one first.")
		}
		if err := ownWorkspace(ctx, tx, caller, n.Workspace); err != nil {
			return err
		}
		user := nullable(caller.UserID)
		if n.GroupID != "" {
			user = nil
		}
		if _, err := tx.Exec(ctx, `
			INSERT INTO secrets (id, user_id, group_id, workspace_id, template, name, variable, path, value, size) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
			n.ID, user, nullable(n.GroupID), nullable(n.Workspace), nullable(n.Template), n.Name, n.Env, n.File, n.Value, n.Size); err != nil {
			return secretTaken(err, n)
		}
		if err := checkSizes(ctx, tx, owner); err != nil {
			return err
		}
		if made, err = secret(ctx, tx, caller, n.ID); err != nil {
			return err
		}
		return audit(ctx, tx, caller, AuditSecretCreate, n.ID, secretDetails(made))
	})
	return made, err
}

// ownWorkspace returns CodeNotFound unless the caller has the workspace; "" is none.
func ownWorkspace(ctx context.Context, tx pgx.Tx, caller workspace.Caller, id string) error {
	if id == "" {
		return nil
	}
	var has bool
	err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM workspaces WHERE id = $1 AND owner_user_id = $2 AND deleted_at IS NULL)`, idOrNull(id), caller.UserID).Scan(&has)
	if err == nil && !has {
		return notFound("workspace")
	}
	return err
}

// checkSizes returns CodeQuotaExceeded if the values of a user or a group are too long together.
func checkSizes(ctx context.Context, tx pgx.Tx, owner string) error {
	var all, variables int
	if err := tx.QueryRow(ctx, `
		SELECT coalesce(sum(size), 0), coalesce(sum(size) FILTER (WHERE variable <> ''), 0) FROM secrets WHERE coalesce(user_id, group_id) = $1`, owner).Scan(&all, &variables); err != nil {
		return err
	}
	switch {
	case all > MaxSecretBytes:
		return quotaExceeded("secret_bytes", all, MaxSecretBytes, "All values would have %d bytes, and at most %d are allowed.")
	case variables > MaxSecretVariables:
		return quotaExceeded("secret_variables", variables, MaxSecretVariables, "The values of all variables would have %d bytes, and at most %d are allowed. Use files for long values.")
	}
	return nil
}

// secretTaken names what another secret of the same owner has.
func secretTaken(err error, n NewSecret) error {
	for constraint, message := range map[string]string{
		"secrets_name":     fmt.Sprintf("A secret named %q exists.", n.Name),
		"secrets_variable": fmt.Sprintf("Another secret sets the variable %s for the same workspaces.", n.Env),
		"secrets_path":     fmt.Sprintf("Another secret has the file %s for the same workspaces.", n.File),
	} {
		if violates(err, constraint) {
			field := map[string]string{"secrets_name": "name", "secrets_variable": "env", "secrets_path": "file"}[constraint]
			return &workspace.Error{Code: workspace.CodeNameTaken, Message: message, Details: map[string]any{"field": field}, Err: err}
		}
	}
	return err
}

// secretDetails is what the audit log has of a secret.
func secretDetails(s Secret) map[string]any {
	details := map[string]any{"name": s.Name}
	for key, value := range map[string]string{"env": s.Env, "file": s.File, "group": s.GroupName, "workspace": s.WorkspaceName, "template": deref(s.Template)} {
		if value != "" {
			details[key] = value
		}
	}
	return details
}

// UpdateSecret replaces a secret that the caller may change, by its id. Its errors are those of
// CreateSecret.
func (db *DB) UpdateSecret(ctx context.Context, caller workspace.Caller, n NewSecret) (out Secret, err error) {
	err = db.tx(ctx, "change a secret", func(tx pgx.Tx) error {
		s, err := secret(ctx, tx, caller, n.ID)
		if err != nil {
			return err
		}
		owner, err := lockSecrets(ctx, tx, caller, deref(s.GroupID))
		if err != nil {
			return err
		}
		if n.Workspace != deref(s.WorkspaceID) {
			if err := ownWorkspace(ctx, tx, caller, n.Workspace); err != nil {
				return err
			}
		}
		done, err := tx.Exec(ctx, `
			UPDATE secrets SET variable = $2, path = $3, workspace_id = $4, template = $7, value = coalesce($5, value), size = CASE WHEN $5::bytea IS NULL THEN size ELSE $6 END,
				version = version + 1, changed_at = clock_timestamp()
			WHERE id = $1 AND ($5::bytea IS NOT NULL OR variable <> $2 OR path <> $3 OR workspace_id IS DISTINCT FROM $4 OR template IS DISTINCT FROM $7)`,
			n.ID, n.Env, n.File, nullable(n.Workspace), n.Value, n.Size, nullable(n.Template))
		if err != nil {
			return secretTaken(err, n)
		}
		if err := checkSizes(ctx, tx, owner); err != nil {
			return err
		}
		if out, err = secret(ctx, tx, caller, n.ID); err != nil || done.RowsAffected() == 0 {
			return err
		}
		details := secretDetails(out)
		if n.Value != nil {
			details["value"] = "changed"
		}
		return audit(ctx, tx, caller, AuditSecretChange, n.ID, details)
	})
	return out, err
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// DeleteSecret removes a secret that the caller may change. CodeNotFound; CodeForbidden.
func (db *DB) DeleteSecret(ctx context.Context, caller workspace.Caller, id string) error {
	return db.tx(ctx, "delete a secret", func(tx pgx.Tx) error {
		s, err := secret(ctx, tx, caller, id)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `DELETE FROM secrets WHERE id = $1`, id); err != nil {
			return err
		}
		return audit(ctx, tx, caller, AuditSecretDelete, id, secretDetails(s))
	})
}

// LaunchSecret is a secret that a workspace gets at its start.
type LaunchSecret struct {
	Name, Env, File string
	Value           []byte // sealed for Owner
	Owner           string
}

// LaunchSecrets reads the secrets of a workspace. Of two with the same variable or file, the later
// one counts: those of the user follow those of groups, and those for this workspace alone follow
// those for its template, which follow the others.
func (db *DB) LaunchSecrets(ctx context.Context, id workspace.ID) ([]LaunchSecret, error) {
	const verb = "read a workspace's secrets"
	rows, err := db.pool.Query(ctx, `
		SELECT s.name, s.variable, s.path, s.value, `+secretOwner+`
		FROM workspaces w JOIN secrets s ON `+secretsOf+` LEFT JOIN user_groups g ON g.id = s.group_id WHERE w.id = $1
		ORDER BY s.group_id IS NULL, s.workspace_id IS NOT NULL, s.template IS NOT NULL, coalesce(g.name_key, '') COLLATE "C" DESC, s.name COLLATE "C"`, id)
	if err != nil {
		return nil, failed(verb, err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[LaunchSecret])
	return list, failed(verb, err)
}
