package postgres

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/base/setting"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// This file has what administrators see and do of the workspaces of all users. Nothing in it
// lets them in: homes, environment variables and notes stay their owners'. Every method returns
// CodeForbidden unless the caller is an administrator now.

// AnyWorkspace is a workspace as administrators see it.
type AnyWorkspace struct {
	workspace.Workspace // without its environment variables and its owner's notes
	Owner               string
	OwnerDisabled       bool
	Spent               Spent            // of the last UsageDays days
	Asked               *HandOverRequest // of a hand-over; nil: none
}

// Bytes is the size of the home and its archives, as last measured.
func (w AnyWorkspace) Bytes() int64 {
	var n int64
	for _, b := range []*int64{w.HomeBytes, w.ArchivesBytes} {
		if b != nil {
			n += *b
		}
	}
	return n
}

// Orders of the workspaces of all users.
const (
	SortName    = "name"
	SortOwner   = "owner"
	SortState   = "state"
	SortImage   = "image"
	SortBytes   = "bytes"
	SortLastUse = "last_use"
	SortCreated = "created"
)

// order is one of the orders: an expression with an index, and the type of its values.
type order struct{ name, sql, sqlType string }

// orders are all of them. Their expressions are those of indexes of the migrations.
var orders = []order{
	{SortName, `lower(w.name) COLLATE "C"`, "text"},
	{SortOwner, `u.username_key COLLATE "C"`, "text"},
	{SortState, `w.state COLLATE "C"`, "text"},
	{SortImage, `w.image_ref COLLATE "C"`, "text"},
	{SortBytes, `w.total_bytes`, "bigint"},
	{SortLastUse, `COALESCE(w.last_access_at, w.created_at)`, "timestamptz"},
	{SortCreated, `w.created_at`, "timestamptz"},
}

// Sorts lists the names of the orders.
func Sorts() []string {
	names := make([]string, len(orders))
	for i, o := range orders {
		names[i] = o.name
	}
	return names
}

// AnyFilter selects workspaces of all users.
type AnyFilter struct {
	Query   string            // part of the name, the owner's name or the image, or an id; without regard to case
	State   []lifecycle.State // any of these; none: any
	Owner   string            // name or id; empty: any
	Image   string            // an image reference; empty: any
	Deleted bool              // the deleted workspaces, as Filter.Deleted
	// Unused selects workspaces that were last used before; zero: any.
	UnusedSince time.Time
	Sort        string // one of Sorts; empty: SortLastUse
	Descending  bool
	Page
}

// AnyList is a page of workspaces of all users.
type AnyList struct {
	Workspaces []AnyWorkspace
	Total      int   // on all pages
	Bytes      int64 // of all pages
	NextCursor string
}

// anyPlace is the content of a cursor of AnyWorkspaces: the last row of a page.
type anyPlace struct {
	Sort  string `json:"s"`
	Desc  bool   `json:"d,omitempty"`
	Value string `json:"v"` // as PostgreSQL writes it
	ID    string `json:"i"`
}

// AnyWorkspaces lists the workspaces of all users, in pages.
func (db *DB) AnyWorkspaces(ctx context.Context, caller workspace.Caller, f AnyFilter) (AnyList, error) {
	if err := db.administers(ctx, caller); err != nil {
		return AnyList{}, err
	}
	if f.Sort == "" {
		f.Sort = SortLastUse
	}
	by := slices.IndexFunc(orders, func(o order) bool { return o.name == f.Sort })
	if by < 0 {
		return AnyList{}, workspace.Errorf(workspace.CodeInvalid, "The order must be one of %s.", strings.Join(Sorts(), ", "))
	}
	o, q := orders[by], f.where()
	direction, than := "ASC", ">"
	if f.Descending {
		direction, than = "DESC", "<"
	}
	const verb = "list the workspaces of all users"
	var out AnyList
	// The pages may change between two requests; within one, the list and its sums agree.
	err := pgx.BeginTxFunc(ctx, db.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `
			SELECT count(*), COALESCE(sum(w.total_bytes), 0) FROM `+anyFrom+` WHERE `+strings.Join(q.parts, ` AND `), q.args...).Scan(&out.Total, &out.Bytes)
		if err != nil {
			return err
		}
		if f.Cursor != "" {
			p, err := parseAnyPlace(f.Cursor)
			if err != nil || p.Sort != f.Sort || p.Desc != f.Descending {
				return invalidCursor()
			}
			q.add(`(`+o.sql+`, w.id) `+than+` (?::`+o.sqlType+`, ?)`, p.Value, p.ID)
		}
		rows, err := tx.Query(ctx, fmt.Sprintf(`
			SELECT (%[1]s)::text, %[2]s FROM %[3]s WHERE %[4]s ORDER BY %[1]s %[5]s, w.id %[5]s LIMIT %[6]d`,
			o.sql, anyColumns, anyFrom, strings.Join(q.parts, ` AND `), direction, f.Size()+1), q.args...)
		if err != nil {
			return err
		}
		type valued struct {
			AnyWorkspace
			value string
		}
		list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (v valued, err error) {
			err = row.Scan(append([]any{&v.value}, anyTargets(&v.AnyWorkspace)...)...)
			v.DropSecrets()
			return v, err
		})
		if err != nil {
			return err
		}
		if n := f.Size(); len(list) > n {
			list = list[:n]
			last := list[n-1]
			out.NextCursor = anyPlace{f.Sort, f.Descending, last.value, string(last.ID)}.cursor()
		}
		for _, v := range list {
			out.Workspaces = append(out.Workspaces, v.AnyWorkspace)
		}
		if err := readSpent(ctx, tx, out.Workspaces); err != nil {
			return err
		}
		return readAsked(ctx, tx, out.Workspaces)
	})
	if sqlState(err) != "" && f.Cursor != "" && refusedData(err) {
		err = invalidCursor() // its value is not one of the order's type
	}
	return out, failed(verb, err)
}

// anyColumns are those of AnyWorkspace, in the order of anyTargets.
var anyColumns = workspaceColumns + `, u.username, u.owner_disabled`

// anyFrom has the workspaces with their owners. No column of an owner has the name of a
// workspace's column.
const anyFrom = `workspaces w JOIN (SELECT id AS owner_id, username, username_key, disabled AS owner_disabled, removed_at IS NOT NULL AS owner_removed FROM users) u ON u.owner_id = w.owner_user_id`

func anyTargets(w *AnyWorkspace) []any {
	return append(workspaceTargets(&w.Workspace), &w.Owner, &w.OwnerDisabled)
}

// where returns the conditions of the filter, without those of the page.
func (f AnyFilter) where() (q where) {
	if f.Deleted {
		q.add(deletedListed)
	} else {
		q.add(`w.deleted_at IS NULL`)
	}
	if f.Query != "" {
		p := containing(f.Query)
		q.add(`(w.name ILIKE ? OR u.username ILIKE ? OR w.image_ref ILIKE ? OR w.id::text LIKE ?)`, p, p, p, containing(strings.ToLower(f.Query)))
	}
	if len(f.State) > 0 {
		q.add(`w.state = ANY (?)`, f.State)
	}
	switch {
	case workspace.ValidID(f.Owner):
		q.add(`w.owner_user_id = ?`, f.Owner)
	case f.Owner != "":
		// Deleted users have no key any more, and keep the name that others can have since.
		q.add(`(u.username_key = ? OR u.owner_removed AND lower(normalize(u.username, NFKC)) = lower(normalize(?, NFKC)))`, UsernameKey(f.Owner), f.Owner)
	}
	if f.Image != "" {
		q.add(`w.image_ref = ?`, f.Image)
	}
	if !f.UnusedSince.IsZero() {
		q.add(`COALESCE(w.last_access_at, w.created_at) < ?`, f.UnusedSince)
	}
	return q
}

func (p anyPlace) cursor() string {
	b, _ := json.Marshal(p) // texts can always be encoded
	return base64.RawURLEncoding.EncodeToString(b)
}

func parseAnyPlace(s string) (p anyPlace, err error) {
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	if err != nil || !workspace.ValidID(p.ID) || strings.ContainsRune(p.Value, 0) {
		return anyPlace{}, invalidCursor()
	}
	return p, nil
}

// AnyWorkspace reads a workspace of any user, also a deleted one until it is DELETED.
func (db *DB) AnyWorkspace(ctx context.Context, caller workspace.Caller, id workspace.ID) (AnyWorkspace, error) {
	if err := db.administers(ctx, caller); err != nil {
		return AnyWorkspace{}, err
	}
	return db.anyWorkspace(ctx, id)
}

func (db *DB) anyWorkspace(ctx context.Context, id workspace.ID) (AnyWorkspace, error) {
	if !workspace.ValidID(string(id)) {
		return AnyWorkspace{}, notFound("workspace")
	}
	var w AnyWorkspace
	err := db.pool.QueryRow(ctx, `SELECT `+anyColumns+` FROM `+anyFrom+` WHERE w.id = $1`, id).Scan(anyTargets(&w)...)
	if missing(err) || err == nil && w.Phase == workspace.PhaseDeleted {
		return AnyWorkspace{}, notFound("workspace")
	}
	if err != nil {
		return AnyWorkspace{}, failed("read a workspace", err)
	}
	w.DropSecrets()
	one := []AnyWorkspace{w}
	if err = readSpent(ctx, db.pool, one); err == nil {
		err = readAsked(ctx, db.pool, one)
	}
	return one[0], failed("read a workspace", err)
}

// AnyArchives lists the archives of a workspace of any user, as Archives does. Their content
// stays closed.
func (db *DB) AnyArchives(ctx context.Context, caller workspace.Caller, id workspace.ID, page Page) (list []workspace.Archive, next string, err error) {
	if err := db.administers(ctx, caller); err != nil {
		return nil, "", err
	}
	return db.Archives(ctx, workspace.System, id, page)
}

// AuditLogRead is the action of an administrator who reads the log of a container.
const AuditLogRead = "workspace.log_read"

// ReadAnyLog is AnyWorkspace for reading the log of its container. The audit log has it: what was
// not recorded is not read.
func (db *DB) ReadAnyLog(ctx context.Context, caller workspace.Caller, id workspace.ID) (AnyWorkspace, error) {
	w, err := db.AnyWorkspace(ctx, caller, id)
	if err != nil {
		return w, err
	}
	err = db.tx(ctx, "record that a log is read", func(tx pgx.Tx) error {
		return audit(ctx, tx, caller, AuditLogRead, string(id), map[string]any{"owner": w.Owner, "name": w.Name})
	})
	return w, err
}

// What administrators do with workspaces of other users. Each is also the kind of the notice
// by which its owner learns of it.
const (
	DoStop     = "stop"
	DoArchive  = "archive"
	DoCancel   = "cancel"
	DoRecover  = "recover"
	DoDelete   = "delete"
	DoUndelete = "undelete"
	DoTimeouts = "timeouts"
	DoSize     = "size"
	DoRestore  = "restore"
	DoMessage  = "message" // nothing but the message
)

// Administration is what an administrator does with a workspace.
type Administration struct {
	Do      string
	Message string // for the owner; empty: none. DoMessage needs one
	Force   bool   // of DoStop: see lifecycle.Halt

	Recover string // of DoRecover: one of the workspace.Recover… actions
	Archive string // of RecoverArchive: an archive_op_id
	Confirm string // of RecoverEmpty and RecoverArchive: the workspace's name

	StandbyTTL, ArchiveTTL workspace.Optional[int] // of DoTimeouts, in seconds

	Size string // of DoSize: one that is offered; empty: the default one

	Backup string // of DoRestore: the id of a backup of the workspace
	Start  bool   // of DoRestore: start the workspace afterwards
}

// AuditMessage and AuditTimeouts are actions in the audit log.
const (
	AuditMessage  = "workspace.message"
	AuditTimeouts = "workspace.timeouts"
)

// Administer does something with a workspace of any user. The audit log has the administrator
// and the owner, and the owner gets a notice. The errors are those of the intents, and
// CodeLimitExceeded of the owner's running limit.
func (db *DB) Administer(ctx context.Context, caller workspace.Caller, id workspace.ID, do Administration) (AnyWorkspace, error) {
	if err := db.administers(ctx, caller); err != nil { // before the locks
		return AnyWorkspace{}, err
	}
	before := needsNoSlot
	if do.Do == DoRecover || do.Do == DoUndelete || do.Do == DoRestore {
		before = mayNeedSlot
	}
	_, _, err := db.applyFor(ctx, workspace.System, caller, id, "administer a workspace", before,
		func(ctx context.Context, tx pgx.Tx, w workspace.Workspace, now time.Time) (lifecycle.Intent, error) {
			owner, err := administered(ctx, tx, caller, w)
			if err != nil {
				return lifecycle.Intent{}, err
			}
			out, err := db.administration(ctx, tx, w, now, do)
			if err != nil {
				return lifecycle.Intent{}, err
			}
			if do.Do == DoRecover && out.NeedsSlot {
				active, err := isActive(ctx, tx, w.OwnerID)
				if err != nil {
					return lifecycle.Intent{}, err
				}
				if !active {
					out = lifecycle.WithoutStart(out)
				}
			}
			// What an administrator does is no activity of the owner's, except that the idle
			// timeout of an undeleted workspace restarts.
			if do.Do != DoUndelete {
				out.Workspace.LastAccessAt, out.Workspace.LastAccess = w.LastAccessAt, w.LastAccess
			}
			if out.Audit.Details = maps.Clone(out.Audit.Details); out.Audit.Details == nil {
				out.Audit.Details = map[string]any{}
			}
			out.Audit.Details["owner"], out.Audit.Details["name"] = owner, w.Name
			if do.Message != "" {
				out.Audit.Details["message"] = do.Message
			}
			kind := do.Do
			if kind == DoRestore {
				kind = DoRecover // servers of the version before know no other
			}
			if !out.Changed && do.Message != "" {
				kind = DoMessage // there was nothing to do
			}
			if kind == DoMessage {
				if err := audit(ctx, tx, caller, AuditMessage, string(id), out.Audit.Details); err != nil {
					return lifecycle.Intent{}, err
				}
			}
			if out.Changed || kind == DoMessage {
				err = insertNotice(ctx, tx, caller, Notice{UserID: w.OwnerID, Kind: kind, WorkspaceID: id, WorkspaceName: w.Name, By: caller.Username, Message: do.Message})
			}
			return out, err
		})
	if err != nil {
		return AnyWorkspace{}, ofOwner(err)
	}
	return db.anyWorkspace(ctx, id)
}

// administered checks that the caller is an administrator in the transaction that holds the
// workspace's row, and returns the name of its owner.
func administered(ctx context.Context, tx pgx.Tx, caller workspace.Caller, w workspace.Workspace) (owner string, err error) {
	var admin bool
	err = tx.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM users WHERE id = $1 AND admin AND active), (SELECT username FROM users WHERE id = $2)`,
		caller.UserID, w.OwnerID).Scan(&admin, &owner)
	if err == nil && !admin {
		err = notAdmin()
	}
	return owner, err
}

func (db *DB) administration(ctx context.Context, tx pgx.Tx, w workspace.Workspace, now time.Time, do Administration) (lifecycle.Intent, error) {
	switch do.Do {
	case DoStop:
		return lifecycle.Halt(w, now, do.Force)
	case DoArchive:
		return lifecycle.Desire(w, now, workspace.DesiredArchived, true)
	case DoCancel:
		return lifecycle.RequestCancel(w, now)
	case DoRecover:
		return db.recovery(ctx, tx, w, now, do)
	case DoDelete:
		return lifecycle.Delete(w, now, true)
	case DoUndelete:
		return undeletion(ctx, tx, w, now)
	case DoTimeouts:
		return timeouts(w, do)
	case DoSize:
		return lifecycle.SetSize(w, do.Size, db.sizes)
	case DoRestore:
		return db.restore(ctx, tx, w, now, do.Backup, do.Start)
	case DoMessage:
		if do.Message == "" {
			return lifecycle.Intent{}, workspace.Errorf(workspace.CodeInvalid, "The message is empty.")
		}
		if w.Phase == workspace.PhaseDeleted {
			return lifecycle.Intent{}, notFound("workspace")
		}
		return lifecycle.Intent{Workspace: w}, nil
	}
	return lifecycle.Intent{}, workspace.Errorf(workspace.CodeInvalid, "Unknown action.")
}

func (db *DB) recovery(ctx context.Context, tx pgx.Tx, w workspace.Workspace, now time.Time, do Administration) (lifecycle.Intent, error) {
	if do.Recover == workspace.RecoverEmpty || do.Recover == workspace.RecoverArchive {
		if _, err := lifecycle.RequestRecover(w, now, workspace.RecoverEmpty); err != nil {
			return lifecycle.Intent{}, err
		}
		if do.Confirm != w.Name {
			e := workspace.Errorf(workspace.CodeConfirmRequired, "This discards the lost data. Repeat the workspace's name in confirm.")
			e.Details = map[string]any{"confirm": w.Name}
			return lifecycle.Intent{}, e
		}
	}
	if do.Recover == workspace.RecoverArchive {
		from, err := chooseArchive(ctx, tx, w.ID, do.Archive)
		if err != nil {
			return lifecycle.Intent{}, err
		}
		return lifecycle.RequestRecoverFrom(w, now, from)
	}
	return db.recoverAllowed(w, now, do.Recover)
}

func timeouts(w workspace.Workspace, do Administration) (lifecycle.Intent, error) {
	if err := lifecycle.Present(w); err != nil {
		return lifecycle.Intent{}, err
	}
	out := lifecycle.Intent{Workspace: w}
	do.StandbyTTL.Apply(&out.Workspace.StandbyTTL)
	do.ArchiveTTL.Apply(&out.Workspace.ArchiveTTL)
	out.Changed = !same(w.StandbyTTL, out.Workspace.StandbyTTL) || !same(w.ArchiveTTL, out.Workspace.ArchiveTTL)
	if out.Changed {
		out.Audit = lifecycle.Entry{Action: AuditTimeouts, Details: map[string]any{
			"standby_ttl_seconds": out.Workspace.StandbyTTL, "archive_ttl_seconds": out.Workspace.ArchiveTTL,
		}}
	}
	return out, nil
}

// ofOwner words a reached limit for an administrator: it is the owner's.
func ofOwner(err error) error {
	var e *workspace.Error
	if !errors.As(err, &e) {
		return err
	}
	out := &workspace.Error{Code: e.Code, Details: e.Details}
	switch e.Details["limit_type"] {
	case "per_user":
		out.Message = "The owner has reached their running limit. Stop one of their workspaces first."
	case lifecycle.LimitBytes:
		used, _ := e.Details["current"].(int64)
		most, _ := e.Details["max"].(int64)
		out.Message = fmt.Sprintf("The owner's workspaces use %s, and at most %s are allowed. Raise the owner's limit, or ask the owner to free space.", setting.FormatBytes(used), setting.FormatBytes(most))
	default:
		return err
	}
	return out
}

// HandOver is who gets a workspace.
type HandOver struct {
	To      string // the id of a user
	Name    string // the workspace's name there; empty: unchanged
	Message string // for both; empty: none

	by string // the administrator who requested what the owner accepts; empty: the caller
}

// HandOver gives a workspace of any user to another one (lifecycle.HandOver). Both get a notice.
// If its owner can log in and is not the caller, it only asks the owner: see AnswerHandOver.
// CodeNameTaken if the new owner has a workspace of this name; CodeInvalid for the
// caller, and for a user who is disabled.
func (db *DB) HandOver(ctx context.Context, caller workspace.Caller, id workspace.ID, h HandOver) (AnyWorkspace, error) {
	if err := db.administers(ctx, caller); err != nil {
		return AnyWorkspace{}, err
	}
	err := db.tx(ctx, "hand over a workspace", func(tx pgx.Tx) error {
		to, err := lockReceiver(ctx, tx, caller, h.To) // users before workspaces
		if err != nil {
			return err
		}
		w, _, err := lockWorkspace(ctx, tx, workspace.System, id)
		if err != nil {
			return err
		}
		owner, err := administered(ctx, tx, caller, w)
		if err != nil {
			return err
		}
		active, err := isActive(ctx, tx, w.OwnerID)
		if err != nil {
			return err
		}
		if active && w.OwnerID != caller.UserID {
			return requestHandOver(ctx, tx, caller, w, owner, to, h)
		}
		if h.Name == "" {
			h.Name = w.Name
		}
		return handOver(ctx, tx, caller, w, to, h)
	})
	if err != nil {
		return AnyWorkspace{}, err
	}
	return db.anyWorkspace(ctx, id)
}

// receiver is a user who gets workspaces.
type receiver struct{ id, username string }

// lockReceiver keeps a user from being disabled or deleted until the transaction ends.
// Administrators give nothing to themselves: they do not enter the workspaces of others.
func lockReceiver(ctx context.Context, tx pgx.Tx, caller workspace.Caller, id string) (to receiver, err error) {
	switch {
	case !workspace.ValidID(id):
		return to, notFound("user")
	case id == caller.UserID:
		return to, workspace.Errorf(workspace.CodeInvalid, "You cannot hand over a workspace to yourself.")
	}
	var disabled bool
	err = tx.QueryRow(ctx, `SELECT id, username, disabled FROM users WHERE id = $1 FOR NO KEY UPDATE`, id).Scan(&to.id, &to.username, &disabled)
	switch {
	case missing(err):
		return to, notFound("user")
	case err == nil && disabled:
		return to, workspace.Errorf(workspace.CodeInvalid, "%s is disabled and cannot get a workspace.", to.username)
	}
	return to, err
}

// handOver gives w, whose row the transaction holds, to another user.
func handOver(ctx context.Context, tx pgx.Tx, caller workspace.Caller, w workspace.Workspace, to receiver, h HandOver) error {
	var from string
	if err := tx.QueryRow(ctx, `SELECT username FROM users WHERE id = $1`, w.OwnerID).Scan(&from); err != nil {
		return err
	}
	out, err := lifecycle.HandOver(w, to.id, h.Name)
	if err != nil {
		return err
	}
	if _, err := saveWorkspace(ctx, tx, out.Workspace, true); err != nil {
		if workspace.CodeOf(err) == workspace.CodeNameTaken {
			return &workspace.Error{Code: workspace.CodeNameTaken, Message: fmt.Sprintf("%s already has a workspace named %q.", to.username, h.Name), Err: err}
		}
		return err
	}
	if err := backUpHandedOver(ctx, tx, w); err != nil {
		return err
	}
	// Sessions on the workspace's host and tickets to it were the former owner's.
	for _, table := range []string{"workspace_sessions", "tickets", "hand_over_requests"} {
		if _, err := tx.Exec(ctx, `DELETE FROM `+table+` WHERE workspace_id = $1`, w.ID); err != nil {
			return err
		}
	}
	details := out.Audit.Details
	details["name"], details["from"], details["to"] = h.Name, from, to.username
	if w.Name != h.Name {
		details["former_name"] = w.Name
	}
	if h.Message != "" {
		details["message"] = h.Message
	}
	by := caller.Username
	if h.by != "" {
		by, details["requested_by"] = h.by, h.by
	}
	if err := audit(ctx, tx, caller, out.Audit.Action, string(w.ID), details); err != nil {
		return err
	}
	told := Notice{Kind: NoticeHandedOver, UserID: w.OwnerID, WorkspaceID: w.ID, WorkspaceName: w.Name, By: by, Other: to.username, Message: h.Message}
	if err := insertNotice(ctx, tx, caller, told); err != nil {
		return err
	}
	told.Kind, told.UserID, told.WorkspaceName, told.Other = NoticeReceived, to.id, h.Name, from
	return insertNotice(ctx, tx, caller, told)
}
