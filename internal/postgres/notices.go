package postgres

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"codehub/api"
	"codehub/internal/workspace"
)

// Kinds of notices besides those of Administration.Do.
const (
	NoticeHandedOver = "handed_over" // to the former owner; Other is the new one
	NoticeReceived   = "received"    // to the new owner; Other is the former one
	NoticeShared     = "shared"      // to a guest, until the share ends; By is the owner
	// NoticeAsked is of a hand-over that the user is asked to accept, until the user answers; Other
	// would be the new owner. It is read from hand_over_requests, so that it cannot be dismissed or
	// dropped.
	NoticeAsked = "hand_over_request"
)

// Notice tells a user what an administrator did, or that a workspace is shared with the user, until
// the user dismisses it.
type Notice struct {
	ID            string
	UserID        string
	Kind          string
	WorkspaceID   workspace.ID
	WorkspaceName string
	By, Other     string // usernames
	Message       string // of the administrator
	CreatedAt     time.Time
}

// Limits of notices and messages.
const (
	MaxMessage = 2000 // characters
	// A user has at most so many notices of administrators and of shares; the oldest ones are
	// dropped. They are counted separately, so that no user can push out those of administrators by
	// sharing.
	maxNotices = 100
	maxShared  = 10
)

// NoticesKept is how long a notice is kept that is not dismissed.
const NoticesKept = 90 * 24 * time.Hour

// CheckMessage returns CodeInvalid for a text that is too long or has control characters.
// field names it.
func CheckMessage(field, text string) error {
	bad := func(why string) error { return workspace.InvalidField(field, why) }
	switch {
	case utf8.RuneCountInString(text) > MaxMessage:
		return bad(fmt.Sprintf("must be at most %d characters.", MaxMessage))
	case !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return (r < ' ' && r != '\n' && r != '\t') || r == 0x7f }):
		return bad("must have no control characters.")
	}
	return nil
}

// insertNotice adds a notice. Users get none of what they did themselves.
func insertNotice(ctx context.Context, tx pgx.Tx, caller workspace.Caller, n Notice) error {
	if n.UserID == caller.UserID {
		return nil
	}
	id, err := uuid.NewV7()
	if err != nil {
		return fmt.Errorf("make an id: %w", err)
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO user_notices (id, user_id, kind, workspace_id, workspace_name, by_username, other_username, message)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
		id.String(), n.UserID, n.Kind, nullable(n.WorkspaceID), n.WorkspaceName, clean(n.By), n.Other, clean(n.Message))
	if err != nil {
		return err
	}
	return dropOldest(ctx, tx, []string{n.UserID})
}

// dropOldest keeps maxNotices and maxShared of each of the users.
func dropOldest(ctx context.Context, tx pgx.Tx, users []string) error {
	_, err := tx.Exec(ctx, `
		DELETE FROM user_notices n USING (
			SELECT id, kind, row_number() OVER (PARTITION BY user_id, kind = $2 ORDER BY created_at DESC, id DESC) AS n
			FROM user_notices WHERE user_id = ANY ($1::uuid[])) o
		WHERE n.id = o.id AND o.n > CASE WHEN o.kind = $2 THEN $4::int ELSE $3::int END`, users, NoticeShared, maxNotices, maxShared)
	return err
}

// noteShare adds a notice for each of the users with whom a share is about to be made and who have
// no access yet. with is the id of a user or group, in the column of workspace_shares.
func noteShare(ctx context.Context, tx pgx.Tx, caller workspace.Caller, w workspace.Workspace, column, with string) error {
	people := `SELECT $5::uuid AS user_id`
	if column == "group_id" {
		people = `SELECT DISTINCT user_id FROM group_people WHERE group_id = $5::uuid`
	}
	rows, err := tx.Query(ctx, `
		INSERT INTO user_notices (id, user_id, kind, workspace_id, workspace_name, by_username)
		SELECT gen_random_uuid(), p.user_id, $1, $2, $3, $4
		FROM (`+people+`) p JOIN users u ON u.id = p.user_id AND u.active
		WHERE p.user_id <> $6 AND NOT EXISTS (SELECT FROM workspace_guests g WHERE g.workspace_id = $2 AND g.user_id = p.user_id)
		RETURNING user_id::text`, NoticeShared, string(w.ID), w.Name, clean(caller.Username), with, w.OwnerID)
	if err != nil {
		return err
	}
	users, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(users) == 0 {
		return err
	}
	return dropOldest(ctx, tx, users)
}

// A notice of a share is shown as long as the user has access. Hand-overs that wait for the user
// come first; their id is that of the workspace.
const listNotices = `
	SELECT * FROM (
	SELECT id, user_id, kind, COALESCE(workspace_id::text, ''), workspace_name, by_username, other_username, message, created_at
	FROM user_notices n WHERE user_id = $1 AND ($2 = '' OR workspace_id::text = $2)
		AND (kind <> '` + NoticeShared + `' OR EXISTS (SELECT FROM workspace_guests g WHERE g.workspace_id = n.workspace_id AND g.user_id = n.user_id))
	UNION ALL
	SELECT r.workspace_id, r.user_id, '` + NoticeAsked + `', r.workspace_id::text, w.name, r.by_username, t.username, r.message, r.requested_at
	FROM hand_over_requests r JOIN users t ON t.id = r.to_user_id JOIN workspaces w ON w.id = r.workspace_id AND w.owner_user_id = r.user_id AND w.deleted_at IS NULL
	WHERE r.user_id = $1 AND ($2 = '' OR r.workspace_id::text = $2) AND r.declined_at IS NULL
	) all_of_them ORDER BY kind = '` + NoticeAsked + `' DESC, created_at DESC, id DESC`

// Notices lists the caller's notices, newest first; for a token of one workspace those about
// it.
func (db *DB) Notices(ctx context.Context, caller workspace.Caller) ([]Notice, error) {
	if !workspace.ValidID(caller.UserID) {
		return nil, forbidden()
	}
	const verb = "list notices"
	rows, err := db.pool.Query(ctx, listNotices, caller.UserID, caller.Only)
	if err != nil {
		return nil, failed(verb, err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Notice])
	return list, failed(verb, err)
}

// News is what a user sees on every page: the banner and the user's notices.
type News struct {
	Banner  Banner
	Notices []Notice // newest first
}

// News reads the caller's, in one round trip.
func (db *DB) News(ctx context.Context, caller workspace.Caller) (n News, err error) {
	if !workspace.ValidID(caller.UserID) {
		return n, forbidden()
	}
	var b pgx.Batch
	b.Queue(`SELECT message, username, set_at FROM banner`).QueryRow(func(row pgx.Row) error {
		if err := row.Scan(&n.Banner.Message, &n.Banner.SetBy, &n.Banner.SetAt); !missing(err) {
			return err
		}
		return nil
	})
	b.Queue(listNotices, caller.UserID, caller.Only).Query(func(rows pgx.Rows) (err error) {
		n.Notices, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Notice])
		return err
	})
	return n, failed("read notices", db.pool.SendBatch(ctx, &b).Close())
}

// DismissNotice removes one of the caller's notices. CodeNotFound.
func (db *DB) DismissNotice(ctx context.Context, caller workspace.Caller, id string) error {
	if !workspace.ValidID(id) {
		return notFound("notice")
	}
	if !workspace.ValidID(caller.UserID) {
		return forbidden()
	}
	return db.tx(ctx, "dismiss a notice", func(tx pgx.Tx) error {
		var owner string
		err := tx.QueryRow(ctx, `SELECT user_id FROM user_notices WHERE id = $1 FOR UPDATE`, id).Scan(&owner)
		switch {
		case missing(err):
			return notFound("notice")
		case err != nil:
			return err
		case !caller.Owns(owner):
			return forbidden()
		}
		_, err = tx.Exec(ctx, `DELETE FROM user_notices WHERE id = $1`, id)
		return err
	})
}

// DeleteOldNotices removes notices that are older than NoticesKept.
func (db *DB) DeleteOldNotices(ctx context.Context) error {
	_, err := db.pool.Exec(ctx, `DELETE FROM user_notices WHERE created_at < now() - make_interval(secs => $1)`, NoticesKept.Seconds())
	return failed("remove old notices", err)
}

// Banner is the text that all users see on every page.
type Banner = api.Banner

// AuditBanner is the action of a change of the banner.
const AuditBanner = "banner.change"

// Banner reads the banner.
func (db *DB) Banner(ctx context.Context) (b Banner, err error) {
	err = db.pool.QueryRow(ctx, `SELECT message, username, set_at FROM banner`).Scan(&b.Message, &b.SetBy, &b.SetAt)
	if missing(err) {
		return Banner{}, nil
	}
	return b, failed("read the banner", err)
}

// SetBanner replaces the banner; an empty text removes it. Only administrators may call it.
func (db *DB) SetBanner(ctx context.Context, caller workspace.Caller, text string) (b Banner, err error) {
	text = strings.TrimSpace(text)
	if err := CheckMessage("message", text); err != nil {
		return b, err
	}
	err = db.tx(ctx, "set the banner", func(tx pgx.Tx) error {
		if _, err := administrators(ctx, tx, caller); err != nil {
			return err
		}
		var before string
		if err := tx.QueryRow(ctx, `SELECT message FROM banner`).Scan(&before); err != nil && !missing(err) {
			return err
		}
		if text == before {
			return nil
		}
		if text == "" {
			if _, err := tx.Exec(ctx, `DELETE FROM banner`); err != nil {
				return err
			}
		} else if _, err := tx.Exec(ctx, `
			INSERT INTO banner (message, username) VALUES ($1, $2)
			ON CONFLICT (only_row) DO UPDATE SET message = EXCLUDED.message, username = EXCLUDED.username, set_at = clock_timestamp()`,
			text, caller.Username); err != nil {
			return err
		}
		return audit(ctx, tx, caller, AuditBanner, "", map[string]any{"message": text})
	})
	if err != nil {
		return Banner{}, err
	}
	return db.Banner(ctx)
}
