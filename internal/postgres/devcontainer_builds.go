package postgres

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"

	"codehub/api"
	"codehub/internal/workspace"
)

// Actions on builds of images in the audit log.
const (
	AuditBuild       = "workspace.devcontainer_build"
	AuditBuildCancel = "workspace.devcontainer_build_cancel"
)

// States of a build of an image from a devcontainer.json.
const (
	BuildWaiting  = "waiting"
	BuildBuilding = "building"
	BuildDone     = "done"
	BuildFailed   = "failed"
	BuildCanceled = "canceled"
)

// buildRuns selects the builds that run: a server that builds writes more often.
const buildRuns = `(ended_at IS NULL AND seen_at > clock_timestamp() - interval '60 s')`

const buildColumns = `file, CASE WHEN ended_at IS NULL AND NOT ` + buildRuns + ` THEN 'failed' ELSE state END, step,
	CASE WHEN ended_at IS NULL AND NOT ` + buildRuns + ` THEN 'The server that built the image has ended. Use the file again.' ELSE error END,
	log, ignored, started_at, CASE WHEN ` + buildRuns + ` THEN NULL ELSE COALESCE(ended_at, seen_at) END`

func scanBuild(row pgx.CollectableRow) (b api.DevcontainerBuild, err error) {
	return b, row.Scan(&b.File, &b.State, &b.Step, &b.Error, &b.Log, &b.Ignored, &b.StartedAt, &b.EndedAt)
}

// DevcontainerBuild returns the last build for the caller's workspace. CodeNotFound also if there
// was none.
func (db *DB) DevcontainerBuild(ctx context.Context, caller workspace.Caller, id workspace.ID) (api.DevcontainerBuild, error) {
	if _, err := db.Workspace(ctx, caller, id); err != nil {
		return api.DevcontainerBuild{}, err
	}
	rows, _ := db.pool.Query(ctx, `SELECT `+buildColumns+` FROM devcontainer_builds WHERE workspace_id = $1`, id)
	b, err := pgx.CollectExactlyOneRow(rows, scanBuild)
	if missing(err) {
		return b, notFound("build")
	}
	return b, failed("read a build", err)
}

// BeginBuild records that a build begins for the caller's workspace, and returns its id. The build
// ends unless ReportBuild follows within a minute. CodeOperationInProgress while another build of
// the workspace's owner runs.
func (db *DB) BeginBuild(ctx context.Context, caller workspace.Caller, id workspace.ID, file string) (build string, err error) {
	return build, db.tx(ctx, "begin a build", func(tx pgx.Tx) error {
		w, _, err := lockWorkspace(ctx, tx, caller, id)
		if err != nil {
			return err
		}
		if err := lockUser(ctx, tx, w.OwnerID); err != nil { // two workspaces at once
			return err
		}
		var runs bool
		err = tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM devcontainer_builds WHERE user_id = $1 AND `+buildRuns+`)`, w.OwnerID).Scan(&runs)
		if err != nil {
			return err
		}
		if runs {
			return workspace.Errorf(workspace.CodeOperationInProgress, "Another image is being built for you. Wait for its end, or cancel it.")
		}
		err = tx.QueryRow(ctx, `
			INSERT INTO devcontainer_builds (workspace_id, user_id, file) VALUES ($1, $2, $3)
			ON CONFLICT (workspace_id) DO UPDATE SET id = gen_random_uuid(), user_id = $2, file = $3, image = '', state = 'waiting', step = '', error = '',
				log = '', ignored = '[]', canceled = false, started_at = clock_timestamp(), seen_at = clock_timestamp(), ended_at = NULL
			RETURNING id`, id, w.OwnerID, file).Scan(&build)
		if err != nil {
			return err
		}
		return audit(ctx, tx, caller, AuditBuild, string(id), map[string]any{"file": file})
	})
}

// BuildReport is what a build that runs writes.
type BuildReport struct {
	Image, State, Step, Log string
	Ignored                 []api.DevcontainerIgnored
	Error                   string // of an end
}

// ReportBuild writes how far a build is. goes is false once it is to end: it is canceled, its user is
// suspended, or another one has taken its place. A state that is an end ends it.
func (db *DB) ReportBuild(ctx context.Context, build string, r BuildReport) (goes bool, err error) {
	if r.Ignored == nil {
		r.Ignored = []api.DevcontainerIgnored{}
	}
	ignored, err := json.Marshal(r.Ignored)
	if err != nil {
		return false, err
	}
	var canceled bool
	err = db.pool.QueryRow(ctx, `
		UPDATE devcontainer_builds SET image = $2, state = $3, step = $4, log = $5, ignored = $6, error = $7, seen_at = clock_timestamp(),
			ended_at = CASE WHEN $3 IN ('waiting', 'building') THEN NULL ELSE clock_timestamp() END
		WHERE id = $1 AND ended_at IS NULL RETURNING canceled OR NOT (SELECT active FROM users u WHERE u.id = user_id)`,
		build, r.Image, r.State, clean(r.Step), clean(r.Log), storableJSON(ignored), clean(r.Error)).Scan(&canceled)
	if missing(err) {
		return false, nil
	}
	return !canceled, failed("record a build", err)
}

// CancelBuild asks the server that builds an image for the caller's workspace to end the build.
// CodeNotFound if there is none; CodeNotCancellable if it has ended.
func (db *DB) CancelBuild(ctx context.Context, caller workspace.Caller, id workspace.ID) (b api.DevcontainerBuild, err error) {
	return b, db.tx(ctx, "cancel a build", func(tx pgx.Tx) error {
		if _, _, err := lockWorkspace(ctx, tx, caller, id); err != nil {
			return err
		}
		rows, _ := tx.Query(ctx, `UPDATE devcontainer_builds SET canceled = canceled OR `+buildRuns+` WHERE workspace_id = $1 RETURNING `+buildColumns, id)
		b, err = pgx.CollectExactlyOneRow(rows, scanBuild)
		switch {
		case missing(err):
			return notFound("build")
		case err != nil:
			return err
		case b.EndedAt != nil:
			return workspace.Errorf(workspace.CodeNotCancellable, "The build has ended.")
		}
		return audit(ctx, tx, caller, AuditBuildCancel, string(id), map[string]any{"file": b.File})
	})
}

// BuiltImagesInUse lists the images with a part of their name that workspaces have, would go back to,
// or are being built, as users spell them.
func (db *DB) BuiltImagesInUse(ctx context.Context, part string) ([]string, error) {
	rows, err := db.pool.Query(ctx, `
		SELECT image_ref FROM workspaces WHERE strpos(image_ref, $1) > 0
		UNION SELECT project #>> '{devcontainer,before,image}' FROM workspaces WHERE strpos(project #>> '{devcontainer,before,image}', $1) > 0
		UNION SELECT project #>> '{devcontainer,given,image}' FROM workspaces WHERE strpos(project #>> '{devcontainer,given,image}', $1) > 0
		UNION SELECT image_pin ->> 'ref' FROM workspaces WHERE strpos(image_pin ->> 'ref', $1) > 0
		UNION SELECT image FROM devcontainer_builds WHERE strpos(image, $1) > 0 AND ended_at IS NULL`, part)
	if err != nil {
		return nil, failed("list built images in use", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return list, failed("list built images in use", err)
}
