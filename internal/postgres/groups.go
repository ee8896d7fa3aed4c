package postgres

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"codehub/api"
	"codehub/internal/workspace"
)

// Actions on groups in the audit log.
const (
	AuditGroupCreate = "group.create"
	AuditGroupChange = "group.change"
	AuditGroupDelete = "group.delete"
	AuditGroupAdd    = "group.add"    // a member
	AuditGroupRemove = "group.remove" // a member
)

type (
	Group      = api.Group
	GroupPatch = api.PatchGroup
	Member     = api.Member
)

// MaxGroupName is the length of a group's name, in characters.
const MaxGroupName = 64

// groupColumns are the columns of the group g for the user me.
const groupColumns = `g.id, g.name, g.claim, g.claim_issuer, g.max_running, g.max_workspaces, g.max_bytes, g.created_at,
	(SELECT count(DISTINCT p.user_id) FROM group_people p WHERE p.group_id = g.id),
	me.admin OR EXISTS (SELECT FROM group_members m WHERE m.group_id = g.id AND m.user_id = me.id AND m.admin),
	EXISTS (SELECT FROM group_people p WHERE p.group_id = g.id AND p.user_id = me.id)`

// toGroup returns CodeForbidden for a caller who is neither an administrator nor a member.
func toGroup(row pgx.CollectableRow) (Group, error) {
	var g Group
	var member bool
	err := row.Scan(&g.ID, &g.Name, &g.Claim, &g.Issuer, &g.MaxRunning, &g.MaxWorkspaces, &g.MaxBytes, &g.CreatedAt, &g.Members, &g.Manages, &member)
	if err == nil && !g.Manages && !member {
		err = forbidden()
	}
	return g, err
}

// nameCursor reads a cursor of a list by name.
func nameCursor(cursor string) (after string, err error) {
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || !utf8.Valid(b) || strings.ContainsRune(string(b), 0) {
		return "", invalidCursor()
	}
	return string(b), nil
}

// cutNames returns a page of a list by name, and the cursor of the next one.
func cutNames[T any](list []T, size int, name func(T) string) (page []T, next string) {
	if len(list) <= size {
		return list, ""
	}
	return list[:size], base64.RawURLEncoding.EncodeToString([]byte(UsernameKey(name(list[size-1]))))
}

// Groups lists the groups by name: all for an administrator, else those that the caller is in.
func (db *DB) Groups(ctx context.Context, caller workspace.Caller, page Page) (list []Group, next string, err error) {
	if !workspace.ValidID(caller.UserID) {
		return nil, "", forbidden()
	}
	after, err := nameCursor(page.Cursor)
	if err != nil {
		return nil, "", err
	}
	const verb = "list the groups"
	rows, err := db.pool.Query(ctx, `
		SELECT `+groupColumns+` FROM user_groups g, users me
		WHERE me.id = $1 AND me.active AND ($2 = '' OR g.name_key COLLATE "C" > $2)
			AND (me.admin OR g.id IN (SELECT group_id FROM group_people WHERE user_id = me.id))
		ORDER BY g.name_key COLLATE "C" LIMIT $3`, caller.UserID, after, page.Size()+1)
	if err != nil {
		return nil, "", failed(verb, err)
	}
	if list, err = pgx.CollectRows(rows, toGroup); err != nil {
		return nil, "", failed(verb, err)
	}
	list, next = cutNames(list, page.Size(), func(g Group) string { return g.Name })
	return list, next, nil
}

// Group reads a group that the caller is in or, for administrators, any. CodeForbidden for
// other callers.
func (db *DB) Group(ctx context.Context, caller workspace.Caller, id string) (Group, error) {
	g, err := group(ctx, db.pool, caller, id)
	return g, failed("read a group", err)
}

// group is Group within a transaction. For a caller who is not an administrator, a group that does not
// exist is one that the caller is not in.
func group(ctx context.Context, in querier, caller workspace.Caller, id string) (Group, error) {
	if !workspace.ValidID(caller.UserID) {
		return Group{}, forbidden()
	}
	if !workspace.ValidID(id) {
		return Group{}, notFound("group")
	}
	rows, err := in.Query(ctx, `SELECT `+groupColumns+` FROM users me LEFT JOIN user_groups g ON g.id = $2 WHERE me.id = $1 AND me.active AND (g.id IS NOT NULL OR NOT me.admin)`, caller.UserID, id)
	if err != nil {
		return Group{}, err
	}
	g, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (Group, error) {
		if row.RawValues()[0] == nil {
			return Group{}, forbidden()
		}
		return toGroup(row)
	})
	if missing(err) {
		return Group{}, notFound("group")
	}
	return g, err
}

// Members lists the members of a group by name. Only administrators, and those of the group, may
// call it.
func (db *DB) Members(ctx context.Context, caller workspace.Caller, id string, page Page) (list []Member, next string, err error) {
	after, err := nameCursor(page.Cursor)
	if err != nil {
		return nil, "", err
	}
	const verb = "list the members of a group"
	g, err := group(ctx, db.pool, caller, id)
	if err != nil {
		return nil, "", failed(verb, err)
	}
	if !g.Manages {
		return nil, "", notGroupAdmin()
	}
	rows, err := db.pool.Query(ctx, `
		SELECT u.id, u.username, bool_or(p.admin), NOT bool_and(p.claimed), bool_or(p.claimed)
		FROM group_people p JOIN users u ON u.id = p.user_id
		WHERE p.group_id = $1 AND ($2 = '' OR u.username_key COLLATE "C" > $2)
		GROUP BY u.id ORDER BY u.username_key COLLATE "C" LIMIT $3`, id, after, page.Size()+1)
	if err != nil {
		return nil, "", failed(verb, err)
	}
	if list, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Member]); err != nil {
		return nil, "", failed(verb, err)
	}
	list, next = cutNames(list, page.Size(), func(m Member) string { return m.Username })
	return list, next, nil
}

func notGroupAdmin() error {
	return workspace.Errorf(workspace.CodeForbidden, "Only administrators, and those of the group, can do this.")
}

// checkClaim refuses an issuer without a claim, which would have no effect.
func checkClaim(claim, issuer string) error {
	if claim != "" || issuer == "" {
		return nil
	}
	e := workspace.Errorf(workspace.CodeInvalid, "The issuer needs a claim.")
	e.Details = map[string]any{"field": "issuer"}
	return e
}

// CreateGroup adds a group for an administrator. CodeNameTaken; CodeInvalid for an issuer
// without a claim.
func (db *DB) CreateGroup(ctx context.Context, caller workspace.Caller, g Group) (Group, error) {
	var made Group
	if err := checkClaim(g.Claim, g.Issuer); err != nil {
		return made, err
	}
	err := db.tx(ctx, "create a group", func(tx pgx.Tx) error {
		if _, err := administrators(ctx, tx, caller); err != nil {
			return err
		}
		id, err := uuid.NewV7()
		if err != nil {
			return fmt.Errorf("make an id: %w", err)
		}
		_, err = tx.Exec(ctx, `
			INSERT INTO user_groups (id, name, name_key, claim, claim_issuer, max_running, max_workspaces, max_bytes) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
			id.String(), g.Name, UsernameKey(g.Name), g.Claim, g.Issuer, g.MaxRunning, g.MaxWorkspaces, g.MaxBytes)
		if err := groupNameTaken(err, g.Name); err != nil {
			return err
		}
		details := applyGroup(GroupPatch{
			Name: &g.Name, Claim: &g.Claim, Issuer: &g.Issuer, MaxRunning: api.Nullable[int]{Set: true, Value: g.MaxRunning},
			MaxWorkspaces: api.Nullable[int]{Set: true, Value: g.MaxWorkspaces}, MaxBytes: api.Nullable[int64]{Set: true, Value: g.MaxBytes},
		}, &Group{})
		if err := audit(ctx, tx, caller, AuditGroupCreate, id.String(), details); err != nil {
			return err
		}
		made, err = group(ctx, tx, caller, id.String())
		return err
	})
	return made, err
}

func groupNameTaken(err error, name string) error {
	if violates(err, "user_groups_name_key") {
		return &workspace.Error{Code: workspace.CodeNameTaken, Message: fmt.Sprintf("A group named %q exists.", name), Err: err}
	}
	return err
}

// applyGroup changes g and returns the changes for the audit log.
func applyGroup(p GroupPatch, g *Group) (changed map[string]any) {
	changed = map[string]any{}
	for _, t := range []struct {
		name string
		to   *string
		of   *string
	}{{"name", p.Name, &g.Name}, {"claim", p.Claim, &g.Claim}, {"issuer", p.Issuer, &g.Issuer}} {
		if t.to != nil && *t.to != *t.of {
			*t.of, changed[t.name] = *t.to, *t.to
		}
	}
	if g.Claim == "" && g.Issuer != "" {
		g.Issuer, changed["issuer"] = "", ""
	}
	if n := p.MaxRunning; n.Set && !same(n.Value, g.MaxRunning) {
		g.MaxRunning, changed["max_running"] = n.Value, n.Value
	}
	if n := p.MaxWorkspaces; n.Set && !same(n.Value, g.MaxWorkspaces) {
		g.MaxWorkspaces, changed["max_workspaces"] = n.Value, n.Value
	}
	if n := p.MaxBytes; n.Set && !same(n.Value, g.MaxBytes) {
		g.MaxBytes, changed["max_bytes"] = n.Value, n.Value
	}
	return changed
}

// PatchGroup changes a group for an administrator; without a claim it has no issuer.
// CodeNotFound; CodeNameTaken; CodeInvalid for a new issuer without a claim.
func (db *DB) PatchGroup(ctx context.Context, caller workspace.Caller, id string, p GroupPatch) (Group, error) {
	var out Group
	err := db.tx(ctx, "change a group", func(tx pgx.Tx) error {
		if _, err := administrators(ctx, tx, caller); err != nil {
			return err
		}
		g, err := group(ctx, tx, caller, id)
		if err != nil {
			return err
		}
		changed := applyGroup(p, &g)
		if p.Issuer != nil {
			if err := checkClaim(g.Claim, *p.Issuer); err != nil {
				return err
			}
		}
		if out = g; len(changed) == 0 {
			return nil
		}
		_, err = tx.Exec(ctx, `
			UPDATE user_groups SET name = $2, name_key = $3, claim = $4, claim_issuer = $5, max_running = $6, max_workspaces = $7, max_bytes = $8 WHERE id = $1`,
			id, g.Name, UsernameKey(g.Name), g.Claim, g.Issuer, g.MaxRunning, g.MaxWorkspaces, g.MaxBytes)
		if err := groupNameTaken(err, g.Name); err != nil {
			return err
		}
		changed["name"] = g.Name
		if err := audit(ctx, tx, caller, AuditGroupChange, id, changed); err != nil {
			return err
		}
		out, err = group(ctx, tx, caller, id)
		return err
	})
	return out, err
}

// DeleteGroup removes a group for an administrator. CodeNotFound.
func (db *DB) DeleteGroup(ctx context.Context, caller workspace.Caller, id string) error {
	return db.tx(ctx, "delete a group", func(tx pgx.Tx) error {
		if _, err := administrators(ctx, tx, caller); err != nil {
			return err
		}
		g, err := group(ctx, tx, caller, id)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `DELETE FROM user_groups WHERE id = $1`, id); err != nil {
			return err
		}
		return audit(ctx, tx, caller, AuditGroupDelete, id, map[string]any{"name": g.Name, "members": g.Members})
	})
}

// lockGroup makes this the only transaction that changes the members of a group, and returns it,
// and whether the caller is an administrator. CodeForbidden unless the caller manages it.
func lockGroup(ctx context.Context, tx pgx.Tx, caller workspace.Caller, id string) (g Group, admin bool, err error) {
	if g, err = group(ctx, tx, caller, id); err != nil {
		return g, false, err
	}
	if _, err := tx.Exec(ctx, `SELECT FROM user_groups WHERE id = $1 FOR UPDATE`, id); err != nil {
		return g, false, err
	}
	if g, err = group(ctx, tx, caller, id); err != nil { // as of now
		return g, false, err
	}
	if !g.Manages {
		return g, false, notGroupAdmin()
	}
	err = tx.QueryRow(ctx, `SELECT admin FROM users WHERE id = $1`, caller.UserID).Scan(&admin)
	return g, admin, err
}

// findUser finds a user by id or, if there is none, by name. CodeNotFound.
func findUser(ctx context.Context, tx pgx.Tx, nameOrID string) (id, username string, err error) {
	err = tx.QueryRow(ctx, `
		SELECT id, username FROM users WHERE removed_at IS NULL AND (username_key = $1 OR id = $2)
		ORDER BY id = $2 DESC LIMIT 1 FOR SHARE`, UsernameKey(clean(nameOrID)), idOrNull(nameOrID)).Scan(&id, &username)
	if missing(err) {
		err = notFound("user")
	}
	return id, username, err
}

// SetMember adds a user (a name or an id) to a group, or changes whether a member is an
// administrator of it; nil: as it is, and not for a new member. Administrators of a group add
// members; only those of codehub make others administrators of it.
func (db *DB) SetMember(ctx context.Context, caller workspace.Caller, id, user string, admin *bool) (Member, error) {
	var m Member
	err := db.tx(ctx, "add a member", func(tx pgx.Tx) error {
		g, administrator, err := lockGroup(ctx, tx, caller, id)
		if err != nil {
			return err
		}
		if m.UserID, m.Username, err = findUser(ctx, tx, user); err != nil {
			return err
		}
		err = tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM group_people WHERE group_id = $1 AND user_id = $2 AND claimed)`, id, m.UserID).Scan(&m.Claimed)
		if err != nil {
			return err
		}
		var was, present bool
		switch err := tx.QueryRow(ctx, `SELECT admin FROM group_members WHERE group_id = $1 AND user_id = $2`, id, m.UserID).Scan(&was); {
		case err == nil:
			present = true
		case !missing(err):
			return err
		}
		if m.Admin = was; admin != nil {
			m.Admin = *admin
		}
		if m.Added = true; present && m.Admin == was {
			return nil
		}
		if m.Admin != was && !administrator {
			return notAdmin()
		}
		if _, err := tx.Exec(ctx, `
			INSERT INTO group_members (group_id, user_id, admin) VALUES ($1, $2, $3)
			ON CONFLICT (group_id, user_id) DO UPDATE SET admin = EXCLUDED.admin`, id, m.UserID, m.Admin); err != nil {
			return err
		}
		return audit(ctx, tx, caller, AuditGroupAdd, id, map[string]any{"name": g.Name, "user": m.Username, "admin": m.Admin})
	})
	return m, err
}

// RemoveMember removes a user (an id) from a group. Administrators of a group remove members and
// themselves; only those of codehub remove other administrators of it. claimed: the user is still a
// member, by the claim. CodeNotFound if the user is not a member; CodeInvalid if only by the claim.
func (db *DB) RemoveMember(ctx context.Context, caller workspace.Caller, id, user string) (claimed bool, err error) {
	err = db.tx(ctx, "remove a member", func(tx pgx.Tx) error {
		g, administrator, err := lockGroup(ctx, tx, caller, id)
		if err != nil {
			return err
		}
		if !workspace.ValidID(user) {
			return notFound("member")
		}
		var name string
		var admin, added bool
		err = tx.QueryRow(ctx, `
			SELECT u.username, bool_or(p.admin), NOT bool_and(p.claimed), bool_or(p.claimed) FROM group_people p JOIN users u ON u.id = p.user_id
			WHERE p.group_id = $1 AND p.user_id = $2 GROUP BY u.id`, id, user).Scan(&name, &admin, &added, &claimed)
		switch {
		case missing(err):
			return notFound("member")
		case err != nil:
			return err
		case !added:
			return workspace.Errorf(workspace.CodeInvalid, "%s is a member by the identity provider's groups.", name)
		case admin && !administrator && user != caller.UserID:
			return notAdmin()
		}
		if _, err := tx.Exec(ctx, `DELETE FROM group_members WHERE group_id = $1 AND user_id = $2`, id, user); err != nil {
			return err
		}
		details := map[string]any{"name": g.Name, "user": name}
		if claimed {
			details["claimed"] = true
		}
		return audit(ctx, tx, caller, AuditGroupRemove, id, details)
	})
	return claimed && err == nil, err
}
