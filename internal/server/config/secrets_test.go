package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"codehub/internal/server/config"
)

// A secret may be in a file, whose name is in the variable with _FILE. It is not in what is shown
// of the settings.
func TestSecretsFromFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("postgres://codehub:s3cret@db/codehub\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"CODEHUB_DATABASE_URL", "CODEHUB_REDIS_URL", "CODEHUB_ADMIN_PASSWORD"} {
		t.Setenv(name, "")
	}
	t.Setenv("CODEHUB_DATABASE_URL_FILE", file)
	t.Setenv("CODEHUB_LOG_LEVEL", "debug")
	cfg, err := parse(t)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.DatabaseURL != "postgres://codehub:s3cret@db/codehub" {
		t.Errorf("the setting is %q", cfg.DatabaseURL)
	}
	want := map[string]config.Effective{
		"CODEHUB_DATABASE_URL": {Value: "postgres://codehub:xxxxx@db/codehub", From: config.FromFile},
		"CODEHUB_LOG_LEVEL":    {Value: "debug", From: config.FromEnvironment},
		"CODEHUB_LOG_FORMAT":   {Value: "text", From: config.FromDefault},
	}
	for _, e := range cfg.Effective() {
		if w, ok := want[e.Variable]; ok && (e.Value != w.Value || e.From != w.From) {
			t.Errorf("%s: %+v", e.Variable, e)
		}
		if strings.Contains(e.Value, "s3cret") {
			t.Errorf("%s shows the password", e.Variable)
		}
	}
	t.Setenv("CODEHUB_DATABASE_URL", "postgres://other")
	if err := config.ReadSecrets(); err == nil || !strings.Contains(err.Error(), "CODEHUB_DATABASE_URL_FILE: CODEHUB_DATABASE_URL is set as well") {
		t.Errorf("both ways: %v", err)
	}
	for _, tc := range []struct{ file, want string }{{"/nonexistent", "no such file"}, {os.DevNull, "is empty"}} {
		t.Setenv("CODEHUB_DATABASE_URL", "")
		t.Setenv("CODEHUB_DATABASE_URL_FILE", tc.file)
		if err := config.ReadSecrets(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", tc.file, err)
		}
	}
}
