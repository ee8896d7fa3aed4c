package postgres

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/workspace"
)

// known is a row as it was last read. version is the transaction that wrote it (xmin):
// consecutive visible versions of a row always differ in it.
type known struct {
	id      [16]byte
	version uint32
	turn    uint64               // the last call of Candidates that found it
	row     *workspace.Workspace // replaced, never modified
}

// readSize bounds how many rows one query reads, and so how long other users of the session
// wait.
const readSize = 5000

// Candidates reads every workspace that is not DELETED, by ascending id. Columns with skipTick
// stay empty.
//
// Every call reads the database's clock (see Clock) and the current version of every row, and
// then the rows whose version is new. For an unchanged row it returns the same pointer as the
// previous call. Callers must not modify the workspaces.
func (c *Controller) Candidates(ctx context.Context) ([]*workspace.Workspace, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	c.turn++
	stale, present, err := c.findStale(ctx)
	for part := range slices.Chunk(stale, readSize) {
		if err == nil {
			var n int
			n, err = c.read(ctx, part)
			present += n
		}
	}
	if err != nil {
		return nil, failed("read the workspaces", err)
	}
	if present < len(c.order) {
		c.forget()
	}
	byID := func(a, b *known) int { return bytes.Compare(a.id[:], b.id[:]) }
	if len(stale) > 0 && !slices.IsSortedFunc(c.order, byID) {
		slices.SortFunc(c.order, byID)
	}
	list := make([]*workspace.Workspace, len(c.order))
	for i, k := range c.order {
		list[i] = k.row
	}
	return list, nil
}

// forget drops the rows that no longer exist.
func (c *Controller) forget() {
	c.order = slices.DeleteFunc(c.order, func(k *known) bool {
		gone := k.turn != c.turn
		if gone {
			delete(c.known, k.id)
		}
		return gone
	})
}

// findStale reads the database's clock, finds the rows whose current version is not known, and
// counts the others, in one round trip.
func (c *Controller) findStale(ctx context.Context) (stale [][16]byte, present int, err error) {
	err = c.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		var batch pgx.Batch
		batch.Queue(`SELECT clock_timestamp(), restored_at FROM gc_state`)
		batch.Queue(`SELECT id, xmin FROM workspaces WHERE phase <> 'DELETED'`)
		results := conn.SendBatch(ctx, &batch)
		defer results.Close()
		var clock Clock
		var waitsSince *time.Time
		if err := results.QueryRow().Scan(&clock.Now, &waitsSince); err != nil {
			return err
		}
		clock.At = time.Now()
		if waitsSince != nil {
			clock.WaitsSince = *waitsSince
		}
		c.clock = clock
		rows, err := results.Query()
		if err != nil {
			return err
		}
		var id [16]byte
		var version uint32
		_, err = pgx.ForEachRow(rows, []any{&id, &version}, func() error {
			if k := c.known[id]; k != nil && k.version == version {
				k.turn = c.turn
				present++
			} else {
				stale = append(stale, id)
			}
			return nil
		})
		if err != nil {
			return err
		}
		return results.Close()
	})
	return stale, present, err
}

// read reads rows and counts them. It omits rows that no longer exist.
func (c *Controller) read(ctx context.Context, stale [][16]byte) (n int, err error) {
	err = c.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `
			SELECT id, xmin, `+coreColumns+` FROM workspaces WHERE id = ANY ($1) AND phase <> 'DELETED'`, stale)
		if err != nil {
			return err
		}
		defer rows.Close()
		for ; rows.Next(); n++ {
			fresh := known{turn: c.turn, row: &workspace.Workspace{}}
			if err := rows.Scan(append([]any{&fresh.id, &fresh.version}, coreTargets(fresh.row)...)...); err != nil {
				return err
			}
			k := c.known[fresh.id]
			if k == nil {
				k = &known{}
				c.known[fresh.id] = k
				c.order = append(c.order, k)
			}
			*k = fresh
		}
		return rows.Err()
	})
	return n, err
}
