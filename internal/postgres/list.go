package postgres

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// Filter selects the workspaces of a list.
type Filter struct {
	Query string          // part of the name or description, without regard to case
	Phase workspace.Phase // empty: any
	// Deleted lists the deleted workspaces that can be undeleted or whose deletion
	// failed, instead of those that are not deleted.
	Deleted bool
	// Recent lists the workspaces that count against the running limits first, then the most
	// recently used. Otherwise the newest come first.
	Recent bool
	// Repository lists the workspaces that were created for this repository and branch alone; nil: all.
	Repository *workspace.Repository
	Limit      int    // at most MaxList; 0: DefaultList
	Cursor     string // of the previous page
}

// ListWorkspaces lists the caller's workspaces and returns the cursor of the next page, "" at
// the end. System lists those of all users.
func (db *DB) ListWorkspaces(ctx context.Context, caller workspace.Caller, f Filter) (list []workspace.Workspace, next string, err error) {
	limit := Page{Limit: f.Limit}.Size()
	var q where
	if caller != workspace.System {
		if !workspace.ValidID(caller.UserID) {
			return nil, "", forbidden()
		}
		q.add(`owner_user_id = ?`, caller.UserID)
	}
	if caller.Only != "" {
		q.add(`id = ?`, caller.Only)
	}
	if f.Deleted {
		q.add(deletedListed)
	} else {
		q.add(`deleted_at IS NULL`)
	}
	if f.Phase != "" {
		q.add(`phase = ?`, string(f.Phase))
	}
	if f.Query != "" {
		q.add(`(name ILIKE ? OR description ILIKE ?)`, containing(f.Query), containing(f.Query))
	}
	if r := f.Repository; r != nil {
		q.add(`jsonb_array_length(project->'repositories') = 1 AND project#>>'{repositories,0,url}' = ANY(?) AND coalesce(project#>>'{repositories,0,branch}', '') = ?`,
			r.Spellings(), r.Branch)
	}
	order := `created_at DESC, id DESC`
	if f.Recent {
		order = `holds_slot DESC, ` + lastUse + ` DESC, id DESC`
	}
	if f.Cursor != "" {
		p, err := parseCursor(f.Cursor)
		switch {
		case err != nil:
			return nil, "", err
		case f.Recent:
			q.add(`(holds_slot, `+lastUse+`, id) < (?, ?, ?)`, p.Slot, p.At, p.ID)
		default:
			q.add(`(created_at, id) < (?, ?)`, p.At, p.ID)
		}
	}

	const verb = "list workspaces"
	rows, err := db.pool.Query(ctx, fmt.Sprintf(`SELECT %s FROM workspaces WHERE %s ORDER BY %s LIMIT %d`,
		workspaceColumns, strings.Join(q.parts, ` AND `), order, limit+1), q.args...)
	if err != nil {
		return nil, "", failed(verb, err)
	}
	list, err = pgx.CollectRows(rows, toWorkspace)
	if err != nil {
		return nil, "", failed(verb, err)
	}
	list, next = cutPage(list, limit, func(last workspace.Workspace) place {
		p := place{At: last.CreatedAt, ID: string(last.ID)}
		if f.Recent {
			p.Slot = lifecycle.HoldsSlot(last)
			if last.LastAccessAt != nil {
				p.At = *last.LastAccessAt
			}
		}
		return p
	})
	return list, next, nil
}

// lastUse is when a workspace was last used, in SQL; one that was never used counts from its
// creation.
const lastUse = `COALESCE(last_access_at, created_at)`

// where collects the conditions of a query; each ? is the place of one argument.
type where struct {
	parts []string
	args  []any
}

func (c *where) add(sql string, args ...any) {
	for _, a := range args {
		c.args = append(c.args, a)
		sql = strings.Replace(sql, "?", fmt.Sprintf("$%d", len(c.args)), 1)
	}
	c.parts = append(c.parts, sql)
}

// containing returns a LIKE pattern that matches texts with s in them.
func containing(s string) string {
	return `%` + strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(s) + `%`
}

// place is the content of a cursor: the last row of a page.
type place struct {
	At   time.Time `json:"t"`
	ID   string    `json:"i"`
	Slot bool      `json:"s,omitempty"` // it counts against the running limits
	Kind string    `json:"k,omitempty"` // of an orphan, whose ID is its name
}

func (p place) cursor() string {
	b, _ := json.Marshal(p) // times of the database and ids can always be encoded
	return base64.RawURLEncoding.EncodeToString(b)
}

// parseCursor reads a cursor of rows whose ID is a UUID.
func parseCursor(s string) (p place, err error) {
	if p, err = parsePlace(s); err == nil && !workspace.ValidID(p.ID) {
		err = invalidCursor()
	}
	return p, err
}

func parsePlace(s string) (p place, err error) {
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	// PostgreSQL has no NUL in texts, and no year 0 or after 294276.
	if err != nil || strings.ContainsRune(p.ID+p.Kind, 0) || p.At.Year() < 1 || p.At.Year() > 9999 {
		return place{}, invalidCursor()
	}
	return p, nil
}

func invalidCursor() error { return workspace.Errorf(workspace.CodeInvalid, "Invalid cursor.") }
