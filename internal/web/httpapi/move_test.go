package httpapi

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"codehub/api"
	"codehub/internal/archive"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

// moving is an environment in which ann administers and eve has an archived workspace.
type moving struct {
	*archived
	token with   // ann's
	at    string // the path of eve's workspace
}

func newMoving(t *testing.T) *moving {
	t.Helper()
	m := &moving{archived: newArchived(t, "work", 100_000)}
	m.boss()
	m.Change(`UPDATE workspaces SET owner_user_id = $1`, m.eve.User.ID)
	// The owner's variables are cleared with another owner.
	m.Change(`UPDATE workspaces SET phase = 'ARCHIVED', desired_state = 'ARCHIVED', env = '{"SECRET": "s3cret"}', memo = 'notes'`)
	meta := &archive.Meta{
		Format: archive.Format, CodehubVersion: "test", WorkspaceID: string(m.ws.ID), WorkspaceName: "work", Owner: "eve", ArchiveOpID: "op",
		CreatedAt: time.Now().UTC().Truncate(time.Second), Entries: 3, Bytes: 5, Skipped: 1, Size: int64(len(m.content)), SHA256: m.digest,
	}
	encoded, err := meta.Encode()
	if err != nil {
		t.Fatal(err)
	}
	m.bucket.set(func(f *fakeBucket) { f.objects[archive.MetaKey(archivedKey)] = encoded })
	_, secret, err := m.Auth.CreateToken(t.Context(), auth.Identity{Caller: m.ann.Caller}, "move", nil, auth.TokenLimits{})
	if err != nil {
		t.Fatal(err)
	}
	m.token, m.at = header(api.TokenHeader, secret), "/admin/move/workspaces/"+string(m.ws.ID)
	return m
}

func (m *moving) allow(d time.Duration) {
	m.t.Helper()
	if _, err := m.DB.AllowMoves(m.t.Context(), d); err != nil {
		m.t.Fatal(err)
	}
}

// version reads the current version of eve's workspace.
func (m *moving) version() string {
	m.t.Helper()
	ws := read[api.MoveWorkspace](m.t, m.want(200, "", "GET", m.at, "", m.token))
	if ws.Version == nil {
		m.t.Fatalf("no version: %+v", ws)
	}
	return *ws.Version
}

func (m *moving) audited(action string) int {
	m.t.Helper()
	return fixture.Query[int](m, `SELECT count(*) FROM audit_log WHERE action = $1 AND username = 'ann' AND token_id IS NOT NULL AND target = $2`, action, m.ws.ID)
}

// Administrator access alone reads no home: moves must be allowed on the machine, and a
// browser's session does not suffice.
func TestMoveIsRefused(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	_, secret, err := m.Auth.CreateToken(t.Context(), auth.Identity{Caller: m.eve.Caller}, "own", nil, auth.TokenLimits{})
	if err != nil {
		t.Fatal(err)
	}
	before := m.dump()
	refused := func(when string, callers map[string]with) {
		t.Helper()
		for _, rt := range testServer().routes() {
			if !strings.HasPrefix(rt.path, "/admin/move/") {
				continue
			}
			path := strings.Replace(rt.path, "{id}", string(m.ws.ID), 1)
			if len(rt.query) == 1 {
				path += "?version=x"
			}
			for who, w := range callers {
				a := m.do(rt.method, Prefix+path, "", w)
				if a.status != http.StatusForbidden || a.code() != "forbidden" || strings.Contains(a.body, "s3cret") {
					t.Errorf("%s, %s %s by %s: %d %s", when, rt.method, rt.path, who, a.status, a.body)
				}
			}
		}
	}
	all := map[string]with{"the administrator's token": m.token, "the administrator's session": as(m.ann), "the owner's token": header(api.TokenHeader, secret), "the owner": as(m.eve)}
	refused("never allowed", all)
	m.allow(time.Hour)
	delete(all, "the administrator's token")
	refused("allowed", all)
	all["the administrator's token"] = m.token
	m.Change(`UPDATE installation SET moves_until = clock_timestamp() - interval '1 second'`)
	refused("no longer allowed", all)
	m.allow(time.Hour)
	m.allow(0)
	refused("ended", all)
	m.allow(time.Hour)
	m.Change(`UPDATE gc_state SET hold = 'restored', hold_since = now()`)
	refused("on hold", all)
	if a := m.do("GET", Prefix+m.at, "", m.token); !strings.Contains(a.body, "codehub reconcile-restore") {
		t.Errorf("on hold: %s", a.body)
	}
	m.Change(`UPDATE gc_state SET hold = NULL, hold_since = NULL`)
	m.Change(`UPDATE users SET admin = false WHERE username = 'ann'`)
	refused("demoted", map[string]with{"the former administrator's token": m.token, "the former administrator's session": as(m.ann)})
	m.Change(`UPDATE users SET admin = true, disabled = true WHERE username = 'ann'`)
	// The authentication remembers a token for a moment, and then refuses it.
	if a := m.do("GET", Prefix+m.at+"/record", "", m.token); a.status != http.StatusUnauthorized && a.status != http.StatusForbidden {
		t.Errorf("disabled: %d %s", a.status, a.body)
	}
	caller := m.ann.Caller
	caller.Token = uuid.NewString()
	if _, err := m.DB.ReadToMove(t.Context(), caller, m.ws.ID); workspace.CodeOf(err) != workspace.CodeForbidden {
		t.Errorf("disabled: %v", err)
	}
	m.Change(`UPDATE users SET disabled = false WHERE username = 'ann'`)
	m.allow(0)
	if after := m.dump(); after != before {
		t.Errorf("refused requests changed something:\n%s\n\n%s", before, after)
	}
	if s := read[api.MoveSource](t, m.want(200, "", "GET", "/admin/move", "", as(m.ann))); s.OpenUntil != nil || s.Installation == "" {
		t.Errorf("%+v", s)
	}
	if n := fixture.Query[int](m, `SELECT count(*) FROM audit_log WHERE action LIKE 'workspace.move%'`); n != 0 {
		t.Errorf("%d audit entries", n)
	}
}

func TestMoveReadsAndRecords(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	m.allow(time.Hour)
	list := m.want(200, "", "GET", "/admin/move/workspaces", "", m.token)
	l := read[api.MoveWorkspaceList](t, list)
	if len(l.Workspaces) != 1 || l.Workspaces[0].Name != "work" || l.Workspaces[0].OwnerID != m.eve.User.ID || l.Workspaces[0].Version == nil {
		t.Errorf("%+v", l)
	}
	for _, text := range []string{"s3cret", "notes"} {
		if strings.Contains(list.body, text) {
			t.Errorf("the list has %q", text)
		}
	}
	if m.audited("workspace.move_read") != 0 {
		t.Error("a list counts as reading a workspace")
	}
	r := read[api.MoveRecord](t, m.want(200, "", "GET", m.at+"/record", "", m.token))
	if r.Env["SECRET"] != "s3cret" || r.Memo != "notes" || r.Version != *l.Workspaces[0].Version ||
		r.Archive.Digest != m.digest || r.Archive.Size != int64(len(m.content)) || r.Archive.Bytes != 5 || r.Archive.Entries != 3 || r.Archive.Skipped != 1 {
		t.Errorf("%+v", r)
	}
	if m.audited("workspace.move_read") != 1 {
		t.Error("the audit log does not have the read")
	}
	m.want(409, "operation_in_progress", "GET", m.at+"/archive", "", m.token)
	m.want(409, "operation_in_progress", "DELETE", m.at, "", m.token)
	m.want(409, "operation_in_progress", "GET", m.at+"/archive?version=other", "", m.token)
	if m.audited("workspace.move_fetch") != 0 {
		t.Error("a refused download is recorded")
	}
	whole := m.do("GET", Prefix+m.at+"/archive?version="+r.Version, "", m.token)
	part := m.do("GET", Prefix+m.at+"/archive?version="+r.Version, "", m.token, header("Range", "bytes=90000-"), header("If-Range", whole.header.Get("ETag")))
	if whole.status != 200 || whole.body != string(m.content) || part.status != 206 || part.body != string(m.content[90000:]) {
		t.Errorf("%d with %d bytes, %d with %d bytes", whole.status, len(whole.body), part.status, len(part.body))
	}
	if m.audited("workspace.move_fetch") != 2 {
		t.Error("the audit log does not have both downloads")
	}
	if n := fixture.Query[int](m, `SELECT count(*) FROM audit_log WHERE details::text LIKE '%s3cret%'`); n != 0 {
		t.Error("the audit log has the value of a variable")
	}
	m.want(404, "not_found", "GET", "/admin/move/workspaces/unknown", "", m.token)
	m.bucket.set(func(f *fakeBucket) { f.objects[archive.MetaKey(archivedKey)] = []byte("{}") })
	m.want(404, "archive_not_found", "GET", m.at+"/record", "", m.token)
}

// A workspace that its owner has started or changed since is neither read nor deleted.
func TestMoveNoticesChanges(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	m.allow(time.Hour)
	version := m.version()
	for _, changed := range []string{
		`UPDATE workspaces SET desired_state = 'RUNNING'`,
		`UPDATE workspaces SET next_desired_state = 'RUNNING'`,
		`UPDATE workspaces SET operation = 'RESTORING', op_id = gen_random_uuid(), op_started_at = now()`,
		`UPDATE workspaces SET phase = 'STANDBY'`,
		`UPDATE workspaces SET env = '{"SECRET": "changed"}'`,
		`UPDATE workspaces SET archive_op_id = gen_random_uuid()`,
	} {
		before := m.dump()
		m.Change(changed)
		m.want(409, "operation_in_progress", "GET", m.at+"/archive?version="+version, "", m.token)
		m.want(409, "operation_in_progress", "DELETE", m.at+"?version="+version, "", m.token)
		m.Change(`UPDATE workspaces SET desired_state = 'ARCHIVED', next_desired_state = NULL, operation = 'NONE', op_id = NULL, op_started_at = NULL,
			phase = 'ARCHIVED', env = '{"SECRET": "s3cret"}', archive_op_id = NULL`)
		if m.version() != version {
			t.Errorf("%s: not undone\n%s\n%s", changed, before, m.dump())
		}
	}
	m.want(202, "", "DELETE", m.at+"?version="+version, "", m.token)
	if m.audited("workspace.delete") != 1 || !fixture.Query[bool](m, `SELECT (details->>'move')::bool FROM audit_log WHERE action = 'workspace.delete'`) {
		t.Error("the audit log does not name the administrator")
	}
	m.want(404, "not_found", "GET", m.at, "", m.token)
	m.want(404, "not_found", "DELETE", m.at+"?version="+version, "", m.token)
	m.want(200, "", "POST", "/workspaces/"+string(m.ws.ID)+"/undelete", "", as(m.eve))
}

func TestMoveRequestsArchiving(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	m.allow(time.Hour)
	m.Change(`UPDATE workspaces SET phase = 'RUNNING', desired_state = 'RUNNING'`)
	ws := read[api.MoveWorkspace](t, m.want(202, "", "POST", m.at+"/archive", "", m.token))
	if ws.DesiredState != "ARCHIVED" || ws.Version != nil || m.audited("workspace.desired_state") != 1 ||
		!fixture.Query[bool](m, `SELECT (details->>'move')::bool FROM audit_log WHERE action = 'workspace.desired_state'`) {
		t.Errorf("%+v", ws)
	}
	m.Change(`UPDATE workspaces SET phase = 'STANDBY', desired_state = 'RUNNING', operation = 'STARTING', op_id = gen_random_uuid(), op_started_at = now()`)
	ws = read[api.MoveWorkspace](t, m.want(202, "", "POST", m.at+"/archive", "", m.token))
	if ws.NextDesiredState == nil || *ws.NextDesiredState != "ARCHIVED" {
		t.Errorf("%+v", ws)
	}
	m.Change(`UPDATE workspaces SET phase = 'ERROR', operation = 'NONE', op_id = NULL, error_reason = 'Timeout'`)
	m.want(409, "recovery_required", "POST", m.at+"/archive", "", m.token)
}
