package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
)

// Page selects a part of a list.
type Page struct {
	Limit  int    // at most MaxList; 0: DefaultList
	Cursor string // of the previous page; empty: the first page
}

// Bounds of a page's length.
const (
	DefaultList = 50
	MaxList     = 200
)

// Size is the number of entries that the page may have.
func (p Page) Size() int {
	if p.Limit <= 0 {
		return DefaultList
	}
	return min(p.Limit, MaxList)
}

// cutPage returns a page of size rows from a list that was read with one row more, and the
// cursor of the next page, "" at the end. at is the place of a row in the list.
func cutPage[T any](list []T, size int, at func(T) place) (page []T, next string) {
	if len(list) <= size {
		return list, ""
	}
	return list[:size], at(list[size-1]).cursor()
}

// owned is a table whose rows belong to users. It has the columns id, user_id and created_at.
type owned[T any] struct {
	verb    string // of errors
	from    string // the table, with the alias that columns uses
	columns string
	targets func(*T) []any // of columns
	at      func(T) place  // CreatedAt and ID
}

// list returns the caller's rows, newest first, and the cursor of the next page, "" at the
// end.
func (o owned[T]) list(ctx context.Context, db *DB, caller workspace.Caller, page Page) (list []T, next string, err error) {
	if !workspace.ValidID(caller.UserID) {
		return nil, "", forbidden()
	}
	var q where
	q.add(`user_id = ?`, caller.UserID)
	if page.Cursor != "" {
		p, err := parseCursor(page.Cursor)
		if err != nil {
			return nil, "", err
		}
		q.add(`(created_at, id) < (?, ?)`, p.At, p.ID)
	}
	rows, err := db.pool.Query(ctx, fmt.Sprintf(`SELECT %s FROM %s WHERE %s ORDER BY created_at DESC, id DESC LIMIT %d`,
		o.columns, o.from, strings.Join(q.parts, ` AND `), page.Size()+1), q.args...)
	if err != nil {
		return nil, "", failed(o.verb, err)
	}
	list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (v T, err error) {
		return v, row.Scan(o.targets(&v)...)
	})
	if err != nil {
		return nil, "", failed(o.verb, err)
	}
	list, next = cutPage(list, page.Size(), o.at)
	return list, next, nil
}
