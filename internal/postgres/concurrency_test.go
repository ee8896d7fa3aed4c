package postgres_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// meanwhile runs f while another transaction has changed the row and not yet committed, so f
// waits for the row.
func (e *env) meanwhile(id workspace.ID, set string, f func()) {
	e.Helper()
	e.during(f, `UPDATE workspaces SET `+set+` WHERE id = '`+string(id)+`'`)
}

// during runs f while another transaction has executed the statements and not yet committed. f
// has to wait for it.
func (e *env) during(f func(), statements ...string) {
	e.Helper()
	tx, err := e.raw.Begin(e.Context())
	if err != nil {
		e.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }() // does nothing after the commit
	for _, sql := range statements {
		if _, err := tx.Exec(e.Context(), sql); err != nil {
			e.Fatal(err)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	for query[int](e, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) == 0 {
		select {
		case <-done:
			e.Fatal("f did not wait for the other transaction")
		default:
		}
	}
	if err := tx.Commit(e.Context()); err != nil {
		e.Fatal(err)
	}
	<-done
}

// A desired state that is requested while a claim is being written is decided after the claim.
func TestDesireWaitsForClaim(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ann := e.user("ann")
	w := e.workspace(ann, state{"phase": "RUNNING", "desired_state": "RUNNING"})
	var err error
	e.meanwhile(w.ID, `operation = 'STOPPING', op_id = gen_random_uuid()`, func() {
		_, err = e.PatchWorkspace(t.Context(), ann, w.ID, postgres.Patch{Desired: ptr(workspace.DesiredStandby)})
	})
	wantCode(t, err, workspace.CodeOperationInProgress)
}

// A session that holds a row and hangs is ended after a bounded time; sessions that wait for
// the row get an error.
func TestLocksTimeOut(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ann := e.user("ann")
	w := e.workspace(ann, nil)
	hanging := e.conn()
	if _, err := hanging.Exec(t.Context(), `SET idle_in_transaction_session_timeout = 0`); err != nil {
		t.Fatal(err)
	}
	tx, err := hanging.BeginTx(t.Context(), pgx.TxOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT FROM workspaces WHERE id = $1 FOR UPDATE`, w.ID); err != nil {
		t.Fatal(err)
	}
	_, err = e.PatchWorkspace(t.Context(), ann, w.ID, postgres.Patch{Edit: workspace.Edit{Memo: ptr("m")}})
	wantCode(t, err, workspace.CodeUnavailable)
}

// A transaction that the database aborts for a deadlock is repeated, without an error for its
// caller.
func TestDeadlockIsRepeated(t *testing.T) {
	t.Parallel()
	repeated := make(chan struct{}, 100)
	e := open(t, postgres.Options{Log: logTo(repeated)})
	ann := e.user("ann")
	one, two := e.workspace(ann, nil), e.workspace(ann, nil)
	for len(repeated) == 0 { // until the database has aborted the store's transaction
		err, ended := e.deadlock(ann, one, two)
		switch {
		case ended != nil:
			wantCode(t, err, "")
			must(e.PatchWorkspace(t.Context(), ann, one.ID, postgres.Patch{Edit: workspace.Edit{Name: &one.Name}}))(t)
		default:
			wantCode(t, err, workspace.CodeNameTaken)
		}
	}
}

// deadlock renames one to a name that another transaction has given to two and that then writes
// to one. It returns the errors of the renaming and of the other transaction, one of which the
// database aborts.
func (e *env) deadlock(owner workspace.Caller, one, two workspace.Workspace) (renaming, other error) {
	e.Helper()
	tx, err := e.raw.Begin(e.Context())
	if err != nil {
		e.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(e.Context(), `UPDATE workspaces SET name = 'wanted' WHERE id = $1`, two.ID); err != nil {
		e.Fatal(err)
	}
	renamed := make(chan error, 1)
	go func() {
		_, err := e.PatchWorkspace(e.Context(), owner, one.ID, postgres.Patch{Edit: workspace.Edit{Name: ptr("wanted")}})
		renamed <- err
	}()
	for query[int](e, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) == 0 {
	}
	if _, err := tx.Exec(e.Context(), `UPDATE workspaces SET memo = 'm' WHERE id = $1`, one.ID); err != nil {
		_ = tx.Rollback(e.Context())
		return <-renamed, err
	}
	if err := tx.Commit(e.Context()); err != nil {
		e.Fatal(err)
	}
	return <-renamed, nil
}
