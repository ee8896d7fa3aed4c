package dashboard

import (
	"net/http"
	"net/url"
	"testing"

	"codehub/internal/workspace"
)

// A user whose homes and archives are as large as they may be reads the figures.
func TestLimitOfBytesIsExplained(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", standby)
	w.Exec(`UPDATE users SET max_bytes = 2147483648`)
	w.Exec(`UPDATE workspaces SET home_bytes = 3758096384`)
	const text = "Your workspaces use 3.5 GiB of at most 2 GiB."
	contains(t, "the dialog", b.get("/workspaces/new", "HX-Request", "true").body, text)
	contains(t, "a start", b.htmx("/workspaces/"+string(id)+"/start", url.Values{}).body, text)
	a := b.htmx("/workspaces", url.Values{"name": {"more"}, "start": {"on"}})
	contains(t, "a new workspace", a.body, text)
	if a.status != http.StatusUnprocessableEntity {
		t.Errorf("a new workspace: %d", a.status)
	}

	// The pages of a stopped workspace say so too, to which the proxy sends a user who opens it
	// and where a queued start waits.
	page := "/workspaces/" + string(id)
	contains(t, "a stopped workspace", b.get(page).body, text)
	w.observe(id, func(r *workspace.Workspace) {
		r.Operation, r.OpID, r.OpStartedAt = workspace.OpStopping, "0198c0de-0000-7000-8000-000000000001", &r.CreatedAt
	})
	if _, err := w.DB.Wake(t.Context(), w.caller("admin"), id); err != nil {
		t.Fatal(err)
	}
	lacks(t, "a workspace that stops", b.get(page).body, text)
	w.observe(id, standby)
	if applied, err := w.DB.ApplyQueued(t.Context(), id); applied || err != nil {
		t.Fatalf("the queued start: %v, %v", applied, err)
	}
	contains(t, "a queued start", b.get(page).body, "starts when the limits allow", text)
	contains(t, "the page that waits for it", b.get(page+"/wait").body, text)
	w.Exec(`UPDATE users SET max_bytes = 0`)
	lacks(t, "without a limit", b.get(page).body, "of at most")
}

// Over the limit of bytes the pages of a workspace at rest offer the start to free space, once
// until its home is smaller; an archived one is restored for it.
func TestStartToFreeSpaceAtLimitOfBytes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", standby)
	path := "/workspaces/" + string(id)
	w.Exec(`UPDATE users SET max_bytes = 2147483648`)
	w.Exec(`UPDATE workspaces SET home_bytes = 3758096384`)
	contains(t, "the page", b.get(path).body, `id="over-bytes"`, `id="free-space"`, "Start to free space")
	contains(t, "the page in Korean", b.get(path, "Accept-Language", "ko").body, "최대 2 GiB 중 3.5 GiB", "공간 확보를 위해 시작")
	contains(t, "the page that waits", b.get(path+"/wait").body, `name="free_space"`)
	b.htmx(path+"/start", url.Values{"free_space": {"on"}})
	if ws := w.row(id); ws.DesiredState != workspace.DesiredRunning || ws.FreeingFrom != 3758096384 {
		t.Errorf("the start to free space: %+v", ws)
	}
	w.Exec(`UPDATE workspaces SET desired_state = 'STANDBY'`)
	page := b.get(path).body
	contains(t, "started once", page, "has not become smaller since its last start")
	lacks(t, "started once", page, `id="free-space"`)
	lacks(t, "the page that waits", b.get(path+"/wait").body, `name="free_space"`)
	contains(t, "started again", b.htmx(path+"/start", url.Values{"free_space": {"on"}}).body, "has not become smaller since its last start")

	w.Exec(`UPDATE workspaces SET phase = 'ARCHIVED', desired_state = 'ARCHIVED', home_ctx = '{"state": "absent"}', archive_key = 'k', archive_size = 2684354560`)
	contains(t, "archived", b.get(path).body, "Your workspaces use 2.5 GiB of at most 2 GiB.", `id="free-space"`)
	contains(t, "the page that restores", b.get(path+"/wait").body, `name="free_space"`)
	b.htmx(path+"/start", url.Values{"free_space": {"on"}})
	if ws := w.row(id); ws.DesiredState != workspace.DesiredRunning || ws.FreeingAt != nil {
		t.Errorf("the restore to free space: %+v", ws)
	}
}

// An administrator reads whose limit it is.
func TestOwnersLimitOfBytesIsExplained(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.loggedIn()
	id := w.add("project", operating(standby, workspace.OpStarting))
	w.Exec(`UPDATE users SET max_bytes = 2147483648`)
	w.Exec(`UPDATE workspaces SET home_bytes = 3758096384 WHERE id = $1`, string(w.add("other", standby)))
	w.Exec(`UPDATE workspaces SET deleted_at = now() WHERE id = $1`, string(id))
	contains(t, "an administrator's change", b.htmx("/admin/workspaces/"+string(id)+"/undelete", url.Values{"message": {""}}).body, "The owner’s workspaces use 3.5 GiB of at most 2 GiB.")
}
