package postgres

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// Owner returns the username of a workspace's owner.
func (c *Controller) Owner(ctx context.Context, id workspace.ID) (username string, err error) {
	err = c.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `
			SELECT u.username FROM workspaces w JOIN users u ON u.id = w.owner_user_id WHERE w.id = $1`, id).Scan(&username)
	})
	if missing(err) {
		return "", notFound("workspace")
	}
	return username, failed("read a workspace's owner", err)
}

// Launch is what a container gets from its workspace's row when it is created, besides what a
// tick reads.
type Launch struct {
	Owner    string // username
	Env      map[string]string
	TimeZone string // empty: unknown
	Project  *workspace.Project

	// SecretsDigest identifies the secrets of the workspace; empty: none.
	SecretsDigest string
}

// Launch returns it as it is now.
func (c *Controller) Launch(ctx context.Context, id workspace.ID) (l Launch, err error) {
	err = c.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `
			SELECT u.username, w.env, coalesce(w.time_zone, ''), w.project, `+secretsDigest+` FROM workspaces w JOIN users u ON u.id = w.owner_user_id
			WHERE w.id = $1`, id).Scan(&l.Owner, &l.Env, &l.TimeZone, &l.Project, &l.SecretsDigest)
	})
	if missing(err) {
		return Launch{}, notFound("workspace")
	}
	return l, failed("read a workspace's environment", err)
}

// ClaimArchive records the archive that an operation of this claim will create, before
// any of it is in the bucket: garbage collection removes only recorded archives. It returns
// false and records nothing if the claim has ended. A second call is not an error.
func (c *Controller) ClaimArchive(ctx context.Context, id workspace.ID, claim, key string) (ours bool, err error) {
	err = c.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `
			WITH claimed AS (
				SELECT id, op_id FROM workspaces
				WHERE id = $1 AND op_id = $2 AND operation IN ('ARCHIVING', 'CREATE_EMPTY_ARCHIVE')
				FOR NO KEY UPDATE
			), recorded AS (
				INSERT INTO archives (key, workspace_id, archive_op_id)
				SELECT $3, id, op_id FROM claimed
				ON CONFLICT (key) DO NOTHING
			)
			SELECT EXISTS (SELECT FROM claimed)`, id, claim, key).Scan(&ours)
	})
	return ours, failed("record an archive that is to be made", err)
}

// Stored is an archive that was read back and verified.
type Stored struct {
	ID      workspace.ID
	Claim   string // of its operation
	Key     string // archive_key
	Digest  string // SHA-256 of home.tar.zst, in hex
	Size    int64  // bytes of home.tar.zst
	Entries int64
	Skipped int64 // sockets, FIFOs and devices of the home, which are not archived
}

// StoreArchive makes a verified archive the current one and marks the home as archived, in one
// transaction. It returns false and writes nothing if the claim has ended or a request has come
// that ends the operation, such as one for STANDBY, for RUNNING or for the deletion.
func (c *Controller) StoreArchive(ctx context.Context, a Stored) (stored bool, err error) {
	const verb = "store an archive"
	err = c.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		var err error
		for range attempts {
			err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) (err error) {
				stored, err = storeArchive(ctx, tx, a)
				return err
			})
			if !abortedForAnother(err) {
				break
			}
		}
		return err
	})
	if err != nil {
		return false, failed(verb, err)
	}
	return stored, nil
}

func storeArchive(ctx context.Context, tx pgx.Tx, a Stored) (bool, error) {
	var w workspace.Workspace
	err := tx.QueryRow(ctx, `SELECT `+coreColumns+` FROM workspaces WHERE id = $1 FOR NO KEY UPDATE`, a.ID).Scan(coreTargets(&w)...)
	if missing(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if w.OpID != a.Claim || !lifecycle.MayStore(w) {
		return false, nil
	}
	home := w.Home
	if w.Operation == workspace.OpArchiving {
		home.State = workspace.HomeArchived
	}
	homeCtx, err := jsonOf(&home)
	if err != nil {
		return false, err
	}
	tag, err := tx.Exec(ctx, `
		INSERT INTO archives (key, workspace_id, archive_op_id, digest, size, entries, skipped, verified_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, clock_timestamp())
		ON CONFLICT (key) DO UPDATE SET digest = EXCLUDED.digest, size = EXCLUDED.size, entries = EXCLUDED.entries,
			skipped = EXCLUDED.skipped, verified_at = EXCLUDED.verified_at, unprotected_since = NULL, superseded_at = NULL
		WHERE archives.deleting_at IS NULL`, a.Key, a.ID, a.Claim, a.Digest, a.Size, a.Entries, a.Skipped)
	if err != nil {
		return false, err
	}
	if tag.RowsAffected() == 0 {
		return false, fmt.Errorf("archive %s is being removed", a.Key)
	}
	// The previous current archive is superseded last, so that it is the newest of the
	// superseded ones.
	_, err = tx.Exec(ctx, `
		UPDATE archives SET superseded_at = CASE WHEN key = $3 THEN clock_timestamp() ELSE now() END
		WHERE workspace_id = $1 AND key <> $2 AND (key = $3 OR verified_at IS NOT NULL AND superseded_at IS NULL)`,
		a.ID, a.Key, nullable(w.ArchiveKey))
	if err != nil {
		return false, err
	}
	_, err = tx.Exec(ctx, `
		UPDATE workspaces SET archive_key = $2, archive_digest = $3, archive_size = $4, home_ctx = $5,
			updated_at = clock_timestamp()
		WHERE id = $1`, a.ID, a.Key, a.Digest, a.Size, homeCtx)
	return err == nil, err
}

// PlanUID records, before the home is given to the uid, that its files may have it from now
// on (workspace.Home.NextUIDs), and returns the home as it is then. It returns false and
// writes nothing if the claim has ended, or the home is another one.
func (c *Controller) PlanUID(ctx context.Context, id workspace.ID, claim, homeClaim string, uid uint32) (home workspace.Home, recorded bool, err error) {
	return c.changeHome(ctx, "plan the uid of a home", id, claim, homeClaim, func(h *workspace.Home) {
		if !slices.Contains(h.NextUIDs, uid) {
			h.NextUIDs = append(h.NextUIDs, uid)
		}
	})
}

// RecordUID records that all of the home was given to the uid. Otherwise as PlanUID.
func (c *Controller) RecordUID(ctx context.Context, id workspace.ID, claim, homeClaim string, uid uint32) (home workspace.Home, recorded bool, err error) {
	return c.changeHome(ctx, "record the uid of a home", id, claim, homeClaim, func(h *workspace.Home) {
		h.UID, h.NextUIDs, h.FromImage = uid, nil, false
	})
}

// RecordFilling records, before a home is filled, whether it is filled from an image. It
// returns false and writes nothing if the claim has ended, or the home is another one.
func (c *Controller) RecordFilling(ctx context.Context, id workspace.ID, claim, homeClaim string, fromImage bool) (recorded bool, err error) {
	_, recorded, err = c.changeHome(ctx, "record how a home is filled", id, claim, homeClaim, func(h *workspace.Home) {
		h.FromImage = fromImage
	})
	return recorded, err
}

// changeHome changes home_ctx during the operation of the claim.
func (c *Controller) changeHome(ctx context.Context, verb string, id workspace.ID, claim, homeClaim string, change func(*workspace.Home)) (home workspace.Home, changed bool, err error) {
	err = c.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			err := tx.QueryRow(ctx, `
				SELECT home_ctx FROM workspaces WHERE id = $1 AND op_id = $2 AND home_ctx->>'claim' = $3
				FOR NO KEY UPDATE`, id, claim, homeClaim).Scan(&home)
			if missing(err) {
				return nil
			}
			if err != nil {
				return err
			}
			change(&home)
			value, err := jsonOf(&home)
			if err != nil {
				return err
			}
			_, err = tx.Exec(ctx, `UPDATE workspaces SET home_ctx = $2 WHERE id = $1`, id, value)
			changed = err == nil
			return err
		})
	})
	return home, changed && err == nil, failed(verb, err)
}

// KeepHome makes an archived home live again. It is then newer than the archive that was just
// stored, which stays as one of its generations. The caller must end the operation, since the
// next archive needs another key, and must not have removed any part of the volume. It returns
// false and writes nothing if the claim has ended, or the home is not one that is still to be
// removed.
func (c *Controller) KeepHome(ctx context.Context, id workspace.ID, claim, homeClaim string) (kept bool, err error) {
	err = c.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		tag, err := conn.Exec(ctx, `
			UPDATE workspaces SET home_ctx = jsonb_set(home_ctx, '{state}', to_jsonb($4::text)),
				cancel_requested_at = clock_timestamp(), updated_at = clock_timestamp()
			WHERE id = $1 AND op_id = $2 AND operation = 'ARCHIVING' AND deleted_at IS NULL
				AND home_ctx->>'claim' = $3 AND home_ctx->>'state' = $5`,
			id, claim, homeClaim, workspace.HomeLive, workspace.HomeArchived)
		kept = err == nil && tag.RowsAffected() == 1
		return err
	})
	return kept, failed("take an archived home back", err)
}
