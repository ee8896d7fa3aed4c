package postgres

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// AuditUserDelete is the action of the deletion of a user.
const AuditUserDelete = "user.delete"

// What becomes of the workspaces of a deleted user.
const (
	WorkspacesDelete   = "delete"
	WorkspacesHandOver = "hand_over"
)

// Removal is how a user is deleted.
type Removal struct {
	Workspaces string // WorkspacesDelete or WorkspacesHandOver; empty: the user must have none
	To         string // the id of the user who gets them
}

// DeleteAccount deletes a user for an administrator: all sessions, tokens and SSH keys end, the
// name is free again, and the workspaces are deleted or handed over. The row stays for what
// names it. CodeInvalid for the caller; CodeConfirmRequired if the user has workspaces and
// nothing is said about them; CodeNotStopped if one of them cannot be handed over yet.
func (db *DB) DeleteAccount(ctx context.Context, caller workspace.Caller, id string, r Removal) error {
	return db.tx(ctx, "delete an account", func(tx pgx.Tx) error {
		if _, err := administrators(ctx, tx, caller); err != nil {
			return err
		}
		switch {
		case !workspace.ValidID(id):
			return notFound("user")
		case id == caller.UserID:
			return workspace.Errorf(workspace.CodeInvalid, "You cannot delete your own account.")
		case r.Workspaces == WorkspacesHandOver && r.To == id:
			return workspace.Errorf(workspace.CodeInvalid, "Choose another user who gets the workspaces.")
		}
		var to receiver
		if r.Workspaces == WorkspacesHandOver {
			var err error
			if to, err = lockReceiver(ctx, tx, caller, r.To); err != nil {
				return err
			}
		}
		var name string
		err := tx.QueryRow(ctx, `SELECT username FROM users WHERE id = $1 AND removed_at IS NULL FOR NO KEY UPDATE`, id).Scan(&name)
		if missing(err) {
			return notFound("user")
		}
		if err != nil {
			return err
		}
		list, err := workspacesOf(ctx, tx, id)
		if err != nil {
			return err
		}
		details := map[string]any{"username": name, "workspaces": len(list)}
		switch {
		case r.Workspaces == WorkspacesDelete:
			err = deleteAll(ctx, tx, caller, name, list)
		case r.Workspaces == WorkspacesHandOver:
			details["to"] = to.username
			err = handOverAll(ctx, tx, caller, name, to, list)
		case r.Workspaces != "":
			err = workspace.Errorf(workspace.CodeInvalid, "The choice for the workspaces must be delete or hand_over.")
		case len(list) > 0:
			e := workspace.Errorf(workspace.CodeConfirmRequired, "%s has %d workspaces. Say whether they are deleted or handed over.", name, len(list))
			e.Details = map[string]any{"workspaces": len(list)}
			err = e
		}
		if err != nil {
			return err
		}
		if _, err = tx.Exec(ctx, `
			UPDATE users SET removed_at = clock_timestamp(), disabled = true, admin = false, password_hash = '', username_key = 'removed:' || id::text
			WHERE id = $1`, id); err != nil {
			return err
		}
		for _, table := range []string{"group_members", "workspace_shares", "secrets", "dotfiles", "git_connections", "git_identities"} {
			if _, err := tx.Exec(ctx, `DELETE FROM `+table+` WHERE user_id = $1`, id); err != nil {
				return err
			}
		}
		if _, err := tx.Exec(ctx, `DELETE FROM hand_over_requests WHERE user_id = $1 OR to_user_id = $1`, id); err != nil {
			return err
		}
		if err := endAccess(ctx, tx, id); err != nil {
			return err
		}
		// A later login with the provider is that of a new user.
		if _, err := tx.Exec(ctx, `DELETE FROM user_identities WHERE user_id = $1`, id); err != nil {
			return err
		}
		if _, err := deletePasskeys(ctx, tx, id); err != nil {
			return err
		}
		return audit(ctx, tx, caller, AuditUserDelete, id, details)
	})
}

// workspacesOf locks the workspaces of a user that are not deleted, in the order of their ids.
func workspacesOf(ctx context.Context, tx pgx.Tx, owner string) ([]workspace.Workspace, error) {
	rows, err := tx.Query(ctx, `
		SELECT `+workspaceColumns+` FROM workspaces WHERE owner_user_id = $1 AND deleted_at IS NULL ORDER BY id FOR NO KEY UPDATE`, owner)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, toWorkspace)
}

// applyAll saves what f makes of each workspace, with its audit entry, and a notice of the kind
// for the owner; none if it is empty. A refusal skips the workspace.
func applyAll(ctx context.Context, tx pgx.Tx, caller workspace.Caller, owner, notice string, list []workspace.Workspace, f func(workspace.Workspace, time.Time) (lifecycle.Intent, error)) error {
	var now time.Time
	if err := tx.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
		return err
	}
	for _, w := range list {
		out, err := f(w, now)
		if err != nil || !out.Changed {
			continue
		}
		if _, err := saveWorkspace(ctx, tx, out.Workspace, true); err != nil {
			return err
		}
		details := map[string]any{"owner": owner, "name": w.Name}
		for k, v := range out.Audit.Details {
			details[k] = v
		}
		if err := audit(ctx, tx, caller, out.Audit.Action, string(w.ID), details); err != nil {
			return err
		}
		if notice == "" {
			continue
		}
		if err := insertNotice(ctx, tx, caller, Notice{UserID: w.OwnerID, Kind: notice, WorkspaceID: w.ID, WorkspaceName: w.Name, By: caller.Username}); err != nil {
			return err
		}
	}
	return nil
}

// deleteAll deletes the workspaces of a user who is deleted, and so reads no notices.
func deleteAll(ctx context.Context, tx pgx.Tx, caller workspace.Caller, owner string, list []workspace.Workspace) error {
	return applyAll(ctx, tx, caller, owner, "", list, func(w workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
		return lifecycle.Delete(w, now, true)
	})
}

// stopAll stops the workspaces of a user that run or are about to.
func stopAll(ctx context.Context, tx pgx.Tx, caller workspace.Caller, u User) error {
	list, err := workspacesOf(ctx, tx, u.ID)
	if err != nil {
		return err
	}
	return applyAll(ctx, tx, caller, u.Username, DoStop, list, func(w workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
		out, err := lifecycle.Halt(w, now, false)
		out.Workspace.LastAccessAt, out.Workspace.LastAccess = w.LastAccessAt, w.LastAccess
		return out, err
	})
}

// handOverAll gives all workspaces to another user. One whose name is taken there gets the name
// of its former owner appended.
func handOverAll(ctx context.Context, tx pgx.Tx, caller workspace.Caller, owner string, to receiver, list []workspace.Workspace) error {
	var moving []string
	for _, w := range list {
		if _, err := lifecycle.HandOver(w, to.id, w.Name); err != nil {
			moving = append(moving, w.Name)
		}
	}
	if len(moving) > 0 {
		e := workspace.Errorf(workspace.CodeNotStopped, "%d workspaces cannot be handed over yet, because they run or an operation is running: %s. Stop them first.",
			len(moving), strings.Join(moving[:min(len(moving), 5)], ", "))
		e.Details = map[string]any{"workspaces": moving}
		return e
	}
	for _, w := range list {
		name, err := freeNameFor(ctx, tx, to.id, w.Name, owner)
		if err != nil {
			return err
		}
		if err := handOver(ctx, tx, caller, w, to, HandOver{To: to.id, Name: name}); err != nil {
			return err
		}
	}
	return nil
}

// freeNameFor returns a name that no workspace of the user has: the given one, or one that it
// begins.
func freeNameFor(ctx context.Context, tx pgx.Tx, user, name, former string) (string, error) {
	for n := 0; ; n++ {
		candidate := name
		switch {
		case n == 1:
			candidate = suffixed(name, " ("+former+")")
		case n > 1:
			candidate = suffixed(name, fmt.Sprintf(" (%s %d)", former, n))
		}
		var taken bool
		err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM workspaces WHERE owner_user_id = $1 AND name = $2 AND deleted_at IS NULL)`, user, candidate).Scan(&taken)
		if err != nil || !taken {
			return candidate, err
		}
	}
}

// suffixed appends a suffix, and cuts the name to the length of names.
func suffixed(name, suffix string) string {
	runes, most := []rune(name), workspace.MaxName-len([]rune(suffix))
	if most < 1 { // a very long username
		return string([]rune(suffix)[:workspace.MaxName])
	}
	return string(runes[:min(len(runes), most)]) + suffix
}
