package dashboard

import (
	"strings"
	"testing"

	"codehub/api"
)

var testSettings = api.Settings{Server: "alpha.example", Settings: []api.Setting{
	{Setting: "CODEHUB_LISTEN", Value: "127.0.0.1:8080", From: api.FromDefault},
	{Setting: "CODEHUB_CA_FILE", Value: "", From: api.FromDefault},
	{Setting: "CODEHUB_URL", Value: "https://code.example.com/<b>", From: api.FromEnvironment},
	{Setting: "CODEHUB_ADMIN_PASSWORD", Value: api.SecretSet, From: api.FromFile},
	{Setting: "CODEHUB_REDIS_URL", Value: api.SecretNotSet, From: api.FromDefault},
	{Setting: "CODEHUB_LOG_LEVEL", Value: "debug", From: api.FromFlag},
}}

// The page has the settings that differ from the defaults first, each with its origin.
func TestSettingsPage(t *testing.T) {
	t.Parallel()
	b := newWorld(t).loggedIn()
	contains(t, "the administrators' page", b.get("/admin").body, `href="/admin/settings"`)
	page := b.get("/admin/settings").body
	contains(t, "the page", page, "alpha.example", "<code>https://code.example.com/&lt;b&gt;</code>", "Environment", "set, not shown", "not set", "Command line")
	given, defaults, found := strings.Cut(page, `id="defaults-title"`)
	if !found {
		t.Fatal("the page has no defaults")
	}
	contains(t, "what is given", given, "CODEHUB_URL", "CODEHUB_ADMIN_PASSWORD", "CODEHUB_LOG_LEVEL")
	contains(t, "defaults", defaults, "CODEHUB_LISTEN", "CODEHUB_CA_FILE", "CODEHUB_REDIS_URL")
	lacks(t, "defaults", defaults, "CODEHUB_URL")
	contains(t, "in Korean", b.get("/admin/settings", "Accept-Language", "ko").body, "환경 변수", "이 서버에서 지정한 설정", "설정되지 않음")
}
