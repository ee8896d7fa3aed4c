package postgres

import (
	"bytes"
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
)

// known is a row as it was last read. version is the transaction that wrote
// it, the system column xmin: two versions of a row that can be seen, one
// after the other, are never written by the same.
type known struct {
	id      [16]byte
	version uint32
	turn    uint64 // of the last Candidates that saw it
	row     workspace.Workspace
}

// Candidates reads every workspace of which something is left, deleted ones
// included, by ascending id. What only people see or the TTLs need stays
// empty: Description, Memo, LastAccessAt, LastAccess, KeepAwakeTil,
// StandbyTTL, ArchiveTTL and UpdatedAt.
//
// Every call asks for the present version of every row, and reads those that
// it does not have yet. Rows share the memory behind their pointers and maps
// with those of other calls, so that is not to be changed.
func (c *Controller) Candidates(ctx context.Context) (list []workspace.Workspace, err error) {
	err = c.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		c.turn++
		stale, err := c.look(ctx, conn)
		if err == nil && len(stale) > 0 {
			err = c.read(ctx, conn, stale)
		}
		if err != nil {
			return err
		}
		c.forget()
		list = make([]workspace.Workspace, len(c.order))
		for i, k := range c.order {
			list[i] = k.row
		}
		return nil
	})
	return list, failed("read the workspaces", err)
}

// forget drops the rows that are gone, and puts new ones in their place.
func (c *Controller) forget() {
	c.order = slices.DeleteFunc(c.order, func(k *known) bool {
		gone := k.turn != c.turn
		if gone {
			delete(c.known, k.id)
		}
		return gone
	})
	slices.SortFunc(c.order, func(a, b *known) int { return bytes.Compare(a.id[:], b.id[:]) })
}

// look finds the rows whose present version is not known.
func (c *Controller) look(ctx context.Context, conn *pgx.Conn) (stale [][16]byte, err error) {
	rows, err := conn.Query(ctx, `SELECT id, xmin FROM workspaces WHERE phase <> 'DELETED'`)
	if err != nil {
		return nil, err
	}
	var id [16]byte
	var version uint32
	_, err = pgx.ForEachRow(rows, []any{&id, &version}, func() error {
		if k := c.known[id]; k != nil && k.version == version {
			k.turn = c.turn
		} else {
			stale = append(stale, id)
		}
		return nil
	})
	return stale, err
}

// read reads rows afresh; one that is gone by now is left out.
func (c *Controller) read(ctx context.Context, conn *pgx.Conn, stale [][16]byte) error {
	rows, err := conn.Query(ctx, `
		SELECT id, xmin, `+coreColumns+` FROM workspaces WHERE id = ANY ($1) AND phase <> 'DELETED'`, stale)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var fresh known
		if err := rows.Scan(append([]any{&fresh.id, &fresh.version}, coreTargets(&fresh.row)...)...); err != nil {
			return err
		}
		fresh.turn = c.turn
		k := c.known[fresh.id]
		if k == nil {
			k = &known{}
			c.known[fresh.id] = k
			c.order = append(c.order, k)
		}
		*k = fresh
	}
	return rows.Err()
}
