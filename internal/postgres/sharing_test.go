package postgres_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// may tells what a user may do with a workspace: "", view or use.
func (e *env) may(c workspace.Caller, id workspace.ID) workspace.Access {
	e.Helper()
	g := must(e.Guests(e.Context(), id))(e)[c.UserID]
	_, err := e.EnterableWorkspace(e.Context(), c, id)
	if (err == nil) != (g == workspace.AccessUse) {
		e.Errorf("%s has %q, and entering returns %v", c.Username, g, err)
	}
	list := must(e.SharedWith(e.Context(), c))(e)
	shown := workspace.Access("")
	for _, s := range list {
		if s.Workspace.ID == id {
			shown = s.Access
		}
	}
	if g != shown {
		e.Errorf("%s has %q, and the list shows %q", c.Username, g, shown)
	}
	return g
}

// Shares begin and end with their rows, groups, users, owners and workspaces, and each end is
// announced, so that open connections are cut.
func TestSharesEnd(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Sharing: true})
	ctx := t.Context()
	boss, ann, bob, carl := e.administrator("boss"), e.user("ann"), e.user("bob"), e.user("carl")
	ws := e.workspace(ann, state{"phase": "STANDBY", "conditions": noContainer, "home_ctx": `{"state": "live", "claim": "c"}`})
	group := must(e.CreateGroup(ctx, boss, postgres.Group{Name: "team", Claim: "devs"}))(t)
	_, err := e.Share(ctx, ann, ws.ID, postgres.NewShare{Group: "team", Access: workspace.AccessView})
	wantCode(t, err, workspace.CodeNotFound) // she is not in it
	e.member(boss, group.ID, false, ann, bob)

	ended := make(chan workspace.ID, 100)
	listening, stop := context.WithCancel(ctx)
	conn := must(pgx.Connect(ctx, e.dsn))(t)
	must(conn.Exec(ctx, `LISTEN ws_sse`))(t)
	over := make(chan struct{})
	defer func() { stop(); <-over; _ = conn.Close(context.Background()) }()
	go func() {
		defer close(over)
		for {
			n, err := conn.WaitForNotification(listening)
			if err != nil {
				return
			}
			if len(n.Payload) > 0 {
				ended <- ws.ID
			}
		}
	}()
	// announced does something that ends or begins an access, and waits for its event.
	announced := func(what string, do func()) {
		t.Helper()
		for len(ended) > 0 {
			<-ended
		}
		do()
		select {
		case <-ended:
		case <-time.After(time.Minute):
			t.Fatalf("%s is not announced", what)
		}
	}
	var byGroup, byName workspace.Share
	announced("a share with a group", func() {
		byGroup = must(e.Share(ctx, ann, ws.ID, postgres.NewShare{Group: "TEAM", Access: workspace.AccessView}))(t)
	})
	if b, c := e.may(bob, ws.ID), e.may(carl, ws.ID); b != workspace.AccessView || c != "" {
		t.Errorf("bob %q, carl %q", b, c)
	}
	announced("a share with a user", func() {
		byName = must(e.Share(ctx, ann, ws.ID, postgres.NewShare{User: "BOB", Access: workspace.AccessUse}))(t)
	})
	if got := e.may(bob, ws.ID); got != workspace.AccessUse {
		t.Errorf("use and view add up to %q", got)
	}
	announced("a new member", func() { e.member(boss, group.ID, false, carl) })
	if got := e.may(carl, ws.ID); got != workspace.AccessView {
		t.Errorf("a new member has %q", got)
	}
	announced("the end of a membership", func() {
		if _, err := e.RemoveMember(ctx, boss, group.ID, carl.UserID); err != nil {
			t.Fatal(err)
		}
	})
	if got := e.may(carl, ws.ID); got != "" {
		t.Errorf("a former member has %q", got)
	}
	announced("a membership by the claim", func() { e.claimed(carl, "https://a", "devs") })
	if got := e.may(carl, ws.ID); got != workspace.AccessView {
		t.Errorf("a member by the claim has %q", got)
	}
	announced("the end of an identity", func() { e.exec(`UPDATE user_identities SET active = false`) })
	if got := e.may(carl, ws.ID); got != "" {
		t.Errorf("a member by the claim of a refused identity has %q", got)
	}
	announced("the end of a share", func() {
		if err := e.Unshare(ctx, ann, ws.ID, byName.ID); err != nil {
			t.Fatal(err)
		}
	})
	if got := e.may(bob, ws.ID); got != workspace.AccessView {
		t.Errorf("without a share of his own he has %q", got)
	}
	announced("the end of the owner's access", func() { e.exec(`UPDATE users SET disabled = true WHERE id = $1`, ann.UserID) })
	if got := e.may(bob, ws.ID); got != "" {
		t.Errorf("guest of a disabled owner: %q", got)
	}
	announced("the owner's return", func() { e.exec(`UPDATE users SET disabled = false WHERE id = $1`, ann.UserID) })
	e.exec(`UPDATE users SET disabled = true WHERE id = $1`, bob.UserID)
	if got := must(e.Guests(ctx, ws.ID))(t); len(got) != 0 {
		t.Errorf("a disabled guest: %v", got)
	}
	e.exec(`UPDATE users SET disabled = false WHERE id = $1`, bob.UserID)
	announced("a deletion", func() { must(e.DeleteWorkspace(ctx, ann, ws.ID, true))(t) })
	if got := e.may(bob, ws.ID); got != "" {
		t.Errorf("guest of a deleted workspace: %q", got)
	}
	announced("an undeletion", func() { must(e.UndeleteWorkspace(ctx, ann, ws.ID))(t) })
	announced("the end of a group", func() {
		if err := e.DeleteGroup(ctx, boss, group.ID); err != nil {
			t.Fatal(err)
		}
	})
	if got := e.may(bob, ws.ID); got != "" {
		t.Errorf("guest by a deleted group: %q", got)
	}
	wantCode(t, e.Unshare(ctx, ann, ws.ID, byGroup.ID), workspace.CodeNotFound)

	must(e.Share(ctx, ann, ws.ID, postgres.NewShare{User: "bob", Access: workspace.AccessUse}))(t)
	announced("a hand-over", func() { e.exec(`UPDATE workspaces SET owner_user_id = $2 WHERE id = $1`, ws.ID, carl.UserID) })
	if got := query[int](e, `SELECT count(*) FROM workspace_shares`); got != 0 {
		t.Errorf("%d shares are left after a hand-over", got)
	}
	must(e.Share(ctx, carl, ws.ID, postgres.NewShare{User: "bob", Access: workspace.AccessUse}))(t)
	announced("the deletion of a guest", func() {
		if err := e.DeleteAccount(ctx, boss, bob.UserID, postgres.Removal{}); err != nil {
			t.Fatal(err)
		}
	})
	if got := must(e.Shares(ctx, carl, ws.ID))(t); len(got) != 0 {
		t.Errorf("shares with a deleted user: %+v", got)
	}
	if got := e.audited(string(ws.ID)); !slices.Contains(got, "ann workspace.share") || !slices.Contains(got, "ann workspace.unshare") {
		t.Errorf("audit log %v", got)
	}
}

// Only the owner shares; a guest enters and starts a workspace, and does nothing else with it.
func TestGuests(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Sharing: true, Limits: postgres.Limits{PerUser: 1}})
	ctx := t.Context()
	boss, ann, uma, vic := e.administrator("boss"), e.user("ann"), e.user("uma"), e.user("vic")
	ws, other := e.workspace(ann, state{"phase": "STANDBY", "conditions": noContainer, "memo": "the key is under the mat"}), e.workspace(ann, nil)
	for user, access := range map[string]workspace.Access{"uma": workspace.AccessUse, "vic": workspace.AccessView} {
		must(e.Share(ctx, ann, ws.ID, postgres.NewShare{User: user, Access: access}))(t)
	}
	for who, c := range map[string]workspace.Caller{"a guest who uses": uma, "a guest who views": vic, "an administrator": boss} {
		refused := map[string]error{}
		_, refused["share"] = e.Share(ctx, c, ws.ID, postgres.NewShare{User: "boss", Access: workspace.AccessUse})
		_, refused["read the shares"] = e.Shares(ctx, c, ws.ID)
		refused["unshare"] = e.Unshare(ctx, c, ws.ID, string(ws.ID))
		_, refused["read"] = e.Workspace(ctx, c, ws.ID)
		_, refused["delete"] = e.DeleteWorkspace(ctx, c, ws.ID, true)
		_, refused["restart"] = e.Restart(ctx, c, ws.ID)
		_, refused["keep running"] = e.Stay(ctx, c, ws.ID)
		_, refused["stop"] = e.RequestForceStop(ctx, c, ws.ID)
		_, refused["change"] = e.PatchWorkspace(ctx, c, ws.ID, postgres.Patch{})
		_, refused["share a port"] = e.SharePort(ctx, c, ws.ID, 3000, workspace.VisibleUsers, 0)
		_, _, refused["list the archives"] = e.Archives(ctx, c, ws.ID, postgres.Page{})
		_, refused["enter another workspace"] = e.EnterableWorkspace(ctx, c, other.ID)
		if c != uma {
			_, refused["enter"] = e.EnterableWorkspace(ctx, c, ws.ID)
			_, refused["wake"] = e.Wake(ctx, c, ws.ID)
		}
		for what, err := range refused {
			if workspace.CodeOf(err) != workspace.CodeForbidden {
				t.Errorf("%s by %s: %v", what, who, err)
			}
		}
	}
	limited := uma
	limited.Scope, limited.Only = workspace.ScopeWorkspaces, other.ID
	_, err := e.Wake(ctx, limited, ws.ID)
	wantCode(t, err, workspace.CodeForbidden)

	// The owner's limit counts, and a guest does not learn what else the owner runs.
	e.set(other.ID, state{"desired_state": "RUNNING"})
	_, err = e.Wake(ctx, uma, ws.ID)
	wantCode(t, err, workspace.CodeLimitExceeded)
	if e := err.(*workspace.Error); e.Details["running_workspaces"] != nil || e.Details["limit_type"] != "owner" {
		t.Errorf("the limit says %v", e.Details)
	}
	e.set(other.ID, state{"desired_state": "STANDBY"})

	// A guest does not undo that the owner archives the workspace.
	for _, archiving := range []state{
		{"operation": "ARCHIVING", "desired_state": "ARCHIVED"},
		{"operation": "NONE", "desired_state": "ARCHIVED"},
		{"operation": "STOPPING", "desired_state": "STANDBY", "next_desired_state": "ARCHIVED"},
	} {
		e.set(ws.ID, archiving)
		before := e.read(ws.ID)
		_, err = e.Wake(ctx, uma, ws.ID)
		wantCode(t, err, workspace.CodeNotRunning)
		if after := e.read(ws.ID); after.DesiredState != before.DesiredState || after.NextDesired != before.NextDesired {
			t.Errorf("%v: %s, then %s", archiving, after.DesiredState, after.NextDesired)
		}
	}
	e.set(ws.ID, state{"operation": "NONE", "desired_state": "STANDBY", "next_desired_state": nil})
	if w := must(e.Wake(ctx, uma, ws.ID))(t); w.DesiredState != workspace.DesiredRunning {
		t.Errorf("woken: %+v", w)
	}
	if got := e.audited(string(ws.ID)); got[len(got)-1] != "uma workspace.wake" {
		t.Errorf("audit log %v", got)
	}
	list := must(e.SharedWith(ctx, vic))(t)
	if len(list) != 1 || list[0].Owner != "ann" || list[0].Workspace.Memo != "" || len(list[0].Shares) != 2 || list[0].Access != workspace.AccessView {
		t.Errorf("shared with vic: %+v", list)
	}
	for name, want := range map[string]workspace.ID{"ANN/" + ws.Name: ws.ID, string(ws.ID): ws.ID, ws.Name: "", "ann/" + other.Name: "", string(other.ID): "", "/" + ws.Name: ""} {
		if id, err := e.NamedWorkspace(ctx, uma, name); id != want || (err == nil) != (want != "") {
			t.Errorf("%q is %q, %v", name, id, err)
		}
	}
	if _, err := e.NamedWorkspace(ctx, vic, string(ws.ID)); workspace.CodeOf(err) != workspace.CodeNotFound {
		t.Errorf("by a guest who views: %v", err)
	}
}

// Without separate origins nothing can be shared, and what was shared before has no effect.
func TestNoSharingInPathMode(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ann, bob := e.user("ann"), e.user("bob")
	ws := e.workspace(ann, nil)
	_, err := e.Share(t.Context(), ann, ws.ID, postgres.NewShare{User: "bob", Access: workspace.AccessUse})
	wantCode(t, err, workspace.CodeNotSupported)
	e.exec(`INSERT INTO workspace_shares (id, workspace_id, user_id, access) VALUES (gen_random_uuid(), $1, $2, 'use')`, ws.ID, bob.UserID)
	if got := e.may(bob, ws.ID); got != "" {
		t.Errorf("bob has %q", got)
	}
	if _, err := e.Wake(t.Context(), bob, ws.ID); workspace.CodeOf(err) != workspace.CodeForbidden {
		t.Errorf("wake: %v", err)
	}
	if e.entrance(bob, ws.ID)(0) {
		t.Error("bob gets a session of the workspace's host")
	}
}

// A guest gets a session of the hosts of a workspace by a ticket while the guest may use it.
func TestTicketsOfGuests(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Sharing: true})
	ann, bob := e.user("ann"), e.user("bob")
	ws, other := e.workspace(ann, nil), e.workspace(ann, nil)
	enters, entersOther := e.entrance(bob, ws.ID), e.entrance(bob, other.ID)
	for _, access := range []workspace.Access{"", workspace.AccessView, workspace.AccessUse, workspace.AccessView} {
		if access != "" {
			must(e.Share(t.Context(), ann, ws.ID, postgres.NewShare{User: "bob", Access: access}))(t)
		}
		for _, port := range []int{0, 3000} {
			if got, want := enters(port), access == workspace.AccessUse; got != want || entersOther(port) {
				t.Errorf("with %q: a session of port %d: %v, want %v", access, port, got, want)
			}
		}
	}
}

// A guest leaves a share of their own. Access as a member of a group stays, and the result names the group.
func TestLeave(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Sharing: true})
	ctx := t.Context()
	boss, ann, bob, carl := e.administrator("boss"), e.user("ann"), e.user("bob"), e.user("carl")
	ws, other := e.workspace(ann, nil), e.workspace(ann, nil)
	group := must(e.CreateGroup(ctx, boss, postgres.Group{Name: "team"}))(t)
	e.member(boss, group.ID, false, ann, bob)
	leave := func(c workspace.Caller, id workspace.ID, code workspace.Code, groups ...string) {
		t.Helper()
		got, err := e.Leave(ctx, c, id)
		if workspace.CodeOf(err) != code || !slices.Equal(got, groups) {
			t.Errorf("%s leaves: groups %v, %v", c.Username, got, err)
		}
	}
	for _, c := range []workspace.Caller{bob, ann, boss} { // not shared, their own, an administrator
		leave(c, ws.ID, workspace.CodeForbidden)
	}
	leave(bob, workspace.ID(group.ID), workspace.CodeNotFound)
	leave(bob, "x", workspace.CodeNotFound)

	for _, with := range []postgres.NewShare{{User: "bob", Access: workspace.AccessUse}, {User: "carl", Access: workspace.AccessView}, {Group: "team", Access: workspace.AccessView}} {
		must(e.Share(ctx, ann, ws.ID, with))(t)
	}
	limited := bob
	limited.Scope, limited.Only = workspace.ScopeWorkspaces, other.ID
	leave(limited, ws.ID, workspace.CodeForbidden)
	limited.Scope, limited.Only = workspace.ScopeRead, ""
	leave(limited, ws.ID, workspace.CodeForbidden)
	heard := e.hear()
	leave(bob, ws.ID, "", "team")
	if !strings.Contains(heard.channels(), postgres.ChannelSSE) {
		t.Error("the end of the access is not announced")
	}
	if got := e.may(bob, ws.ID); got != workspace.AccessView {
		t.Errorf("as a member of the group bob has %q", got)
	}
	leave(bob, ws.ID, workspace.CodeNotSupported)
	leave(ann, ws.ID, workspace.CodeForbidden) // her own, and she is in the group
	if got := e.may(carl, ws.ID); got != workspace.AccessView {
		t.Errorf("carl, who has not left, has %q", got)
	}
	leave(carl, ws.ID, "")
	if got := e.may(carl, ws.ID); got != "" {
		t.Errorf("after leaving carl has %q", got)
	}
	leave(carl, ws.ID, workspace.CodeForbidden)
	if got := e.audited(string(ws.ID)); got[len(got)-2] != "bob workspace.leave" || got[len(got)-1] != "carl workspace.leave" {
		t.Errorf("audit log %v", got)
	}
}

// Users are told of a workspace that is shared with them, once, until the share ends. No number of
// shares pushes out what administrators told them.
func TestNoticesOfShares(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Sharing: true})
	ctx := t.Context()
	boss, ann, bob, carl := e.administrator("boss"), e.user("ann"), e.user("bob"), e.user("carl")
	ws := e.workspace(ann, nil)
	group := must(e.CreateGroup(ctx, boss, postgres.Group{Name: "team", Claim: "devs"}))(t)
	e.member(boss, group.ID, false, ann, bob, carl)
	e.claimed(bob, "https://a", "devs") // a member twice
	told := func(c workspace.Caller, want int) {
		t.Helper()
		list := must(e.Notices(ctx, c))(t)
		for _, n := range list {
			if n.Kind != postgres.NoticeShared || n.WorkspaceID != ws.ID || n.WorkspaceName != ws.Name || n.By != "ann" {
				t.Errorf("%s is told %+v", c.Username, n)
			}
		}
		if len(list) != want {
			t.Errorf("%s has %d notices, want %d", c.Username, len(list), want)
		}
	}
	share := func(with postgres.NewShare) workspace.Share {
		t.Helper()
		return must(e.Share(ctx, ann, ws.ID, with))(t)
	}
	byName := share(postgres.NewShare{User: "bob", Access: workspace.AccessView})
	told(bob, 1)
	share(postgres.NewShare{User: "bob", Access: workspace.AccessUse})
	told(bob, 1) // a change of the access is none
	if err := e.DismissNotice(ctx, bob, must(e.Notices(ctx, bob))(t)[0].ID); err != nil {
		t.Fatal(err)
	}
	byGroup := share(postgres.NewShare{Group: "team", Access: workspace.AccessView})
	told(bob, 0) // has access already
	told(carl, 1)
	told(ann, 0)
	told(boss, 0)
	if err := e.Unshare(ctx, ann, ws.ID, byGroup.ID); err != nil {
		t.Fatal(err)
	}
	told(carl, 0)
	if err := e.Unshare(ctx, ann, ws.ID, byName.ID); err != nil {
		t.Fatal(err)
	}
	share(postgres.NewShare{Group: "team", Access: workspace.AccessUse})
	told(bob, 1)
	told(carl, 1)
	share(postgres.NewShare{User: "carl", Access: workspace.AccessUse})
	must(e.Leave(ctx, carl, ws.ID))(t)
	told(carl, 1) // has access by the group
	e.exec(`UPDATE workspaces SET deleted_at = now() WHERE id = $1`, ws.ID)
	told(carl, 0)
	if _, err := e.Leave(ctx, carl, ws.ID); workspace.CodeOf(err) != workspace.CodeForbidden {
		t.Errorf("carl leaves a deleted workspace: %v", err)
	}
	e.exec(`UPDATE workspaces SET deleted_at = NULL WHERE id = $1`, ws.ID)
	told(carl, 1)
	if err := e.DeleteGroup(ctx, boss, group.ID); err != nil {
		t.Fatal(err)
	}
	told(bob, 0)
	told(carl, 0)

	theirs := e.workspace(bob, nil)
	for range 95 {
		must(e.Administer(ctx, boss, theirs.ID, postgres.Administration{Do: postgres.DoMessage, Message: "x"}))(t)
	}
	for range 30 {
		must(e.Share(ctx, ann, e.workspace(ann, nil).ID, postgres.NewShare{User: "bob", Access: workspace.AccessView}))(t)
	}
	list := must(e.Notices(ctx, bob))(t)
	if of := slices.IndexFunc(list, func(n postgres.Notice) bool { return n.Kind != postgres.NoticeShared }); len(list) != 105 || of != 10 {
		t.Errorf("bob has %d notices, of which %d of shares, want 105 and 10", len(list), of)
	}
}

// The end of a guest's use ends all sessions on the workspace's hosts, of the owner too: code that
// the guest has left in the workspace can have taken one. Nothing else ends them.
func TestEndOfUseEndsSessions(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Sharing: true})
	ctx := t.Context()
	boss, ann, bob, carl := e.administrator("boss"), e.user("ann"), e.user("bob"), e.user("carl")
	ws, other := e.workspace(ann, nil), e.workspace(ann, nil)
	group := must(e.CreateGroup(ctx, boss, postgres.Group{Name: "team", Claim: "devs"}))(t)
	e.member(boss, group.ID, false, ann, bob)
	e.claimed(carl, "https://a", "devs")
	e.exec(`INSERT INTO sessions (hash, user_id, expires_at) VALUES (sha256('s'), $1, now() + interval '1 day')`, ann.UserID)
	share := func(user, group string, access workspace.Access) workspace.Share {
		t.Helper()
		return must(e.Share(ctx, ann, ws.ID, postgres.NewShare{User: user, Group: group, Access: access}))(t)
	}
	var shared workspace.Share
	for _, step := range []struct {
		name       string
		begin, end func() error
		keeps      bool
	}{
		{"unshare", func() error { shared = share("bob", "", workspace.AccessUse); return nil }, func() error { return e.Unshare(ctx, ann, ws.ID, shared.ID) }, false},
		{"leave", func() error { share("bob", "", workspace.AccessUse); return nil }, func() error { _, err := e.Leave(ctx, bob, ws.ID); return err }, false},
		{"change to view", func() error { share("bob", "", workspace.AccessUse); return nil }, func() error { share("bob", "", workspace.AccessView); return nil }, false},
		{"change to use", nil, func() error { share("bob", "", workspace.AccessUse); return nil }, true},
		{"disabled guest", nil, func() error { e.exec(`UPDATE users SET disabled = true WHERE id = $1`, bob.UserID); return nil }, false},
		{"guest's return", nil, func() error { e.exec(`UPDATE users SET disabled = false WHERE id = $1`, bob.UserID); return nil }, true},
		{"change to view", nil, func() error { share("bob", "", workspace.AccessView); return nil }, false},
		{"unshare of a view", nil, func() error { return e.Unshare(ctx, ann, ws.ID, shared.ID) }, true},
		{"removal from a group that views", func() error { share("", "team", workspace.AccessView); return nil }, func() error { _, err := e.RemoveMember(ctx, boss, group.ID, bob.UserID); return err }, true},
		{"removal from a group", func() error { share("", "team", workspace.AccessUse); e.member(boss, group.ID, false, bob); return nil }, func() error { _, err := e.RemoveMember(ctx, boss, group.ID, bob.UserID); return err }, false},
		{"new member", nil, func() error { e.member(boss, group.ID, false, bob); return nil }, true},
		{"disabled member", nil, func() error { e.exec(`UPDATE users SET disabled = true WHERE id = $1`, bob.UserID); return nil }, false},
		{"refused identity", nil, func() error { e.exec(`UPDATE user_identities SET active = false`); return nil }, false},
		{"end of a claim", func() error { e.exec(`UPDATE user_identities SET active = true`); return nil }, func() error { e.exec(`DELETE FROM user_claim_groups`); return nil }, false},
		{"another claim of the group", nil, func() error { e.exec(`UPDATE user_groups SET claim = 'ops'`); return nil }, false},
		{"deletion of the group", nil, func() error { return e.DeleteGroup(ctx, boss, group.ID) }, false},
		{"deletion of a guest", func() error { share("carl", "", workspace.AccessUse); return nil }, func() error { return e.DeleteAccount(ctx, boss, carl.UserID, postgres.Removal{}) }, false},
	} {
		if step.begin != nil {
			if err := step.begin(); err != nil {
				t.Fatalf("%s: %v", step.name, err)
			}
		}
		if step.name == "change to view" && shared.ID == "" {
			t.Fatal("no share")
		}
		e.exec(`DELETE FROM workspace_sessions`)
		e.exec(`DELETE FROM tickets`)
		for i, id := range []workspace.ID{ws.ID, other.ID} {
			for _, port := range []int{0, 3000} {
				e.exec(`INSERT INTO workspace_sessions (hash, session_hash, workspace_id, port) VALUES (sha256(($1::text)::bytea), sha256('s'), $2, $3)`, []string{"a", "b"}[i]+map[int]string{0: "ide", 3000: "port"}[port], id, port)
			}
			e.exec(`INSERT INTO tickets (hash, user_id, session_hash, workspace_id, nonce_hash, expires_at) VALUES (sha256(($1::text)::bytea), $2, sha256('s'), $3, sha256('n'), now() + interval '1 minute')`, []string{"a", "b"}[i], ann.UserID, id)
		}
		if err := step.end(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		left := func(id workspace.ID) int {
			return query[int](e, `SELECT (SELECT count(*) FROM workspace_sessions WHERE workspace_id = $1) + (SELECT count(*) FROM tickets WHERE workspace_id = $1)`, id)
		}
		want := 0
		if step.keeps {
			want = 3
		}
		if got := left(ws.ID); got != want {
			t.Errorf("%s: %d sessions and tickets of the workspace are left, want %d", step.name, got, want)
		}
		if got := left(other.ID); got != 3 {
			t.Errorf("%s: %d sessions and tickets of another workspace are left, want 3", step.name, got)
		}
		for _, s := range must(e.Shares(ctx, ann, ws.ID))(t) {
			if s.UserID == bob.UserID {
				shared = s
			}
		}
	}
}
