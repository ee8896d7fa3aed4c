package dashboard

import (
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"regexp"
	"testing"

	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/idp"
	"codehub/internal/users/signin"
)

// The settings of docs/signin.md for each provider accept users with the claims that the
// provider gives them, and no others.
func TestSignInRecipes(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	page, err := os.ReadFile("../../../docs/signin.md")
	if err != nil {
		t.Fatal(err)
	}
	recipes := regexp.MustCompile("(?s)### ([^\n]+)\n(?:[^#]|#[^#])*?```json\n(.*?)```").FindAllSubmatch(page, -1)
	people := map[string]struct {
		user, admin, other idp.User
		name               string
		inIDToken          bool
	}{
		"Keycloak": {
			idp.User{Username: "ann", Groups: []string{"developers"}}, idp.User{Username: "boss", Groups: []string{"codehub-admins"}},
			idp.User{Username: "eve", Groups: []string{"sales"}}, "ann", true,
		},
		"Microsoft Entra ID": {
			idp.User{Username: "ann@example.com", Roles: []string{"developer"}}, idp.User{Username: "boss@example.com", Roles: []string{"admin"}},
			idp.User{Username: "eve@example.com"}, "ann@example.com", true,
		},
		"Google": {
			user: idp.User{Email: "ann@example.com", Domain: "example.com"}, other: idp.User{Email: "eve@gmail.example"}, name: "ann@example.com", inIDToken: true,
		},
		"GitLab": {
			idp.User{Username: "ann", Groups: []string{"example", "example/developers"}}, idp.User{Username: "boss", Groups: []string{"example/operations"}},
			idp.User{Username: "eve", Groups: []string{"example"}}, "ann", false,
		},
		"GitHub": {
			idp.User{Username: "ann", Groups: []string{"example:developers"}}, idp.User{Username: "boss", Groups: []string{"example:operations"}},
			idp.User{Username: "eve", Groups: []string{"example:sales"}}, "ann", true,
		},
	}
	if len(recipes) != len(people) {
		t.Fatalf("the page has %d recipes, not %d", len(recipes), len(people))
	}
	for _, r := range recipes {
		t.Run(string(r[1]), func(t *testing.T) {
			t.Parallel()
			p, ok := people[string(r[1])]
			if !ok {
				t.Fatal("the test knows no such provider")
			}
			var file struct{ Providers []map[string]any }
			if err := json.Unmarshal(r[2], &file); err != nil {
				t.Fatal(err)
			}
			w := newSignInWorld(t, idp.Options{InIDToken: p.inIDToken}, func(company map[string]any, _ *signin.Config) {
				issuer := company["issuer"]
				clear(company)
				maps.Copy(company, file.Providers[0])
				company["issuer"] = issuer
			})
			w.idp.Set("user", p.user)
			if who := w.loggedInAs(w.mustSignIn("user")); who != p.name {
				t.Errorf("logged in as %q, want %q", who, p.name)
			}
			if w.caller(p.name).Admin {
				t.Error("the user administers")
			}
			if p.admin.Username != "" {
				w.idp.Set("boss", p.admin)
				w.mustSignIn("boss")
				if !w.caller(p.admin.Username).Admin {
					t.Error("the administrator does not administer")
				}
			}
			w.idp.Set("other", p.other)
			if page := w.signIn(idp.NewBrowser(t), "other", ""); page.StatusCode != http.StatusForbidden {
				t.Errorf("a user without a group ended at %s with %d", page.Request.URL, page.StatusCode)
			}
		})
	}
}
