package postgres

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// Controller is the workspace controller's part of the store: it alone writes the
// columns of observations and operations (docs/database.md#who-writes), through the session that
// holds the leader's lock, so a leader that lost the lock cannot write.
type Controller struct {
	session Session

	utc bool // protected by the session

	// For Candidates alone.
	reading sync.Mutex
	known   map[[16]byte]*known // rows as they were last read
	order   []*known            // the same rows by ascending id
	turn    uint64
	clock   Clock // the last reading
}

// NewController returns a Controller of the leader's session, or of a command's own session.
func NewController(s Session) *Controller {
	return &Controller{session: s, known: map[[16]byte]*known{}}
}

// Do runs f with the session, which no other call uses at the same time.
func (c *Controller) Do(ctx context.Context, f func(ctx context.Context, conn *pgx.Conn) error) error {
	return c.session.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		if !c.utc {
			_ = inUTC(ctx, conn) // it only sets up conn's codecs
			c.utc = true
		}
		return f(ctx, conn)
	})
}

// NewSession returns a Session of a connection that is used only through it.
func NewSession(conn *pgx.Conn) Session { return &ownSession{conn: conn} }

type ownSession struct {
	mu   sync.Mutex
	conn *pgx.Conn
}

func (s *ownSession) Do(ctx context.Context, f func(ctx context.Context, conn *pgx.Conn) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	return f(ctx, s.conn)
}

// Change is a change that the controller makes to one row.
type Change struct {
	Seen workspace.Workspace // the row the decision was made on
	Next workspace.Workspace // the controller's columns are written where they differ from Seen
	// Claim compares everything that the decision used. Otherwise a change lands if operation
	// and claim id are still those of Seen.
	Claim bool
	// Each clears a request if it is still the one in Seen.
	ClearRecover, ClearCancel, ClearForceStop, ClearRestore bool
	Audit                                                   *lifecycle.Entry // written if the change lands; nil: none
}

// Refused is the error of Apply if the database refused single rows. That means a
// broken invariant, which is a bug of codehub. Nothing of these rows was written;
// landed holds for all others.
type Refused struct {
	Rows map[workspace.ID]error
}

func (r *Refused) Error() string {
	var b strings.Builder
	b.WriteString("the database refused changes")
	for _, id := range slices.Sorted(maps.Keys(r.Rows)) {
		fmt.Fprintf(&b, "; workspace %s: %v", id, r.Rows[id])
	}
	return b.String()
}

// batchSize bounds how many rows one transaction locks, and how long other users of the session
// wait.
const batchSize = 1000

// Apply writes the changes, 1,000 rows in a transaction, and reports which have
// landed. A change does not land, and nothing of it is written, if a column that it
// compares has changed. If the database refuses rows, the error is *Refused and the
// other rows are written. After any other error landed is nil; read the rows to find
// out which changes were written.
func (c *Controller) Apply(ctx context.Context, changes []Change) (landed []bool, err error) {
	order := make([]int, len(changes))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return strings.Compare(string(changes[a].Seen.ID), string(changes[b].Seen.ID))
	})
	landed = make([]bool, len(changes))
	refused := map[workspace.ID]error{}
	for part := range slices.Chunk(order, batchSize) {
		err := c.Do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			return applyPart(ctx, conn, changes, part, landed, refused)
		})
		if err != nil {
			return nil, failed("write the workspaces", err)
		}
	}
	if len(refused) > 0 {
		return landed, &Refused{Rows: refused}
	}
	return landed, nil
}

// applyPart writes the changes of one transaction. If the database refuses its data, each row
// is written in a transaction of its own, so that a bad row delays no other.
func applyPart(ctx context.Context, conn *pgx.Conn, changes []Change, part []int, landed []bool, refused map[workspace.ID]error) error {
	err := applyBatch(ctx, conn, changes, part, landed)
	for n := 1; abortedForAnother(err) && n < attempts; n++ {
		err = applyBatch(ctx, conn, changes, part, landed)
	}
	switch {
	case !refusedData(err):
		return err
	case len(part) == 1:
		landed[part[0]] = false
		refused[changes[part[0]].Seen.ID] = err
		return nil
	}
	for _, i := range part {
		if err := applyPart(ctx, conn, changes, []int{i}, landed, refused); err != nil {
			return err
		}
	}
	return nil
}

func applyBatch(ctx context.Context, conn *pgx.Conn, changes []Change, part []int, landed []bool) error {
	var batch pgx.Batch
	for _, i := range part {
		landed[i] = true // nothing to write
		sql, args, err := changes[i].statement()
		if err != nil {
			return err
		}
		if sql == "" {
			continue
		}
		batch.Queue(sql, args...).Exec(func(tag pgconn.CommandTag) error {
			landed[i] = tag.RowsAffected() == 1
			return nil
		})
	}
	if batch.Len() == 0 {
		return nil
	}
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return tx.SendBatch(ctx, &batch).Close() })
}
