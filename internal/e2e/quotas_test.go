package e2e

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"codehub/api"
	codehub "codehub/client"
)

// A user can have a limited number of tokens and workspaces, which the pages show, and
// no answer or page has more than a page of them. The command line lists all.
func TestUserHasLimits(t *testing.T) {
	t.Parallel()
	const tokens, workspaces = 60, 3
	s := startQuick(t, "CODEHUB_MAX_TOKENS_PER_USER=60", "CODEHUB_MAX_WORKSPACES_PER_USER=3", "CODEHUB_DELETE_GRACE=0s")
	made := 1 // the test's own
	for ; made < 2*tokens; made++ {
		_, err := s.api.CreateToken(t.Context(), api.CreateToken{Name: "token"})
		if err == nil {
			continue
		}
		if codehub.CodeOf(err) != "quota_exceeded" {
			t.Fatal(err)
		}
		break
	}
	if made != tokens {
		t.Errorf("%d tokens could be created, want %d", made, tokens)
	}
	for i := range workspaces + 1 {
		_, err := s.api.Create(t.Context(), api.CreateWorkspace{Name: "w" + string(rune('a'+i)), DesiredState: new("ARCHIVED")})
		switch {
		case i < workspaces && err != nil:
			t.Fatal(err)
		case i == workspaces && codehub.CodeOf(err) != "quota_exceeded":
			t.Errorf("one workspace more: %v", err)
		}
	}

	resp, body := s.ask("GET", "/api/v1/tokens", "", api.TokenHeader, s.token)
	var list api.TokenList
	if err := json.Unmarshal([]byte(body), &list); err != nil || resp.StatusCode != 200 || len(list.Tokens) != 50 || list.NextCursor == "" {
		t.Errorf("the first page: %d, %d tokens, cursor %q, %v", resp.StatusCode, len(list.Tokens), list.NextCursor, err)
	}
	for _, path := range []string{"/tokens", "/sessions", "/users", "/admin/orphans", "/workspaces"} {
		if resp, body := s.ask("GET", "/api/v1"+path+"?limit=201", "", api.TokenHeader, s.token); resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%s with a limit that is too high: %d %.200s", path, resp.StatusCode, body)
		}
		resp, body := s.ask("GET", "/api/v1"+path+"?limit=1", "", api.TokenHeader, s.token)
		if resp.StatusCode != http.StatusOK || !strings.Contains(body, `"next_cursor"`) {
			t.Errorf("%s with a limit: %d %.200s", path, resp.StatusCode, body)
		}
	}
	all, err := s.api.Tokens(t.Context())
	if err != nil || len(all) != tokens {
		t.Errorf("the client lists %d tokens, %v", len(all), err)
	}
	cmd := exec.CommandContext(t.Context(), env.binary, "tokens", "list", "--output", "json")
	cmd.Env = append(os.Environ(), "CODEHUB_URL="+s.URL, "CODEHUB_SESSION_TOKEN="+s.token)
	out, err := cmd.Output()
	if n := strings.Count(string(out), `"created_at"`); err != nil || n != tokens {
		t.Errorf("the command line lists %d tokens, %v", n, err)
	}

	// The pages need no scripts.
	mine := s.loginCookie("admin")
	page := func(path string) string {
		resp, body := s.ask("GET", path, "", "Cookie", mine, "Accept", "text/html", "Accept-Language", "en")
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %d", path, resp.StatusCode)
		}
		return body
	}
	next := regexp.MustCompile(`href="(/settings/tokens\?cursor=[^"]+)"`)
	first := page("/settings/tokens")
	more := next.FindStringSubmatch(first)
	if n := strings.Count(first, `id="revoke-`); n != 50 || more == nil || !strings.Contains(first, "60 of at most 60 tokens") {
		t.Fatalf("the page has %d tokens, its next page is %v", n, more)
	}
	second := page(more[1])
	if n := strings.Count(second, `id="revoke-`); n != tokens-50 || next.MatchString(second) {
		t.Errorf("the second page has %d tokens", n)
	}
	if body := page("/settings/tokens/new"); !strings.Contains(body, "at most 60 are allowed") {
		t.Error("the form of a new token does not say that there is no room")
	}
	if body := page("/"); !strings.Contains(body, "3 of at most 3 workspaces") {
		t.Error("the list does not say that there is no room")
	}
	if body := page("/workspaces/new"); !strings.Contains(body, "at most 3 are allowed") {
		t.Error("the form of a new workspace does not say that there is no room")
	}
}
