package postgres_test

import (
	"slices"
	"testing"

	"codehub/internal/postgres"
	"codehub/internal/workspace"
)

// Every list has each row once with pages of any length, and no page is longer than
// MaxList.
func TestListsArePaged(t *testing.T) {
	t.Parallel()
	const n = 230
	e := open(t, postgres.Options{})
	ctx := t.Context()
	ann := e.user("ann")
	e.exec(`UPDATE users SET admin = true`)
	bob := e.user("bob")
	for _, user := range []string{ann.UserID, bob.UserID} {
		// Some rows have the same time.
		e.exec(`INSERT INTO api_tokens (id, user_id, name, hash, created_at)
			SELECT gen_random_uuid(), $1::text::uuid, 't' || i, sha256(($1::text || i)::bytea), now() - (i / 3) * interval '1 hour' FROM generate_series(1, $2::int) i`, user, n)
		e.exec(`INSERT INTO sessions (hash, user_id, expires_at, created_at, last_used_at)
			SELECT sha256(($1::text || 's' || i)::bytea), $1::text::uuid, now() + interval '1 day', now() - interval '2 days',
				CASE WHEN i % 5 > 0 THEN now() - (i / 3) * interval '1 minute' END FROM generate_series(1, $2::int) i`, user, n)
	}
	e.exec(`INSERT INTO orphans (kind, name, workspace_id, detail, kept, first_seen_at)
		SELECT CASE WHEN i % 2 = 0 THEN 'container' ELSE 'volume' END, 'o' || i, '', '', false, now() - (i / 3) * interval '1 hour' FROM generate_series(1, $1::int) i`, n)
	e.exec(`INSERT INTO users (id, username, username_key, password_hash) SELECT gen_random_uuid(), 'u' || i, 'u' || i, 'x' FROM generate_series(1, $1::int) i`, n-2)

	lists := map[string]func(postgres.Page) ([]string, string, error){
		"tokens": func(p postgres.Page) ([]string, string, error) {
			list, next, err := e.Tokens(ctx, ann, p)
			return column(list, func(t postgres.Token) string { return t.Name }), next, err
		},
		"sessions": func(p postgres.Page) ([]string, string, error) {
			list, next, err := e.UserSessions(ctx, ann, p)
			return column(list, func(s postgres.UserSession) string { return s.ID }), next, err
		},
		"orphans": func(p postgres.Page) ([]string, string, error) {
			list, next, err := e.Orphans(ctx, ann, p)
			return column(list, func(o postgres.Orphan) string { return o.Name }), next, err
		},
		"users": func(p postgres.Page) ([]string, string, error) {
			list, err := e.Accounts(ctx, ann, postgres.AccountFilter{Page: p})
			return column(list.Users, func(a postgres.Account) string { return a.Username }), list.NextCursor, err
		},
	}
	for name, read := range lists {
		var first []string
		for _, size := range []int{200, 1, 7, 50} {
			all := pages(t, size, read)
			distinct := slices.Clone(all)
			slices.Sort(distinct)
			if len(all) != n || len(slices.Compact(distinct)) != n {
				t.Errorf("%s in pages of %d: %d rows, want %d distinct ones", name, size, len(all), n)
			}
			if first == nil {
				first = all
			}
			if !slices.Equal(first, all) {
				t.Errorf("%s in pages of %d have another order", name, size)
			}
		}
		for limit, want := range map[int]int{0: postgres.DefaultList, 1_000_000: postgres.MaxList} {
			if list, next, err := read(postgres.Page{Limit: limit}); err != nil || len(list) != want || next == "" {
				t.Errorf("%s with the limit %d: %d rows, %v", name, limit, len(list), err)
			}
		}
		for _, cursor := range []string{"!", "e30", "AAAA", "eyJ0IjoiMjAyNi0wMS0wMVQwMDowMDowMFoiLCJpIjoiXHUwMDAwIn0"} {
			if _, _, err := read(postgres.Page{Cursor: cursor}); err != nil && workspace.CodeOf(err) != workspace.CodeInvalid {
				t.Errorf("%s with the cursor %q: %v", name, cursor, err)
			}
		}
	}
}

func column[T any](list []T, name func(T) string) []string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = name(v)
	}
	return out
}
