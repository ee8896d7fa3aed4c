package secrets_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/runtime/agent"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/pgtest"
	"codehub/internal/users/sealed"
	"codehub/internal/users/secrets"
	"codehub/internal/workspace"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

type env struct {
	*testing.T
	*fixture.Database
	keys *sealed.Ring
	*secrets.Service
}

func open(t *testing.T) *env {
	t.Helper()
	keys, err := sealed.OpenOrCreate(filepath.Join(t.TempDir(), "secret.key"))
	if err != nil {
		t.Fatal(err)
	}
	d := fixture.NewDatabase(t, postgres.Options{})
	return &env{t, d, keys, secrets.New(d.DB, keys)}
}

func (e *env) user(name string) workspace.Caller { e.T.Helper(); return e.AddUser(name) }

func (e *env) create(c workspace.Caller, in api.CreateSecret) api.Secret {
	e.T.Helper()
	s, err := e.Create(e.T.Context(), c, in)
	if err != nil {
		e.Fatal(err)
	}
	return s
}

// sealedValue is what the database has of a secret.
func (e *env) sealedValue(id string) []byte {
	e.T.Helper()
	return fixture.Query[[]byte](e.Database, `SELECT value FROM secrets WHERE id = $1`, id)
}

// A value is in the database encrypted alone, and opens for its own row and owner.
func TestValueIsSealedForItsOwner(t *testing.T) {
	t.Parallel()
	e := open(t)
	ann, bob := e.user("ann"), e.user("bob")
	value := "line one\nhunter2\n"
	s := e.create(ann, api.CreateSecret{Name: "npm", Value: value, Env: "NPM_TOKEN", File: "~/./.npmrc"})
	if s.File != "~/.npmrc" || s.Size != len(value) || !s.Manages || s.WorkspaceID != nil || s.GroupID != nil {
		t.Errorf("%+v", s)
	}
	if b, _ := json.Marshal(s); bytes.Contains(b, []byte("hunter2")) {
		t.Errorf("the value comes back: %s", b)
	}
	stored := e.sealedValue(s.ID)
	if dump := fixture.Query[string](e.Database, `SELECT concat((SELECT string_agg(s::text, '') FROM secrets s), (SELECT string_agg(a::text, '') FROM audit_log a))`); strings.Contains(dump, "hunter2") || !strings.Contains(dump, "secret.create") {
		t.Errorf("%s", dump)
	}
	if plain, err := e.keys.Open(stored, postgres.SecretOwner(s.ID, ann.UserID)); err != nil || string(plain) != value {
		t.Errorf("%q, %v", plain, err)
	}
	if plain, err := e.keys.Open(stored, postgres.SecretOwner(s.ID, bob.UserID)); err == nil {
		t.Errorf("opened for another user: %q", plain)
	}
}

func TestWhoMayChangeSecrets(t *testing.T) {
	t.Parallel()
	e := open(t)
	ctx := t.Context()
	ann, bob, boss := e.user("ann"), e.user("bob"), e.user("boss")
	e.Exec(`UPDATE users SET admin = true WHERE id = $1`, boss.UserID)
	boss.Admin = true
	own := e.create(ann, api.CreateSecret{Name: "own", Value: "x", Env: "OWN"})
	g, err := e.DB.CreateGroup(ctx, boss, postgres.Group{Name: "team"})
	if err != nil {
		t.Fatal(err)
	}
	yes, no := true, false
	if _, err := e.DB.SetMember(ctx, boss, g.ID, "ann", &no); err != nil {
		t.Fatal(err)
	}
	if _, err := e.DB.SetMember(ctx, boss, g.ID, "bob", &yes); err != nil {
		t.Fatal(err)
	}
	if _, err := e.CreateGroup(ctx, ann, g.ID, api.CreateSecret{Name: "no", Value: "x", Env: "NO"}); workspace.CodeOf(err) != workspace.CodeForbidden {
		t.Errorf("a member stored a secret of the group: %v", err)
	}
	if _, err := e.CreateGroup(ctx, bob, g.ID, api.CreateSecret{Name: "no", Value: "x", Env: "NO"}); workspace.CodeOf(err) != workspace.CodeForbidden {
		t.Errorf("the group's administrator stored a secret of it: %v", err)
	}
	of, err := e.CreateGroup(ctx, boss, g.ID, api.CreateSecret{Name: "team", Value: "shared", Env: "TEAM"})
	if err != nil || of.GroupName != "team" {
		t.Fatal(of, err)
	}
	value := "y"
	for _, c := range []struct {
		who  workspace.Caller
		id   string
		want workspace.Code
	}{{bob, own.ID, workspace.CodeNotFound}, {boss, own.ID, workspace.CodeNotFound}, {ann, of.ID, workspace.CodeForbidden}, {boss, of.ID, ""}, {bob, of.ID, workspace.CodeForbidden}, {ann, own.ID, ""}} {
		if _, err := e.Update(ctx, c.who, c.id, api.UpdateSecret{Value: &value}); workspace.CodeOf(err) != c.want {
			t.Errorf("%s changes %s: %v", c.who.Username, c.id, err)
		}
	}
	list, err := e.List(ctx, ann)
	if err != nil || len(list.Secrets) != 2 || list.Secrets[0].ID != own.ID || list.Secrets[1].ID != of.ID || list.Secrets[1].Manages {
		t.Errorf("%+v, %v", list, err)
	}
	for _, who := range []workspace.Caller{ann, bob} {
		if err := e.Delete(ctx, who, of.ID); workspace.CodeOf(err) != workspace.CodeForbidden {
			t.Errorf("%v", err)
		}
	}
	if err := e.Delete(ctx, boss, own.ID); workspace.CodeOf(err) != workspace.CodeNotFound {
		t.Errorf("%v", err)
	}
	if err := e.Delete(ctx, boss, of.ID); err != nil {
		t.Error(err)
	}
	// The account's secrets end with it.
	if err := e.DB.DeleteAccount(ctx, boss, ann.UserID, postgres.Removal{}); err != nil {
		t.Fatal(err)
	}
	if n := fixture.Query[int](e.Database, `SELECT count(*)::int FROM secrets`); n != 0 {
		t.Errorf("%d secrets are left", n)
	}
}

func TestRefusedSecrets(t *testing.T) {
	t.Parallel()
	e := open(t)
	ann := e.user("ann")
	e.create(ann, api.CreateSecret{Name: "first", Value: "x", Env: "FIRST", File: "~/first"})
	for name, c := range map[string]struct {
		in    api.CreateSecret
		code  workspace.Code
		field string
	}{
		"name":           {api.CreateSecret{Name: "no space", Value: "x", Env: "A"}, workspace.CodeInvalid, "name"},
		"no target":      {api.CreateSecret{Name: "a", Value: "x"}, workspace.CodeInvalid, "env"},
		"bad variable":   {api.CreateSecret{Name: "a", Value: "x", Env: "1A"}, workspace.CodeInvalid, "env"},
		"both":           {api.CreateSecret{Name: "a", Value: "x", Env: "A", Template: "api", WorkspaceID: "00000000-0000-0000-0000-000000000001"}, workspace.CodeInvalid, "template"},
		"bad template":   {api.CreateSecret{Name: "a", Value: "x", Env: "A", Template: "A b"}, workspace.CodeInvalid, "template"},
		"reserved":       {api.CreateSecret{Name: "a", Value: "x", Env: "PATH"}, workspace.CodeInvalid, "env"},
		"ours":           {api.CreateSecret{Name: "a", Value: "x", Env: "CODEHUB_TOKEN"}, workspace.CodeInvalid, "env"},
		"empty":          {api.CreateSecret{Name: "a", Env: "A"}, workspace.CodeInvalid, "value"},
		"long":           {api.CreateSecret{Name: "a", Value: strings.Repeat("x", 64<<10+1), File: "~/a"}, workspace.CodeInvalid, "value"},
		"control":        {api.CreateSecret{Name: "a", Value: "a\x00b", Env: "A"}, workspace.CodeInvalid, "env"},
		"encoding":       {api.CreateSecret{Name: "a", Value: "x", Encoding: "rot13", File: "~/a"}, workspace.CodeInvalid, "encoding"},
		"not base64":     {api.CreateSecret{Name: "a", Value: "?", Encoding: "base64", File: "~/a"}, workspace.CodeInvalid, "value"},
		"outside":        {api.CreateSecret{Name: "a", Value: "x", File: "/etc/passwd"}, workspace.CodeInvalid, "file"},
		"upwards":        {api.CreateSecret{Name: "a", Value: "x", File: "~/../x"}, workspace.CodeInvalid, "file"},
		"home":           {api.CreateSecret{Name: "a", Value: "x", File: "~/"}, workspace.CodeInvalid, "file"},
		"folder":         {api.CreateSecret{Name: "a", Value: "x", File: "~/a/"}, workspace.CodeInvalid, "file"},
		"line break":     {api.CreateSecret{Name: "a", Value: "x", File: "~/a\nb"}, workspace.CodeInvalid, "file"},
		"name taken":     {api.CreateSecret{Name: "first", Value: "x", Env: "A"}, workspace.CodeNameTaken, "name"},
		"variable taken": {api.CreateSecret{Name: "a", Value: "x", Env: "FIRST"}, workspace.CodeNameTaken, "env"},
		"file taken":     {api.CreateSecret{Name: "a", Value: "x", File: "~/first"}, workspace.CodeNameTaken, "file"},
		"no workspace":   {api.CreateSecret{Name: "a", Value: "x", Env: "A", WorkspaceID: "019a0000-0000-7000-8000-000000000001"}, workspace.CodeNotFound, ""},
	} {
		_, err := e.Create(t.Context(), ann, c.in)
		var coded *workspace.Error
		if !errors.As(err, &coded) || coded.Code != c.code {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if field, _ := coded.Details["field"].(string); field != c.field {
			t.Errorf("%s: the field is %q in %v", name, field, err)
		}
	}
	none := secrets.New(e.DB, &sealed.Ring{})
	if _, err := none.Create(t.Context(), ann, api.CreateSecret{Name: "a", Value: "x", Env: "A"}); workspace.CodeOf(err) != workspace.CodeNotSupported || !strings.Contains(err.Error(), "CODEHUB_SECRET_KEY_FILE") {
		t.Errorf("without keys: %v", err)
	}
}

func TestLimitsOfSecrets(t *testing.T) {
	t.Parallel()
	e := open(t)
	ann := e.user("ann")
	for i := range 4 {
		e.create(ann, api.CreateSecret{Name: fmt.Sprint("long-", i), Value: strings.Repeat("x", 64<<10), Env: fmt.Sprint("LONG_", i)})
	}
	if _, err := e.Create(t.Context(), ann, api.CreateSecret{Name: "one-more", Value: "x", Env: "ONE_MORE"}); workspace.CodeOf(err) != workspace.CodeQuotaExceeded {
		t.Errorf("more than 256 KiB of variables: %v", err)
	}
	for i := range 28 {
		e.create(ann, api.CreateSecret{Name: fmt.Sprint("large-", i), Value: strings.Repeat("x", 64<<10), File: fmt.Sprint("~/large-", i)})
	}
	if _, err := e.Create(t.Context(), ann, api.CreateSecret{Name: "one-more", Value: "x", File: "~/one-more"}); workspace.CodeOf(err) != workspace.CodeQuotaExceeded {
		t.Errorf("more than 2 MiB: %v", err)
	}
	e.Exec(`DELETE FROM secrets WHERE name LIKE 'large-%'`)
	for i := range 96 {
		e.create(ann, api.CreateSecret{Name: fmt.Sprint("file-", i), Value: "x", File: fmt.Sprint("~/file-", i)})
	}
	if _, err := e.Create(t.Context(), ann, api.CreateSecret{Name: "one-more", Value: "x", File: "~/one-more"}); workspace.CodeOf(err) != workspace.CodeQuotaExceeded {
		t.Errorf("more than 100 secrets: %v", err)
	}
}

// A binary value is a file alone: a variable is text.
func TestBinaryValue(t *testing.T) {
	t.Parallel()
	e := open(t)
	ann := e.user("ann")
	in := api.CreateSecret{Name: "store", Value: "AP8B", Encoding: api.Base64, File: "~/key store.p12"}
	s := e.create(ann, in)
	if plain, err := e.keys.Open(e.sealedValue(s.ID), postgres.SecretOwner(s.ID, ann.UserID)); err != nil || string(plain) != "\x00\xff\x01" || s.Size != 3 {
		t.Errorf("%q, %v", plain, err)
	}
	variable := "STORE"
	if _, err := e.Update(t.Context(), ann, s.ID, api.UpdateSecret{Env: &variable}); workspace.CodeOf(err) != workspace.CodeInvalid {
		t.Errorf("%v", err)
	}
}

// A workspace gets its owner's secrets and those of the owner's groups. The closer one counts, and
// one that cannot be decrypted does not prevent the start.
func TestDeliver(t *testing.T) {
	t.Parallel()
	e := open(t)
	ctx := t.Context()
	ann, bob, boss := e.user("ann"), e.user("bob"), e.user("boss")
	e.Exec(`UPDATE users SET admin = true WHERE id = $1`, boss.UserID)
	g, err := e.DB.CreateGroup(ctx, boss, postgres.Group{Name: "team"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.DB.SetMember(ctx, boss, g.ID, "ann", nil); err != nil {
		t.Fatal(err)
	}
	shop, other := e.AddWorkspace(ann, "shop"), e.AddWorkspace(ann, "other")
	if _, err := e.CreateGroup(ctx, boss, g.ID, api.CreateSecret{Name: "team", Value: "of the team", Env: "TOKEN", File: "~/.team"}); err != nil {
		t.Fatal(err)
	}
	e.create(ann, api.CreateSecret{Name: "all", Value: "for all\n\n", Env: "TOKEN", File: "~/.all"})
	e.create(ann, api.CreateSecret{Name: "one", Value: "for one", Env: "TOKEN", WorkspaceID: string(shop.ID)})
	e.create(bob, api.CreateSecret{Name: "bob", Value: "of bob", Env: "BOB"})
	deliver := func(w workspace.Workspace) (out agent.Setup) {
		t.Helper()
		if err := e.Deliver(ctx, w, &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	files := func(s agent.Setup) string {
		out := ""
		for _, f := range s.Files {
			out += fmt.Sprintf("%s=%q ", f.Path, f.Content)
		}
		return out
	}
	if s := deliver(shop); s.Env["TOKEN"] != "for one" || len(s.Env) != 1 || files(s) != `.all="for all\n\n" .team="of the team" ` || len(s.Steps) != 0 {
		t.Errorf("%v %s %v", s.Env, files(s), s.Steps)
	}
	if s := deliver(other); s.Env["TOKEN"] != "for all" || len(s.Env) != 1 || files(s) != `.all="for all\n\n" .team="of the team" ` {
		t.Errorf("%v %s", s.Env, files(s))
	}
	if s := deliver(e.AddWorkspace(bob, "bobs")); s.Env["BOB"] != "of bob" || len(s.Files) != 0 {
		t.Errorf("%v %s", s.Env, files(s))
	}
	if s := deliver(e.AddWorkspace(boss, "boss")); !s.Empty() {
		t.Errorf("%+v", s)
	}
	// Of a template, which the workspace is of.
	e.Exec(`UPDATE workspaces SET template = '{"name": "api", "version": "1", "settings": {"image": "x"}}' WHERE id = ANY ($1)`, []string{string(other.ID), string(shop.ID)})
	for _, in := range []api.CreateSecret{{Name: "api", Value: "for api", Env: "TOKEN", Template: "api"}, {Name: "web", Value: "for web", Env: "TOKEN", Template: "web"}} {
		e.create(ann, in)
	}
	if _, err := e.CreateGroup(ctx, boss, g.ID, api.CreateSecret{Name: "api", Value: "of the team for api", Env: "TEAM", Template: "api"}); err != nil {
		t.Fatal(err)
	}
	if s := deliver(other); s.Env["TOKEN"] != "for api" || s.Env["TEAM"] != "of the team for api" {
		t.Errorf("of the template: %v", s.Env)
	}
	if s := deliver(shop); s.Env["TOKEN"] != "for one" {
		t.Errorf("of the template and the workspace: %v", s.Env)
	}
	if s := deliver(e.AddWorkspace(ann, "plain")); s.Env["TOKEN"] != "for all" || s.Env["TEAM"] != "" {
		t.Errorf("without a template: %v", s.Env)
	}
	e.Exec(`DELETE FROM secrets WHERE template IS NOT NULL`)

	// A copy of the value in another row, which the key opens for its own row alone.
	e.Exec(`UPDATE secrets SET value = (SELECT value FROM secrets WHERE name = 'bob') WHERE name = 'one'`)
	if s := deliver(shop); s.Env["TOKEN"] != "for all" || len(s.Steps) != 1 || !strings.Contains(s.Steps[0].Fail, "The secret one cannot be decrypted") {
		t.Errorf("%v %v", s.Env, s.Steps)
	}
	if _, err := e.DB.RemoveMember(ctx, boss, g.ID, ann.UserID); err != nil {
		t.Fatal(err)
	}
	if s := deliver(shop); strings.Contains(files(s), ".team") {
		t.Errorf("a former member gets %s", files(s))
	}
}
