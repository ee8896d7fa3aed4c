package postgres_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"codehub/internal/postgres"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
	"codehub/internal/workspace/lifecycle"
)

// admin makes a user an administrator.
func (e *env) admin(name string) workspace.Caller {
	e.Helper()
	c := e.user(name)
	e.exec(`UPDATE users SET admin = true WHERE id = $1`, c.UserID)
	c.Admin = true
	return c
}

// The column state is lifecycle.StateOf, for every combination of what it depends on.
func TestStateColumnMatchesStateOf(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ann := e.user("ann")
	w := e.workspace(ann, nil)
	reasons := []workspace.ErrorReason{workspace.ErrTimeout, workspace.ErrActionFailed}
	if harness.Verifying() {
		reasons = workspace.ErrorReasons()
	}
	e.exec(`ALTER TABLE workspaces DISABLE TRIGGER USER`)
	e.exec(`
		INSERT INTO workspaces (id, owner_user_id, name, image_ref, storage_backend, phase, operation, op_id, desired_state, home_ctx, error_reason, deleted_at)
		SELECT gen_random_uuid(), $1, 'w' || row_number() OVER (), 'i', 'docker-volume', p, o, CASE WHEN o <> 'NONE' THEN gen_random_uuid() END, d,
			jsonb_build_object('state', h), r, CASE WHEN x THEN now() END
		FROM unnest($2::text[]) p, unnest($3::text[]) o, unnest($4::text[]) d, unnest($5::text[]) h, unnest($6::text[] || ARRAY[NULL]) r, unnest('{true,false}'::bool[]) x
		WHERE (p <> 'ERROR' OR o = 'NONE') AND (x OR p <> 'DELETED')`,
		ann.UserID, workspace.Phases(), workspace.Operations(), []string{"ARCHIVED", "STANDBY", "RUNNING"}, workspace.HomeStates(), reasons)
	rows, err := e.raw.Query(t.Context(), `SELECT state, phase, operation, desired_state, home_ctx ->> 'state', COALESCE(error_reason, ''), deleted_at FROM workspaces WHERE id <> $1`, w.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	n, seen := 0, map[lifecycle.State]bool{}
	for rows.Next() {
		var got lifecycle.State
		var w workspace.Workspace
		if err := rows.Scan(&got, &w.Phase, &w.Operation, &w.DesiredState, &w.Home.State, &w.ErrorReason, &w.DeletedAt); err != nil {
			t.Fatal(err)
		}
		n++
		if want := lifecycle.StateOf(w); got != want {
			t.Fatalf("%s %s %s %s %q deleted %v: %s, want %s", w.Phase, w.Operation, w.DesiredState, w.Home.State, w.ErrorReason, w.DeletedAt != nil, got, want)
		}
		seen[got] = true
	}
	if rows.Err() != nil || n < 1000*len(reasons) || len(seen) != len(lifecycle.States()) {
		t.Errorf("%d rows, %d states: %v", n, len(seen), rows.Err())
	}
}

// Every order is complete and without duplicates over pages, in both directions, and filters
// select what they name.
func TestAnyWorkspaces(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	boss, ann, bob := e.admin("boss"), e.user("Ann"), e.user("bob%_")
	for i := range 23 {
		owner := []workspace.Caller{boss, ann, bob}[i%3]
		w := e.workspace(owner, state{
			"phase": []string{"STANDBY", "RUNNING", "ARCHIVED"}[i%3], "desired_state": []string{"STANDBY", "RUNNING", "ARCHIVED"}[i%3],
			"home_bytes": int64(i%5) << 20, "image_ref": fmt.Sprintf("img/%d", i%4), "memo": "private", "env": `{"A": "secret"}`,
		})
		if i%2 == 0 {
			e.set(w.ID, state{"last_access_at": time.Now().Add(-time.Duration(i) * time.Hour)})
		}
	}
	for _, sort := range postgres.Sorts() {
		for _, desc := range []bool{false, true} {
			f := postgres.AnyFilter{Sort: sort, Descending: desc, Page: postgres.Page{Limit: 4}}
			var ids []workspace.ID
			for {
				list := must(e.AnyWorkspaces(ctx, boss, f))(t)
				if list.Total != 23 || list.Bytes == 0 {
					t.Fatalf("%s: %d of %d bytes", sort, list.Total, list.Bytes)
				}
				for _, w := range list.Workspaces {
					if w.Memo != "" || w.Env != nil {
						t.Fatal("an administrator sees notes or variables")
					}
					ids = append(ids, w.ID)
				}
				if f.Cursor = list.NextCursor; f.Cursor == "" {
					break
				}
				// A cursor holds for its own order alone.
				other := f
				other.Descending = !desc
				if _, err := e.AnyWorkspaces(ctx, boss, other); workspace.CodeOf(err) != workspace.CodeInvalid {
					t.Fatalf("%s: the cursor of another direction: %v", sort, err)
				}
			}
			unique := slices.Compact(slices.Sorted(slices.Values(ids)))
			if len(ids) != 23 || len(unique) != 23 {
				t.Errorf("%s, descending %v: %d workspaces, %d different", sort, desc, len(ids), len(unique))
			}
		}
	}
	sizes := must(e.AnyWorkspaces(ctx, boss, postgres.AnyFilter{Sort: postgres.SortBytes, Descending: true}))(t).Workspaces
	if !slices.IsSortedFunc(sizes, func(a, b postgres.AnyWorkspace) int { return int(b.Bytes() - a.Bytes()) }) {
		t.Error("not sorted by size")
	}
	owners := must(e.AnyWorkspaces(ctx, boss, postgres.AnyFilter{Sort: postgres.SortOwner}))(t).Workspaces
	if owners[0].Owner != "Ann" || owners[22].Owner != "boss" {
		t.Errorf("sorted by owner: %s … %s", owners[0].Owner, owners[22].Owner)
	}
	for name, c := range map[string]struct {
		f    postgres.AnyFilter
		want int
	}{
		"owner by name":  {postgres.AnyFilter{Owner: "ANN"}, 8},
		"owner by id":    {postgres.AnyFilter{Owner: bob.UserID}, 7},
		"state":          {postgres.AnyFilter{State: []lifecycle.State{lifecycle.StateRunning, lifecycle.StateStopped}}, 16},
		"image":          {postgres.AnyFilter{Image: "img/0"}, 6},
		"query an owner": {postgres.AnyFilter{Query: "OB%"}, 7},
		"wildcards":      {postgres.AnyFilter{Query: "%"}, 7},
		"injection":      {postgres.AnyFilter{Query: "'; DROP TABLE users; --"}, 0},
		"an id":          {postgres.AnyFilter{Query: strings.ToUpper(string(sizes[3].ID))}, 1},
		"unused":         {postgres.AnyFilter{UnusedSince: time.Now().Add(-90 * time.Minute)}, 11},
		"deleted":        {postgres.AnyFilter{Deleted: true}, 0},
	} {
		if got := must(e.AnyWorkspaces(ctx, boss, c.f))(t); got.Total != c.want || len(got.Workspaces) != c.want {
			t.Errorf("%s: %d and %d, want %d", name, got.Total, len(got.Workspaces), c.want)
		}
	}
	for _, f := range []postgres.AnyFilter{
		{Sort: "name; DROP TABLE users"}, {Page: postgres.Page{Cursor: "!"}}, {Page: postgres.Page{Cursor: "e30"}},
		// {"s":"bytes","v":"1); DROP TABLE users","i":"019a0000-0000-7000-8000-000000000001"}
		{Sort: "bytes", Page: postgres.Page{Cursor: "eyJzIjoiYnl0ZXMiLCJ2IjoiMSk7IERST1AgVEFCTEUgdXNlcnMiLCJpIjoiMDE5YTAwMDAtMDAwMC03MDAwLTgwMDAtMDAwMDAwMDAwMDAxIn0"}},
	} {
		if _, err := e.AnyWorkspaces(ctx, boss, f); workspace.CodeOf(err) != workspace.CodeInvalid {
			t.Errorf("%+v: %v", f, err)
		}
	}
}

// Administration is for administrators at the time of the change, and for no other user.
func TestOnlyAdministratorsAdminister(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	ann, eve, former := e.user("ann"), e.user("eve"), e.admin("former")
	w := e.workspace(ann, state{"phase": "RUNNING", "desired_state": "RUNNING"})
	e.exec(`UPDATE users SET admin = false WHERE id = $1`, former.UserID) // the session does not know it
	before := e.row(w.ID)
	entries := query[int](e, `SELECT count(*) FROM audit_log`)
	for _, c := range []workspace.Caller{{}, eve, ann, former} {
		for what, err := range map[string]error{
			"list":    second(e.AnyWorkspaces(ctx, c, postgres.AnyFilter{})),
			"read":    second(e.AnyWorkspace(ctx, c, w.ID)),
			"stop":    second(e.Administer(ctx, c, w.ID, postgres.Administration{Do: postgres.DoStop})),
			"message": second(e.Administer(ctx, c, w.ID, postgres.Administration{Do: postgres.DoMessage, Message: "x"})),
			"give":    second(e.HandOver(ctx, c, w.ID, postgres.HandOver{To: eve.UserID})),
			"banner":  second(e.SetBanner(ctx, c, "x")),
			"delete":  e.DeleteAccount(ctx, c, eve.UserID, postgres.Removal{}),
			"log":     second(e.ReadAnyLog(ctx, c, w.ID)),
			"export":  e.ExportAudit(ctx, c, postgres.AuditFilter{}, func(time.Time) {}, func(postgres.AuditEntry) error { return nil }),
			"usage":   e.UsageOf(ctx, c, "", time.Now(), time.Now(), func(postgres.UsageDay) error { return nil }),
		} {
			if workspace.CodeOf(err) != workspace.CodeForbidden {
				t.Errorf("%s by %q: %v", what, c.Username, err)
			}
		}
		if _, _, err := e.Audit(ctx, c, postgres.AuditFilter{}); workspace.CodeOf(err) != workspace.CodeForbidden {
			t.Errorf("audit by %q: %v", c.Username, err)
		}
		if _, _, err := e.AnyArchives(ctx, c, w.ID, postgres.Page{}); workspace.CodeOf(err) != workspace.CodeForbidden {
			t.Errorf("archives by %q: %v", c.Username, err)
		}
	}
	if e.row(w.ID) != before || query[int](e, `SELECT count(*) FROM audit_log`) != entries || query[int](e, `SELECT count(*) FROM user_notices`) != 0 {
		t.Error("refused requests changed something")
	}
	// What an administrator may not do with the methods of owners.
	boss := e.admin("boss")
	for what, err := range map[string]error{
		"read": second(e.Workspace(ctx, boss, w.ID)), "wake": second(e.Wake(ctx, boss, w.ID)), "start": second(e.PatchWorkspace(ctx, boss, w.ID, postgres.Patch{})),
		"restart": second(e.Restart(ctx, boss, w.ID)), "stay": second(e.Stay(ctx, boss, w.ID)), "delete": second(e.DeleteWorkspace(ctx, boss, w.ID, true)),
	} {
		if workspace.CodeOf(err) != workspace.CodeForbidden {
			t.Errorf("%s by an administrator: %v", what, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// Each action changes what the owner's would, with the administrator and the owner in the audit
// log, and a notice for the owner.
func TestAdminister(t *testing.T) {
	t.Parallel()
	sizes := workspace.Sizes{Default: workspace.Size{Name: workspace.DefaultSize, Disk: 4 << 30}, Offered: []workspace.Size{{Name: "small", Disk: 1 << 30}, {Name: "large", Disk: 8 << 30}}}
	e := open(t, postgres.Options{Limits: postgres.Limits{PerUser: 1}, Sizes: sizes})
	ctx := t.Context()
	boss, ann := e.admin("boss"), e.user("ann")
	used := time.Now().Add(-time.Hour).UTC().Truncate(time.Microsecond)
	for name, c := range map[string]struct {
		before state
		do     postgres.Administration
		after  string // an SQL condition
		action string
	}{
		"stop":          {state{"phase": "RUNNING", "desired_state": "RUNNING"}, postgres.Administration{Do: postgres.DoStop, Message: "too large"}, `desired_state = 'STANDBY'`, "workspace.desired_state"},
		"stop a start":  {state{"operation": "STARTING", "phase": "STANDBY", "desired_state": "RUNNING"}, postgres.Administration{Do: postgres.DoStop}, `next_desired_state = 'STANDBY'`, "workspace.desired_state"},
		"force a stop":  {state{"phase": "RUNNING", "desired_state": "RUNNING"}, postgres.Administration{Do: postgres.DoStop, Force: true}, `force_stop_requested_at IS NOT NULL`, "workspace.force_stop"},
		"stop in ERROR": {state{"phase": "ERROR", "error_reason": "Timeout", "conditions": exited}, postgres.Administration{Do: postgres.DoStop}, `force_stop_requested_at IS NOT NULL`, "workspace.force_stop"},
		"archive":       {state{"phase": "STANDBY"}, postgres.Administration{Do: postgres.DoArchive}, `desired_state = 'ARCHIVED'`, "workspace.desired_state"},
		"cancel":        {state{"operation": "STARTING", "phase": "STANDBY", "desired_state": "RUNNING"}, postgres.Administration{Do: postgres.DoCancel}, `cancel_requested_at IS NOT NULL`, "workspace.cancel"},
		"recover":       {state{"phase": "ERROR", "error_reason": "Timeout"}, postgres.Administration{Do: postgres.DoRecover, Recover: workspace.RecoverAfresh}, `recover_action = 'afresh'`, "workspace.recover"},
		"start empty":   {state{"phase": "ERROR", "error_reason": "DataLost", "name": "lost"}, postgres.Administration{Do: postgres.DoRecover, Recover: workspace.RecoverEmpty, Confirm: "lost"}, `recover_action = 'empty'`, "workspace.recover"},
		"delete":        {state{"phase": "STANDBY"}, postgres.Administration{Do: postgres.DoDelete}, `deleted_at IS NOT NULL`, "workspace.delete"},
		"undelete":      {state{"phase": "DELETING", "deleted_at": used, "home_ctx": `{"state": "live", "claim": "c"}`, "conditions": noContainer}, postgres.Administration{Do: postgres.DoUndelete}, `deleted_at IS NULL`, "workspace.undelete"},
		"timeouts":      {state{"phase": "RUNNING", "desired_state": "RUNNING"}, postgres.Administration{Do: postgres.DoTimeouts, StandbyTTL: set(600)}, `standby_ttl_seconds = 600 AND archive_ttl_seconds IS NULL`, "workspace.timeouts"},
		"size":          {state{"phase": "RUNNING", "desired_state": "RUNNING"}, postgres.Administration{Do: postgres.DoSize, Size: "large", Message: "more memory"}, `size = 'large' AND desired_state = 'RUNNING'`, "workspace.size"},
		"message":       {state{"phase": "STANDBY"}, postgres.Administration{Do: postgres.DoMessage, Message: "hello"}, `desired_state = 'STANDBY'`, "workspace.message"},
	} {
		e.exec(`DELETE FROM user_notices`)
		w := e.workspace(ann, c.before)
		e.set(w.ID, state{"last_access_at": used, "last_access_kind": "typing"})
		got, err := e.Administer(ctx, boss, w.ID, c.do)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !query[bool](e, `SELECT `+c.after+` FROM workspaces WHERE id = $1`, w.ID) {
			t.Errorf("%s: %s", name, e.row(w.ID))
		}
		if name != "undelete" && (got.LastAccessAt == nil || !got.LastAccessAt.Equal(used)) {
			t.Errorf("%s counts as activity", name)
		}
		if d := cmp.Diff([]string{"ann workspace.create", "boss " + c.action}, e.audited(string(w.ID))); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		if owner := query[string](e, `SELECT details ->> 'owner' FROM audit_log WHERE target = $1 AND username = 'boss'`, w.ID); owner != "ann" {
			t.Errorf("%s: the audit log has the owner %q", name, owner)
		}
		notices := must(e.Notices(ctx, ann))(t)
		if len(notices) != 1 || notices[0].Kind != c.do.Do || notices[0].By != "boss" || notices[0].WorkspaceID != w.ID || notices[0].Message != c.do.Message {
			t.Errorf("%s: notices %+v", name, notices)
		}
		e.exec(`DELETE FROM workspaces WHERE id = $1`, w.ID)
	}
	// The owner gets a message also if there was nothing to do.
	w := e.workspace(ann, state{"phase": "STANDBY", "size": "large"})
	e.exec(`DELETE FROM user_notices`)
	must(e.Administer(ctx, boss, w.ID, postgres.Administration{Do: postgres.DoSize, Size: "large", Message: "more memory"}))(t)
	if notices := must(e.Notices(ctx, ann))(t); len(notices) != 1 || notices[0].Kind != postgres.DoMessage || notices[0].Message != "more memory" {
		t.Errorf("notices %+v", notices)
	}
	if d := cmp.Diff([]string{"ann workspace.create", "boss workspace.message"}, e.audited(string(w.ID))); d != "" {
		t.Error(d)
	}
	// What is refused changes nothing, and tells nobody.
	e.exec(`DELETE FROM user_notices`)
	for name, c := range map[string]struct {
		before state
		do     postgres.Administration
		code   workspace.Code
	}{
		"stop at rest":         {state{"phase": "STANDBY"}, postgres.Administration{Do: postgres.DoStop}, workspace.CodeNotRunning},
		"stop an archived one": {state{"phase": "ARCHIVED", "desired_state": "ARCHIVED"}, postgres.Administration{Do: postgres.DoStop, Force: true}, workspace.CodeNotRunning},
		"recover healthy":      {state{"phase": "STANDBY"}, postgres.Administration{Do: postgres.DoRecover, Recover: workspace.RecoverAfresh}, workspace.CodeNotInError},
		"start empty":          {state{"phase": "ERROR", "error_reason": "DataLost"}, postgres.Administration{Do: postgres.DoRecover, Recover: workspace.RecoverEmpty, Confirm: "x"}, workspace.CodeConfirmRequired},
		"an unknown size":      {state{"phase": "STANDBY"}, postgres.Administration{Do: postgres.DoSize, Size: "huge"}, workspace.CodeInvalid},
		"a size too small":     {state{"phase": "STANDBY", "home_bytes": 2 << 30}, postgres.Administration{Do: postgres.DoSize, Size: "small"}, workspace.CodeQuotaExceeded},
		"an empty message":     {state{"phase": "STANDBY"}, postgres.Administration{Do: postgres.DoMessage}, workspace.CodeInvalid},
		"another action":       {state{"phase": "STANDBY"}, postgres.Administration{Do: "start"}, workspace.CodeInvalid},
		"archive in ERROR":     {state{"phase": "ERROR", "error_reason": "Timeout"}, postgres.Administration{Do: postgres.DoArchive}, workspace.CodeRecoveryRequired},
	} {
		w := e.workspace(ann, c.before)
		before := e.row(w.ID)
		_, err := e.Administer(ctx, boss, w.ID, c.do)
		if workspace.CodeOf(err) != c.code || e.row(w.ID) != before {
			t.Errorf("%s: %v", name, err)
		}
		e.exec(`DELETE FROM workspaces WHERE id = $1`, w.ID)
	}
	if n := must(e.Notices(ctx, ann))(t); len(n) != 0 {
		t.Errorf("notices of what was refused: %+v", n)
	}
	// A recovery needs a slot of the owner's, and says whose.
	running := e.workspace(ann, state{"phase": "RUNNING", "desired_state": "RUNNING"})
	broken := e.workspace(ann, state{"phase": "ERROR", "error_reason": "Timeout", "desired_state": "RUNNING"})
	_, err := e.Administer(ctx, boss, broken.ID, postgres.Administration{Do: postgres.DoRecover, Recover: workspace.RecoverAfresh})
	wantCode(t, err, workspace.CodeLimitExceeded)
	if !strings.Contains(err.Error(), "The owner has reached") {
		t.Error(err)
	}
	// An administrator's own workspace causes no notice.
	own := e.workspace(boss, state{"phase": "RUNNING", "desired_state": "RUNNING"})
	must(e.Administer(ctx, boss, own.ID, postgres.Administration{Do: postgres.DoStop}))(t)
	if n := must(e.Notices(ctx, boss))(t); len(n) != 0 {
		t.Errorf("%+v", n)
	}
	_ = running
}

func set(n int) workspace.Optional[int] { return workspace.Optional[int]{Set: true, Value: &n} }

// A workspace that is handed over loses what may be its former owner's secret, and every way in.
func TestHandOver(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	boss, ann, bob := e.admin("boss"), e.user("ann"), e.user("bob")
	w := e.workspace(ann, state{
		"phase": "STANDBY", "conditions": noContainer, "env": `{"TOKEN": "s3cret"}`, "memo": "the key is under the mat", "time_zone": "Asia/Seoul",
		"keep_awake_until": time.Now().Add(time.Hour), "name": "shop", "home_ctx": `{"state": "live", "claim": "c"}`,
	})
	clash := e.workspace(ann, state{"name": "taken", "phase": "STANDBY", "conditions": noContainer})
	e.exec(`UPDATE users SET disabled = true WHERE id = $1`, ann.UserID)
	e.exec(`INSERT INTO port_shares (workspace_id, port, visible_to) VALUES ($1, 3000, 'users')`, w.ID)
	e.exec(`INSERT INTO sessions (hash, user_id, expires_at) VALUES (sha256('s'), $1, now() + interval '1 day')`, ann.UserID)
	e.exec(`INSERT INTO workspace_sessions (hash, session_hash, workspace_id, port) VALUES (sha256('w'), sha256('s'), $1, 0)`, w.ID)
	got := must(e.HandOver(ctx, boss, w.ID, postgres.HandOver{To: bob.UserID, Message: "ann has left"}))(t)
	if got.Owner != "bob" || got.Name != "shop" {
		t.Errorf("%+v", got)
	}
	if !query[bool](e, `SELECT env IS NULL AND memo = '' AND time_zone IS NULL AND keep_awake_until IS NULL AND owner_user_id = $2 FROM workspaces WHERE id = $1`, w.ID, bob.UserID) {
		t.Error(e.row(w.ID))
	}
	if n := query[int](e, `SELECT (SELECT count(*) FROM port_shares) + (SELECT count(*) FROM workspace_sessions)`); n != 0 {
		t.Errorf("%d shares and sessions are left", n)
	}
	_, err := e.Workspace(ctx, ann, w.ID)
	wantCode(t, err, workspace.CodeForbidden)
	must(e.Workspace(ctx, bob, w.ID))(t)
	if state := query[string](e, `SELECT string_agg(concat_ws(' ', workspace_id, state, cause), ',') FROM home_backups`); state != string(w.ID)+" waiting hand_over" {
		t.Errorf("backups: %s", state)
	}
	for user, kind := range map[workspace.Caller]string{ann: postgres.NoticeHandedOver, bob: postgres.NoticeReceived} {
		n := must(e.Notices(ctx, user))(t)
		if len(n) != 1 || n[0].Kind != kind || n[0].Message != "ann has left" || n[0].WorkspaceName != "shop" {
			t.Errorf("%s: %+v", user.Username, n)
		}
	}
	if d := query[string](e, `SELECT concat_ws(' ', username, details ->> 'from', details ->> 'to', details ->> 'name') FROM audit_log WHERE action = 'workspace.hand_over'`); d != "boss ann bob shop" {
		t.Error(d)
	}
	// Refused: names, users, states.
	other := e.workspace(bob, state{"name": "taken", "phase": "STANDBY"})
	_, err = e.HandOver(ctx, boss, clash.ID, postgres.HandOver{To: bob.UserID})
	wantCode(t, err, workspace.CodeNameTaken)
	must(e.HandOver(ctx, boss, clash.ID, postgres.HandOver{To: bob.UserID, Name: "taken too"}))(t)
	if n := query[int](e, `SELECT count(*) FROM home_backups WHERE workspace_id = $1`, clash.ID); n != 0 {
		t.Errorf("%d backups of a workspace without a home", n)
	}
	_, err = e.HandOver(ctx, boss, other.ID, postgres.HandOver{To: bob.UserID})
	wantCode(t, err, workspace.CodeInvalid)
	_, err = e.HandOver(ctx, boss, other.ID, postgres.HandOver{To: "nobody"})
	wantCode(t, err, workspace.CodeNotFound)
	_, err = e.HandOver(ctx, boss, other.ID, postgres.HandOver{To: boss.UserID})
	wantCode(t, err, workspace.CodeInvalid)
	_, err = e.HandOver(ctx, boss, other.ID, postgres.HandOver{To: ann.UserID})
	wantCode(t, err, workspace.CodeInvalid)
}

// With nothing but an administrator's rights, no workspace of a user who can log in changes hands:
// its owner has to accept.
func TestHandOverNeedsConsent(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	boss, ann, second, uma := e.admin("boss"), e.user("ann"), e.user("second"), e.user("uma")
	e.workspace(second, state{"name": "shop", "phase": "STANDBY"})
	w := e.workspace(ann, state{"phase": "RUNNING", "desired_state": "RUNNING", "name": "shop", "home_ctx": `{"state": "live", "claim": "c"}`})
	mine := func() bool { return e.read(w.ID).OwnerID == ann.UserID }
	ask := func() postgres.AnyWorkspace {
		t.Helper()
		return must(e.HandOver(ctx, boss, w.ID, postgres.HandOver{To: second.UserID, Message: "please"}))(t)
	}
	if got := ask(); got.Owner != "ann" || got.Asked == nil || got.Asked.To != "second" || got.Asked.By != "boss" || !mine() {
		t.Fatalf("handed over without consent: %+v", got)
	}
	for _, other := range []workspace.Caller{boss, second, uma} {
		_, err := e.HandOverRequest(ctx, other, w.ID)
		wantCode(t, err, workspace.CodeForbidden)
		wantCode(t, e.AnswerHandOver(ctx, other, w.ID, true), workspace.CodeForbidden)
	}
	_, err := e.WithdrawHandOver(ctx, second, w.ID)
	wantCode(t, err, workspace.CodeForbidden)
	// The owner reads it until it is answered, and cannot dismiss it.
	n := must(e.Notices(ctx, ann))(t)
	if len(n) != 1 || n[0].Kind != postgres.NoticeAsked || n[0].By != "boss" || n[0].Other != "second" || n[0].Message != "please" || n[0].WorkspaceID != w.ID {
		t.Fatalf("%+v", n)
	}
	wantCode(t, e.DismissNotice(ctx, ann, n[0].ID), workspace.CodeNotFound)
	if n := must(e.Notices(ctx, second))(t); len(n) != 0 {
		t.Errorf("%+v", n)
	}
	wantCode(t, e.AnswerHandOver(ctx, ann, w.ID, true), workspace.CodeNotStopped)
	// Declined, withdrawn, and asked again.
	if err := e.AnswerHandOver(ctx, ann, w.ID, false); err != nil {
		t.Fatal(err)
	}
	wantCode(t, e.AnswerHandOver(ctx, ann, w.ID, true), workspace.CodeNotFound)
	if got := must(e.AnyWorkspace(ctx, boss, w.ID))(t); got.Asked == nil || got.Asked.DeclinedAt == nil || !mine() {
		t.Errorf("%+v", got.Asked)
	}
	if got := must(e.AnyWorkspaces(ctx, boss, postgres.AnyFilter{Owner: "ann"}))(t).Workspaces[0]; got.Asked == nil {
		t.Error("the list does not have the request")
	}
	ask()
	if got := must(e.WithdrawHandOver(ctx, boss, w.ID))(t); got.Asked != nil {
		t.Errorf("%+v", got.Asked)
	}
	wantCode(t, e.AnswerHandOver(ctx, ann, w.ID, true), workspace.CodeNotFound)
	// Accepted, where the name is taken.
	e.set(w.ID, state{"phase": "STANDBY", "desired_state": "STANDBY", "conditions": noContainer})
	ask()
	e.exec(`UPDATE users SET disabled = true WHERE id = $1`, second.UserID)
	wantCode(t, e.AnswerHandOver(ctx, ann, w.ID, true), workspace.CodeInvalid)
	e.exec(`UPDATE users SET disabled = false WHERE id = $1`, second.UserID)
	if err := e.AnswerHandOver(ctx, ann, w.ID, true); err != nil {
		t.Fatal(err)
	}
	if w := e.read(w.ID); w.OwnerID != second.UserID || w.Name != "shop (ann)" {
		t.Errorf("%s of %s", w.Name, w.OwnerID)
	}
	if n := must(e.Notices(ctx, second))(t); len(n) != 1 || n[0].Kind != postgres.NoticeReceived || n[0].By != "boss" || n[0].Other != "ann" {
		t.Errorf("%+v", n)
	}
	log := query[string](e, `SELECT string_agg(username || ' ' || action || COALESCE(' ' || (details ->> 'requested_by'), ''), ', ' ORDER BY id) FROM audit_log WHERE action LIKE 'workspace.hand_over%'`)
	if want := "boss workspace.hand_over_request, ann workspace.hand_over_decline boss, boss workspace.hand_over_request, boss workspace.hand_over_withdraw, boss workspace.hand_over_request, ann workspace.hand_over boss"; log != want {
		t.Errorf("the audit log has %s", log)
	}
	// An owner who is suspended cannot be asked; what was asked of the owner before is void.
	again := e.workspace(ann, state{"name": "again", "phase": "STANDBY", "conditions": noContainer})
	must(e.HandOver(ctx, boss, again.ID, postgres.HandOver{To: second.UserID}))(t)
	e.exec(`UPDATE users SET suspended_for = 'refused' WHERE id = $1`, ann.UserID)
	if got := must(e.HandOver(ctx, boss, again.ID, postgres.HandOver{To: uma.UserID}))(t); got.Owner != "uma" || got.Asked != nil {
		t.Errorf("%+v", got)
	}
}

// A hand-over races with starts, archivings and deletions: whichever comes first, no workspace
// is started or archived for a user who no longer owns it, and none is given away while it
// runs or an operation is claimed.
func TestHandOverRaces(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{MaxConns: 8})
	ctx := t.Context()
	boss, ann, bob := e.admin("boss"), e.user("ann"), e.user("bob")
	rounds := 8
	if harness.Verifying() {
		rounds = 40
	}
	for round := range rounds {
		w := e.workspace(ann, state{"phase": "STANDBY", "conditions": noContainer, "home_ctx": `{"state": "live", "claim": "c"}`})
		ctrl := e.fixture.Controller()
		var seen workspace.Workspace
		for _, c := range must(ctrl.Candidates(ctx))(t) {
			if c.ID == w.ID {
				seen = *c
			}
		}
		var all sync.WaitGroup
		var given, wanted error
		must(e.HandOver(ctx, boss, w.ID, postgres.HandOver{To: bob.UserID}))(t)
		all.Go(func() { given = e.AnswerHandOver(ctx, ann, w.ID, true) })
		all.Go(func() {
			switch round % 4 {
			case 0:
				_, wanted = e.Wake(ctx, ann, w.ID)
			case 1:
				archived := workspace.DesiredArchived
				_, wanted = e.PatchWorkspace(ctx, ann, w.ID, postgres.Patch{Desired: &archived})
			case 2:
				_, wanted = e.DeleteWorkspace(ctx, ann, w.ID, false)
			case 3:
				// The controller claims what it decided before the hand-over.
				next := seen
				next.Operation, next.OpID = workspace.OpArchiving, "019a0000-0000-7000-8000-000000000001"
				landed, err := ctrl.Apply(ctx, []postgres.Change{{Seen: seen, Next: next, Claim: true}})
				if err == nil && !landed[0] {
					err = context.Canceled
				}
				wanted = err
			}
		})
		all.Wait()
		if (given == nil) == (wanted == nil) {
			t.Fatalf("round %d: hand-over %v, the other %v", round, given, wanted)
		}
		e.exec(`DELETE FROM workspaces WHERE id = $1`, w.ID)
	}
}

// A deleted user loses every access; the workspaces are deleted, or handed over with names that
// are free.
func TestDeleteAccount(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	boss, bob := e.admin("boss"), e.user("bob")
	e.workspace(bob, state{"name": "shop", "phase": "STANDBY"})

	ann := e.user("ann")
	shop := e.workspace(ann, state{"name": "shop", "phase": "STANDBY", "conditions": noContainer})
	busy := e.workspace(ann, state{"name": "busy", "phase": "RUNNING", "desired_state": "RUNNING"})
	e.exec(`INSERT INTO sessions (hash, user_id, expires_at) VALUES (sha256('s'), $1, now() + interval '1 day')`, ann.UserID)
	wantCode(t, e.DeleteAccount(ctx, boss, ann.UserID, postgres.Removal{}), workspace.CodeConfirmRequired)
	wantCode(t, e.DeleteAccount(ctx, boss, ann.UserID, postgres.Removal{Workspaces: "keep"}), workspace.CodeInvalid)
	wantCode(t, e.DeleteAccount(ctx, boss, boss.UserID, postgres.Removal{}), workspace.CodeInvalid)
	wantCode(t, e.DeleteAccount(ctx, boss, ann.UserID, postgres.Removal{Workspaces: postgres.WorkspacesHandOver, To: ann.UserID}), workspace.CodeInvalid)
	wantCode(t, e.DeleteAccount(ctx, boss, ann.UserID, postgres.Removal{Workspaces: postgres.WorkspacesHandOver, To: bob.UserID}), workspace.CodeNotStopped)
	if query[int](e, `SELECT count(*) FROM sessions`) != 1 {
		t.Error("a refused deletion ended a session")
	}
	// Disabling stops it.
	disabled := true
	must(e.PatchAccount(ctx, boss, ann.UserID, postgres.AccountPatch{Disabled: &disabled, Stop: true}))(t)
	if w := e.read(busy.ID); w.DesiredState != workspace.DesiredStandby {
		t.Errorf("%s is not stopped", w.Name)
	}
	if n := must(e.Notices(ctx, ann))(t); len(n) != 1 || n[0].Kind != postgres.DoStop || n[0].WorkspaceID != busy.ID || n[0].By != "boss" {
		t.Errorf("notices of the stop: %+v", n)
	}
	e.set(busy.ID, state{"phase": "STANDBY", "conditions": noContainer})
	if err := e.DeleteAccount(ctx, boss, ann.UserID, postgres.Removal{Workspaces: postgres.WorkspacesHandOver, To: bob.UserID}); err != nil {
		t.Fatal(err)
	}
	if w := e.read(shop.ID); w.Name != "shop (ann)" || w.OwnerID != bob.UserID {
		t.Errorf("%s of %s", w.Name, w.OwnerID)
	}
	_, err := e.UserByName(ctx, "ann")
	wantCode(t, err, workspace.CodeNotFound)
	_, err = e.User(ctx, ann.UserID)
	wantCode(t, err, workspace.CodeNotFound)
	_, err = e.PatchAccount(ctx, boss, ann.UserID, postgres.AccountPatch{Disabled: new(bool)})
	wantCode(t, err, workspace.CodeNotFound)
	for _, a := range must(e.Accounts(ctx, boss, postgres.AccountFilter{}))(t).Users {
		if a.Username == "ann" {
			t.Error("the deleted user is listed")
		}
	}
	again := e.user("ann") // the name is free
	gone := e.workspace(again, state{"phase": "RUNNING", "desired_state": "RUNNING"})
	starting := e.workspace(again, state{"operation": "STARTING", "phase": "STANDBY", "desired_state": "RUNNING"})
	if err := e.DeleteAccount(ctx, boss, again.UserID, postgres.Removal{Workspaces: postgres.WorkspacesDelete}); err != nil {
		t.Fatal(err)
	}
	if w := e.read(gone.ID); w.DeletedAt == nil {
		t.Error("a workspace of a deleted user stays")
	}
	if w := e.read(starting.ID); w.NextDesired != workspace.DesiredDeleted {
		t.Error("the deletion is not queued")
	}
	if must(e.AnyWorkspace(ctx, boss, gone.ID))(t).Owner != "ann" {
		t.Error("the owner is not known any more")
	}
	if d := cmp.Diff([]string{"ann user.create", "boss user.delete"}, e.audited(again.UserID)); d != "" {
		t.Error(d)
	}
}

// The deleted workspaces of a deleted user are found by the name that the user had, also after
// another user got the name.
func TestWorkspacesOfDeletedUserByName(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	boss, bob := e.admin("boss"), e.user("Bob")
	w := e.workspace(bob, state{"phase": "ARCHIVED", "archive_key": "k"})
	if err := e.DeleteAccount(ctx, boss, bob.UserID, postgres.Removal{Workspaces: postgres.WorkspacesDelete}); err != nil {
		t.Fatal(err)
	}
	named := func(owner string) (ids []workspace.ID) {
		t.Helper()
		for _, w := range must(e.AnyWorkspaces(ctx, boss, postgres.AnyFilter{Deleted: true, Owner: owner}))(t).Workspaces {
			ids = append(ids, w.ID)
		}
		slices.Sort(ids)
		return ids
	}
	for _, name := range []string{"Bob", "bob", "ＢＯＢ", bob.UserID} {
		if d := cmp.Diff([]workspace.ID{w.ID}, named(name)); d != "" {
			t.Errorf("of %s: %s", name, d)
		}
	}
	again := e.user("bob")
	other := e.workspace(again, state{"phase": "ARCHIVED", "archive_key": "k2", "deleted_at": time.Now()})
	if d := cmp.Diff([]workspace.ID{w.ID, other.ID}, named("bob")); d != "" {
		t.Errorf("of both: %s", d)
	}
	if _, err := e.Administer(ctx, boss, w.ID, postgres.Administration{Do: postgres.DoUndelete}); err != nil {
		t.Error(err)
	}
}

// The limits of one user count instead of the server's.
func TestUserLimits(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Limits: postgres.Limits{Workspaces: 1, Bytes: 1 << 20}})
	ctx := t.Context()
	boss, ann := e.admin("boss"), e.user("ann")
	create := func() error {
		return second(e.CreateWorkspace(ctx, ann, newWorkspace("n"+fmt.Sprint(time.Now().UnixNano()), workspace.DesiredStandby)))
	}
	if err := create(); err != nil {
		t.Fatal(err)
	}
	wantCode(t, create(), workspace.CodeQuotaExceeded)
	must(e.PatchAccount(ctx, boss, ann.UserID, postgres.AccountPatch{MaxWorkspaces: set(3)}))(t)
	if err := create(); err != nil {
		t.Fatal(err)
	}
	e.exec(`UPDATE workspaces SET home_bytes = 700000, archive_size = 400000, archives_bytes = 400000, phase = 'STANDBY', conditions = $1 WHERE owner_user_id = $2`, noContainer, ann.UserID)
	wantCode(t, create(), workspace.CodeQuotaExceeded)
	id := query[workspace.ID](e, `SELECT id FROM workspaces LIMIT 1`)
	_, err := e.Wake(ctx, ann, id)
	wantCode(t, err, workspace.CodeQuotaExceeded)
	if q := must(e.Quotas(ctx, ann))(t); q.Bytes != 1_400_000 || q.MaxBytes != 1<<20 || q.MaxWorkspaces != 3 {
		t.Errorf("%+v", q)
	}
	none := int64(0)
	a := must(e.PatchAccount(ctx, boss, ann.UserID, postgres.AccountPatch{MaxBytes: workspace.Optional[int64]{Set: true, Value: &none}}))(t)
	if a.Bytes != 1_400_000 || a.MaxBytes == nil {
		t.Errorf("%+v", a)
	}
	must(e.Wake(ctx, ann, id))(t)
}

// Notices are their user's alone, and dismissed once; the banner is everyone's.
func TestNoticesAndBanner(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	boss, ann, eve := e.admin("boss"), e.user("ann"), e.user("eve")
	w := e.workspace(ann, state{"phase": "STANDBY"})
	for i := range 105 {
		must(e.Administer(ctx, boss, w.ID, postgres.Administration{Do: postgres.DoMessage, Message: fmt.Sprint(i)}))(t)
	}
	list := must(e.Notices(ctx, ann))(t)
	if len(list) != 100 || list[0].Message != "104" {
		t.Errorf("%d notices, the newest %+v", len(list), list[0])
	}
	wantCode(t, e.DismissNotice(ctx, eve, list[0].ID), workspace.CodeForbidden)
	wantCode(t, e.DismissNotice(ctx, ann, "x"), workspace.CodeNotFound)
	if err := e.DismissNotice(ctx, ann, list[0].ID); err != nil {
		t.Fatal(err)
	}
	wantCode(t, e.DismissNotice(ctx, ann, list[0].ID), workspace.CodeNotFound)
	e.exec(`UPDATE user_notices SET created_at = now() - interval '91 days'`)
	if err := e.DeleteOldNotices(ctx); err != nil || len(must(e.Notices(ctx, ann))(t)) != 0 {
		t.Error("old notices stay", err)
	}
	if b := must(e.Banner(ctx))(t); b.Message != "" {
		t.Errorf("%+v", b)
	}
	_, err := e.SetBanner(ctx, boss, strings.Repeat("x", postgres.MaxMessage+1))
	wantCode(t, err, workspace.CodeInvalid)
	_, err = e.SetBanner(ctx, boss, "a\x00b")
	wantCode(t, err, workspace.CodeInvalid)
	for range 2 { // once in the audit log
		if b := must(e.SetBanner(ctx, boss, " down at <b>ten</b> "))(t); b.Message != "down at <b>ten</b>" || b.SetBy != "boss" {
			t.Errorf("%+v", b)
		}
	}
	must(e.SetBanner(ctx, boss, ""))(t)
	if b := must(e.Banner(ctx))(t); b.Message != "" {
		t.Errorf("%+v", b)
	}
	if n := query[int](e, `SELECT count(*) FROM audit_log WHERE action = 'banner.change'`); n != 2 {
		t.Errorf("%d entries", n)
	}
}

// The audit log is read in pages and exported whole, with its filters.
func TestAuditFilters(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	boss, ann := e.admin("boss"), e.user("ann")
	w := e.workspace(ann, state{"phase": "STANDBY"})
	for range 7 {
		must(e.Administer(ctx, boss, w.ID, postgres.Administration{Do: postgres.DoMessage, Message: "x"}))(t)
	}
	f := postgres.AuditFilter{Page: postgres.Page{Limit: 2}}
	var ids []int64
	for {
		list, next, err := e.Audit(ctx, boss, f)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range list {
			ids = append(ids, a.ID)
		}
		if f.Cursor = next; next == "" {
			break
		}
	}
	if len(ids) != 10 || !slices.IsSortedFunc(ids, func(a, b int64) int { return int(b - a) }) {
		t.Errorf("%v", ids)
	}
	for name, c := range map[string]struct {
		f    postgres.AuditFilter
		want int
	}{
		"user": {postgres.AuditFilter{User: "BOSS"}, 8}, "user id": {postgres.AuditFilter{User: ann.UserID}, 2}, "action": {postgres.AuditFilter{Action: "workspace.message"}, 7},
		"actions": {postgres.AuditFilter{Action: "workspace."}, 8}, "wildcard": {postgres.AuditFilter{Action: "%."}, 0}, "target": {postgres.AuditFilter{Target: string(w.ID)}, 8},
		"since": {postgres.AuditFilter{Since: time.Now().Add(time.Hour)}, 0}, "until": {postgres.AuditFilter{Until: time.Now().Add(-time.Hour)}, 0},
		"injection": {postgres.AuditFilter{User: "' OR true --", Target: "' OR true --"}, 0},
	} {
		list, _, err := e.Audit(ctx, boss, c.f)
		if err != nil || len(list) != c.want {
			t.Errorf("%s: %d entries, want %d: %v", name, len(list), c.want, err)
		}
		for _, a := range list {
			if a.Target == string(w.ID) && a.TargetName != w.Name {
				t.Errorf("%s: the target is called %q", name, a.TargetName)
			}
		}
	}
	var exported []string
	if err := e.ExportAudit(ctx, boss, postgres.AuditFilter{Action: "workspace."}, func(time.Time) {}, func(a postgres.AuditEntry) error {
		exported = append(exported, a.Action)
		return nil
	}); err != nil || len(exported) != 8 || exported[0] != "workspace.create" {
		t.Errorf("%v: %v", exported, err)
	}
	if list, _, _ := e.Audit(ctx, boss, postgres.AuditFilter{Action: postgres.AuditExport}); len(list) != 1 || list[0].Details["action"] != "workspace." {
		t.Errorf("%+v", list)
	}
}

// Use adds up by day and owner; sizes are the largest of the day.
func TestUsage(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	boss, ann, bob := e.admin("boss"), e.user("ann"), e.user("bob")
	w := e.workspace(ann, state{"phase": "RUNNING", "desired_state": "RUNNING", "home_ctx": `{"state": "live"}`})
	e.exec(`INSERT INTO archives (key, workspace_id, archive_op_id, size) VALUES ('a', $1, gen_random_uuid(), 5), ('b', $1, gen_random_uuid(), 7)`, w.ID)
	u := postgres.NewUsage(postgres.NewSession(e.conn()))
	running := must(u.Running(ctx))(t)
	if len(running) != 1 || running[0].ID != w.ID || running[0].OwnerID != ann.UserID {
		t.Fatalf("%+v", running)
	}
	for range 2 {
		if err := u.Add(ctx, []postgres.Used{{RunningWorkspace: running[0], Spent: postgres.Spent{RunningSeconds: 60, CPUSeconds: 30, MemorySeconds: 60 << 30}}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []int64{100, 900, 300} {
		if err := u.SetSizes(ctx, map[workspace.ID]int64{w.ID: n}); err != nil {
			t.Fatal(err)
		}
	}
	got := must(e.AnyWorkspace(ctx, boss, w.ID))(t)
	if got.Spent.RunningSeconds != 120 || got.Spent.CPUSeconds != 60 || got.Bytes() != 312 || got.UpdatedAt != w.UpdatedAt {
		t.Errorf("%+v, %d bytes, updated %v", got.Spent, got.Bytes(), got.UpdatedAt.Sub(w.UpdatedAt))
	}
	e.set(w.ID, state{"owner_user_id": bob.UserID})
	if err := u.SetSizes(ctx, nil); err != nil { // the homes are not measured
		t.Fatal(err)
	}
	var days []postgres.UsageDay
	if err := e.UsageOf(ctx, boss, "", time.Now().AddDate(0, 0, -2), time.Now().AddDate(0, 0, 1), func(d postgres.UsageDay) error {
		days = append(days, d)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(days, func(a, b postgres.UsageDay) int { return strings.Compare(a.Owner, b.Owner) })
	if len(days) != 2 || days[0].Owner != "ann" || days[0].HomeBytes != 900 || days[0].RunningSeconds != 120 || days[1].Owner != "bob" || days[1].HomeBytes != 300 || days[1].ArchivesBytes != 12 {
		t.Errorf("%+v", days)
	}
	e.exec(`UPDATE workspace_usage SET day = day - 40 WHERE owner_user_id = $1`, ann.UserID)
	if err := u.Trim(ctx, 30*24*time.Hour); err != nil || query[int](e, `SELECT count(*) FROM workspace_usage`) != 1 {
		t.Error("old use stays", err)
	}
	// A home that is gone takes no space.
	e.set(w.ID, state{"home_ctx": `{"state": "absent"}`})
	if err := u.SetSizes(ctx, map[workspace.ID]int64{}); err != nil || query[int64](e, `SELECT home_bytes FROM workspaces`) != 0 {
		t.Error("the home still counts", err)
	}
}
