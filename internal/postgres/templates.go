package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
)

// Actions on templates in the audit log.
const (
	AuditTemplateSave   = "template.save"
	AuditTemplateDelete = "template.delete"
	// AuditTemplate is the action of an update of a workspace to another version of its template.
	AuditTemplate = "workspace.template"
)

// SavedTemplate is a version of a template that administrators saved.
type SavedTemplate struct {
	ID      int64
	Name    string
	Text    string // YAML; empty: it was deleted
	SavedBy string
	SavedAt time.Time
}

const savedTemplate = `id, name, COALESCE(body, ''), username, saved_at`

// SavedTemplates returns the last version of every saved template that is not deleted, by name.
func (db *DB) SavedTemplates(ctx context.Context) ([]SavedTemplate, error) {
	return db.savedTemplates(ctx, `
		SELECT * FROM (SELECT DISTINCT ON (name) `+savedTemplate+` FROM template_versions ORDER BY name, id DESC) t (id, name, body, username, saved_at)
		WHERE body <> '' ORDER BY name`)
}

// MaxTemplateHistory bounds TemplateHistory.
const MaxTemplateHistory = 50

// TemplateHistory returns the last versions of a saved template, newest first. Only
// administrators may call it.
func (db *DB) TemplateHistory(ctx context.Context, caller workspace.Caller, name string) ([]SavedTemplate, error) {
	if err := db.administers(ctx, caller); err != nil {
		return nil, err
	}
	return db.savedTemplates(ctx, `SELECT `+savedTemplate+` FROM template_versions WHERE name = $1 ORDER BY id DESC LIMIT $2`, name, MaxTemplateHistory)
}

func (db *DB) savedTemplates(ctx context.Context, query string, args ...any) ([]SavedTemplate, error) {
	const verb = "read the templates"
	rows, err := db.pool.Query(ctx, query, args...)
	if err != nil {
		return nil, failed(verb, err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[SavedTemplate])
	return list, failed(verb, err)
}

// SaveTemplate adds a version of a template; an empty text deletes it. Only administrators may
// call it. CodeNotFound if there is nothing to delete. A text that is the last version's adds
// none.
func (db *DB) SaveTemplate(ctx context.Context, caller workspace.Caller, name, text string) error {
	return db.tx(ctx, "save a template", func(tx pgx.Tx) error {
		if _, err := administrators(ctx, tx, caller); err != nil {
			return err
		}
		var before string
		err := tx.QueryRow(ctx, `SELECT COALESCE(body, '') FROM template_versions WHERE name = $1 ORDER BY id DESC LIMIT 1`, name).Scan(&before)
		switch {
		case err != nil && !missing(err):
			return err
		case text == "" && before == "":
			return notFound("template")
		case text == before:
			return nil
		}
		var id int64
		err = tx.QueryRow(ctx, `INSERT INTO template_versions (name, body, username) VALUES ($1, $2, $3) RETURNING id`, name, nullable(text), clean(caller.Username)).Scan(&id)
		if err != nil {
			return err
		}
		action := AuditTemplateSave
		if text == "" {
			action = AuditTemplateDelete
		}
		return audit(ctx, tx, caller, action, name, map[string]any{"id": id})
	})
}

// TemplateWorkspaces counts the workspaces that were created from a template.
func (db *DB) TemplateWorkspaces(ctx context.Context, caller workspace.Caller, name string) (n int, err error) {
	if err := db.administers(ctx, caller); err != nil {
		return 0, err
	}
	err = db.pool.QueryRow(ctx, `SELECT count(*) FROM workspaces WHERE template ->> 'name' = $1 AND deleted_at IS NULL`, name).Scan(&n)
	return n, failed("count the workspaces of a template", err)
}

// GroupNames returns the keys (UsernameKey) of the names of the caller's groups.
func (db *DB) GroupNames(ctx context.Context, caller workspace.Caller) ([]string, error) {
	if !workspace.ValidID(caller.UserID) {
		return nil, forbidden()
	}
	const verb = "read the groups of a user"
	rows, err := db.pool.Query(ctx, `SELECT g.name_key FROM user_groups g WHERE g.id IN (SELECT group_id FROM group_people WHERE user_id = $1)`, caller.UserID)
	if err != nil {
		return nil, failed(verb, err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return list, failed(verb, err)
}
