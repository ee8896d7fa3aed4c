package gitidentity_test

import (
	"bytes"
	"encoding/base64"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/runtime/agent"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/pgtest"
	"codehub/internal/users/gitidentity"
	"codehub/internal/users/sealed"
	"codehub/internal/workspace"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

type world struct {
	*fixture.Database
	t    *testing.T
	keys *sealed.Ring
	s    *gitidentity.Service
}

func newWorld(t *testing.T) *world {
	t.Helper()
	keys, err := sealed.OpenOrCreate(filepath.Join(t.TempDir(), "secret.key"))
	if err != nil {
		t.Fatal(err)
	}
	db := fixture.NewDatabase(t, postgres.Options{Sharing: true})
	return &world{db, t, keys, gitidentity.New(db.DB, keys)}
}

func (w *world) of(id workspace.ID) agent.Git {
	w.t.Helper()
	g, err := w.s.Of(w.t.Context(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return g
}

func inside(c workspace.Caller, id workspace.ID) workspace.Caller {
	return workspace.Caller{UserID: c.UserID, Username: c.Username, Only: id, Inside: true}
}

func (w *world) verify(key string, signed api.GitSignature, data string) {
	w.t.Helper()
	public, _, _, _, err := ssh.ParseAuthorizedKey([]byte(key))
	if err != nil {
		w.t.Fatal(err)
	}
	blob, err := base64.StdEncoding.DecodeString(signed.Signature)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := public.Verify([]byte(data), &ssh.Signature{Format: signed.Format, Blob: blob}); err != nil {
		w.t.Error(err)
	}
}

func request(key, data string) api.GitSignatureRequest {
	return api.GitSignatureRequest{PublicKey: key, Data: base64.StdEncoding.EncodeToString([]byte(data))}
}

// The name is the username until the user enters another one. Signing makes a key, which a new one
// replaces. A rotation of the server's keys leaves it.
func TestIdentityAndKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ann := w.AddUser("ann")
	own := w.AddWorkspace(ann, "alpha")
	if g := w.of(own.ID); g != (agent.Git{Name: "ann"}) {
		t.Errorf("at first %+v", g)
	}
	g, err := w.s.Set(t.Context(), ann, api.SetGitIdentity{Name: " Ann Lee ", Email: "ann@example.com"})
	if err != nil || g.Name != "Ann Lee" || g.Email != "ann@example.com" || g.PublicKey != "" {
		t.Fatalf("%+v, %v", g, err)
	}
	if g, err = w.s.Set(t.Context(), ann, api.SetGitIdentity{Name: "ann", SignCommits: true}); err != nil || !strings.HasPrefix(g.PublicKey, "ssh-ed25519 ") || g.KeyMadeAt == nil {
		t.Fatalf("%+v, %v", g, err)
	}
	if got := w.of(own.ID); got != (agent.Git{Name: "ann", Key: g.PublicKey, Sign: true}) {
		t.Errorf("%+v", got)
	}
	signed, err := w.s.Sign(t.Context(), inside(ann, own.ID), request(g.PublicKey, "data"))
	if err != nil {
		t.Fatal(err)
	}
	w.verify(g.PublicKey, signed, "data")
	if again, err := w.s.Set(t.Context(), ann, api.SetGitIdentity{SignCommits: true}); err != nil || again.PublicKey != g.PublicKey {
		t.Errorf("%+v, %v", again, err)
	}
	next, err := w.s.NewKey(t.Context(), ann)
	if err != nil || next.PublicKey == g.PublicKey || !next.SignCommits {
		t.Fatalf("%+v, %v", next, err)
	}
	if _, err := w.s.Sign(t.Context(), inside(ann, own.ID), request(g.PublicKey, "data")); workspace.CodeOf(err) != workspace.CodeNotFound {
		t.Errorf("the former key: %v", err)
	}
	if _, err := w.keys.Add(); err != nil {
		t.Fatal(err)
	}
	resealed := 0
	err = w.DB.SealedValues(t.Context(), func(v postgres.SealedValue) error {
		plain, err := w.keys.Open(v.Value, v.Owner)
		if err != nil {
			return err
		}
		if bytes.Contains(v.Value, plain) {
			t.Error("the database has the key as it is")
		}
		again, err := w.keys.Seal(plain, v.Owner)
		if err != nil {
			return err
		}
		done, err := w.DB.Reseal(t.Context(), v, again)
		if done {
			resealed++
		}
		return err
	})
	if err != nil || resealed != 1 {
		t.Errorf("%d values were sealed again, %v", resealed, err)
	}
	if signed, err = w.s.Sign(t.Context(), inside(ann, own.ID), request(next.PublicKey, "later")); err != nil {
		t.Fatal(err)
	}
	w.verify(next.PublicKey, signed, "later")
	if got := fixture.Query[string](w.Database, `SELECT string_agg(action, ' ' ORDER BY id) FROM audit_log WHERE action LIKE 'git.%'`); got != "git.identity git.key git.identity git.identity git.key" {
		t.Errorf("the audit log has %s", got)
	}
}

// Only the workspace has something signed, and only with its owner's key.
func TestOthersDoNotSign(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ann, ben := w.AddUser("ann"), w.AddUser("ben")
	own := w.AddWorkspace(ann, "alpha")
	g, err := w.s.NewKey(t.Context(), ann)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		caller workspace.Caller
		in     api.GitSignatureRequest
		want   workspace.Code
	}{
		"the owner by a token":    {ann, request(g.PublicKey, "x"), workspace.CodeForbidden},
		"another owner":           {inside(ben, own.ID), request(g.PublicKey, "x"), workspace.CodeNotFound},
		"too long":                {inside(ann, own.ID), request(g.PublicKey, strings.Repeat("x", agent.MaxSignedData+1)), workspace.CodeInvalid},
		"nothing":                 {inside(ann, own.ID), request(g.PublicKey, ""), workspace.CodeInvalid},
		"what is not base64":      {inside(ann, own.ID), api.GitSignatureRequest{PublicKey: g.PublicKey, Data: "?"}, workspace.CodeInvalid},
		"a key that is not there": {inside(ann, own.ID), request("ssh-ed25519 AAAA", "x"), workspace.CodeNotFound},
	} {
		if _, err := w.s.Sign(t.Context(), test.caller, test.in); workspace.CodeOf(err) != test.want {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, in := range []api.SetGitIdentity{{Name: "a\nb"}, {Name: "a <b>"}, {Name: strings.Repeat("x", 256)}, {Email: "ann"}, {Email: "a b@c"}, {Email: "a@b@c"}, {Email: "@c"}, {Email: "a@b\nc"}} {
		if _, err := w.s.Set(t.Context(), ann, in); workspace.CodeOf(err) != workspace.CodeInvalid {
			t.Errorf("%+v: %v", in, err)
		}
	}
	w.Exec(`UPDATE users SET disabled = true WHERE username = 'ann'`)
	if _, err := w.s.Sign(t.Context(), inside(ann, own.ID), request(g.PublicKey, "x")); workspace.CodeOf(err) != workspace.CodeNotFound {
		t.Errorf("of a disabled user: %v", err)
	}
}

// While a workspace is shared for use, its programs may be those of a guest: the key is neither
// offered nor used, unless the owner has allowed it.
func TestGuestsDoNotUseTheKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ann := w.AddUser("ann")
	w.AddUser("ben")
	own, other := w.AddWorkspace(ann, "alpha"), w.AddWorkspace(ann, "beta")
	g, err := w.s.Set(t.Context(), ann, api.SetGitIdentity{SignCommits: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		access workspace.Access
		git    bool
		want   bool
	}{{workspace.AccessView, false, true}, {workspace.AccessUse, false, false}, {workspace.AccessUse, true, true}} {
		if _, err := w.DB.Share(t.Context(), ann, own.ID, postgres.NewShare{User: "ben", Access: test.access}); err != nil {
			t.Fatal(err)
		}
		w.Exec(`UPDATE workspace_shares SET git = $1`, test.git)
		got := w.of(own.ID)
		_, err := w.s.Sign(t.Context(), inside(ann, own.ID), request(g.PublicKey, "x"))
		if offered := got.Key == g.PublicKey && got.Sign && got.Refused == ""; offered != test.want || (err == nil) != test.want || got.Name != "ann" {
			t.Errorf("%+v: %+v, %v", test, got, err)
		}
		if !test.want && (workspace.CodeOf(err) != workspace.CodeForbidden || got.Key != "" || got.Refused == "") {
			t.Errorf("%+v: %+v, %v", test, got, err)
		}
	}
	if _, err := w.s.Sign(t.Context(), inside(ann, other.ID), request(g.PublicKey, "x")); err != nil {
		t.Errorf("in another workspace: %v", err)
	}
}

func TestWithoutServersKey(t *testing.T) {
	t.Parallel()
	db := fixture.NewDatabase(t, postgres.Options{})
	ann := db.AddUser("ann")
	none, err := sealed.Open("")
	if err != nil {
		t.Fatal(err)
	}
	s := gitidentity.New(db.DB, none)
	if g, err := s.Set(t.Context(), ann, api.SetGitIdentity{Email: "ann@example.com"}); err != nil || g.Email != "ann@example.com" {
		t.Errorf("%+v, %v", g, err)
	}
	if _, err := s.NewKey(t.Context(), ann); workspace.CodeOf(err) != workspace.CodeNotSupported {
		t.Error(err)
	}
	if _, err := s.Set(t.Context(), ann, api.SetGitIdentity{SignCommits: true}); workspace.CodeOf(err) != workspace.CodeNotSupported {
		t.Error(err)
	}
}

// Without an own entry, an identity provider's name and address count. What a form sends back as it
// was leaves them.
func TestIdentityOfProvider(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ann := w.AddUser("ann")
	own := w.AddWorkspace(ann, "alpha")
	w.Exec(`INSERT INTO user_identities (id, user_id, issuer, subject, full_name, email) VALUES (gen_random_uuid(), $1, 'https://one', '1', 'One', ''), (gen_random_uuid(), $1, 'https://two', '2', 'Ann Lee', 'ann@example.com')`, ann.UserID)
	if g := w.of(own.ID); g != (agent.Git{Name: "Ann Lee", Email: "ann@example.com"}) {
		t.Errorf("%+v", g)
	}
	if _, err := w.s.Set(t.Context(), ann, api.SetGitIdentity{Name: "Ann Lee", Email: "other@example.com"}); err != nil {
		t.Fatal(err)
	}
	w.Exec(`UPDATE user_identities SET full_name = 'Ann Kim', email = 'kim@example.com' WHERE subject = '2'`)
	if g := w.of(own.ID); g != (agent.Git{Name: "Ann Kim", Email: "other@example.com"}) {
		t.Errorf("%+v", g)
	}
	if g, err := w.s.Set(t.Context(), ann, api.SetGitIdentity{}); err != nil || g.Name != "Ann Kim" || g.Email != "kim@example.com" {
		t.Errorf("%+v, %v", g, err)
	}
	w.Exec(`UPDATE user_identities SET active = false`)
	if g := w.of(own.ID); g != (agent.Git{Name: "ann"}) {
		t.Errorf("%+v", g)
	}
}
