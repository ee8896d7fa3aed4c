package httpapi

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/users/auth"
	"codehub/internal/workspace"
)

// roles are the columns of the table of TestRoutesByRole: a request without a session, a user and
// the owner of what the path names (of a group: a member), an administrator who is not its owner,
// a disabled user, an administrator of the group that the path names, guests with whom the owner
// shares the workspace that the path names, for use and for view, and API tokens of the owner with the
// scopes read and workspaces.
var roles = []string{"stranger", "user", "owner", "administrator", "disabled", "group-admin", "guest-use", "guest-view", "token-read", "token-workspaces"}

// cells has, for each route, what each of the roles gets: 401, 403 or 404, or ok for anything
// but 401, 403 and an internal error. A new route fails the test until it has a line.
//
// An administrator never enters the workspace of another user: every way in is 403, as for any
// user. What administrators do with such workspaces is below /admin.
var cells = map[string]string{
	"GET /openapi.json":  "ok ok ok ok ok ok ok ok ok ok",
	"POST /login":        "ok ok ok ok ok ok ok ok ok ok",
	"POST /login/device": "ok ok ok ok ok ok ok ok ok ok",
	"POST /login/token":  "401 401 401 401 401 401 401 401 401 401", // the code is unknown

	"POST /logout":            "401 ok ok ok 401 ok ok ok 403 403",
	"GET /session":            "401 ok ok ok 401 ok ok ok ok ok",
	"GET /sessions":           "401 ok ok ok 401 ok ok ok 403 403",
	"DELETE /sessions":        "401 ok ok ok 401 ok ok ok 403 403",
	"DELETE /sessions/{id}":   "401 403 ok 403 401 403 403 403 403 403",
	"GET /users/me":           "401 ok ok ok 401 ok ok ok ok ok",
	"POST /users/me/password": "401 ok ok ok 401 ok ok ok 403 403",
	"GET /banner":             "401 ok ok ok 401 ok ok ok ok ok",
	"GET /notices":            "401 ok ok ok 401 ok ok ok ok ok",
	"DELETE /notices/{id}":    "401 403 ok 403 401 403 403 403 403 ok",

	"GET /identities":              "401 ok ok ok 401 ok ok ok 403 403",
	"POST /identities/{id}/unlink": "401 404 ok 404 401 404 404 404 403 403",
	"GET /passkeys":                "401 ok ok ok 401 ok ok ok 403 403",
	"PATCH /passkeys/{id}":         "401 404 ok 404 401 404 404 404 403 403",

	"GET /admin/status":                        "401 403 403 ok 401 403 403 403 403 403",
	"GET /admin/settings":                      "401 403 403 ok 401 403 403 403 403 403",
	"POST /admin/nodes/{name}/dead":            "401 403 403 ok 401 403 403 403 403 403",
	"POST /admin/images/{name}/retry":          "401 403 403 ok 401 403 403 403 403 403",
	"GET /admin/orphans":                       "401 403 403 ok 401 403 403 403 403 403",
	"GET /admin/restore":                       "401 403 403 ok 401 403 403 403 403 403",
	"POST /admin/restore":                      "401 403 403 ok 401 403 403 403 403 403",
	"GET /admin/move":                          "401 403 403 ok 401 403 403 403 403 403",
	"GET /admin/move/users/{id}":               "401 403 403 403 401 403 403 403 403 403",
	"GET /admin/move/workspaces":               "401 403 403 403 401 403 403 403 403 403", // moves are not allowed now
	"GET /admin/move/workspaces/{id}":          "401 403 403 403 401 403 403 403 403 403",
	"DELETE /admin/move/workspaces/{id}":       "401 403 403 403 401 403 403 403 403 403",
	"GET /admin/move/workspaces/{id}/record":   "401 403 403 403 401 403 403 403 403 403",
	"GET /admin/move/workspaces/{id}/archive":  "401 403 403 403 401 403 403 403 403 403",
	"POST /admin/move/workspaces/{id}/archive": "401 403 403 403 401 403 403 403 403 403",
	"GET /admin/workspaces":                    "401 403 403 ok 401 403 403 403 403 403",
	"GET /admin/workspaces/{id}":               "401 403 403 ok 401 403 403 403 403 403",
	"PATCH /admin/workspaces/{id}":             "401 403 403 ok 401 403 403 403 403 403",
	"DELETE /admin/workspaces/{id}":            "401 403 403 ok 401 403 403 403 403 403",
	"POST /admin/workspaces/{id}/undelete":     "401 403 403 ok 401 403 403 403 403 403",
	"POST /admin/workspaces/{id}/stop":         "401 403 403 ok 401 403 403 403 403 403",
	"POST /admin/workspaces/{id}/archive":      "401 403 403 ok 401 403 403 403 403 403",
	"POST /admin/workspaces/{id}/cancel":       "401 403 403 ok 401 403 403 403 403 403",
	"POST /admin/workspaces/{id}/message":      "401 403 403 ok 401 403 403 403 403 403",
	"POST /admin/workspaces/{id}/recover":      "401 403 403 ok 401 403 403 403 403 403",
	"POST /admin/workspaces/{id}/hand-over":    "401 403 403 ok 401 403 403 403 403 403",
	"DELETE /admin/workspaces/{id}/hand-over":  "401 403 403 404 401 403 403 403 403 403", // none is requested
	"POST /admin/workspaces/{id}/size":         "401 403 403 ok 401 403 403 403 403 403",
	"GET /admin/workspaces/{id}/archives":      "401 403 403 ok 401 403 403 403 403 403",
	"GET /admin/workspaces/{id}/backups":       "401 403 403 ok 401 403 403 403 403 403",
	"POST /admin/workspaces/{id}/backups":      "401 403 403 ok 401 403 403 403 403 403",
	"POST /admin/workspaces/{id}/restore":      "401 403 403 ok 401 403 403 403 403 403",
	"GET /admin/workspaces/{id}/logs":          "401 403 403 ok 401 403 403 403 403 403",
	"GET /admin/workspaces/{id}/usage":         "401 403 403 ok 401 403 403 403 403 403",
	"GET /admin/usage":                         "401 403 403 ok 401 403 403 403 403 403",
	"GET /audit":                               "401 403 403 ok 401 403 403 403 403 403",
	"GET /audit/export":                        "401 403 403 ok 401 403 403 403 403 403",
	"PUT /banner":                              "401 403 403 ok 401 403 403 403 403 403",
	"GET /users":                               "401 403 403 ok 401 403 403 403 403 403",
	"POST /users":                              "401 403 403 ok 401 403 403 403 403 403",
	"POST /users/import":                       "401 403 403 ok 401 403 403 403 403 403",
	"POST /users/{id}/invitation":              "401 403 403 ok 401 403 403 403 403 403",
	"PATCH /users/{id}":                        "401 403 403 ok 401 403 403 403 403 403",
	"DELETE /users/{id}":                       "401 403 403 ok 401 403 403 403 403 403",
	"DELETE /users/{id}/passkeys":              "401 403 403 ok 401 403 403 403 403 403",

	"GET /groups":                        "401 ok ok ok 401 ok ok ok ok ok",
	"POST /groups":                       "401 403 403 ok 401 403 403 403 403 403",
	"GET /groups/{id}":                   "401 403 ok ok 401 ok 403 403 ok ok",
	"PATCH /groups/{id}":                 "401 403 403 ok 401 403 403 403 403 403",
	"DELETE /groups/{id}":                "401 403 403 ok 401 403 403 403 403 403",
	"GET /groups/{id}/members":           "401 403 403 ok 401 ok 403 403 403 403",
	"POST /groups/{id}/members":          "401 403 403 ok 401 ok 403 403 403 403",
	"DELETE /groups/{id}/members/{user}": "401 403 403 ok 401 ok 403 403 403 403",

	"GET /groups/{id}/secrets":  "401 403 ok ok 401 ok 403 403 ok ok",
	"POST /groups/{id}/secrets": "401 403 403 ok 401 403 403 403 403 403",

	"GET /secrets":         "401 ok ok ok 401 ok ok ok ok ok",
	"POST /secrets":        "401 ok ok ok 401 ok ok ok 403 403",
	"PATCH /secrets/{id}":  "401 404 ok 404 401 404 404 404 403 403",
	"DELETE /secrets/{id}": "401 404 ok 404 401 404 404 404 403 403",

	"GET /user/dotfiles":             "401 ok ok ok 401 ok ok ok ok ok",
	"PUT /user/dotfiles":             "401 ok ok ok 401 ok ok ok 403 403",
	"DELETE /user/dotfiles":          "401 ok ok ok 401 ok ok ok 403 403",
	"POST /workspaces/{id}/dotfiles": "401 403 ok 403 401 403 403 403 403 ok",
	"GET /user/git-identity":         "401 ok ok ok 401 ok ok ok ok ok",
	"PUT /user/git-identity":         "401 ok ok ok 401 ok ok ok 403 403",
	"POST /user/git-identity/key":    "401 ok ok ok 401 ok ok ok 403 403",
	"GET /git-connections":           "401 ok ok ok 401 ok ok ok ok ok",
	"POST /git-connections":          "401 ok ok ok 401 ok ok ok 403 403",
	"DELETE /git-connections/{id}":   "401 404 ok 404 401 404 404 404 403 403",
	"GET /git-credential":            "401 403 403 403 401 403 403 403 403 403", // of programs in the workspace

	"GET /tokens":         "401 ok ok ok 401 ok ok ok 403 403",
	"POST /tokens":        "401 ok ok ok 401 ok ok ok 403 403",
	"DELETE /tokens/{id}": "401 403 ok 403 401 403 403 403 403 403",
	"GET /keys":           "401 ok ok ok 401 ok ok ok 403 403",
	"POST /keys":          "401 ok ok ok 401 ok ok ok 403 403",
	"DELETE /keys/{id}":   "401 403 ok 403 401 403 403 403 403 403",
	"GET /ssh":            "401 ok ok ok 401 ok ok ok ok ok",

	"GET /sizes":                                    "401 ok ok ok 401 ok ok ok ok ok",
	"GET /templates":                                "401 ok ok ok 401 ok ok ok ok ok",
	"GET /templates/{name}":                         "401 ok ok ok 401 ok ok ok ok ok",
	"PUT /templates/{name}":                         "401 403 403 ok 401 403 403 403 403 403",
	"DELETE /templates/{name}":                      "401 403 403 ok 401 403 403 403 403 403",
	"GET /workspaces":                               "401 ok ok ok 401 ok ok ok ok ok",
	"POST /workspaces":                              "401 ok ok ok 401 ok ok ok 403 ok",
	"GET /workspaces/{id}":                          "401 403 ok 403 401 403 403 403 ok ok",
	"PATCH /workspaces/{id}":                        "401 403 ok 403 401 403 403 403 403 ok",
	"DELETE /workspaces/{id}":                       "401 403 ok 403 401 403 403 403 403 ok",
	"POST /workspaces/{id}/undelete":                "401 403 ok 403 401 403 403 403 403 ok",
	"POST /workspaces/{id}/recover":                 "401 403 ok 403 401 403 403 403 403 ok",
	"POST /workspaces/{id}/cancel":                  "401 403 ok 403 401 403 403 403 403 ok",
	"POST /workspaces/{id}/stay":                    "401 403 ok 403 401 403 403 403 403 ok",
	"POST /workspaces/{id}/update-image":            "401 403 ok 403 401 403 403 403 403 ok",
	"GET /workspaces/{id}/template":                 "401 403 ok 403 401 403 403 403 ok ok",
	"POST /workspaces/{id}/update-template":         "401 403 ok 403 401 403 403 403 403 ok",
	"POST /workspaces/{id}/revert-template":         "401 403 ok 403 401 403 403 403 403 ok",
	"POST /workspaces/{id}/restart":                 "401 403 ok 403 401 403 403 403 403 ok",
	"POST /workspaces/{id}/stop":                    "401 403 ok 403 401 403 403 403 403 ok",
	"GET /workspaces/{id}/archive":                  "401 403 ok 403 401 403 403 403 403 ok",
	"GET /workspaces/{id}/archive/files":            "401 403 ok 403 401 403 403 403 403 ok",
	"GET /workspaces/{id}/archive/file":             "401 403 ok 403 401 403 403 403 403 ok",
	"GET /workspaces/{id}/archives":                 "401 403 ok 403 401 403 403 403 ok ok",
	"GET /workspaces/{id}/backups":                  "401 403 ok 403 401 403 403 403 ok ok",
	"POST /workspaces/{id}/backups":                 "401 403 ok 403 401 403 403 403 403 ok",
	"GET /workspaces/{id}/backups/{backup}":         "401 403 ok 403 401 403 403 403 ok ok",
	"GET /workspaces/{id}/backups/{backup}/files":   "401 403 ok 403 401 403 403 403 403 ok",
	"GET /workspaces/{id}/backups/{backup}/file":    "401 403 ok 403 401 403 403 403 403 ok",
	"GET /workspaces/{id}/backups/{backup}/changes": "401 403 ok 403 401 403 403 403 403 ok",
	"GET /workspaces/{id}/backups/versions":         "401 403 ok 403 401 403 403 403 403 ok",
	"GET /workspaces/{id}/backups/{backup}/tar":     "401 403 ok 403 401 403 403 403 403 ok",
	"POST /workspaces/{id}/backups/{backup}/put":    "401 403 ok 403 401 403 403 403 403 ok",
	"POST /workspaces/{id}/restore":                 "401 403 ok 403 401 403 403 403 403 ok",
	"POST /workspaces/{id}/fork":                    "401 403 ok 403 401 403 403 403 403 ok",
	"GET /workspaces/{id}/logs":                     "401 403 ok 403 401 403 403 403 ok ok",
	"GET /workspaces/{id}/ports":                    "401 403 ok 403 401 403 403 403 ok ok",
	"PUT /workspaces/{id}/ports/{port}/share":       "401 403 ok 403 401 403 403 403 403 ok",
	"DELETE /workspaces/{id}/ports/{port}/share":    "401 403 ok 403 401 403 403 403 403 ok",
	"GET /workspaces/{id}/ports/{port}/connect":     "401 403 ok 403 401 403 ok 403 403 ok",
	"GET /workspaces/{id}/shares":                   "401 403 ok 403 401 403 403 403 ok ok",
	"POST /workspaces/{id}/shares":                  "401 403 ok 403 401 403 403 403 403 403",
	"DELETE /workspaces/{id}/shares/{share}":        "401 403 ok 403 401 403 403 403 403 ok",
	"GET /workspaces/{id}/hand-over":                "401 403 404 403 401 403 403 403 404 404",
	"POST /workspaces/{id}/hand-over":               "401 403 404 403 401 403 403 403 403 403",
	"GET /shared":                                   "401 ok ok ok 401 ok ok ok ok ok",
	"GET /shared/{id}":                              "401 403 403 403 401 403 ok ok 403 403", // of guests
	"DELETE /shared/{id}":                           "401 403 403 403 401 403 ok ok 403 403",
	"GET /workspaces/{id}/usage":                    "401 403 ok 403 401 403 403 403 ok ok",
	"GET /workspaces/{id}/setup":                    "401 403 ok 403 401 403 403 403 ok ok",
	"POST /workspaces/{id}/git-signature":           "401 403 403 403 401 403 403 403 403 403", // the workspace itself alone
	"POST /workspaces/{id}/setup/retry":             "401 403 ok 403 401 403 403 403 403 ok",
	"GET /workspaces/{id}/devcontainer":             "401 403 ok 403 401 403 403 403 ok ok",
	"POST /workspaces/{id}/devcontainer":            "401 403 ok 403 401 403 403 403 403 ok",
	"DELETE /workspaces/{id}/devcontainer":          "401 403 ok 403 401 403 403 403 403 ok",
	"GET /workspaces/{id}/devcontainer/build":       "401 403 404 403 401 403 403 403 404 404", // there was none
	"DELETE /workspaces/{id}/devcontainer/build":    "401 403 404 403 401 403 403 403 403 404",
	"GET /workspaces/{id}/exec":                     "401 403 ok 403 401 403 ok 403 403 ok",
	"GET /workspaces/{id}/ssh":                      "401 403 ok 403 401 403 ok 403 403 ok",
	"GET /events":                                   "401 ok ok ok 401 ok ok ok ok ok",
}

// testBackup is the id of a backup of the workspace that the path names.
const testBackup = "0198c0de-0000-4000-8000-000000000001"

// bodies has a valid body for each route that needs one.
var bodies = map[string]string{
	"PUT /workspaces/{id}/ports/{port}/share":    `{"with":"users"}`,
	"POST /workspaces/{id}/backups/{backup}/put": `{"path":"file"}`,
	"POST /workspaces/{id}/restore":              `{"backup":"` + testBackup + `"}`,
	"POST /workspaces/{id}/fork":                 `{"backup":"` + testBackup + `"}`,
	"POST /admin/workspaces/{id}/restore":        `{"backup":"` + testBackup + `"}`,
	"POST /identities/{id}/unlink":               `{"current":"` + password + `"}`,

	"PATCH /passkeys/{id}":                  `{"name":"made"}`,
	"POST /secrets":                         `{"name":"made","value":"hunter2","env":"MADE"}`,
	"PATCH /secrets/{id}":                   `{"value":"hunter3"}`,
	"POST /groups/{id}/secrets":             `{"name":"made","value":"hunter2","env":"MADE"}`,
	"PUT /user/dotfiles":                    `{"url":"https://git.example.com/ann/dotfiles","branch":""}`,
	"PUT /user/git-identity":                `{"name":"Made","email":"made@example.com","sign_commits":true}`,
	"POST /workspaces/{id}/git-signature":   `{"public_key":"` + publicKey + `","data":"eA=="}`,
	"POST /git-connections":                 `{"host":"git.example.com","login":"ann","token":"hunter2"}`,
	"POST /tokens":                          `{"name":"made"}`,
	"POST /keys":                            `{"name":"made","public_key":"` + publicKey + `"}`,
	"POST /workspaces":                      `{"name":"made"}`,
	"PATCH /workspaces/{id}":                `{"memo":"changed"}`,
	"POST /login":                           `{"username":"ann","password":"` + password + `"}`,
	"POST /admin/restore":                   `{}`,
	"POST /users":                           `{"username":"carl","password":"` + password + `"}`,
	"POST /users/import":                    `{"csv":"name\ndora"}`,
	"PATCH /users/{id}":                     `{"max_running":3}`,
	"PATCH /admin/workspaces/{id}":          `{"standby_ttl_seconds":600}`,
	"POST /admin/workspaces/{id}/message":   `{"message":"hello"}`,
	"POST /admin/workspaces/{id}/hand-over": `{"to":"019a0000-0000-7000-8000-000000000009"}`,
	"POST /workspaces/{id}/hand-over":       `{"accept":true}`,
	"POST /admin/workspaces/{id}/size":      `{"size":"large"}`,
	"POST /workspaces/{id}/shares":          `{"user":"eve","access":"use"}`,
	"POST /groups":                          `{"name":"team"}`,
	"PATCH /groups/{id}":                    `{"max_running":3}`,
	"POST /groups/{id}/members":             `{"user":"eve"}`,
	"PUT /templates/{name}":                 `{"text":"title: Node"}`,
	"PUT /banner":                           `{"message":"hello"}`,
	"POST /login/device":                    `{"name":"laptop"}`,
	"POST /login/token":                     `{"code":"x"}`,

	"POST /users/me/password": `{"current":"` + password + `","new":"another ` + password + `"}`,
}

// TestRoutesByRole sends each route's request as each role. The requests of one role have an
// environment of their own, since those that succeed change things. A refusal changes nothing.
func TestRoutesByRole(t *testing.T) {
	t.Parallel()
	routes := testServer().routes()
	for _, rt := range routes {
		if name := rt.method + " " + rt.path; len(strings.Fields(cells[name])) != len(roles) {
			t.Fatalf("%s has no line in the table of routes by role", name)
		}
	}
	if len(cells) != len(routes) {
		t.Errorf("the table has %d lines for %d routes", len(cells), len(routes))
	}
	for column, role := range roles {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			boss, bob, gina, uma, vic := e.join("boss"), e.join("bob"), e.join("gina"), e.join("uma"), e.join("vic")
			e.Exec(`UPDATE users SET admin = true WHERE username = 'boss'`)
			e.Exec(`UPDATE users SET disabled = true WHERE username = 'bob'`)
			e.Auth.InvalidateAll()
			made := 0
			for _, rt := range routes {
				made++
				// Each request has an owner and objects of its own.
				owner := e.join(fmt.Sprintf("owner-%d", made))
				target := e.workspace(owner, "target")
				by := map[string]with{"stranger": func(*http.Request) {}, "user": as(e.eve), "owner": as(owner), "administrator": as(boss), "disabled": as(bob), "group-admin": as(gina), "guest-use": as(uma), "guest-view": as(vic)}[role]
				for guest, access := range map[string]workspace.Access{"uma": workspace.AccessUse, "vic": workspace.AccessView} {
					if _, err := e.DB.Share(t.Context(), owner.Caller, target.ID, postgres.NewShare{User: guest, Access: access}); err != nil {
						t.Fatal(err)
					}
				}
				name := rt.method + " " + rt.path
				id := string(target.ID)
				switch {
				case strings.HasPrefix(rt.path, "/tokens/"):
					token, err := e.DB.CreateToken(t.Context(), owner.Caller, postgres.Token{Name: "t", Hash: fmt.Appendf(nil, "%032d", made)})
					if err != nil {
						t.Fatal(err)
					}
					id = token.ID
				case strings.HasPrefix(rt.path, "/keys/"):
					key, err := e.DB.AddSSHKey(t.Context(), owner.Caller, postgres.SSHKey{Name: "k", PublicKey: "ssh-ed25519 AAAA", Hash: fmt.Appendf(nil, "%032d", made)})
					if err != nil {
						t.Fatal(err)
					}
					id = key.ID
				case strings.HasPrefix(rt.path, "/secrets/"):
					s, err := e.cfg.Secrets.Create(t.Context(), owner.Caller, api.CreateSecret{Name: "s", Value: "hunter2", Env: "TOKEN"})
					if err != nil {
						t.Fatal(err)
					}
					id = s.ID
				case strings.HasPrefix(rt.path, "/git-connections/"):
					c, err := e.cfg.Git.Connect(t.Context(), owner.Caller, api.NewGitConnection{Host: "git.example.com", Login: "ann", Token: "hunter2"})
					if err != nil {
						t.Fatal(err)
					}
					id = c.ID
				case strings.HasPrefix(rt.path, "/sessions/"):
					list, _, err := e.Auth.Sessions(t.Context(), e.enter(owner.User.Username).Caller, postgres.Page{})
					if err != nil {
						t.Fatal(err)
					}
					id = list[len(list)-1].ID
				case strings.HasPrefix(rt.path, "/notices/"):
					if _, err := e.DB.Administer(t.Context(), boss.Caller, target.ID, postgres.Administration{Do: postgres.DoMessage, Message: "x"}); err != nil {
						t.Fatal(err)
					}
					list, err := e.DB.Notices(t.Context(), owner.Caller)
					if err != nil {
						t.Fatal(err)
					}
					id = list[0].ID
				case strings.HasPrefix(rt.path, "/identities/"):
					e.Exec(`INSERT INTO user_identities (id, user_id, issuer, subject) VALUES ($1, $2, 'https://issuer', $3)`, id, owner.User.ID, name)
				case strings.HasPrefix(rt.path, "/passkeys/"):
					e.Exec(`INSERT INTO passkeys (id, user_id, credential_id, party, record, name) VALUES ($1, $2, $3, 'localhost', '{}', 'Laptop')`, id, owner.User.ID, fmt.Append(nil, made))
				case strings.HasPrefix(rt.path, "/groups/"):
					g, err := e.DB.CreateGroup(t.Context(), boss.Caller, postgres.Group{Name: fmt.Sprint("group ", made)})
					if err != nil {
						t.Fatal(err)
					}
					for name, admin := range map[string]bool{owner.User.ID: false, "gina": true} {
						if _, err := e.DB.SetMember(t.Context(), boss.Caller, g.ID, name, &admin); err != nil {
							t.Fatal(err)
						}
					}
					id = g.ID
				case strings.HasPrefix(rt.path, "/users/"):
					id = e.join(fmt.Sprintf("victim-%d", made)).User.ID
				}
				if strings.Contains(rt.path, "/workspaces/{id}/") {
					e.Exec(`DELETE FROM home_backups`)
					e.Exec(`INSERT INTO home_backups (id, workspace_id, cause, state, key, digest, ended_at) VALUES ($1, $2, 'schedule', 'done', $3, 'd', now())`,
						testBackup, target.ID, "inst/ws/backups/20261130T120000Z-"+testBackup+".manifest.zst")
				}
				path := strings.NewReplacer("{id}", id, "{port}", "3000", "{backup}", testBackup, "{name}", "node", "{user}", owner.User.ID, "{share}", string(target.ID)).Replace(rt.path)
				if scope, token := strings.CutPrefix(role, "token-"); token {
					_, secret, err := e.Auth.CreateToken(t.Context(), auth.Identity{Caller: owner.Caller}, role, nil, auth.TokenLimits{Scope: workspace.Scope(scope)})
					if err != nil {
						t.Fatal(err)
					}
					by = header(api.TokenHeader, secret)
				} else if role != "stranger" && role != "disabled" {
					// Requests that end the sender's access get a sender of their own.
					if path == "/logout" || path == "/sessions" || path == "/users/me/password" {
						by = as(e.enter(map[string]string{"user": "eve", "administrator": "boss", "owner": owner.User.Username, "group-admin": "gina", "guest-use": "uma", "guest-view": "vic"}[role]))
					}
					if path == "/users/me/password" || path == "/sessions" && rt.method == "DELETE" {
						if role != "owner" {
							continue // the same as for an owner, who is a user
						}
					}
				}
				want := strings.Fields(cells[name])[column]
				before := ""
				if want == "403" {
					before = e.dump()
				}
				a := e.do(rt.method, Prefix+path, bodies[name], by)
				if want == "403" && (a.code() != string(workspace.CodeForbidden) || e.dump() != before) {
					t.Errorf("%s by %s: %s, or a change", name, role, a.body)
				}
				if want == "401" && rt.needs != open && (a.code() != string(workspace.CodeUnauthenticated) || a.header.Get("WWW-Authenticate") == "") {
					t.Errorf("%s by %s: %s %v", name, role, a.body, a.header)
				}
				got := fmt.Sprint(a.status)
				if want == "ok" && a.status != 401 && a.status != 403 && a.status < 500 {
					got = "ok"
				}
				if name == "POST /login" && a.status == 401 {
					got = "ok" // there is no user of this name
				}
				if got != want {
					t.Errorf("%s by %s: %d %.200s, want %s", name, role, a.status, a.body, want)
				}
			}
		})
	}
}
