package postgres_test

import (
	"encoding/hex"
	"net/netip"
	"testing"
	"time"

	"codehub/internal/postgres"
	"codehub/internal/workspace"

	"github.com/google/go-cmp/cmp"
)

func TestSSHKeys(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Limits: postgres.Limits{SSHKeys: 2}})
	ctx := t.Context()
	ann, bob := e.user("ann"), e.user("bob")
	laptop := must(e.AddSSHKey(ctx, ann, postgres.SSHKey{Name: "laptop", PublicKey: "ssh-ed25519 AAAA", Hash: hash("laptop")}))(t)
	for _, again := range []workspace.Caller{ann, bob} {
		_, err := e.AddSSHKey(ctx, again, postgres.SSHKey{Name: "copy", PublicKey: "ssh-ed25519 AAAA", Hash: hash("laptop")})
		wantCode(t, err, workspace.CodeKeyTaken)
	}
	must(e.AddSSHKey(ctx, ann, postgres.SSHKey{Name: "desk", PublicKey: "ssh-ed25519 BBBB", Hash: hash("desk")}))(t)
	_, err := e.AddSSHKey(ctx, ann, postgres.SSHKey{Name: "third", PublicKey: "ssh-ed25519 CCCC", Hash: hash("third")})
	wantCode(t, err, workspace.CodeQuotaExceeded)
	if q := must(e.Quotas(ctx, ann))(t); q.SSHKeys != 2 || q.MaxSSHKeys != 2 {
		t.Errorf("%+v", q)
	}

	u, k, err := e.SSHKeyUser(ctx, hash("laptop"))
	if err != nil || u.ID != ann.UserID || k.ID != laptop.ID || k.LastUsedAt != nil {
		t.Errorf("%+v %+v %v", u, k, err)
	}
	if err := e.TouchSSHKey(ctx, laptop.ID, soon(0)); err != nil {
		t.Fatal(err)
	}
	if k := must(e.SSHKey(ctx, ann, laptop.ID))(t); k.LastUsedAt == nil {
		t.Error("the use of the key was not recorded")
	}
	_, err = e.SSHKey(ctx, bob, laptop.ID)
	wantCode(t, err, workspace.CodeNotFound)
	wantCode(t, e.DeleteSSHKey(ctx, bob, laptop.ID), workspace.CodeForbidden)
	list, next, err := e.SSHKeys(ctx, ann, postgres.Page{Limit: 1})
	if err != nil || len(list) != 1 || list[0].Name != "desk" || next == "" {
		t.Errorf("%+v %q %v", list, next, err)
	}
	list, next, err = e.SSHKeys(ctx, ann, postgres.Page{Limit: 1, Cursor: next})
	if err != nil || len(list) != 1 || list[0].Name != "laptop" || next != "" {
		t.Errorf("%+v %q %v", list, next, err)
	}

	hashes := [][]byte{hash("laptop"), hash("desk"), hash("unknown")}
	if valid := must(e.ValidSessions(ctx, hashes))(t); len(valid) != 2 {
		t.Errorf("%d keys are valid, want 2", len(valid))
	}
	if err := e.DeleteSSHKey(ctx, ann, laptop.ID); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"ann ssh_key.add", "ann ssh_key.delete"}, e.audited(laptop.ID)); d != "" {
		t.Error(d)
	}
	if valid := must(e.ValidSessions(ctx, hashes))(t); len(valid) != 1 {
		t.Errorf("%d keys are valid after one was removed, want 1", len(valid))
	}
	_, _, err = e.SSHKeyUser(ctx, hash("laptop"))
	wantCode(t, err, workspace.CodeUnauthenticated)

	e.exec(`UPDATE users SET disabled = true`)
	if valid := must(e.ValidSessions(ctx, hashes))(t); len(valid) != 0 {
		t.Errorf("%d keys of a disabled user are valid", len(valid))
	}
	_, _, err = e.SSHKeyUser(ctx, hash("desk"))
	wantCode(t, err, workspace.CodeUnauthenticated)
	_, err = e.AddSSHKey(ctx, ann, postgres.SSHKey{Name: "late", PublicKey: "ssh-ed25519 DDDD", Hash: hash("late")})
	wantCode(t, err, workspace.CodeForbidden)
	e.exec(`UPDATE users SET disabled = false`)

	// An ended session adds no key, and a new password removes all.
	if err := e.CreateSession(ctx, hash("s"), ann.UserID, "", soon(time.Hour), postgres.Client{}); err != nil {
		t.Fatal(err)
	}
	ended := ann
	ended.Session = hex.EncodeToString(hash("s"))
	if err := e.DeleteSession(ctx, hash("s"), netip.Addr{}); err != nil {
		t.Fatal(err)
	}
	_, err = e.AddSSHKey(ctx, ended, postgres.SSHKey{Name: "late", PublicKey: "ssh-ed25519 DDDD", Hash: hash("late")})
	wantCode(t, err, workspace.CodeUnauthenticated)
	if _, err := e.SetPassword(ctx, ann, must(e.User(ctx, ann.UserID))(t).PasswordHash, "new", nil); err != nil {
		t.Fatal(err)
	}
	if list, _, err := e.SSHKeys(ctx, ann, postgres.Page{}); err != nil || len(list) != 0 {
		t.Errorf("after a new password: %+v %v", list, err)
	}
}

func TestExpiredSSHKeys(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{Limits: postgres.Limits{SSHKeys: 1}})
	ctx := t.Context()
	ann, bob := e.user("ann"), e.user("bob")
	until := soon(time.Hour)
	k := postgres.SSHKey{Name: "laptop", PublicKey: "ssh-ed25519 AAAA", Hash: hash("laptop"), ExpiresAt: &until}
	made := must(e.AddSSHKey(ctx, ann, k))(t)
	if made.ExpiresAt == nil || !made.ExpiresAt.Equal(until) {
		t.Errorf("expires at %v, want %v", made.ExpiresAt, until)
	}
	if _, found, err := e.SSHKeyUser(ctx, k.Hash); err != nil || found.ExpiresAt == nil {
		t.Errorf("before it expires: %+v %v", found, err)
	}
	if valid := must(e.ValidSessions(ctx, [][]byte{k.Hash}))(t); len(valid) != 1 {
		t.Error("the key is not valid before it expires")
	}
	_, err := e.AddSSHKey(ctx, bob, k)
	wantCode(t, err, workspace.CodeKeyTaken)

	expire := func() { e.exec(`UPDATE ssh_keys SET expires_at = now()`) }
	expire()
	_, _, err = e.SSHKeyUser(ctx, k.Hash)
	wantCode(t, err, workspace.CodeUnauthenticated)
	if valid := must(e.ValidSessions(ctx, [][]byte{k.Hash}))(t); len(valid) != 0 {
		t.Error("the expired key is valid")
	}
	// The user's own expired keys do not count against the limit.
	must(e.AddSSHKey(ctx, ann, postgres.SSHKey{Name: "desk", PublicKey: "ssh-ed25519 BBBB", Hash: hash("desk")}))(t)
	if list, _, err := e.SSHKeys(ctx, ann, postgres.Page{}); err != nil || len(list) != 1 || list[0].Name != "desk" || list[0].ExpiresAt != nil {
		t.Errorf("%+v %v", list, err)
	}
	// Another user's expired key is no longer that user's.
	e.exec(`DELETE FROM ssh_keys`)
	must(e.AddSSHKey(ctx, bob, k))(t)
	expire()
	again := must(e.AddSSHKey(ctx, ann, k))(t)
	if u, found, err := e.SSHKeyUser(ctx, k.Hash); err != nil || u.ID != ann.UserID || found.ID != again.ID {
		t.Errorf("%+v %+v %v", u, found, err)
	}
}

func TestSSHHostKeyIsMadeOnce(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	first := must(e.SSHHostKey(t.Context()))(t)
	if second := must(e.SSHHostKey(t.Context()))(t); len(first) != 32 || !cmp.Equal(first, second) {
		t.Errorf("%x, then %x", first, second)
	}
}

func TestNamedWorkspace(t *testing.T) {
	t.Parallel()
	e := open(t, postgres.Options{})
	ctx := t.Context()
	ann, bob := e.user("ann"), e.user("bob")
	demo := must(e.CreateWorkspace(ctx, ann, newWorkspace("demo", workspace.DesiredStandby)))(t)
	other := must(e.CreateWorkspace(ctx, bob, newWorkspace("demo", workspace.DesiredStandby)))(t)
	for _, name := range []string{"demo", string(demo.ID)} {
		if id, err := e.NamedWorkspace(ctx, ann, name); err != nil || id != demo.ID {
			t.Errorf("%q: %v %v", name, id, err)
		}
	}
	for _, name := range []string{"", "none", "Demo", string(other.ID), "a\x00b"} {
		_, err := e.NamedWorkspace(ctx, ann, name)
		wantCode(t, err, workspace.CodeNotFound)
	}
	must(e.DeleteWorkspace(ctx, ann, demo.ID, false))(t)
	_, err := e.NamedWorkspace(ctx, ann, "demo")
	wantCode(t, err, workspace.CodeNotFound)
}
