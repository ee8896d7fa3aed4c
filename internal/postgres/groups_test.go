package postgres_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// administrator makes a user who is an administrator.
func (e *env) administrator(name string) workspace.Caller {
	e.Helper()
	c := e.user(name)
	e.exec(`UPDATE users SET admin = true WHERE id = $1`, c.UserID)
	return c
}

// member adds users to a group, for an administrator.
func (e *env) member(boss workspace.Caller, group string, admin bool, users ...workspace.Caller) {
	e.Helper()
	for _, u := range users {
		must(e.SetMember(e.Context(), boss, group, u.UserID, &admin))(e)
	}
}

// claimed records that a provider says that the user is in these groups.
func (e *env) claimed(user workspace.Caller, issuer string, groups ...string) {
	e.Helper()
	e.exec(`INSERT INTO user_identities (id, user_id, issuer, subject) VALUES (gen_random_uuid(), $1, $2, gen_random_uuid()::text)`, user.UserID, issuer)
	e.exec(`INSERT INTO user_claim_groups SELECT i.id, g FROM user_identities i, unnest($3::text[]) g WHERE i.user_id = $1 AND i.issuer = $2`, user.UserID, issuer, groups)
}

// members lists the members of a group by name.
func (e *env) members(boss workspace.Caller, group string) []string {
	e.Helper()
	list, _, err := e.Members(e.Context(), boss, group, postgres.Page{})
	if err != nil {
		e.Fatal(err)
	}
	names := []string{}
	for _, m := range list {
		names = append(names, m.Username)
	}
	return names
}

// A user or group that is named as the id of another one gets nothing that is given by that id.
// A name may have the form of an id.
func TestIDsComeBeforeNames(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Sharing: true})
	ctx := t.Context()
	boss, ann := e.administrator("boss"), e.user("ann")
	team := must(e.CreateGroup(ctx, boss, postgres.Group{Name: "team"}))(t)
	mallory := e.user(ann.UserID)
	must(e.CreateGroup(ctx, boss, postgres.Group{Name: team.ID}))(t)
	if m := must(e.SetMember(ctx, boss, team.ID, ann.UserID, nil))(t); m.UserID != ann.UserID {
		t.Errorf("%s became a member", m.Username)
	}
	ws := e.workspace(boss, state{"phase": "STANDBY", "conditions": noContainer})
	if s := must(e.Share(ctx, boss, ws.ID, postgres.NewShare{User: ann.UserID, Access: workspace.AccessUse}))(t); s.User != "ann" {
		t.Errorf("shared with %s", s.User)
	}
	if s := must(e.Share(ctx, boss, ws.ID, postgres.NewShare{Group: team.ID, Access: workspace.AccessUse}))(t); s.Group != "team" {
		t.Errorf("shared with the group %s", s.Group)
	}
	e.exec(`DELETE FROM users WHERE id = $1`, ann.UserID)
	if m := must(e.SetMember(ctx, boss, team.ID, ann.UserID, nil))(t); m.UserID != mallory.UserID {
		t.Errorf("without a user of this id, %s became a member", m.Username)
	}
}

// Administrators of a group add and remove its members, and do nothing else.
func TestGroupAdministrators(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	boss, gina, ann, bob := e.administrator("boss"), e.user("gina"), e.user("ann"), e.user("bob")
	team := must(e.CreateGroup(ctx, boss, postgres.Group{Name: "Team"}))(t)
	other := must(e.CreateGroup(ctx, boss, postgres.Group{Name: "other"}))(t)
	_, err := e.CreateGroup(ctx, boss, postgres.Group{Name: "TEAM"})
	wantCode(t, err, workspace.CodeNameTaken)
	e.member(boss, team.ID, true, gina)

	yes, no, name := true, false, "mine"
	if m := must(e.SetMember(ctx, gina, team.ID, "ANN", nil))(t); m.UserID != ann.UserID || m.Admin || !m.Added {
		t.Errorf("added %+v", m)
	}
	must(e.SetMember(ctx, gina, team.ID, bob.UserID, &no))(t)
	refused := map[string]error{}
	_, refused["make an administrator"] = e.SetMember(ctx, gina, team.ID, "ann", &yes)
	_, refused["change"] = e.PatchGroup(ctx, gina, team.ID, postgres.GroupPatch{Name: &name})
	refused["delete"] = e.DeleteGroup(ctx, gina, team.ID)
	_, refused["create"] = e.CreateGroup(ctx, gina, postgres.Group{Name: "mine"})
	_, refused["add to another group"] = e.SetMember(ctx, gina, other.ID, "ann", nil)
	_, _, refused["read another group's members"] = e.Members(ctx, gina, other.ID, postgres.Page{})
	_, refused["read another group"] = e.Group(ctx, gina, other.ID)
	_, refused["a member adds one"] = e.SetMember(ctx, ann, team.ID, "bob", nil)
	_, refused["a member removes one"] = e.RemoveMember(ctx, ann, team.ID, bob.UserID)
	_, _, refused["a member reads the members"] = e.Members(ctx, ann, team.ID, postgres.Page{})
	for what, err := range refused {
		if workspace.CodeOf(err) != workspace.CodeForbidden {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err = e.SetMember(ctx, gina, team.ID, "nobody", nil)
	wantCode(t, err, workspace.CodeNotFound)
	if got := e.members(gina, team.ID); !slices.Equal(got, []string{"ann", "bob", "gina"}) {
		t.Errorf("members %v", got)
	}
	// Another administrator of the group can be removed by codehub's alone.
	e.member(boss, team.ID, true, bob)
	_, err = e.RemoveMember(ctx, gina, team.ID, bob.UserID)
	wantCode(t, err, workspace.CodeForbidden)
	if claimed, err := e.RemoveMember(ctx, bob, team.ID, bob.UserID); err != nil || claimed {
		t.Errorf("leave: %v, %v", claimed, err)
	}
	_, err = e.SetMember(ctx, bob, team.ID, "ann", nil)
	wantCode(t, err, workspace.CodeForbidden)

	if list, _, err := e.Groups(ctx, ann, postgres.Page{}); err != nil || len(list) != 1 || list[0].ID != team.ID || list[0].Manages || list[0].Members != 2 {
		t.Errorf("ann's groups %+v, %v", list, err)
	}
	first, next, err := e.Groups(ctx, boss, postgres.Page{Limit: 1})
	if err != nil || len(first) != 1 || first[0].Name != "other" || next == "" {
		t.Fatalf("first page %+v, %q, %v", first, next, err)
	}
	if second, next, err := e.Groups(ctx, boss, postgres.Page{Limit: 1, Cursor: next}); err != nil || len(second) != 1 || second[0].Name != "Team" || next != "" {
		t.Errorf("second page %+v, %q, %v", second, next, err)
	}
	// A disabled administrator of a group has no rights, and a deleted user is in no group.
	e.exec(`UPDATE users SET disabled = true WHERE id = $1`, gina.UserID)
	_, err = e.SetMember(ctx, gina, team.ID, "bob", nil)
	if err == nil {
		t.Error("a disabled administrator of a group adds a member")
	}
	if err := e.DeleteAccount(ctx, boss, gina.UserID, postgres.Removal{}); err != nil {
		t.Fatal(err)
	}
	if got := e.members(boss, team.ID); !slices.Equal(got, []string{"ann"}) {
		t.Errorf("members %v", got)
	}
	if err := e.DeleteGroup(ctx, boss, team.ID); err != nil {
		t.Fatal(err)
	}
	if got := e.audited(team.ID); !slices.Equal(got, []string{
		"boss group.create", "boss group.add", "gina group.add", "gina group.add", "boss group.add", "bob group.remove", "boss group.delete"}) {
		t.Errorf("audit log %v", got)
	}
}

// The members of a group that is bound to a claim follow what the providers say.
func TestGroupOfClaim(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	boss, ann, bob, carl := e.administrator("boss"), e.user("ann"), e.user("bob"), e.user("carl")
	e.claimed(ann, "https://a", "developers", "all")
	e.claimed(bob, "https://b", "developers")
	g := must(e.CreateGroup(t.Context(), boss, postgres.Group{Name: "devs", Claim: "developers"}))(t)
	e.member(boss, g.ID, false, carl, ann)
	if got := e.members(boss, g.ID); !slices.Equal(got, []string{"ann", "bob", "carl"}) {
		t.Errorf("of any provider: %v", got)
	}
	_, err := e.RemoveMember(t.Context(), boss, g.ID, bob.UserID)
	wantCode(t, err, workspace.CodeInvalid)
	if m := must(e.SetMember(t.Context(), boss, g.ID, "ann", nil))(t); !m.Claimed {
		t.Errorf("a member by the claim too: %+v", m)
	}
	if claimed, err := e.RemoveMember(t.Context(), boss, g.ID, ann.UserID); err != nil || !claimed {
		t.Errorf("a member by the claim too, removed: %v, %v", claimed, err)
	}
	if claimed, err := e.RemoveMember(t.Context(), boss, g.ID, carl.UserID); err != nil || claimed {
		t.Errorf("a member who was added, removed: %v, %v", claimed, err)
	}
	if n := query[int](e, `SELECT count(*)::int FROM audit_log WHERE action = $1 AND details->>'claimed' = 'true' AND details->>'user' = 'ann'`, postgres.AuditGroupRemove); n != 1 {
		t.Errorf("%d removals in the audit log say that the user stays", n)
	}
	e.member(boss, g.ID, false, carl)
	issuer := "https://a"
	must(e.PatchGroup(t.Context(), boss, g.ID, postgres.GroupPatch{Issuer: &issuer}))(t)
	if got := e.members(boss, g.ID); !slices.Equal(got, []string{"ann", "carl"}) {
		t.Errorf("of one provider: %v", got)
	}
	e.exec(`UPDATE user_identities SET active = false WHERE user_id = $1`, ann.UserID)
	if got := e.members(boss, g.ID); !slices.Equal(got, []string{"carl"}) {
		t.Errorf("of an identity that the provider refuses: %v", got)
	}
	none := ""
	if g := must(e.PatchGroup(t.Context(), boss, g.ID, postgres.GroupPatch{Claim: &none}))(t); g.Claim != "" || g.Issuer != "" || g.Members != 1 {
		t.Errorf("without a claim: %+v", g)
	}
	_, err = e.PatchGroup(t.Context(), boss, g.ID, postgres.GroupPatch{Issuer: &issuer})
	wantCode(t, err, workspace.CodeInvalid)
	if n := query[int](e, `SELECT count(*)::int FROM audit_log WHERE action = $1 AND details->>'issuer' = $2`, postgres.AuditGroupChange, issuer); n != 1 {
		t.Errorf("%d changes to the issuer are in the audit log", n)
	}
}

// limitOf is the rule of the view user_limits in Go: a user's own limit, else the most generous
// one of the user's groups, which are called g0 and so on, else the server's. 0 is no limit.
func limitOf(own *int, groups [3]*int, server int) api.Limit {
	if own != nil {
		return api.Limit{Max: int64(*own), From: api.LimitOwn}
	}
	out := api.Limit{Max: int64(server), From: api.LimitServer}
	for i, g := range groups {
		if g != nil && (out.From == api.LimitServer || out.Max > 0 && (*g == 0 || int64(*g) > out.Max)) {
			out = api.Limit{Max: int64(*g), From: api.LimitGroup, Group: fmt.Sprint("g", i)}
		}
	}
	return out
}

// The limits in SQL are those of the rule in Go, for any user and groups.
func TestLimitsOfGroups(t *testing.T) {
	t.Parallel()
	const serverRunning, serverWorkspaces, serverBytes = 3, 4, 5
	e := open(t, postgres.Options{Limits: postgres.Limits{PerUser: serverRunning, Workspaces: serverWorkspaces, Bytes: serverBytes}})
	boss, ann := e.administrator("boss"), e.user("ann")
	e.claimed(ann, "https://a", "ann")
	var groups []string
	for i := range 3 {
		groups = append(groups, must(e.CreateGroup(t.Context(), boss, postgres.Group{Name: fmt.Sprint("g", i)}))(t).ID)
	}
	limit := rapid.OneOf(rapid.Just[*int](nil), rapid.Ptr(rapid.IntRange(0, 6), false))
	set := func(table, id string, n [3]*int) {
		e.exec(`UPDATE `+table+` SET max_running = $2, max_workspaces = $3, max_bytes = $4 WHERE id = $1`, id, n[0], n[1], n[2])
	}
	rapid.Check(t, func(r *rapid.T) {
		limits := func(name string) (n [3]*int) {
			for i := range n {
				n[i] = limit.Draw(r, fmt.Sprint(name, i))
			}
			return n
		}
		own := limits("own")
		set("users", ann.UserID, own)
		var of [3][3]*int // limits of groups: that of running workspaces, and so on
		e.exec(`DELETE FROM group_members`)
		for i, g := range groups {
			n := limits(fmt.Sprint("group", i))
			set("user_groups", g, n)
			member, claimed := rapid.Bool().Draw(r, "member"), rapid.Bool().Draw(r, "claimed")
			e.exec(`UPDATE user_groups SET claim = $2 WHERE id = $1`, g, map[bool]string{true: "ann", false: ""}[claimed])
			if member {
				e.exec(`INSERT INTO group_members (group_id, user_id) VALUES ($1, $2)`, g, ann.UserID)
			}
			if member || claimed {
				for j := range of {
					of[j][i] = n[j]
				}
			}
		}
		q, err := e.Quotas(t.Context(), ann)
		if err != nil {
			r.Fatal(err)
		}
		account, err := e.Account(t.Context(), boss, ann.UserID)
		if err != nil {
			r.Fatal(err)
		}
		list, err := e.Accounts(t.Context(), boss, postgres.AccountFilter{})
		if err != nil || cmp.Diff(account, list.Users[0]) != "" {
			r.Fatalf("the list has %+v, %v, want %+v", list.Users, err, account)
		}
		got := [3]api.Limit{account.Limits.Running, account.Limits.Workspaces, account.Limits.Bytes}
		want := [3]api.Limit{limitOf(own[0], of[0], serverRunning), limitOf(own[1], of[1], serverWorkspaces), limitOf(own[2], of[2], serverBytes)}
		if got != want {
			r.Fatalf("limits %v, want %v (own %v, groups %v)", got, want, own, of)
		}
		if counts := [3]int64{int64(q.MaxRunning), int64(q.MaxWorkspaces), q.MaxBytes}; counts != [3]int64{want[0].Max, want[1].Max, want[2].Max} {
			r.Fatalf("what counts is %v, want %v", counts, want)
		}
	})
}

// The limits of a group count: of running workspaces, of their number, and of their bytes.
func TestLimitsOfGroupsCount(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Limits: postgres.Limits{PerUser: 1, Workspaces: 1, Bytes: 1}})
	boss, ann := e.administrator("boss"), e.user("ann")
	g := must(e.CreateGroup(t.Context(), boss, postgres.Group{Name: "g", MaxRunning: new(2), MaxWorkspaces: new(3), MaxBytes: new(int64(1 << 30))}))(t)
	made := 0
	create := func(desired workspace.DesiredState) error {
		made++
		_, err := e.CreateWorkspace(t.Context(), ann, newWorkspace(fmt.Sprint("w", made), desired))
		return err
	}
	if err := create(workspace.DesiredRunning); err != nil {
		t.Fatal(err)
	}
	wantCode(t, create(workspace.DesiredRunning), workspace.CodeLimitExceeded)
	wantCode(t, create(workspace.DesiredStandby), workspace.CodeQuotaExceeded)
	e.member(boss, g.ID, false, ann)
	if err := create(workspace.DesiredRunning); err != nil {
		t.Errorf("within the group's limits: %v", err)
	}
	wantCode(t, create(workspace.DesiredRunning), workspace.CodeLimitExceeded)
	if err := create(workspace.DesiredStandby); err != nil {
		t.Errorf("within the group's limits: %v", err)
	}
	wantCode(t, create(workspace.DesiredStandby), workspace.CodeQuotaExceeded)
	e.exec(`UPDATE workspaces SET home_bytes = $1`, 1<<29)
	wantCode(t, e.MayRun(t.Context(), ann, ""), workspace.CodeQuotaExceeded)
	if err := e.DeleteGroup(t.Context(), boss, g.ID); err != nil {
		t.Fatal(err)
	}
	wantCode(t, create(workspace.DesiredRunning), workspace.CodeQuotaExceeded)
}
