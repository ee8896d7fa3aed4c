package server

import (
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"codehub/internal/server/config"
)

// With a log in JSON, the address of the setup page is JSON, too.
func TestSetupAddressInJSONLog(t *testing.T) {
	t.Parallel()
	cfg := config.Config{LogFormat: "json", LogLevel: "error", PublicURL: &url.URL{Scheme: "https", Host: "code.example.com"}}
	for code, want := range map[string]string{"ABCD-EFGH": "https://code.example.com/setup?code=ABCD-EFGH", "": "https://code.example.com"} {
		var out strings.Builder
		announce(&out, cfg, code)
		var line struct{ URL string }
		if err := json.Unmarshal([]byte(out.String()), &line); err != nil || line.URL != want {
			t.Errorf("%q: %v in %s", code, err, out.String())
		}
	}
}
