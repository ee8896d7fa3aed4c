package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
)

// Actions on shares of workspaces in the audit log.
const (
	AuditShare   = "workspace.share"
	AuditUnshare = "workspace.unshare"
	AuditLeave   = "workspace.leave"
)

// maxShares bounds the shares of a workspace.
const maxShares = 100

// noSharing is the answer where workspaces have no origins of their own.
func noSharing() error {
	return workspace.Errorf(workspace.CodeNotSupported, "Workspaces can be shared only where each has an address of its own (CODEHUB_WORKSPACE_URL).")
}

// Guests returns who has access to a workspace that they do not own.
func (db *DB) Guests(ctx context.Context, id workspace.ID) (workspace.Guests, error) {
	return db.guests(ctx, db.pool, id, "")
}

// guests is Guests, of one user if user is not empty.
func (db *DB) guests(ctx context.Context, in querier, id workspace.ID, user string) (workspace.Guests, error) {
	if !db.sharing {
		return nil, nil
	}
	const verb = "read the guests of a workspace"
	rows, err := in.Query(ctx, `SELECT user_id, may_use FROM workspace_guests WHERE workspace_id = $1 AND ($2 = '' OR user_id = NULLIF($2, '')::uuid)`, id, user)
	if err != nil {
		return nil, failed(verb, err)
	}
	var found workspace.Guests
	var guest string
	var use bool
	_, err = pgx.ForEachRow(rows, []any{&guest, &use}, func() error {
		if found == nil {
			found = workspace.Guests{}
		}
		found[guest] = workspace.AccessView
		if use {
			found[guest] = workspace.AccessUse
		}
		return nil
	})
	return found, failed(verb, err)
}

// enters returns CodeForbidden unless the caller may open the workspace.
func (db *DB) enters(ctx context.Context, in querier, caller workspace.Caller, w workspace.Workspace) error {
	var guests workspace.Guests
	if !caller.Uses(w.OwnerID, w.ID) && workspace.ValidID(caller.UserID) {
		var err error
		if guests, err = db.guests(ctx, in, w.ID, caller.UserID); err != nil {
			return err
		}
	}
	if !guests.Enters(caller, w.OwnerID, w.ID) {
		return forbidden()
	}
	return nil
}

// EnterableWorkspace is Workspace for callers who may open it: its owner, and guests who may use
// it.
func (db *DB) EnterableWorkspace(ctx context.Context, caller workspace.Caller, id workspace.ID) (workspace.Workspace, error) {
	w, err := db.Workspace(ctx, workspace.System, id)
	if err != nil {
		return w, err
	}
	if err := db.enters(ctx, db.pool, caller, w); err != nil {
		return workspace.Workspace{}, err
	}
	return w, nil
}

// Shares lists with whom the caller's workspace is shared.
func (db *DB) Shares(ctx context.Context, caller workspace.Caller, id workspace.ID) ([]workspace.Share, error) {
	if _, err := db.Workspace(ctx, caller, id); err != nil {
		return nil, err
	}
	list, err := sharesOf(ctx, db.pool, id)
	return list, failed("list the shares of a workspace", err)
}

func sharesOf(ctx context.Context, in querier, id workspace.ID) ([]workspace.Share, error) {
	rows, err := in.Query(ctx, `
		SELECT s.id, COALESCE(u.username, ''), COALESCE(u.id::text, ''), COALESCE(g.name, ''), COALESCE(g.id::text, ''), s.access, s.git, s.created_at
		FROM workspace_shares s LEFT JOIN users u ON u.id = s.user_id LEFT JOIN user_groups g ON g.id = s.group_id
		WHERE s.workspace_id = $1 ORDER BY g.name_key NULLS FIRST, u.username_key`, id)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[workspace.Share])
}

// NewShare is with whom a workspace is shared: a user (a name or an id), or a group (a name or an
// id).
type NewShare struct {
	User, Group string
	Access      workspace.Access
	Git         bool // with AccessUse: the owner's Git connections may be used in the workspace
}

// Share shares the caller's workspace, or changes the access of a user or group. Users who had no
// access get a notice, also as members of a group. CodeNotFound for a user or group that does not
// exist, and for a group that the caller is not in; CodeNotSupported where workspaces share an
// origin.
func (db *DB) Share(ctx context.Context, caller workspace.Caller, id workspace.ID, n NewShare) (workspace.Share, error) {
	var made workspace.Share
	switch {
	case !db.sharing:
		return made, noSharing()
	case !n.Access.Valid():
		return made, workspace.Errorf(workspace.CodeInvalid, "The access must be use or view.")
	case (n.User == "") == (n.Group == ""):
		return made, workspace.Errorf(workspace.CodeInvalid, "Name either a user or a group.")
	case n.Git && n.Access != workspace.AccessUse:
		return made, workspace.Errorf(workspace.CodeInvalid, "Git connections are for guests who may use the workspace.")
	}
	err := db.tx(ctx, "share a workspace", func(tx pgx.Tx) error {
		w, _, err := lockWorkspace(ctx, tx, caller, id)
		if err != nil {
			return err
		}
		if w.DeletedAt != nil {
			return workspace.Errorf(workspace.CodeGone, "The workspace is deleted.")
		}
		made = workspace.Share{Access: n.Access, Git: n.Git}
		column, with := "user_id", ""
		if n.User != "" {
			if with, made.User, err = findUser(ctx, tx, n.User); err == nil && with == w.OwnerID {
				err = workspace.Errorf(workspace.CodeInvalid, "The workspace is your own.")
			}
		} else {
			column = "group_id"
			with, made.Group, err = findGroup(ctx, tx, caller, n.Group)
		}
		if err != nil {
			return err
		}
		var others int
		if err := tx.QueryRow(ctx, `SELECT count(*) FROM workspace_shares WHERE workspace_id = $1 AND `+column+` IS DISTINCT FROM $2`, id, with).Scan(&others); err != nil {
			return err
		}
		if others >= maxShares {
			return workspace.Errorf(workspace.CodeQuotaExceeded, "A workspace can be shared with at most %d users and groups.", maxShares)
		}
		if err := noteShare(ctx, tx, caller, w, column, with); err != nil {
			return err
		}
		shareID, err := uuid.NewV7()
		if err != nil {
			return fmt.Errorf("make an id: %w", err)
		}
		err = tx.QueryRow(ctx, `
			INSERT INTO workspace_shares (id, workspace_id, `+column+`, access, git) VALUES ($1, $2, $3, $4, $5)
			ON CONFLICT (workspace_id, `+column+`) DO UPDATE SET access = EXCLUDED.access, git = EXCLUDED.git RETURNING id, created_at`,
			shareID.String(), id, with, n.Access, n.Git).Scan(&made.ID, &made.CreatedAt)
		if err != nil {
			return err
		}
		if n.User != "" {
			made.UserID = with
		} else {
			made.GroupID = with
		}
		return audit(ctx, tx, caller, AuditShare, string(id), shareDetails(w, made))
	})
	return made, err
}

func shareDetails(w workspace.Workspace, s workspace.Share) map[string]any {
	d := map[string]any{"name": w.Name, "access": s.Access}
	if s.User != "" {
		d["user"] = s.User
	} else {
		d["group"] = s.Group
	}
	if s.Git {
		d["git"] = true
	}
	return d
}

// findGroup finds a group that the caller is in, or that an administrator names, by id or, if
// there is none, by name. CodeNotFound.
func findGroup(ctx context.Context, tx pgx.Tx, caller workspace.Caller, nameOrID string) (id, name string, err error) {
	err = tx.QueryRow(ctx, `
		SELECT g.id, g.name FROM user_groups g, users me
		WHERE me.id = $1 AND (g.name_key = $2 OR g.id = $3)
			AND (me.admin OR g.id IN (SELECT group_id FROM group_people WHERE user_id = me.id))
		ORDER BY g.id = $3 DESC LIMIT 1 FOR KEY SHARE OF g`, caller.UserID, UsernameKey(clean(nameOrID)), idOrNull(nameOrID)).Scan(&id, &name)
	if missing(err) {
		err = notFound("group")
	}
	return id, name, err
}

// idOrNull is an id for a comparison, or null for what is none.
func idOrNull(s string) *string {
	if !workspace.ValidID(s) {
		return nil
	}
	return &s
}

// Unshare ends a share of the caller's workspace. CodeNotFound.
func (db *DB) Unshare(ctx context.Context, caller workspace.Caller, id workspace.ID, share string) error {
	return db.tx(ctx, "end a share", func(tx pgx.Tx) error {
		w, _, err := lockWorkspace(ctx, tx, caller, id)
		if err != nil {
			return err
		}
		list, err := sharesOf(ctx, tx, id)
		if err != nil {
			return err
		}
		for _, s := range list {
			if s.ID != share {
				continue
			}
			if _, err := tx.Exec(ctx, `DELETE FROM workspace_shares WHERE id = $1`, share); err != nil {
				return err
			}
			return audit(ctx, tx, caller, AuditUnshare, string(id), shareDetails(w, s))
		}
		return notFound("share")
	})
}

// Leave ends the caller's own share of another user's workspace. It returns the groups by which the
// caller still has access. CodeNotFound; CodeForbidden without an access; CodeNotSupported for one
// by groups alone, with "groups" in the details.
func (db *DB) Leave(ctx context.Context, caller workspace.Caller, id workspace.ID) (groups []string, err error) {
	if !workspace.ValidID(string(id)) {
		return nil, notFound("workspace")
	}
	if err := caller.Permits(workspace.ScopeWorkspaces, id); err != nil {
		return nil, err
	}
	if !workspace.ValidID(caller.UserID) {
		return nil, forbidden()
	}
	err = db.tx(ctx, "leave a shared workspace", func(tx pgx.Tx) error {
		// The owner who changes the share at the same time holds this lock.
		w, _, err := lockWorkspace(ctx, tx, workspace.System, id)
		if err != nil {
			return err
		}
		if err := checkActive(ctx, tx, caller); err != nil {
			return err
		}
		if caller.Owns(w.OwnerID) {
			return forbidden()
		}
		if groups, err = groupsOfGuest(ctx, tx, id, caller.UserID); err != nil {
			return err
		}
		own := workspace.Share{User: caller.Username}
		err = tx.QueryRow(ctx, `DELETE FROM workspace_shares WHERE workspace_id = $1 AND user_id = $2 RETURNING access`, id, caller.UserID).Scan(&own.Access)
		switch {
		case missing(err) && len(groups) == 0:
			return forbidden()
		case missing(err):
			e := workspace.Errorf(workspace.CodeNotSupported, "The workspace is shared with you as a member of a group (%s). To lose the access, ask the owner to end the share, or an administrator of the group to remove you.", strings.Join(groups, ", "))
			e.Details = map[string]any{"groups": groups}
			return e
		case err != nil:
			return err
		}
		return audit(ctx, tx, caller, AuditLeave, string(id), shareDetails(w, own))
	})
	if err != nil {
		return nil, err
	}
	return groups, nil
}

// groupsOfGuest lists the groups by which a user has access to a workspace.
func groupsOfGuest(ctx context.Context, in querier, id workspace.ID, user string) ([]string, error) {
	rows, err := in.Query(ctx, `
		SELECT g.name FROM workspace_shares s JOIN user_groups g ON g.id = s.group_id
		WHERE s.workspace_id = $1 AND EXISTS (SELECT FROM group_people m WHERE m.group_id = g.id AND m.user_id = $2)
			AND EXISTS (SELECT FROM workspace_guests e WHERE e.workspace_id = $1 AND e.user_id = $2)
		ORDER BY g.name_key`, id, user)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// SharedWorkspace is a workspace that another user shares with the caller. It has nothing that
// its owner alone may see.
type SharedWorkspace struct {
	Workspace workspace.Workspace // without notes and environment variables
	Owner     string              // the username
	Access    workspace.Access
	Shares    []workspace.Share // who has access
}

// SharedWith lists the workspaces that others share with the caller, by owner and name, at most
// MaxList.
func (db *DB) SharedWith(ctx context.Context, caller workspace.Caller) ([]SharedWorkspace, error) {
	return db.sharedWith(ctx, caller, "")
}

// SharedWorkspace reads one workspace that another user shares with the caller. CodeForbidden.
func (db *DB) SharedWorkspace(ctx context.Context, caller workspace.Caller, id workspace.ID) (SharedWorkspace, error) {
	if !workspace.ValidID(string(id)) {
		return SharedWorkspace{}, notFound("workspace")
	}
	list, err := db.sharedWith(ctx, caller, id)
	if err == nil && len(list) == 0 {
		err = forbidden()
	}
	if err != nil {
		return SharedWorkspace{}, err
	}
	return list[0], nil
}

func (db *DB) sharedWith(ctx context.Context, caller workspace.Caller, id workspace.ID) ([]SharedWorkspace, error) {
	const verb = "list shared workspaces"
	if !workspace.ValidID(caller.UserID) {
		return nil, forbidden()
	}
	if !db.sharing {
		return nil, nil
	}
	if caller.Only != "" {
		if id != "" && id != caller.Only {
			return nil, nil
		}
		id = caller.Only
	}
	rows, err := db.pool.Query(ctx, `
		SELECT (SELECT username FROM users WHERE id = owner_user_id) AS owner, may_use, `+workspaceColumns+`
		FROM workspaces JOIN (SELECT workspace_id, may_use FROM workspace_guests WHERE user_id = $1) g ON workspace_id = id
		WHERE phase <> 'DELETED' AND ($2 = '' OR id = NULLIF($2, '')::uuid)
		ORDER BY owner, lower(name), id LIMIT $3`, caller.UserID, string(id), MaxList)
	if err != nil {
		return nil, failed(verb, err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s SharedWorkspace, err error) {
		var use bool
		if err := row.Scan(append([]any{&s.Owner, &use}, workspaceTargets(&s.Workspace)...)...); err != nil {
			return s, err
		}
		s.Workspace.DropSecrets()
		if s.Access = workspace.AccessView; use {
			s.Access = workspace.AccessUse
		}
		return s, nil
	})
	if err != nil {
		return nil, failed(verb, err)
	}
	for i := range list {
		if list[i].Shares, err = sharesOf(ctx, db.pool, list[i].Workspace.ID); err != nil {
			return nil, failed(verb, err)
		}
	}
	return list, nil
}

// guestLimit is CodeLimitExceeded for a guest.
func guestLimit() error {
	e := workspace.Errorf(workspace.CodeLimitExceeded, "A limit of the owner of the workspace, or of the server, is reached. The workspace cannot start now; ask its owner.")
	e.Details = map[string]any{"limit_type": "owner"}
	return e
}
