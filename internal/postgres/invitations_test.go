package postgres_test

import (
	"bytes"
	"sync"
	"sync/atomic"
	"testing"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

func invitationHash(n byte) []byte { return bytes.Repeat([]byte{n}, 32) }

// TestInvitationEnds: an invitation is valid once, and ends with everything that takes its reason
// away.
func TestInvitationEnds(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	boss := administrator(e, "boss")
	yes, no, password := true, false, "other"
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := e.raw.Exec(ctx, sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	patch := func(id string, p postgres.AccountPatch) {
		t.Helper()
		if _, err := e.PatchAccount(ctx, boss, id, p); err != nil {
			t.Fatal(err)
		}
	}
	n := byte(0)
	for what, end := range map[string]func(id string, hash []byte){
		"its use": func(id string, hash []byte) {
			u, err := e.AcceptInvitation(ctx, workspace.Caller{}, hash, "set")
			if err != nil || u.ID != id || u.PasswordHash != "set" {
				t.Fatalf("%+v, %v", u, err)
			}
		},
		"a new one": func(id string, hash []byte) {
			if _, err := e.Invite(ctx, boss, id, append([]byte{0xff}, hash[1:]...)); err != nil {
				t.Fatal(err)
			}
		},
		"a password":           func(id string, _ []byte) { patch(id, postgres.AccountPatch{PasswordHash: &password}) },
		"a password elsewhere": func(id string, _ []byte) { exec(`UPDATE users SET password_hash = 'x' WHERE id = $1`, id) }, // by an earlier version
		"disabling and enabling": func(id string, _ []byte) {
			patch(id, postgres.AccountPatch{Disabled: &yes})
			patch(id, postgres.AccountPatch{Disabled: &no})
		},
		"a suspension": func(id string, _ []byte) { exec(`UPDATE users SET suspended_for = 'refused' WHERE id = $1`, id) },
		"the deletion": func(id string, _ []byte) {
			if err := e.DeleteAccount(ctx, boss, id, postgres.Removal{}); err != nil {
				t.Fatal(err)
			}
		},
		"three days": func(id string, _ []byte) {
			exec(`UPDATE invitations SET expires_at = expires_at - interval '3 days' WHERE user_id = $1`, id)
		},
	} {
		n++
		hash := invitationHash(n)
		made, err := e.CreateInvited(ctx, boss, []postgres.Invited{{User: postgres.User{Username: "user" + string('a'+n)}, Hash: hash}})
		if err != nil || made[0].InvitedUntil == nil {
			t.Fatalf("%+v, %v", made, err)
		}
		if u, err := e.InvitedUser(ctx, hash); err != nil || u.ID != made[0].ID {
			t.Fatalf("before %s: %+v, %v", what, u, err)
		}
		end(made[0].ID, hash)
		if u, err := e.InvitedUser(ctx, hash); workspace.CodeOf(err) != workspace.CodeNotFound {
			t.Errorf("after %s: %+v, %v", what, u, err)
		}
		if u, err := e.AcceptInvitation(ctx, workspace.Caller{}, hash, "again"); workspace.CodeOf(err) != workspace.CodeNotFound {
			t.Errorf("after %s: used: %+v, %v", what, u, err)
		}
	}
	if _, err := e.Invite(ctx, boss, boss.UserID, invitationHash(99)); workspace.CodeOf(err) != workspace.CodeInvalid {
		t.Errorf("an administrator's own: %v", err)
	}
	u, err := e.UserByName(ctx, "boss")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Invite(ctx, workspace.Caller{UserID: u.ID + "x"}, u.ID, invitationHash(99)); workspace.CodeOf(err) != workspace.CodeForbidden {
		t.Errorf("by another user: %v", err)
	}
}

// TestInvitationIsUsedOnce: of concurrent uses one succeeds.
func TestInvitationIsUsedOnce(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	boss := administrator(e, "boss")
	hash := invitationHash(1)
	if _, err := e.CreateInvited(t.Context(), boss, []postgres.Invited{{User: postgres.User{Username: "ann"}, Hash: hash}}); err != nil {
		t.Fatal(err)
	}
	var used atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			switch _, err := e.AcceptInvitation(e.Context(), workspace.Caller{}, hash, "x"); workspace.CodeOf(err) {
			case workspace.CodeNotFound:
			case "":
				if err != nil {
					e.Error(err)
				}
				used.Add(1)
			default:
				e.Error(err)
			}
		})
	}
	wg.Wait()
	if n := used.Load(); n != 1 {
		t.Errorf("it was used %d times", n)
	}
}

// TestInvitedUsersAreCreatedTogether: a name that is taken keeps the whole list from being
// created.
func TestInvitedUsersAreCreatedTogether(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	boss := administrator(e, "boss")
	_, err := e.CreateInvited(t.Context(), boss, []postgres.Invited{
		{User: postgres.User{Username: "ann"}, Hash: invitationHash(1)}, {User: postgres.User{Username: "BOSS"}, Hash: invitationHash(2)},
	})
	if workspace.CodeOf(err) != workspace.CodeNameTaken {
		t.Errorf("a name that is taken: %v", err)
	}
	if taken, err := e.TakenNames(t.Context(), boss, []string{"ann", "BOSS"}); err != nil || len(taken) != 1 || taken[0] != "BOSS" {
		t.Errorf("taken: %v, %v", taken, err)
	}
	if n, err := e.UserCount(t.Context()); err != nil || n != 1 {
		t.Errorf("%d users, %v", n, err)
	}
	local := open(t, postgres.Options{OneAccount: true})
	if _, err := local.CreateInvited(t.Context(), administrator(local, "boss"), []postgres.Invited{{User: postgres.User{Username: "ann"}, Hash: invitationHash(1)}}); workspace.CodeOf(err) != workspace.CodeOneAccount {
		t.Errorf("on localhost: %v", err)
	}
}
