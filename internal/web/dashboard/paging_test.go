package dashboard

import (
	"html"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// Every list has its pages, which links lead through without scripts, and each entry is
// on one of them.
func TestListsHavePages(t *testing.T) {
	t.Parallel()
	const n = 130
	w := newWorld(t)
	admin := w.caller("admin")
	b := w.loggedIn()
	id := w.add("archived", standby)
	for i := range n {
		w.keep(id, uuid.NewString(), 1, 1, time.Now().Add(-time.Duration(i)*time.Minute))
	}
	for _, sql := range []string{
		`INSERT INTO api_tokens (id, user_id, name, hash) SELECT gen_random_uuid(), $1::text::uuid, 'token', sha256(('t' || i)::bytea) FROM generate_series(1, $2::int) i`,
		`INSERT INTO sessions (hash, user_id, expires_at, created_at) SELECT sha256(('s' || i)::bytea), $1::text::uuid, now() + interval '1 day', now() - interval '1 day' FROM generate_series(1, $2::int) i`,
		`INSERT INTO orphans (kind, name, workspace_id, detail, kept) SELECT 'volume', 'orphan-' || i, '', '', false FROM generate_series(1, $2::int) i WHERE $1::text <> ''`,
		`INSERT INTO workspaces (id, owner_user_id, name, image_ref, storage_backend, desired_state, phase, deleted_at, home_ctx, archive_key)
			SELECT gen_random_uuid(), $1::text::uuid, 'gone-' || i, 'x', 'docker-volume', 'STANDBY', 'STANDBY', now(), '{"state": "live"}', 'key' FROM generate_series(1, $2::int) i`,
	} {
		w.Exec(sql, admin.UserID, n)
	}
	for _, c := range []struct{ page, entry, next string }{
		{"/settings/tokens", `id="revoke-`, `/settings/tokens\?cursor=`},
		{"/settings/account", `data-session="`, `/settings/account\?cursor=`},
		{"/admin", `<code>orphan-`, `/admin\?orphans=`},
		{"/workspaces/" + string(id), `/download?archive_op_id=`, `/workspaces/[^"]*\?archives=`},
		{"/", `card-gone`, `/\?deleted=`},
	} {
		link, seen, at := regexp.MustCompile(`href="(`+c.next+`[^"]+)"`), 0, c.page
		for range 20 {
			a := b.get(at, "Accept", "text/html")
			count := strings.Count(a.body, c.entry)
			if a.status != 200 || count > 50 {
				t.Fatalf("%s: %d with %d entries", at, a.status, count)
			}
			seen += count
			m := link.FindStringSubmatch(a.body)
			if m == nil {
				break
			}
			at = html.UnescapeString(m[1])
		}
		want := n
		if c.page == "/settings/account" {
			want++ // the browser's own
		}
		if seen != want {
			t.Errorf("%s: %d entries on its pages, want %d", c.page, seen, want)
		}
	}
}
